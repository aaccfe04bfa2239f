"""The region explorer in a real browser: what it shows and saves equals the table on disk."""

from __future__ import annotations

import base64
import re
import zlib

import numpy as np
import pandas as pd
import pytest
from component_pages import HOSTILE_CLASS

from heatlas.pipeline.run.tables import read_table
from heatlas.reports.words.numbers import number, p_cell

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def table(made):
    return read_table(made.layout.figures / "region_explorer.tsv", text_columns=["scan_group", "name", "hemisphere"])


@pytest.fixture(scope="module")
def opened(made, visit_once):
    page = visit_once(made.page)
    page.wait_for_selector(".explorer[data-ready]")
    return page


@pytest.fixture
def page(opened):
    """The page with every control as it is when opened."""
    for name, value in {
        "method": "lrp", "beta": "0", "group": "AD", "hemisphere": "bilateral", "lobe": "", "p": "",
        "metric": "mean_sum",
    }.items():  # fmt: skip
        if opened.is_enabled(f".explorer [name={name}]"):
            opened.select_option(f".explorer [name={name}]", value)
    opened.select_option(".explorer [name=metric]", "mean_share")
    opened.fill(".explorer [name=words]", "")
    return opened


def shown(page):
    """Rows on the page: name, text and file's text of each number."""
    return page.eval_on_selector_all(
        ".explorer tbody tr",
        "rows => rows.map(row => [...row.cells].map(cell => [cell.textContent, cell.dataset.value ?? null]))",
    )


def names(page):
    return [row[0][0] for row in shown(page)]


def wanted(table, scan_group="AD", map_name="lrpB000", hemisphere=("bilateral",)):
    rows = table["map"].eq(map_name) & table["scan_group"].eq(scan_group) & table["hemisphere"].isin(hemisphere)
    return table[rows]


def test_it_opens_with_the_bilateral_groups_of_the_positive_class_by_share(page, table):
    expected = wanted(table).sort_values("mean_share", ascending=False, kind="stable")
    assert names(page) == expected["name"].tolist()
    assert page.inner_text(".explorer .shown") == f"{len(expected)} of {len(table)} rows"


def test_numbers_on_the_page_equal_the_table_on_disk(page, table, made):
    exact = pd.read_csv(made.layout.figures / "region_explorer.tsv", sep="\t", dtype=str, keep_default_na=False)
    exact = wanted(exact).set_index("name")
    values = wanted(table).set_index("name")
    order = [
        "mean_share",
        "hedges_g",
        "hedges_g_low",
        "hedges_g_high",
        "p_fwe",
        "mean_gain",
        "mean_density",
        "mean_sum",
        None,
        None,
        "n_voxels",
        "p",
        "p_fdr",
    ]
    for row in shown(page):
        for key, (text, kept) in zip(order, row[1:], strict=True):
            if key is not None:
                assert kept == exact.loc[row[0][0], key]
                value = values.loc[row[0][0], key]
                assert text == (p_cell(value) if key.startswith("p") else number(value))


@pytest.mark.parametrize(
    ("title", "key"), [("Sum", "mean_sum"), ("Corrected p (family-wise)", "p_fwe"), ("Region", "name")]
)
def test_headings_sort_both_ways_and_say_so(page, table, title, key):
    heading = page.locator(".explorer th", has_text=title).first
    heading.locator("button").click()
    first = heading.get_attribute("aria-sort")
    assert first == ("descending" if key == "mean_sum" else "ascending")
    for direction in (first, "ascending" if first == "descending" else "descending"):
        assert heading.get_attribute("aria-sort") == direction
        values = wanted(table).set_index("name").assign(name=lambda frame: frame.index).loc[names(page), key]
        known = values.dropna().tolist()
        assert values.isna().tolist() == sorted(values.isna())  # rows without a value are last either way
        if key == "name":
            folded = [value.lower() for value in known]
            assert folded == sorted(folded, reverse=direction == "descending")
        else:
            assert known == sorted(known, reverse=direction == "descending")
        heading.locator("button").click()


def test_choosing_a_metric_sorts_by_it_and_colours_the_brain(page, table):
    canvas = ".explorer canvas[data-plane=coronal]"
    before = page.eval_on_selector(canvas, "one => one.toDataURL()")
    page.select_option(".explorer [name=metric]", "mean_gain")
    assert names(page) == wanted(table).sort_values("mean_gain", ascending=False, kind="stable")["name"].tolist()
    assert page.eval_on_selector(canvas, "one => one.toDataURL()") != before
    assert page.inner_text(".explorer .unit").startswith("Mean gain")


def test_filters_give_the_rows_of_the_table(page, table):
    page.select_option(".explorer [name=lobe]", "temporal")
    assert set(names(page)) == set(wanted(table).query("lobe == 'temporal'")["name"])
    page.select_option(".explorer [name=lobe]", "")
    page.select_option(".explorer [name=p]", "0.05")
    assert set(names(page)) == set(wanted(table).query("p_fwe <= 0.05")["name"])
    assert len(names(page)) < len(wanted(table))  # in so small a run there may be none
    page.select_option(".explorer [name=p]", "")
    page.fill(".explorer [name=words]", "HIPPO")
    assert set(names(page)) == {name for name in wanted(table)["name"] if "hippo" in name.lower()}
    page.fill(".explorer [name=words]", "no such region")
    assert names(page) == []
    assert page.inner_text(".explorer .shown").startswith("0 of ")


