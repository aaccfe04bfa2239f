"""The cautions that come from the method: its settings, its registration, its maps.

A caution is a reason for doubt, found by a check. Limits of the settings come first. Below them stand the measures of
doubt that pages of sections and people show too: scans whose registration is in doubt, by the columns of
``registration.tsv``, and how much of the start value reached the voxels of a map.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from heatlas.atlases.templates import configured_template
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.registration.quality.doubt import MIRRORED, MIRRORED_REASON, NOT_KNOWN
from heatlas.pipeline.registration.quality.flags import MIN_COHORT
from heatlas.reports.questions.findings import small_regions, sum_error
from heatlas.reports.questions.map_verdicts import lines_on
from heatlas.reports.questions.question import Caution, Check
from heatlas.reports.read.run_record import RunRecord, has_passed
from heatlas.reports.words.numbers import count, listing, mid_sentence, percent

UNSEEN_SHARE = 0.01
LARGEST_MISS = 0.01
"""Largest accepted error, as a share of the evidence in the median scan."""
LARGE_SAMPLING, SERIOUS_SAMPLING = 0.05, 0.2
"""The same before the control variate."""


def binarised(run: RunRecord) -> Caution | None:
    """Networks that saw masks of the brain only."""
    control = str(getattr(run.config.training, "control", "none"))
    if control in ("", "none"):
        return None
    return Caution(
        "serious", "The networks saw a control, not the scans.",
        f"This run is a control ([training] control = \"{control}\"): the networks were given brain masks only. Their "
        "performance says how much the outline of the brain reveals; nothing here is about tissue.", "performance",
    )  # fmt: skip


def cautions_of_maps(run: RunRecord, regions: Collection[str] = ()) -> list[Caution]:
    """Cautions about every map of this run, for pages that show maps and name some regions."""
    scaled, small = scaled_by_probability(run), small_regions(run)
    found = [] if scaled is None else [replace(scaled, section="")]  # its section is on another page
    named = [f"{mid_sentence(group)}, {count(small[group], 'voxel')}" for group in regions if group in small]
    if named:
        text = (
            f"A slight misregistration moves relevance between a small region and its neighbours: {'; '.join(named)}."
        )
        found.append(Caution("note", "Some of the regions named here are small.", text))
    if run.is_synthetic:
        text = "A warped template brain with planted tissue loss: nothing here says anything about a disease."
        found.append(Caution("note", "A synthetic person.", text))
    return found


def scaled_by_probability(run: RunRecord) -> Caution | None:
    """Maps that are larger everywhere if the prediction is larger; pages of regions repeat this caution."""
    if not run.has("relevance_bilateral") or run.config.attribution.start_value != "probability":
        return None
    if run.leads_with_evidence:
        scaled = listing([map_title(name) for name in run.main_maps if name not in run.evidence_maps])
        if not scaled:
            return None
        return Caution(
            "note",
            "Some maps are scaled by the prediction.",
            f"Relevance of {scaled} starts from the probability of {run.positive}, so every region of a scan predicted "
            f"as {run.positive} has more of it than in other scans. The leading map, {map_title(run.leading_map)}, "
            f"shares out the evidence in {run.evidence_unit} instead.",
            "effects",
        )
    return Caution(
        "serious",
        "Maps are scaled by the prediction.",
        f"Relevance starts from the probability of {run.positive}, so every region of a scan predicted as "
        f"{run.positive} has more of it than in other scans. Gains far above 1 and differences between the classes in "
        "almost every region say no more than that; compare regions with each other.",
        "effects",
    )


def _leading_map_failed(run: RunRecord) -> Caution | None:
    """A leading map that did not pass the evaluation of this run: none of those that could lead did."""
    if has_passed(run.tables["verdicts"], run.leading_map) is not False:
        return None
    return Caution(
        "serious",
        "The leading map did not pass the evaluation.",
        f"{map_title(run.leading_map)}: {'; '.join(lines_on(run, run.leading_map))}.",
        "evaluation",
    )


def sums_of_evidence(run: RunRecord) -> Caution | None:
    """A leading map that does not add up, or whose points alone would not."""
    if not run.leads_with_evidence:
        return None
    name, unit = map_title(run.leading_map), run.evidence_unit
    missed = sum_error(run, run.leading_map)
    if missed is not None and missed.share > LARGEST_MISS:
        return Caution(
            "serious",
            "The leading map does not add up.",
            f"{name}: the sum over all voxels misses the evidence of a scan, compared with controls, by "
            f"{missed.in_words}, in {unit}. Sums over regions are no more exact. DeepLIFT, where it is defined for the "
            'network, adds up exactly: methods = ["deeplift"] in [attribution].',
            "regions",
        )
    drawn = sum_error(run, run.leading_map, "sampling_error")
    if drawn is None or drawn.share <= LARGE_SAMPLING:
        return None
    return Caution(
        "serious" if drawn.share > SERIOUS_SAMPLING else "note",
        "Regions of a single scan are approximate.",
        f"{name} adds up because its points on the way from the controls are weighted to do so; unweighted they would "
        f"miss the evidence of a scan by {drawn.in_words}, in {unit}. Sums over regions of one scan are as "
        'uncertain, means over people less. For more points: settings = ["expected-gradients:alphas=4"] in '
        "[attribution].",
        "regions",
    )


def _several_networks(run: RunRecord) -> Caution | None:
    if not run.has("relevance_bilateral") or len(run.models) < 2:
        return None
    if run.config.statistics.fold_effect:
        tests = (
            "Every test on relevance is adjusted for the fold: it compares only people explained by the same network."
        )
    else:
        tests = "The tests are not adjusted for the fold ([statistics] fold_effect = false)."
    return Caution(
        "note",
        "Several networks are pooled.",
        f"Each fold has its own network and its own scale of relevance. {tests} Mean maps, means and figures pool "
        "the folds; gain compares people within a fold.",
        "regions",
    )


def _unseen(run: RunRecord) -> Caution | None:
    """Part of the brain that lies outside the field of view of the networks."""
    described = [model for model in run.models.values() if "seen_shape" in model]
    if not described:
        return None
    brain = configured_template(run.config.registration).brain_mask
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
        "relevant. Choose pool sizes that divide the field of view without a remainder.",
        "training",
    )


def _atlas(run: RunRecord) -> Caution | None:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    empty = atlas.get("empty", [])
    text = " ".join(
        filter(None, [atlas.get("note", ""), empty and f"Without a voxel at this resolution: {listing(empty)}."])
    )
    return Caution("note", "About the atlas.", text, "credits") if text else None


METHOD_CHECKS: Sequence[Check] = (
    Check(_leading_map_failed, ("verdicts",)), Check(_unseen),
    Check(scaled_by_probability),
    Check(_several_networks), Check(_atlas),
)  # fmt: skip


ROUGH = 0.1  # median share of brain masks outside the template's brain, above which extraction is rough
MOST = 0.5  # share of flagged scans above which a flag no longer tells one scan from another


def outlying_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that registration has flagged (`pipeline.registration.quality.flags`)."""
    return quality["flags"].notna()


