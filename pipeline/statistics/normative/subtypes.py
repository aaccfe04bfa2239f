"""Subtypes of patients by their fingerprints, and the tables of the normative analysis.

The gap statistic selects the number of subtypes, which may be one; members come from the consensus of subsamples. If a
group is smaller than the settings allow, its members are outliers and there is one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.statistics import NormativeConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.features import VOLUME, FoldedScans, refuse_class
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined, participant_codes, participant_means
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import benjamini_hochberg
from heatlas.pipeline.statistics.normative import clustering, w_scores
from heatlas.pipeline.statistics.resampling.means import caveats_of_groups

MIN_PARTICIPANTS = 10
"""Smallest number of patients for subtyping."""
_SCORES = ("mmse", "cdr", "cdrsb", "adas11", "adas13", "moca", "faq")
_VOLUMES = ("hippocampus_mm3", "hippocampus/tiv", "tiv_mm3")
COMPARED = ("level", *_SCORES, *_VOLUMES, "age", "education", "apoe4", "abeta", "tau", "ptau", "probability")
"""Variables that subtypes are compared in, if available; severity first."""
OF_VOLUME = ("hippocampus_mm3", "hippocampus/tiv")
"""Variables that subtypes by volume are derived from."""
OF_NETWORKS = ("probability", "level")
"""Variables that depend on the network of the fold."""

SUBTYPES_TABLE = declared("subtypes", __file__)
SUBTYPE_NUMBERS_TABLE = declared("subtype_numbers", __file__)
SUBTYPE_COMPARISON_TABLE = declared("subtype_comparison", __file__)


@dataclass(frozen=True, eq=False)
class Subtypes:
    """Subtypes found in one source; `numbers` are rows of `SUBTYPE_NUMBERS_TABLE`.

    fingerprints (participants, groups) hold z; labels (participants,) are from 1, all 1 without subtypes; certainty is
    the consensus with the participant's group, NaN for one group.
    """

    source: str
    participants: tuple[str, ...]
    fingerprints: Floats
    labels: Indices
    certainty: Floats
    numbers: pd.DataFrame

    @property
    def n_subtypes(self) -> int:
        return max(len(np.unique(self.labels)), 1)

    @property
    def level(self) -> Floats:
        """Mean of each fingerprint; NaN if there is none."""
        if not self.fingerprints.shape[1]:
            return np.full(len(self.participants), np.nan)
        return np.asarray(self.fingerprints.mean(axis=1))

    def table(self) -> pd.DataFrame:
        """One row per participant; columns of `SUBTYPES_TABLE`."""
        columns: dict[str, Any] = {
            "participant_id": list(self.participants),
            "source": self.source,
            "subtype": self.labels,
        }
        columns |= {"n_subtypes": self.n_subtypes, "consensus": self.certainty, "level": self.level}
        return pd.DataFrame(columns)


def find_subtypes(fingerprints: pd.DataFrame, source: str, fold_of: Mapping[str, str], config: Config) -> Subtypes:
    """Cluster the fingerprints of one source.

    `fingerprints` are those of the positive class, as in `W_FINGERPRINTS_TABLE`; `fold_of` gives the test fold of each
    participant.
    """
    settings = config.statistics.normative
    table = fingerprints[fingerprints["source"] == source].pivot_table("z", "participant_id", "group", sort=True)
    whole = table.loc[:, table.notna().all(axis=0)]
    points, people = whole.to_numpy(float), tuple(map(str, whole.index))
    n, n_regions = points.shape
    people_lost, groups_lost = len(fold_of) - n, table.shape[1] - n_regions
    notes = [f"{counted(people_lost, 'participant')} without scores left out"] if people_lost else []
    notes += [f"{counted(groups_lost, 'group')} with missing values left out"] if groups_lost else []
    pattern = _pattern(points, [fold_of[name] for name in people], source, settings)
    problem = None
    if n < MIN_PARTICIPANTS or n_regions < 2:
        problem = (
            f"{counted(n, 'participant')} and {counted(n_regions, 'region')}; {MIN_PARTICIPANTS} participants "
            "and 2 regions are needed"
        )
    elif np.ptp(pattern, axis=0).max() <= 1e-9 * np.abs(points).max():
        problem = "all fingerprints are equal"
    if problem:
        row: dict[str, Any] = dict.fromkeys(SUBTYPE_NUMBERS_TABLE.meanings, np.nan)
        row |= {"source": source, "k": 1, "chosen": True, "smallest": n, "n_participants": n, "n_regions": n_regions}
        row |= {"note": "; ".join([problem, *notes])}
        return Subtypes(source, people, points, np.ones(n, np.intp), np.full(n, np.nan), pd.DataFrame([row]))
    largest = min(settings.max_subtypes, n // 2)
    rng = [generator(config.seed, "statistics", "subtypes", source, step) for step in ("gap", "consensus", "stability")]
    gap = clustering.gap_statistic(pattern, largest, settings.resamples, rng[0])
    groups = clustering.consensus(pattern, range(2, largest + 1), settings.resamples, rng[1])
    agreement = clustering.stability(pattern, [partition.labels for partition in groups], settings.resamples, rng[2])
    smallest = [n, *(int(np.bincount(partition.labels)[1:].min()) for partition in groups)]
    chosen = gap.number
    if smallest[chosen - 1] < settings.min_subtype_participants:
        notes.append(
            f"the gap statistic selects {chosen}, but the smallest has {smallest[chosen - 1]}: outliers, not a subtype"
        )
        chosen = 1
    numbers = _number_table(gap, groups, agreement, smallest, chosen)
    numbers = numbers.assign(source=source, n_participants=n, n_regions=n_regions, note="; ".join(notes) or None)
    labels = groups[chosen - 2].labels if chosen > 1 else np.ones(n, np.intp)
    certainty = groups[chosen - 2].item_consensus() if chosen > 1 else np.full(n, np.nan)
    return Subtypes(source, people, points, labels, certainty, numbers[list(SUBTYPE_NUMBERS_TABLE.meanings)])


def _pattern(points: Floats, folds: Sequence[str], source: str, settings: NormativeConfig) -> Floats:
    """Fingerprints minus the mean of the fold and, depending on the settings, minus the patient's mean.

    Maps of one network resemble each other and would be clustered by test fold.
    """
    if not points.size:
        return points
    if source != VOLUME:
        codes, _ = participant_codes(folds)
        points = points - participant_means(points, codes)[codes]
    return points - points.mean(axis=1, keepdims=True) if settings.subtype_level == "removed" else points


def _number_table(
    gap: clustering.Gap, groups: Sequence[clustering.Consensus], agreement: Floats, smallest: Sequence[int], chosen: int
) -> pd.DataFrame:
    """One row per number of groups; agreement is undefined for one group."""
    low, high = np.quantile(agreement, [0.05, 0.95], axis=0)
    ambiguous, area = ([getattr(partition, name) for partition in groups] for name in ("ambiguous", "area"))
    columns = {"ambiguous": ambiguous, "consensus_area": area}
    columns |= {"rand": agreement.mean(axis=0), "rand_low": low, "rand_high": high}
    k = np.arange(1, len(smallest) + 1)
    table = pd.DataFrame({"k": k, "chosen": k == chosen, "gap": gap.gap, "gap_error": gap.error, "smallest": smallest})
    return table.assign(**{name: [np.nan, *column] for name, column in columns.items()})


def compare_subtypes(
    subtypes: Sequence[Subtypes], frame: pd.DataFrame, fold_of: Mapping[str, str], config: Config
) -> pd.DataFrame:
    """Whether subtypes differ in severity, volumes and biomarkers, and whether sources agree.

    `frame` has the scans of the positive class; each participant's mean counts.
    """
    codes, names = participant_codes(frame["participant_id"].tolist())
    facts = pd.DataFrame(index=pd.Index(names))
    table = frame.assign(**{"hippocampus/tiv": _ratio(frame)})
    for name in COMPARED:
        if name in table.columns and pd.api.types.is_numeric_dtype(table[name]):
            facts[name] = participant_means(table[name].to_numpy(float), codes)
    rows: list[dict[str, Any]] = []
    for solution in subtypes:
        if solution.n_subtypes == 1:
            rows.append({"source": solution.source, "compared": None, "note": "one group: no subtypes to compare"})
            continue
        table = facts.reindex(list(solution.participants)).assign(level=solution.level)
        rows += [
            _compared(solution, name, table[name], fold_of, config)
            for name in COMPARED
            if name in table and table[name].notna().any()
        ]
        rows.append(_agreement(solution, "test fold", fold_of))
        for other in subtypes:
            if other is not solution and other.n_subtypes > 1:
                labels = dict(zip(other.participants, other.labels, strict=True))
                rows.append(_agreement(solution, f"subtypes by {other.source}", labels))
    result = SUBTYPE_COMPARISON_TABLE.frame(rows)
    return result.assign(p_fdr=benjamini_hochberg(result["p"].to_numpy(float)))


def _ratio(frame: pd.DataFrame) -> pd.Series:
    if "hippocampus_mm3" not in frame or "tiv_mm3" not in frame:
        return pd.Series(np.nan, index=frame.index)
    return frame["hippocampus_mm3"].astype(float) / frame["tiv_mm3"].astype(float).where(frame["tiv_mm3"] > 0)


def _compared(
    solution: Subtypes, name: str, values: pd.Series, fold_of: Mapping[str, str], config: Config
) -> dict[str, Any]:
    """Row of one variable: F with one residual variance per subtype; a network's output within test folds."""
    has_value = values.notna().to_numpy(bool)
    labels, y = solution.labels[has_value], values[has_value].to_numpy(float)
    means = "; ".join(f"{k}: {y[labels == k].mean():.6g} (n {int((labels == k).sum())})" for k in np.unique(labels))
    row: dict[str, Any] = {"source": solution.source, "compared": name, "measure": "partial R2", "means": means}
    row |= {"n_participants": len(y), "n_permutations": 0, "exact": False}
    try:
        frame = pd.DataFrame({"subtype": [f"subtype {k}" for k in labels]})
        frame[FOLD] = [fold_of[person] for person in np.array(solution.participants, dtype=object)[has_value]]
        hold = config.statistics.fold_effect and name in OF_NETWORKS
        model = model_within_folds("subtype", "subtype", frame, hold, labels.tolist())
        rng = generator(config.seed, "statistics", "subtypes", solution.source, "compared", name)
        orders = Resampling.orders(config.statistics, rng)
        test = freedman_lane(y, model.design, model.exchange, orders, labels.tolist())
    except BadInputError as error:
        return row | {"note": str(error)}
    row["value"] = float(test.partial_r[0] ** 2)
    row["note"] = joined(
        test.problems[0],
        caveats_of_groups(y[:, None], labels)[0] if test.problems[0] is None else None,
        "within test folds" if model.held else model.design.dropped.get(FOLD),
    )
    if (solution.source == VOLUME and name in OF_VOLUME) or name == "level":
        return row | {"note": "the groups were derived from this variable, so p would be meaningless"}
    if solution.source != VOLUME and name == "probability":
        return row | {"note": "the groups were derived from relevance for this output, so p would be meaningless"}
    f = float(test.statistic[0]) ** (2 if test.df_tested == 1 else 1)
    return row | {"f": f, "p": float(test.p[0]), "n_permutations": test.n_permutations, "exact": test.exact}


