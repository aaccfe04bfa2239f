"""The viewer and the explorer in a real browser."""

from __future__ import annotations

import base64
import re
import zlib

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from component_pages import HOSTILE_CLASS
from PIL import Image
from run_factory import RESOLUTION

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.figures.slices import SMOOTHED_MM
from heatlas.reports.viewer.component import LEVELS, brain_codes, smoothed_within, viewing_space
from heatlas.reports.words.numbers import number, p_cell

pytestmark = pytest.mark.ci


# The viewer in a real browser: what it shows equals the images on disk, left is left, and keys reach everything.

BRIGHT = """(canvas) => {
  const { width, height } = canvas, half = Math.floor(width / 2);
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const coloured = (from, to) => {
    let n = 0;
    for (let y = 0; y < height; y++) for (let x = from; x < to; x++) {
      const at = 4 * (x + width * y);
      // Grey is as red as green; the crosshair, thin and orange, and letters are few pixels.
      if (Math.abs(pixels[at] - pixels[at + 1]) > 40) n++;
    }
    return n;
  };
  return [coloured(0, half - 8), coloured(half + 8, width)];
}"""


@pytest.fixture(scope="module")
def opened(made, visit_once):
    page = visit_once(made.page)
    page.wait_for_selector(".viewer[data-ready]")
    page.click(".viewer .more summary")
    return page


@pytest.fixture
def page(opened):
    """The whole map as it is, with all controls unfolded."""
    switch(opened, "AD", "lrpB000")
    opened.set_checked(".viewer [name=mirrored]", False)
    opened.set_checked(".viewer [name=smooth]", False)
    slide(opened, "threshold", 0)
    slide(opened, "opacity", 90)
    go_to(opened, (-26, -20, -16))
    opened.evaluate("() => scrollTo(0, 0)")  # the controls below the slices were scrolled to
    return opened


def switch(page, group, method):
    page.select_option(".viewer [name=group]", group)
    page.select_option(".viewer [name=method]", method)
    page.wait_for_function(
        "(state) => document.querySelector('.viewer').dataset.ready === state", arg=f"{group} {method}"
    )


def go_to(page, mm):
    page.evaluate(
        """(mm) => ["x", "y", "z"].forEach((axis, k) => {
          const field = document.querySelector(`.viewer [name=${axis}]`);
          field.value = mm[k];
          field.dispatchEvent(new Event("change", { bubbles: true }));
        })""",
        [float(value) for value in mm],
    )


def readout(page):
    data = page.eval_on_selector(".viewer .readout", "one => ({...one.dataset})")
    return float(data["value"]), float(data["error"]), tuple(map(int, data["voxel"].split()))


def test_the_value_under_the_crosshair_is_that_of_the_file(page, made):
    values = nib.load(made.lopsided).get_fdata()
    grid = template_grid(RESOLUTION)
    rng = np.random.default_rng(1)
    inside = np.argwhere(values != 0)
    largest = np.unravel_index(np.abs(values).argmax(), values.shape)
    places = [[40, 20, 20], *rng.choice(inside, 12, replace=False), largest]
    shown = []
    for place in places:
        go_to(page, grid.to_world(place))
        value, error, voxel = readout(page)
        assert voxel == tuple(place)
        assert abs(value - values[tuple(place)]) <= error * (1 + 1e-9)
        assert error <= np.abs(values).max() * 127.25 / 127**2
        shown.append(value)
    assert len(set(shown)) > 8
    assert number(shown[-1]) in page.inner_text(".viewer .value")
    assert "relevance per voxel" in page.inner_text(".viewer .value")


def test_the_region_under_the_crosshair_is_that_of_the_atlas(page):
    grid = template_grid(RESOLUTION)
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    names = {number: atlas.regions.by_number(number).name for number in atlas.regions.numbers}
    for place in np.random.default_rng(2).choice(np.argwhere(atlas.labels > 0), 10, replace=False):
        go_to(page, grid.to_world(place))
        assert page.inner_text(".viewer .where") == names[atlas.labels[tuple(place)]]
    go_to(page, grid.to_world([0, 0, 0]))
    assert page.inner_text(".viewer .where") == "outside the brain"


