"""A tenth of a region taken out of one scan: closed forms on linear networks, the rule, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from outside_contrast import ATLAS, BOX, CONFIG, GRID, LABELLED, SPEC, STRANGER, make_run

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.demo.anatomy import SPACING_MM, exponential, jacobian_determinant
from heatlas.pipeline.cohort.demo.people import PlantedChange
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.planted_in_scan import (
    PLACES,
    PLANTED_IN_SCAN_TABLE,
    Followed,
    other_places,
    planting_of,
    regions_named,
    require_planted,
    what_followed,
    within,
    write_planted,
)
from heatlas.pipeline.explaining.planted_loss import numbers_of, planted_copy, planting_site, read_registered
from heatlas.pipeline.explaining.stage import explain_applied
from heatlas.pipeline.models.families.plain import LinearConfig, linear
from heatlas.pipeline.models.inputs import read_channels, scale_volume
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.settings import AttributionConfig, Config, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache

SPLIT = Split((Fold(0, ("sub-2", "sub-4"), (), ("sub-1",)), Fold(1, ("sub-1", "sub-3"), (), ("sub-2",))))
LEFT = ATLAS.regions.by_number(48)
PLANT = replace(CONFIG, attribution=AttributionConfig(methods=("deeplift",), plant=(LEFT.name,)), model=LinearConfig())
IN_BOX = BOX.crop(ATLAS.labels)
NEAR = BOX.crop(within(ATLAS.labels == LEFT.number, GRID.voxel_sizes_mm, 4.0))


def weights(place: int, of_region: float) -> np.ndarray:
    """Weights of evidence that differ a little between networks; `of_region`: those of the left hippocampus."""
    rng = np.random.default_rng(place)
    return np.where(LEFT.number == IN_BOX, of_region, 0.02) * rng.uniform(0.8, 1.2, BOX.shape) * (1 + place / 10)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run whose scans are the template's brain, and whose box has sides of 29, 31 and 33 voxels."""
    made, template = make_run(tmp_path / "run").layout, load_template(4.0)
    for number, scan in enumerate((*LABELLED, STRANGER)):
        files = made.scan(scan.participant_id, scan.session_id, 4.0)
        noise = np.random.default_rng(number).uniform(0.9, 1.1, GRID.shape)
        nib.save(nib.Nifti1Image((template.t1w * noise).astype(np.float32), GRID.affine), files.t1w)
        nib.save(nib.Nifti1Image(template.brain_mask.astype(np.uint8), GRID.affine), files.brain_mask)
    return made


def planted(layout: RunLayout, of_region: float, config: Config = PLANT) -> tuple[pd.DataFrame, bool]:
    """``planted_in_scan.tsv`` of a scan and two linear networks; whether it was made."""
    for fold in SPLIT.folds:
        network = linear(BOX.shape, LinearConfig(), 2)
        with torch.no_grad():
            layer = next(module for module in network.modules() if isinstance(module, torch.nn.Linear))
            half = torch.from_numpy(weights(fold.index, of_region).ravel()).float() / 2
            layer.weight.copy_(torch.stack([-half, half]))
            layer.bias.zero_()
        people = {"train": fold.train, "validation": fold.validation, "test": fold.test}
        save_model(layout.fold(fold.index), network, SPEC, ("CN", "AD"), {"participants": people})
    layout.group.mkdir(exist_ok=True)
    (layout.group / "predictions_applied.tsv").write_text(f"scan_id\tnetworks\n{STRANGER.scan_id}\t0;1\n")
    with ThreadPoolExecutor(1) as executor:
        digests = DigestCache(layout.digests)
        work = Work(layout, layout.root, config, (*LABELLED, STRANGER), SPLIT, executor, digests)
        outcomes = explain_applied(work, (STRANGER,), LABELLED, ATLAS)
        done = write_planted(work, [one.job for one in outcomes])
    there = PLANTED_IN_SCAN_TABLE.path(layout).is_file()
    return (PLANTED_IN_SCAN_TABLE.read(layout) if there else pd.DataFrame()), done


