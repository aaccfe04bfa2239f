"""Facts that stand on several pages are the same on all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import heatlas
from heatlas.pipeline.evaluation.bench.part import USUAL_METHODS
from heatlas.reports.content.run.colophon import REFERENCES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PAPER, BIBLIOGRAPHY = ((ROOT / "paper" / name).read_text(encoding="utf-8") for name in ("paper.md", "paper.bib"))


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_the_download_is_the_measured_one_on_every_page() -> None:
    measured = re.search(r"`requirements.lock` \| ([\d.]+ GB) \| ([\d.]+) GB", text("docs/installation.md"))
    assert measured
    for page in ("README.md", "docs/start.md"):
        assert f"installation ({measured[1]})" in text(page)
        disk = re.search(r"(\d+) GB of disk", text(page))
        assert disk
        assert int(disk[1]) >= float(measured[2]) + 1.2, "the environment and the demo"


def test_what_was_not_tried_is_the_same_on_both_pages() -> None:
    said = [re.findall(r"- Not tried yet: ([^(]+)", text(page)) for page in ("README.md", "docs/limits.md")]
    assert len(said[0]) == 1
    assert said[0] == said[1]


def test_version_licence_and_authors_are_those_of_the_package() -> None:
    (author,) = (one["name"] for one in PROJECT["authors"])
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"] == "BSD-3-Clause"
    assert [one["name"] for one in CITATION["authors"]] == [author]
    assert [one["name"] for one in yaml.safe_load(PAPER.split("---")[1])["authors"]] == [author]
    assert re.search(r"Copyright \(c\) \d{4}, (.+)", (ROOT / "LICENSE").read_text())[1].lower() == author.lower()
    assert "BSD 3-Clause License" in (ROOT / "LICENSE").read_text()
    assert "Code: BSD 3-Clause." in text("README.md")
    assert f"Cite the program: {author}. Heatlas" in (ROOT / "reports/content/run/colophon.py").read_text()


def test_the_changelog_begins_with_this_version_and_a_release_has_one_date() -> None:
    version, date = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert version == PROJECT["version"]
    assert CITATION.get("date-released", "unreleased") == date


def test_addresses_are_those_of_the_package_or_nowhere() -> None:
    urls = PROJECT.get("urls", {})
    assert CITATION.get("repository-code") == urls.get("Repository")
    assert CITATION.get("url") == urls.get("Documentation")


def test_the_paper_says_what_the_page_of_the_study_says_and_is_short() -> None:
    study, patients, limits = (
        PAPER.split("# A study of patients")[1].split("\n# ")[0],
        text("docs/patients.md"),
        text("docs/limits.md"),
    )
    assert len(PAPER.split()) <= 1000
    for in_the_paper, on_the_page in (
        (".76", "area under the curve of .76"),
        (".79", "regression on the means and standard deviations of regions (.79)"),
        ("−.09 to +.04", "−.03 (−.09 to +.04)"),
        ("+.05 to +.24", "+.14 (+.05 to +.24)"),
        (".75", "| ridge on nWBV, eTIV, ASF, age and sex | .75 |"),
        ("Hedges' g 1.25", "| expected gradients (evidence) | hippocampus 1.25, "),
        ("guided backpropagation in 64", "middle temporal gyrus 1.02 | 5, 20, 41 | 64 |"),
        ("11.5 minutes on two", "11.5 minutes on two idle cores"),
        (
            "g .85 to 1.13",
            "| 45 | .75 (.79; .73) | −.05 (−.12 to +.02) | +.02 (−.08 to +.12) | −.34, −.61 | **hippocampus 1.13**",
        ),
        ("places 26 to 36", "places 32, 36 and 26"),
        ("−.69", "ρ with nWBV is −.69"),
    ):
        assert in_the_paper in " ".join(study.split())
        assert on_the_page in patients
    assert "5 of 5 planted regions among the first 10" in limits
    assert "1.8 on average with shuffled labels" in limits
    assert "5 of 5 planted regions among the first ten" in " ".join(PAPER.split())


def test_works_that_the_paper_cites_are_listed_as_in_methods_texts() -> None:
    cited = set(re.findall(r"@(\w+)", PAPER.split("---", 2)[2]))
    listed = dict(re.findall(r"^(@\w+\{(\w+),$.*?^\})", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL))
    listed = {key: entry for entry, key in listed.items()}
    assert cited == listed.keys()
    for key in cited & REFERENCES.keys():
        assert listed[key] == REFERENCES[key].bibtex


def test_numbers_of_the_study_of_patients_are_the_same_on_every_page() -> None:
    patients = text("docs/patients.md")
    found = re.search(
        r"hippocampus \(g ([\d.]+)\), their AUC is (\.\d+), ridge has (\.\d+)",
        text("README.md").replace("\n", " "),
    )
    assert found
    g, area, ridge = found.groups()
    assert f"area under the curve of {area}: no better than a ridge regression" in patients
    assert f"of regions ({ridge})" in patients
    assert f"in the hippocampus (g {g})" in patients
    for page in ("README.md", "docs/index.md", "docs/patients.md"):
        assert "133 people" in text(page)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_demo_takes_the_same_time_on_every_page(page: str) -> None:
    minutes = {int(one) for one in re.findall(r"(\d+) minutes(?: on two cores|\))", text(page))}
    assert minutes == {10}


def test_the_number_of_planted_regions_is_the_same_on_every_page() -> None:
    assert "find 5 of 5" in text("README.md")
    assert "5 of 5 planted regions" in text("docs/limits.md")


def test_the_default_methods_of_the_evaluation_are_as_many_as_pages_say() -> None:
    words = {10: "ten"}[len(USUAL_METHODS)]
    assert f"The {words} default methods" in text("docs/benchmarks/evaluation.md")
    assert f"`heatlas evaluate`: {words} methods" in text("CHANGELOG.md")


def test_every_public_name_is_on_the_page_of_the_library() -> None:
    page = text("docs/library.md")
    hidden = {"Explained", "OpenRun"}  # what the functions return
    assert {name for name in heatlas.__all__ if f"heatlas.{name}(" not in page} == hidden


def test_the_examples_are_as_many_as_pages_say() -> None:
    examples = list((ROOT / "docs" / "examples").glob("*.py"))
    assert len(examples) == 10
    assert all(
        "ten short examples" in text(page) for page in ("README.md", "docs/index.md", "docs/start.md", "CHANGELOG.md")
    )
