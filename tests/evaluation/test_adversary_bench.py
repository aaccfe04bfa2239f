"""What could make the bench say something false: perfect maps, failed scans, single splits, signs, two names."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.judging import (
    LEAST_SPREAD,
    CohortMaps,
    Extent,
    Judge,
    density_ratio,
    those_judged,
)
from heatlas.pipeline.evaluation.bench.part import Bench, BenchRequest, few_methods, with_earlier, with_methods
from heatlas.pipeline.evaluation.bench.table import evaluation_table, ranking_columns
from heatlas.pipeline.evaluation.bench.verdicts import (
    VERDICTS_TABLE,
    distractor_table,
    numbers_of,
    sentence,
    verdict_table,
)
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort, Truth
from heatlas.pipeline.evaluation.nulls import shuffled_name, with_swapped_labels
from heatlas.pipeline.evaluation.planting.copies import paired_folds, people_to_plant
from heatlas.pipeline.evaluation.scores.localisation import (
    LEVEL,
    UNKNOWN,
    at_least,
    chance_of_order,
    wins_in_random_order,
)
from heatlas.pipeline.evaluation.scores.map_scores import ScanMasks, map_row
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import write_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome
from heatlas.workflows.commands import Evaluate
from heatlas.workflows.evaluate import WIDTH, request_of, verdict_lines

CONFIG = load_config()
GROUPS = ("a", "b", "c", "d", "e", "f")
PLANTED = np.array([True, True, False, False, False, False])


def scan(name: str, label: str | None) -> Scan:
    return Scan(participant_id=f"sub-{name}", session_id=None, scan_id=name, image=None, label=label)


def cohort(n: int = 6, truth: Truth | None = None) -> JudgedCohort:
    scans = tuple(scan(f"{place:02}", ("CN", "AD")[place % 2]) for place in range(n))
    split = Split((Fold(0, (), (), tuple(one.participant_id for one in scans)),))
    return JudgedCohort(RUN, EvaluationLayout(Path("out")), scans, split, CONFIG, None, truth, scans, scans)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_perfect_map_ranks_first_whatever_varies_beside_it(noise: float, size: float) -> None:
    """1 in planted regions of patients, 0 in those of controls: no variance within a class, and no better map."""
    is_positive = np.arange(10) % 2 == 1
    values = np.zeros((10, 6))
    values[:, 4] = noise * np.random.default_rng(1).normal(size=10)
    values[np.ix_(is_positive, PLANTED)] = 1.0
    for block in (np.zeros(10, int), np.arange(10) // 2, np.arange(10) // 5):
        found = hedges_g(values * size, is_positive, block, LEAST_SPREAD)
        assert np.isnan(found[[2, 3, 5]]).all()  # nothing there
        scores = ranking_columns(found, PLANTED, "difference")
        assert scores["auroc_difference"] == 1
        assert scores["hits_difference"] == 2
        assert np.isnan(hedges_g(np.ones((10, 2)) * size, is_positive, block, LEAST_SPREAD)).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_map_and_its_negative_are_alike(sign: int) -> None:
    """A network whose logit has another sign turns an LRP map round; that is not following the parameters."""
    values = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    places = ScanMasks.of(np.ones((8, 8, 8), bool), np.zeros((8, 8, 8), int), (), 1.0)
    assert map_row(sign * values, places, values, structure=False)["spearman_real"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["nothing", "everything"])
@pytest.mark.filterwarnings("error")
def test_truth_of_nothing_or_everything_has_no_scores(kind: str) -> None:
    """A brain mask can leave a region out; voxels are not ranked then, and nothing warns."""
    labels = np.full((8, 8, 8), 3 if kind == "everything" else 0)
    places = ScanMasks.of(np.ones((8, 8, 8), bool), labels, (3,), 1.0)
    row = map_row(np.ones((8, 8, 8), np.float32), places, None, structure=False)
    assert places.truth is None
    assert not row["undefined"]
    assert np.isnan([row[name] for name in ("auroc_voxels", "auprc_voxels", "energy", "rim")]).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("density", "ratio"), [((0.0, 2.0), np.inf), ((0.0, 0.0), np.nan), ((2.0, 0.0), 0.0), ((-2.0, 1.0), 0.5)]
)
def test_a_map_with_nothing_in_planted_groups_marks_the_unused(density: tuple[float, float], ratio: float) -> None:
    found = density_ratio([np.array(density)], np.array([True, False]), np.array([False, True]))
    np.testing.assert_equal(found, ratio)


def test_the_verdict_names_an_infinite_ratio() -> None:
    row: dict[str, object] = dict.fromkeys(VERDICTS_TABLE.meanings, float("nan"))
    row |= {name: UNKNOWN for name in ("finds", "tells_labels", "marks_rim")}
    row |= {"follows_parameters": UNKNOWN, "marks_unused": "yes", "unused_ratio": float("inf")}
    assert sentence(row, needs_network=True) == "marks a change that both classes have"
    assert numbers_of(row, needs_network=True) == "only the unused change"


def outcome(one: Scan, status: str) -> Outcome:
    return Outcome(Job("judging", one.scan_id, "", {}, print, (SimpleNamespace(scan=one),)), status)


@pytest.mark.parametrize("failed", [(), ("01",), ("00", "05"), ("02", "03", "04")])
def test_failed_scans_do_not_take_the_rankings_with_them(failed: tuple[str, ...]) -> None:
    whole = cohort(10, Truth(("a", "b"), {f"{place:02}": 1.0 * place for place in range(1, 10, 2)}))
    left = those_judged(whole, [outcome(one, "failed" if one.scan_id in failed else "done") for one in whole.scans])
    assert {one.scan_id for one in whole.scans} - {one.scan_id for one in left.scans} == set(failed)
    random = np.random.default_rng(0)
    sums = {
        one.scan_id: random.normal(size=6) + 9 * PLANTED * (one.label == "AD") * float(one.scan_id)
        for one in left.scans
    }
    scores = pd.DataFrame(
        [{"network": "real", "map": "m", "scan_id": key, "undefined": False, "rim": 1.0} for key in sums]
    )
    rows = CohortMaps(scores, {("real", "m"): sums}, np.ones(6), GROUPS, {"m": "m"})
    table = evaluation_table(left, rows)
    assert table["auroc_difference"].tolist() == [1.0]
    assert table["n_scans"].tolist() == [10 - len(failed)]
    assert table["dose_response"].tolist() == [pytest.approx(1)]  # scans that failed do not count as maps of 0
    assert verdict_table(table)["finds"].tolist() == ["yes"]
    assert len(distractor_table(left, rows)) == 1


@pytest.mark.parametrize("label", ["CN", "AD"])
def test_a_class_of_which_every_scan_failed_is_an_error(label: str) -> None:
    whole = cohort()
    with pytest.raises(BadInputError, match=f"every scan of {label} failed"):
        those_judged(whole, [outcome(one, "failed" if one.label == label else "done") for one in whole.scans])


@pytest.mark.parametrize("names", ["single split", "fold without a network"])
def test_controls_are_those_the_network_was_trained_with(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody of its training part is tested: by a single split, or because a run was interrupted."""
    scans = tuple(scan(f"{place:02}", ("CN", "AD")[place % 2]) for place in range(12))
    people = [one.participant_id for one in scans]
    folds = [Fold(0, tuple(people[:6]), tuple(people[6:8]), tuple(people[8:]))]
    if names != "single split":  # the first fold has no network
        folds.insert(0, Fold(1, tuple(people[6:]), (), tuple(people[:6])))
    layout = EvaluationLayout(tmp_path)
    layout.fold(0).folder.mkdir(parents=True)
    layout.fold(0).weights.touch()
    packed = SimpleNamespace(regions=SimpleNamespace(groups={"a": (1,)}))
    monkeypatch.setattr("heatlas.pipeline.evaluation.bench.part.PackedAtlas", SimpleNamespace(of=lambda atlas: packed))
    digests = DigestCache(layout.digests)
    bench = Bench(
        layout, BenchRequest(), scans, Split(tuple(folds)), CONFIG, None, None, digests  # type: ignore[arg-type]
    )  # fmt: skip
    judged = bench._cohort_of_run(tmp_path / "planted.json")
    assert {one.scan_id for one in judged.scans} == {"08", "09", "10", "11"}
    judge = Judge(judged, (), Extent(0, False, False), digests)
    assert {one.scan_id for one in judge._controls.of(0, judged.scans[0])} == {"00", "02", "04"}
    assert judged.fold_of(judged.scans[0]) == 0


