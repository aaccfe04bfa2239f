"""What a computation is made of: all that its module computes with, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from code_caches import forget_code

from heatlas.pipeline.run.work import digests

MODULES = {
    "work": "from __future__ import annotations\n"
    "from parted.formula import value\n"
    "from parted.record import Record\n"
    "from heatlas.pipeline.run.tables import write_table\n"
    "from heatlas.pipeline.run.work.seeds import generator\n"
    "def do(one: Record) -> Record:\n"
    "    from .lazy import late\n"
    "    write_table(generator)\n"
    "    return late(value(one))\n",
    "formula": "from . import deeper\ndef value(x):\n    return deeper.root(x)\n",
    "deeper": "def root(x):\n    return x\n",
    "lazy": "import json\ndef late(x):\n    return json.dumps(x)\n",
    "record": "class Record:\n    pass\n",
    "registry": "from parted.formula import value\nfrom parted.other import more\nALL = (value, more)\n",
    "other": "def more(x):\n    return 2 * x\n",
}


@pytest.fixture
def parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "parted"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_code()
    yield folder
    forget_code()


def test_the_closure_holds_what_is_computed_with(parted: Path) -> None:
    assert digests.import_closure(["parted.work"]) == {
        "parted.work", "parted.formula", "parted.deeper", "parted.lazy", "heatlas.pipeline.run.work.seeds",
    }  # fmt: skip


def test_a_package_stands_for_all_its_modules(parted: Path) -> None:
    names = {f"parted.{name}" for name in MODULES} | {"parted", "heatlas.pipeline.run.work.seeds"}
    assert digests.import_closure(["parted"]) == names


def test_nothing_is_imported_to_find_out(parted: Path) -> None:
    (parted / "deeper.py").write_text("raise RuntimeError('imported')\n")
    forget_code()
    assert "parted.deeper" in digests.import_closure(["parted.work"])


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_key_changes_with_the_modules_of_its_closure_only(parted: Path, module: str) -> None:
    before = digests.code_digest("parted.work")
    with (parted / f"{module}.py").open("a") as file:
        file.write("extra = 1\n")
    forget_code()
    changed = digests.code_digest("parted.work") != before
    assert changed == (module in ("work", "formula", "deeper", "lazy"))


def test_a_new_module_in_the_registry_changes_no_key(parted: Path) -> None:
    before = digests.code_digest("parted.work")
    (parted / "new.py").write_text("def newest(x):\n    return x\n")
    (parted / "registry.py").write_text(MODULES["registry"] + "from parted.new import newest\nALL += (newest,)\n")
    forget_code()
    assert digests.code_digest("parted.work") == before


def test_a_function_stands_for_its_module() -> None:
    assert digests.code_digest(digests.import_closure) == digests.code_digest("heatlas.pipeline.run.work.digests")


def test_a_module_without_source_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"parted\.nowhere: no source"):
        digests.import_closure(["parted.nowhere"])
