"""Files of a run that were damaged after it: each is named with the place and the remedy, and the rest is shown."""

from __future__ import annotations

import gzip
import html
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import nibabel as nib
import numpy as np
import pytest
from report_pages import page_with
from run_factory import SMALL, make_run

from heatlas.pipeline.run.declared import Form
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import REMEDY, write_json
from heatlas.pipeline.run.work.digests import stamp_of
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.figures import gallery
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Links
from heatlas.reports.page.parts import PARTS, finished_sections, people_pages, region_pages
from heatlas.reports.page.sections import QUESTIONS, find_cautions
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import FOUNDATIONS, WRITTEN_BEFORE, RunRecord, read_run, read_usable
from heatlas.reports.viewer.explorer import _relevance
from heatlas.workflows.command_line import main


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("damaged") / "run", SMALL)


@pytest.fixture(scope="module")
def record(finished) -> RunRecord:
    found = read_run(finished)
    assert found.unreadable == {}
    return found


def cells(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: list[list[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def column_of_kind(name: str, header: list[str], kind: str) -> int | None:
    """A column of a table that holds numbers, whole numbers, flags or classes."""
    declared = TABLES[name].columns
    for place, column in enumerate(header):
        form = declared[column].form if column in TABLES[name].required else None
        found = {
            "number": form is not None and not declared[column].is_text and form is not Form.FLAG,
            "count": form is Form.COUNT,
            "flag": form is Form.FLAG,
            "class": column in TABLES[name].values,
            "map": form is Form.MAP and column != "source",
        }
        if found[kind]:
            return place
    return None


CELLS = {
    "number": ("seventy", "'seventy' is not a number"),
    "count": ("2.5", "'2.5' is not a number to count with"),
    "flag": ("maybe", "'maybe' is neither true nor false"),
    "class": ("XY", "'XY' is not one of "),
    "map": ("lrpBad", "'lrpBad' is not a map of this run"),
}


@pytest.mark.parametrize("kind", CELLS)
def test_a_bad_cell_is_named_by_file_line_and_column_in_every_table(finished, record, kind, tmp_path):
    cell, why = CELLS[kind]
    tried = 0
    for name in record.tables:
        path = TABLES[name].path(finished)
        good = path.read_bytes()
        rows = cells(path)
        place = column_of_kind(name, rows[0], kind)
        if place is None or len(rows) < 2:
            continue
        line = len(rows)
        rows[-1][place] = cell
        write(path, rows)
        _, said = read_usable(finished, name, path, record.config)
        path.write_bytes(good)
        file = path.relative_to(finished.root).as_posix()
        assert said.startswith(f"{file}: line {line}, column {rows[0][place]}: {why}")
        assert said.endswith(REMEDY)
        tried += 1
    assert tried >= (1 if kind in ("class", "flag") else 3)


OUT_OF_RANGE = [
    ("scans", "age", "900", "is not 1 to 120"),
    ("scans", "mmse", "31", "is not a whole number from 0 to 30"),
    ("scans", "cdr", "0.7", "is not 0, 0.5, 1, 2, 3"),
    ("clinical", "moca", "-3", "is not 0 to 30"),
    ("clinical", "abeta", "inf", "is not 1 to 10000"),
    ("clinical", "tau", "many", "is not a number"),
    ("clinical", "months_followed", "inf", "is not a finite number"),
]


@pytest.mark.parametrize(("name", "column", "cell", "why"), OUT_OF_RANGE)
def test_a_value_that_nobody_can_have_is_named(finished, record, name, column, cell, why, tmp_path):
    path = TABLES[name].path(finished)
    held = path.read_bytes() if path.is_file() else None
    rows = cells(path) if held else [["participant_id", "scan_id", column], ["sub-1", "I1", "3"], ["sub-2", "I2", "3"]]
    write(path, rows)
    assert read_usable(finished, name, path, record.config)[1] == ""
    rows[2][rows[0].index(column)] = cell
    write(path, rows)
    _, said = read_usable(finished, name, path, record.config)
    path.unlink() if held is None else path.write_bytes(held)
    shown = {"900": "900.0", "31": "31.0", "-3": "-3"}.get(cell, cell)
    assert said.startswith(f"{path.relative_to(finished.root).as_posix()}: line 3, column {column}: '")
    assert shown in said
    assert said.endswith(f"{why}. {REMEDY}")


def short_row(content: bytes) -> bytes:
    *lines, last, _ = content.split(b"\n")
    return b"\n".join([*lines, last.rpartition(b"\t")[0], b""])


def long_row(content: bytes) -> bytes:
    head, first, rest = content.split(b"\n", 2)
    return b"\n".join([head, first + b"\tx", rest])


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "not a readable"),
    "cut in a row": (lambda content: content[:-3], "has no end, so the file is cut short"),
    "short row": (short_row, "cells, the header"),
    "long row": (long_row, ""),
    "not text": (lambda content: b"\xff\xfe\x00\x80" * 50 + b"\n", ""),
    "a column short": (
        lambda content: b"\n".join(line.partition(b"\t")[2] for line in content.split(b"\n")),
        "has no column",
    ),
}


@pytest.mark.parametrize("way", FILES)
def test_a_damaged_table_is_named_and_left_out(finished, record, way):
    damage, why = FILES[way]
    for name in record.tables.keys() & TABLES.keys():
        path = TABLES[name].path(finished)
        good = path.read_bytes()
        path.write_bytes(damage(good))
        _, said = read_usable(finished, name, path, record.config)
        path.write_bytes(good)
        assert path.relative_to(finished.root).as_posix() in said
        assert str(finished.root) not in said
        assert why in said
        assert "epeat the command that made this run" in said


@pytest.mark.parametrize(
    ("name", "later"), [(name, later) for name, others in WRITTEN_BEFORE.items() for later in others]
)
def test_a_table_that_must_be_there_is_missed(finished, name, later):
    path, other = TABLES[name].path(finished), TABLES[later].path(finished)
    held = [(one, one.read_bytes() if one.is_file() else None) for one in (path, other)]
    path.unlink(missing_ok=True)
    if not other.is_file():
        other.write_text("x\n", encoding="utf-8")
    found = read_run(finished)
    for one, content in held:
        one.unlink(missing_ok=True) if content is None else one.write_bytes(content)
    assert found.unreadable[name].startswith(f"{path.relative_to(finished.root).as_posix()} is missing.")


def test_a_possible_value_in_place_of_another_is_a_warning_of_the_report(finished, record):
    assert not record.changed
    path = TABLES["relevance_bilateral"].path(finished)
    good = path.read_bytes()
    rows = cells(path)
    rows[-1][rows[0].index("sum")] = "1.5"
    write(path, rows)
    changed = read_run(finished)
    path.write_bytes(good)
    said = f"group/relevance_bilateral.tsv: not the table that the run wrote there (SHA-256 differs). {REMEDY}"
    assert changed.changed == [said]
    assert changed.unreadable == {}
    warning = next(one for one in find_cautions(changed) if one.title == "A table was changed after the run.")
    assert (warning.level, warning.text) == ("serious", said)


def test_a_table_that_a_step_has_written_is_missed(finished):
    """Whatever a receipt names and the folder has no more is named, also where the report does without it."""
    files = ["group/statistics/roc.tsv", "group/relevance.tsv", "group/relevance_audit.tsv"]
    write_json(finished.receipt("steps", "some"), {"key": "k", "outputs": dict.fromkeys([*files, "report.html"], "d")})
    roc = finished.statistics("roc")
    good = roc.read_bytes()
    roc.unlink()
    found = read_run(finished)
    finished.receipt("steps", "some").unlink()
    roc.write_bytes(good)
    assert list(found.unreadable) == ["roc", *files[1:]]
    assert list(found.unreadable.values()) == [
        f"{file} is missing. Repeat the command that made this run." for file in files
    ]


SIDES = "participant_id\tscan_id\tmap\tregion\tname\themisphere\tgroup\tn_voxels\tsum\tdensity\n"
SIDES_ROW = "sub-1\tI1\tgb\t1\tLeft Amygdala\tleft\tAmygdala\t9\t1.5\t0.2\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (SIDES + SIDES_ROW.replace("1.5", "many"), "line 2, column sum: 'many' is not a number."),
        (SIDES + SIDES_ROW[:-3], "its last line has no end, so the file was truncated."),
        (SIDES.replace("sum", "total") + SIDES_ROW, "column sum is missing"),
        (SIDES + SIDES_ROW, ""),
    ],
)
def test_regions_of_one_side_that_cannot_be_read_are_named(finished, record, content, why):
    material = Material(record, gallery.Gallery(finished.figures))
    (finished.group / "relevance.tsv").write_text(content, encoding="utf-8")
    table = _relevance(material)
    (finished.group / "relevance.tsv").unlink()
    assert (table is None) == bool(why)
    assert [f"Single regions are missing. group/relevance.tsv: {why}" in said for said in material.faults.said] == (
        [True] if why else []
    )


