"""No page of a report names a folder of the machine that made it, whatever the tables and settings hold."""

from __future__ import annotations

import json

import pytest
from report_pages import all_pages, chapter_files
from run_factory import RunPlan, make_run

from heatlas.pipeline.run.plain_text import without_folders
from heatlas.reports.figures import gallery
from heatlas.reports.page.build import write_report
from heatlas.reports.page.parts import PARTS

EVERY_PAGE = True
FOLDER = "/data/secret-trial/people"


@pytest.mark.ci
def test_pages_name_files_and_no_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    monkeypatch.delitem(PARTS, "regions")
    layout = make_run(tmp_path / "run", RunPlan(people=4, betas=(0.0,), guided=False, text=f" {FOLDER}/scan.nii"))
    provenance = json.loads(layout.provenance.read_text(encoding="utf-8"))
    provenance["command"] = ["heatlas", "run", FOLDER, f"--config={FOLDER}/my.toml"]
    provenance["sources"]["atlas"]["note"] = f"read from {FOLDER}/atlas.nii."
    layout.provenance.write_text(json.dumps(provenance), encoding="utf-8")
    with layout.config.open("a", encoding="utf-8") as config:
        config.write(f"# labels of {FOLDER}/labels.csv\n")
    layout.group_map("AD", "lrpB000").write_bytes(b"no image")
    layout.statistics("calibration").write_bytes(b"")
    made = write_report(layout)
    assert len(made.faults) == 2
    for page in (
        *chapter_files(layout),
        layout.root / "report.json",
        *layout.root.glob("sub-*.html"),
        layout.methods_text,
    ):
        text = page.read_text(encoding="utf-8")
        assert str(layout.root) not in text, page.name
        assert str(tmp_path) not in text, page.name
    pages = all_pages(layout)
    for said in (
        "run …/people --config=…/my.toml",
        "read from …/atlas.nii",
        "labels of …/labels.csv",
        "image is 4D …/",
    ):
        assert said in pages, said


@pytest.mark.parametrize(
    "text", ["AD/CN", "n/a", "https://a.org/b", "1 / 2", "../../adni", "group/maps/x.nii.gz", "~/a/b"]
)
def test_what_is_no_absolute_path_stays(text):
    assert without_folders(text) == text


def test_a_long_text_is_read_once():
    assert without_folders("/a" * 50_000 + " " + "a/" * 50_000).startswith("…/a ")
