"""Whether heatmaps find the regions of planted disease, and analyses the planted effects.

*Recovery* of a map: how many planted bilateral groups are among the first ten, against the number that a random ranking
puts there (hypergeometric). *Localisation*: the share of the positive relevance in planted regions, against their share
of the volume. Both over the true positives; participants count once.

Each *effect* has one analysis that should show it, named before any result (`QUESTIONS`). An effect in one named group
is judged by its own p; one that may show in several groups by the smallest family-wise p; it counts as found if that p
is below `ALPHA` and the sign is the planted one. One in twenty true nulls is a false alarm by construction. What a
cohort has too few people to show is no miss, and is not tested; and where an effect was not found before ComBat, that
it is not found after is no success.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from heatlas.pipeline.evaluation.tables import declared
from heatlas.pipeline.regions.ranking import METRICS, mean_over_participants, top_groups
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE

log = logging.getLogger("heatlas")

OUTCOME = "TP"
TOP = 10

PLANTED_RECOVERY_TABLE = declared("planted_recovery")


def planted_recovery(bilateral: pd.DataFrame, planted: Sequence[str], metric: str, top: int = TOP) -> dict[str, object]:
    """Which planted groups are among the first by one metric: columns of `PLANTED_RECOVERY_TABLE`.

    `bilateral`: rows of ``relevance_bilateral.tsv`` of one map and the scans looked at. `planted`: bilateral groups,
    which the table has. `top`: length of the list.

    Examples
    --------
    >>> table = pd.DataFrame({"participant_id": "sub-1", "map": "gb", "group": list("abcd"), "sum": [4, 1, 3, 2]})
    >>> recovery = planted_recovery(table, ["a", "b"], "sum", top=2)
    >>> recovery["first_groups"], recovery["hits"], recovery["expected_hits"], round(recovery["p_value"], 3)
    ('a; c', 1, 1.0, 0.833)
    """
    groups = _groups_with_planted(bilateral, planted)
    means = mean_over_participants(bilateral, metric).droplevel("map")
    first = top_groups(means, top)
    found = [name for name in first if name in planted]
    return {
        "metric": metric,
        "n_groups": len(groups),
        "n_planted": len(planted),
        "top": len(first),
        "hits": len(found),
        "expected_hits": len(first) * len(planted) / len(groups),
        "p_value": float(stats.hypergeom.sf(len(found) - 1, len(groups), len(planted), len(first))),
        "found": "; ".join(found) or None,
        "first_groups": "; ".join(first) or None,
    }


def localisation(bilateral: pd.DataFrame, planted: Sequence[str]) -> dict[str, float]:
    """How concentrated positive relevance is in planted groups: columns of `PLANTED_RECOVERY_TABLE`.

    A group's sum counts as far as it is positive; relevance outside all groups is left aside, as is their volume.
    Shares per scan are averaged over a participant's scans, then over participants; NaN without positive relevance.
    """
    _groups_with_planted(bilateral, planted)
    table = bilateral.assign(positive=bilateral["sum"].clip(lower=0), hit=bilateral["group"].isin(list(planted)))
    by_scan = ["participant_id", "scan_id"]
    total = table.groupby(by_scan)[["positive", "n_voxels"]].sum()
    inside = table[table["hit"]].groupby(by_scan)[["positive", "n_voxels"]].sum()
    # 0 / 0 is NaN, and a scan without positive relevance is left out of the mean.
    shares = (inside / total).groupby("participant_id").mean().mean()
    relevance, volume = float(shares["positive"]), float(shares["n_voxels"])
    return {"relevance_share": relevance, "volume_share": volume, "enrichment": relevance / volume}


def evaluate_planted(layout: RunLayout, truth_json: Path) -> pd.DataFrame:
    """Compare a run's heatmaps with what was planted, and write ``group/statistics/planted_recovery.tsv``.

    `truth_json`: ``truth/planted.json`` of the cohort. The table has no rows if there is no true positive, or if the
    atlas of the run has none of the planted groups; where it has some, those are looked for.
    """
    bilateral = RELEVANCE_BILATERAL_TABLE.read(
        layout, ["participant_id", "scan_id", "map", "group", "n_voxels", *METRICS]
    )
    named, groups = read_planted(truth_json), set(bilateral["group"])
    planted = tuple(name for name in named if name in groups)
    if len(planted) < len(named):
        unknown = ", ".join(name for name in named if name not in groups)
        log.warning("Planted, but not in this run's atlas and not looked for: %s.", unknown)
    predictions = PREDICTIONS_TABLE.read(layout, ["participant_id", "scan_id", "outcome"])
    looked_at = predictions.loc[predictions["outcome"] == OUTCOME, ["participant_id", "scan_id"]]
    table = bilateral.merge(looked_at, on=["participant_id", "scan_id"], validate="many_to_one")
    rows = []
    for name, one_map in table.groupby("map", sort=False) if planted else ():
        common = {
            "map": str(name),
            "outcome": OUTCOME,
            "n_participants": one_map["participant_id"].nunique(),
            "n_scans": len(one_map[["participant_id", "scan_id"]].drop_duplicates()),
            **localisation(one_map, planted),
        }
        rows += [common | planted_recovery(one_map, planted, metric) for metric in METRICS]
    frame = PLANTED_RECOVERY_TABLE.frame(rows)
    PLANTED_RECOVERY_TABLE.write(layout, frame)
    return frame


def read_planted(path: Path) -> tuple[str, ...]:
    planted = read_json(path, 'It must hold {"planted": [group, ...]}.').get("planted")
    if not isinstance(planted, list) or not planted or len(set(map(str, planted))) < len(planted):
        raise BadInputError(f"{path}: `planted` must name bilateral groups, each once.")
    return tuple(map(str, planted))


def _groups_with_planted(bilateral: pd.DataFrame, planted: Sequence[str]) -> list[str]:
    """All groups of the table, after making sure that the planted ones are among them."""
    groups = [str(name) for name in bilateral["group"].unique()]
    missing = [name for name in planted if name not in groups]
    if missing:
        raise BadInputError(
            f"planted group {missing[0]!r} is not in the region table: use the atlas it was planted with "
            "(neuromorphometrics-cat12)."
        )
    return groups


ALPHA = 0.05
FEWEST_EVENTS = 10
"""Conversions that one predictor needs (Peduzzi et al. 1995): with fewer, even a strong one is likely to be missed."""
VOLUME = "volume"

PLANTED_EFFECTS_TABLE = declared("planted_effects")


@dataclass(frozen=True)
class Question:
    """Where an effect should show.

    `table`: name of a table of ``group/statistics``. `rows`: column and value of the rows to look at; ``{map}`` stands
    for the first map, ``{variable}`` for the effect's, ``{positive}`` and ``{negative}`` for the classes. `groups`:
    only the groups that the effect names. `p`, `estimate`, `interval`: columns; the sign of the estimate is compared
    with the planted one, if there is one. `neutral`: estimate without any effect. `expected`: None for what the effect
    says. `fewest_events`: events (``n_events`` of the row) below which the question is open.
    """

    table: str
    rows: Mapping[str, str]
    p: str
    estimate: str
    groups: bool = True
    neutral: float = 0.0
    interval: tuple[str, ...] = ()
    expected: bool | None = None
    fewest_events: int = 0
    note: str = ""


_BETWEEN_CLASSES = Question(
    "group_comparisons",
    {"comparison": "{positive}/{negative}", "metric": "density", "map": "{map}"},
    "p_fwe",
    "difference",
    interval=("ci_low", "ci_high"),
    note="density goes with the prediction: alone no evidence of place",
)
_WITH_SCORE = Question(
    "associations",
    {"biomarker": "{variable}", "scan_group": "all", "estimator": "pearson", "metric": "density", "map": "{map}"},
    "p_fwe",
    "r",
    interval=("ci_low", "ci_high"),
    note="over both classes, whose scores differ; density goes with the prediction: alone no evidence of place",
)
_ON_VOLUME = Question("main_effects", {"source": VOLUME, "variable": "{variable}"}, "p", "estimate")
_ON_RELEVANCE = Question(
    "main_effects", {"source": "{map}", "variable": "{variable}"}, "p_fwe", "partial_r", groups=False
)
_SITE_IN_VOLUME = {"source": VOLUME, "effect": "location"}
_SITE_IN_RELEVANCE = {"source": "{map}", "effect": "location"}

QUESTIONS: Mapping[str, Mapping[str, Question]] = {
    "disease": {"": _BETWEEN_CLASSES},
    "severity_cdrsb": {"": _WITH_SCORE},
    "severity_adas13": {"": _WITH_SCORE},
    "severity_mmse": {"": _WITH_SCORE},
    "sex_difference": {"": _ON_VOLUME},
    "site_effect": {
        "_before_combat": Question("site_effects", _SITE_IN_VOLUME, "p_fwe_before", "r2_before", groups=False),
        "_after_combat": Question(
            "site_effects", _SITE_IN_VOLUME, "p_fwe_after", "r2_after", groups=False, expected=False
        ),
        "_in_relevance_before_combat": Question(
            "site_effects", _SITE_IN_RELEVANCE, "p_fwe_before", "r2_before", groups=False,
            note="planted in the image; missed if the networks do not go by it",
        ),
        "_in_relevance_after_combat": Question(
            "site_effects", _SITE_IN_RELEVANCE, "p_fwe_after", "r2_after", groups=False, expected=False
        ),
    },
    "conversion": {
        "": Question(
            "progression", {"predictor": "model", "measure": "concordance"}, "p", "estimate", groups=False,
            neutral=0.5, interval=("ci_low", "ci_high"), fewest_events=FEWEST_EVENTS,
        ),
    },
    "null_education": {"": _ON_RELEVANCE},
    "null_field_strength": {"": _ON_RELEVANCE},
    "null_sex_difference": {"": _ON_VOLUME},
}  # fmt: skip
"""By effect: suffix of the row's name, and where to look. An effect may be looked at twice."""