@pytest.mark.parametrize("name", ["scans", "predictions"])
def test_a_scan_that_appears_twice_is_named(finished, record, name):
    path = TABLES[name].path(finished)
    good = path.read_bytes()
    path.write_bytes(good + good.splitlines(keepends=True)[1])
    _, said = read_usable(finished, name, path, record.config)
    path.write_bytes(good)
    assert f"line {len(good.splitlines()) + 1}, column scan_id" in said
    assert "appears twice" in said


@pytest.mark.sample(3)
@pytest.mark.parametrize("file", ["logs/provenance.json", "models/fold-0/model.json"])
@pytest.mark.parametrize("content", ["[1, 2]", "{", "", '{"a": ' * 5000 + "1" + "}" * 5000])
def test_a_damaged_description_is_named(finished, file, content):
    path = finished.root / file
    good = path.read_text(encoding="utf-8")
    path.write_text(content, encoding="utf-8")
    found = read_run(finished)
    path.write_text(good, encoding="utf-8")
    assert list(found.unreadable) == [file]
    said = found.unreadable[file]
    assert said.startswith(f"{file}: not a readable JSON object (")
    assert said.endswith(f"). {REMEDY}")


def fast_material(run: RunRecord, monkeypatch) -> Material:
    """Material that draws no figure and has pages of two regions alone, so that a report takes a second."""
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    made = Material(run, gallery.Gallery(run.layout.figures))
    links = made.links
    two = {name: file for name, file in links.regions.items() if name in ("Hippocampus", "Amygdala")}
    made.__dict__["links"] = Links(two, links.people)
    return made


