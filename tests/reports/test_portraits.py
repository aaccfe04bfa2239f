"""Pictures of people: portraits, the mosaic, fingerprints, and the overview of registration."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from report_pages import page_with
from run_factory import EVIDENCE, RESOLUTION, WITH_EVIDENCE, RunPlan, make_run

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid, write_template_image
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.relevance import founding
from heatlas.reports.figures.gallery import NIGHT, shown_in
from heatlas.reports.figures.portraits import (
    BAR,
    BAR_HEIGHT,
    FAINT,
    GAP,
    HEAD,
    LINE,
    MAPS,
    PIXELS,
    REGIONS,
    Row,
    Tile,
    coronal_slice,
    draw_mosaic,
    draw_portrait,
    region_row,
)
from heatlas.reports.figures.slices import MAP_CUTS as CUTS
from heatlas.reports.figures.slices import PERSON_PERCENTILES, BrainImage, ColourScale, MapView, coloured, smoothed
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.overviews import (
    BAR_PIXELS,
    MASK_COLOUR,
    MAX_BYTES,
    WHITE_COLOUR,
    _panel,
    caption_lines,
    draw_overview,
    draw_overviews,
)
from heatlas.reports.frame.pages import participant_file
from heatlas.reports.page.build import build_report
from heatlas.reports.people import regions as people_regions
from heatlas.reports.people.regions import evidence_sentences, regions_of_scans
from heatlas.reports.people.scan_pictures import draw_scans, portraits_of
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import read_run
from heatlas.reports.words.numbers import fixed, mid_sentence, signed

# Pictures of a person: smoothed, regions in colour, and the same regions in sentence, picture and table.

PERSON = "sub-AD000"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    """A run that leads with evidence, in which one person has a brain to be drawn on."""
    layout = make_run(tmp_path_factory.mktemp("portraits") / "run", WITH_EVIDENCE)
    brain = load_template(RESOLUTION)
    for row in read_table(layout.group / "predictions.tsv").query("participant_id == @PERSON").itertuples():
        files = layout.scan(row.participant_id, row.session_id, RESOLUTION)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(np.asarray(brain.t1w * brain.brain_mask), brain.grid.affine), files.t1w)
    with ThreadPoolExecutor(1) as executor:
        assert [outcome.status for outcome in draw_scans(read_run(layout), executor)] == ["done"]
    return layout


@pytest.fixture(scope="module")
def report(run) -> RunLayout:
    """The same run with its pages."""
    build_report(run)
    return run


def test_smoothing_halves_a_point_at_half_its_width_and_keeps_the_sum():
    values = np.zeros((41, 41, 41), np.float32)
    values[20, 20, 20] = 1000
    found = smoothed(BrainImage(values, np.eye(4)), 8.0).values
    assert found[24, 20, 20] / found[20, 20, 20] == pytest.approx(0.5, abs=1e-3)
    assert found[20, 20, 16] / found[20, 20, 20] == pytest.approx(0.5, abs=1e-3)
    assert found.sum() == pytest.approx(1000, rel=1e-3)


def test_every_voxel_of_a_region_has_the_colour_of_the_region():
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(RESOLUTION))
    values = pd.Series({"Hippocampus": 2.0, "Amygdala": -0.5, "Lateral ventricle": 0.01})
    row = region_row("title", values, "logits", atlas)
    assert row.scale == ColourScale(FAINT * 2.0, 2.0, signed=True)
    for group, value in values.items():
        inside = np.isin(atlas.labels, atlas.regions.groups[group])
        assert inside.any()
        assert set(row.view.values[inside].tolist()) == {np.float32(value)}
    others = ~np.isin(atlas.labels, [label for group in values.index for label in atlas.regions.groups[group]])
    assert not row.view.values[others].any()


def test_the_largest_parts_are_those_of_either_sign(run):
    found = regions_of_scans(read_run(run))["IAD0M000"]
    own = read_table(run.group / "relevance_bilateral.tsv").query("scan_id == 'IAD0M000' and map == @EVIDENCE")
    own = own.set_index("group")["sum"]
    ranked = own.iloc[own.abs().to_numpy().argsort()[::-1]]
    against = ranked[(ranked < 0) & (ranked.abs() >= 0.1 * ranked.iloc[0])].index[:1]
    assert (ranked.iloc[:3] > 0).all()
    assert list(found.largest) == [*ranked.index[:3], *against]
    assert list(found.named) == list(dict.fromkeys([*found.largest, *found.headline]))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([0.87, 0.49, 0.30, 0.21, -0.23], ["a", "b", "c", "e"]),
        ([0.87, 0.49, 0.30, 0.21, -0.08], ["a", "b", "c"]),  # not worth naming
        ([-0.87, 0.49, -0.30, 0.21, -0.23], ["a", "b", "c"]),
        ([-0.87, -0.49, -0.30, 0.21, 0.09], ["a", "b", "c", "d"]),
        ([0.0, 0.0, 0.0, 0.0, 0.0], ["a", "b", "c"]),
    ],
)
def test_one_part_of_the_other_sign_is_named(values, named):
    assert list(people_regions._by_evidence(pd.Series(values, list("abcde")), ()).largest) == named


def test_sentence_picture_and_table_name_the_same_regions(run):
    record = read_run(run)
    people, files = ParticipantRecords(record), run.scan(PERSON, "ses-M000", RESOLUTION)
    visits = people.by_participant[PERSON]
    named = regions_of_scans(record)["IAD0M000"].named
    (sentence,), (shown,) = evidence_sentences(record, visits), portraits_of(Material.of(run), people, visits)
    picture = files.portrait.read_bytes()
    assert shown_in(picture, REGIONS) == named
    assert shown_in(picture, MAPS) == record.main_maps
    assert (
        f"Outlined, those named above: {'; '.join(f'{n} {g}' for n, g in enumerate(named, 1))}."
        in shown["smoothed"].caption
    )
    assert "smoothed with a Gaussian of 8 mm" in shown["smoothed"].caption
    own = read_table(run.group / "relevance_bilateral.tsv").query("map == @EVIDENCE and scan_id == 'IAD0M000'")
    own = own.set_index("group")["sum"]
    controls = people.controls(EVIDENCE, PERSON)
    for row, group in zip(shown["regions"].rows, named, strict=True):
        value = own[group]
        assert (
            f"{mid_sentence(group)} {signed(value)}" in sentence
            or f"{mid_sentence(group)}, {signed(value)}" in sentence
        )
        others = controls.values[group]
        score = (value - others.mean()) / others.std(ddof=1)
        assert [cell.text for cell in row[1:]] == [
            group, signed(value), signed(others.mean()), fixed(score), f"{(others < value).sum()} of {len(others)}",
        ]  # fmt: skip
    assert controls.who in shown["regions"].caption


@pytest.mark.ci
def test_the_map_as_it_is_can_be_opened_without_a_script(report):
    page = (report.root / participant_file(PERSON)).read_text()
    folded = page.split('<details class="fold"><summary>The same maps, not smoothed</summary>')[1].split("</details>")[
        0
    ]
    file = report.scan(PERSON, "ses-M000", RESOLUTION).unsmoothed_portrait
    assert f'src="{file.relative_to(report.root).as_posix()}"' in folded
    assert file.read_bytes() != report.scan(PERSON, "ses-M000", RESOLUTION).portrait.read_bytes()


def test_a_picture_of_another_leading_map_says_so_and_has_no_table(run):
    record = read_run(run)
    verdicts = pd.DataFrame({"map": [EVIDENCE, "lrpB000"], "passed": [False, True]})
    after = replace(record, tables={**record.tables, "verdicts": verdicts})
    assert after.leading_map == "lrpB000"
    material = replace(Material.of(run), run=after)
    (shown,) = portraits_of(material, ParticipantRecords(after), ParticipantRecords(after).by_participant[PERSON])
    assert "This picture is older than the numbers of this page" in shown["smoothed"].caption
    assert shown["regions"] is None


@pytest.mark.ci
def test_menus_of_people_and_regions_mark_where_one_came_from(report):
    person = (report.root / participant_file(PERSON)).read_text()
    assert 'href="report.html#participants" aria-current="true"' in person
    assert person.count(' aria-current="') == 1
    region = (report.root / "pages" / "region-hippocampus.html").read_text()
    assert 'href="../report-regions.html" aria-current="true"' in region
    assert region.count(' aria-current="') == region.count('class="here"') == 1


@pytest.mark.ci
def test_figure_7_of_the_founding_study_has_the_colours_of_the_mean_map(run, monkeypatch):
    seen, draw = [], founding.draw_map_grid

    def noted(rows, titles, *rest):
        seen.append((titles, [(row.scale.low, row.scale.high) for row in rows]))
        return draw(rows, titles, *rest)

    monkeypatch.setattr(founding, "draw_map_grid", noted)
    material = Material.of(run)
    blocks = founding.build_patients(material)["blocks"]
    figures = {one.name: one.caption for block in blocks for one in block["figures"]}
    mean = material.group_view("AD", "lrpB000")
    expected = (mean.magnitudes[90.0], mean.magnitudes[99.5])
    assert dict((titles[0], scales) for titles, scales in seen)["LRP β=0"] == [expected, expected]
    (caption,) = (text for name, text in figures.items() if name.startswith("bohle2019-07a_patients_lrpB000"))
    assert (
        "Smoothed (8 mm) for display; colours run from the 90th to the 99.5th percentile of the mean map of AD"
        in caption
    )


# The mosaic of individual maps: each tile shows the slice of its own portrait.


def portrait(shade: int) -> bytes:
    """Slices of one shade of grey each; the second of the first map has this one."""
    sheet = Image.new("RGB", (len(CUTS) * (PIXELS + GAP), 2 * (HEAD + PIXELS + GAP)), (255, 255, 255))
    for column in range(len(CUTS)):
        corner = (column * (PIXELS + GAP), HEAD)
        sheet.paste((shade if column == 1 else 255,) * 3, (*corner, corner[0] + PIXELS, corner[1] + PIXELS))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def test_each_tile_shows_the_coronal_slice_of_its_own_person():
    assert CUTS[1][0] == "coronal"
    shades = [20 + 18 * place for place in range(8)]
    tiles = [Tile(("AD, 0.90", "sub-1"), coronal_slice(portrait(shade))) for shade in shades]
    assert {tile.slice.size for tile in tiles} == {(PIXELS, PIXELS)}
    assert [tile.slice.getextrema()[0] for tile in tiles] == [(shade, shade) for shade in shades]
    pixels = np.asarray(Image.open(io.BytesIO(draw_mosaic(tiles))).convert("RGB")).astype(int)
    head = 2 * LINE + 4
    assert pixels.shape[:2] == (2 * (PIXELS + head), 6 * PIXELS)
    for place, shade in enumerate(shades):
        x, y = place % 6 * PIXELS + PIXELS // 2, place // 6 * (PIXELS + head) + head + PIXELS // 2
        assert abs(pixels[y, x, 0] - shade) <= 6  # of a palette of 256 colours


@pytest.mark.parametrize("signed", [False, True])
def test_a_row_of_a_portrait_says_what_its_colours_mean(signed):
    scale = ColourScale(0.2, 0.8, signed)
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    grid = atlas.grid
    brain = np.ones(grid.shape, dtype=np.float32)
    view = MapView(
        {cut: np.zeros((2, 2)) for cut in CUTS},
        np.asarray(grid.affine),
        dict(zip(PERSON_PERCENTILES, (0.2, 0.8), strict=True)),
        0.5 * signed,
    )
    row = Row("Guided backpropagation", view, view.scale(PERSON_PERCENTILES), "unit")
    sheet = draw_portrait(BrainImage(brain, grid.affine), [row], (), atlas, ["gb"])
    assert shown_in(sheet, MAPS) == ("gb",)
    assert shown_in(sheet, REGIONS) == ()
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).astype(int)
    line = pixels[2 + 3 + BAR_HEIGHT // 2]
    expected = (255 * coloured(scale.ramp(BAR // 2), scale)[:, :3]).astype(int)
    found = [
        start
        for start in range(len(line) - len(expected))
        if np.abs(line[start : start + len(expected)] - expected).max() <= 12
    ]
    assert len(found) == 1
    assert scale.ramp(3).tolist() == pytest.approx([-0.8, -0.5, -0.2] * signed + [0.2, 0.5, 0.8])


# Someone under two names has one fingerprint, shown on the pages of both.


def test_both_names_of_a_person_find_their_fingerprint() -> None:
    first, second, other = "sub-ADNI002S0295", "sub-ADNI131S0295", "sub-ADNI002S0296"
    scans = pd.DataFrame({"participant_id": [first, second, other], "scan_id": ["I1", "I2", "I3"], "kept": True})
    # The first name has no relevance here, so the statistics know the person by the second.
    prints = pd.DataFrame(
        {"source": "gb", "participant_id": [second, other], "group": "Hippocampus", "w": [2.0, 3.0]}
    ).assign(z=1.0)
    tables = {"scans": scans, "w_fingerprints": prints}
    known = {"tables": tables, "has": tables.__contains__, "predictions": None, "applied": None}
    run = SimpleNamespace(**known, main_maps=["gb"], task=task_of(CohortConfig()))
    people = ParticipantRecords(run)  # type: ignore[arg-type]
    found = {name: people.scores("gb", name)["w"].get("Hippocampus") for name in (first, second, other)}
    assert found == {first: 2.0, second: 2.0, other: 3.0}
    assert people.scores("lrpB000", first).empty


# The overview figure of a registered scan, and what the report makes of scans in doubt.

TEMPLATE = load_template(4.0)


def drawn(values: np.ndarray, lines: list[str] | None = None) -> np.ndarray:
    content = draw_overview(BrainImage(values, TEMPLATE.grid.affine), TEMPLATE, lines or [])
    assert len(content) < MAX_BYTES
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=int)


def near(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.abs(picture - np.array(colour)).max(axis=-1) <= 12


def test_contours_are_those_of_the_template_and_stay_when_the_scan_moves() -> None:
    good, moved = drawn(TEMPLATE.t1w), drawn(np.roll(TEMPLATE.t1w, (3, 0, 0), axis=(0, 1, 2)))
    assert near(good, MASK_COLOUR).sum() > 2000
    assert near(good, WHITE_COLOUR).sum() > 2000
    outline = near(good, MASK_COLOUR)
    assert (near(moved, MASK_COLOUR) & outline).sum() > 0.9 * outline.sum()
    assert (np.abs(good - moved).max(axis=-1) > 60).mean() > 0.05


def test_left_is_left_and_up_is_up() -> None:
    """A dark block left, in front and above shows in the left half of coronal and axial slices, towards their top."""
    grid = TEMPLATE.grid
    index = np.stack(np.meshgrid(*[np.arange(n) for n in grid.shape], indexing="ij"), -1)
    world = index @ grid.affine[:3, :3].T + grid.affine[:3, 3]
    block = (world[..., 0] < -10) & (world[..., 2] > 25)
    picture, plain = drawn(np.where(block, 0, TEMPLATE.t1w)), drawn(TEMPLATE.t1w)
    rows, columns = np.nonzero(np.abs(picture - plain).max(axis=-1) > 60)
    height, width = picture.shape[:2]
    coronal = (rows > 0.33 * height) & (rows < 0.6 * height)
    middle = coronal & (columns > 0.36 * width) & (columns < 0.64 * width)  # the slice in the middle
    assert middle.sum() > 100
    assert (columns[middle] < width / 2).mean() > 0.95
    assert rows[middle].max() < 0.5 * height


@pytest.mark.parametrize(
    ("plane", "sides"), [(("sagittal", -26.0), False), (("coronal", -20.0), True), (("axial", 10.0), True)]
)
def test_a_slice_with_two_sides_names_them(plane, sides) -> None:
    scan = BrainImage(np.zeros(TEMPLATE.grid.shape, np.float32), TEMPLATE.grid.affine)
    light = _panel(scan, 1.0, TEMPLATE, plane).min(axis=-1) > 200
    left, right = light[:16, :16], light[:16, -16:]
    assert (left.any(), right.any()) == (sides, sides)
    if sides:  # L has its stroke on the left and its foot below; R is heavier above
        assert left[:, : 16 // 2].sum() > left[:, 16 // 2 :].sum()
        assert not np.array_equal(left, right)


def test_same_scan_same_bytes_and_noise_stays_small() -> None:
    noisy = np.where(TEMPLATE.brain_mask, np.random.default_rng(1).uniform(1, 100, TEMPLATE.grid.shape), 0)
    scan = BrainImage(noisy.astype(np.float32), TEMPLATE.grid.affine)
    first = draw_overview(scan, TEMPLATE, ["a"])
    assert first == draw_overview(scan, TEMPLATE, ["a"])
    assert len(first) < MAX_BYTES


def test_an_empty_scan_is_drawn_as_contours_on_the_background() -> None:
    assert near(drawn(np.zeros_like(TEMPLATE.t1w)), NIGHT).mean() > 0.8


def test_lines_are_written_below() -> None:
    bare, told = drawn(TEMPLATE.t1w), drawn(TEMPLATE.t1w, ["sub-01: correlation 0.7", "in doubt: folded"])
    assert told.shape[0] == bare.shape[0] + 2 * BAR_PIXELS
    assert told[bare.shape[0] :].max() > 200


def test_long_reasons_are_wrapped() -> None:
    row = {"correlation": 0.7123, "dice": 0.98, "scale": None, "brain_mm3": 1.4e6, "flags": "word " * 60}
    first, *rest = caption_lines("sub-01_ses-M000", row)
    assert first == "sub-01_ses-M000: correlation 0.712, Dice 0.980, brain 1400 ml"
    assert rest[0].startswith("in doubt: word")
    assert max(map(len, rest)) <= 100


@pytest.fixture
def overview_report(tmp_path: Path) -> RunLayout:
    """Report of a run whose second scan is in doubt; overviews are drawn."""
    layout = make_run(tmp_path / "run", RunPlan(until="registration", people=2, text="<b>"))
    scans = ScanTable.read(layout.root / "scans.tsv").kept
    for scan in scans:
        files = layout.scan(scan.participant_id, scan.session_id, 4.0)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        write_template_image(files.t1w, TEMPLATE.t1w, TEMPLATE.grid)
    with ThreadPoolExecutor(1) as executor:
        assert all(outcome.ok for outcome in draw_overviews(layout, scans, 4.0, executor))
        again = draw_overviews(layout, scans, 4.0, executor)
    assert {outcome.status for outcome in again} == {"unchanged"}
    build_report(layout)
    return layout


def test_the_report_shows_scans_in_doubt_and_links_the_others(overview_report: RunLayout) -> None:
    index, page = (path.read_text() for path in (overview_report.report, page_with(overview_report, "registration")))
    assert "Registration is doubtful." in index
    assert "Registration is doubtful." in page
    assert "figures/registration_in_doubt_1.png" in page
    assert "registration_in_doubt_2" not in page
    assert page.count('_desc-registration_T1w.png">figure</a>') == 7
    assert '="sub-AD000%3Cb%3E/ses-M000/figures/sub-AD000%3Cb%3E_ses-M000_space-' in page
    assert "correlation 0.4 is below 0.45&lt;b&gt;" in page
    assert "correlation 0.4 is below 0.45<b>" not in index + page
