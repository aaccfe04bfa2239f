"""Verdicts by rule, and the stored numbers that they are made of."""

from __future__ import annotations

import gzip

import asked
import claim_numbers
import numpy as np
import pandas as pd
import pytest
from asked import of_relevance, rank_correlation, relevance_of
from claim_numbers import Numbers
from scipy.stats import spearmanr, t
from sklearn.metrics import roc_auc_score

from heatlas.pipeline.evaluation.claims import rule
from heatlas.pipeline.evaluation.claims.relevance import BETAS, GUIDED, INTENSITY, PREDICTED, Relevance
from heatlas.pipeline.evaluation.claims.rule import HOLDS, NOT, OPEN, Design, Estimate, area_of, estimate, mean_of, told
from tests.evaluation.interval_coverage import coverage, simulated

RANDOM = np.random.default_rng(5)


def test_without_networks_of_their_own_an_interval_is_that_of_people():
    """One seed and one network: the variance of a mean within classes, in closed form."""
    classes = np.repeat([0, 1], [40, 60])
    values = RANDOM.normal(size=(100, 1)) + 3 * classes[:, None]
    found = estimate(mean_of(values), Design(classes, np.zeros((100, 1), int)))
    shares = [(0.4, values[:40, 0]), (0.6, values[40:, 0])]
    error = np.sqrt(sum(share**2 * own.var(ddof=1) / len(own) for share, own in shares))
    assert found.mean == pytest.approx(values.mean())
    assert found.error == pytest.approx(error, rel=0.08)  # 1,000 draws
    assert found.freedom == 98


def test_networks_that_differ_widen_an_interval():
    """People who are all alike: what is left is the variance of 15 networks."""
    design, values = simulated(np.random.default_rng(1), (65, 65, 3), 1.0, 0.0)
    shifts = np.array([[values[design.folds[:, s] == f, s].mean() for f in range(5)] for s in range(3)])
    alike = np.take_along_axis(shifts.T, design.folds, axis=0)
    found = estimate(mean_of(alike), design)
    assert found.mean == pytest.approx(shifts.mean())
    assert found.error == pytest.approx(np.sqrt(shifts.var(ddof=1) / 15), rel=0.05)
    assert 14 <= found.freedom < 20
    assert found.interval[1] == pytest.approx(found.mean + t.ppf(0.975, found.freedom) * found.error)


@pytest.mark.slow
@pytest.mark.parametrize(("networks", "rest"), [(0, 1), (0.1, 0.25), (1, 0.25)])
def test_intervals_hold_the_truth_as_often_as_they_say(networks, rest):
    held, alone = coverage((65, 68, 3), networks, rest)
    assert 93.5 <= held <= 96.5
    assert networks == 0 or alone < 90


def test_areas_are_those_of_pairs_within_folds():
    values, folds = RANDOM.normal(size=(30, 1)).round(1), np.arange(30)[:, None] % 2
    positive = np.arange(30) % 3 == 0
    own = [folds[:, 0] == fold for fold in (0, 1)]
    areas = [roc_auc_score(positive[one], values[one, 0]) for one in own]
    pairs = [positive[one].sum() * (~positive[one]).sum() for one in own]
    weights = np.ones((2, 30))
    weights[1, own[0]] = 0
    found = area_of(values, positive, folds)(0, weights)
    assert found == pytest.approx([np.average(areas, weights=pairs), areas[1]])


def test_what_is_known_by_one_network_alone_has_no_error_and_no_verdict():
    """Values in one fold of five: without its network there is nothing, so how networks differ is not known."""
    folds = np.arange(60)[:, None] % 5
    values = np.where(folds == 0, RANDOM.normal(5, 1, size=(60, 1)), np.nan)
    design = Design(np.arange(60) % 2, folds)
    with np.errstate(invalid="ignore"):
        found = estimate(mean_of(values), design)
    assert found.mean == pytest.approx(np.nanmean(values))
    assert np.isnan([found.error, *found.interval]).all()
    assert told(found, "above", 0) == (OPEN, 1.0)


