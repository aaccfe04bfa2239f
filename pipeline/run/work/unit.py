"""Tasks whose fields are their key, so that no fact that a result depends on can be forgotten.

A subclass of `Unit` names what a job needs; it becomes a frozen dataclass. The value of each field is a parameter of
the key, in the order of the fields, unless the field says otherwise: `keyed` says what of the value counts, or which
bytes do, and `unkeyed` says why nothing of it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, dataclass_transform

from heatlas.pipeline.run.work.digests import Code, DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job

Inputs = Mapping[str, str] | Callable[[Any, DigestCache], Mapping[str, str]]
"""Names that digests have in the key: each with the attribute of a value that is a path or several, or a function that
gives the digests."""


def keyed(*parameters: str | Callable[[Any], Any], inputs: Inputs = MappingProxyType({}), **settings: Any) -> Any:
    """A field that enters the key by the named attributes or functions of its value, and by digests.

    `settings`: as of `dataclasses.field`, e.g. a default.
    """
    functions = tuple(attrgetter(part) if isinstance(part, str) else part for part in parameters)
    return dataclasses.field(metadata={"parameters": functions, "inputs": inputs}, **settings)


def keyed_file(name: str, **settings: Any) -> Any:
    """A field with the path of a file whose bytes enter the key under a name; None is no file."""

    def inputs(path: Path | None, digests: DigestCache) -> Mapping[str, str]:
        return {} if path is None else {name: digests.digest(path)}

    return keyed(inputs=inputs, **settings)


def unkeyed(why: str, **settings: Any) -> Any:
    """A field that the result does not depend on, or that follows from the others."""
    return dataclasses.field(metadata={"parameters": (), "unkeyed": why}, **settings)


def _digest(paths: Path | Iterable[Path], digests: DigestCache) -> str:
    return digests.joined([paths] if isinstance(paths, Path) else paths)


@dataclass_transform(frozen_default=True, field_specifiers=(keyed, keyed_file, unkeyed, dataclasses.field))
class Unit:
    """What one job needs, as a frozen dataclass; picklable.

    >>> class Smoothing(Unit):
    ...     image: Path = keyed_file("image")
    ...     width_mm: float
    ...     threads: int = unkeyed("changes the time alone", default=1)
    >>> cache = DigestCache(Path("digests.json"))
    >>> key = Smoothing(Path("t1w.nii"), 4.0).key(cache)
    >>> key == Smoothing(Path("t1w.nii"), 4.0, threads=2).key(cache), key == Smoothing(Path("t1w.nii"), 8.0).key(cache)
    (True, False)
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    def key(self, digests: DigestCache, *code: Code) -> str:
        """Key of the unit if this code does it."""
        inputs: dict[str, str] = {}
        parameters = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parameters += [part(value) for part in field.metadata.get("parameters", [lambda value: value])]
            of_files = field.metadata.get("inputs", {})
            if isinstance(of_files, Mapping):
                inputs |= {name: _digest(attrgetter(path)(value), digests) for name, path in of_files.items()}
            else:
                inputs |= of_files(value, digests)
        return unit_key(inputs, parameters, *code)

    def job(
        self, stage: str, unit: str, outputs: Mapping[str, Path], digests: DigestCache,
        function: Callable[..., Mapping[str, Any] | None], *code: Code, on_gpu: bool = False,
    ) -> Job:  # fmt: skip
        """The job that calls ``function(outputs, self)``; `code` is what the result depends on beside it."""
        return Job(stage, unit, self.key(digests, function, *code), outputs, function, (self,), on_gpu=on_gpu)
