from __future__ import annotations

import os

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import run_step


def test_step_is_done_once_per_state_of_its_inputs(tmp_path):
    layout = RunLayout(tmp_path)
    source, target = tmp_path / "in.tsv", tmp_path / "group" / "out.tsv"
    target.parent.mkdir()
    source.write_text("1")
    calls = []

    def double():
        calls.append(source.read_text())
        target.write_text(source.read_text() * 2)
        return [target]

    def step(parameters=1):
        digests = DigestCache(layout.digests)
        return run_step(layout, "double", [source], parameters, ["heatlas.pipeline.run.work.jobs"], double, digests)

    assert [step(), step()] == [True, False]
    source.write_text("22")
    assert [step(), step()] == [True, False]
    for spoil in (lambda: target.write_text("tampered"), lambda: set_back(target, "3333"), target.unlink):
        spoil()
        assert [step(), step()] == [True, False]
        assert target.read_text() == "2222"
    for damaged in ("", "[]", "{}"):
        layout.receipt("steps", "double").write_text(damaged)
        assert [step(), step()] == [True, False]
    assert [step(parameters=2), step(parameters=2)] == [True, False]
    assert calls == ["1", *["22"] * 8]


def set_back(path, text):
    """Write a text and give the file its old time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_moved_run_folder_is_not_done_again_but_another_input_is(tmp_path):
    (tmp_path / "elsewhere.json").write_text("same")
    (tmp_path / "other.json").write_text("same")

    def step(root, outside):
        layout = RunLayout(root)

        def write():
            layout.group.mkdir(parents=True, exist_ok=True)
            (layout.group / "out.tsv").write_text("1")
            return [layout.group / "out.tsv"]

        inputs = [layout.root / "in.tsv", tmp_path / outside]
        return run_step(layout, "s", inputs, 1, ["heatlas.pipeline.run.work.jobs"], write, DigestCache(layout.digests))

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "in.tsv").write_text("1")
    assert step(tmp_path / "run", "elsewhere.json")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert not step(tmp_path / "moved", "elsewhere.json")
    assert step(tmp_path / "moved", "other.json")