def evaluate_effects(
    layout: RunLayout, truth_json: Path, map_name: str, classes: tuple[str, str] = ("CN", "AD")
) -> pd.DataFrame:
    """Compare the statistics of a run with what was planted, and write ``group/statistics/planted_effects.tsv``.

    `layout`: a table of statistics that is missing gives rows that say so. `truth_json`: ``truth/effects.json`` of the
    cohort. `map_name`: relevance map that is asked. `classes`: negative, positive.
    """
    rows: list[dict[str, object]] = []
    words = {"map": map_name, "negative": classes[0], "positive": classes[1]}
    for effect in read_effects(truth_json):
        questions = QUESTIONS.get(str(effect["effect"]))
        if questions is None:
            raise BadInputError(f"{truth_json}: effect {effect['effect']!r}; known are {', '.join(QUESTIONS)}.")
        answers = {suffix: _answer(layout, effect, suffix, question, words) for suffix, question in questions.items()}
        for suffix, row in answers.items():
            before = answers.get(suffix.replace("_after_", "_before_"), row)
            if (before["result"], row["result"]) == ("not found", "not found") and before is not row:
                row["verdict"] = "nothing to remove"
        rows += answers.values()
    frame = PLANTED_EFFECTS_TABLE.frame(rows)
    PLANTED_EFFECTS_TABLE.write(layout, frame)
    return frame


