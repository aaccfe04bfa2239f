"""Whether accuracy and evidence go together over networks: measures of planted networks, and the baseline's parts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import patients_evidence as study
import pytest
from scipy.special import logit

from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople
from heatlas.pipeline.training.baselines import ridge

N, REGIONS = 80, 12
WANTED = 3


@pytest.fixture(scope="module")
def people():
    fold = np.arange(N) % 4
    return HeldOutPeople(np.array([f"p{k:02d}" for k in range(N)]), fold, np.arange(N) // 4 % 2 == 1)


def network(people, name, family, size, seed, whole=True):
    """A network whose logit and evidence in one region rise with `size`; the others hold noise, scaled by the fold."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(N, REGIONS))
    values[:, WANTED] += size * people.positive
    return study.Evidence(name, family, whole, values[:, WANTED] + 5 * people.fold, values * (1 + people.fold)[:, None])


def test_measures_of_planted_networks(people):
    strong = [network(people, f"strong {k}", "abc"[k], 3.0, k) for k in range(3)]
    weak = network(people, "weak", "d", 0.0, 9)
    tissue = -np.abs(strong[0].densities)  # darker where the first network marks more, whatever the class
    tissue[:, WANTED] -= 9 * people.positive
    found = study.measures_of([*strong, weak], [*strong, weak], tissue, people, np.ones(N), WANTED)
    assert (found["area"][:3] > 0.9).all()
    assert abs(found.loc["weak", "area"] - 0.5) < 0.15
    assert found["place"][:3].tolist() == [1, 1, 1]
    assert (found["g"][:3] > 1).all()
    assert abs(found.loc["weak", "g"]) < 0.6
    table = found.assign(name=0)
    assert study.better(table, "place").tolist() == (-found["place"]).tolist()
    # who is drawn twice counts twice
    twice = study.measures_of(strong, strong, tissue, people, np.full(N, 2.0), WANTED)
    assert twice["area"].to_numpy() == pytest.approx(found["area"][:3].to_numpy())


def test_families_count_once_and_the_own_one_not_at_all():
    g = {name: np.array(values, float) for name, values in
         {"a": [3, 2, 1], "b1": [1, 2, 3], "b2": [1, 2, 3], "c": [2, 3, 1]}.items()}  # fmt: skip
    known = [study.Evidence(name, name[0], True, g[name], g[name]) for name in g]
    assert study.other_families(known, "a", g).tolist() == [2.5, 1.5, 2.0]  # b: 3, 2, 1; c: 2, 1, 3
    assert study.other_families(known, "b", g).tolist() == [1.5, 1.5, 3.0]


@pytest.mark.ci
def test_the_interval_is_over_networks_and_people():
    names = list("abcdefgh")
    base = np.arange(8.0)
    same = [pd.DataFrame({"area": base, "place": -base, "g": base}, index=names)] * 200
    assert study.correlations(same, names, "place", 0) == (pytest.approx(1), pytest.approx(1))
    random = np.random.default_rng(0)
    loose = [one.assign(g=random.permutation(base)) for one in same]
    low, high = study.correlations(loose, names, "g", 0)
    assert low < -0.4 < 0.4 < high


@pytest.mark.sample(1)
@pytest.mark.parametrize("columns", [6, 90])
def test_the_baseline_is_that_of_runs_and_its_parts_add_up(columns):
    random = np.random.default_rng(1)
    ill = np.arange(60) % 2 == 1
    train, test = random.normal(size=(60, columns)), random.normal(size=(10, columns))
    train[:, 0] += ill
    names = [f"p{k}" for k in range(60)]
    said, parts = study.ridge_parts(train, ill, names, test, 5)
    known = ridge.predicted(train, ill.astype(float), names, test, 2, 5)[:, 1]
    assert said == pytest.approx(logit(known), abs=1e-6)
    control = study.ridge_parts(train, ill, names, train[~ill].mean(0, keepdims=True), 5)[0]
    assert parts.sum(1) == pytest.approx(said - control, abs=1e-9)


def test_recipes_differ_and_say_what_was_taken_away():
    known = {one.name: one for one in study.RECIPES}
    assert len(known) == len(study.RECIPES) >= 12
    assert len({study.family_of(one) for one in study.RECIPES}) >= 6
    assert {name for name, one in known.items() if not study.is_whole(one)} == {
        "founding, 2 epochs", "founding, 4 epochs", "founding, 8 epochs",
        "founding, half of the people", "founding, a quarter of the people",
    }  # fmt: skip