def test_a_region_can_be_chosen_by_name(page):
    page.select_option(".viewer [name=region]", label="Left hippocampus")
    assert page.inner_text(".viewer .where") == "Left hippocampus"
    assert float(page.input_value(".viewer [name=x]")) < 0
    page.select_option(".viewer [name=region]", label="Right hippocampus")
    assert page.inner_text(".viewer .where") == "Right hippocampus"
    assert float(page.input_value(".viewer [name=x]")) > 0


@pytest.mark.parametrize("plane", ["coronal", "axial"])
def test_left_is_left_until_the_radiological_view_is_chosen(page, plane):
    canvas = f".viewer canvas[data-plane={plane}]"
    left, right = page.eval_on_selector(canvas, BRIGHT)
    assert left > 1000
    assert right < left / 20
    assert "left is left" in page.inner_text(".viewer figcaption")
    page.check(".viewer [name=mirrored]")
    left, right = page.eval_on_selector(canvas, BRIGHT)
    assert right > 1000
    assert left < right / 20
    assert "left is right" in page.inner_text(".viewer figcaption")


def test_a_click_lands_where_it_points_in_both_views(page):
    grid = template_grid(RESOLUTION)
    for mirrored in (False, True):
        page.set_checked(".viewer [name=mirrored]", mirrored)
        canvas = page.locator(".viewer canvas[data-plane=axial]")
        box = canvas.bounding_box()
        canvas.click(position={"x": 0.3 * box["width"], "y": 0.25 * box["height"]})
        _, _, voxel = readout(page)
        x, y, _ = grid.to_world(voxel)
        assert bool(x > 0) is mirrored
        assert abs(voxel[0] - (0.7 if mirrored else 0.3) * grid.shape[0]) <= 1
        assert abs(voxel[1] - 0.75 * grid.shape[1]) <= 1
        assert y > 0  # the front of the head is at the top


def test_pointing_tells_and_leaving_returns_to_the_crosshair(page):
    _, _, start = readout(page)
    box = page.locator(".viewer canvas[data-plane=coronal]").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.4 * box["height"])
    assert readout(page)[2] != start
    page.mouse.move(1, 1)
    assert readout(page)[2] == start


