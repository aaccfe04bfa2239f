from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import pytest
from code_caches import forget_code

from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import DigestCache, canonical_json, code_digest, file_digest, unit_key


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
