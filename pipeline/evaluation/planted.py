"""Whether heatmaps of a cohort with planted disease find the regions where it is.

Two questions per map, both over the true positives (patients recognised as patients):

*recovery*: how many planted bilateral groups are among the first ten by sum, density or gain, against the number that a
random ranking puts there (hypergeometric); *localisation*: how much of the positive relevance lies in planted regions,
against the share of the volume they take up (1 = no better than a map that is even everywhere).

Participants count once: their scans are averaged before participants are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy import stats

from heatlas.pipeline.regions.ranking import METRICS, mean_over_participants, top_groups
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE

log = logging.getLogger("heatlas")

OUTCOME = "TP"
TOP = 10

PLANTED_RECOVERY_TABLE = Table(
    "planted_recovery",
    {
        **described("map"),
        "metric": "Metric that ranks the bilateral groups: sum, density or gain",
        "outcome": "Scans looked at: TP, patients recognised as patients",
        "n_participants": "Participants with such scans; each counts once",
        "n_scans": "Such scans",
        "n_groups": "Bilateral groups in the ranking",
        "n_planted": "Groups in which disease was planted",
        "top": "Length of the list of first groups",
        "hits": "Planted groups on that list",
        "expected_hits": "Planted groups that a random ranking puts on that list, on average (hypergeometric)",
        "p_value": "Probability that a random ranking puts as many there, or more (hypergeometric)",
        "found": "Planted groups on the list, best first",
        "first_groups": "The list, best first",
        "relevance_share": "Positive relevance in planted groups, as share of that in all groups; the same for each "
        "metric",
        "volume_share": "Volume of planted groups, as share of all groups",
        "enrichment": "relevance_share / volume_share; 1 for a map that is even everywhere",
    },
    "map and metric", "Do maps find the regions in which disease was planted?", stage="evaluation",
    file="group/statistics/planted_recovery.tsv",
    filled=("map", "metric", "n_participants", "n_groups", "n_planted", "top", "hits"),
)  # fmt: skip


def planted_recovery(bilateral: pd.DataFrame, planted: Sequence[str], metric: str, top: int = TOP) -> dict[str, object]:
    """Which planted groups are among the first by one metric: columns of `PLANTED_RECOVERY_TABLE`.

    `bilateral`: rows of ``relevance_bilateral.tsv`` of one map and the scans looked at. `planted`: bilateral groups
    with planted disease. `metric`: ``sum``, ``density`` or ``gain``. `top`: length of the list. Raises BadInputError if
    a planted group is not in the table.

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

    `bilateral`: rows of ``relevance_bilateral.tsv`` of one map and the scans looked at. A group's sum counts as far as
    it is positive; relevance outside all groups is left aside, as is their volume. Returns shares per scan, averaged
    over a participant's scans, then over participants; NaN without positive relevance. Raises BadInputError if a
    planted group is not in the table.
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

    `layout`: with ``relevance_bilateral.tsv`` and ``predictions.tsv``. `truth_json`: ``truth/planted.json`` of the
    cohort. Returns the table written: a row per map and metric. It has no rows if there is no true positive, or if the
    atlas of the run has none of the planted groups; where it has some, those are looked for. Raises BadInputError if a
    table or the truth is missing or not readable.
    """
    bilateral = RELEVANCE_BILATERAL_TABLE.read(
        layout, ["participant_id", "scan_id", "map", "group", "n_voxels", *METRICS]
    )
    planted = _known_planted(read_planted(truth_json), bilateral)
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
    """Names of the planted bilateral groups.

    Raises BadInputError if the file is missing or does not name groups.
    """
    planted = read_json(path, 'It must hold {"planted": [group, ...]}.').get("planted")
    if not isinstance(planted, list) or not planted or len(set(map(str, planted))) < len(planted):
        raise BadInputError(f"{path}: `planted` must name bilateral groups, each once.")
    return tuple(map(str, planted))


def _known_planted(planted: Sequence[str], bilateral: pd.DataFrame) -> tuple[str, ...]:
    """The planted groups that the atlas of the run has, and a warning about the others."""
    groups = set(bilateral["group"])
    unknown = [name for name in planted if name not in groups]
    if unknown:
        log.warning("Planted, but not in this run's atlas and not looked for: %s.", ", ".join(unknown))
    return tuple(name for name in planted if name in groups)


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
