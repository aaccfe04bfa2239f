"""The viewer in a real browser: what it shows equals the images on disk, left is left, and keys reach everything."""

from __future__ import annotations

import re

import nibabel as nib
import numpy as np
import pytest
from component_pages import HOSTILE_CLASS
from PIL import Image
from run_factory import RESOLUTION

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.reports.words.numbers import number

pytestmark = pytest.mark.ci

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
    return page


@pytest.fixture
def page(opened):
    """The page as it is when opened."""
    switch(opened, "AD", "lrpB000")
    opened.set_checked(".viewer [name=mirrored]", False)
    slide(opened, "threshold", 0)
    slide(opened, "opacity", 90)
    go_to(opened, (-26, -20, -16))
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
    slide(page, "threshold", 60)
    some = coloured_pixels(page)
    assert everything > some > 0
    scale = page.inner_text(".viewer .high").removeprefix("≥ ")
    shown = float(page.inner_text(".viewer output.threshold"))
    assert shown == pytest.approx(0.36 * float(scale), rel=5e-3)  # (60 %)² of where colours saturate, three digits
    slide(page, "opacity", 0)
    assert coloured_pixels(page) < everything / 50
    assert page.inner_text(".viewer output.opacity") == "0 %"


def test_sliders_work_by_keys_alone(page):
    page.focus(".viewer [name=threshold]")
    page.keyboard.press("ArrowRight")
    assert page.input_value(".viewer [name=threshold]") == "1"


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


def test_the_wheel_moves_by_one_slice(page):
    _, _, (x, y, z) = readout(page)
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


def test_the_readout_stays_in_sight_on_a_phone(made, visit_once):
    page = visit_once(made.page)
    page.set_viewport_size({"width": 375, "height": 667})
    page.wait_for_selector(".viewer[data-ready]")
    page.locator(".viewer canvas[data-plane=sagittal]").scroll_into_view_if_needed()
    box = page.locator(".viewer .readout").bounding_box()
    assert 0 <= box["y"] <= 667 - box["height"] + 1
