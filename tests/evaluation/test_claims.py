"""The ledger of claims: every number stands on its page, every command exists, and what has changed is stale."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import claims
import pytest

from heatlas.pipeline.run.config.files import load_config
from heatlas.workflows.command_line import build_parser

ROOT = Path(__file__).parents[2]
CLAIMS = [claim for source in claims.sources() for claim in source.claims]
ROWS = {name: answer for claim in CLAIMS for name, answer in claim.rows()}
FOLDERS = {name: f"/{name.lower()}" for name in claims.FOLDERS}


def test_the_page_is_what_the_records_say():
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert written == claims.page(), "run: python benchmarks/claims.py > docs/claims.md"


def test_every_number_still_stands_on_its_page():
    for name, answer in ROWS.items():
        assert answer.stands, f"{name}: docs/{answer.page} no longer holds what it quotes"
        held = set().union(*(claims.numbers(quote) for quote in answer.quotes))
        assert claims.numbers(answer.found) <= held, f"{name}: a number that is not quoted"


def test_a_row_rests_on_a_page_or_a_test_and_an_open_one_says_what_it_needs():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for name, answer in ROWS.items():
        assert answer.verdict in claims.VERDICTS, name
        if answer.verdict in ("open", claims.CANNOT):
            assert answer.needs, name
        else:
            assert answer.cohort in claims.COHORTS, name
            assert bool(answer.page and answer.quotes) != bool(answer.test), name
        if answer.test:
            file, _, function = answer.test.partition("::")
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {function}\(", source, re.MULTILINE), name
        if claims.command_of(answer) is None and answer.verdict != claims.CANNOT:
            assert answer.needs.startswith("no command"), name
        assert (answer.cohort == "identity") <= bool(answer.test), name


@pytest.mark.parametrize("name", claims.commands())
def test_commands_and_their_settings_exist(name, tmp_path):
    command = claims.commands()[name]
    assert name in {answer.command for answer in ROWS.values()}
    config = tmp_path / "config.toml"
    for words in command.filled(FOLDERS, config):
        if words[0] == "heatlas":
            asked = vars(build_parser().parse_args(words[1:]))
            if command.config:
                load_config(asked.get("preset") or "demo", config)
        else:
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            for word in words[2:]:
                assert not word.startswith("--") or f'"{word}"' in source, word


def test_times_are_those_that_a_file_says_and_keep_the_bound():
    timed = {name: one for name, one in claims.commands().items() if one.minutes is not None}
    for name, one in timed.items():
        assert one.said, name
        assert claims.flat(one.said) in claims.flat((ROOT / one.said_in).read_text("utf-8")), name
    assert claims.hours(list(timed)) == pytest.approx(sum(one.minutes for one in timed.values()) / 120)
    assert claims.hours(list(timed)) <= claims.BOUND
    assert f"Together\n{claims.hours(list(timed)):.1f} hours" in claims.page()


def test_every_part_of_the_notes_is_reached_or_says_why_not():
    parts = {(one.notes, int(number)) for one in claims.systems() for number in _parts(one.systems)}
    assert parts == {
        (n, k + 1) for n, last in (("attribution", 40), ("inherent", 40), ("probing", 20)) for k in range(last)
    }
    for one in claims.systems():
        assert one.how or one.command, one.systems
        if one.command:
            build_parser().parse_args(shlex.split(one.command)[1:])


def _parts(text: str) -> list[int]:
    found = [re.findall(r"\d+", piece) for piece in text.split(",")]
    return [number for ends in found for number in range(int(ends[0]), int(ends[-1]) + 1)]


def test_numbers_of_a_text():
    assert claims.numbers("−.05 (-0.17 to +.03), 1,098 in 3/3; 1e-3, 65, 40") == {
        "-.05", "-.17", ".03", "1098", "3", "1e-3", "65", "40",
    }  # fmt: skip


def test_a_page_that_changed_makes_its_row_stale_and_the_claim_open(monkeypatch):
    claim = next(one for one in CLAIMS if one.verdict == "holds" and one.here[0].page)
    assert f"| {claim.id} |" in claims.page()
    monkeypatch.setattr(claims, "page_text", lambda page: "other numbers")
    assert claim.verdict == "open"
    assert claim.here[0].shown_verdict == "stale"
    assert claims.page().count("**stale**") == sum(bool(answer.page) for answer in ROWS.values())


def test_a_row_is_made_again_in_the_folders_that_are_named(monkeypatch, tmp_path):
    called = []

    def started(words, cwd, check):
        called.append((words, Path(words[-1]).read_text() if words[-1].endswith(".toml") else ""))
        return dataclasses.make_dataclass("Done", ["returncode"])(0)

    monkeypatch.setattr(claims.subprocess, "run", started)
    assert claims.run("D9", [f"INPUT={tmp_path}", "OUT=/out", "RUN=/teacher"]) == 0
    assert [shlex.join(words[2:]) for words, _ in called][1] == "evaluate /out --parts objective"
    assert called[0][0][2:6] == ["run", str(tmp_path), "/out", "--preset"]
    assert 'teacher = "/teacher"' in called[0][1]
    with pytest.raises(SystemExit, match="D9 takes INPUT=FOLDER RUN=FOLDER OUT=FOLDER"):
        claims.run("D9", ["OUT=/out"])
    with pytest.raises(SystemExit, match="no command"):
        claims.run("S6", [])
    with pytest.raises(SystemExit, match="no row X1"):
        claims.run("X1", [])
    assert len(called) == 2


def test_rows_are_found_by_their_words():
    found = list(claims.listed(["smoothing", "does not"]))
    assert [line.split("\t")[0] for line in found] == ["A14b", "A15"]