@pytest.mark.parametrize(
    ("methods", "sides", "refused"),
    [
        (("lrp",), False, False),
        (("lrp", "gradient"), False, False),
        (("lrp",), True, True),
        (("deeplift",), False, True),
        (("gradient", "region-swap"), False, True),
    ],
)
def test_only_what_compares_with_controls_needs_them(
    methods: tuple[str, ...], sides: bool, refused: bool, tmp_path: Path
) -> None:
    """A fold may have no control in its training part; image maps and faithfulness can do without."""
    scans = tuple(scan(f"{place:02}", ("CN", "AD")[place % 2]) for place in range(12))
    names = [one.participant_id for one in scans]
    split = Split((Fold(0, tuple(names[5::2]), (), tuple(names[:4])),))
    judged = JudgedCohort(
        RUN, EvaluationLayout(tmp_path), scans[:4], split, CONFIG, None, None, scans, scans  # type: ignore[arg-type]
    )  # fmt: skip
    explanations = explanations_of_run(with_methods(CONFIG, methods))
    judge = Judge(judged, explanations, Extent(0, False, True, sides), DigestCache(tmp_path / "digests"))
    if refused:
        with pytest.raises(BadInputError, match="fold 0: its training part has no registered scan of a control"):
            judge.require_controls()
    else:
        judge.require_controls()
        assert judge._network(scans[1], "real").controls == ()


