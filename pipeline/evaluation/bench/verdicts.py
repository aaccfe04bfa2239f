"""What each map passed and failed, in plain words: ``verdicts.tsv``, and the ``distractors.tsv`` it reads.

A map that passes finds what was planted, and does not find it where labels say nothing; changes when the parameters of
the network are drawn anew; and does not mark what the network need not use (the distractors). Where no truth is known,
labels are judged by whether the map of a network trained on labels that say nothing looks the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, density_of, density_ratio
from heatlas.pipeline.evaluation.bench.table import ALL
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import CASCADE, NO_NETWORK, REAL, SHUFFLED, UNTRAINED
from heatlas.pipeline.evaluation.scores.localisation import FIRST, LEVEL, NO, PARTLY, UNKNOWN, YES, chance_of_order
from heatlas.pipeline.evaluation.tables import declared

MOST_UNUSED = 0.5
"""Largest |evidence| of something unused over that of what is used, of a map that does not mark it."""
MOST_RIM = 1.0
"""Largest share of the rim over its share of voxels: as of a map that is even everywhere."""
DISTRACTORS_TABLE = declared("distractors")


def distractor_table(cohort: JudgedCohort, rows: CohortMaps) -> pd.DataFrame:
    """One row per map by the true network (or none) and distractor."""
    made: list[list[Any]] = []
    positive = {scan.scan_id: scan for scan in cohort.positive}
    truth = cohort.truth
    planted = np.isin(rows.groups, truth.groups if truth else ())
    for (network, name), of_map in rows.scores.groupby(["network", "map"], sort=False):
        if network not in (REAL, NO_NETWORK):
            continue
        of_map = of_map[of_map["scan_id"].isin(set(positive))]
        identity = [cohort.name, name, network]
        for distractor in truth.distractors if truth else ():
            scans = [key for key, scan in positive.items() if not distractor.scans or scan.name in distractor.scans]
            if distractor.kind == "marker":
                ratio = float(of_map.loc[of_map["scan_id"].isin(scans), "marker"].mean())
            else:
                values = [density_of(rows, str(network), str(name), scan) for scan in scans]
                ratio = density_ratio(values, planted, np.isin(rows.groups, [distractor.group]))
            made.append([*identity, distractor.name, distractor.kind, len(scans), ratio, MOST_UNUSED])
        made.append([*identity, "rim of the brain", "rim", len(of_map), float(of_map["rim"].mean()), MOST_RIM])
    marked = [[*row, None if np.isnan(row[-2]) else row[-2] > row[-1]] for row in made]
    return DISTRACTORS_TABLE.frame(marked).astype({"marked": "boolean"})


FOUND_SHARE, FOUND_AUROC, PARTLY_AUROC = 0.8, 0.9, 0.75
"""Share of the planted groups among the first ten, and area, that count as found; area that counts as partly found."""
MOST_ALIKE = 0.5
"""Largest rank correlation with the map of another network of a map that tells networks apart."""

_CODES = ("finds", "tells_labels", "follows_parameters", "marks_unused", "marks_rim")
VERDICTS_TABLE = declared(
    "verdicts",
    FIRST=FIRST,
    LEVEL=LEVEL,
    FOUND_SHARE=FOUND_SHARE,
    FOUND_AUROC=FOUND_AUROC,
    PARTLY_AUROC=PARTLY_AUROC,
    MOST_ALIKE=MOST_ALIKE,
    MOST_UNUSED=MOST_UNUSED,
    MOST_RIM=MOST_RIM,
)


def verdict_table(evaluation: pd.DataFrame) -> pd.DataFrame:
    """One row per cohort and map, from ``evaluation.tsv``."""
    whole = evaluation[evaluation["severity"] == ALL]
    made = [_verdict(of_map) for _, of_map in whole.groupby(["cohort", "map"], sort=False)]
    return VERDICTS_TABLE.frame(made).astype({"passed": "boolean"})


def _verdict(of_map: pd.DataFrame) -> dict[str, object]:
    needs_network = NO_NETWORK not in set(of_map["network"])
    real = of_map[of_map["network"] == (REAL if needs_network else NO_NETWORK)].iloc[0]
    shuffled = of_map[of_map["network"].str.startswith(f"{SHUFFLED}-")]
    row: dict[str, object] = {
        name: real[name]
        for name in ("cohort", "map", "method", "n_scans", "n_undefined", "n_planted", "unused_ratio", "rim")
    }
    row |= {"hits": real["hits_difference"], "auroc": real["auroc_difference"]}
    row["balanced_accuracy"] = real.get("balanced_accuracy", np.nan)  # for the sentence of numbers
    row["finds"] = _finds(real)
    if needs_network:
        row |= _with_shuffled(shuffled, real)
        row |= {"untrained_spearman": _likeness(of_map, UNTRAINED), "head_spearman": _likeness(of_map, f"{CASCADE}-1")}
        row["tells_labels"] = _tells_labels(row)
        row["follows_parameters"] = _answer(row["untrained_spearman"], lambda value: value < MOST_ALIKE)
    else:  # the same whatever the network
        row |= dict.fromkeys(("n_swaps", "shuffled_hits", "shuffled_auroc", "shuffled_p", "shuffled_spearman"), np.nan)
        row |= dict.fromkeys(("untrained_spearman", "head_spearman"), np.nan)
        row |= {"tells_labels": NO, "follows_parameters": NO}
    row["marks_unused"] = _answer(real["unused_ratio"], lambda value: value > MOST_UNUSED)
    row["marks_rim"] = _answer(real["rim"], lambda value: value > MOST_RIM)
    wanted = {"finds": YES, "tells_labels": YES, "follows_parameters": YES, "marks_unused": NO}
    answered = {name: answer for name, answer in wanted.items() if row[name] != UNKNOWN}
    failed = any(row[name] != answer for name, answer in answered.items()) or real["n_undefined"] == real["n_scans"]
    asked = row["finds"] == YES and {"tells_labels", "follows_parameters"} <= set(answered)
    row["passed"] = False if failed else True if asked else None
    row |= {"verdict": sentence(row, needs_network), "numbers": numbers_of(row, needs_network)}
    return row


def _finds(real: pd.Series) -> str:
    if not np.isfinite(real["auroc_difference"]):
        return UNKNOWN if not np.isfinite(real["n_planted"]) else NO
    enough = real["hits_difference"] >= FOUND_SHARE * min(real["n_planted"], FIRST)
    if real["auroc_difference"] >= FOUND_AUROC and enough:
        return YES
    return PARTLY if real["auroc_difference"] >= PARTLY_AUROC else NO


def _with_shuffled(shuffled: pd.DataFrame, real: pd.Series) -> dict[str, object]:
    """Scores of a map by networks trained on labels that say nothing, all swaps together."""
    ranked = shuffled[np.isfinite(shuffled["auroc_difference"].to_numpy(float))]
    hits, areas = ranked["hits_difference"].to_numpy(float), ranked["auroc_difference"].to_numpy(float)
    row: dict[str, object] = {"n_swaps": len(shuffled) or float("nan")}
    row["shuffled_spearman"] = shuffled["spearman_real"].mean()
    if not len(ranked):
        return row | dict.fromkeys(("shuffled_hits", "shuffled_auroc", "shuffled_p"), float("nan"))
    p = chance_of_order(areas.tolist(), int(real["n_groups"]), int(real["n_planted"]))
    return row | {"shuffled_hits": hits.mean(), "shuffled_auroc": areas.mean(), "shuffled_p": p}


def _tells_labels(row: dict[str, object]) -> str:
    if np.isfinite(row["shuffled_p"]):  # type: ignore[call-overload]
        return YES if row["shuffled_p"] >= LEVEL else NO  # type: ignore[operator]
    return _answer(row["shuffled_spearman"], lambda value: value < MOST_ALIKE)


def _answer(value: object, holds: Callable[[float], bool]) -> str:
    number = float(value)  # type: ignore[arg-type]
    return UNKNOWN if np.isnan(number) else YES if holds(number) else NO


def _likeness(of_map: pd.DataFrame, network: str) -> float:
    """Rank correlation of the maps by a null network with those by the true one; NaN without such a network."""
    return float(of_map.loc[of_map["network"] == network, "spearman_real"].mean())


def sentence(row: dict[str, object], needs_network: bool) -> str:
    """The verdict on one map in one line: the answer to each question that could be asked.

    Examples
    --------
    >>> row = dict.fromkeys(VERDICTS_TABLE.meanings, float("nan")) | dict.fromkeys(_CODES, UNKNOWN)
    >>> sentence(row | {"finds": "yes", "marks_unused": "no", "marks_rim": "yes"}, needs_network=True)
    'finds planted disease; does not mark a change that both classes have; marks the rim'
    >>> sentence(row | {"finds": "partly"}, needs_network=False)
    'finds planted disease in part; needs no network'
    """
    parts = [] if row["n_undefined"] != row["n_scans"] else ["is undefined in every scan"]
    for name, (yes, no) in _ANSWERS.items():
        if name in _OF_A_NETWORK and not needs_network:
            parts += ["needs no network"] * (name == _OF_A_NETWORK[0])
        elif row[name] != UNKNOWN:
            parts.append(no if row[name] == NO else f"{yes} in part" if row[name] == PARTLY else yes)
    return "; ".join(parts) or "nothing could be asked: no truth, no null"


_OF_A_NETWORK = ("tells_labels", "follows_parameters")
_ANSWERS = {
    "finds": ("finds planted disease", "does not find planted disease"),
    "tells_labels": ("tells real from shuffled labels", "does not tell real from shuffled labels"),
    "follows_parameters": ("follows the parameters", "does not follow the parameters"),
    "marks_unused": ("marks a change that both classes have", "does not mark a change that both classes have"),
    "marks_rim": ("marks the rim", "does not mark the rim"),
}
"""What a map does with the answer yes, and with no."""


def numbers_of(row: dict[str, object], needs_network: bool) -> str:
    """The numbers that a verdict rests on, in the order of its answers; empty without any.

    Examples
    --------
    >>> row = dict.fromkeys(VERDICTS_TABLE.meanings, float("nan")) | dict.fromkeys(_CODES, UNKNOWN)
    >>> row |= {"finds": "yes", "hits": 5.0, "n_planted": 5, "auroc": 0.97, "marks_rim": "no", "rim": 0.6}
    >>> numbers_of(row, needs_network=True)
    '5 of 5 planted groups in the first 10, AUROC .97; rim 0.6 times even'
    """
    parts = []
    if row["n_undefined"] > 0:  # type: ignore[operator]
        parts.append(f"0 everywhere or not finite in {row['n_undefined']} of {row['n_scans']} scans")
    if row["finds"] != UNKNOWN:
        numbers = "no difference between classes"
        if np.isfinite(row["auroc"]):  # type: ignore[call-overload]
            numbers = f"{row['hits']:.3g} of {row['n_planted']:.0f} planted groups in the first {FIRST}"
            numbers += f", AUROC {_share(row['auroc'])}"
        parts.append(numbers)
    if needs_network and row["tells_labels"] != UNKNOWN:
        parts.append(f"shuffled labels: {_of_shuffled(row)}")
    if needs_network and row["follows_parameters"] != UNKNOWN:
        parts.append(f"untrained network: rank correlation {_share(row['untrained_spearman'])}")
    if row["marks_unused"] != UNKNOWN:
        some = np.isfinite(row["unused_ratio"])  # type: ignore[call-overload]
        parts.append(f"unused change {row['unused_ratio']:.2g} of the used one" if some else "only the unused change")
    if row["marks_rim"] != UNKNOWN:
        parts.append(f"rim {row['rim']:.2g} times even")
    accuracy = row.get("balanced_accuracy")
    if needs_network and accuracy is not None and np.isfinite(accuracy):  # type: ignore[call-overload]
        parts.append(f"balanced accuracy of the networks {_share(accuracy)}")
    return "; ".join(parts)


def _of_shuffled(row: dict[str, object]) -> str:
    swaps = "one swap" if row["n_swaps"] == 1 else f"mean of {row['n_swaps']:.0f} swaps"
    if not np.isfinite(row["shuffled_p"]):  # type: ignore[call-overload]
        return f"rank correlation of maps {_share(row['shuffled_spearman'])}, {swaps}"
    p = "p < .01" if row["shuffled_p"] < 0.01 else f"p = {_share(row['shuffled_p'])}"  # type: ignore[operator]
    hits = f"{row['shuffled_hits']:.2g} of {row['n_planted']:.0f}"
    return f"{hits}, AUROC {_share(row['shuffled_auroc'])}, {swaps}, {p} by chance"


def _share(value: object) -> str:
    """A number between -1 and 1 with two decimals, without the zero before the point."""
    number = round(float(value), 2) + 0.0  # type: ignore[arg-type]  # + 0.0 takes the sign from a zero
    return f"{number:.2f}".replace("0.", ".", 1) if abs(number) < 1 else f"{number:.2f}"