def _agreement(solution: Subtypes, name: str, other: Mapping[str, Any]) -> dict[str, Any]:
    shared = [i for i, participant in enumerate(solution.participants) if participant in other]
    theirs = np.unique([str(other[solution.participants[i]]) for i in shared], return_inverse=True)[1]
    value = clustering.adjusted_rand(solution.labels[shared], theirs.astype(np.intp))
    row = {"source": solution.source, "compared": name, "measure": "adjusted Rand", "value": value}
    return row | {"n_participants": len(shared), "n_permutations": 0, "exact": False}


NORMATIVE_TABLES = (
    w_scores.W_SCORES_TABLE,
    w_scores.W_NORMS_TABLE,
    w_scores.W_CALIBRATION_TABLE,
    w_scores.W_FINGERPRINTS_TABLE,
    SUBTYPES_TABLE,
    SUBTYPE_NUMBERS_TABLE,
    SUBTYPE_COMPARISON_TABLE,
)


def normative_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Score all scans against controls outside their fold, and look for subtypes among patients.

    BadInputError if the covariates cannot be used, or no fold has controls with values outside it.
    """
    config = inputs.config
    scans = FoldedScans.of(inputs)
    for name in ("relevance_covariates", "volume_covariates"):
        formula, setting = getattr(config.statistics.normative, name), f"statistics.normative.{name}"
        refuse_class(formula, config.cohort.contrast_column, list(map(str, scans.frame.columns)), setting)
    is_control = (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    if not any((scans.training(fold) & is_control).any() for fold in scans.folds):
        raise BadInputError(
            f"norms: no participant of {config.cohort.negative} outside a test fold has out-of-fold values. "
            'Set cohort.split = "folds", or check cohort.negative.'
        )
    scored = [w_scores.score(features, scans, config) for features in scans.sources]
    scores = pd.concat([w_scores.score_table(source, scans) for source in scored], ignore_index=True)
    fingerprints = w_scores.fingerprint_table(scores)
    patients = fingerprints[fingerprints["label"] == config.cohort.positive]
    positive = (scans.frame["label"] == config.cohort.positive).to_numpy(bool)
    frame = scans.frame[positive]
    fold_of = dict(zip(frame["participant_id"], np.array(scans.fold, dtype=object)[positive], strict=True))
    solutions = [find_subtypes(patients, source.features.source, fold_of, config) for source in scored]
    calibration = [w_scores.calibration_table(source, scans, config.cohort.negative) for source in scored]
    return {
        "w_scores": inputs.as_named(scores),
        "w_norms": pd.concat([w_scores.norm_table(source) for source in scored], ignore_index=True),
        "w_calibration": pd.concat(calibration, ignore_index=True),
        "w_fingerprints": fingerprints,
        "subtypes": pd.concat([source.table() for source in solutions], ignore_index=True),
        "subtype_numbers": pd.concat([source.numbers for source in solutions], ignore_index=True),
        "subtype_comparison": compare_subtypes(solutions, frame, fold_of, config),
    }