def test_keys_move_the_crosshair(page):
    page.focus(".viewer canvas[data-plane=axial]")
    _, _, (x, y, z) = readout(page)
    for key, expected in (
        ("ArrowRight", (x + 1, y, z)), ("ArrowUp", (x + 1, y + 1, z)), ("PageDown", (x + 1, y + 1, z - 1)),
        ("ArrowLeft", (x, y + 1, z - 1)), ("Shift+ArrowDown", (x, y - 4, z - 1)),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert readout(page)[2] == expected
    page.check(".viewer [name=mirrored]")
    page.focus(".viewer canvas[data-plane=axial]")
    page.keyboard.press("ArrowRight")  # to the right of the picture is now to the left of the person
    assert readout(page)[2] == (x - 1, y - 4, z - 1)
    for _ in range(30):
        page.keyboard.press("Shift+ArrowUp")
    assert readout(page)[2][1] == template_grid(RESOLUTION).shape[1] - 1


def coloured_pixels(page):
    return sum(page.eval_on_selector(".viewer canvas[data-plane=axial]", BRIGHT))


def slide(page, name, value):
    page.eval_on_selector(
        f".viewer [name={name}]",
        "(one, value) => { one.value = value; one.dispatchEvent(new Event('input', { bubbles: true })); }",
        value,
    )


def test_threshold_and_opacity_hide_and_fade_the_map(page):
    slide(page, "threshold", 0)
    everything = coloured_pixels(page)
    assert page.inner_text(".viewer output.threshold").startswith("all voxels")
    slide(page, "threshold", 60)
    some = coloured_pixels(page)
    assert everything > some > 0
    assert page.inner_text(".viewer output.threshold").startswith("top 40 % of voxels, from ")
    slide(page, "opacity", 0)
    assert coloured_pixels(page) < everything / 50
    assert page.inner_text(".viewer output.opacity") == "0 %"


def test_sliders_work_by_keys_alone(page):
    page.focus(".viewer [name=threshold]")
    page.keyboard.press("ArrowRight")
    assert page.input_value(".viewer [name=threshold]") == "0.5"


def test_method_and_group_switch_the_map(page, made):
    grid = template_grid(RESOLUTION)
    at = [-26, -20, -16]
    voxel = tuple(np.rint(grid.to_voxel(at)).astype(int))
    go_to(page, grid.to_world(voxel))
    for group, method in ((HOSTILE_CLASS, "lrpB000"), (HOSTILE_CLASS, "gb"), ("AD", "lrpB050")):
        switch(page, group, method)
        value, error, _ = readout(page)
        expected = nib.load(made.layout.group_map(group, method)).get_fdata()[voxel]
        assert abs(value - expected) <= error * (1 + 1e-9)
        assert group in page.inner_text(".viewer .title")
    page.select_option(".viewer [name=method]", "gb")
    assert "susceptibility per voxel" in page.inner_text(".viewer .unit")


def test_a_group_without_a_method_does_not_offer_it(page):
    page.select_option(".viewer [name=method]", "lrpB050")
    page.select_option(".viewer [name=group]", "TP")
    page.wait_for_function("() => document.querySelector('.viewer').dataset.ready === 'TP lrpB000'")
    assert page.eval_on_selector_all(
        ".viewer [name=method] option", "all => all.filter(one => one.disabled).map(one => one.value)"
    ) == ["lrpB025", "lrpB050", "lrpB075", "lrpB100", "gb"]


def test_the_colour_bar_has_two_sides_and_a_unit(page):
    assert page.inner_text(".viewer .low").startswith("≤ −")
    assert page.inner_text(".viewer .high").startswith("≥ ")
    assert re.fullmatch("relevance per voxel", page.inner_text(".viewer .unit"))


def test_the_strongest_voxel_is_found(page, made):
    values = np.abs(nib.load(made.lopsided).get_fdata())
    page.click(".viewer [name=strongest]")
    value, _, voxel = readout(page)
    assert abs(value) == pytest.approx(values.max(), rel=1e-6)
    assert values[voxel] >= values.max() * (126.5 / 127) ** 2


def test_numbers_are_written_as_on_the_rest_of_the_page(page):
    values = [0.0, 3.0, 12345.0, 1234.56, 0.91234, -12.3456, 1.234e-5, -9.87e-12, 0.001, 0.5, 99.96, 1e-3]
    assert page.evaluate("(values) => values.map((value) => heatlas.number(value))", values) == list(
        map(number, values)
    )


def wheel(page, plane, turns, ctrl=False):
    page.eval_on_selector(
        f".viewer canvas[data-plane={plane}]",
        "(one, [turns, ctrlKey]) => one.dispatchEvent("
        "new WheelEvent('wheel', { deltaY: 100 * turns, ctrlKey, bubbles: true, cancelable: true }))",
        [turns, ctrl],
    )


def test_the_wheel_scrolls_the_page_until_a_slice_was_clicked(page):
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    box = page.locator(".viewer canvas[data-plane=axial]").bounding_box()
    start = readout(page)[2]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    pointed = readout(page)[2]
    page.mouse.wheel(0, 120)
    page.wait_for_function("() => scrollY > 0")
    page.evaluate("() => scrollTo(0, 0)")
    page.wait_for_function("() => scrollY === 0")
    page.mouse.move(1, 1)
    assert readout(page)[2] == start
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, 120)
    page.wait_for_function(
        "(z) => document.querySelector('.viewer .readout').dataset.voxel.endsWith(` ${z}`)", arg=pointed[2] - 1
    )
    assert page.evaluate("scrollY") == 0


def test_the_wheel_moves_by_one_slice(page):
    page.evaluate("() => document.activeElement.blur()")
    _, _, (x, y, z) = readout(page)
    wheel(page, "axial", -1)
    assert readout(page)[2] == (x, y, z)  # the page scrolls
    page.focus(".viewer canvas[data-plane=axial]")
    wheel(page, "axial", -1)
    assert readout(page)[2] == (x, y, z + 1)
    wheel(page, "coronal", 1)
    assert readout(page)[2] == (x, y - 1, z + 1)
    wheel(page, "sagittal", -1)
    assert readout(page)[2] == (x + 1, y - 1, z + 1)


