"""How good every map is, and whether it moves with the scan: ``evaluation.tsv`` and ``shift_curve.tsv``.

``evaluation.tsv`` has every score of every map, by the true network and by the nulls. Maps of a scan are summed over
regions; scans of a participant are averaged. Regions are ranked by the standardised difference between the classes
(Hedges' g), and by the mean density over the positive class. The scans are the same for every network, whatever it says
of them.

``shift_curve.tsv`` says how much a map changes with a scan that is moved (``[evaluation] shifts``), and so how much it
changes if registration errs by some voxels. No map is compared with that of a scan of which more than `LOST` of the
brain leaves the volume.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.bench.judging import (
    CohortMaps,
    class_difference,
    densities,
    density_of,
    density_ratio,
    is_paired,
)
from heatlas.pipeline.evaluation.bench.scan_job import BOXED, FAITHFUL, SEEN, SHIFTED
from heatlas.pipeline.evaluation.cohorts import PLANTED, JudgedCohort
from heatlas.pipeline.evaluation.nulls import NO_NETWORK, REAL
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, HeldOutPeople, balanced_accuracy, participant_interval
from heatlas.pipeline.evaluation.scores.faithfulness import FAITHFULNESS_SCORES, LOST
from heatlas.pipeline.evaluation.scores.localisation import DRAWS_OF_RANKS, FIRST, dose_response, ranked, region_scores
from heatlas.pipeline.evaluation.scores.map_scores import (
    BOX_COLUMNS,
    IOU_COLUMNS,
    MAP_ROW,
    MAP_SCORES,
    SET_SCORES,
    set_scores,
)
from heatlas.pipeline.run.declared import Form, Table, described
from heatlas.pipeline.run.work.jobs import Outcome

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ALL = "all"
FLAGS = ("undefined", "no_positive")
"""Columns of `MAP_ROW` that are counted."""
FAITHFUL_COLUMNS = (
    {
        name: f"{FAITHFULNESS_SCORES[name]}. Mean over the scans in which it was measured, by the true network"
        for name in FAITHFUL
    }
    | {
        "n_seen": "Participants in whom ad, ag and ai were measured",
        **{
            f"{name}_{end}": f"{text} bound of the 95 % bootstrap interval of {name} over participants"
            for name in SEEN
            for end, text in (("low", "Lower"), ("high", "Upper"))
        },
    }
    | {
        "shift_correlation": "Correlation over the voxels of the brain of a map with that of the scan moved along the "
        "diagonal, moved back ([evaluation] shift); 1 where maps move with scans; n/a where more than 0.1 % of the "
        "brain leaves the volume. Mean over the scans in which faithfulness was measured"
    }
    | {name: f"{text}. Mean over positive scans, by the true network" for name, text in BOXED.items()}
    | {
        name: f"{text}. Mean over the scans in which faithfulness was measured, where the truth is known"
        for name, text in MAP_SCORES.items()
    }
    | {
        name: f"{text}. Over the scans in which faithfulness was measured, where the truth is known"
        for name, text in SET_SCORES.items()
    }
)
_RANKED = {
    "auroc": "Probability that a planted group comes before another",
    "hits": f"Planted groups among the first {FIRST}; ties count as a random order of the tied gives",
}
EVALUATION_TABLE = Table(
    "evaluation",
    {
        "cohort": "run: scans of the run; planted: copies of its controls with planted loss, and untouched copies",
        "map": "Map, named as in file names; or a map made without a network",
        **described("method"),
        "network": "real: networks of the run. shuffled-n: trained on labels that say nothing. cascade-n: the real "
        "ones with the last n layers drawn anew. untrained. none: the map needs no network",
        "severity": "all, or the severity of the planted copies that are compared with their untouched ones",
        "n_scans": "Scans explained",
        **described("n_participants"),
        "n_undefined": "Scans whose map is 0 everywhere, which counts with sums of 0, or that have no finite map",
        "n_no_map": "Scans without a finite map; rankings, dose-response and unused_ratio are of the others",
        "n_no_positive": "Positive scans with a map that has no positive value in the brain: no energy, f1, iou, le, "
        "om, ba, ep, sm, gini or entropy",
        "balanced_accuracy": "Of the networks, over these scans",
        **{f"{name}_difference": f"{text}; ranked by Hedges' g between the classes" for name, text in _RANKED.items()},
        **{f"{name}_mean": f"{text}; ranked by mean density over the positive class" for name, text in _RANKED.items()},
        **described("n_planted"),
        "n_groups": "Groups in the ranking",
        "first_groups": "The first groups by Hedges' g, best first",
        **{name: f"{text}. Mean over positive scans" for name, text in MAP_ROW.items() if name not in FLAGS},
        "dose_response": "Rank correlation over positive scans of severity with the sum over planted groups",
        "dose_response_low": "Lower bound of its 95 % bootstrap interval over participants, for maps by the true "
        "network and maps without a network",
        "dose_response_high": "Upper bound",
        "unused_ratio": "Largest ratio, over changes that both classes have, of the mean |density| there to that in "
        "planted groups, in scans that have the change; above 0.5 the map shows what the network need not use",
        "completeness_error": "Largest |sum of the map - evidence it must add up to|, as share of the mean |evidence|",
        "seconds": "Per scan and map, on this machine",
        **FAITHFUL_COLUMNS,
    },
    "cohort, map, network and severity", "How does every map do against nulls, planted truth and the network itself?",
    stage="evaluation", filled=("cohort", "map", "network", "n_scans"),
    later=(
        "n_seen", "energy_small", "energy_large", "shift_correlation", *BOXED,
        *(f"{name}_{end}" for name in SEEN for end in ("low", "high")),
    ),
    forms={"map": Form.CODE, "network": Form.CODE},
)  # fmt: skip


def evaluation_table(cohort: JudgedCohort, rows: CohortMaps) -> pd.DataFrame:
    made = []
    severities = sorted({value for value in (cohort.truth.severity.values() if cohort.truth else ()) if value})
    for (network, name), of_map in rows.scores.groupby(["network", "map"], sort=False):
        made.append(_row(cohort, rows, str(network), str(name), of_map, ALL))
        if cohort.name == PLANTED and network in (REAL, NO_NETWORK):
            for severity in severities:
                scans = _at_severity(cohort, severity)
                at_it = of_map[of_map["scan_id"].isin(scans)]
                made.append(_row(cohort, rows, str(network), str(name), at_it, f"{severity:g}"))
    return EVALUATION_TABLE.frame(made)


def _at_severity(cohort: JudgedCohort, severity: float) -> set[str]:
    """Scans of the people whose planted copy has this severity, both copies."""
    assert cohort.truth is not None
    people = {scan.participant_id for scan in cohort.scans if cohort.truth.severity.get(scan.scan_id) == severity}
    return {scan.scan_id for scan in cohort.scans if scan.participant_id in people}


def _row(
    cohort: JudgedCohort, rows: CohortMaps, network: str, name: str, of_map: pd.DataFrame, severity: str
) -> dict[str, object]:
    positive = {scan.scan_id for scan in cohort.positive}
    of_positive = of_map[of_map["scan_id"].isin(positive)]
    cells: dict[str, object] = {
        "cohort": cohort.name,
        "map": name,
        "method": rows.methods.get(name),
        "network": network,
        "severity": severity,
        "n_scans": len(of_map),
        "n_participants": len({scan.participant_id for scan in cohort.scans if scan.scan_id in set(of_map["scan_id"])}),
        "n_undefined": int(of_map["undefined"].sum()),
        "n_no_map": len(of_map) - len(set(of_map["scan_id"]) & set(rows.sums.get((network, name), {}))),
        "n_no_positive": int(of_positive["no_positive"].sum()) if "no_positive" in of_map else 0,
        "balanced_accuracy": _accuracy(of_map, positive),
        "n_groups": len(rows.groups),
        "seconds": _mean(of_map, "seconds"),
        "completeness_error": completeness(of_map),
    }
    cells |= {column: _mean(of_positive, column) for column in MAP_ROW if column not in FLAGS}
    cells |= {column: _mean(of_positive, column) for column in (*FAITHFUL, "shift_correlation", *BOXED, *MAP_SCORES)}
    cells |= _recognition(cohort, of_positive) | _of_set(cohort, of_positive)
    scans = set(of_map["scan_id"])
    if severity != ALL or covers_folds(cohort, scans):
        cells |= _of_regions(cohort, rows, network, name, scans, severity)
    return cells


def covers_folds(cohort: JudgedCohort, scans: Collection[str]) -> bool:
    """Whether scans are all those of their folds: else they were picked, and say nothing of the classes.

    A fold is missing where its network on shuffled labels could not be trained.
    """
    folds = {cohort.fold_of(scan) for scan in cohort.scans if scan.scan_id in scans}
    return {scan.scan_id for scan in cohort.scans if cohort.fold_of(scan) in folds} == set(scans)


def _of_regions(
    cohort: JudgedCohort, rows: CohortMaps, network: str, name: str, scans: set[str], severity: str
) -> dict[str, object]:
    """Columns that need every scan: rankings, dose-response, distractors."""
    table = densities(cohort, rows, network, name, scans)
    values = table.to_numpy(float)
    is_positive = (table.index.get_level_values("outcome").to_numpy(float) == 1) | (not cohort.task.classes)
    difference = class_difference(table, is_paired(cohort))
    mean = values[is_positive].mean(axis=0) if is_positive.any() else np.full(values.shape[1], np.nan)
    order = np.argsort(-ranked(difference), kind="stable")
    ranked_groups = [rows.groups[place] for place in order if np.isfinite(difference[place])]
    cells: dict[str, object] = {"first_groups": "; ".join(ranked_groups[:FIRST]) or None}
    truth = cohort.truth
    if truth is None:
        return cells
    planted = np.isin(rows.groups, truth.groups)
    cells["n_planted"] = int(planted.sum())
    cells |= ranking_columns(difference, planted, "difference") | ranking_columns(mean, planted, "mean")
    density = {scan.scan_id: density_of(rows, network, name, scan.scan_id) for scan in cohort.positive}
    if severity == ALL and truth.severity:
        dosed = [key for key, row in density.items() if key in truth.severity and np.isfinite(row).all()]
        dose = np.array([truth.severity[scan] for scan in dosed])
        sums = np.array([(density[scan] * rows.n_voxels)[planted].sum() for scan in dosed])
        draws = DRAWS_OF_RANKS if network in (REAL, NO_NETWORK) else 0
        answer = dose_response(dose, sums, draws, cohort.config.seed)
        cells |= {"dose_response": answer.rho, "dose_response_low": answer.low, "dose_response_high": answer.high}
    ratios = []
    looked_at = [scan for scan in cohort.positive if scan.scan_id in scans]
    for distractor in truth.distractors:
        if distractor.kind == "both classes":
            having = [scan for scan in looked_at if not distractor.scans or scan.name in distractor.scans]
            unused = np.isin(rows.groups, [distractor.group])
            ratios.append(density_ratio([density[scan.scan_id] for scan in having], planted, unused))
    cells["unused_ratio"] = max((ratio for ratio in ratios if not np.isnan(ratio)), default=float("nan"))
    return cells


def _of_set(cohort: JudgedCohort, of_map: pd.DataFrame) -> dict[str, float]:
    if IOU_COLUMNS[0] not in of_map:
        return {}
    measured = of_map[of_map[list(IOU_COLUMNS + BOX_COLUMNS)].notna().all(axis=1)]
    person = {scan.scan_id: scan.participant_id for scan in cohort.scans}
    return set_scores(measured, [person[key] for key in measured["scan_id"]])


def ranking_columns(values: Floats, planted: Flags, by: str) -> dict[str, float]:
    scores = region_scores(values, planted.tolist())
    return {f"{name}_{by}": scores[name] for name in _RANKED}


def _accuracy(of_map: pd.DataFrame, positive: set[str]) -> float:
    """Balanced accuracy of the networks over scans; NaN without networks or with one class."""
    if "logit" not in of_map or of_map["logit"].isna().any():
        return float("nan")
    truth = of_map["scan_id"].isin(positive).to_numpy(bool)
    if truth.all() or not truth.any():
        return float("nan")
    people = HeldOutPeople(of_map["scan_id"].to_numpy(str), np.zeros(len(of_map), int), truth)
    return float(balanced_accuracy(of_map["logit"].to_numpy(float), people, np.ones((1, len(of_map))))[0])


def _recognition(cohort: JudgedCohort, of_map: pd.DataFrame) -> dict[str, object]:
    """Participants with scores of masked recognition, and intervals of their means over participants."""
    if not {*SEEN} <= {*of_map.columns}:
        return {}
    person = {scan.scan_id: scan.participant_id for scan in cohort.scans}
    measured = of_map.dropna(subset=list(SEEN))
    means = measured.groupby(measured["scan_id"].map(person))[list(SEEN)].mean()
    cells: dict[str, object] = {"n_seen": len(means)}
    for name in SEEN:
        interval = participant_interval((means[name].to_numpy(float),), np.mean, DRAWS_OF_RANKS, cohort.config.seed)
        cells |= dict(zip((f"{name}_low", f"{name}_high"), interval, strict=True))
    return cells


def completeness(of_map: pd.DataFrame) -> float:
    """Largest error of completeness over the mean size of what should be reached; NaN for maps that promise nothing."""
    if "completeness_error" not in of_map or of_map["completeness_error"].isna().all():
        return float("nan")
    return float(of_map["completeness_error"].abs().max() / of_map["evidence"].abs().mean())


def _mean(of_map: pd.DataFrame, column: str) -> float:
    values = of_map[column].to_numpy(float) if column in of_map else np.array([])
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else float("nan")


SHIFT_CURVE_TABLE = Table(
    "shift_curve",
    {
        **described("cohort"),
        "map": "Map, named as in file names",
        **described("method"),
        "shift": "Voxels by which the scan is moved along each axis, forward and back",
        **{
            name: meaning
            for measure, text in SHIFTED.items()
            for name, meaning in (
                (measure, f"{text}. Mean of both directions and over participants; see note"),
                (f"{measure}_low", f"Lower bound of the 95 % bootstrap interval of {measure} over participants"),
                (f"{measure}_high", "Upper bound"),
            )
        },
        "n_participants": "Participants whose maps were all finite and not even, and whose brain stays in the volume",
        "lost": "Share of the voxels of the brain that leave the volume when the scan is moved, forward or back, "
        "whichever is more. Mean over participants",
        "note": f"How many participants have no value because more than {100 * LOST:g} % of their brain leaves the "
        "volume; n/a if none",
    },
    "map and shift",
    "Do maps move with a scan that is moved?",
    stage="evaluation",
    filled=("cohort", "map", "shift", "n_participants"),
    forms={"map": Form.CODE},  # methods may be named on the command line, which the settings of the run do not know
)


def shift_curve(cohort: JudgedCohort, rows: CohortMaps) -> pd.DataFrame:
    """A row per map of the true network and shift; scans of a participant are averaged."""
    person = {scan.scan_id: scan.participant_id for scan in cohort.scans}
    made: list[list[object]] = []
    for name, of_map in rows.scores[rows.scores["network"] == REAL].groupby("map", sort=False):
        for shift in sorted(cohort.config.evaluation.shifts):
            columns, gone = [f"{measure}_{shift}" for measure in SHIFTED], f"lost_{shift}"
            if not {*columns, gone} <= {*of_map.columns}:
                continue
            asked, measured = of_map.dropna(subset=[gone]), of_map.dropna(subset=columns)
            lost = asked.groupby(asked["scan_id"].map(person))[gone].agg(["mean", "min"])
            if not len(lost):
                continue
            means = measured.groupby(measured["scan_id"].map(person))[columns].mean()
            cells: list[object] = []
            for column in columns if len(means) else ():
                values = means[column].to_numpy(float)
                cells += [values.mean(), *participant_interval((values,), np.mean, DRAWS, cohort.config.seed)]
            cells = cells or [np.nan] * (3 * len(columns))
            cells += [len(means), lost["mean"].mean(), _note(int((lost["min"] > LOST).sum()), len(lost))]
            made.append([cohort.name, name, rows.methods.get(str(name)), shift, *cells])
    return SHIFT_CURVE_TABLE.frame(made)


def _note(out: int, of: int) -> str | None:
    """Why people have no value.

    Examples
    --------
    >>> _note(2, 12)
    '2 of 12 participants have no value: more than 0.1 % of the brain leaves the volume'
    """
    why = f"{out} of {of} participants have no value: more than {100 * LOST:g} % of the brain leaves the volume"
    return why if out else None


def write_shift_curve(_: object, cohort: JudgedCohort, rows: CohortMaps) -> list[Outcome]:
    """Write the table, or remove that of an earlier call where no shifts are asked for; `after` of a part."""
    if cohort.config.evaluation.shifts:
        SHIFT_CURVE_TABLE.write(cohort.layout, shift_curve(cohort, rows))
    else:
        SHIFT_CURVE_TABLE.remove(cohort.layout)
    return []
