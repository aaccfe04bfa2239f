"""The run folder: create it, recognise it, and protect it from mix-ups and from others who work there.

One program works in a folder alone, or several on different people (``heatlas-bids ... participant``): two would
overwrite each other's tables, or images of a person. A lock file names the process. The lock of a process that has
ended is replaced; whether one on another machine has ended cannot be known, so a person decides.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import json
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.config.files import config_to_toml, read_config, toml_value
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import json_object, known_json, read_regular, read_toml
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import relative_to_folder
from heatlas.pipeline.run.tables import write_text

LARGEST_LOCK = 2**16
"""Bytes of a lock file that are read."""


@dataclass(frozen=True)
class RunInput:
    """Input of a run; the ``[run]`` section of its ``config.toml``.

    The path of the input is written relative to the run folder, so that no home folder is named.
    """

    input: Path
    preset: str
    key: str = ""
    """Fingerprint of the secret key of an anonymised run."""
    one_image: bool = False
    """Whether the input may also be a single image."""
    age: float | None = None
    sex: str | None = None
    """Of the person of a single image; written to its ``scans.tsv`` alone."""


def require_input(root: Path, or_image: bool = False) -> None:
    """Refuse an input that is no folder, or the folder of a run; `or_image`: one image may be given too."""
    if root.is_file() and not or_image and root.name.lower().endswith((".nii", ".nii.gz", ".mgz")):
        raise BadInputError(
            f"{root}: is one image. The networks of a finished run explain it: heatlas apply RUN {root.name} OUT. For "
            "a run of its own, give the folder of all images."
        )
    if not root.is_dir() and not (or_image and root.is_file()):
        raise BadInputError(
            f"{root}: {'is a file' if root.is_file() else 'no such folder'}. Give an ADNI or OASIS download, a BIDS or "
            f"CAPS dataset, FreeSurfer subjects, or a folder of images with --table{', or one image' * or_image}."
        )
    try:
        read_run_input(RunLayout(root))
    except UsageError:
        return
    raise BadInputError(
        f"{root}: is the folder of a run, not of scans. Its report is made again by heatlas report {root}; its "
        f"networks explain other scans by heatlas apply {root} NEW OUT. As INPUT give the folder of the scans."
    )


def recognise_run_folder(out: Path, source: RunInput) -> RunLayout:
    """Check that a folder may hold this run, without writing to it.

    Raises BadInputError if the input folder is missing or unreadable. Raises UsageError if `out` holds something else,
    belongs to another input, or would be read as part of the input.
    """
    require_input(source.input, source.one_image)
    return _folder_of(out, source)


def _folder_of(out: Path, source: RunInput) -> RunLayout:
    out, root = out.resolve(), source.input.resolve()
    if out == root or out in root.parents:
        raise UsageError(f"{out}: the output folder must not be or contain the input folder {root}.")
    if root in out.parents and root / "derivatives" not in [out, *out.parents]:
        raise UsageError(f"{out}: lies inside the input folder, which is never written to. Choose a folder elsewhere.")
    layout = RunLayout(out)
    first = layout.lock.name, f".{layout.config.name}."  # begin the names of what is written before all else
    others = [path for path in out.iterdir() if not path.name.startswith(first)] if out.is_dir() else []
    if layout.config.is_file():  # looked for last: another job may have just begun
        begun = read_run_input(layout)
        if begun.input.resolve() != root:
            raise UsageError(f"{out}: holds a run of another input ({begun.input}). Choose another output folder.")
    elif others:
        raise UsageError(f"{out}: is not empty and not a Heatlas run. Choose an empty or new output folder.")
    return layout


def with_registration_seed(config: Config, layout: RunLayout) -> Config:
    """Set the registration seed: that of the run that is continued, else the seed of the run.

    So changing ``seed`` later redoes no registration.
    """
    if config.registration.seed >= 0:
        return config
    begun = read_config(layout.config) if layout.config.is_file() else config
    seed = begun.registration.seed if begun.registration.seed >= 0 else begun.seed
    return dataclasses.replace(config, registration=dataclasses.replace(config.registration, seed=seed))


def prepare_run_folder(out: Path, source: RunInput, config: Config, key: str | None = None) -> RunLayout:
    """Create the run folder, or recognise one of the same input, and write its configuration.

    `key`: secret key of an anonymised run, which keeps a fingerprint of it. The input is not read: it may be gone when
    registered scans are trained with again. Raises UsageError as `recognise_run_folder`, or if `out` is a run with
    other privacy settings or another key, or cannot be written to.
    """
    layout = _folder_of(out, source)
    mark = _require_same_privacy(layout, config, key)
    try:
        text = (
            f"{config_to_toml(config)}\n[run]\ninput = {toml_value(relative_to_folder(source.input, layout.root))}\n"
            f"preset = {toml_value(source.preset)}\n"
        ) + (f"key = {toml_value(mark)}\n" if mark else "")
        write_text(layout.config, text)
        write_text(layout.settings, text)
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({os.strerror(error.errno or 0)}).") from error
    return layout


def _require_same_privacy(layout: RunLayout, config: Config, key: str | None) -> str:
    """Fingerprint of the key; empty without one.

    A run is not continued with other privacy settings or another key: hidden values would appear beside the original
    ones, and each person twice.
    """
    if not layout.config.is_file():
        return "" if key is None else fingerprint(key)
    if read_config(layout.config).privacy != config.privacy:
        raise UsageError(
            f"{layout.root}: this run was begun with other privacy settings. Give --anonymise and --pseudonymise as "
            "then, or choose another output folder."
        )
    mark = read_run_input(layout).key
    if key is not None and not is_fingerprint_of(mark, key):
        raise UsageError(
            f"{layout.root}: this run was begun with another key. Give --anonymise the file it was begun with, or "
            "choose another output folder."
        )
    return mark


def read_run_config(layout: RunLayout) -> Config:
    """Read the configuration of an existing run.

    Raises UsageError if it is damaged, or a setting that affects results was changed after the run.
    """
    config = read_config(layout.config)
    if not layout.settings.is_file():  # written by an earlier version
        return _with_own_body(layout, config)
    made = _results_depend_on(read_config(layout.settings))
    for name, value in _results_depend_on(config).items():
        if value != made[name]:
            raise UsageError(
                f"{layout.config}: {name} = {toml_value(value)}, but the run was made with {toml_value(made[name])}. "
                "Put that back, or give this file to `heatlas run --config`, which redoes what depends on it."
            )
    return _with_own_body(layout, config)


def _with_own_body(layout: RunLayout, config: Config) -> Config:
    """The settings of a run of probes with the architecture of the backbone, which the networks hold in any case."""
    probe: Any = config.model
    if getattr(probe, "body", None) != "":  # no probe, or one that says its backbone
        return config
    for path in sorted(layout.root.glob("models/fold-*/model.json")):
        architecture = known_json(path).get("architecture")
        body = architecture.get("body") if isinstance(architecture, dict) else None
        if isinstance(body, str) and body:
            return dataclasses.replace(config, model=dataclasses.replace(probe, body=body))
    return config


def _results_depend_on(record: Any, where: str = "") -> dict[str, Any]:
    """All settings by name except those of the report and the cluster, which do not affect results."""
    settings: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if dataclasses.is_dataclass(value):
            settings |= _results_depend_on(value, f"{where}{name}.") if name not in ("report", "cluster") else {}
        else:
            settings[where + name] = value
    return settings


def read_run_input(layout: RunLayout) -> RunInput:
    """Read the input of a run.

    Raises UsageError if the folder is not a run.
    """
    try:
        section = read_toml(layout.config)["run"]
        return RunInput((layout.root / section["input"]).resolve(), section["preset"], str(section.get("key", "")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{layout.root}: not a Heatlas run (no readable config.toml with a [run] section). Give the OUT of "
            "`heatlas run`; of `heatlas demo OUT` it is OUT/run."
        ) from error


def fingerprint(key: str) -> str:
    """A salted digest of a secret, slow to compute, so that guessing is costly; differs each time.

    >>> is_fingerprint_of(fingerprint("secret"), "secret"), is_fingerprint_of(fingerprint("secret"), "other")
    (True, False)
    """
    salt = secrets.token_hex(16)
    return f"scrypt:{salt}:{_digest(key, salt)}"


def is_fingerprint_of(text: str, key: str) -> bool:
    """Whether a fingerprint was made from this secret; False for any other text."""
    method, _, rest = text.partition(":")
    salt, _, digest = rest.partition(":")
    return method == "scrypt" and hmac.compare_digest(_digest(key, salt).encode(), digest.encode())


def _digest(key: str, salt: str) -> str:
    return hashlib.scrypt(key.encode(), salt=salt.encode(), n=2**15, r=8, p=1, maxmem=2**26, dklen=32).hex()


@contextmanager
def run_lock(path: Path, people: Sequence[str] = ()) -> Iterator[str]:
    """Hold the lock of a folder, which is created if needed, or those of people in it.

    The holder of the folder works there alone; holders of different people work side by side. Who begins makes its own
    lock file first and then looks for those of others, so that of two that begin at once no one is overlooked. Folders
    that the holder of the folder created are removed if they are empty at the end, as after an input that is refused.

    `path`: the lock file. `people`: lock these (``sub-01``, once or more often) instead of the folder; each has a lock
    file of its own. Yields a line for the log if the lock of an ended process was replaced, else "". Raises
    ResumableError if another program works there, or on one of the people. Raises UsageError if the folder cannot be
    written to, or a link in it leads out of it.
    """
    require_no_links_out(path.parent)
    started, pid = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), os.getpid()
    holder = {"host": platform.node(), "pid": pid, "process": _process_start(pid), "started": started}
    mine = json.dumps(holder) + "\n"
    with ExitStack() as held:
        try:
            new = [] if people else [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
            held.callback(_remove_empty, new)
            lines = []
            for file in [path.with_name(f"{path.name}.{person}") for person in dict.fromkeys(people)] or [path]:
                lines.append("" if _create_lock(file, mine) else _replace_lock(file, mine))
                held.callback(_release, file, mine)
            if people and path.exists():
                _require_gone(path, _read_lock(path))
            for left in [] if people else list(path.parent.glob(f"{path.name}.sub-*")):
                if left.exists():  # taken over before it is removed: its job may be starting again
                    _replace_lock(left, mine)
                    _release(left, mine)
        except OSError as error:
            raise UsageError(f"{path.parent}: cannot write there ({error.strerror}).") from error
        yield next(filter(None, lines), "")


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, up to the first that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _release(file: Path, mine: str) -> None:
    if _read_lock(file) == mine:
        file.unlink(missing_ok=True)


def require_no_links_out(root: Path) -> None:
    """Refuse a run folder with a link to a folder outside it: results would be written there.

    Raises UsageError: names the link. Links to files are safe, since writing a file replaces the link.
    """
    inside = root.resolve()
    for folder, names, _ in os.walk(inside):
        for link in (Path(folder, name) for name in names):
            if link.is_symlink() and not link.resolve().is_relative_to(inside):
                raise UsageError(
                    f"{link}: is a link to a folder outside {root}, and results would be written there. Replace the "
                    "link by the folder itself, or choose another output folder."
                )


def _create_lock(path: Path, text: str) -> bool:
    """Create the file, and its folder if needed, unless it exists; returns whether it was created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    except FileNotFoundError:  # who was refused has just removed the empty folder
        return _create_lock(path, text)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
    return True


