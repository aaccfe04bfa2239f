"""Pictures of a person: smoothed, regions in colour, and the same regions in sentence, picture and table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from run_factory import EVIDENCE, RESOLUTION, WITH_EVIDENCE, make_run

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.relevance import founding
from heatlas.reports.figures.gallery import shown_in
from heatlas.reports.figures.maps import FAINT, MAPS, REGIONS, region_row
from heatlas.reports.figures.slices import BrainImage, ColourScale, smoothed
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import participant_file
from heatlas.reports.page.build import build_report
from heatlas.reports.people.regions import evidence_sentences, regions_of_scans
from heatlas.reports.people.scan_pictures import draw_scans, portraits_of
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import read_run
from heatlas.reports.words.numbers import fixed, mid_sentence, signed

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


@pytest.mark.parametrize(("evidence", "rising"), [(2.5, False), (-4.0, True)])
def test_the_largest_parts_are_those_in_the_direction_of_the_scan(run, evidence, rising):
    record = read_run(run)
    table = record.tables["evidence"].assign(evidence=evidence)  # of controls, −1.5
    found = regions_of_scans(replace(record, tables={**record.tables, "evidence": table}))["IAD0M000"]
    own = read_table(run.group / "relevance_bilateral.tsv").query("scan_id == 'IAD0M000' and map == @EVIDENCE")
    own = own.set_index("group")["sum"].sort_values(ascending=rising)
    assert list(found.largest) == list(own.index[:3])
    assert len(found.named) == len(set(found.named)) == (3 if set(found.headline) <= set(found.largest) else 4)


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
    assert "99.5th percentile of the mean map of AD; not smoothed" in caption
