"""Digests of code and files: what a computation is made of."""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import (
    UNREADABLE,
    DigestCache,
    canonical_json,
    code_digest,
    file_digest,
    own_code_digest,
    text_digest,
    unit_key,
)


def test_file_digest_is_sha256(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert file_digest(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()


def test_cache_reads_a_file_again_only_when_it_changed(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("one")
    cache = DigestCache(tmp_path / "digests.json")
    one = cache.digest(path)
    cache.save()
    monkeypatch.setattr("heatlas.pipeline.run.work.digests.file_digest", lambda _: pytest.fail("read again"))
    cache = DigestCache(tmp_path / "digests.json")
    assert cache.digest(path) == one
    monkeypatch.undo()
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    assert cache.digest(path) == hashlib.sha256(b"two").hexdigest()
    assert cache.digest(tmp_path / "absent") == "unreadable"
    path.write_text("six")
    os.utime(path, ns=(1, 1))
    assert cache.digest(path) == hashlib.sha256(b"six").hexdigest(), "of the same size, its time set back"


@dataclass(frozen=True)
class Record:
    a: int
    b: tuple[float, ...]


def test_canonical_json_of_records():
    assert canonical_json([Record(1, (0.5,)), {"y": 1, "x": None}]) == '[{"a": 1, "b": [0.5]}, {"x": null, "y": 1}]'
    with pytest.raises(TypeError):
        canonical_json(object())


def forget_code() -> None:
    """Code is read once per process; tests that write code forget what was read."""
    importlib.invalidate_caches()
    for cached in (digests.source_of, digests._root_of, digests.imported_modules):
        cached.cache_clear()
    digests._modules_digest.cache_clear()
    digests._read_module.cache_clear()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="later versions leave out empty lists")
@pytest.mark.parametrize("module", ["pipeline.statistics.images.voxel_test", "pipeline.run.work.digests"])
def test_code_is_written_as_python_dumps_it_without_docstrings(module: str) -> None:
    path = digests.source_of(f"heatlas.{module}")
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [statement for statement in body if not digests._is_text_alone(statement)]
    assert digests._module_code(f"heatlas.{module}") == ast.dump(tree)


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "digested_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def digest(code: str) -> str:
        (folder / "module.py").write_text(code)
        forget_code()
        return code_digest("digested_package")

    yield digest
    forget_code()


def test_code_digest_sees_code_and_nothing_else(package):
    before = package('def f(x):\n    """Doc."""\n    return x + 1\n')
    assert package("\n\n# comment\ndef f( x ):\n    return x+1\n") == before
    assert package("def f(x):\n    return x + 2\n") != before


def test_code_digest_is_blind_to_text_below_constants_and_fields(package):
    code = "A = 1\nB = 'b'\nclass C:\n    x: int = 0\n    y: int = 1\n"
    documented = (
        """'Doc.'\nA = 1\n'Of A.'\nB = 'b'\nclass C:\n    'C.'\n    x: int = 0\n    'Of x.'\n    y: int = 1\n"""
    )
    before = package(code)
    assert package(documented) == before
    assert package(code.replace("'b'", "'c'")) != before


def test_key_depends_on_inputs_parameters_and_code():
    keys = {
        unit_key({"a": "1"}, Record(1, ()), "heatlas.pipeline.run"),
        unit_key({"a": "2"}, Record(1, ()), "heatlas.pipeline.run"),
        unit_key({"a": "1"}, Record(2, ()), "heatlas.pipeline.run"),
        unit_key({"a": "1"}, Record(1, ()), "heatlas.pipeline.cohort.records"),
    }
    assert len(keys) == 4


def test_code_shown_to_be_the_same_keeps_the_digest_of_the_earlier_code(package, tmp_path, monkeypatch):
    earlier, now = package("def f(): return 2 + 2"), package("def f(): return 4")
    assert earlier != now
    (tmp_path / "same.tsv").write_text(f"modules\tdigest\tearlier\ndigested_package\t{now}\t{earlier}\n")
    monkeypatch.setattr(digests, "SAME_CODE", tmp_path / "same.tsv")
    digests._earlier_digests.cache_clear()
    assert package("def f(): return 4") == earlier
    assert package("def f(): return 5") not in (earlier, now), "a further change counts"
    digests._earlier_digests.cache_clear()


@pytest.mark.parametrize("row", digests.SAME_CODE.read_text().splitlines()[1:], ids=lambda row: row.split("\t")[0])
@pytest.mark.studies
def test_rows_of_code_that_is_the_same_are_of_the_code_now(row):
    modules, digest, earlier = row.split("\t")
    assert digests._modules_digest(tuple(sorted(modules.split()))) == digest != earlier, (
        f"{digests.SAME_CODE}: {modules} has changed since. Remove its rows (finished runs then do that work again: "
        "say so in CHANGELOG.md), or, where `make same` finds no difference, give them the new digest."
    )


# What a computation is made of: all that its module computes with, and nothing else.

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


def test_code_of_the_users_own_is_its_file_and_what_it_imports_beside_it(tmp_path, monkeypatch) -> None:
    lab = tmp_path / "lab"
    (lab / "parts").mkdir(parents=True)
    texts = {
        "nets.py": "import torch\nfrom parts import blocks as b\nimport heads\n",
        "heads.py": "A = 1\n",
        "other.py": "B = 1\n",
        "parts/__init__.py": "C = 1\n",
        "parts/blocks.py": "from . import layers\n",
        "parts/layers.py": "D = 1\n",
        "parts/unused.py": "E = 1\n",
    }
    for name, text in texts.items():
        (lab / name).write_text(text)
    place = str(lab / "nets.py")
    first = own_code_digest(place)
    moved = shutil.copytree(lab, tmp_path / "moved")
    assert own_code_digest(str(moved / "nets.py")) == first
    for name, text in texts.items():
        (lab / name).write_text(f"{text}# \n")
        assert (own_code_digest(place) != first) == (name not in ("other.py", "parts/unused.py")), name
        (lab / name).write_text(text)
        assert own_code_digest(place) == first
    for name, other in (("heads.py", "parts/blocks.py"), ("parts/blocks.py", "heads.py")):
        (lab / name).write_text(texts[other])  # two files that change places
    assert own_code_digest(place) != first
    for name, text in texts.items():
        (lab / name).write_text(text)
    (lab / "nets.py").write_text("class Net(:\n")
    assert own_code_digest(place) not in (first, UNREADABLE)
    assert own_code_digest(str(lab / "gone.py")) == own_code_digest("") == own_code_digest("no_such_module_here")
    assert own_code_digest(str(lab / "gone.py")) == UNREADABLE
    monkeypatch.syspath_prepend(str(lab))
    forget_code()
    of_module = own_code_digest("parts.blocks")
    (lab / "parts" / "__init__.py").write_text("C = 2\n")
    assert own_code_digest("parts.blocks") != of_module
    (lab / "parts" / "__init__.py").write_text("C = 1\n")
    (lab / "heads.py").write_text("A = 2\n")
    assert own_code_digest("parts.blocks") == of_module
    (tmp_path / "loose").mkdir()  # a package without __init__.py, also named by a file within it
    for name, text in (("made.py", "from loose.below import x\n"), ("below.py", "x = 1\n")):
        (tmp_path / "loose" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_code()
    places = "loose.made", str(tmp_path / "loose" / "made.py")
    loose = [own_code_digest(one) for one in places]
    assert UNREADABLE not in loose
    (tmp_path / "loose" / "below.py").write_text("x = 2\n")
    assert not set(loose) & {own_code_digest(one) for one in places}
    (lab / "parts" / "layers.py").write_text("D = 2\n")
    assert own_code_digest("parts.blocks") != of_module
    installed = shutil.copytree(lab, tmp_path / "site-packages")
    of_library = own_code_digest(str(installed / "nets.py"))
    (installed / "heads.py").unlink()
    assert of_library == own_code_digest(str(installed / "nets.py"))
    assert of_library == text_digest(f"nets.py {file_digest(installed / 'nets.py')}")
    forget_code()