def change_of_image(layout: RunLayout, place: int = 0) -> np.ndarray:
    """What the networks see of the stranger with a loss, less what they see without; `place`: of the regions."""
    files, planting = layout.scan(STRANGER.participant_id, None, 4.0), planting_of(LEFT, PLANT)
    site = planting_site("neuromorphometrics-cat12", planting.changes, 4.0, files.template)
    volume, brain = read_registered(files, GRID)
    once = np.eye(len(planting.changes))[place]
    copy = planted_copy(scale_volume(volume, brain, SPEC), brain, site, once)
    return np.asarray(BOX.crop(copy) - read_channels(files, SPEC)[0])


def test_changes_of_linear_networks_are_weights_times_the_change_of_the_image(layout: RunLayout) -> None:
    table, _ = planted(layout, of_region=0.5)
    row, *others = table.to_dict("records")
    mean = (weights(0, 0.5) + weights(1, 0.5)) / 2
    of_image = change_of_image(layout)
    changes = [(weights(fold, 0.5) * of_image).sum() for fold in (0, 1)]
    # float32 sums of thirty thousand voxels
    assert row["change"] == pytest.approx(np.mean(changes), rel=1e-3)
    assert row["sd"] == pytest.approx(np.std(changes, ddof=1), rel=2e-2)
    assert row["map_change"] == pytest.approx(row["change"], rel=1e-3)
    assert row["region_change"] == pytest.approx((mean * of_image)[LEFT.number == IN_BOX].sum(), rel=1e-3)
    size = np.abs(mean * of_image)
    assert row["share"] == pytest.approx(size[NEAR].sum() / size.sum(), rel=1e-3)
    assert row["image_share"] == pytest.approx(np.abs(of_image)[NEAR].sum() / np.abs(of_image).sum(), rel=1e-3)
    for place, other in enumerate(others, start=1):
        assert other["change"] == pytest.approx((mean * change_of_image(layout, place)).sum(), rel=1e-2, abs=1e-4)
    assert (row["place"], row["as_large"], row["places"], row["n_networks"]) == (1, 0, PLACES, 2)
    assert row["change"] < 0
    assert (row["answer_followed"], row["map_followed"]) == (True, True)


def test_networks_that_are_blind_to_a_region_do_not_follow(layout: RunLayout) -> None:
    row = planted(layout, of_region=0.0)[0].iloc[0]
    assert row["region_change"] == 0
    assert row["as_large"] >= 2
    assert (row["answer_followed"], row["map_followed"]) == (False, False)


def test_it_is_made_once_and_goes_when_nothing_is_asked(layout: RunLayout) -> None:
    assert planted(layout, 0.5)[1]
    assert not planted(layout, 0.5)[1]
    table, done = planted(layout, 0.5, replace(PLANT, attribution=replace(PLANT.attribution, plant=())))
    assert table.empty
    assert not done


