"""The ledger of claims, and the pages that it quotes."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import asked
import claim_numbers
import claim_records
import claims
import pytest
import result_pages
from patients_network_studies import STUDIES
from result_pages import NEWER, NONE, PageRecord

from heatlas.pipeline.run.config.files import load_config
from heatlas.workflows.command_line import read_command

# The ledger of claims: every number stands on its page, every command exists, and what has changed is stale.

ROOT = Path(__file__).parents[2]
CLAIMS = [claim for source in claim_records.sources() for claim in source.claims]
ROWS = {name: answer for claim in CLAIMS for name, answer in claim.rows()}
FOLDERS = {name: f"/{name.lower()}" for name in claim_records.FOLDERS}


def test_the_pages_are_what_the_records_say():
    pages = claims.pages()
    for name, text in pages.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/{name}: run python benchmarks/claims.py pages"
    assert {f"claims/{path.name}" for path in (ROOT / "docs" / "claims").iterdir()} == {
        name for name in pages if name.startswith("claims/")
    }
    for claim in CLAIMS:  # in a table, or among those that nobody asked
        begins = f"\n| {claim.id} |" if claim.asked else f"\n- **{claim.id}** "
        assert sum(text.count(begins) for text in pages.values()) == 1, claim.id


def test_the_pages_are_short():
    """The first is read in five minutes; what a row shows is a part of what was found."""
    docs = ROOT / "docs"
    studies = docs / "benchmarks" / "patients_claims.md"
    limits = {docs / "claims.md": 1200, docs / "claims" / "rules.md": 1750, studies: 2500}
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in (*limits, *docs.glob("claims/*.md"))}
    for page, count in words.items():
        assert count <= limits.get(page, 2500), f"{page}: {count} words"
    assert sum(words.values()) <= 16_000
    for claim in (one for one in CLAIMS if one.asked):
        shown, found = claim.here[0].shown, claim.here[0].found
        assert len(shown.split()) <= 26, claim.id
        unsigned = {one.lstrip("-") for one in claim_records.numbers(found)}
        assert {one.lstrip("-") for one in claim_records.numbers(shown)} <= unsigned, claim.id


def test_a_headline_says_whether_its_interval_draws_networks():
    """In the lists, the table and the picture: p where a rule judged it, a mark where people alone are drawn."""
    pages = claims.pages()
    for one in claim_records.headlines():
        row = next(line for line in pages["claims.md"].splitlines() if line.startswith(f"| {one.says} ("))
        listed = [line for line in pages["claims.md"].splitlines() if line.startswith(f"1. {one.says} (")]
        assert ("†" in row) != one.of.judged, one.claim
        assert all((", p " in line) == one.of.judged == ("†" not in line) for line in listed), one.claim
        assert (f"{one.says} †<" in html.unescape(pages["images/claims.svg"])) != one.of.judged, one.claim


def test_a_row_shows_what_decides_it():
    """By rule the first ask that fails, else the first that is open; without numbers the first difference."""
    claims_by_id = {claim.id: claim.here[0].shown for claim in CLAIMS if claim.here}
    assert claims_by_id["A1"].startswith("share, guided, within .1 of .25:")  # the others are near chance
    assert claims_by_id["A2"].startswith("IxG, share at the last stage less at the input, above 0:")
    assert claim_records.first_difference("a 1 (0 to 2) points; b 3 (2 to 4)") == "a 1 (0 to 2)"
    assert claim_records.first_difference("a share; b") == "a share"
    assert claims_by_id["K6"].startswith("least important first"), "the ledger's own words go first"


def test_all_of_a_claim_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["claims.py", "show", "G5"])
    assert claims.main() == 0
    printed = capsys.readouterr().out
    for name, answer in next(claim for claim in CLAIMS if claim.id == "G5").rows():
        assert f"\n{name}: {answer.verdict}\n" in printed
        assert all(text in printed for text in (answer.found, answer.who, answer.settings, *answer.page))
    with pytest.raises(SystemExit, match="no claim X1"):
        list(claims.all_of("X1"))


def test_the_first_page_counts_identities_people_and_what_was_not_asked_apart():
    """All verdicts again, and those of one source by hand."""
    page = claims.pages()["claims.md"]
    total = next(line for line in page.splitlines() if line.startswith("| **all** |"))
    counts = [int(cell) for cell in total.split("|")[2:-1]]
    assert counts[0] == len(CLAIMS) == sum(counts[1:])
    verdicts = [claim.verdict for claim in CLAIMS]
    assert counts[1] + counts[2] + counts[4] == verdicts.count("holds")
    assert counts[3] == verdicts.count("does not")
    assert "(claims/ca_stream.md) | 11 | 2 | 0 | 2 | 0 | 6 | 1 |" in page


def test_differences_of_a_text_and_of_headlines():
    text = "x −.12 (−.31 to +.07), by seed −.1, .2 and −.46; y 3 (2 to 4), 3 of 3 seeds"
    assert list(claim_records.differences(text)) == [(-0.12, -0.31, 0.07, (-0.1, 0.2, -0.46)), (3, 2, 4, ())]
    answer = claim_records.Answer("patients", "", "holds", found="other 1 (0 to 2); less, drop " + text)
    one = claim_records.Headline("A1", "", "drop x", -100, 5, (1.0,), answer)
    assert one.difference.mean == pytest.approx(7)
    assert one.difference[1:3] == pytest.approx((-12, 26))
    assert one.difference.seeds == pytest.approx((5, -25, 41))
    for line in claim_records.headlines():
        is_as_said = line.difference.mean > 0
        assert line.of.verdict in ("open", "holds" if is_as_said else "does not"), line.claim
        assert not line.there or line.there[0] > 0, line.claim


def test_verdicts_of_stored_numbers_are_by_rule_and_say_so():
    """Each is made again of its table; the records hold no verdict and no number of their own."""
    by_rule = {name: answer for name, answer in ROWS.items() if answer.numbers}
    assert {answer.numbers for answer in by_rule.values()} == set(claim_numbers.stored())
    for source in claim_records.SOURCES:
        records = tomllib.loads((claim_records.RECORDS / f"{source}.toml").read_text(encoding="utf-8"))
        own = [answer for claim in records["claim"] for answer in claim.get("here", ()) if "numbers" in answer]
        assert not [answer for answer in own if {"verdict", "found", "quotes"} & set(answer)]
    for name, answer in by_rule.items():
        found = [asked.study(answer.numbers).estimate(ask.of) for ask in answer.asks if ask.says]
        ends = [(one.interval, ask) for one, ask in zip(found, (a for a in answer.asks if a.says), strict=True)]
        for (low, high), ask in ends if answer.verdict == "holds" else ():
            low, high = (ask.scale * one for one in (low, high))
            inside = {"above": low > ask.bound, "below": high < ask.bound}
            assert inside.get(ask.says, ask.origin - ask.bound < low <= high < ask.origin + ask.bound), name
        assert answer.needs or answer.p < 0.05, name


def test_every_number_still_stands_on_its_page():
    for name, answer in ROWS.items():
        assert answer.stands, f"{name}: {', '.join(answer.page)} no longer holds what it quotes"
        if answer.numbers:  # they are made of the table
            continue
        held = set().union(*(claim_records.numbers(quote) for quote in answer.quotes))
        assert claim_records.numbers(answer.found) <= held, f"{name}: a number that is not quoted"


def test_a_row_rests_on_a_page_or_a_test_and_an_open_one_says_what_it_needs():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:  # a reader has the papers and not our notes
        assert not re.search(r"\bspec\b|(?<!table )(?<!and )\b[CMR]\d", claim.where), claim.id
    for name, answer in ROWS.items():
        assert answer.verdict in claim_records.VERDICTS, name
        if answer.verdict in ("open", claim_records.CANNOT):
            assert answer.needs, name
        else:
            assert answer.cohort in claim_records.COHORTS, name
            assert [bool(answer.page and answer.quotes), bool(answer.test), bool(answer.numbers)].count(True) == 1, name
        if answer.test:
            file, _, function = answer.test.partition("::")
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {function}\(", source, re.MULTILINE), name
        if claim_records.command_of(answer) is None and answer.verdict != claim_records.CANNOT:
            assert answer.needs.startswith("no command"), name
        assert (answer.cohort == "identity") <= bool(answer.test), name


@pytest.mark.parametrize("name", claim_records.commands())
def test_commands_and_their_settings_exist(name, tmp_path):
    command = claim_records.commands()[name]
    assert name in {answer.command for answer in ROWS.values()}
    config = tmp_path / "config.toml"
    for words in command.filled(FOLDERS, config):
        if words[0] == "heatlas":
            asked = vars(read_command(words[1:]))
            if command.config:
                load_config(asked.get("preset") or "demo", config)
        else:
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            for word in words[2:]:
                assert not word.startswith("--") or re.search(rf"{word}\b|\b{word[2:].replace('-', '_')}=", source), (
                    word
                )
            if words[1].endswith("patients_networks.py"):
                assert words[2] in STUDIES


def test_times_are_said_or_estimated_and_keep_the_bound():
    for name, one in claim_records.commands().items():
        assert (one.minutes is not None) == bool(one.said or one.how), name
        assert not (one.said and one.how), name
        if one.said:
            assert claim_records.flat(one.said) in claim_records.flat((ROOT / one.said_in).read_text("utf-8")), name
    assert claim_records.hours(list(claim_records.commands())) <= claim_records.BOUND


def test_the_hours_of_all_commands_and_those_without_a_time(monkeypatch):
    made = {"angle": {"minutes": 120.0, "how": "guessed"}, "said": {"minutes": 12.0, "said": "12"}, "unknown": {}}
    named = {name: claim_records.Command(("python x RUN",), **known) for name, known in made.items()}
    for module in (claims, claim_records):
        monkeypatch.setattr(module, "commands", lambda: named)
    assert claim_records.hours(list(named)) == pytest.approx(132 / 60 / 2)
    page = claims._time(list(named))
    assert "2 of 3 commands (1 said,\n1 estimated" in page
    assert "not for `unknown`." in page
    assert "**Together 1.1 hours on two cores**; all studies may take 24" in page
    assert "not for" not in claims._time(["angle", "said"])


def test_workers_that_outlive_a_command_count(tmp_path):
    spin = "import time\nwhile time.process_time() < {}: pass"
    late = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {spin.format(0.5)!r}])"
    code, seconds = claims.timed([sys.executable, "-c", f"{late}\n{spin.format(0.3)}\nsys.exit(3)"], tmp_path)
    assert code == 3
    assert seconds >= 0.8


def test_numbers_of_a_text():
    assert claim_records.numbers("−.05 (-0.17 to +.03), 1,098 in 3/3; 1e-3, 65, 40") == {
        "-.05", "-.17", ".03", "1098", "3", "1e-3", "65", "40",
    }  # fmt: skip


def test_a_page_that_changed_makes_its_row_stale_and_the_claim_open(monkeypatch):
    claim = next(one for one in CLAIMS if one.verdict == "holds" and one.here[0].page)
    monkeypatch.setattr(claim_records, "page_text", lambda page: "other numbers")
    assert claim.verdict == "open"
    assert claim.here[0].shown_verdict == "stale"
    shown = "".join(text for name, text in claims.pages().items() if name.startswith("claims/"))
    assert shown.count("**stale**") == sum(bool(claim.here[0].page) for claim in CLAIMS if claim.asked)


def test_a_table_is_quoted_by_its_rows_and_what_stands_beside_it(monkeypatch, tmp_path):
    """A row of tabs reads as one of Markdown, so a quotation cannot run over the edge of a cell."""
    study = tmp_path / "benchmarks" / "claims" / "results" / "few"
    study.mkdir(parents=True)
    (study / "README.md").write_text("Of few\npeople.\n", encoding="utf-8")
    (study / "means.tsv").write_text("what\tmean\tnote\na\t+0.5\t\n", encoding="utf-8")
    monkeypatch.setattr(result_pages, "ROOT", tmp_path)
    claim_records.page_text.cache_clear()
    answer = claim_records.Answer.of(
        {"cohort": "patients", "settings": "", "page": "results/few", "quotes": ["| a | +0.5 | |", "Of few people"]}
    )
    assert answer.stands
    assert not claim_records.replace(answer, quotes=("a +0.5",)).stands
    assert not claim_records.replace(answer, page=("results/none",)).stands
    digest = result_pages.digest_of(study)
    (study / "means.tsv").write_text("what\tmean\tnote\na\t+0.6\t\n", encoding="utf-8")
    claim_records.page_text.cache_clear()
    assert not answer.stands
    assert result_pages.digest_of(study) != digest
    claim_records.page_text.cache_clear()


def test_a_row_is_made_again_in_the_folders_that_are_named(monkeypatch, tmp_path, capsys):
    called = []

    def started(words, folder):
        called.append((words, Path(words[-1]).read_text() if words[-1].endswith(".toml") else ""))
        return 0, 90.0

    monkeypatch.setattr(claims, "timed", started)
    assert claims.run("D10", [f"INPUT={tmp_path}", "OUT=/out", "RUN=/teacher"]) == 0
    assert [shlex.join(words[2:]) for words, _ in called][1] == "evaluate /out --parts objective"
    assert called[0][0][2:6] == ["run", str(tmp_path), "/out", "--preset"]
    assert 'teacher = "/teacher"' in called[0][1]
    assert capsys.readouterr().out.endswith("3.0 minutes of a core\n")
    with pytest.raises(SystemExit, match="D10 takes INPUT=FOLDER RUN=FOLDER OUT=FOLDER"):
        claims.run("D10", ["OUT=/out"])
    with pytest.raises(SystemExit, match="no command"):
        claims.run("S6", [])
    with pytest.raises(SystemExit, match="no row X1"):
        claims.run("X1", [])
    assert len(called) == 2


def test_rows_are_found_by_their_words():
    found = list(claims.rows_with(["smoothing"]))
    assert [line.split("\t")[0] for line in found if "does not" in line] == ["A15"]


# Records of the pages that claims quote: their commits exist, patients are those of the data, changes are said.

PAGES, COHORTS = result_pages.records()
QUOTED = {page for answer in ROWS.values() for page in answer.page}


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)


def test_every_page_that_is_quoted_has_a_record_and_no_other_has_one():
    assert set(PAGES) == QUOTED


def test_every_table_has_one_number_of_cells_and_its_study_says_what_it_is():
    studies = [path for path in (claim_records.RECORDS / "results").iterdir() if path.is_dir()]
    assert {f"results/{path.name}" for path in studies} >= {page for page in QUOTED if page.startswith("results/")}
    for study in studies:
        assert (study / "README.md").is_file(), study.name
        for table in study.glob("*.tsv"):
            rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
            assert all(rows[0]), table
            assert {len(row) for row in rows} == {len(rows[0])}, table


def test_commits_are_of_this_history():
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no full history of the repository here")
    for page, made in PAGES.items():
        assert git("merge-base", "--is-ancestor", made.commit, "HEAD").returncode == 0, f"{page}: no {made.commit}"


def test_the_cohorts_are_those_of_the_data(real_data):
    for folder, digest in COHORTS.items():
        people = real_data / folder / "participants.tsv"
        if people.is_file():
            assert result_pages.digest_of(people) == digest, f"{folder} has other participants than results.toml says"


def test_what_has_changed_since_is_said_beside_the_page(monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "found.md"
    page.write_text("r .5\n", encoding="utf-8")
    monkeypatch.setattr(result_pages, "ROOT", tmp_path)
    monkeypatch.setattr(result_pages.subprocess, "check_output", lambda *words, **how: "abc123\n")
    made = result_pages.tomllib.loads(result_pages.record("found.md"))
    assert made == {"found.md": {"commit": "abc123", "text": "5395472eaf10"}}
    monkeypatch.setattr(result_pages, "records", lambda: ({"found.md": PageRecord(**made["found.md"])}, {}))
    assert result_pages.fault_of("found.md") == ""
    assert result_pages.fault_of("other.md") == NONE
    page.write_text("r .6\n", encoding="utf-8")
    assert result_pages.fault_of("found.md") == NEWER
    page.unlink()
    assert result_pages.fault_of("found.md") == NEWER
