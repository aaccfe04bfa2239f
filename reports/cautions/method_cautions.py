"""What the method itself cannot do in this run: reasons for doubt that lie in settings, not in data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from atlases.templates import load_template
from reports.analyses.planted_verdict import shuffled_count
from reports.cautions.headline import small_regions
from reports.cautions.record import Caution
from reports.read.run_record import RunRecord
from reports.words.numbers import count, listing, mid_sentence, percent

UNSEEN_SHARE = 0.01


def _planted_missed(run: RunRecord) -> Caution | None:
    """Known disease that the leading map does not show by density."""
    if not run.has("planted_recovery"):
        return None
    rows = run.tables["planted_recovery"]
    rows = rows[(rows["map"] == run.main_maps[0]) & (rows["metric"] == "density")]
    if rows.empty or 2 * rows["hits"].iloc[0] > rows["n_planted"].iloc[0]:
        return None
    return Caution(
        "serious",
        "The maps miss most of the planted regions.",
        f"{int(rows['hits'].iloc[0])} of {int(rows['n_planted'].iloc[0])} planted regions are among the first "
        f"{int(rows['top'].iloc[0])} by density. This run does not show whether the network missed them or the map "
        f"does not show what it used. {shuffled_count(run)}",
        "planted",
    )


def cautions_of_maps(run: RunRecord, regions: Collection[str] = ()) -> list[Caution]:
    """What to know of every map of this run, for pages that show maps.

    `run`: with relevance. `regions`: bilateral groups that the page names; those too small to lead are said.
    """
    scaled, small = scaled_by_probability(run), small_regions(run)
    found = [] if scaled is None else [replace(scaled, section="")]  # its section is on another page
    named = [f"{mid_sentence(group)}, {count(small[group], 'voxel')}" for group in regions if group in small]
    if named:
        text = f"A slight misregistration moves the relevance of a small region next door: {'; '.join(named)}."
        found.append(Caution("note", "Small regions lead here.", text))
    if run.is_synthetic:
        text = "The template brain, warped, with planted tissue loss: nothing here says anything about a disease."
        found.append(Caution("note", "A synthetic person.", text))
    return found


def scaled_by_probability(run: RunRecord) -> Caution | None:
    """Relevance that is larger everywhere where the prediction is; pages of regions repeat it."""
    if not run.has("relevance") or run.config.attribution.start_value != "probability":
        return None
    return Caution(
        "serious",
        "Maps are scaled by the prediction.",
        f"Relevance starts from the probability of {run.positive}, so every region of a scan called {run.positive} has "
        "more of it than in a scan called otherwise. Gains far above 1 and differences between the classes in almost "
        "every region say no more than that; compare regions with each other.",
        "effects",
    )


def _several_networks(run: RunRecord) -> Caution | None:
    if not run.has("relevance") or len(run.models) < 2:
        return None
    if run.config.statistics.fold_effect:
        tests = "Every test on relevance holds the fold: people are compared with people explained by the same network."
    else:
        tests = "The tests do not hold the fold ([statistics] fold_effect = false) and take folds as they are."
    return Caution(
        "note",
        "Several networks are pooled.",
        f"Each fold has its own network and its own scale of relevance. {tests} Mean maps, means and figures pool the "
        "folds as they are; gain compares within a fold.",
        "regions",
    )


def _unseen(run: RunRecord) -> Caution | None:
    """Part of the brain that no network sees, by the box and the seen shape in its description."""
    described = [model for model in run.models.values() if "seen_shape" in model]
    if not described:
        return None
    brain = load_template(run.config.registration.resolution_mm).brain_mask
    shares = []
    for model in described:
        box, shape = model.get("input", {}).get("box"), model["seen_shape"]
        start = box["start"] if box else (0, 0, 0)
        seen = tuple(slice(first, first + side) for first, side in zip(start, shape, strict=True))
        shares.append(1 - np.count_nonzero(brain[seen]) / np.count_nonzero(brain))
    if max(shares) <= UNSEEN_SHARE:
        return None
    return Caution(
        "serious",
        "The network does not see the whole brain.",
        f"{percent(max(shares))} of the template brain reaches no feature of the network, so nothing there can be "
        "relevant. Pools that divide the field of view without rest let the network see all of it.",
        "training",
    )


def _atlas(run: RunRecord) -> Caution | None:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    empty = atlas.get("empty", [])
    text = " ".join(
        filter(None, [atlas.get("note", ""), empty and f"Without a voxel at this resolution: {listing(empty)}."])
    )
    return Caution("note", "About the atlas.", text, "credits") if text else None


METHOD_CHECKS: Sequence[Callable[[RunRecord], Caution | None]] = (
    _planted_missed, _unseen, scaled_by_probability, _several_networks, _atlas,
)  # fmt: skip