class Watched(dict):
    """Tables that write down who asked for them."""

    def __init__(self, tables):
        super().__init__(tables)
        self.asked = set()

    def __getitem__(self, name):
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name):
        self.asked.add(name)
        return super().__contains__(name)


@pytest.mark.ci
def test_every_part_of_the_report_is_made_without_any_one_table(record, monkeypatch):
    """No part is lost to an error that was not foreseen: what a table lacks is said by the parts that need it."""
    tables = Watched(record.tables)
    steps = {one.id: lambda material, name=one.id: finished_sections(material, [name]) for one in QUESTIONS}
    steps |= {
        "regions": region_pages,
        "people": people_pages,
        "summary": lambda material: summarise(material.run, material.faults),
        "cautions": lambda material: find_cautions(material.run, material.faults),
    }
    needed = {}
    for step, make in steps.items():
        whole = fast_material(replace(record, tables=tables), monkeypatch)  # with nothing kept from the step before
        tables.asked.clear()
        make(whole)
        needed[step] = frozenset(tables.asked)
        assert list(whole.faults.said) == []
    for name in record.tables:
        later = list(TABLES)[list(TABLES).index(name) :]
        lost = dict.fromkeys(later if name in FOUNDATIONS else [name], f"{name}: line 2 is bad.")
        rest = {other: table for other, table in record.tables.items() if other not in lost}
        lacking = replace(record, tables=rest, unreadable=lost)
        material = fast_material(lacking, monkeypatch)
        for step, make in steps.items():
            if lost.keys() & needed[step]:
                make(material)
        assert list(material.faults.said) == [], name


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def unpacked_short(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:5000]))


