"""Controls as an export gives them away: the same places as of the run, and no row that is a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatlas.pipeline.explaining.features import UnseenPeople
from heatlas.pipeline.explaining.likeness import (
    CONTROL_NORMS_TABLE,
    CONTROL_VALUES_TABLE,
    Measured,
    likeness_of_controls,
    read_reference,
    write_controls,
)
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout

N_CONTROLS, N_REGIONS, N_POINTS, N_FEATURES = 14, 6, 40, 12
NETWORKS = ("features-0-1", "features-0-2", "features-1-1")


def _measured(draw: np.random.Generator, scale: float = 1.0) -> Measured:
    common = np.linspace(-1, 1, N_POINTS)
    asymmetry = common + draw.normal(0, 0.3, N_POINTS)
    values = {"scale": scale + draw.normal(0, 0.03), "dice": 0.95 + draw.normal(0, 0.01)}
    seen = {name: draw.normal(size=N_FEATURES) for name in NETWORKS}
    return Measured(values, draw.normal(size=N_REGIONS), asymmetry - asymmetry.mean(), seen)


def _unseen() -> list[UnseenPeople]:
    """Two folds of seven controls and three patients, with two networks and one."""
    draw, classes = np.random.default_rng(4), ["CN"] * 7 + ["AD"] * 3
    folds = [{name: draw.normal(size=(10, N_FEATURES)) for name in names} for names in (NETWORKS[:2], NETWORKS[2:])]
    return [UnseenPeople(seen, classes, [name == "CN" for name in classes]) for seen in folds]


@pytest.fixture
def controls() -> list[Measured]:
    draw = np.random.default_rng(1)
    return [_measured(draw) for _ in range(N_CONTROLS)]


def test_an_export_gives_the_places_of_the_run(controls: list[Measured], tmp_path: Path) -> None:
    of_run, layout = likeness_of_controls(controls, _unseen()), BundleLayout(tmp_path)
    child = _measured(np.random.default_rng(2), 0.6)
    strange = replace(child, features={name: 4 * values for name, values in child.features.items()})
    layout.likeness.parent.mkdir()
    write_controls(of_run, layout)

    for scan, unlike in ((child, ["scale"]), (strange, ["scale", "feature_distance"])):
        ours, theirs = of_run.places(scan), read_reference(layout).places(scan)

        assert [(place.measure, place.beyond, place.unlike) for place in theirs] == [
            (place.measure, place.beyond, place.unlike) for place in ours
        ]
        assert [place.distance for place in theirs] == pytest.approx([place.distance for place in ours], rel=2e-3)
        assert {place.measure for place in ours if place.unlike} == set(unlike)
        assert {place.measure for place in ours} == {"scale", "dice", "side", "region_distance", "feature_distance"}


def test_an_export_without_features_still_gives_all_other_places(controls: list[Measured], tmp_path: Path) -> None:
    layout = BundleLayout(tmp_path)
    layout.likeness.parent.mkdir()
    write_controls(likeness_of_controls(controls), layout)  # as an earlier version did

    places = read_reference(layout).places(controls[0])

    assert {place.measure for place in places} == {"scale", "dice", "side", "region_distance"}


def test_norms_of_features_take_little_room_and_name_nobody(controls: list[Measured], tmp_path: Path) -> None:
    """Two numbers a feature: twenty networks of 128 features are about 100 kB."""
    layout = BundleLayout(tmp_path)
    layout.likeness.parent.mkdir()
    write_controls(likeness_of_controls(controls), layout)
    without = layout.likeness_norms.stat().st_size
    write_controls(likeness_of_controls(controls, _unseen()), layout)

    rows = CONTROL_NORMS_TABLE.read(layout.likeness_norms)

    kinds = rows["kind"].value_counts()
    assert {name: int(kinds[name]) for name in NETWORKS} == dict.fromkeys(NETWORKS, N_FEATURES)
    assert (layout.likeness_norms.stat().st_size - without) / (len(NETWORKS) * N_FEATURES) < 50


def test_values_are_sorted_by_themselves_so_that_no_row_is_a_person(controls: list[Measured], tmp_path: Path) -> None:
    layout = BundleLayout(tmp_path)
    layout.likeness.parent.mkdir()
    write_controls(likeness_of_controls(controls), layout)

    table = CONTROL_VALUES_TABLE.read(layout.likeness)

    for name in ("scale", "dice"):
        given = table.loc[table["measure"] == name, "value"].tolist()
        assert given == pytest.approx(sorted(control.values[name] for control in controls), rel=1e-4)


def test_a_mirrored_scan_is_unlike_by_its_sides_alone(controls: list[Measured]) -> None:
    person = _measured(np.random.default_rng(3))
    assert person.asymmetry is not None
    mirrored = Measured(person.values, person.regions, -person.asymmetry)
    reference = likeness_of_controls(controls)

    assert [place.measure for place in reference.places(person) if place.unlike] == []
    assert [place.measure for place in reference.places(mirrored) if place.unlike] == ["side"]


def test_few_controls_say_nothing_and_one_of_two_files_is_refused(controls: list[Measured], tmp_path: Path) -> None:
    assert likeness_of_controls(controls[:9]).places(controls[10]) == []
    layout = BundleLayout(tmp_path)
    assert read_reference(layout).places(controls[0]) == []  # of an earlier version
    layout.likeness.parent.mkdir()
    write_controls(likeness_of_controls(controls), layout)
    layout.likeness_norms.unlink()

    with pytest.raises(BadInputError, match=r"likeness_norms.tsv: missing\. Export the run again"):
        read_reference(layout)
