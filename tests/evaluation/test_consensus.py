"""Consensus of networks: formulas by hand and by brute force, rows from maps that are known, refusals."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from heatlas.pipeline.evaluation.bench.part import with_methods
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.studies.consensus.agreement import (
    CONSENSUS_TABLE,
    NETWORKS_TABLE,
    REGIONS_TABLE,
    Evidence,
    agreement,
    better_line,
    consensus,
    in_first,
    network_rows,
    pair_rows,
    places,
    region_rows,
    shared_first,
    trend,
)
from heatlas.studies.consensus.stage import (
    agree,
    family_settings,
    powers_of_two,
    require_different,
    sets_of_networks,
)
from tests.evaluation.block_run import CONFIG, INFORMATIVE, block_cohort, train_run
from tests.training.run_of_folds import Inline

GROUPS = [f"g{n:02}" for n in range(20)]
PLANTED = GROUPS[:3]


@pytest.mark.parametrize("n", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_trend_is_spearmans_and_its_p_counts_all_orders(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 4, n).astype(float), random.normal(size=n)
    found = trend(x, y, 0)
    if np.ptp(x) == 0:
        assert np.isnan(found.p)
        return
    rhos = [stats.spearmanr(x, y[list(order)]).statistic for order in permutations(range(n))]
    assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.p == pytest.approx(np.mean(np.abs(rhos) >= abs(found.rho) - 1e-9))


def test_a_trend_over_many_networks_is_drawn_and_answers() -> None:
    x = np.arange(12.0)
    rising, falling = trend(x, x, 1), trend(x, -x, 1)
    assert rising.p == falling.p < 0.001
    assert (rising.answer, falling.answer) == ("yes", "no")
    assert trend(x, np.random.default_rng(4).normal(size=12), 1).answer == "not known"
    assert trend(x[:4], x[:4], 1).answer == "not known"  # 2 of 24 orders
    assert trend(x, np.full(12, np.nan), 1).n == 0
    assert trend(x[:5], np.array([1.0, 2, np.nan, 3, 4]), 1) == trend(x[:4], x[:4], 1)


def test_places_and_first_lists_by_hand() -> None:
    first, second = np.array([9.0, 8, 7, 6, np.nan]), np.array([1.0, 2, 3, 4, 5])
    assert places(first).tolist() == [1, 2, 3, 4, 5]
    assert agreement(first, second) == -1  # over the four that both rank
    assert np.isnan(agreement(first[3:], second[3:]))
    assert shared_first(first, second, 2) == 0
    assert shared_first(first, second, 4) == 3
    assert in_first(np.full(5, np.nan), 2).sum() == 0
    mean, share = consensus([first, second], 2)
    assert mean.tolist() == [3, 3, 3, 3, 3]
    assert share.tolist() == [0.5, 0.5, 0, 0.5, 0.5]


@pytest.mark.parametrize(("epochs", "below"), [(1, ()), (2, (1,)), (8, (1, 2, 4)), (9, (1, 2, 4, 8)), (0, ())])
def test_powers_of_two_below_the_epochs_of_the_run(epochs: int, below: tuple[int, ...]) -> None:
    assert powers_of_two(epochs) == below


def evidence(networks: str, kind: str, effect: float, seed: int, accuracy: float = 0.9) -> Evidence:
    """Twelve people in two folds; planted groups of patients are larger by `effect`."""
    random = np.random.default_rng(seed)
    index = pd.MultiIndex.from_tuples(
        [(f"sub-{n:02}", float(n % 2), n // 6) for n in range(12)], names=["participant_id", "outcome", "fold"]
    )
    values = random.normal(size=(12, len(GROUPS)))
    values[1::2, :3] += effect
    scores = {"balanced_accuracy": accuracy, "auc": accuracy}
    return Evidence(networks, kind, pd.DataFrame(values, index, GROUPS), False, scores)


def test_rows_of_pairs_compare_folds_and_every_two_sets() -> None:
    run = evidence("run", "own", 20, 0)
    same = dataclasses.replace(run, networks="repeat-2", kind="seed")
    opposite = dataclasses.replace(run, networks="epochs-1", kind="epochs", densities=-run.densities)
    table = pd.DataFrame(pair_rows([run, same, opposite], 0)).set_index(["first_networks", "second_networks"])
    assert table["differ_in"].tolist() == ["folds", "seed", "epochs", "several"]
    row = table.loc["run", "repeat-2"]
    assert (row["region_spearman"], row["shared_first"], row["map_spearman"]) == (
        pytest.approx(1),
        10,
        pytest.approx(1),
    )
    assert row["n_participants"] == 12
    assert np.isnan(row["map_spearman_low"])  # no interval without spread
    assert table.loc["run", "epochs-1"]["region_spearman"] == pytest.approx(-1)
    assert table.loc["run", "epochs-1"]["map_spearman"] == pytest.approx(-1)
    assert table.loc["run", "epochs-1"]["shared_first"] == 0
    assert table["shared_first_expected"].tolist() == [5.0] * 4  # 10 * 10 / 20
    folds = table.loc["fold-0", "fold-1"]
    assert folds["region_spearman"] == pytest.approx(stats.spearmanr(run.of_folds[0], run.of_folds[1]).statistic)
    assert np.isnan(folds.get("map_spearman", np.nan))


def test_people_whose_scans_failed_for_one_set_are_left_out_of_the_pair() -> None:
    run, other = evidence("run", "own", 5, 0), evidence("repeat-2", "seed", 5, 1)
    fewer = dataclasses.replace(other, densities=other.densities.iloc[2:])
    row = pair_rows([run, fewer], 0)[-1]
    alike = [stats.spearmanr(run.densities.iloc[n], other.densities.iloc[n]).statistic for n in range(2, 12)]
    assert row["n_participants"] == 10
    assert row["map_spearman"] == pytest.approx(np.mean(alike))
    assert row["map_spearman_low"] < row["map_spearman"] < row["map_spearman_high"]


def test_the_consensus_is_that_of_fully_trained_networks() -> None:
    found = [evidence("run", "own", 20, 0), evidence("repeat-2", "seed", 20, 1), evidence("epochs-1", "epochs", -20, 2)]
    regions = pd.DataFrame(region_rows(found, PLANTED)).set_index("group")
    assert set(regions.index[:3]) == set(PLANTED)
    assert regions["n_networks"].eq(2).all()
    assert regions.loc[PLANTED, "first_share"].eq(1).all()
    assert regions["is_planted"].sum() == 3
    mean = np.mean([places(one.difference) for one in found[:2]], axis=0)
    assert regions.loc[GROUPS, "mean_place"].tolist() == mean.tolist()
    networks = pd.DataFrame(network_rows(found, PLANTED)).set_index("networks")
    assert networks["auroc_difference"].tolist() == [1, 1, 0]
    assert networks["hits_difference"].tolist() == [3, 3, 0]
    assert networks["in_consensus"].tolist() == [True, True, False]
    pairs = [agreement(found[0].difference, one.difference) for one in found[1:]]
    assert networks.loc["run", "agreement"] == pytest.approx(np.mean(pairs))
    unknown = NETWORKS_TABLE.frame(network_rows(found, ()))
    assert unknown["auroc_difference"].isna().all()


def test_a_map_that_says_nothing_has_no_ranking_and_no_consensus() -> None:
    run = evidence("run", "own", 1, 0)
    empty = dataclasses.replace(run, densities=0 * run.densities, n_undefined=12)
    assert region_rows([empty, empty], PLANTED) == []
    row = network_rows([empty, run], PLANTED)[0]
    assert (row["n_undefined"], row["first_groups"]) == (12, None)
    assert np.isnan(row["agreement"])
    assert np.isnan(pair_rows([empty, run], 0)[-1]["region_spearman"])


@pytest.mark.parametrize(("effects", "answer"), [((0, 0.3, 1, 3, 9), "yes"), ((9, 3, 1, 0.3, 0), "no")])
def test_better_classifiers_better_evidence(effects, answer: str) -> None:
    rows = pd.DataFrame({"balanced_accuracy": [0.5, 0.6, 0.7, 0.8, 0.9], "auroc_difference": effects, "agreement": 0.5})
    line = better_line("m", rows, 0)
    assert line.startswith(f"  m: {answer} (5 sets of networks, balanced accuracy 0.50 to 0.90; AUROC of planted")
    assert "p = 0.017" in line
    known = better_line("m", rows.assign(auroc_difference=np.nan, agreement=effects), 0)
    assert known.startswith(f"  m: {answer}")  # without a truth, by agreement
    assert "agreement with other networks" in known
    assert better_line("m", rows.iloc[:2], 0).startswith("  m: not known (2 sets of networks")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet11", "--families resnet11: .*no such family"),
        ("resnet10:widht=0.5", "--families resnet10:widht=0.5: unknown setting model.widht"),
        ("resnet10:width=9", "--families resnet10:width=9: model.width must lie"),
        ("resnet10:width", "write NAME:SETTING=VALUE"),
        ("resnet10:width=wide", "--families .*width"),
        ("resnet10:width=0.5:width=0.25", "width is given twice"),
        ("resnet10:architecture=resnet18", "architecture is given twice"),
    ],
)
def test_families_that_do_not_exist_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        family_settings(text, load_config())


@pytest.mark.parametrize(
    ("families", "like"),
    [
        (("founding: pools=[3,4]: channels=[4, 8]: hidden_units=16",), "the networks of the run"),
        (("resnet10:width=0.5", "resnet10: width=0.50"), "--families resnet10:width=0.5"),
        (("resnet10", "resnet18", "resnet10:field_of_view=template"), "--families resnet10"),
    ],
)
def test_the_same_network_asked_twice_is_refused(families: tuple[str, ...], like: str) -> None:
    config = dataclasses.replace(
        CONFIG, model=family_settings("founding:channels=[4,8]:pools=[3,4]:hidden_units=16", CONFIG)
    )
    with pytest.raises(UsageError, match=f"the same network as {like}"):
        require_different(families, config)
    require_different((*families[:1], "resnet10:width=0.25") if "resnet" in families[0] else ("resnet10",), config)


def test_a_map_that_the_family_of_the_run_does_not_define_has_no_rows_of_its_folds() -> None:
    others = [evidence("family-resnet10", "family", 20, 0), evidence("family-resnet18", "family", 20, 1)]
    table = pd.DataFrame(pair_rows(others, 0))
    assert table[["differ_in", "first_networks", "second_networks"]].to_numpy().tolist() == [
        ["family", "family-resnet10", "family-resnet18"]
    ]


def test_a_family_that_does_not_fit_the_grid_is_refused_by_name() -> None:
    with pytest.raises(BadInputError, match=r"--families founding: .*too small for founding"):
        family_settings("founding", CONFIG)
    settings = family_settings("founding:pools=[3, 4]:channels=[2, 4]:hidden_units=4", CONFIG)
    assert (settings.field_of_view, settings.own["channels"]) == ("template", (2, 4))


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    cohort = block_cohort(EvaluationLayout(tmp_path_factory.mktemp("blocks")))
    train_run(cohort)
    few = dataclasses.replace(cohort, scans=cohort.scans[:4] + cohort.scans[-4:])

    def asked(config):
        return explanations_of_run(with_methods(config, ["deeplift"]))

    families = ("founding:channels=[4, 8]:pools=[3, 4]:hidden_units=16",)
    outcomes = agree(few, asked, 1, families, True, Inline(), DigestCache(cohort.layout.digests))
    return few, asked, families, outcomes


@pytest.mark.ci
def test_networks_of_other_seeds_epochs_and_families_find_the_same_block(agreed) -> None:
    cohort, _, _, outcomes = agreed
    assert all(one.ok for one in outcomes)
    networks = NETWORKS_TABLE.read(cohort.layout).set_index("networks")
    assert networks["kind"].tolist() == ["own", "seed", "epochs", "family"]
    assert networks["n_participants"].eq(8).all()
    full = networks[networks["in_consensus"]]
    assert full["auc"].min() > 0.9
    assert full["hits_difference"].eq(1).all()
    assert full["auroc_difference"].eq(1).all()
    regions = REGIONS_TABLE.read(cohort.layout)
    assert regions["group"].iloc[0] == INFORMATIVE
    assert regions["mean_place"].iloc[0] == 1
    pairs = CONSENSUS_TABLE.read(cohort.layout)
    assert pairs["differ_in"].value_counts().to_dict() == {
        "several": 3,
        "folds": 1,
        "seed": 1,
        "epochs": 1,
        "family": 1,
    }


@pytest.mark.ci
def test_a_fold_without_controls_is_refused_before_any_training(agreed, tmp_path) -> None:
    cohort, asked, _, _ = agreed
    patients = tuple(scan for scan in cohort.compared_with if scan.label == "AD")
    before = sorted(cohort.layout.evaluation.rglob("*.safetensors"))
    with pytest.raises(BadInputError, match=r"fold 0: its training part has no registered scan of a control"):
        agree(dataclasses.replace(cohort, compared_with=patients), asked, 4, (), True, Inline(), DigestCache(tmp_path))
    assert sorted(cohort.layout.evaluation.rglob("*.safetensors")) == before


@pytest.mark.ci
def test_networks_that_the_run_has_are_used_and_a_second_call_does_nothing(agreed) -> None:
    cohort, asked, families, _ = agreed
    before = {path: path.read_bytes() for path in cohort.layout.evaluation.glob("*.tsv")}
    again = agree(cohort, asked, 1, families, True, Inline(), DigestCache(cohort.layout.digests))
    assert {one.status for one in again} == {"unchanged"}
    assert {path: path.read_bytes() for path in before} == before
    for fold in cohort.split.folds:  # as a run with [training] repeats = 2 has them
        source = cohort.layout.evaluation / "models" / "run_repeat-2" / f"fold-{fold.index}"
        target = cohort.layout.fold(fold.index).folder / "repeat-2"
        target.mkdir()
        for path in source.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
    found = {one.name: one for one in sets_of_networks(cohort, 2, (), True)}
    assert found["repeat-2"].made
    assert found["repeat-2"].layout.fold(0).folder == cohort.layout.fold(0).folder / "repeat-2"
    assert not found["repeat-3"].made
    assert {one.kind for one in found.values()} == {"own", "seed", "epochs"}