def with_nan(path: Path) -> None:
    image = nib.load(path)
    values = np.asarray(image.dataobj).copy()
    values[0, 0, 0] = np.nan
    nib.save(nib.Nifti1Image(values, image.affine), path)


def elsewhere(path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((4, 5, 6), np.float32), np.eye(4)), path)


MAPS: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "cut": truncated,
    "cut inside": unpacked_short,
    "no image": lambda path: path.write_bytes(b"no image"),
    "empty": lambda path: path.write_bytes(b""),
    "bad header": lambda path: path.write_bytes(gzip.compress(b"\x5c\x01" * 400)),
    "not a number": with_nan,
    "another grid": elsewhere,
}


PLACES = [("deleted", "AD"), ("deleted", "CN"), *zip(MAPS, ["TP", "AD", "CN"] * 3, strict=False)]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("way", "label"), PLACES)
def test_a_lost_group_map_leaves_its_place_empty_and_named(finished, record, tmp_path, way, label, monkeypatch):
    path = finished.group_map(label, "lrpB000")
    kept = tmp_path / "kept.nii.gz"
    shutil.copy(path, kept)
    MAPS[way](path)
    drawn = []
    monkeypatch.setattr(
        "heatlas.reports.content.relevance.maps.draw_map_grid",
        lambda rows, *rest, **how: drawn.append(rows) or gallery.Figure(),
    )
    try:
        material = fast_material(record, monkeypatch)
        sections = {one.id: html.unescape(str(one.html)) for one in finished_sections(material, ["maps"]).sections}
        pages = region_pages(material)
    finally:
        shutil.copy(kept, path)
    file = f"group/maps/{path.name}"
    assert file in "".join(material.faults.said)
    assert str(finished.root) not in "".join(material.faults.said)
    assert f"Missing or damaged, and left empty here: {file}." in sections["maps"]
    by_class, by_outcome = (rows for rows in drawn if len(rows) > 1)  # the others are overviews of one map
    row = (by_outcome if label == "TP" else by_class)[0]
    place = {"AD": 0, "CN": 1, "TP": 0}[label]
    assert [view is None for view in row.views] == [other == place for other in range(len(row.views))]
    page = html.unescape((finished.root / pages.pages[0]).read_text(encoding="utf-8"))
    assert (file in page) == (label != "TP")
    assert f"of {label}, mean" not in page


def test_the_mean_map_of_another_class_is_not_shown(finished, record, tmp_path, monkeypatch):
    """A copy over the file is a map as good as any; its receipt tells."""
    path, other = finished.group_map("AD", "lrpB000"), finished.group_map("CN", "lrpB000")
    kept, receipt = tmp_path / "kept.nii.gz", finished.receipt("group-maps", "lrpB000")
    shutil.copy(path, kept)
    names = [one.relative_to(finished.root).as_posix() for one in (path, other)]
    stamps = dict(zip(names, map(stamp_of, (path, other)), strict=True))
    write_json(receipt, {"key": "k", "outputs": stamps, "result": {}})
    try:
        os.utime(other)  # the same map at another time
        shutil.copy(other, path)
        material = fast_material(record, monkeypatch)
        views = [material.group_view(label, "lrpB000") for label in ("AD", "CN")]
    finally:
        shutil.copy(kept, path)
        receipt.unlink()
    assert [view is None for view in views] == [True, False]
    assert list(material.faults.said) == [
        f"{names[0]}: not the map that the run wrote there (SHA-256 differs). {REMEDY}"
    ]


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"\x89PNG\r\n\x1a\n" + b"x" * 5000, b"no picture"])
def test_a_damaged_picture_is_named_and_not_shown(finished, record, content, monkeypatch):
    rows = record.tables["registration"]
    doubtful = rows[rows["flags"].notna()].iloc[0]
    files = finished.scan(doubtful["participant_id"], doubtful["session_id"], record.resolution_mm)
    files.overview.parent.mkdir(parents=True, exist_ok=True)
    files.overview.write_bytes(content)
    material = fast_material(record, monkeypatch)
    try:
        (section,) = finished_sections(material, ["registration"]).sections
        people_pages(material)
    finally:
        files.overview.unlink()
    assert not section.absent
    said = f"{files.overview.relative_to(finished.root).as_posix()}: is no whole picture."
    assert [one.startswith(said) for one in material.faults.said] == [True]


