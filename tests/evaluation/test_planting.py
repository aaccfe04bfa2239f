"""Copies of controls with planted loss: what is changed, by how much, and what is not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.planting.cohort import strongest
from heatlas.pipeline.evaluation.planting.copies import (
    BOTH_CLASSES,
    FEWEST,
    SEVERITIES,
    UNTOUCHED,
    WITH_LOSS,
    PlantingSite,
    paired_folds,
    people_to_plant,
    planted_changes,
    planted_copy,
    planting_site,
    truth_of,
)
from heatlas.pipeline.evaluation.scores.map_scores import marker, with_marker
from heatlas.pipeline.run.errors import BadInputError

ATLAS = "neuromorphometrics-cat12"
GRID = template_grid(4.0)


@pytest.fixture(scope="module")
def site() -> PlantingSite:
    atlas = load_atlas(ATLAS, GRID)
    return planting_site(ATLAS, (*planted_changes(atlas), BOTH_CLASSES), 4.0)


@pytest.fixture(scope="module")
def brain() -> tuple[np.ndarray, np.ndarray]:
    template = load_template(4.0)
    return np.asarray(template.t1w, np.float32), np.asarray(template.brain_mask)


def in_group(values: np.ndarray, name: str) -> float:
    atlas = load_atlas(ATLAS, GRID)
    return float(values[np.isin(atlas.labels, atlas.regions.groups[name])].mean())


def copy_of(brain, site, severity: float, unused: float = 0.0) -> np.ndarray:
    severities = [*[severity] * (len(site.rates) - 1), unused]
    return planted_copy(*brain, site, severities, np.random.default_rng(2))


@pytest.mark.ci
def test_loss_grows_with_severity_where_it_is_planted_and_nowhere_else(brain, site) -> None:
    plain = copy_of(brain, site, 0.0)
    falls = [in_group(plain, "Hippocampus") - in_group(copy_of(brain, site, s), "Hippocampus") for s in SEVERITIES]
    assert 0 < falls[0] < falls[1] < falls[2]
    assert falls[2] > 0.05 * in_group(plain, "Hippocampus")
    change = abs(
        in_group(copy_of(brain, site, 2.0), "Superior parietal lobule") - in_group(plain, "Superior parietal lobule")
    )
    assert change < 0.05 * falls[2]


def test_the_unused_change_is_about_as_large_as_the_used_one(brain, site) -> None:
    plain = copy_of(brain, site, 0.0)
    used = in_group(plain, "Hippocampus") - in_group(copy_of(brain, site, 2.0), "Hippocampus")
    unused = in_group(plain, "Putamen") - in_group(copy_of(brain, site, 0.0, unused=2.0), "Putamen")
    assert 0.5 < unused / used < 2


def test_nothing_outside_the_brain_changes_and_no_copy_is_without_interpolation(brain, site) -> None:
    volume, mask = brain
    plain = copy_of(brain, site, 0.0)
    assert np.array_equal(plain[~mask], volume[~mask])
    assert 0 < np.abs(plain - volume)[mask].mean() < 0.1 * volume[mask].mean()


def test_every_copy_has_the_range_of_its_scan(brain, site) -> None:
    volume, mask = brain
    spiky = np.where(mask, volume, 0).astype(np.float32)
    spiky[tuple(np.argwhere(mask)[500])] = 3 * volume.max()  # a bright vessel, which interpolation would smooth away
    for severity in (0.0, 3.0):
        copied = planted_copy(spiky, mask, site, [severity] * len(site.rates), np.random.default_rng(2))
        assert (copied[mask].min(), copied[mask].max()) == (spiky[mask].min(), spiky[mask].max())


def test_a_marker_is_seen_and_lies_outside_the_brain(brain) -> None:
    volume, mask = brain
    cube = marker(volume.shape, (1, 1, 1))
    assert cube.sum() == 27
    marked, seen = with_marker(volume, mask, cube)
    assert (marked[cube] == volume[mask].max()).all()
    assert seen.sum() == mask.sum() + 27
    with pytest.raises(BadInputError, match="inside the brain"):
        with_marker(volume, np.ones_like(mask), cube)


def controls(count: int, label: str | None = "CN") -> list[Scan]:
    return [Scan(f"sub-{i:02d}", f"ses-{n}", f"I{i}-{n}", None, label=label) for i in range(count) for n in range(2)]


def test_every_control_gives_two_copies_and_severities_are_dealt_evenly() -> None:
    people = people_to_plant([*controls(12), Scan("sub-ad", None, "Iad", None, label="AD")], "CN", seed=1)
    assert [person.scan.scan_id for person in people] == [f"I{i}-0" for i in range(12)]
    assert Counter(person.severity for person in people) == dict.fromkeys(SEVERITIES, 4)
    assert sum(person.unused > 0 for person in people) == 4
    assert sum(person.marked for person in people) == 6
    assert {copy.label for copy in people[0].copies} == {UNTOUCHED, WITH_LOSS}
    assert people != people_to_plant(controls(12), "CN", seed=2)


def test_without_labels_everyone_is_a_control() -> None:
    assert len(people_to_plant(controls(FEWEST, None), "CN", seed=1)) == FEWEST


@pytest.mark.parametrize("label", ["CN", "AD"], ids=["few controls", "no control"])
def test_too_few_controls_are_refused_with_their_number(label) -> None:
    with pytest.raises(BadInputError, match=rf"this run has {5 if label == 'CN' else 0} .* at least {FEWEST}"):
        people_to_plant([*controls(5, label), Scan("sub-x", None, "x", None, label="other")], "CN", seed=1)


@pytest.mark.parametrize("count", [6, 7, 20])
def test_folds_are_of_whole_people_and_test_everyone_once(count) -> None:
    people = people_to_plant(controls(count), "CN", seed=1)
    split = paired_folds(people, 5, 0.2, seed=1)  # refuses by itself a person in two parts
    assert Counter(name for fold in split.folds for name in fold.test) == {f"sub-{i:02d}": 1 for i in range(count)}
    assert all(fold.validation and len(fold.train) >= 2 for fold in split.folds)


def test_the_first_folds_are_those_of_all() -> None:
    people = people_to_plant(controls(12), "CN", seed=4)
    every, first = (paired_folds(people, 3, 0.2, 4, only) for only in (0, 1))
    assert first.folds == every.folds[:1]
    assert len(every.folds) == 3


def test_the_truth_names_what_was_planted_and_what_is_not_to_be_marked() -> None:
    people = people_to_plant(controls(12), "CN", seed=1)
    truth = truth_of(people, load_atlas(ATLAS, GRID), "Cuneus")
    assert truth.groups == ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus")
    assert [one.kind for one in truth.distractors] == ["both classes", "correlated", "marker"]
    assert len(truth.distractors[0].scans) == 4
    assert {truth.severity[person.copy(UNTOUCHED).scan_id] for person in people} == {0.0}


def test_the_correlated_group_is_neither_planted_nor_left_out() -> None:
    random = np.random.default_rng(0)
    planted = random.standard_normal(30)
    means = np.stack(
        [planted, planted + 0.01, planted + 0.1 * random.standard_normal(30), -planted, np.ones(30)], axis=1
    )
    assert strongest(means, list("abcde"), ["a"], {"b"}) == "c"
    assert strongest(means[:, [0, 4]], ["a", "e"], ["a"], set()) is None
