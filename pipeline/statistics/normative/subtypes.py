"""Subtypes of patients by their fingerprints: number, members, stability, and whether they reflect more than severity.

One group is an answer. The number is the gap statistic's; groups come from the consensus of subsamples; a number with a
group smaller than the settings allow is outliers and counts as one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.config.settings import Config
from pipeline.run.config.statistics import NormativeConfig
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.notes import so_many
from pipeline.statistics.data.region_features import VOLUME
from pipeline.statistics.data.values import participant_codes, participant_means
from pipeline.statistics.linear.design import design_of
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import freedman_lane
from pipeline.statistics.normative.clustering import Consensus, Gap, adjusted_rand, consensus, gap_statistic, stability
from pipeline.statistics.resampling.correction_family import benjamini_hochberg

MIN_PARTICIPANTS = 10
"""With fewer patients no subtypes are sought."""
COMPARED = (
    "level", "mmse", "cdr", "cdrsb", "adas11", "adas13", "moca", "faq", "hippocampus_mm3", "hippocampus/tiv", "tiv_mm3",
    "age", "education", "apoe4", "abeta", "tau", "ptau", "probability",
)  # fmt: skip
"""What subtypes are compared in, where the run knows it; severity first."""
OF_VOLUME = ("hippocampus_mm3", "hippocampus/tiv")
"""Already in the volumes that groups by volume were made of."""

SUBTYPE_COLUMNS = {
    "participant_id": "BIDS participant of the positive class",
    "source": "Relevance map (densities), or volume, whose fingerprints were grouped",
    "subtype": "1 for the largest group; 1 for everyone where there are no subtypes",
    "n_subtypes": "Groups found; 1 means no subtypes",
    "consensus": "Mean share of subsamples in which the participant was together with the others of the group; n/a for "
    "one group",
    "level": "Mean z over groups of regions: how far from controls altogether",
}
SUBTYPES_TABLE = Table("subtypes", SUBTYPE_COLUMNS, "patient and source", "Which subtype does each patient belong to?")
NUMBER_COLUMNS = {
    "source": "Relevance map (densities), or volume",
    "k": "Number of groups tried",
    "chosen": "true for the number of subtypes",
    "gap": "Gap statistic: log tightness of data without groups less that of the fingerprints",
    "gap_error": "Standard deviation over reference data, with its simulation error",
    "ambiguous": "Proportion of pairs of participants that subsamples neither keep together nor apart (PAC)",
    "consensus_area": "Area under the distribution of consensus over pairs; its growth with k is Monti's delta",
    "rand": "Mean adjusted Rand index between the groups and those of bootstrap samples; 1 is the same, 0 is chance",
    "rand_low": "5 % quantile over bootstrap samples",
    "rand_high": "95 % quantile over bootstrap samples",
    "smallest": "Participants in the smallest group",
    "n_participants": "Participants with a whole fingerprint",
    "n_regions": "Bilateral groups in the fingerprint",
    "note": "Why there is no value, or what to know of it",
}
SUBTYPE_NUMBERS_TABLE = Table(
    "subtype_numbers", NUMBER_COLUMNS, "source and number of groups", "How many subtypes are there?",
)  # fmt: skip
COMPARISON_COLUMNS = {
    "source": "Relevance map (densities), or volume, by which the subtypes were found",
    "compared": "Variable, test fold (whose network explained the participant), or subtypes by another source",
    "measure": "partial R2: share of the variable's variance between subtypes; adjusted Rand: agreement with others",
    "value": "Of the measure",
    "means": "Mean of the variable in each subtype, with the number of participants",
    "f": "F of subtype",
    "p": "p from permuting participants, (b+1)/(m+1); none where the groups were made of the variable itself",
    "p_fdr": "p adjusted by Benjamini and Hochberg over all rows with a p",
    "n_participants": "Participants with a value",
    "n_permutations": "Permutations used",
    "exact": "true if these are all distinct ones there are",
    "note": "Why there is no value, or what to know of it",
}
SUBTYPE_COMPARISON_TABLE = Table(
    "subtype_comparison", COMPARISON_COLUMNS, "source and measure", "What do subtypes differ in?",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subtypes:
    """What was found in one source.

    Parameters
    ----------
    source : str
    participants : tuple of str
    fingerprints : array, shape (participants, groups)
        z, as given.
    labels : array, shape (participants,)
        From 1; all 1 without subtypes.
    certainty : array, shape (participants,)
        Consensus with the own group; NaN for one group.
    numbers : pandas.DataFrame
        Columns of `NUMBER_COLUMNS`.
    """

    source: str
    participants: tuple[str, ...]
    fingerprints: Floats
    labels: NDArray[np.intp]
    certainty: Floats
    numbers: pd.DataFrame

    @property
    def n_subtypes(self) -> int:
        return max(len(np.unique(self.labels)), 1)

    @property
    def level(self) -> Floats:
        """Mean of each fingerprint; NaN where there is none."""
        if not self.fingerprints.shape[1]:
            return np.full(len(self.participants), np.nan)
        return np.asarray(self.fingerprints.mean(axis=1))

    def table(self) -> pd.DataFrame:
        """One row per participant; columns of `SUBTYPE_COLUMNS`."""
        return pd.DataFrame(
            {
                "participant_id": list(self.participants), "source": self.source, "subtype": self.labels,
                "n_subtypes": self.n_subtypes, "consensus": self.certainty, "level": self.level,
            }
        )  # fmt: skip


def find_subtypes(fingerprints: pd.DataFrame, source: str, fold_of: Mapping[str, str], config: Config) -> Subtypes:
    """Group the fingerprints of one source.

    Parameters
    ----------
    fingerprints : pandas.DataFrame
        Of the positive class, columns of `pipeline.statistics.normative.w_scores.FINGERPRINT_COLUMNS`.
    source : str
    fold_of : mapping of str to str
        Test fold of every participant of the positive class.
    config : Config
    """
    settings = config.statistics.normative
    table = fingerprints[fingerprints["source"] == source].pivot_table("z", "participant_id", "group", sort=True)
    whole = table.loc[:, table.notna().all(axis=0)]
    points, people = whole.to_numpy(float), tuple(map(str, whole.index))
    n, n_regions = points.shape
    lost = {
        ("participant", "without scores"): len(fold_of) - n,
        ("group", "unknown in someone"): table.shape[1] - n_regions,
    }
    notes = [f"{so_many(count, noun)} {why} left out" for (noun, why), count in lost.items() if count]
    pattern = _pattern(points, [fold_of[name] for name in people], source, settings)
    problem = None
    if n < MIN_PARTICIPANTS or n_regions < 2:
        problem = f"{n} participants and {n_regions} groups of regions; {MIN_PARTICIPANTS} and 2 or more are needed"
    elif np.ptp(pattern, axis=0).max() <= 1e-9 * np.abs(points).max():
        problem = "all fingerprints are the same"
    if problem:
        row: dict[str, Any] = dict.fromkeys(NUMBER_COLUMNS, np.nan) | {
            "source": source,
            "k": 1,
            "chosen": True,
            "smallest": n,
        }
        row |= {"n_participants": n, "n_regions": n_regions, "note": "; ".join([problem, *notes])}
        return Subtypes(source, people, points, np.ones(n, np.intp), np.full(n, np.nan), pd.DataFrame([row]))
    largest = min(settings.max_subtypes, n // 2)
    rng = [generator(config.seed, "statistics", "subtypes", source, step) for step in ("gap", "consensus", "stability")]
    gap = gap_statistic(pattern, largest, settings.resamples, rng[0])
    groups = consensus(pattern, range(2, largest + 1), settings.resamples, rng[1])
    agreement = stability(pattern, [one.labels for one in groups], settings.resamples, rng[2])
    smallest = [n, *(int(np.bincount(one.labels)[1:].min()) for one in groups)]
    chosen = gap.number
    if smallest[chosen - 1] < settings.min_subtype_participants:
        notes.append(f"the gap statistic says {chosen}, but one group has {smallest[chosen - 1]}: outliers, no subtype")
        chosen = 1
    numbers = _number_table(gap, groups, agreement, smallest, chosen)
    numbers = numbers.assign(source=source, n_participants=n, n_regions=n_regions, note="; ".join(notes) or None)
    labels = groups[chosen - 2].labels if chosen > 1 else np.ones(n, np.intp)
    certainty = groups[chosen - 2].own_group() if chosen > 1 else np.full(n, np.nan)
    return Subtypes(source, people, points, labels, certainty, numbers[list(NUMBER_COLUMNS)])


def _pattern(points: Floats, folds: Sequence[str], source: str, settings: NormativeConfig) -> Floats:
    """Fingerprints without the mean of the fold and, by the settings, the mean of the patient.

    Those explained by one network share its habits, and would be grouped by test fold: the mean over the patients of a
    fold is taken out of relevance. So is, by the settings, each patient's own mean over regions.
    """
    if not points.size:
        return points
    if source != VOLUME:
        codes, _ = participant_codes(folds)
        points = points - participant_means(points, codes)[codes]
    return points - points.mean(axis=1, keepdims=True) if settings.subtype_level == "removed" else points


def _number_table(
    gap: Gap, groups: Sequence[Consensus], agreement: Floats, smallest: Sequence[int], chosen: int
) -> pd.DataFrame:
    """One row per number of groups; of one group there is nothing to agree on."""
    low, high = np.quantile(agreement, [0.05, 0.95], axis=0)
    columns = {
        "ambiguous": [one.ambiguous for one in groups], "consensus_area": [one.area for one in groups],
        "rand": agreement.mean(axis=0), "rand_low": low, "rand_high": high,
    }  # fmt: skip
    k = np.arange(1, len(smallest) + 1)
    table = pd.DataFrame({"k": k, "chosen": k == chosen, "gap": gap.gap, "gap_error": gap.error, "smallest": smallest})
    return table.assign(**{name: [np.nan, *column] for name, column in columns.items()})


def compare_subtypes(
    found: Sequence[Subtypes], frame: pd.DataFrame, fold_of: Mapping[str, str], config: Config
) -> pd.DataFrame:
    """Whether subtypes differ in severity, volumes and biomarkers, and whether sources agree.

    Parameters
    ----------
    found : sequence of Subtypes
    frame : pandas.DataFrame
        Scans of the positive class; each participant's mean is compared.
    fold_of : mapping of str to str
        Test fold of each participant.
    config : Config

    Returns
    -------
    pandas.DataFrame
        Columns of `COMPARISON_COLUMNS`.
    """
    codes, names = participant_codes(frame["participant_id"].tolist())
    facts = pd.DataFrame(index=pd.Index(names))
    table = frame.assign(**{"hippocampus/tiv": _ratio(frame)})
    for name in COMPARED:
        if name in table.columns and pd.api.types.is_numeric_dtype(table[name]):
            facts[name] = participant_means(table[name].to_numpy(float), codes)
    rows: list[dict[str, Any]] = []
    for one in found:
        if one.n_subtypes == 1:
            rows.append({"source": one.source, "compared": None, "note": "one group: there are no subtypes to compare"})
            continue
        own = facts.reindex(list(one.participants)).assign(level=one.level)
        rows += [
            _compared(one, name, own[name], config) for name in COMPARED if name in own and own[name].notna().any()
        ]
        rows.append(_agreement(one, "test fold", fold_of))
        rows += [
            _agreement(one, f"subtypes by {other.source}", dict(zip(other.participants, other.labels, strict=True)))
            for other in found
            if other is not one and other.n_subtypes > 1
        ]
    result = pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))
    p = result["p"].to_numpy(float)
    return result.assign(p_fdr=benjamini_hochberg(p))


def _ratio(frame: pd.DataFrame) -> pd.Series:
    if "hippocampus_mm3" not in frame or "tiv_mm3" not in frame:
        return pd.Series(np.nan, index=frame.index)
    return frame["hippocampus_mm3"].astype(float) / frame["tiv_mm3"].astype(float).where(frame["tiv_mm3"] > 0)


def _compared(one: Subtypes, name: str, values: pd.Series, config: Config) -> dict[str, Any]:
    known = values.notna().to_numpy(bool)
    labels, own = one.labels[known], values[known].to_numpy(float)
    means = "; ".join(f"{k}: {own[labels == k].mean():.6g} (n {int((labels == k).sum())})" for k in np.unique(labels))
    row: dict[str, Any] = {"source": one.source, "compared": name, "measure": "partial R2", "means": means}
    row |= {"n_participants": len(own), "n_permutations": 0, "exact": False}
    try:
        design = design_of("subtype", "subtype", pd.DataFrame({"subtype": [f"subtype {k}" for k in labels]}))
        rng = generator(config.seed, "statistics", "subtypes", one.source, "compared", name)
        test = freedman_lane(own, design, Exchangeability.free(len(own)), config.statistics.permutations, rng)
    except BadInputError as error:
        return row | {"note": str(error)}
    row["value"] = float(test.partial_r[0] ** 2)
    row["note"] = test.problems[0]
    if (one.source == VOLUME and name in OF_VOLUME) or name == "level":
        return row | {"note": "the groups were made of what this measures, so a p would say nothing"}
    if one.source != VOLUME and name == "probability":
        return row | {"note": "the groups were made of relevance of this very output, so a p would say nothing"}
    f = float(test.statistic[0]) ** (2 if test.df_tested == 1 else 1)
    return row | {"f": f, "p": float(test.p[0]), "n_permutations": test.n_permutations, "exact": test.exact}


def _agreement(one: Subtypes, name: str, other: Mapping[str, Any]) -> dict[str, Any]:
    shared = [i for i, participant in enumerate(one.participants) if participant in other]
    theirs = np.unique([str(other[one.participants[i]]) for i in shared], return_inverse=True)[1]
    return {
        "source": one.source, "compared": name, "measure": "adjusted Rand",
        "value": adjusted_rand(one.labels[shared], theirs.astype(np.intp)), "n_participants": len(shared),
        "n_permutations": 0, "exact": False,
    }  # fmt: skip
