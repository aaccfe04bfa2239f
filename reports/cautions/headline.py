"""Which regions may lead: ranked are all, but a headline, a figure or the summary names none that chance puts on top.

Two reasons keep a region back. It is small: its density hangs on a few voxels that a slight misregistration moves next
door. Or, for gain, controls have next to no relevance there: a ratio to almost nothing is large whatever is above it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.regions.ranking import mean_over_participants, top_groups
from pipeline.statistics.data.relevance_columns import shares
from reports.read.run_record import RunRecord
from reports.words.numbers import count, listing, mid_sentence, number, shortened

FEW_VOXELS = 50
SMALL_MM3 = 400.0
"""Fifty voxels of 2 mm: a cube of 7 mm, of which a shift of 2 mm moves a quarter out on one side."""


@dataclass(frozen=True)
class Leaders:
    """The head of a ranking."""

    regions: tuple[str, ...]  # those that may lead, best first
    passed_over: Mapping[str, str]  # regions that would be among them, with the reason why they are not

    @property
    def sentence(self) -> str:
        """Who was passed over and why; empty where nobody was."""
        if not self.passed_over:
            return ""
        named = listing([f"{shortened(group)} ({reason})" for group, reason in self.passed_over.items()])
        return f" Ranked, but not shown here: {named}."


def voxels_of(run: RunRecord) -> pd.Series:
    """Voxels of each bilateral group on the grid of the atlas, both sides together."""
    return run.tables["relevance"].groupby("group", sort=False)["n_voxels"].max()


def least_voxels(run: RunRecord) -> int:
    """Voxels below which a region is small in this run."""
    return max(FEW_VOXELS, round(SMALL_MM3 / run.config.registration.resolution_mm**3))


def small_regions(run: RunRecord) -> dict[str, int]:
    """Regions that are small, with their voxels; empty ones are not among them, as they have no values."""
    voxels = voxels_of(run)
    return {str(group): int(n) for group, n in voxels.items() if 0 < n < least_voxels(run)}


def weak_in_controls(run: RunRecord, map_name: str) -> frozenset[str]:
    """Regions whose mean in the negative class lies below the floor of the log-gain, as the comparison has it."""
    if not run.has("group_comparisons"):
        return frozenset()
    table = run.tables["group_comparisons"]
    if not {"floor", "mean_second"} <= set(table):
        return frozenset()
    wanted = (table["map"] == map_name) & (table["metric"] == "density")
    rows = table[wanted & (table["comparison"] == f"{run.positive}/{run.negative}")]
    return frozenset(rows.loc[rows["mean_second"] < rows["floor"], "group"].astype(str))


def leaders(run: RunRecord, means: pd.Series, map_name: str, metric: str, top: int) -> Leaders:
    """The first regions of a ranking that may lead.

    `means`: value by bilateral group. Returns all regions where none is large enough: then nothing better can be shown.
    """
    reasons = {group: count(n, "voxel") for group, n in small_regions(run).items()} if metric != "sum" else {}
    if metric == "gain":
        weak = weak_in_controls(run, map_name)
        reasons |= {group: f"next to no relevance in {run.negative}" for group in sorted(weak - set(reasons))}
    order = top_groups(means, len(means))
    kept = [group for group in order if group not in reasons][:top]
    if not kept:
        return Leaders(tuple(order[:top]), {})
    last = order.index(kept[-1])
    passed = {group: f"{reasons[group]}, number {number(place + 1)}"
              for place, group in enumerate(order[:last]) if group in reasons}  # fmt: skip
    return Leaders(tuple(kept), passed)


def ranking(run: RunRecord, map_name: str, metric: str) -> tuple[pd.Series, str]:
    """Mean of a metric over participants by region, and the group of scans it is taken over.

    As in the founding study sum and density are ranked in scans of the positive class, gain in true positives.
    Where there are none, the positive class, then all scans, stand in.
    """
    values = run.region_values
    values = values[values["map"] == map_name]
    positive = values[values["label"] == run.positive]
    candidates = [("scans labelled " + run.positive, positive), ("all scans", values)]
    if metric == "gain":
        candidates.insert(0, ("true positives", positive[positive["outcome"] == "TP"]))
    for name, frame in candidates:
        if frame[metric].notna().any():
            return mean_over_participants(frame, metric).droplevel("map").dropna(), name
    return pd.Series(dtype=float), ""


def rule(run: RunRecord) -> str:
    """The rule in a sentence."""
    return (
        f"A region of fewer than {count(least_voxels(run), 'voxel')} of the atlas's grid "
        f"({number(run.config.registration.resolution_mm)} mm) has its place in every ranking but leads none: a slight "
        f"misregistration moves its relevance next door. The same goes for gain where {run.negative} have next to no "
        "relevance."
    )


def map_shares(run: RunRecord, map_name: str, label: str) -> pd.Series:
    """Share of a map in each region: mean over the participants of a class, each one's scans averaged first.

    The share is that of `pipeline.statistics.data.relevance_columns.shares`, so the means are those of
    ``group_comparisons.tsv``.
    """
    values = run.region_values
    rows = values[(values["map"] == map_name) & (values["label"] == label)]
    if rows.empty:
        return pd.Series(dtype=float)
    wide = rows.pivot_table(index=["participant_id", "scan_id"], columns="group", values="sum", sort=False)
    parts = pd.DataFrame(shares(wide.to_numpy(float)), index=wide.index, columns=wide.columns)
    found: pd.Series = parts.groupby(level="participant_id").mean().mean()
    return found


def in_words(regions: Sequence[str], parts: Mapping[str, float] | pd.Series | None = None) -> str:
    r"""Regions in a sentence, with their share of the map where that is known.

    Examples
    --------
    >>> in_words(["Hippocampus", "Amygdala"], {"Hippocampus": 0.031})
    'hippocampus (3.1\xa0%) and amygdala'
    """
    said = []
    for region in regions:
        part = None if parts is None else parts.get(region)
        known = part is not None and np.isfinite(part)
        said.append(mid_sentence(region) + (f" ({100 * float(part):.1f}\xa0%)" if known else ""))  # type: ignore[arg-type]
    return listing(said)


def overlap_in_words(first: Collection[str], second: Collection[str]) -> str:
    """How many regions two lists of at most five have in common."""
    shared = len(set(first) & set(second))
    words = ("None", "One", "Two", "Three", "Four", "Five")
    return f"{words[shared]} of {words[len(second)].lower()} {'is' if shared == 1 else 'are'} in both lists."
