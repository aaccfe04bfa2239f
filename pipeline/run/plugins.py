"""Plug-ins: methods, networks, atlases, parts of the bench and questions of the report from other distributions.

A distribution names its record in the group ``heatlas.methods``, ``heatlas.networks`` or another one of `Group`, by an
entry point (docs/plugins.md). Each registry asks for those of its group when it is made, in every process. A
plug-in that cannot be used is left out, and said, so that it never keeps anybody from working. The studies of Heatlas
itself (`heatlas.studies`) come in by the same door, before all others.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Collection
from importlib import metadata
from typing import Literal, TypeVar

Record = TypeVar("Record")
Group = Literal["methods", "networks", "atlases", "parts", "objectives", "commands", "tables", "questions"]
PREFIX = "heatlas."
PROGRAM = "heatlas"
"""Our own distribution."""

_used: dict[str, str] = {}
_origin: dict[tuple[str, str], str] = {}


def plugged_in(group: Group, kind: type[Record], taken: Collection[str]) -> tuple[Record, ...]:
    """Records that distributions add to a registry, ours first, then in the order of their names.

    `kind`: what a record must be; it has a ``name``. An entry point gives one of them, or a sequence. `taken`: names
    that the registry has; a plug-in cannot replace what they stand for.
    """
    records: dict[str, Record] = {}
    for point in sorted(metadata.entry_points(group=PREFIX + group), key=_rank):
        source = _distribution(point)
        try:
            given = point.load()
        except Exception as error:  # the code of others can raise anything
            _left_out(point, f"cannot be imported ({type(error).__name__}: {error})", "Update or uninstall it.")
            continue
        for record in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(record, kind):
                _left_out(point, f"gives a {type(record).__name__}", f"It must give a {kind.__name__}.")
                continue
            name = str(record.name)  # type: ignore[attr-defined]
            if name in taken or name in records:
                _left_out(point, f"takes the name {name}, which exists", "Give it another name.")
                continue
            records[name] = record
            distribution, version = source.rsplit(" ", 1)
            if distribution != PROGRAM:
                _origin[group, name] = source
                _used[distribution] = version
    return tuple(records.values())


def origin(group: Group, name: str) -> str:
    """Distribution and version that added a name to a registry; "heatlas" for the program's own."""
    return _origin.get((group, name), PROGRAM)


def plugin_versions() -> dict[str, str]:
    """Versions of the other distributions whose records were added, by name; of registries that were made so far."""
    return dict(sorted(_used.items()))


def _rank(point: metadata.EntryPoint) -> tuple[bool, str, str]:
    source = _distribution(point)
    return source.rsplit(" ", 1)[0] != PROGRAM, source, point.name


def _distribution(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown 0"


def _left_out(point: metadata.EntryPoint, why: str, remedy: str) -> None:
    if multiprocessing.parent_process() is None:  # workers need not say it again
        print(
            f"heatlas: plug-in {point.group}: {point.name} = {point.value} of {_distribution(point)} is left out: it "
            f"{why}. {remedy}",
            file=sys.stderr,
        )