def test_a_network_that_could_not_be_trained_is_missing_from_the_nulls(tmp_path: Path) -> None:
    """Scans of other folds are still explained by the networks of theirs, and ranked."""
    scans = tuple(scan(f"{place:02}", ("CN", "AD")[place % 2]) for place in range(12))
    names = [one.participant_id for one in scans]
    split = Split((Fold(0, tuple(names[6:]), (), tuple(names[:6])), Fold(1, tuple(names[:6]), (), tuple(names[6:]))))
    layout, truth = EvaluationLayout(tmp_path), Truth(("a", "b"))
    packed = SimpleNamespace(regions=SimpleNamespace(groups={"a": (1,), "b": (2,)}), version="")
    failed = dataclasses.replace(layout, networks=f"run_{shuffled_name(1)}").fold(1).weights
    judged = JudgedCohort(RUN, layout, scans, split, CONFIG, packed, truth, scans, scans, frozenset({failed}))  # type: ignore[arg-type]
    judge = Judge(judged, (), Extent(2, False, False), DigestCache(tmp_path / "digests"))
    asked = {one.scan_id: [n.name for n in judge._job(one, ()).arguments[0].networks] for one in scans}
    assert asked == {
        key: ["real", "shuffled-1", "shuffled-2"] if int(key) < 6 else ["real", "shuffled-2"] for key in asked
    }
    random = np.random.default_rng(0)
    sums = {key: random.normal(size=6) for key in asked}
    scores = [
        {"network": name, "map": "m", "scan_id": key, "undefined": False}
        for key, own in asked.items()
        for name in (*own, *(["cascade-1"] if key in ("01", "07") else []))
    ]
    by_network = {(name, "m"): sums for name in ("real", "shuffled-1", "shuffled-2", "cascade-1")}
    rows = CohortMaps(pd.DataFrame(scores), by_network, np.ones(6), GROUPS, {"m": "m"})
    table = evaluation_table(judged, rows).set_index("network")
    assert table["n_scans"].to_dict() == {"real": 12, "shuffled-1": 6, "shuffled-2": 12, "cascade-1": 2}
    assert table["hits_difference"].notna().to_dict() == {
        "real": True, "shuffled-1": True, "shuffled-2": True, "cascade-1": False,
    }  # fmt: skip


def test_one_person_with_two_names_is_planted_once() -> None:
    """Else a network is trained with one copy of a person, and tested and compared with another."""
    names = [f"ADNI{site:03}S{rid:04}" for rid in range(8) for site in (2, 131)]
    people = people_to_plant([scan(name, "CN") for name in names], "CN", 1)
    assert len(people) == 8
    split = paired_folds(people, 4, 0.2, 1)
    assert sum(len(fold.test) for fold in split.folds) == 8


@pytest.mark.parametrize("seed", range(5))
def test_one_person_with_two_names_has_one_shuffled_label(seed: int) -> None:
    """Else one brain is shown with both labels; and the sizes of classes stay, counted in people."""
    names = [(site, rid) for rid in range(8) for site in (2, 131)[: rid % 3 + 1]]
    scans = [scan(f"ADNI{site:03}S{rid:04}", ("AD", "CN")[rid % 2]) for site, rid in names]
    fold = Fold(0, tuple(one.participant_id for one in scans), (), ())
    labels: dict[str, set[str | None]] = {}
    for one in with_swapped_labels(scans, fold, CONFIG.cohort, seed):
        labels.setdefault(one.participant_id[-4:], set()).add(one.label)
    assert all(len(own) == 1 for own in labels.values())
    assert sum(own == {"AD"} for own in labels.values()) == 4
    assert sum(own == {"AD"} for rid, own in labels.items() if int(rid) % 2) == 2


