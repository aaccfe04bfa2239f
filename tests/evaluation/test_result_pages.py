"""Records of the pages that claims quote: their commits exist, their people are those of the data, changes are said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import claim_records
import pytest
import result_pages
from result_pages import NEWER, NONE, OTHER, PageRecord

ROOT = Path(__file__).parents[2]
PAGES, NOW = result_pages.records()
QUOTED = {
    answer.page for source in claim_records.sources() for claim in source.claims for answer in claim.here if answer.page
}


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)


def test_every_page_that_is_quoted_has_a_record_and_no_other_has_one():
    assert set(PAGES) == QUOTED
    for made in PAGES.values():
        assert set(made.cohorts) <= set(NOW)


def test_commits_are_of_this_history():
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no full history of the repository here")
    for page, made in PAGES.items():
        assert git("merge-base", "--is-ancestor", made.commit, "HEAD").returncode == 0, f"{page}: no {made.commit}"


def test_the_cohorts_are_those_of_the_data(real_data, monkeypatch):
    monkeypatch.setattr(result_pages, "DATA", real_data)
    for folder, digest in NOW.items():
        if (real_data / folder / "participants.tsv").is_file():
            assert result_pages.people_of(folder) == digest, f"{folder} has other participants than results.toml says"


def test_what_has_changed_since_is_said_beside_the_page(monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "found.md"
    page.write_text("r .5\n", encoding="utf-8")
    monkeypatch.setattr(result_pages, "ROOT", tmp_path)
    assert result_pages.digest_of(page) == "5395472eaf10"
    made = PageRecord("abc123", "5395472eaf10", {"older": "1", "younger": "2"})
    monkeypatch.setattr(result_pages, "records", lambda: ({"found.md": made}, {"older": "1", "younger": "2"}))
    assert result_pages.state_of("found.md") == "of `abc123`"
    assert list(made.faults("found.md", {"older": "1", "younger": "3"})) == [OTHER]
    assert list(made.faults("found.md", {"older": "1"})) == [OTHER]
    assert result_pages.state_of("other.md") == f"**{NONE}**"
    page.write_text("r .6\n", encoding="utf-8")
    assert result_pages.state_of("found.md") == f"of `abc123`, **{NEWER}**"
    page.unlink()
    assert list(made.faults("found.md", {})) == [NEWER, OTHER]


def test_a_record_is_what_the_page_and_the_people_are_now(monkeypatch, tmp_path):
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "participants.tsv").write_text("participant_id\n", encoding="utf-8")
    monkeypatch.setattr(result_pages, "DATA", tmp_path)
    monkeypatch.setattr(result_pages.subprocess, "check_output", lambda *words, **how: "abc123\n")
    said = result_pages.tomllib.loads(result_pages.record("patients.md", ["older"]))
    made = PageRecord(**said["patients.md"])
    assert (made.commit, dict(made.cohorts)) == ("abc123", {"older": result_pages.people_of("older")})
    assert list(made.faults("patients.md", made.cohorts)) == []
