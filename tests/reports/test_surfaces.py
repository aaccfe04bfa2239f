"""Mean maps on the surface and in the glass brain, and ``heatlas figures``."""

from __future__ import annotations

import io
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import nilearn
import numpy as np
import pytest
import scipy.ndimage
from PIL import Image
from run_factory import RunPlan, make_run

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.reports.content.relevance.maps import (
    class_difference,
    group_map,
    regions_outlined,
    spaces,
    surface_pictures,
)
from heatlas.reports.figures.gallery import FORMATS, Gallery, house_style, new_figure, rendered
from heatlas.reports.figures.maps import VIEWS, GroupMap, _fsaverage, draw_group_maps, surface_values
from heatlas.reports.figures.slices import (
    PERSON_PERCENTILES,
    Backdrop,
    BrainImage,
    ColourScale,
    PanelGrid,
    coloured,
    outlined_bodies,
    smoothed,
    view_of,
    with_outlines,
)
from heatlas.reports.frame.material import Material
from heatlas.reports.read.run_record import read_run
from heatlas.workflows import finished_runs
from heatlas.workflows.command_line import main
from heatlas.workflows.finished_runs import draw_maps, write_figures

GRID = template_grid(4.0)
PLACES = {"right": (38.0, -22.0, 58.0), "left": (-56.0, -20.0, 2.0)}
"""Motor cortex of the hand, and the superior temporal gyrus; both on the surface."""
SCALE = ColourScale(0.01, 0.8, False)


def blob(place: tuple[float, float, float], scale: ColourScale = SCALE) -> GroupMap:
    """A map that is 1 at a place in mm and nearly 0 from 20 mm on."""
    index = np.stack(np.meshgrid(*[np.arange(side) for side in GRID.shape], indexing="ij"), -1)
    away = ((index @ GRID.affine[:3, :3].T + GRID.affine[:3, 3] - place) ** 2).sum(-1)
    values = np.exp(-away / (2 * 6.0**2)) * (away < 20**2)
    return GroupMap("A map, mean of AD", BrainImage(values.astype(np.float32), GRID.affine), scale, "relevance")


def drawn(shown: GroupMap, view: str):
    with house_style():
        return draw_group_maps([(shown, (view,))], Backdrop.load(RegistrationConfig(resolution_mm=4.0)))


def written(shown: GroupMap, view: str, form: str = "png", density: int = 144) -> bytes:
    figure = drawn(shown, view)
    with house_style():
        return rendered(figure, form, density)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.parametrize("side", PLACES)
def test_a_blob_is_brightest_at_the_vertices_nearest_to_it_and_absent_on_the_other_side(side, no_network):
    other = {"left": "right", "right": "left"}[side]
    values = surface_values(blob(PLACES[side]), side)
    points = nib.load(_fsaverage()[f"pial_{side}"]).darrays[0].data
    away = np.linalg.norm(points - np.array(PLACES[side]), axis=1)
    assert away[np.argmax(values)] < 8
    assert values[np.argmin(away)] > 0.4
    assert values[away > 30].max() == 0
    assert surface_values(blob(PLACES[side]), other).max() == 0


@pytest.mark.parametrize("side", PLACES)
def test_pixels_of_a_blob_are_on_the_panels_of_its_hemisphere(side):
    """From left to right: L lateral, L medial, R medial, R lateral."""
    picture = Image.open(io.BytesIO(written(blob(PLACES[side]), "surface"))).convert("RGB")
    pixels = np.asarray(picture, dtype=int)[: int(0.75 * picture.height)]
    warm = (pixels[..., 0] > pixels[..., 2] + 60).sum(axis=0)
    left, right = np.array_split(warm, 2)
    assert (left.sum() > 50, right.sum() > 50) == (side == "left", side == "right")
    assert min(left.sum(), right.sum()) == 0


@pytest.mark.parametrize("side", PLACES)
def test_the_glass_brain_shows_the_strongest_value_where_it_is(side):
    shown, (x, y, z) = blob(PLACES[side]), PLACES[side]
    found = []
    for image in (image for axes in drawn(shown, "glass").axes for image in axes.images):
        values = np.ma.filled(np.ma.asarray(image.get_array()), 0)
        if values.ndim != 2:
            continue
        assert (image.norm.vmin, image.norm.vmax) == (-SCALE.high, SCALE.high)
        low, high, bottom, top = image.get_extent()
        row, column = np.unravel_index(np.argmax(values), values.shape)
        rows = row if image.origin == "lower" else values.shape[0] - 1 - row
        across, up = (np.array([column, rows]) + 0.5) / values.shape[::-1]
        found.append((values.max(), low + across * (high - low), bottom + up * (top - bottom)))
    places = [(horizontal, vertical) for strongest, horizontal, vertical in found if strongest > 0.5]
    for axis, expected in {"coronal": (x, z), "axial": (x, y)}.items():
        assert any(np.allclose(place, expected, atol=6) for place in places), axis
    assert max(strongest for strongest, _, _ in found) == pytest.approx(shown.image.values.max())
    assert len(places) == 3  # one hemisphere from its side, and both from behind and above


