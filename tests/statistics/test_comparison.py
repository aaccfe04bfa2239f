"""Agreement of rankings and McNemar between runs: against scipy, statsmodels and planted agreement."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from made_up import FAST, fast, people, predictions_of
from mci_cohort import inputs_of, relevance_table
from scipy.stats import binomtest, friedmanchisquare, hypergeom

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.comparison.rankings import (
    RANKING_AGREEMENT_TABLE,
    Rankings,
    agreement,
    agreement_table,
    kendall_w,
    mean_overlap,
    ranking_agreement_tables,
    rankings_of_run,
    tops,
)
from heatlas.pipeline.statistics.comparison.runs import (
    MCNEMAR_TABLE,
    Run,
    common_scans,
    mcnemar_table,
    run_agreement_table,
    votes,
    with_one_name_per_person,
)
from heatlas.pipeline.statistics.data.values import RelevanceValues


def test_one_person_under_two_names_has_one_vote() -> None:
    scans = people(4, (2,))
    names = [f"sub-ADNI{(2, 131)[s.session_id != 'ses-M000']:03d}S{int(s.participant_id[4:]):04d}" for s in scans]
    predictions = predictions_of(scans).assign(participant_id=names)
    values = RelevanceValues.of(relevance_table(scans, np.zeros(len(scans))), predictions)
    runs = [Run(name, FAST, predictions, values) for name in "ab"]
    assert len(votes(runs[0], common_scans(runs))) == 16
    joined = with_one_name_per_person(runs)
    table = mcnemar_table(joined, common_scans(joined), 0)
    assert table["n_participants"].tolist() == [8]
    assert set(run_agreement_table(joined, common_scans(joined), 0)["n_participants"]) == {8, 4}


@pytest.mark.parametrize("ties", [False, True])
def test_w_is_friedmans_statistic(ties: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 12)) + rng.normal(size=12)
    values = np.round(values) if ties else values
    expected = friedmanchisquare(*values.T).statistic / (5 * 11)
    np.testing.assert_allclose(kendall_w(values), expected)


def test_w_of_two_rankings_is_that_of_their_rank_correlation() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 9))
    rho = pd.DataFrame(values.T).corr("spearman").iloc[0, 1]
    np.testing.assert_allclose(kendall_w(values), (1 + rho) / 2)
    np.testing.assert_allclose(kendall_w(np.stack([values[0], -values[0]])), 0, atol=1e-12)
    assert math.isnan(kendall_w(np.ones((3, 5))))


def test_p_of_w_is_that_of_all_rankings_there_are() -> None:
    """Three rankings of three regions: 216 in all."""
    values = np.array([[1.0, 2, 3], [1, 3, 2], [1, 2, 3]])
    every = [kendall_w(np.array(o, float)) for o in itertools.product(itertools.permutations(range(3)), repeat=3)]
    exact = np.mean(np.array(every) >= kendall_w(values) - 1e-12)
    found = agreement(values, 1, 20_000, np.random.default_rng(2))
    np.testing.assert_allclose(found.p, exact, atol=0.01)


def test_overlap_of_tops_and_what_chance_gives() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 30))
    chosen = tops(np.stack([a, b]), 8)
    common = len(set(np.argsort(-a)[:8]) & set(np.argsort(-b)[:8]))
    np.testing.assert_allclose(mean_overlap(chosen), common / 8)
    found = agreement(np.stack([a, b]), 8, 20_000, rng)
    np.testing.assert_allclose(found.overlap_chance, hypergeom(30, 8, 8).mean() / 8)
    np.testing.assert_allclose(found.overlap_p, hypergeom(30, 8, 8).sf(common - 1), atol=0.012)


def test_overlap_of_three_is_the_mean_of_their_pairs() -> None:
    chosen = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
    np.testing.assert_allclose(mean_overlap(chosen), (0.5 + 0.0 + 0.5) / 3)


def test_ties_at_the_top_go_to_the_first_regions() -> None:
    np.testing.assert_array_equal(tops(np.array([[1.0, 3, 3, 3]]), 2), [[False, True, True, False]])


def test_rankings_of_a_run_are_means_over_participants(tmp_path) -> None:
    scans = people()
    hippocampus = np.arange(float(len(scans)))
    inputs = inputs_of(tmp_path, scans, hippocampus)
    sets = {(r.between, r.map, r.metric, r.scans): r for r in rankings_of_run(inputs.values)}
    folds = sets["folds", "gb", "sum", "positive"]
    assert list(folds.values) == ["fold 0", "fold 1"]
    frame = inputs.frame.assign(h=5 + hippocampus)
    ill = frame[frame["target"] == 1]
    assert (folds.n_participants, folds.n_scans) == (8, len(ill))
    both = sets["folds", "gb", "sum", "all"]
    for found, table in ((folds, ill), (both, frame)):
        expected = table[table["fold"] == 1].groupby("participant_id")["h"].mean().mean()
        np.testing.assert_allclose(found.values["fold 1"][0], expected)
    assert list(sets["methods", None, "sum", "all"].values) == ["lrpB000", "gb"]
    assert list(sets["betas", None, "density", "all"].values) == ["lrpB000"]


def test_table_of_a_run_says_what_cannot_be_ranked(tmp_path) -> None:
    scans = people()
    inputs = inputs_of(tmp_path, scans, np.zeros(len(scans)), config=fast())
    table = ranking_agreement_tables(inputs)
    assert list(table.columns) == list(RANKING_AGREEMENT_TABLE.meanings)
    rows = {(row["between"], row["metric"], row["scans"]): row for _, row in table.iterrows()}
    assert rows["betas", "sum", "all"]["note"] == "1 ranking; two are needed"
    density = rows["methods", "density", "all"]
    assert density["note"] == "2 regions with a value in every ranking; three are needed"  # one has no voxel
    total = rows["methods", "sum", "all"]
    assert (total["n_regions"], total["top"], total["overlap"], total["overlap_chance"]) == (3, 3, 1.0, 1.0)


def test_planted_agreement_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(5)
    common = rng.normal(size=40)
    alike = {f"fold {i}": common + rng.normal(0, 0.5, 40) for i in range(4)}
    apart = {f"fold {i}": rng.normal(size=40) for i in range(4)}
    sets = [Rankings("folds", name, "density", "all", own, 9, 9) for name, own in (("a", alike), ("b", apart))]
    table = agreement_table(iter(sets), FAST.statistics, 3).set_index("map")
    assert table.loc["a", "p"] == table.loc["a", "overlap_p"] == 1 / 200
    assert table.loc["b", "p"] > 0.05
    assert table.loc["a", "overlap"] > 2 * table.loc["a", "overlap_chance"] == 0.5


def run(name: str, wrong: tuple[str, ...] = (), hippocampus: float = 0.0, **changes) -> Run:
    scans = people()
    predictions = predictions_of(scans, wrong).assign(control="none")
    relevance = relevance_table(scans, np.full(len(scans), hippocampus), seed=len(name))
    return Run(name, fast(**changes), predictions, RelevanceValues.of(relevance, predictions))


def test_mcnemar_is_the_binomial_test_over_participants_with_holm() -> None:
    a, b = run("a", ("sub-001",)), run("b", ("sub-002", "sub-003", "sub-004", "sub-005", "sub-006", "sub-007"))
    c = run("c", ("sub-001", "sub-008"))
    runs = [a, b, c]
    scans = common_scans(runs)
    table = mcnemar_table(runs, scans, 3)
    assert list(table.columns) == list(MCNEMAR_TABLE.meanings)
    first = table.iloc[0]
    assert (first["run_a"], first["run_b"], first["n_participants"], first["n_scans"]) == ("a", "b", 16, len(people()))
    cells = first[["both_right", "only_a_right", "only_b_right", "both_wrong"]].tolist()
    assert cells == [9, 6, 1, 0]
    np.testing.assert_allclose(first["p"], binomtest(6, 7).pvalue)
    np.testing.assert_allclose(first["difference"], 15 / 16 - 10 / 16)
    assert first["ci_low"] < first["difference"] < first["ci_high"]
    p = table["p"].to_numpy()
    by_hand = np.empty(3)
    highest = 0.0
    for step, place in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (3 - step) * p[place]))
        by_hand[place] = highest
    np.testing.assert_allclose(table["p_holm"], by_hand)


def test_runs_that_err_alike_have_p_of_one() -> None:
    row = mcnemar_table([run("a", ("sub-001",)), run("b", ("sub-001",))], [s.scan_id for s in people()], 3).iloc[0]
    assert row["p"] == row["p_holm"] == 1
    assert row["note"] == "both are right and wrong about the same participants"


def test_a_participant_has_one_vote_and_half_is_decided_by_the_first_session() -> None:
    one = run("a")
    person = one.predictions[one.predictions["participant_id"] == "sub-002"]
    assert len(person) == 2
    first, second = person["scan_id"]
    scans = list(one.predictions["scan_id"])

    def right(*wrong: str) -> bool:
        flawed = one.predictions["outcome"].where(~one.predictions["scan_id"].isin(wrong), "FP")
        return bool(
            votes(dataclasses.replace(one, predictions=one.predictions.assign(outcome=flawed)), scans)["sub-002"]
        )

    assert [right(), right(second), right(first), right(first, second)] == [True, True, False, False]
    three = one.predictions[one.predictions["participant_id"] == "sub-004"]["scan_id"].tolist()
    flawed = one.predictions["outcome"].where(~one.predictions["scan_id"].isin(three[:1]), "FP")
    assert votes(dataclasses.replace(one, predictions=one.predictions.assign(outcome=flawed)), scans)["sub-004"]


def test_scans_that_one_run_lacks_are_left_out_and_counted() -> None:
    a, b = run("a"), run("b")
    b = dataclasses.replace(b, predictions=b.predictions[b.predictions["participant_id"] != "sub-000"])
    scans = common_scans([a, b])
    row = mcnemar_table([a, b], scans, 3).iloc[0]
    assert (row["n_participants"], row["n_scans"], row["n_only_a"], row["n_only_b"]) == (15, len(scans), 1, 0)


def test_runs_of_other_cohorts_or_contrasts_are_refused() -> None:
    a, b = run("a"), run("b")
    with pytest.raises(BadInputError, match="two runs or more"):
        common_scans([a])
    other = dataclasses.replace(FAST.cohort, positive="MCI")
    with pytest.raises(BadInputError, match="b: diagnosis CN against MCI"):
        common_scans([a, run("b", cohort=other)])
    renamed = dataclasses.replace(b, predictions=b.predictions.assign(scan_id="X" + b.predictions["scan_id"]))
    with pytest.raises(BadInputError, match="no scan was predicted by all of a, b"):
        common_scans([a, renamed])
    flipped = dataclasses.replace(b, predictions=b.predictions.assign(target=1 - b.predictions["target"]))
    with pytest.raises(BadInputError, match=r"scan I0 has another target in b than in a"):
        common_scans([a, flipped])
    shuffled = dataclasses.replace(flipped, predictions=flipped.predictions.assign(control="shuffled labels"))
    assert len(common_scans([a, shuffled])) == len(people())
    assert mcnemar_table([a, shuffled], common_scans([a, shuffled]), 3).iloc[0]["control_b"] == "shuffled labels"


def test_rankings_of_runs_use_the_same_scans_and_regions() -> None:
    a, b = run("a", hippocampus=9.0), run("bb", hippocampus=9.0)
    fewer = tuple(name for name in b.values.groups if name != "Empty")
    keep = [b.values.groups.index(name) for name in fewer]
    cut = dataclasses.replace(
        b.values, groups=fewer, sums=b.values.sums[:, :, keep], densities=b.values.densities[:, :, keep]
    )
    table = run_agreement_table([a, dataclasses.replace(b, values=cut)], common_scans([a, b]), 3)
    assert set(table["between"]) == {"runs"}
    assert set(table["rankings"]) == {"a, bb"}
    assert set(table["map"]) == {"lrpB000", "gb"}
    assert table["note"].str.contains("two|three").all()
    whole = run_agreement_table([a, b], common_scans([a, b]), 3).set_index(["map", "metric", "scans"])
    assert whole.loc[("gb", "sum", "all"), "kendall_w"] == 1.0
    assert whole.loc[("gb", "sum", "positive"), "n_participants"] == 8
