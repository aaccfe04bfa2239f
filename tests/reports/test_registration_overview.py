"""The overview figure of a registered scan, and what the report makes of scans in doubt."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_pages import page_with
from run_factory import RunPlan, make_run

from heatlas.atlases.spaces import write_template_image
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.reports.figures.gallery import NIGHT
from heatlas.reports.figures.slices import BrainImage
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
from heatlas.reports.page.build import build_report

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
def report(tmp_path: Path) -> RunLayout:
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


def test_the_report_shows_scans_in_doubt_and_links_the_others(report: RunLayout) -> None:
    index, page = (path.read_text() for path in (report.report, page_with(report, "registration")))
    assert "Registration is doubtful." in index
    assert "Registration is doubtful." in page
    assert "figures/registration_in_doubt_1.png" in page
    assert "registration_in_doubt_2" not in page
    assert page.count('_desc-registration_T1w.png">figure</a>') == 7
    assert '="sub-AD000%3Cb%3E/ses-M000/figures/sub-AD000%3Cb%3E_ses-M000_space-' in page
    assert "correlation 0.4 is below 0.45&lt;b&gt;" in page
    assert "correlation 0.4 is below 0.45<b>" not in index + page
