"""The whole report in a real browser: no request, no error, readable on a phone, by keys and by a screen reader."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import nibabel as nib
import numpy as np
import pytest
from report_pages import chapter_files, page_with
from run_factory import RESOLUTION, SMALL, WITH_EVIDENCE, make_run

from heatlas.atlases.templates import load_template
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.frame.overviews import write_overview
from heatlas.reports.frame.pages import participant_file
from heatlas.reports.page.build import build_report
from heatlas.reports.people.scan_pictures import draw_scans
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.command_line import main

pytestmark = pytest.mark.ci

LEVELS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
NARROW = 375
WIDE, SCREEN = 1400, 900
SCREENS = {"index": 5, "maps": 6, "regions": 5}
"""What a page may grow to, so that it can be read at one go: screens of these pixels."""
INDEX_WORDS, INDEX_BYTES, INDEX_SHEETS = 1100, 3_000_000, 12
"""The same of the index in words, bytes and pages of A4."""
PERSON_BYTES = 150_000
LEAST_TOUCHED = 24
"""Pixels a control must measure to be hit by a finger (WCAG 2.2, 2.5.8)."""
KEPT_NAMES = """boxes => boxes.map((box) => {
  box.scrollLeft = box.scrollWidth;
  const names = box.querySelector("th.names, .explorer th:first-child");
  return [names.innerText.trim(), names.getBoundingClientRect().left, box.getBoundingClientRect().left];
}).filter((_, place) => boxes[place].scrollLeft > 150)"""
ON_SCREEN = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def report(made) -> RunLayout:
    """The report of the run whose pages of components the other modules test, with two people's own brains."""
    layout = made.layout
    brain = load_template(RESOLUTION)
    predictions = read_table(layout.group / "predictions.tsv")
    for row in predictions.drop_duplicates("participant_id").head(2).itertuples():
        files = layout.scan(row.participant_id, row.session_id, RESOLUTION)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(np.asarray(brain.t1w[::-1]), brain.grid.affine), files.t1w)
        files.overview.parent.mkdir(parents=True, exist_ok=True)
        write_overview(files.overview, files.t1w, brain, [])
    with ThreadPoolExecutor(1) as executor:
        first = draw_scans(read_run(layout), executor)
        again = draw_scans(read_run(layout), executor)
    assert [outcome.status for outcome in first] == ["done", "done"]
    assert [outcome.status for outcome in again] == ["unchanged", "unchanged"]
    build_report(layout)
    return layout


def pages_of(layout: RunLayout) -> dict[str, Path]:
    """One page of each kind."""
    person = str(read_table(layout.group / "predictions.tsv")["participant_id"].iloc[0])
    scan = layout.scan(person, str(read_table(layout.group / "predictions.tsv")["session_id"].iloc[0]), RESOLUTION)
    return {
        "index": layout.report,
        "maps": page_with(layout, "maps"),
        "regions": page_with(layout, "regions"),
        "participant": layout.root / participant_file(person),
        "region": layout.root / "pages" / "region-hippocampus.html",
        "viewer": scan.viewer,
    }


KINDS = ("index", "maps", "regions", "participant", "region", "viewer")
DARK = ("maps", "regions")


def opened(visit, report, kind, width=1280, **options):
    return ready(visit(pages_of(report)[kind], width, **options))


def ready(page):
    for part in (".viewer", ".explorer"):
        if page.locator(part).count():
            page.wait_for_selector(f"{part}[data-ready]", state="attached")  # hidden on paper
    return page


def each_chapter(visit, report, width=1280, **options):
    """The index and every chapter, one after the other in one tab."""
    first, *others = chapter_files(report)
    page = visit(first, width, **options)
    yield first.name, ready(page)
    for path in others:
        page.goto(path.as_uri())
        yield path.name, ready(page)


@pytest.mark.parametrize("kind", SCREENS)
def test_a_page_can_be_read_at_one_go(visit, report, kind):
    page = opened(visit, report, kind, WIDE)
    assert page.evaluate("document.documentElement.scrollHeight") <= SCREENS[kind] * SCREEN
    if kind == "index":
        assert 200 < len(page.inner_text("body").split()) <= INDEX_WORDS
        assert report.report.stat().st_size <= INDEX_BYTES