@pytest.mark.parametrize("typed", [["nulls, plant"], ["nulls,", "plant"], [" nulls ,plant "], ["nulls", "plant"]])
def test_spaces_beside_commas_do_not_matter(typed: list[str]) -> None:
    arguments = Evaluate(out=Path("out"), parts=tuple(typed), methods=("lrp, gradient",))
    request = request_of(arguments)
    assert [part.name for part in request.parts] == ["nulls", "plant"]
    assert request.methods == ("lrp", "gradient")
    assert dataclasses.replace(request, quick=True).extent().shuffles == 1


def evaluated(network: str, **values: object) -> dict[str, object]:
    usual: dict[str, object] = dict.fromkeys(
        ("auroc_difference", "hits_difference", "n_planted", "unused_ratio", "rim", "spearman_real"), float("nan")
    )
    usual |= {"cohort": "run", "map": "m", "method": "m", "severity": "all", "n_scans": 10, "n_undefined": 0}
    usual |= {"n_groups": 67}
    return usual | {"network": network} | values


FOUND = {"auroc_difference": 1.0, "hits_difference": 5.0, "n_planted": 5, "unused_ratio": 0.0}
LOST = {"auroc_difference": 0.5, "hits_difference": 0.0, "n_planted": 5}


@pytest.mark.parametrize(
    ("rows", "passed"),
    [
        ([evaluated("real", **FOUND)], None),
        ([evaluated("real", **FOUND), evaluated("shuffled-1", **LOST, spearman_real=0.1)], None),
        ([evaluated("real", **FOUND), evaluated("shuffled-1", **LOST), evaluated("untrained", spearman_real=0)], True),
        ([evaluated("real", **FOUND), evaluated("shuffled-1", **FOUND, spearman_real=0.9)], False),
        ([evaluated("real", **FOUND), evaluated("untrained", spearman_real=0.9)], False),
        ([evaluated("none", **FOUND)], False),
        ([evaluated("real", **{**FOUND, "unused_ratio": float("inf")})], False),
        ([evaluated("real"), evaluated("shuffled-1", spearman_real=0), evaluated("untrained", spearman_real=0)], None),
        ([evaluated("real"), evaluated("shuffled-1", spearman_real=0.9)], False),
        ([evaluated("real")], None),
        ([evaluated("real", n_undefined=10)], False),
    ],
    ids=[
        "nulls not asked", "one null not asked", "perfect map and nulls",
        "found with any labels", "found by any network", "image difference",
        "unused change alone", "noise without a truth", "image without a truth", "nothing asked", "zero everywhere",
    ],
)  # fmt: skip
def test_who_passes(rows: list[dict[str, object]], passed: bool | None) -> None:
    row = verdict_table(pd.DataFrame(rows)).iloc[0]
    assert (None if pd.isna(row["passed"]) else bool(row["passed"])) is passed


def with_swaps(*scores: tuple[float, float]) -> pd.Series:
    """The verdict on a map that finds everything, by hits and area of each swap of labels."""
    swaps = [
        evaluated(f"shuffled-{place}", auroc_difference=area, hits_difference=hits, n_planted=5, spearman_real=0.1)
        for place, (hits, area) in enumerate(scores, 1)
    ]
    return verdict_table(pd.DataFrame([evaluated("real", **FOUND), *swaps])).iloc[0]


@pytest.mark.parametrize(
    ("scores", "answer", "said"),
    [
        (((2, 0.43),), "yes", "shuffled labels: 2 of 5, AUROC .43, one swap, p = .69 by chance"),
        (((1, 0.70),), "yes", "one swap"),
        (((4, 0.55),), "yes", "one swap"),  # disease gathers at both ends where a network has learned nothing
        (((1, 0.80),), "no", "one swap"),
        (((2, 0.6), (1, 0.5), (0, 0.4)), "yes", "shuffled labels: 1 of 5, AUROC .50, mean of 3 swaps"),
        (((1, 0.7), (1, 0.7), (1, 0.7)), "no", "mean of 3 swaps"),
        (((5, 1.0),), "no", "p < .01 by chance"),
    ],
)
def test_shuffled_labels_are_judged_by_what_chance_gives(
    scores: tuple[tuple[float, float], ...], answer: str, said: str
) -> None:
    """An area of .7 with one swap is no sign of anything; the same in each of three swaps is."""
    row = with_swaps(*scores)
    assert row["tells_labels"] == answer
    assert said in row["numbers"]
    assert row["n_swaps"] == len(scores)