def test_totals_of_an_outcome_are_shares_of_their_folds_and_unknown_where_nobody_is_drawn():
    classes, folds = np.arange(40) % 2, np.arange(40)[:, None] % 4 // 2
    maps, answers = RANDOM.uniform(1, 2, (1, 40, 2)), np.where(np.arange(40)[:, None] % 4 == 0, 0.9, 0.2)
    own = Relevance({"lrpB000": maps}, {"Pons": 3, "Amygdala": 2}, classes, folds, lambda _: answers)
    totals, false = maps[0].sum(axis=1), np.arange(40) % 4 == 0  # false positives are of the first fold alone
    assert own.outcomes["FP"][:, 0].tolist() == false.tolist()
    weights = np.stack([np.ones(40), folds[:, 0] == 0, folds[:, 0] == 1])
    with np.errstate(invalid="ignore"):
        found = own.total("lrpB000", "FP")(0, weights.astype(float))
    assert found[:2] == pytest.approx([(totals[false] / totals[folds[:, 0] == 0].mean()).mean()] * 2)
    assert np.isnan(found[2])
    maps[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match="lrpB000: a sum of a person"):
        Relevance({"lrpB000": maps}, {"Pons": 3, "Amygdala": 2}, classes, folds, lambda _: answers)


def test_a_verdict_needs_an_interval_beyond_the_bound():
    one = Estimate(0.3, 0.1, 20, (0.3,))  # .09 to .51
    assert told(one, "above", 0)[0] == HOLDS
    assert told(one, "below", 0)[0] == NOT
    assert told(one, "above", 0.1)[0] == told(one, "below", 0.5)[0] == OPEN
    assert told(one, "above", 0)[1] == pytest.approx(2 * t.sf(3, 20))
    assert told(one, "within", 0.6)[0] == HOLDS
    assert told(one, "within", 0.05)[0] == NOT
    assert told(one, "within", 0.4)[0] == OPEN
    assert told(one, "within", 0.25, 0.3)[0] == HOLDS
    assert told(one, "within", 0.1, 0.9)[0] == NOT
    assert rule.together([(HOLDS, 0.01), (HOLDS, 0.03)]) == (HOLDS, 0.03)
    assert rule.together([(HOLDS, 0.01), (OPEN, 0.2)]) == (OPEN, 0.2)
    assert rule.together([(NOT, 0.01), (OPEN, 0.2), (NOT, 0.04)]) == (NOT, 0.03)
    assert rule.together([(NOT, 0.02), (OPEN, 0.2), (NOT, 0.04)]) == (OPEN, 0.06)
    assert rule.at_an_end([0.5, 0.985], 0, 1)
    assert not rule.at_an_end([0.5, 0.97], 0, 1)
    assert rule.at_an_end([-0.97], -1, 1)
    assert rule.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


def rows_of(people: int = 24) -> pd.DataFrame:
    each = pd.DataFrame({"person": [f"sub-{k:02d}" for k in range(people)], "class": np.arange(people) % 2})
    frames = []
    for seed in (1, 2):
        known = each.assign(seed=seed, fold=np.random.default_rng(seed).permutation(people) % 3)
        for measure in ("a", "b"):
            frames.append(known.assign(measure=measure, value=RANDOM.normal(size=people)))
    return pd.concat(frames)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(claim_numbers.subprocess, "check_output", lambda *words, **how: "abc123\n")
    return lambda rows, about=(): claim_numbers.write("toy", rows, dict(about), tmp_path)


def test_numbers_come_back_without_names_in_an_order_of_their_own(kept, tmp_path):
    rows = rows_of()
    first = kept(rows, {"voxels": {"Pons": 3}}).read_bytes()
    names = {f"sub-{k:02d}": f"sub-{(7 * k) % 24:02d}" for k in range(24)}
    shuffled = rows.assign(person=rows["person"].map(names)).sample(frac=1, random_state=0)
    assert kept(shuffled, {"voxels": {"Pons": 3}}).read_bytes() == first, "names and order leave no trace"
    assert b"sub-" not in gzip.decompress(first)
    found = claim_numbers.read("toy", tmp_path)
    assert found.about["voxels"] == {"Pons": 3}
    assert (found.about["people"], found.about["commit"]) == (24, "abc123")
    assert list(found.wide) == ["a", "b"]
    wide = rows[rows["measure"] == "a"].pivot_table(index=["class", "person"], columns="seed", values="value")
    ordered = wide.sort_values(["class", 1])
    assert found.of("a") == pytest.approx(ordered.to_numpy(), rel=1e-4)
    assert found.classes.tolist() == [0] * 12 + [1] * 12
    folds = rows[rows["measure"] == "a"].pivot_table(index=["class", "person"], columns="seed", values="fold")
    assert (found.folds == folds.loc[ordered.index].to_numpy()).all()