@pytest.mark.parametrize("signed", [False, True])
def test_values_have_the_colours_of_the_slices(signed):
    scale = ColourScale(0.2, 0.8, signed)
    colours = blob(PLACES["left"], scale).colours
    values = np.linspace(0.21, 0.8, 40) * (np.array([[-1], [1]]) if signed else 1)
    share = (values - colours["vmin"]) / (colours["vmax"] - colours["vmin"])
    assert np.abs(colours["cmap"](share)[..., :3] - coloured(values, scale)[..., :3]).max() < 0.03
    assert colours["threshold"] == scale.low


def test_a_tenth_of_the_controls_is_drawn_on_the_scale_of_the_patients():
    strong = np.arange(1.0, 1001.0).reshape(10, 10, 10)
    patients, controls = (view_of(BrainImage(values, np.eye(4)), (), None) for values in (strong, strong / 100))
    alone = patients.scale(PERSON_PERCENTILES, [controls])
    both = patients.scale(PERSON_PERCENTILES, [controls], [patients, controls])
    assert (strong > alone.low).mean() == pytest.approx(0.1)
    assert (strong / 100 > both.low).mean() == pytest.approx(0.1)
    assert both.high == alone.high
    assert patients.scale(PERSON_PERCENTILES, [], [patients]) == alone


def test_negative_relevance_that_the_scale_leaves_out_is_not_drawn():
    turned = blob(PLACES["left"])
    turned = GroupMap("", BrainImage(-turned.image.values, GRID.affine), SCALE, "")
    assert surface_values(turned, "left").max() == surface_values(turned, "left").min() == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scale", [ColourScale(0.0, 0.0, False), ColourScale(0.0, 1.0, False)])
def test_an_empty_map_is_a_brain_without_colours(view, scale, no_network):
    shown = GroupMap("", BrainImage(np.zeros(GRID.shape, np.float32), GRID.affine), scale, "relevance")
    picture = Image.open(io.BytesIO(written(shown, view))).convert("RGB")
    pixels = np.asarray(picture, dtype=int)[: int(0.8 * picture.height)]
    assert pixels.max() > 100
    assert (pixels.max(axis=-1) - pixels.min(axis=-1)).max() < 16


def test_the_surface_is_a_file_of_nilearn(no_network):
    assert {Path(path).is_relative_to(Path(nilearn.__file__).parent) for path in _fsaverage().values()
            if isinstance(path, str) and path.endswith(".gz")} == {True}  # fmt: skip


@pytest.mark.parametrize("title", ["AD $", "$x$ and \\frac{", "<b>&"])
def test_a_title_is_text_and_nothing_else(title):
    shown = blob(PLACES["left"])
    (found, *_) = (text.get_text() for text in drawn(GroupMap(title, shown.image, SCALE, "relevance"), "slices").texts)
    assert found == title
    written(GroupMap(title, shown.image, SCALE, "relevance"), "slices", "svg")


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", FORMATS)
def test_two_drawings_are_the_same_bytes_without_a_date(form):
    first, second = (written(blob(PLACES["left"]), "surface", form, 300) for _ in range(2))
    assert first == second
    assert b"Date" not in first
    assert len(first) < 1_500_000


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    plan = RunPlan(betas=(0.0,), people=4, guided=False, until="regions")
    return make_run(tmp_path_factory.mktemp("surfaces") / "run", plan)


def test_the_difference_is_the_positive_class_minus_the_negative_smoothed_within_the_brain(run):
    material = Material.of(run)
    positive, negative = (nib.load(run.group_map(label, "lrpB000")).get_fdata() for label in ("AD", "CN"))
    difference, mean = class_difference(material, "lrpB000"), group_map(material, "AD", "lrpB000")
    brain, affine = material.brain, difference.image.affine
    for shown, values in ((difference, positive - negative), (mean, positive)):
        expected = np.where(brain, smoothed(BrainImage(values.astype(np.float32), affine)).values, 0)
        np.testing.assert_allclose(shown.image.values[brain], expected[brain], atol=1e-4 * np.abs(expected).max())
        assert not shown.image.values[~brain].any()
    assert "mean of AD minus mean of CN" in difference.title
    drawn = np.abs(difference.image.values[brain]) > difference.scale.low
    assert drawn.mean() == pytest.approx(0.1, abs=0.01)
    assert difference.scale.signed


def test_the_page_says_once_that_the_spaces_differ_and_the_text_for_the_blind_what_is_shown(run):
    (picture,) = surface_pictures(Material.of(run))
    assert "MNI305" not in picture.caption
    said = spaces(read_run(run))
    assert "MNI305" in said
    assert "MNI152NLin2009cAsym" in said
    assert "relevance per voxel" in picture.caption
    assert "LRP β=0, mean of AD" in picture.alt
    assert picture.dark