@pytest.mark.ci
@pytest.mark.parametrize("swaps", [1, 3])
@pytest.mark.parametrize(("groups", "planted"), [(67, 5), (67, 1), (20, 4)])
def test_a_map_that_ranks_at_random_fails_in_at_most_one_of_twenty(swaps: int, groups: int, planted: int) -> None:
    random = np.random.default_rng(0)
    truth = np.arange(groups) < planted
    failed = 0
    for _ in range(300):
        scores = [ranking_columns(random.permutation(groups) + 1.0, truth, "by") for _ in range(swaps)]
        areas = [float(one["auroc_by"]) for one in scores]
        failed += chance_of_order(areas, groups, planted) < LEVEL
    assert failed / 300 <= LEVEL + 2 * np.sqrt(LEVEL / 300)


def test_a_verdict_counts_undefined_maps() -> None:
    row = verdict_table(pd.DataFrame([evaluated("real", n_undefined=3, **FOUND)])).iloc[0]
    assert row["numbers"].startswith("0 everywhere or not finite in 3 of 10 scans; 5 of 5 planted groups")


def test_printed_verdicts_are_wrapped_and_keep_every_answer_and_number() -> None:
    rows = [evaluated("real", **FOUND), evaluated("shuffled-1", auroc_difference=0.5)]
    table = verdict_table(pd.DataFrame([{**one, "map": name} for name in ("a", "m" * 60) for one in rows]))
    lines = verdict_lines(table)
    assert max(map(len, lines)) <= WIDTH
    printed = " ".join(" ".join(lines).split())
    for row in table.to_dict("records"):
        assert f"{row['map']}: {row['verdict']}" in printed
        assert row["numbers"] in printed


def test_planted_rows_of_an_earlier_call_are_kept_and_those_judged_again_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.tsv"
    earlier = pd.DataFrame({"cohort": ["run", "planted"], "map": ["m", "m"], "auroc": [0.1, 0.2]})
    made = pd.DataFrame({"cohort": ["run"], "map": ["m"], "auroc": [0.9]})
    assert with_earlier(path, made) is made
    write_table(path, earlier)
    assert with_earlier(path, made).to_dict("list") == dict(cohort=["run", "planted"], map=["m", "m"], auroc=[0.9, 0.2])
    write_table(path, earlier.drop(columns="auroc"))
    assert with_earlier(path, made) is made


@pytest.mark.sample(2)
@pytest.mark.parametrize(("regions", "planted"), [(5, 2), (6, 3), (4, 1)])
def test_chance_is_that_of_all_orders(regions: int, planted: int) -> None:
    truth = np.arange(regions) < planted
    orders = [ranking_columns(np.array(order, float) + 1, truth, "by") for order in permutations(range(regions))]
    wins = np.array([one["auroc_by"] for one in orders], float) * planted * (regions - planted)
    expected = np.bincount(np.round(wins).astype(int), minlength=planted * (regions - planted) + 1) / len(orders)
    np.testing.assert_allclose(wins_in_random_order(planted, regions - planted), expected, atol=1e-12)
    both = np.add.outer(wins, wins)
    assert at_least(expected, [1.0, 2.0]) == pytest.approx((both >= 3).mean())


@pytest.mark.parametrize(
    ("controls", "patients", "message"),
    [(1, 5, "1 of CN"), (5, 1, "1 of AD"), (0, 4, "0 of CN"), (4, 0, "0 of AD"), (2, 2, ""), (2, 5, "")],
)
def test_labels_of_a_tiny_class_cannot_be_shuffled(controls: int, patients: int, message: str) -> None:
    """With one person of a class the only exchange changes every label of it: that says as much as the true ones."""
    scans = [scan(f"c{n}", "CN") for n in range(controls)] + [scan(f"a{n}", "AD") for n in range(patients)]
    fold = Fold(3, tuple(one.participant_id for one in scans), (), ())
    if message:
        with pytest.raises(BadInputError, match=f"fold 3: its training part has {message}, and shuffled labels need"):
            with_swapped_labels(scans, fold, CONFIG.cohort, 1)
        return
    new = [one.label for one in with_swapped_labels(scans, fold, CONFIG.cohort, 1)]
    assert 0 < sum(a == b.label for a, b in zip(new, scans, strict=True)) < len(scans)
    for label, count in (("CN", controls), ("AD", patients)):
        assert new.count(label) == count


@pytest.mark.parametrize("methods", [("gradient", "gradient"), ("deeplift", "gradient", "deeplift")])
def test_methods_named_twice_are_asked_once_in_every_part(methods: tuple[str, ...]) -> None:
    bench = Bench(None, BenchRequest(methods), (), Split(()), CONFIG, None, None, None)  # type: ignore[arg-type]
    once = list(dict.fromkeys(methods))
    for asked in (few_methods(bench.request, CONFIG), bench.explanations(CONFIG)):
        assert [one.entry.name for one in asked] == once
