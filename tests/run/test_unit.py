"""Each field of each unit of work, of studies too, changes its key, or says why it does not."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import heatlas
from heatlas.pipeline.run.work import unit
from heatlas.pipeline.run.work.digests import DigestCache, source_of, text_digest, unit_key
from heatlas.pipeline.run.work.unit import Unit, keyed, keyed_file, unkeyed


class OfPlugIn(Unit):
    image: Path = keyed_file("image")
    mask: Path | None = keyed_file("mask")
    width_mm: float
    files: Any = keyed("name", lambda files: files.size, inputs={"seen": "seen"})
    threads: int = unkeyed("changes the time alone")


def all_units() -> list[type[Unit]]:
    for module in pkgutil.walk_packages(heatlas.__path__, "heatlas."):
        source = source_of(module.name)
        if source is not None and "(Unit)" in source.read_text(encoding="utf-8"):
            importlib.import_module(module.name)
    return Unit.__subclasses__()


@dataclasses.dataclass(frozen=True)
class Standin:
    """Has every attribute, is every kind of collection, and shows its name in all that is made of it."""

    shown: str

    def __getattr__(self, name: str) -> Standin:
        if name.startswith("__"):
            raise AttributeError(name)
        return Standin(f"{self.shown}.{name}")

    def __iter__(self) -> Iterator[Standin]:
        return iter((Standin(f"{self.shown}[0]"), Standin(f"{self.shown}[1]")))

    def __getitem__(self, name: object) -> Standin:
        return Standin(f"{self.shown}[{name}]")

    def __call__(self, *_: Any) -> Standin:
        return self

    def __str__(self) -> str:
        return self.shown


class Digests(DigestCache):
    """Whose files have their names for bytes."""

    def __init__(self) -> None:
        pass

    def digest(self, path: Path) -> str:
        return text_digest(str(path))


@pytest.mark.parametrize("kind", all_units(), ids=lambda kind: kind.__name__)
def test_a_field_is_part_of_the_key_or_says_why_not(kind: type[Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(inputs: Mapping[str, str], parameters: list[Any]) -> str:
        return f"{sorted((str(name), str(value)) for name, value in inputs.items())} {parameters}"

    monkeypatch.setattr(unit, "unit_key", shown)
    monkeypatch.setattr(dataclasses, "replace", lambda value, **_: value)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    values = {field.name: Standin(field.name) for field in fields}
    usual = kind(**values).key(Digests())
    for field in fields:
        changed = kind(**values | {field.name: Standin("other")}).key(Digests()) != usual
        assert changed == ("unkeyed" not in field.metadata), field.name
        assert field.metadata.get("unkeyed") != ""


def test_a_key_has_the_parameters_and_inputs_of_the_fields() -> None:
    files = SimpleNamespace(name="t1w", size=7, seen=[Path("b"), Path("c")])
    inputs = {"image": text_digest("a"), "seen": f"{text_digest('b')} {text_digest('c')}"}
    assert OfPlugIn(Path("a"), None, 4.0, files, threads=2).key(Digests()) == unit_key(inputs, [4.0, "t1w", 7])
