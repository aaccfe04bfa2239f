"""Errors that can end a run, and their exit codes.

Every error that a user can cause or fix has one of these classes; its message is one readable line that names the
file, column or module and the remedy. Any other error is a bug (exit code 70).
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_BAD_INPUT = 65
EXIT_INTERNAL = 70
EXIT_RESUMABLE = 75
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class HeatlasError(Exception):
    """Base of all errors with a remedy; the message is shown to the user as it is."""

    exit_code = EXIT_INTERNAL


class UsageError(HeatlasError):
    """A wrong option, configuration value or output folder."""

    exit_code = EXIT_USAGE


class BadInputError(HeatlasError):
    """Input that cannot be used: an image, a table, a whole folder."""

    exit_code = EXIT_BAD_INPUT


class MissingDataError(HeatlasError):
    """A template, or a file that an installed package should contain, is missing or altered."""

    exit_code = EXIT_BAD_INPUT


class ResumableError(HeatlasError):
    """The run stopped for an outside reason (disk full, lost workers); running again continues it."""

    exit_code = EXIT_RESUMABLE


class TerminatedError(ResumableError):
    """Another program asked this one to end (SIGTERM), as schedulers do before the time is up."""

    exit_code = EXIT_TERMINATED