def test_one_region_loses_a_tenth_and_each_other_place_the_same_volume() -> None:
    """As the demo plants it: a third on the log scale by contraction, the rest in place."""
    planting = planting_of(LEFT, PLANT)
    fine = load_atlas("neuromorphometrics-cat12", template_grid(1.0))
    site = planting_site("neuromorphometrics-cat12", planting.changes, 4.0)
    assert len(planting.others) == PLACES
    for place, (one, change) in enumerate(zip((LEFT, *planting.others), planting.changes, strict=True)):
        own = fine.labels == one.number
        assert own.sum() * change.volume_change == pytest.approx(-planting.volume_mm3)
        growth = jacobian_determinant(exponential(site.velocities[place], SPACING_MM), SPACING_MM)
        shares = growth[tuple(np.minimum(np.argwhere(own) // SPACING_MM, np.array(growth.shape) - 1).T)]
        remaining = np.exp(np.log(shares.mean()) - site.rates[place])
        assert remaining == pytest.approx(1 + change.volume_change, abs=0.015)


def test_other_places_are_apart_from_the_region_and_from_each_other() -> None:
    fine = load_atlas("neuromorphometrics-cat12", template_grid(1.0))
    counts = np.bincount(fine.labels.ravel(), minlength=300)
    volumes = {number: float(counts[number]) for number in fine.regions.numbers}
    found = other_places(ATLAS, volumes, LEFT)
    for number, one in enumerate((LEFT, *found)):
        near = within(ATLAS.labels == one.number, GRID.voxel_sizes_mm, 4.0)
        rest = [other.number for place, other in enumerate((LEFT, *found)) if place != number]
        assert not np.isin(ATLAS.labels[near], rest).any()
    assert all(volumes[one.number] >= volumes[LEFT.number] / 2 for one in found)
    assert not {one.group for one in found} & {"Hippocampus", "Lateral ventricle"}


def test_without_a_generator_a_copy_without_loss_is_the_scan() -> None:
    template = load_template(4.0)
    site = planting_site("neuromorphometrics-cat12", (PlantedChange(LEFT.name, "", -0.1, tissue=True),), 4.0)
    volume = np.asarray(template.t1w, np.float32)
    np.testing.assert_allclose(planted_copy(volume, template.brain_mask, site, [0.0]), volume, atol=1e-3 * volume.max())
    assert numbers_of(ATLAS, LEFT.name) == (48,)
    assert numbers_of(ATLAS, "Hippocampus") == (47, 48)


RULE = [
    ("both", [-0.3, -0.2, -0.4], [0.1] * 10, {48: -0.2, 31: 0.1, 32: 0.05}, (True, True)),
    ("second of the map", [0.3, 0.2, 0.4], [0.1] * 9 + [0.5], {48: 0.2, 31: -0.3, 32: 0}, (True, True)),
    ("third of the map", [0.3, 0.2, 0.4], [0.1] * 10, {48: 0.2, 31: -0.3, 32: 0.21}, (True, False)),
    ("two other places larger", [0.3, 0.2, 0.4], [0.1] * 8 + [0.5, -0.5], {48: 0.2, 31: 0, 32: 0}, (False, True)),
    ("networks disagree", [0.3, -0.2, 0.4], [0.01] * 10, {48: 0.2, 31: 0, 32: 0}, (False, True)),
    ("one network", [0.3], [0.1] * 10, {48: 0.3, 31: 0, 32: 0}, (True, True)),
    ("one network that is blind", [0.0], [0.1] * 10, {48: 0, 31: 0, 32: 0}, (False, False)),
    ("nothing to compare with", [0.3, 0.2, 0.4], [], {48: 0.2, 31: 0, 32: 0}, (False, True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "others", "parts", "expected"), [case[1:] for case in RULE], ids=[c[0] for c in RULE]
)
def test_the_rule(changes, others, parts, expected) -> None:
    found = what_followed(np.array(changes), np.array(others), {0: 0.05, **parts}, 48)
    assert isinstance(found, Followed)
    assert (found.answer_followed, found.map_followed) == expected
    assert found.map_change == pytest.approx(0.05 + sum(parts.values()))


def test_the_interval_is_that_of_a_mean_by_t() -> None:
    found = what_followed(np.array([1.0, 2.0, 3.0]), np.array([0.0]), {48: 1.0}, 48)
    half = 4.302653 / np.sqrt(3)  # t of 2 degrees of freedom
    assert (found.ci_low, found.ci_high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_regions_are_named_in_any_case_and_by_group() -> None:
    def named(*names: str) -> list[str]:
        return [one.name for one in regions_named(ATLAS.regions, "x", names)]

    assert named("left hippocampus") == ["Left hippocampus"]
    assert named("Hippocampus", "Left hippocampus") == ["Right hippocampus", "Left hippocampus"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Hipocampus", r"the atlas neuromorphometrics-cat12 has no such region\. Did you mean Hippocampus\?"),
        ("Lateral ventricle", "--plant Lateral ventricle: is no tissue"),
    ],
)  # fmt: skip
def test_what_is_no_region_of_tissue_is_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        require_planted(Config(attribution=AttributionConfig(plant=(name,))))


def test_networks_of_other_images_are_refused() -> None:
    config = Config(training=TrainingConfig(), attribution=AttributionConfig(plant=("Putamen",)))
    require_planted(config)
    with pytest.raises(UsageError, match="these networks see others"):
        require_planted(replace(config, cohort=replace(config.cohort, further_suffixes=("FLAIR",))))