def test_zoom_keeps_the_place_of_the_crosshair_and_points_where_it_shows(page):
    before, _, start = readout(page)
    for _ in range(3):
        page.click(".viewer [name=closer]")
    assert float(page.get_attribute(".viewer", "data-zoom")) == pytest.approx(1.5**3)
    assert readout(page)[::2] == (before, start)
    canvas = page.locator(".viewer canvas[data-plane=axial]")
    box = canvas.bounding_box()
    shape = template_grid(RESOLUTION).shape
    canvas.click(position={"x": 1, "y": 1})  # the upper left corner of what is shown, no longer of the slice
    for axis, end in ((0, 0.0), (1, 1.0)):
        middle = (start[axis] + 0.5) / shape[axis]
        low = min(max(middle - 0.5 / 1.5**3, 0), 1 - 1 / 1.5**3)
        assert abs(readout(page)[2][axis] - shape[axis] * (low + end / 1.5**3)) <= 1.5
    assert box["width"] == canvas.bounding_box()["width"]
    go_to(page, template_grid(RESOLUTION).to_world(start))
    wheel(page, "axial", 20, ctrl=True)  # a pinch on a touchpad
    assert float(page.get_attribute(".viewer", "data-zoom")) == 1
    assert readout(page)[2] == start


def test_two_fingers_zoom(page):
    def touch(kind, finger, x, y):
        page.eval_on_selector(
            ".viewer canvas[data-plane=coronal]",
            """(one, [kind, pointerId, x, y]) => {
              one.setPointerCapture = () => {};
              const box = one.getBoundingClientRect();
              one.dispatchEvent(new PointerEvent(kind, { pointerId, clientX: box.left + x, clientY: box.top + y,
                pointerType: "touch", buttons: 1, bubbles: true }));
            }""",
            [kind, finger, x, y],
        )

    touch("pointerdown", 11, 80, 60)
    _, _, start = readout(page)
    touch("pointerdown", 12, 120, 60)
    touch("pointermove", 12, 160, 60)
    assert float(page.get_attribute(".viewer", "data-zoom")) == pytest.approx(2)
    assert readout(page)[2] == start
    for finger in (11, 12):
        touch("pointerup", finger, 160, 60)
    for _ in range(2):
        page.click(".viewer [name=farther]")
    assert float(page.get_attribute(".viewer", "data-zoom")) == 1


def beside(page, method):
    place = page.eval_on_selector(
        ".viewer script",
        "(one, m) => JSON.parse(one.textContent).maps.findIndex((map) => map.group !== 'AD' && map.method === m)",
        method,
    )
    page.select_option(".viewer [name=second]", str(place))
    page.wait_for_function("(at) => document.querySelector('.viewer').dataset.beside === at", arg=str(place))


def test_two_maps_share_the_crosshair_and_show_the_values_of_their_files(page, made):
    beside(page, "gb")
    grid = template_grid(RESOLUTION)
    first, second = (
        nib.load(made.layout.group_map(*key)).get_fdata() for key in (("AD", "lrpB000"), (HOSTILE_CLASS, "gb"))
    )
    for place in np.random.default_rng(3).choice(np.argwhere(second != 0), 6, replace=False):
        go_to(page, grid.to_world(place))
        value, error, voxel = readout(page)
        other = float(page.get_attribute(".viewer .readout", "data-second"))
        assert voxel == tuple(place)
        assert abs(value - first[tuple(place)]) <= error * (1 + 1e-9)
        assert abs(other - second[tuple(place)]) <= np.abs(second).max() * 127.25 / 127**2
    assert number(other) in page.inner_text(".viewer .also")
    assert HOSTILE_CLASS in page.inner_text(".viewer p.second")
    canvas = page.locator(".viewer canvas[data-second=axial]")
    box = canvas.bounding_box()
    canvas.click(position={"x": 0.4 * box["width"], "y": 0.4 * box["height"]})
    clicked = readout(page)[2]
    assert abs(clicked[0] - 0.4 * grid.shape[0]) <= 1
    same = page.locator(".viewer canvas[data-plane=axial]")
    box = same.bounding_box()
    same.click(position={"x": 0.4 * box["width"], "y": 0.4 * box["height"]})
    assert readout(page)[2] == clicked
    page.select_option(".viewer [name=second]", "")
    page.wait_for_function("() => document.querySelector('.viewer').dataset.beside === ''")
    assert not canvas.is_visible()
    assert page.get_attribute(".viewer .readout", "data-second") is None