def registered(run: RunRecord) -> pd.DataFrame:
    """Rows of registration that succeeded."""
    quality = run.tables["registration"]
    return quality[quality["status"] == "registered"]


def mirrored_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that look mirrored left to right (`pipeline.registration.quality.sides`)."""
    return quality["sides"].astype(str) == MIRRORED


def misplaced_scans(quality: pd.DataFrame) -> pd.Series:
    """Flagged scans with another reason than their sides."""
    others = quality["flags"].map(
        lambda said: [one for one in str(said).split("; ") if not one.startswith(MIRRORED_REASON)]
    )
    return outlying_scans(quality) & others.map(bool)


def sides_unknown(quality: pd.DataFrame) -> str:
    """Why nothing can be said about the sides of the scans; empty if something can, or they were not compared."""
    said = quality["sides"].dropna().astype(str)
    said = said[said.str.startswith(NOT_KNOWN)]
    return said.iloc[0].removeprefix(NOT_KNOWN) if len(said) else ""


def roughly_extracted(run: RunRecord) -> float:
    """Median share of the brain masks outside the template's brain if it is large and not cut off; else 0."""
    if not run.has("registration") or run.config.registration.brain_extraction == "template-mask":
        return 0.0
    share = float(registered(run)["outside_share"].astype(float).median())
    return share if share > ROUGH else 0.0


def mostly_flagged(run: RunRecord) -> bool:
    """Whether most registered scans are flagged: that says more about the limits, or about all, than about each."""
    if not run.has("registration"):
        return False
    good = registered(run)
    return len(good) >= MIN_COHORT and bool(outlying_scans(good).mean() > MOST)


LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")


def shares(conservation: pd.DataFrame) -> pd.DataFrame:
    """Medians over scans of the shares of the start value, for each map."""
    start = conservation["start_value"]
    relative = conservation[["map_sum", *LOSSES, "residual"]].div(start, axis=0).where(start != 0)
    relative = relative.assign(map=conservation["map"], negative=start < 0)
    rows = []
    for name, frame in relative.groupby("map", sort=False):
        rows.append({
            "map": name, "title": map_title(str(name)), "scans": len(frame),
            "negative_start": int(frame["negative"].sum()), "in_map": frame["map_sum"].median(),
            **{loss: frame[loss].abs().median() for loss in LOSSES}, "residual": frame["residual"].abs().max(),
        })  # fmt: skip
    return pd.DataFrame(rows)