def test_sides_apart_are_the_regions_of_the_atlas(page, table):
    page.select_option(".explorer [name=hemisphere]", "left")
    assert names(page) == ["Left hippocampus"]
    page.select_option(".explorer [name=hemisphere]", "single")
    expected = wanted(table, hemisphere=("left", "right", "both"))
    assert sorted(names(page)) == sorted(expected["name"])
    assert "unlabelled rest" in names(page)
    assert page.is_disabled(".explorer [name=p]")
    assert names(page)[-1] == "Third ventricle"  # without a voxel there is no share: last


def test_method_beta_and_group_choose_the_map(page, table):
    page.select_option(".explorer [name=beta]", "0.5")
    page.select_option(".explorer [name=group]", HOSTILE_CLASS)
    first = wanted(table, HOSTILE_CLASS, "lrpB050").sort_values("mean_share", ascending=False, kind="stable")
    assert names(page) == first["name"].tolist()
    page.select_option(".explorer [name=method]", "gb")
    assert page.is_disabled(".explorer [name=beta]")
    second = wanted(table, HOSTILE_CLASS, "gb").sort_values("mean_share", ascending=False, kind="stable")
    assert names(page) == second["name"].tolist()
    page.select_option(".explorer [name=method]", "lrp")


def saved(page, button):
    with page.expect_download() as download:
        page.click(f".explorer [name={button}]")
    return download.value.suggested_filename, download.value.path().read_bytes()


def test_the_saved_table_is_the_file_on_disk_byte_for_byte(page, made):
    name, content = saved(page, "whole")
    assert name == "region_explorer.tsv"
    assert content == (made.layout.figures / "region_explorer.tsv").read_bytes()


def test_saved_rows_are_the_lines_of_the_file_in_the_order_shown(page, made, tmp_path):
    page.select_option(".explorer [name=group]", HOSTILE_CLASS)
    page.fill(".explorer [name=words]", "gyrus")
    _, content = saved(page, "selection")
    lines = (made.layout.figures / "region_explorer.tsv").read_text(encoding="utf-8").splitlines()
    found = content.decode().splitlines()
    assert found[0] == lines[0]
    assert set(found[1:]) < set(lines[1:])
    (tmp_path / "rows.tsv").write_bytes(content)
    rows = read_table(tmp_path / "rows.tsv", text_columns=["scan_group"])
    assert rows["name"].tolist() == names(page)
    assert set(rows["scan_group"]) == {HOSTILE_CLASS}


def test_every_region_leads_to_its_page(page):
    links = page.eval_on_selector_all(
        ".explorer tbody tr",
        "rows => rows.map(row => [row.cells[0].textContent, row.querySelector('a')?.getAttribute('href')])",
    )
    assert dict(links)["Hippocampus"] == "pages/region-hippocampus.html"
    assert all(href for _, href in links)


def test_pointing_at_the_brain_names_the_region_and_a_click_marks_its_row(page):
    page.select_option(".explorer [name=hemisphere]", "single")
    canvas = page.locator(".explorer canvas[data-plane=sagittal][data-mm='-26.0']")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    found = set()
    for across in np.linspace(0.45, 0.6, 8):
        for down in np.linspace(0.5, 0.7, 8):
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
            text = page.inner_text(".explorer .readout")
            found.add(text)
            if text.startswith("Left hippocampus"):
                page.mouse.down()
                page.mouse.up()
                assert page.inner_text(".explorer tr.lit td:first-child") == "Left hippocampus"
                assert text.endswith("(Share of the map)")
                return
    pytest.fail(f"never met the left hippocampus: {found}")


def test_keys_alone_sort_and_filter(page):
    page.focus(".explorer [name=words]")
    page.keyboard.type("hippocampus")
    assert names(page) == ["Hippocampus"]
    page.fill(".explorer [name=words]", "")
    page.focus(".explorer th[data-key=name] button")
    page.keyboard.press("Enter")
    assert page.get_attribute(".explorer th[data-key=name]", "aria-sort") == "ascending"
    assert page.evaluate("document.activeElement.closest('th').dataset.key") == "name"


def test_without_scripts_it_is_a_plain_table(made, visit, table):
    page = visit(made.page, java_script_enabled=False)
    cells = page.locator(".explorer tbody tr td:first-child").all_inner_texts()
    assert cells == wanted(table).sort_values("mean_share", ascending=False, kind="stable")["name"].tolist()
    assert not page.locator(".explorer .controls").is_visible()
    assert not page.locator(".viewer .controls").is_visible()


def test_what_grows_with_the_prediction_comes_last_and_says_so(page):
    shown = page.eval_on_selector_all(
        ".explorer [name=metric] option", "all => all.map(one => [one.value, one.textContent])"
    )
    assert shown[0][0] in ("mean_evidence", "mean_share")
    assert [value for value, _ in shown[-2:]] == ["mean_density", "mean_sum"]
    assert [value for value, text in shown if "grows with the prediction" in text] == ["mean_density", "mean_sum"]


def test_p_of_densities_neither_colours_nor_selects(made, visit):
    """Density grows with the prediction, and so do differences of it between the classes."""
    html = made.page.read_text(encoding="utf-8")
    start = html.index('<div class="explorer">')
    packed = re.compile(r'"table": ?"([^"]+)"').search(html, start)[1]
    lines = zlib.decompress(base64.b64decode(packed)).decode()
    assert "\tshare\t" in lines
    other = base64.b64encode(zlib.compress(lines.replace("\tshare\t", "\tdensity\t").encode())).decode()
    path = made.page.with_name("densities.html")
    path.write_text(html.replace(packed, other), encoding="utf-8")
    page = visit(path)
    page.wait_for_selector(".explorer[data-ready]")
    assert page.locator(".explorer [name=metric] option[value=p_fwe]").is_disabled()
    assert page.locator(".explorer [name=p]").is_disabled()