def test_the_first_screen_shows_what_was_found_and_the_picture(visit, report):
    page = opened(visit, report, "index", WIDE)
    for part in (".first", "#brain img >> nth=0", ".cautions h2"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= SCREEN, part
    assert "white matter" not in page.inner_text("#brain figcaption >> nth=0").lower()
    phone = opened(visit, report, "index", NARROW)
    box = phone.locator("#brain img").first.bounding_box()
    assert box["y"] + box["height"] <= 2 * SCREEN


def test_what_a_page_folds_opens(visit, report):
    page = opened(visit, report, "maps", WIDE)
    hidden = page.locator("#maps details.fold figure.dark img")
    assert hidden.count() > 1
    assert not hidden.first.is_visible()
    page.click("#maps details.fold > summary")
    assert hidden.first.is_visible()


def test_the_menu_says_which_topics_unfold(visit, report):
    page = opened(visit, report, "index")
    for topic in ("Statistics", "Quality"):
        mark = page.eval_on_selector(
            f"nav summary:text-is('{topic}')", "one => getComputedStyle(one, '::after').content"
        )
        assert "▾" in mark


def test_the_sum_of_an_evidence_map_does_not_stand_twice(visit, report):
    page = opened(visit, report, "regions", WIDE)
    shown = page.locator(".explorer th").filter(visible=True).all_inner_texts()
    cells = page.locator(".explorer tbody tr").first.locator("td").filter(visible=True).count()
    assert len(shown) == cells
    assert not {"Evidence", "Mean sum"} <= {title.strip(" ↕↓↑") for title in shown}


def test_the_page_of_a_participant_is_light_and_flickers_between_scan_and_template(visit, report):
    assert pages_of(report)["participant"].stat().st_size <= PERSON_BYTES
    page = opened(visit, report, "participant")
    portrait, unsmoothed, scan, template = page.locator("figure.dark img").all()
    assert not unsmoothed.is_visible()
    page.get_by_text("The same maps, not smoothed").click()
    assert unsmoothed.is_visible()
    for picture in (portrait, unsmoothed, scan, template):
        picture.evaluate("one => { one.loading = 'eager'; return one.decode(); }")
        assert picture.evaluate("one => one.naturalWidth") > 400
    assert scan.bounding_box()["width"] == template.bounding_box()["width"]
    seen = "one => getComputedStyle(one).animationName"
    assert template.evaluate(seen) == "none"
    page.locator(".flicker").focus()
    assert template.evaluate(seen) == "flicker"


def test_the_menu_marks_the_page_that_is_open(visit, report):
    for name, page in each_chapter(visit, report):
        marked = page.locator("nav [aria-current=page]").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        assert marked == [name]


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_barrier_that_axe_knows_in_any_chapter(visit, report, colours):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is in the test group")
    for name, page in each_chapter(visit, report, color_scheme=colours):
        found = axe.Axe().run(page, options={"runOnly": {"type": "tag", "values": list(LEVELS)}})
        assert [(rule["id"], rule["nodes"][0]["target"]) for rule in found.response["violations"]] == [], name


@pytest.mark.parametrize(
    ("kind", "colours"), [*((kind, "light") for kind in KINDS), *((kind, "dark") for kind in DARK)]
)
def test_no_barrier_that_axe_knows(visit, report, kind, colours):
    """Contrast AA among them; axe-core reads the page as assistive technology does."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is in the test group")
    page = opened(visit, report, kind, color_scheme=colours)
    found = axe.Axe().run(page, options={"runOnly": {"type": "tag", "values": list(LEVELS)}})
    problems = [
        f"{rule['id']}: {node['target']} {node.get('failureSummary', '')[:200]}"
        for rule in found.response["violations"]
        for node in rule["nodes"][:3]
    ]
    assert problems == []


LOW = f"""all => all.filter(one => one.getBoundingClientRect().height < {LEAST_TOUCHED}).map(one => one.innerText)"""


def fits_a_phone(page):
    assert page.evaluate(ON_SCREEN), page.url
    for part in page.locator(".viewer .planes canvas").filter(visible=True).all():
        assert part.bounding_box()["width"] <= NARROW
    touched = page.locator("button, input, select, summary, nav a").filter(visible=True)
    assert touched.evaluate_all(LOW) == [], page.url


@pytest.mark.parametrize("kind", KINDS)
def test_a_phone_shows_every_page_without_scrolling_sideways(visit, report, kind):
    fits_a_phone(opened(visit, report, kind, NARROW))


def test_a_phone_shows_every_chapter_without_scrolling_sideways(visit, report):
    for _, page in each_chapter(visit, report, NARROW):
        fits_a_phone(page)
        page.click("nav summary:text-is('Statistics')")
        fits_a_phone(page)  # with the menu open


UNFOLD = "() => document.querySelectorAll('main details').forEach((one) => { one.open = true; })"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_phone_shows_every_page_there_is_with_all_that_it_folds(visit, report, tmp_path, colours):
    """Also the viewers of scans and the page of a comparison."""
    runs = [str(make_run(tmp_path / name, SMALL).root) for name in "ab"]
    assert main(["compare", *runs, "--to", str(tmp_path / "together")]) == 0
    page = visit(report.report, NARROW, color_scheme=colours)
    paths = [path for path in sorted(report.root.rglob("*.html")) if path.stat().st_size]
    assert len(paths) > 20
    for path in [*paths, tmp_path / "together" / "comparison.html"]:
        page.goto(path.as_uri())
        ready(page).evaluate(UNFOLD)
        assert page.evaluate(ON_SCREEN), path.name


@pytest.mark.parametrize(("kind", "names"), [("index", "Participant"), ("regions", "Region")])
def test_a_table_moved_sideways_on_a_phone_keeps_its_names_in_sight(visit, report, kind, names):
    moved = opened(visit, report, kind, NARROW).locator(".scroll:has(table):visible").evaluate_all(KEPT_NAMES)
    assert {name for name, _, _ in moved} >= {names}
    for name, names_left, box_left in moved:
        assert abs(names_left - box_left) <= 2, name


@pytest.mark.parametrize(
    ("kind", "hidden", "shown"),
    [
        ("index", ["nav"], [".answers", "#brain img"]),
        ("maps", ["nav", ".contents", ".viewer .controls", ".viewer"], ["#maps img"]),
        ("regions", ["nav", ".explorer .controls", ".explorer .saving"], [".explorer .pictures canvas"]),
    ],
)
def test_pages_print_as_documents(visit, report, kind, hidden, shown):
    page = opened(visit, report, kind)
    pdf = page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= INDEX_SHEETS
    page.emulate_media(media="print")
    for one in hidden:
        assert page.locator(one).count() >= 1, one
        assert not page.locator(one).first.is_visible(), one
    for one in shown:
        assert page.locator(one).locator("visible=true").count() >= 1, one
    cautions = page.locator(".cautions li")
    assert cautions.count() >= 1
    assert all(one.is_visible() for one in cautions.all())  # though the screen folds them


def links_lead_somewhere(page):
    """Also those that scripts have made."""
    for path in page.eval_on_selector_all(
        "a[href]", "all => all.map(one => new URL(one.getAttribute('href'), document.baseURI).href)"
    ):
        if path.startswith("file:"):
            assert Path(unquote(path.removeprefix("file://").partition("#")[0])).is_file(), (page.url, path)


def test_links_lead_to_pages_there_are_and_back(visit, report):
    page = opened(visit, report, "index")
    links_lead_somewhere(page)
    page.click("#ranking a:text-is('Which regions?')")
    page.wait_for_selector(".explorer[data-ready]")
    assert page.url.endswith("report-regions.html#regions")
    links_lead_somewhere(page)
    page.click(".explorer tbody a:text-is('Hippocampus')")
    page.wait_for_load_state()
    assert "Hippocampus" in page.inner_text("h1")
    page.click("nav summary:text-is('Statistics')")
    page.click("nav a:text-is('Where does it look?')")
    page.wait_for_selector(".viewer[data-ready]")
    links_lead_somewhere(page)
    page.click("nav .brand a")
    page.wait_for_selector(".answers")
    assert page.url == report.report.as_uri()


def test_a_participant_leads_to_the_viewer_of_their_own_brain(visit, report):
    page = opened(visit, report, "participant")
    name = page.inner_text("h1")
    page.click("#where a[href$='viewer.html']")
    page.wait_for_selector(".viewer[data-ready]")
    assert name in page.inner_text("h1")
    files = report.scan(name, str(read_table(report.group / "predictions.tsv")["session_id"].iloc[0]), RESOLUTION)
    values = nib.load(files.relevance_map("lrpB000")).get_fdata()
    data = page.eval_on_selector(".viewer .readout", "one => ({...one.dataset})")
    voxel = tuple(map(int, data["voxel"].split()))
    assert abs(float(data["value"]) - values[voxel]) <= float(data["error"]) * (1 + 1e-9)
    page.click(f"a:text-is('{name}')")
    page.wait_for_load_state()
    assert page.inner_text("h1") == name


@pytest.mark.parametrize(
    ("kind", "control"),
    [("index", ".cautions summary"), ("maps", ".viewer [name=group]"), ("regions", "[name=metric]")],
)
def test_keys_alone_reach_the_content_and_every_control(visit, report, kind, control):
    page = opened(visit, report, kind)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash === '#content'", timeout=10_000)  # the key is answered a moment later
    unreachable = page.eval_on_selector_all(
        "button, select, input, a[href], summary, canvas[data-plane][role=application]",
        "all => all.filter(one => one.tabIndex < 0).map(one => one.outerHTML.slice(0, 80))",
    )
    assert unreachable == []
    page.focus(control)
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"  # where one is can be seen


def test_keys_open_the_menu_and_follow_it(visit, report):
    page = opened(visit, report, "index")
    page.focus("nav summary:text-is('Quality')")
    page.keyboard.press("Enter")
    page.wait_for_selector("nav details[open]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Participants and scans"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector("#cohort")


def test_one_look_at_every_heading_and_name(visit, report):
    page = opened(visit, report, "index")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en-GB"
    levels = [int(tag[1]) for tag in page.eval_on_selector_all("h1,h2,h3,h4", "all => all.map(one => one.tagName)")]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => !box.closest("details:not([open])") && box.scrollWidth - box.clientWidth > 2)
  .map((box) => [
    box.classList.contains("more"),
    getComputedStyle(box.closest("figure").querySelector("figcaption"), "::after").content.includes("Scroll sideways"),
  ])"""


@pytest.mark.parametrize("kind", ["index", "regions", "participant", "region"])
def test_what_is_cut_says_so_and_the_first_column_stays(visit, report, kind):
    page = opened(visit, report, kind, NARROW)
    page.wait_for_function(f"() => ({CUT})().every(([more, said]) => more && said)")
    assert len(page.evaluate(CUT)) > 0
    moved = page.evaluate(
        """() => {
          const box = [...document.querySelectorAll(".scroll:has(table)")].find((one) =>
            !one.closest("details:not([open])") && one.scrollWidth - one.clientWidth > 50);
          if (!box) return null;
          const first = box.querySelector("td");
          const [before, second] = [first.getBoundingClientRect().left, first.nextElementSibling];
          const there = second.getBoundingClientRect().left;
          box.scrollLeft = 40;
          return [first.getBoundingClientRect().left - before, second.getBoundingClientRect().left - there];
        }"""
    )
    assert moved is not None
    assert abs(moved[0]) <= 12  # at most the padding of a framed table
    assert moved[1] == -40


def test_a_region_page_shows_its_region_outlined_with_values_of_the_file(visit, report):
    page = opened(visit, report, "region")
    assert (report.root / "pages" / "region-hippocampus.html").stat().st_size < 1_000_000
    readout = ".viewer .readout"
    assert "hippocampus" in page.inner_text(readout).lower()
    white = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let n = 0;
      for (let at = 0; at < data.length; at += 4) n += data[at] > 250 && data[at + 1] > 250 && data[at + 2] > 250;
      return n;
    }"""
    assert not page.is_visible(".viewer [name=method]")  # there is one
    page.click(".viewer .more summary")
    axial = page.locator(".viewer canvas[data-plane=axial]")
    lined = axial.evaluate(white)
    page.uncheck(".viewer [name=outline]")
    assert lined > axial.evaluate(white) + 50
    data = page.eval_on_selector(readout, "one => ({...one.dataset})")
    image = nib.load(report.group_map(page.input_value(".viewer [name=group]"), "lrpB000"))
    mm = [float(page.input_value(f".viewer [name={axis}]")) for axis in "xyz"]
    place = np.rint(np.linalg.inv(image.affine) @ [*mm, 1]).astype(int)[:3]
    assert abs(float(data["value"]) - image.get_fdata()[tuple(place)]) <= float(data["error"]) * (1 + 1e-6)


def test_no_table_is_cut_on_paper(visit, report):
    """A4 with the margins of the page is 695 pixels wide."""
    pages, boxes = each_chapter(visit, report, 695), 0
    for name, page in itertools.chain(pages, [("region", opened(visit, report, "region", 695))]):
        page.emulate_media(media="print")
        wide = """() => [...document.querySelectorAll(".scroll:has(table)")]
          .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 2)
          .map((box) => [box.getAttribute("aria-label"), box.scrollWidth, box.clientWidth])"""
        assert page.evaluate(wide) == [], name
        masks = page.eval_on_selector_all(".scroll", "all => all.map(one => getComputedStyle(one).maskImage)")
        assert set(masks) <= {"none"}, name
        boxes += len(masks)
    assert boxes > 40


@pytest.mark.parametrize("kind", ["participant", "region"])
def test_keys_reach_everything_on_pages_of_people_and_regions(visit, report, kind):
    page = opened(visit, report, kind)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    unreachable = page.eval_on_selector_all(
        "button, select, input, a[href], summary, .scroll",
        "all => all.filter(one => one.tabIndex < 0).map(one => one.outerHTML.slice(0, 80))",
    )
    assert unreachable == []
    assert page.locator("h1").count() == 1


def test_a_heading_sorts_by_the_keyboard_and_tells_the_direction(visit, report):
    page = opened(visit, report, "participant")
    page.click("#fingerprint summary")
    heading = page.locator("#fingerprint th", has_text="Share of the map").first
    for direction in ("descending", "ascending"):
        heading.locator("button").press("Enter")
        assert heading.get_attribute("aria-sort") == direction
        cells = (
            page.locator("#fingerprint table")
            .first.locator("tbody td:nth-child(2)")
            .evaluate_all("all => all.map(one => Number(one.dataset.order))")
        )
        assert cells == sorted(cells, reverse=direction == "descending")


@pytest.mark.filterwarnings("error:constrained_layout")
def test_long_names_and_those_written_from_right_to_left_break_no_page(visit, tmp_path):
    normal, patients = "cognitively normal at every visit " * 6, "مرض الزهايمر"
    hippocampus = "part of the medial temporal lobe along the floor of the temporal horn " * 3
    run = make_run(tmp_path / "run", replace(WITH_EVIDENCE, contrast=(patients, normal)))
    for table in run.root.rglob("*.tsv"):
        table.write_text(table.read_text().replace("\tHippocampus\t", f"\t{hippocampus}\t"))
    build_report(run)
    assert not list((run.logs / "failures").glob("*"))
    for name, page in each_chapter(visit, run, NARROW):
        assert page.evaluate(ON_SCREEN), name
    words = " ".join(run.report.read_text().split())
    assert f"{patients} from {normal.strip()}" in words, "a sentence says all of a class"
