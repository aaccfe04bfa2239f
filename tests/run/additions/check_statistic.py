"""What a user meets of a statistic with a section of the report: run beside a tree in which it was added."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from printed_pages import tables_page
from run_factory import RunPlan, make_run

from heatlas.pipeline.run.tables import read_table
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import CLINICAL
from heatlas.reports.page.parts import finished_sections
from heatlas.reports.page.sections import QUESTIONS, sections_of
from heatlas.reports.read.run_files import TABLES

LAYOUT = make_run(Path(sys.argv[1]) / "run", RunPlan(people=6, betas=(0.0,), guided=False))
PATH = LAYOUT.root / "group" / "statistics" / "toy.tsv"


def its_table_is_declared_and_documented() -> None:
    assert TABLES["toy"].path(LAYOUT) == PATH
    page = tables_page()
    assert "## group/statistics/toy.tsv\n\nHow sure is the network of each class? One row per class." in page
    assert "| `probability` | number " in page


def the_stage_writes_it() -> None:
    predictions = read_table(LAYOUT.group / "predictions.tsv")
    people = predictions.groupby(["label", "participant_id"])["probability"].mean()
    found = read_table(PATH).set_index("label")["probability"]
    assert abs(found["AD"] - people["AD"].mean()) < 1e-6
    dictionary = json.loads(PATH.with_suffix(".json").read_text())
    assert "Exploratory; family: each class alone; not corrected." in json.dumps(dictionary["p"])


def its_section_stands_on_its_page() -> None:
    assert sections_of(CLINICAL)[-1] == "toy"
    material = Material.of(LAYOUT)
    (section,) = finished_sections(material, ["toy"]).sections
    assert not material.faults.said
    for words in ("How sure is it?", "A toy asks.", "Mean probability of each class", "Exploratory; family: each"):
        assert words in section.html, words


def a_run_without_its_table_has_no_section() -> None:
    PATH.unlink()
    (section,) = [one for one in QUESTIONS if one.id == "toy"]
    assert not section.applies_to(Material.of(LAYOUT).run)


its_table_is_declared_and_documented()
the_stage_writes_it()
its_section_stands_on_its_page()
a_run_without_its_table_has_no_section()