def test_shares_of_the_people_are_all_people_once(record, monkeypatch):
    material = fast_material(record, monkeypatch)
    pages = [page for share in range(3) for page in people_pages(material, share, 3).pages]
    assert sorted(pages) == sorted(material.links.people.values())


def test_the_overview_of_a_lost_map_is_not_that_of_another_class(finished, record, tmp_path, monkeypatch):
    path = finished.group_map("AD", "lrpB000")
    kept = shutil.move(path, tmp_path / "kept.nii.gz")
    try:
        material = fast_material(record, monkeypatch)
        text = html.unescape(str(finished_sections(material, ["maps"]).sections[0].html))
    finally:
        shutil.move(kept, path)
    assert "LRP β=0, mean of" not in text
    assert "LRP β=0.5, mean of" not in text  # leads nothing, so it has no overview either
    assert "Guided backpropagation, mean of AD" in text


def test_a_part_that_ends_in_an_unforeseen_error_is_replaced_by_its_reason(record, monkeypatch):
    broken = replace(record, tables=MappingProxyType({**record.tables, "beta_overlap": record.tables["splits"]}))
    material = fast_material(broken, monkeypatch)
    section, *_ = finished_sections(material, ["beta"]).sections
    assert section.absent
    (said,) = material.faults.said
    assert said.startswith(
        "“Does the answer depend on β?” is missing: group/statistics/beta_overlap.tsv holds something "
    )
    assert said in html.unescape(str(section.html))
    assert len(list((record.layout.logs / "failures").glob("report_*"))) == 1


@pytest.mark.ci
def test_the_command_says_so_in_its_exit_code_and_log_and_makes_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "rendered", lambda figure, form, dpi=0, reduce=False: b"")
    monkeypatch.setattr("heatlas.workflows.adni.open_executor", lambda *arguments: nullcontext(None))
    monkeypatch.delitem(PARTS, "regions")  # dozens of pages
    layout = make_run(tmp_path / "run", replace(SMALL, betas=(0.0,), guided=False))
    path = layout.statistics("performance")
    rows = cells(path)
    rows[1][rows[0].index("estimate")] = "seventy"
    write(path, rows)
    layout.group_map("AD", "lrpB000").unlink()
    assert main(["report", str(layout.root), "--n-procs", "1"]) == 1
    said = ("group/statistics/performance.tsv: line 2, column estimate: 'seventy' is not a number.",
            "group/maps/" + layout.group_map("AD", "lrpB000").name)  # fmt: skip
    shown, logged = capsys.readouterr(), layout.log.read_text(encoding="utf-8")
    page = html.unescape(layout.report.read_text(encoding="utf-8"))
    for sentence in said:
        assert sentence in shown.out
        assert sentence in logged
        assert sentence in page
    assert "Traceback" not in shown.out + shown.err
    registration = page_with(layout, "registration").read_text(encoding="utf-8")
    assert "Registration of every scan, doubtful scans first." in registration
