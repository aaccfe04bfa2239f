"""Runs and documents that are read: in a notebook, and with tables of other versions."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from report_pages import page_with
from run_factory import EVIDENCE, SMALL, WITH_EVIDENCE, make_run
from torch import nn

import heatlas
from heatlas.atlases.spaces import Box
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE, SPREADS
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json, write_table
from heatlas.pipeline.run.work.digests import stamp_of
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.figures import gallery
from heatlas.reports.page.build import build_report
from heatlas.reports.page.sections import QUESTIONS, find_cautions, missing_stages
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.read.run_files import DECLARED, TABLES, of_another_version
from heatlas.reports.read.run_record import RunRecord, read_run

# A run in a notebook, against the tables and images in its folder.


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("open") / "run", WITH_EVIDENCE)


@pytest.fixture(scope="module")
def run(layout) -> heatlas.OpenRun:
    return heatlas.open(layout.root)


def test_evidence_is_that_of_the_table_beside_who_it_is(run, layout) -> None:
    found = run.evidence("hippocampus").set_index("scan_id")
    table = read_table(layout.group / "relevance_bilateral.tsv")
    own = table[(table["group"] == "Hippocampus") & (table["map"] == EVIDENCE)].set_index("scan_id")
    assert len(own) == len(found) > 0
    np.testing.assert_array_equal(found["evidence"], own["evidence"].reindex(found.index))
    scans = read_table(layout.root / "scans.tsv").set_index("scan_id")
    assert found["label"].equals(scans["label"].reindex(found.index))
    assert list(found.columns[-1:]) == ["evidence"]


def test_every_map_of_every_region_and_group_is_in_one_frame(run, layout) -> None:
    groups = read_table(layout.group / "relevance_bilateral.tsv")
    sides = groups.iloc[:2].assign(region=[59, 60], name=["Amygdala", "Hippocampus"], hemisphere=["left", "right"])
    sides = sides.assign(standard_error=np.nan)[list(RELEVANCE_TABLE.without(*SPREADS).meanings)]
    path = {table.name: table for table in DECLARED}["relevance"].path(layout)
    write_table(path, sides)
    try:
        found = heatlas.open(layout.root).relevance
    finally:
        path.unlink()
    assert len(found) == len(groups) + 2
    assert found[found["hemisphere"] == "both"]["sum"].sum() == pytest.approx(groups["sum"].sum())
    assert found["name"].tolist()[:2] == ["Amygdala", "Hippocampus"]
    assert found["label"].notna().all()


def test_maps_are_those_of_the_folder(run, layout) -> None:
    assert run.maps[0] == EVIDENCE
    for name in run.maps:
        wanted = nib.load(layout.group_map("CN", name))
        found = run.map(name, group="CN")
        np.testing.assert_array_equal(found.get_fdata(), wanted.get_fdata())
        np.testing.assert_array_equal(found.affine, wanted.affine)
    person = run.predictions["participant_id"].iloc[0]
    bare, full = (run.map("gb", participant=name) for name in (person.removeprefix("sub-"), person))
    np.testing.assert_array_equal(bare.get_fdata(), full.get_fdata())


def test_a_picture_shows_the_map_on_the_template(run, tmp_path) -> None:
    run.plot(group="CN", display_mode="z", cut_coords=[0], output_file=tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    asked: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(
            "heatlas.reports.read.open_run.draw_map",
            lambda _, brain, title, smooth: asked.update(title=title, smooth=smooth, brain=brain.affine[0, 0]),
        )
        run.plot(group="CN")
    title = "Expected gradients, mean of CN: evidence (logits) per voxel"
    assert asked == {"title": title, "smooth": 8.0, "brain": 1.0}


def test_a_run_counts_its_people_as_the_report_does(run) -> None:
    kept = run.scans[run.scans["kept"].astype(bool)]["participant_id"].nunique()
    analysed = run.relevance["participant_id"].nunique()
    assert f"{kept} participants kept, {analysed} analysed; maps {EVIDENCE}, " in repr(run)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (lambda run: run.evidence("hipocampus"), UsageError, "hipocampus: no such region. Similar: .*Hippocampus"),
        (lambda run: run.evidence("Hippocampus", "gb"), UsageError, "gb is no evidence map of this run; those are"),
        (lambda run: run.map("nothing"), UsageError, "no such map; it has"),
        (lambda run: run.map("gb", "CN", "sub-1"), UsageError, "not both"),
        (lambda run: run.map("gb", participant="nobody"), UsageError, "sub-nobody: no explained scan"),
        (lambda run: run.map("gb", "no such class"), BadInputError, "this run has no such map. Finish it"),
        (lambda run: run.table("scan"), UsageError, "scan: this run has no such table. Similar: scans"),
        (lambda run: run.table(["scans"]), UsageError, r"name of a table is text, not \['scans'\] \(list\)"),
        (lambda run: run.evidence(3), UsageError, r"name of a region is text, not 3 \(int\)"),
        (lambda run: run.evidence("Hippocampus", b"gb"), UsageError, "name of a map is text"),
        (lambda run: run.map(None, group=1.5), UsageError, "name of a group is text"),
        (lambda run: run.map("gb", participant=12), UsageError, "name of a participant is text"),
        (lambda run: heatlas.open("nowhere"), UsageError, "nowhere: not a Heatlas run .* it is OUT/run"),
        (lambda run: heatlas.open(None), UsageError, "folder = None: must be a path, as text or Path"),
        (lambda run: heatlas.open(b"demo/run"), UsageError, "folder = b'demo/run': must be a path, as text or Path"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(run, asked, error, message) -> None:
    with pytest.raises(error, match=message):
        asked(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        heatlas.open(tmp_path)


@pytest.fixture
def copied(layout, tmp_path) -> RunLayout:
    """A copy that a test may damage."""
    return RunLayout(shutil.copytree(layout.root, tmp_path / "run"))


def test_the_network_of_a_person_is_that_of_the_fold_that_tested_them(copied) -> None:
    """And the image is scaled and cut as that network saw it, and lies where its box is."""
    run = heatlas.open(copied.root)
    box, folds = Box((3, 4, 5), (40, 44, 38)), sorted(run.predictions["fold"].unique())
    seen = NetworkInput(run.record.resolution_mm, box)
    for fold in folds:
        network = build_network(NETWORKS["founding"](channels=(2,), pools=(8,), hidden_units=3), box.shape, 2)
        network.apply(lambda layer, fold=fold: [nn.init.constant_(own, fold + 1) for own in layer.parameters(False)])
        save_model(copied.fold(fold), network, seen, ("CN", "AD"), {})
    for fold, people in run.predictions.groupby("fold")["participant_id"]:
        person = people.iloc[0]
        weights = {float(one.detach().flatten()[0]) for one in run.network(person).parameters()}
        assert weights == {fold + 1}
        files = run.record.files_of(run.predictions.query("participant_id == @person").iloc[0])
        values = np.random.default_rng(fold).random((2, *seen.template_grid.shape)).astype(np.float32)
        t1w, mask = values[0], (values[1] > 0.3).astype(np.float32)
        for path, one in ((files.t1w, t1w), (files.brain_mask, mask)):
            path.parent.mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(one, seen.template_grid.affine), path)
        inside = t1w[mask > 0.5]
        wanted = np.where(mask > 0.5, (t1w - inside.min()) / (inside.max() - inside.min()), 0)[3:43, 4:48, 5:43]
        image = run.image(person.removeprefix("sub-"))
        assert int(image.header["sform_code"]) == 4, "it is in template space, and says so"
        np.testing.assert_allclose(image.get_fdata(), wanted, atol=1e-6)
        np.testing.assert_allclose(image.affine[:3, 3], (seen.template_grid.affine @ [3, 4, 5, 1])[:3])
    assert len(folds) > 1


def _rewritten(path, change) -> None:
    write_table(path, change(read_table(path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: pd.concat([table, table]), "repeats an earlier one"),
        (lambda table: table.iloc[:0], "has no rows"),
        (lambda table: table.drop(columns="group"), "has no column group"),
        (lambda table: table.assign(n_voxels="many"), "'many' is not a number"),
        (lambda table: table.assign(map="nothing"), "'nothing' is not a map of this run"),
    ],
    ids=["twice", "empty", "column missing", "text for a number", "unknown map"],
)
def test_relevance_of_a_changed_table_is_refused(copied, change, message) -> None:
    _rewritten(copied.group / "relevance_bilateral.tsv", change)
    with pytest.raises(BadInputError, match=message):
        heatlas.open(copied.root).relevance  # noqa: B018


def test_regions_without_their_names_are_no_groups(copied) -> None:
    """They once took the names of their groups, and a group had three rows for a scan."""
    groups = read_table(copied.group / "relevance_bilateral.tsv")
    regions = groups.assign(region=47, name="Right Hippocampus", hemisphere="right", standard_error=np.nan)
    write_table(copied.group / "relevance.tsv", regions.drop(columns="name"))
    with pytest.raises(BadInputError, match=r"relevance.tsv has no column name"):
        heatlas.open(copied.root).evidence("Hippocampus")


def test_a_column_that_appears_twice_is_named(copied) -> None:
    path = copied.group / "relevance_bilateral.tsv"
    lines = [f"{line}\t{line.split(chr(9))[-1]}" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInputError, match="column evidence appears twice"):
        heatlas.open(copied.root).table("relevance_bilateral")


@pytest.mark.parametrize("table", ["group/predictions", "scans"])
def test_a_damaged_table_is_not_a_run_that_stopped(copied, table) -> None:
    path = copied.root / f"{table}.tsv"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInputError, match=rf"{table}.tsv: .*cut short"):
        heatlas.open(copied.root).predictions  # noqa: B018
    with pytest.raises(BadInputError, match=rf"{table}.tsv: .*cut short"):
        heatlas.open(copied.root).evidence("Hippocampus")


def _damaged(path, damage) -> None:
    image = nib.load(path)
    values = image.get_fdata(dtype=np.float32)
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "another grid":
        nib.save(nib.Nifti1Image(values[1:], image.affine), path)
    elif damage == "four axes":
        nib.save(nib.Nifti1Image(np.stack([values, values], -1), image.affine), path)
    else:
        nib.save(nib.Nifti1Image(np.full_like(values, np.nan), image.affine), path)


@pytest.mark.parametrize("damage", ["cut short", "another grid", "four axes", "NaN"])
def test_a_map_that_the_run_cannot_have_written_is_refused(copied, damage) -> None:
    path = copied.group_map("CN", "gb")
    _damaged(path, damage)
    with pytest.raises(BadInputError, match="group-CN"):
        heatlas.open(copied.root).map("gb", group="CN")


def test_the_map_of_another_person_is_refused(copied) -> None:
    opened = heatlas.open(copied.root)
    first, second = opened.record.explained.drop_duplicates("participant_id").iloc[:2].to_dict("records")
    mine, theirs = (opened.record.files_of(one).relevance_map(EVIDENCE) for one in (first, second))
    name = mine.relative_to(copied.root).as_posix()
    unit = opened.record.files_of(first).name
    write_json(copied.receipt("attribution", unit), {"key": "k", "outputs": {name: stamp_of(mine)}})
    before = opened.map(EVIDENCE, participant=first["participant_id"]).get_fdata()
    np.testing.assert_array_equal(before, nib.load(mine).get_fdata())
    image = nib.load(theirs)
    nib.save(nib.Nifti1Image(image.get_fdata(dtype=np.float32) * 2 + 1, image.affine), mine)
    with pytest.raises(BadInputError, match=rf"{name}: not the map that the run wrote there"):
        opened.map(EVIDENCE, participant=first["participant_id"])


@pytest.mark.parametrize("kept", [0, 3], ids=["a header alone", "half of it"])
@pytest.mark.parametrize("table", ["group/predictions", "scans"])
def test_a_table_that_has_lost_people_is_named_with_the_scans_it_lacks(copied, table, kept) -> None:
    path = copied.root / f"{table}.tsv"
    whole = read_table(path)
    write_table(path, whole.iloc[:kept])
    opened = heatlas.open(copied.root)
    later = {"scans": "registration", "group/predictions": "relevance_bilateral"}[table]
    lacking = set(read_table(copied.group / f"{later}.tsv")["scan_id"]) - set(whole["scan_id"].iloc[:kept])
    message = rf"{table}.tsv: lacks {len(lacking)} scans? that group/{later}.tsv has"
    for read in (lambda: opened.predictions, lambda: opened.evidence("Hippocampus"), lambda: opened.table(path.stem)):
        with pytest.raises(BadInputError, match=message):
            read()


def test_relevance_that_has_lost_an_explained_scan_is_named(copied) -> None:
    opened = heatlas.open(copied.root)
    path = copied.group / "relevance_bilateral.tsv"
    scan = opened.record.explained.iloc[0]
    _rewritten(path, lambda table: table[table["scan_id"] != scan["scan_id"]])
    assert "relevance_bilateral" not in heatlas.open(copied.root).record.unreadable  # perhaps it was not explained
    write_json(copied.receipt("attribution", opened.record.files_of(scan).name), {"key": "k", "outputs": {}})
    opened = heatlas.open(copied.root)
    for read in (lambda: opened.relevance, lambda: opened.table("relevance_bilateral")):
        with pytest.raises(
            BadInputError, match=r"relevance_bilateral.tsv: lacks 1 scan that group/predictions.tsv has"
        ):
            read()


# A run whose tables an older version of Heatlas wrote: what is missing is said, the rest of the report is made.

REMEDY = "another version of Heatlas wrote it. Repeat the command that made this run"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> RunRecord:
    return read_run(make_run(tmp_path_factory.mktemp("finished") / "run", SMALL))


def without(layout: RunLayout, name: str, column: str) -> None:
    """Take a column out of a table, as an older version would have written it."""
    path = TABLES[name].path(layout)
    write_table(path, read_table(path).drop(columns=column))


def test_every_table_but_the_one_of_the_input_is_asked_for_its_columns(record):
    assert {name for name, table in TABLES.items() if not table.required} == {"clinical"}
    assert record.unreadable == {}
    assert {name for name in record.tables if set(TABLES[name].required) - set(record.tables[name])} == set()


@pytest.mark.parametrize("view", [view for one in ANALYSES for view in one.views], ids=lambda view: view.caption)
def test_a_view_asks_for_no_column_that_its_table_has_not(view):
    chart = view.intervals
    asked = {
        *view.columns,
        *view.where,
        *(name.removeprefix("-") for name in view.order),
        *filter(None, [view.finding]),
    }
    asked |= {*chart.label, chart.estimate, chart.low, chart.high, *chart.n} if chart else set()
    assert asked - set(TABLES[view.table].meanings) == set()


def test_each_missing_column_is_named_with_its_file_and_the_remedy(record):
    for name in record.tables.keys() & TABLES.keys():
        table, file = record.tables[name], f"{name}.tsv"
        assert of_another_version(name, file, table) == ""
        for column in TABLES[name].required:
            said = of_another_version(name, file, table.drop(columns=column))
            assert said.startswith(f"{file} has no column {column}: {REMEDY}")


def test_a_run_without_relevance_propagation_is_finished(record):
    """Other methods have no conservation; and some have no evidence either, but regions, without which it is open."""
    names = ("conservation", "evidence", "relevance_bilateral")
    for kept, missing in ((names[1:], []), (names[2:], []), ((), ["attribution", "regions"])):
        rest = {name: table for name, table in record.tables.items() if name not in names or name in kept}
        assert missing_stages(replace(record, tables=rest)) == missing


@pytest.mark.ci
def test_the_summary_and_the_cautions_do_without_any_one_table(record):
    for name in record.tables:
        rest = {other: table for other, table in record.tables.items() if other != name}
        lacking = replace(record, tables=rest, unreadable={name: f"{name} lacks a column."})
        cautions = {one.title: one.text for one in find_cautions(lacking)}
        assert cautions["A table cannot be used."] == f"{name} lacks a column."
        assert "The run is not finished." not in cautions
        answers = {one.question: one.text for one in summarise(lacking).answers}
        if name in ("predictions", "relevance_bilateral", "region_summary"):
            assert answers["Where does it look?"] == f"Not known. {name} lacks a column."


def test_without_predictions_nothing_made_from_them_is_shown_and_the_reason_is_said_once(tmp_path):
    layout = make_run(tmp_path / "run", replace(SMALL, until="regions"))
    without(layout, "predictions", "outcome")
    found = read_run(layout)
    assert {"scans", "registration"} <= set(found.tables)
    assert not {"predictions", "relevance_bilateral", "beta_overlap"} & set(found.tables)
    said = found.unreadable["predictions"]
    assert said.startswith(f"group/predictions.tsv has no column outcome: {REMEDY}")
    assert found.unreadable["relevance_bilateral"] == said
    assert found.why_absent("predictions", "relevance_bilateral") == said


@pytest.mark.ci
def test_the_report_says_what_its_tables_lack_and_is_made_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "rendered", lambda *_, **__: b"")
    layout = make_run(tmp_path / "run", SMALL)
    lacking = (
        ("volume_association", "fold_held", "Does relevance follow atrophy?"),
        ("group_comparisons", "p_fwe", "Where do groups differ?"),
        ("planted_recovery", "hits", "Are the planted regions found?"),
    )
    for name, column, _ in lacking:
        without(layout, name, column)
    index = html.unescape(build_report(layout).read_text(encoding="utf-8"))
    warning = index[index.index("Tables cannot be used.") : index.index('<section class="answers')]
    for name, column, title in lacking:
        said = f"group/statistics/{name}.tsv has no column {column}: {REMEDY}"
        anchor = next(one.id for one in QUESTIONS if one.title == title)
        page = html.unescape(page_with(layout, anchor).read_text(encoding="utf-8"))
        section = page[page.rindex(f">{title}</h2>") :]
        assert said in section[: section.index("</section>")]
        assert said in warning
    registration = page_with(layout, "registration").read_text(encoding="utf-8")
    assert "Registration of every scan, doubtful scans first." in registration


# Links of the documentation lead to files and headings that there are, and every page is in the navigation.

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them, and anchors written by hand."""
    text = page.read_text(encoding="utf-8")
    headings = (re.sub(r"[^\w\- ]", "", line.lower()).strip() for line in re.findall(r"^#+ (.*)$", text, re.M))
    return {heading.replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_of_the_site_is_in_the_navigation_once() -> None:
    docs = ROOT / "docs"
    pages = [page for page in docs.rglob("*.md") if "_build" not in page.parts]
    listed = [
        os.path.relpath(page.parent / name, docs)
        for page in pages
        for tree in re.findall(r"```{toctree}\n.*?\n\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for name in tree.split()
    ]
    names = [page.relative_to(docs).with_suffix("").as_posix() for page in pages if page != docs / "index.md"]
    assert sorted(listed) == sorted([*names, "auto_examples/index"])


def load_script(name: str) -> ModuleType:
    """A program of the documentation, docs/NAME.py."""
    script = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert script is not None
    assert script.loader is not None
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    return module


def test_every_link_of_the_sample_reports_leads_somewhere() -> None:
    assert load_script("check_site").faults(ROOT / "docs" / "sample_report") == []


def test_pictures_of_the_documentation_are_of_the_sample_reports_as_they_are() -> None:
    showcase = load_script("showcase")
    pictures = pd.read_csv(showcase.IMAGES / "pictures.tsv", sep="\t").set_index("picture")
    assert dict(pictures["page"]) == {name: shot.page for name, shot in showcase.PICTURES.items()}
    for name, row in pictures.iterrows():
        assert (showcase.IMAGES / str(name)).is_file()
        assert row["sha256"] == showcase.digest(showcase.SAMPLE / row["page"]), "run make showcase again"
    assert sum(picture.stat().st_size for picture in showcase.IMAGES.iterdir()) < 6e6
    people = [page.name for page in (showcase.SAMPLE / "patients").rglob("*.html") if page.name.startswith("sub-")]
    assert people == [], "single people of OASIS-1 are not published"


def test_links_to_pages_that_are_not_copied_become_text(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "a.html"
    text = (
        '<a class="x" href="../kept.html#y">1</a><a href="lost.html">2</a><a href="#z">3</a><a href="https://x.org">4</a>'
        '<a href="../figures/b.png">5</a>{"A":"../kept.html","B":"lost.html"}'
    )
    found = load_script("showcase").without_dead_links(text, page, {tmp_path / "kept.html", page})
    assert found == (
        '<a class="x" href="../kept.html#y">1</a><a>2</a><a href="#z">3</a><a href="https://x.org">4</a>'
        '<a>5</a>{"A":"../kept.html","B":""}'
    )


def test_the_check_of_the_site_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="other.html#here">1</a><a href="other.html#gone">2</a><a href="lost.html">3</a><a href="https://x.org">4</a>'
        '<script src="https://x.org/a.js"></script><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1><a href="#here">up</a>')
    assert load_script("check_site").faults(tmp_path) == [
        "page.html: loads https://x.org/a.js",
        "page.html: no anchor other.html#gone",
        "page.html: no file lost.html",
    ]


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the packages of `make docs` are not installed")
    site = str(tmp_path / "html")
    for command in (["-m", "sphinx", "-q", "-E", "-W", "--keep-going", "docs", site], ["docs/check_site.py", site]):
        answer = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