def test_at_most_three_regions_are_outlined_and_none_that_is_a_tenth_of_the_brain():
    groups = ["Cerebral white matter", "Hippocampus", "Amygdala", "Thalamus", "Putamen"]
    outlined, named = regions_outlined("neuromorphometrics-cat12", RegistrationConfig(resolution_mm=4.0), groups)
    assert named == ["Hippocampus", "Amygdala", "Thalamus"]
    assert sorted(set(outlined[1].values())) == [1, 2, 3]
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    assert not set(outlined[1]) & set(atlas.regions.groups["Cerebral white matter"])


def test_an_outline_runs_round_the_region_without_the_stairs_of_its_voxels():
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    labels = BrainImage(atlas.labels, np.asarray(atlas.grid.affine))
    chosen = dict.fromkeys(atlas.regions.groups["Hippocampus"], 1)
    plan = PanelGrid.of(("sagittal", -26.0), 330)
    body = outlined_bodies(plan, labels, chosen) > 0
    stairs = np.isin(plan.sample(labels, order=0), list(chosen))
    assert (body & stairs).sum() > 0.8 * stairs.sum()
    assert body.sum() == pytest.approx(stairs.sum(), rel=0.15)
    night = np.zeros((*body.shape, 3), np.uint8)
    line = with_outlines(night, body.astype(np.int16))[..., 0]
    edge = scipy.ndimage.binary_dilation(body, iterations=3) & ~scipy.ndimage.binary_erosion(body, iterations=3)
    assert line.max() == 255
    assert len(np.unique(line)) > 20  # softened
    assert not line[~edge].any()


@pytest.mark.ci
def test_every_map_and_every_figure_is_written_in_every_format_and_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(finished_runs, "draw_group_maps", lambda *_: new_figure(1, 1))
    with ThreadPoolExecutor(1) as executor:
        assert write_figures(run, Gallery(tmp_path, FORMATS), executor) == []
    found = {path.name for path in tmp_path.iterdir()}
    groups = [group for group in ("AD", "CN", "TP", "TN", "FP", "FN") if run.group_map(group, "lrpB000").is_file()]
    for group in (*groups, "AD-minus-CN"):
        assert {f"map-lrpB000_group-{group}_view-{view}.{form}" for view in VIEWS for form in FORMATS} <= found
    stems = {name.rsplit(".", 1)[0] for name in found}
    assert {"confusion", "bohle2019-01_mean-maps_by-class", "surface_lrpB000"} <= stems
    assert found == {f"{stem}.{form}" for stem in stems for form in FORMATS}
    with ThreadPoolExecutor(1) as executor:
        assert write_figures(run, Gallery(tmp_path / "one", ("png",)), executor, ["lrpB000"]) == []
    wanted = {name for name in found if name.startswith("map-lrpB000_") and name.endswith(".png")}
    assert {path.name for path in (tmp_path / "one").iterdir()} == wanted
    shutil.rmtree(tmp_path / "one")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix])


def test_a_lost_map_is_named_and_the_others_are_drawn(tmp_path, monkeypatch):
    layout = make_run(tmp_path / "run", RunPlan(betas=(0.0,), people=2, guided=False, mistakes=False, until="regions"))
    layout.group_map("CN", "lrpB000").unlink()
    monkeypatch.setattr(finished_runs, "draw_group_maps", lambda *_: new_figure(1, 1))
    faults = draw_maps(layout, Gallery(tmp_path / "out", ("png",)), "lrpB000")
    assert [fault for fault in faults if layout.group_map("CN", "lrpB000").name in fault]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "map-lrpB000_group-AD_view-glass.png" in names
    assert not [name for name in names if "group-CN" in name or "minus" in name]


@pytest.mark.ci
def test_the_command_writes_where_it_is_told_and_leaves_the_report_alone(tmp_path, capsys):
    layout = make_run(tmp_path / "run", RunPlan(until="registration", people=3))
    before = {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}
    assert main(["figures", str(layout.root), "--to", str(tmp_path / "out"), "--format", "pdf", "--n-procs", "1"]) == 0
    assert "figures" in capsys.readouterr().out
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".pdf"}
    assert before == {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{out}/nowhere"], "nowhere: not a Heatlas run"),
        (["{out}/run", "--to", "{out}/input/figures"], "lies inside the input"),
        (["{out}/run", "--to", "{out}/run/config.toml"], "config.toml: cannot write figures there"),
        (["{out}/run", "--format", "gif"], "--format: gif: unknown"),
        (["{out}/run", "--format"], "--format"),
        (["{out}/run", "--map", "lrpB000"], "--map lrpB000: unknown"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(options, said, tmp_path, capsys):
    make_run(tmp_path / "run", RunPlan(until="cohort", people=2))
    arguments = ["figures", *(option.format(out=tmp_path) for option in options)]
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.svg"))


def test_the_material_of_a_figure_is_that_of_the_run(run):
    assert Material(read_run(run), Gallery(run.figures, ("pdf",))).gallery.density == 300