def _read_lock(path: Path) -> str:
    try:
        return read_regular(path, LARGEST_LOCK).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _replace_lock(path: Path, mine: str) -> str:
    """Replace the lock of an ended process, and return a line about it.

    Of several processes that find the same lock, the one that can create a file named after its content replaces it.
    """
    theirs = _read_lock(path)
    _require_gone(path, theirs)
    claim = path.with_name(f"{path.name}.{hashlib.sha256(theirs.encode()).hexdigest()[:16]}")
    if not _create_lock(claim, mine):
        raise ResumableError(
            f"{path.parent}: another program has just begun to work there. If not, delete {claim} and try again."
        )
    if _read_lock(path) != theirs:
        claim.unlink(missing_ok=True)
        raise ResumableError(f"{path.parent}: another program has just begun to work there. Try again.")
    claim.replace(path)
    held = json_object(theirs)
    return f"Continuing a run that was killed (process {held['pid']}, started {held['started']})."


def _require_gone(path: Path, text: str) -> None:
    """Refuse unless the process that wrote this lock is known to have ended."""
    person = next((part for part in path.name.split(".") if part.startswith("sub-")), "")
    work = f"works on {person}" if person else "works"
    try:
        held = json_object(text)
        host, pid, started = str(held["host"]), int(held["pid"]), str(held["started"])
        process = held["process"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResumableError(
            f"{path.parent}: another program may be starting to work there. If not, delete {path} and try again."
        ) from error
    if host != platform.node():
        raise ResumableError(
            f"{path.parent}: process {pid} on {host} {work} there since {started}. Wait for it. If it has ended, "
            f"delete {path} and run the same command again."
        )
    if _is_alive(pid, process):
        raise ResumableError(
            f"{path.parent}: process {pid} {work} there since {started}. Wait for it, or choose another output folder."
        )


def _is_alive(pid: int, process: str | None) -> bool:
    """Whether a process of this machine exists and was started when the lock says."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return _process_start(pid) == process


def _process_start(pid: int) -> str | None:
    """Start time of a process in ticks since boot; None if the system does not provide it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
