"""JSON and TOML within bounds: what is too large, too deep or of another kind is refused by one line."""

from __future__ import annotations

import json
import os
import time

import pytest

from heatlas.pipeline.run import documents
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.ranges import from_text
from heatlas.pipeline.run.documents import DEEPEST, json_object, known_json, read_json, toml_document
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache, file_digest, read_receipt
from heatlas.pipeline.run.work.jobs import step_outputs

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
BAD = {
    "deep": DEEP,
    "deep list": '{"a": ' + "[" * 100_000,
    "a list": "[1]",
    "a number": "3",
    "empty": "",
    "cut": '{"a": 1',
    "not a number": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "half a character": '{"a": "\\ud800"}',
    "long number": '{"a": ' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("how", BAD)
def test_a_json_text_that_is_no_shallow_object_is_refused(tmp_path, how):
    with pytest.raises(ValueError):
        json_object(BAD[how])
    path = tmp_path / "some.json"
    path.write_text(BAD[how])
    with pytest.raises(BadInputError, match=r"some\.json: not a readable JSON object \(.*\)\. Make it again\.$"):
        read_json(path, "Make it again.")
    assert known_json(path) == {}


def test_what_is_no_file_or_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_JSON", 10)
    path = tmp_path / "some.json"
    path.write_text('{"a": 1, "b": 2}')
    with pytest.raises(BadInputError, match=r"cannot be read \(16 bytes, more than 10\)\. Remedy\."):
        read_json(path, "Remedy.")
    for target in (tmp_path, "/dev/zero", tmp_path / "nothing"):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(BadInputError, match="cannot be read"):
            read_json(path, "")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="a device, not a file"):
        file_digest(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInputError, match="a named pipe"):
        read_json(path, "")


def test_depth_is_counted_in_objects_and_lists():
    def nested(levels):
        return '{"a": ' * levels + "1" + "}" * levels

    assert json_object(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    with pytest.raises(ValueError, match="deeper than"):
        json_object(nested(DEEPEST + 1))
    assert json_object('{"smile": "\\ud83d\\ude00"}') == {"smile": "\N{GRINNING FACE}"}
    assert json_object(b'\xef\xbb\xbf{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("content", [DEEP, "[1]", '{"key": 1}', '{"key": "k", "outputs": 3}'])
def test_damaged_files_of_the_machinery_count_as_none(tmp_path, content):
    layout = RunLayout(tmp_path)
    for path in (layout.digests, layout.receipt("steps", "one")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert read_receipt(layout.receipt("steps", "one")) is None
    assert step_outputs(layout) == []
    (tmp_path / "image").write_text("x")
    assert DigestCache(layout.digests).digest(tmp_path / "image") == file_digest(tmp_path / "image")
    layout.lock.write_text(content)
    with pytest.raises(ResumableError, match=r"delete .* and try again"), run_lock(layout.lock):
        pass


def test_dotted_keys_of_settings_are_bounded(tmp_path):
    path = tmp_path / "settings.toml"
    begun = time.monotonic()
    for text in (".".join(["a"] * 60_000) + " = 1", "[" + " . ".join(["'a'"] * 60_000) + "]", "a = " + "[" * 10_000):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"settings\.toml: not valid TOML"):
            load_config(file=path)
    path.write_text("# " + "x" * 2**20)
    with pytest.raises(UsageError, match="more than 1,048,576"):
        load_config(file=path)
    text = "{" + ".".join(["a"] * 60_000) + " = 1}"
    assert from_text(text) == text
    (tmp_path / "config.toml").write_text("[run]\ninput = " + "[" * 10_000)
    with pytest.raises(UsageError, match="not a Heatlas run"):
        read_run_input(RunLayout(tmp_path))
    assert time.monotonic() - begun < 5
    many = ", ".join(["0.1"] * 500)
    assert toml_document(f"a = [{many}]  # 1.2.3.4") == {"a": [0.1] * 500}
    with pytest.raises(ValueError, match="deeper than"):
        toml_document("a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


def test_a_confidence_that_no_draws_can_show_is_refused():
    load_config(overrides={"statistics": {"confidence": 0.9999}})
    for level in (0.9999999999999999, 0.99999, 0.5):
        with pytest.raises(UsageError, match=r"statistics\.confidence must lie above 0\.5 and up to 0\.9999"):
            load_config(overrides={"statistics": {"confidence": level}})