def test_a_damaged_table_is_named(kept, tmp_path):
    path = kept(rows_of())
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(SystemExit, match=r"toy.tsv.gz: cannot be read"):
        claim_numbers.read("toy", tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole).replace(b"\t1\t", b"\t0\t", 1)))
    with pytest.raises(SystemExit, match=r"not the table that toy.json describes"):
        claim_numbers.read("toy", tmp_path)


REGIONS = [f"region {k}" for k in range(12)]
NAMED = ["Hippocampus", "Amygdala", "Parahippocampal gyrus", "Entorhinal area", "Transverse temporal gyrus"]
NAMED += ["Planum temporale", "Cerebral white matter", "Cerebellum"]


@pytest.fixture(scope="module")
def relevance():
    """Relevance of forty people and two seeds, at random."""
    random, n = np.random.default_rng(3), 40
    people = pd.DataFrame({"person": np.arange(n), "class": np.arange(n) % 2})
    frames = []
    for seed in (1, 2):
        known = people.assign(seed=seed, fold=random.permutation(n) // 2 % 2)
        measures = {
            f"{m}: {r}": random.gamma(2, size=n) for m in (*BETAS.values(), GUIDED, PREDICTED) for r in NAMED + REGIONS
        }
        measures |= {f"{m} at {beta:g}": random.uniform(size=n) for m in ("Gini index", "entropy") for beta in BETAS}
        measures |= {name: random.uniform(size=n) for name in ("probability", INTENSITY)}
        frames += [known.assign(measure=name, value=values) for name, values in measures.items()]
    size = {name: int(k) + 5 for k, name in enumerate(NAMED + REGIONS)}
    return Numbers("relevance", pd.concat(frames), {"voxels": size})


def test_statistics_of_relevance_are_those_of_plain_code(relevance):
    """Each by loops over people, for people as they are and for some drawn several times."""
    own, known, seed = relevance_of(relevance), of_relevance(relevance), 1
    drawn = np.random.default_rng(0).integers(0, 4, size=40).astype(float)
    for weights in (np.ones(40), drawn):
        rows = np.repeat(np.arange(40), weights.astype(int))
        sums, fold, ill = own.sums("lrpB000", seed)[rows], relevance.folds[rows, seed], own.positive[rows]
        totals = sums.sum(axis=1)
        shares = totals / np.array([totals[fold == one].mean() for one in fold])
        outcome = {kind: flags[rows, seed] for kind, flags in own.outcomes.items()}
        gain = sums / np.stack([sums[(fold == one) & ~ill].mean(axis=0) for one in fold])
        size, value = own.size, lambda name, w=weights: known[name](seed, w[None])[0]
        assert value("total of FP, LRP") == pytest.approx(shares[outcome["FP"]].mean())
        assert value("total of controls, LRP") == pytest.approx(shares[~ill].mean())
        means = [shares[outcome[kind]].mean() for kind in ("TP", "FN", "TN", "FP")]
        expected = min(means[1], means[3]) - max(means[0], means[2])
        assert value("misclassified above others, LRP") == pytest.approx(expected)
        assert value("with size, LRP") == pytest.approx(spearmanr(sums[ill].mean(axis=0), size).statistic)
        densities = [(sums[outcome[kind]] / size).mean(axis=0) for kind in ("FP", "TP")]
        assert value("false like true positives") == pytest.approx(spearmanr(*densities).statistic)
        order = np.argsort(-gain[outcome["TP"]].mean(axis=0))
        assert value("place of hippocampus") == order.tolist().index(0) + 1
        expected = sum(
            own.regions[k] in ("Transverse temporal gyrus", "Hippocampus", "Planum temporale", "Amygdala")
            for k in order[:10]
        )
        assert value("among the first ten by gain") == expected
        dense = np.argsort(-(sums[ill] / size).mean(axis=0))[:10]
        assert value("known, among the first ten by density") == (dense < 4).sum()
        assert value("regions, LRP") == (sums[ill].mean(axis=0) > sums[~ill].mean(axis=0)).mean()
        other = own.sums("lrpB025", seed)[rows]
        first = [set(np.argsort(-one[ill].sum(axis=0))[:10]) for one in (sums, other)]
        assert own.shared("sum", lambda gap: gap == 0.25)(seed, weights[None])[0] <= 1
        assert (own.first("lrpB000", "sum", seed, weights[None])[0].nonzero()[0] == sorted(first[0])).all()
        assert (own.first("lrpB025", "sum", seed, weights[None])[0].nonzero()[0] == sorted(first[1])).all()
        spreads = []
        for who in (ill, ~ill):
            left = [
                ((sums[who & (fold == one)] - sums[who & (fold == one)].mean(axis=0)) ** 2).sum(axis=0)
                for one in (0, 1)
            ]
            spreads.append(np.sqrt(sum(left) / (who.sum() - 2)))
        assert value("spread, patients over controls") == pytest.approx(np.median(spreads[0] / spreads[1]))
        assert value("Gini index at 0.5") == pytest.approx(relevance.of("Gini index at 0.5")[rows, seed].mean())
        right, of = outcome["TP"], sums[:, own.regions.index("Hippocampus")]
        tissue = relevance.of(INTENSITY)[rows, seed]
        shares = of / np.array([of[right & (fold == one)].mean() for one in fold])
        expected = np.corrcoef(shares[right], tissue[right])[0, 1]
        assert value(f"{INTENSITY}, LRP β = 0") == pytest.approx(expected)
        white = own.regions.index("Cerebral white matter")
        assert value("Cerebral white matter, LRP") == pytest.approx(sums[ill, white].mean() / sums[~ill, white].mean())


def toy(measures: dict[str, np.ndarray]) -> asked.Study:
    """Of values (people, seeds), the first half of the people healthy."""
    known = [
        pd.DataFrame({"measure": name, "seed": s, "person": np.arange(len(values)), "value": values[:, s],
                      "class": np.arange(len(values)) * 2 // len(values), "fold": np.arange(len(values)) % 5})
        for name, values in measures.items() for s in range(values.shape[1])
    ]  # fmt: skip
    return asked.Study(Numbers("toy", pd.concat(known).dropna(subset="value"), {}))


def test_a_name_may_hold_less_and_begins_with_the_longest_recipe():
    names = [
        "dark, logit",
        "dark, off, logit",
        "dark, less the mean: out",
        "dark, off, out",
        "out, copy, less an even map",
    ]
    study = toy({name: RANDOM.normal(size=(20, 2)) for name in (*names, "probability")})
    both = "dark, less the mean: out less out, copy, less an even map"
    assert study.sides(both) == ("dark, less the mean: out", "out, copy, less an even map")
    assert study.sides("dark, off, out less probability") == ("dark, off, out", "probability")
    expected = (study.numbers.of("dark, less the mean: out") - study.numbers.of("out, copy, less an even map")).mean(0)
    assert study.estimate(both).seeds == pytest.approx(expected)
    assert study.answers(both) == {"dark, logit", "probability"}
    assert study.answers("dark, off, out") == {"dark, off, logit"}
    with pytest.raises(SystemExit, match="no statistic 'dark, of, out'; did you mean 'dark, off, out'"):
        study.sides("dark, of, out less probability")


def test_a_head_at_the_end_of_a_name_has_answers_of_its_own():
    blind = RANDOM.normal(size=(60, 2))
    known = np.repeat([[-3.0], [3.0]], 30, axis=0) + 0.1 * blind
    study = toy({"AG: cam, GAP": blind, "AG: cam, stream": blind, "GAP, logit": known, "stream, logit": blind})
    assert study.networks_know("AG: cam, GAP")
    assert not study.networks_know("AG: cam, stream less AG: cam, GAP")


@pytest.mark.parametrize("ties", [False, True])
def test_people_who_are_drawn_twice_count_twice_in_a_rank_correlation(ties):
    values = RANDOM.normal(size=(2, 15, 1)).round(0 if ties else 9)
    values[0, 3] = np.nan
    times = RANDOM.integers(0, 4, size=15)
    drawn = np.repeat(np.delete(values, 3, axis=1), np.delete(times, 3), axis=1)
    found = rank_correlation(*values)(0, times[None].astype(float))
    assert found == pytest.approx(spearmanr(*drawn[:, :, 0]).statistic)


def test_an_unknown_statistic_is_named_with_the_nearest(relevance):
    with pytest.raises(SystemExit, match="no statistic 'area, LPR'; did you mean 'area, LRP'"):
        asked.Study(relevance).estimate("area, LPR")