def read_effects(path: Path) -> list[dict[str, Any]]:
    """What was planted; see `pipeline.cohort.demo.people.PlantedEffect`."""
    needed = ("effect", "planted", "variable", "groups", "direction", "magnitude", "magnitude_unit", "expected")
    remedy = f'It must hold {{"effects": [...]}}, each with {", ".join(needed)}.'
    try:
        return [{name: effect[name] for name in needed} for effect in read_json(path, remedy)["effects"]]
    except (KeyError, TypeError) as error:
        raise BadInputError(f"{path}: not a truth. {remedy}") from error


def _answer(
    layout: RunLayout, effect: Mapping[str, Any], suffix: str, question: Question, words: Mapping[str, str]
) -> dict[str, object]:
    expected = bool(effect["expected"] if question.expected is None else question.expected)
    wanted = {column: value.format(**words, variable=effect["variable"]) for column, value in question.rows.items()}
    groups = [str(name) for name in effect["groups"]] if question.groups else []
    p = "p" if question.p == "p_fwe" and len(groups) == 1 else question.p
    row: dict[str, object] = dict.fromkeys(PLANTED_EFFECTS_TABLE.meanings) | {
        "effect": str(effect["effect"]) + suffix,
        "planted": effect["planted"],
        "magnitude": effect["magnitude"],
        "magnitude_unit": effect["magnitude_unit"],
        "expected": "found" if expected else "not found",
        "analysis": f"{question.table}.tsv",
        "rows": ", ".join([*(f"{column} {value}" for column, value in wanted.items()), *groups]),
        "n_tests": 0,
        "estimate_is": question.estimate,
        "p_is": p,
        "result": "no answer",
        "verdict": "no answer",
        "note": question.note or None,
    }
    path = layout.statistics(question.table)
    if not path.is_file():
        return row | {"note": f"{path.name} is missing: statistics/notes.tsv may say why"}
    needed = [*wanted, question.estimate, p, *question.interval, *(["group"] if groups else [])]
    needed += ["n_events"] if question.fewest_events else []
    table = read_table(path, needed, text_columns=[*wanted, "group", "note"])
    chosen = table[np.logical_and.reduce([table[column] == value for column, value in wanted.items()])]
    if groups:
        chosen = chosen[chosen["group"].isin(groups)]
    few = chosen["n_events"].max() if question.fewest_events and len(chosen) else question.fewest_events
    if few < question.fewest_events:
        note = f"{few:g} events; {question.fewest_events} are needed"
        return row | {"expected": "open", "result": "not tested", "verdict": "not tested: too few", "note": note}
    judged = chosen[chosen[p].notna()]
    if not len(judged):
        said = chosen["note"].dropna().unique() if "note" in chosen else []
        why = "; ".join(said) or "the table has no such row with a value"
        return row | {"note": why}
    return row | _judged(judged, question, p, int(effect["direction"]), expected)


def _judged(judged: pd.DataFrame, question: Question, p: str, direction: int, expected: bool) -> dict[str, object]:
    """The row with the smallest p in the planted direction, or of all if none points there, and what it says."""
    signs = np.sign(judged[question.estimate].to_numpy(float) - question.neutral)
    fitting = judged[signs == direction] if direction else judged
    pool = fitting if len(fitting) else judged
    best = pool.sort_values(p, kind="stable").iloc[0]
    found = bool(len(fitting)) and bool(best[p] < ALPHA)
    verdict = "as planted" if found == expected else "missed" if expected else "false alarm"
    named = best["group"] if "group" in judged.columns and isinstance(best["group"], str) else None
    low, high = (best[name] for name in question.interval) if question.interval else (None, None)
    return {
        "n_tests": len(judged),
        "where": named,
        "estimate": best[question.estimate],
        "ci_low": low,
        "ci_high": high,
        "p": best[p],
        "result": "found" if found else "not found",
        "verdict": verdict,
    }