def test_colours_follow_the_window_and_the_colour_map(page):
    picture = "one => one.toDataURL()"
    axial = ".viewer canvas[data-plane=axial]"
    seen = {page.eval_on_selector(axial, picture)}
    high = float(page.input_value(".viewer [name=high]"))
    page.fill(".viewer [name=high]", str(high / 4))
    page.press(".viewer [name=high]", "Enter")
    assert page.inner_text(".viewer .high") == f"≥ {number(high / 4)}"
    seen.add(page.eval_on_selector(axial, picture))
    page.select_option(".viewer [name=colours]", "viridis")
    seen.add(page.eval_on_selector(axial, picture))
    assert len(seen) == 3
    page.select_option(".viewer [name=colours]", "warm")
    page.fill(".viewer [name=high]", str(high))
    page.press(".viewer [name=high]", "Enter")
    assert page.eval_on_selector(axial, picture) in seen


def test_the_chosen_region_is_outlined(page):
    white = """(one) => {
      const { data } = one.getContext("2d").getImageData(0, 0, one.width, one.height);
      let n = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at] + data[at + 1] + data[at + 2] > 3 * 250) n++;
      return n;
    }"""
    axial = ".viewer canvas[data-plane=axial]"
    page.select_option(".viewer [name=region]", label="Left hippocampus")
    outlined = page.eval_on_selector(axial, white)
    page.uncheck(".viewer [name=outline]")
    assert outlined > 50 + page.eval_on_selector(axial, white)
    page.check(".viewer [name=outline]")
    page.select_option(".viewer [name=region]", "")
    assert page.eval_on_selector(axial, white) < outlined


def test_the_picture_that_is_saved_has_the_slices_side_by_side(page):
    sizes = page.eval_on_selector_all(".viewer canvas[data-plane]", "all => all.map(one => [one.width, one.height])")
    with page.expect_download() as waiting:
        page.click(".viewer [name=save]")
    assert waiting.value.suggested_filename.endswith(".png")
    with Image.open(waiting.value.path()) as picture:
        assert picture.width == sum(width for width, _ in sizes)
        tall = max(height for _, height in sizes)
        slices, below = (picture.convert("L").crop((0, top, picture.width, end))
                         for top, end in ((0, tall), (picture.height - 40, picture.height)))  # fmt: skip
        assert picture.height > tall + 50  # a title above, colours and place below
        assert all(np.asarray(part).max() > 200 for part in (slices, below))  # something is written there


def test_slices_have_their_size_in_the_markup(made):
    """Nothing on the page moves when a script draws them."""
    html = made.page.read_text(encoding="utf-8")
    x, y, z = template_grid(RESOLUTION).shape
    for plane, (wide, tall) in {"sagittal": (y, z), "coronal": (x, z), "axial": (x, y)}.items():
        found = re.search(rf'<canvas data-plane="{plane}" width="(\d+)" height="(\d+)"', html)
        assert int(found[1]) * tall == int(found[2]) * wide > 0


def test_slices_and_the_first_controls_fit_the_first_screen(made, visit_once):
    page = visit_once(made.page, 1400)
    page.wait_for_selector(".viewer[data-ready]")
    for part in ("[name=group]", "[name=method]", "[name=region]", "[name=threshold]", "[name=smooth]", ".keys"):
        assert page.is_visible(f".viewer {part}"), part
    assert not page.is_visible(".viewer [name=opacity]")
    parts = page.locator(".viewer canvas[data-plane], .viewer .controls:visible, .viewer .keys")
    assert parts.evaluate_all("all => Math.max(...all.map(one => one.getBoundingClientRect().bottom))") <= 900
    assert "Page Up" in page.inner_text(".viewer .keys")
    assert page.is_checked(".viewer [name=smooth]")
    assert page.inner_text(".viewer output.threshold").startswith("top 10 % of voxels, from ")


def test_the_browser_smooths_as_scipy_does(page):
    rng = np.random.default_rng(7)
    shape, sides = (9, 12, 7), (2.0, 3.0, 2.5)
    values, inside = rng.normal(size=shape).astype(np.float32), rng.random(shape) < 0.7
    found = page.evaluate(
        "([values, mask, ...others]) => "
        "[...heatlas.smoothed(Float32Array.from(values), Uint8Array.from(mask), ...others)]",
        [values.ravel(order="F").tolist(), inside.astype(int).ravel(order="F").tolist(), shape, sides, SMOOTHED_MM],
    )
    expected = smoothed_within(values, inside, sides)
    np.testing.assert_allclose(np.reshape(found, shape, order="F"), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("smooth", [False, True])
def test_the_top_tenth_of_the_brain_is_drawn_and_numbers_are_those_of_the_file(page, made, smooth):
    values, space = nib.load(made.lopsided).get_fdata(), viewing_space(RESOLUTION, "neuromorphometrics-cat12")
    inside = brain_codes(space.template.t1w) > 0
    page.set_checked(".viewer [name=smooth]", smooth)
    slide(page, "threshold", 90)
    drawn = smoothed_within(values, inside, space.grid.voxel_sizes_mm) if smooth else values
    least, top = np.percentile(np.abs(drawn[inside]), 90), np.abs(drawn).max()
    assert float(page.get_attribute(".viewer", "data-threshold")) == pytest.approx(
        least, abs=2 * np.sqrt(least * top) / LEVELS
    )  # a level or two
    place = np.argwhere(inside & (values != 0))[1000]
    go_to(page, template_grid(RESOLUTION).to_world(place))
    value, error, _ = readout(page)
    assert abs(value - values[tuple(place)]) <= error * (1 + 1e-9)
    said = page.inner_text(".viewer .value").partition(", smoothed ")
    assert bool(said[1]) is smooth
    assert number(value) in said[0]
    if smooth:
        shown = float(said[2].replace("−", "-"))
        assert shown == pytest.approx(drawn[tuple(place)], abs=2 * np.sqrt(abs(shown) * top) / LEVELS + 1e-3 * top)


def test_the_readout_stays_in_sight_on_a_phone(made, visit_once):
    page = visit_once(made.page)
    page.set_viewport_size({"width": 375, "height": 667})
    page.wait_for_selector(".viewer[data-ready]")
    page.locator(".viewer canvas[data-plane=sagittal]").scroll_into_view_if_needed()
    box = page.locator(".viewer .readout").bounding_box()
    assert 0 <= box["y"] <= 667 - box["height"] + 1


# The region explorer in a real browser: what it shows and saves equals the table on disk.


@pytest.fixture(scope="module")
def table(made):
    return read_table(made.layout.figures / "region_explorer.tsv", text_columns=["scan_group", "name", "hemisphere"])


@pytest.fixture(scope="module")
def explorer_opened(made, visit_once):
    page = visit_once(made.page)
    page.wait_for_selector(".explorer[data-ready]")
    return page


@pytest.fixture
def explorer_page(explorer_opened):
    """The page with every control as it is when opened."""
    for name, value in {
        "method": "lrp", "beta": "0", "group": "AD", "hemisphere": "bilateral", "lobe": "", "p": "",
        "metric": "mean_sum",
    }.items():  # fmt: skip
        if explorer_opened.is_enabled(f".explorer [name={name}]"):
            explorer_opened.select_option(f".explorer [name={name}]", value)
    explorer_opened.select_option(".explorer [name=metric]", "mean_share")
    explorer_opened.fill(".explorer [name=words]", "")
    return explorer_opened


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


def test_it_opens_with_the_bilateral_groups_of_the_positive_class_by_share(explorer_page, table):
    expected = wanted(table).sort_values("mean_share", ascending=False, kind="stable")
    assert names(explorer_page) == expected["name"].tolist()
    assert explorer_page.inner_text(".explorer .shown") == f"{len(expected)} of {len(table)} rows"


def test_numbers_on_the_page_equal_the_table_on_disk(explorer_page, table, made):
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
    for row in shown(explorer_page):
        for key, (text, kept) in zip(order, row[1:], strict=True):
            if key is not None:
                assert kept == exact.loc[row[0][0], key]
                value = values.loc[row[0][0], key]
                assert text == (p_cell(value) if key.startswith("p") else number(value))


@pytest.mark.parametrize(
    ("title", "key"), [("Sum", "mean_sum"), ("Corrected p (family-wise)", "p_fwe"), ("Region", "name")]
)
def test_headings_sort_both_ways_and_say_so(explorer_page, table, title, key):
    heading = explorer_page.locator(".explorer th", has_text=title).first
    heading.locator("button").click()
    first = heading.get_attribute("aria-sort")
    assert first == ("descending" if key == "mean_sum" else "ascending")
    for direction in (first, "ascending" if first == "descending" else "descending"):
        assert heading.get_attribute("aria-sort") == direction
        values = wanted(table).set_index("name").assign(name=lambda frame: frame.index).loc[names(explorer_page), key]
        known = values.dropna().tolist()
        assert values.isna().tolist() == sorted(values.isna())  # rows without a value are last either way
        if key == "name":
            folded = [value.lower() for value in known]
            assert folded == sorted(folded, reverse=direction == "descending")
        else:
            assert known == sorted(known, reverse=direction == "descending")
        heading.locator("button").click()


def test_choosing_a_metric_sorts_by_it_and_colours_the_brain(explorer_page, table):
    canvas = ".explorer canvas[data-plane=coronal]"
    before = explorer_page.eval_on_selector(canvas, "one => one.toDataURL()")
    explorer_page.select_option(".explorer [name=metric]", "mean_gain")
    assert (
        names(explorer_page) == wanted(table).sort_values("mean_gain", ascending=False, kind="stable")["name"].tolist()
    )
    assert explorer_page.eval_on_selector(canvas, "one => one.toDataURL()") != before
    assert explorer_page.inner_text(".explorer .unit").startswith("Mean gain")


def test_filters_give_the_rows_of_the_table(explorer_page, table):
    explorer_page.select_option(".explorer [name=lobe]", "temporal")
    assert set(names(explorer_page)) == set(wanted(table).query("lobe == 'temporal'")["name"])
    explorer_page.select_option(".explorer [name=lobe]", "")
    explorer_page.select_option(".explorer [name=p]", "0.05")
    assert set(names(explorer_page)) == set(wanted(table).query("p_fwe <= 0.05")["name"])
    assert len(names(explorer_page)) < len(wanted(table))  # in so small a run there may be none
    explorer_page.select_option(".explorer [name=p]", "")
    explorer_page.fill(".explorer [name=words]", "HIPPO")
    assert set(names(explorer_page)) == {name for name in wanted(table)["name"] if "hippo" in name.lower()}
    explorer_page.fill(".explorer [name=words]", "no such region")
    assert names(explorer_page) == []
    assert explorer_page.inner_text(".explorer .shown").startswith("0 of ")


def test_sides_apart_are_the_regions_of_the_atlas(explorer_page, table):
    explorer_page.select_option(".explorer [name=hemisphere]", "left")
    assert names(explorer_page) == ["Left hippocampus"]
    explorer_page.select_option(".explorer [name=hemisphere]", "single")
    expected = wanted(table, hemisphere=("left", "right", "both"))
    assert sorted(names(explorer_page)) == sorted(expected["name"])
    assert "unlabelled rest" in names(explorer_page)
    assert explorer_page.is_disabled(".explorer [name=p]")
    assert names(explorer_page)[-1] == "Third ventricle"  # without a voxel there is no share: last


def test_method_beta_and_group_choose_the_map(explorer_page, table):
    explorer_page.select_option(".explorer [name=beta]", "0.5")
    explorer_page.select_option(".explorer [name=group]", HOSTILE_CLASS)
    first = wanted(table, HOSTILE_CLASS, "lrpB050").sort_values("mean_share", ascending=False, kind="stable")
    assert names(explorer_page) == first["name"].tolist()
    explorer_page.select_option(".explorer [name=method]", "gb")
    assert explorer_page.is_disabled(".explorer [name=beta]")
    second = wanted(table, HOSTILE_CLASS, "gb").sort_values("mean_share", ascending=False, kind="stable")
    assert names(explorer_page) == second["name"].tolist()
    explorer_page.select_option(".explorer [name=method]", "lrp")


def saved(page, button):
    with page.expect_download() as download:
        page.click(f".explorer [name={button}]")
    return download.value.suggested_filename, download.value.path().read_bytes()


def test_the_saved_table_is_the_file_on_disk_byte_for_byte(explorer_page, made):
    name, content = saved(explorer_page, "whole")
    assert name == "region_explorer.tsv"
    assert content == (made.layout.figures / "region_explorer.tsv").read_bytes()


def test_saved_rows_are_the_lines_of_the_file_in_the_order_shown(explorer_page, made, tmp_path):
    explorer_page.select_option(".explorer [name=group]", HOSTILE_CLASS)
    explorer_page.fill(".explorer [name=words]", "gyrus")
    _, content = saved(explorer_page, "selection")
    lines = (made.layout.figures / "region_explorer.tsv").read_text(encoding="utf-8").splitlines()
    found = content.decode().splitlines()
    assert found[0] == lines[0]
    assert set(found[1:]) < set(lines[1:])
    (tmp_path / "rows.tsv").write_bytes(content)
    rows = read_table(tmp_path / "rows.tsv", text_columns=["scan_group"])
    assert rows["name"].tolist() == names(explorer_page)
    assert set(rows["scan_group"]) == {HOSTILE_CLASS}


def test_every_region_leads_to_its_page(explorer_page):
    links = explorer_page.eval_on_selector_all(
        ".explorer tbody tr",
        "rows => rows.map(row => [row.cells[0].textContent, row.querySelector('a')?.getAttribute('href')])",
    )
    assert dict(links)["Hippocampus"] == "pages/region-hippocampus.html"
    assert all(href for _, href in links)


def test_pointing_at_the_brain_names_the_region_and_a_click_marks_its_row(explorer_page):
    explorer_page.select_option(".explorer [name=hemisphere]", "single")
    canvas = explorer_page.locator(".explorer canvas[data-plane=sagittal][data-mm='-26.0']")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    found = set()
    for across in np.linspace(0.45, 0.6, 8):
        for down in np.linspace(0.5, 0.7, 8):
            explorer_page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
            text = explorer_page.inner_text(".explorer .readout")
            found.add(text)
            if text.startswith("Left hippocampus"):
                explorer_page.mouse.down()
                explorer_page.mouse.up()
                assert explorer_page.inner_text(".explorer tr.lit td:first-child") == "Left hippocampus"
                assert text.endswith("(Share of the map)")
                return
    pytest.fail(f"never met the left hippocampus: {found}")


def test_keys_alone_sort_and_filter(explorer_page):
    explorer_page.focus(".explorer [name=words]")
    explorer_page.keyboard.type("hippocampus")
    assert names(explorer_page) == ["Hippocampus"]
    explorer_page.fill(".explorer [name=words]", "")
    explorer_page.focus(".explorer th[data-key=name] button")
    explorer_page.keyboard.press("Enter")
    assert explorer_page.get_attribute(".explorer th[data-key=name]", "aria-sort") == "ascending"
    assert explorer_page.evaluate("document.activeElement.closest('th').dataset.key") == "name"


def test_without_scripts_it_is_a_plain_table(made, visit, table):
    page = visit(made.page, java_script_enabled=False)
    cells = page.locator(".explorer tbody tr td:first-child").all_inner_texts()
    assert cells == wanted(table).sort_values("mean_share", ascending=False, kind="stable")["name"].tolist()
    assert not page.locator(".explorer .controls").is_visible()
    assert not page.locator(".viewer .controls:visible, .viewer .keys:visible, .viewer .more:visible").count()


def test_what_grows_with_the_prediction_comes_last_and_says_so(explorer_page):
    shown = explorer_page.eval_on_selector_all(
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
