"""LRP as in the founding study: how far rankings depend on beta (figure 6), two patients (figure 7), conservation.

The two patients are predicted with high probability, and their maps differ most.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.spatial.distance import cosine

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.ranking import METRICS
from heatlas.pipeline.run.layout.scan_files import beta_of
from heatlas.reports.content.relevance.volume import volume_estimate
from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, Picture, new_figure
from heatlas.reports.figures.maps import MapRow, draw_map_grid
from heatlas.reports.figures.slices import MAP_CUTS, PERSON_PERCENTILES, SMOOTHED_MM
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import numeric, page_table, worded_columns
from heatlas.reports.questions.findings import in_words, small_regions
from heatlas.reports.questions.question import ANY_TASK, CLEAR, Caution, Check, Question, rows_where
from heatlas.reports.read.run_record import KEYS, RunRecord
from heatlas.reports.words.numbers import LONGEST_REGION, fixed, is_missing, number, percent, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


def matrices(overlap: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Square tables of overlap in per cent by metric, beta by beta."""
    frame = overlap.assign(a=overlap["map_a"].map(beta_of), b=overlap["map_b"].map(beta_of))
    result = {}
    for metric, rows in frame.groupby("metric", sort=False):
        if rows["overlap"].notna().any():
            result[str(metric)] = rows.pivot_table(index="a", columns="b", values="overlap")
    return result


def build_beta(material: Material) -> Mapping[str, Any]:
    """One matrix per metric that is known."""
    overlap = material.run.tables["beta_overlap"]
    notes = sorted(set(overlap["note"].dropna())) if "note" in overlap else []
    known = matrices(overlap)
    picture = None
    if known:
        top, people = int(overlap["top"].iloc[0]), _people(material.run)
        picture = material.gallery.add(
            draw_overlap(known, top, people),
            "bohle2019-06_beta-overlap",
            f"Matrices of the overlap of the top {top} regions between values of beta, for {', '.join(known)}.",
            WORDS.say(
                "overlap_caption",
                top=top,
                by_chance=_by_chance(material.run),
                material=material,
                known_gains=_known_gains(material.run),
            ),
        )
    return {"figure": picture, "notes": notes, "lead": _hippocampus(material.run)}


def _hippocampus(run: RunRecord) -> str:
    """Whether the correlation of hippocampal relevance with volume depends on beta; empty where it is not known."""
    known = [(name, found) for name in run.lrp_names if (found := volume_estimate(run, name)) is not None]
    if len(known) < 2:
        return ""
    (least, low), (most, high) = (pick(known, key=lambda pair: pair[1].value) for pick in (min, max))
    turns = "The sign depends on β" if low.value < 0 < high.value else "The sign is the same for every β"
    unproven = "" if any(found.p_fdr < CLEAR for _, found in known) else " None is significant after correction (FDR)."
    return WORDS.say(
        "hippocampus", turns=turns, low=low, least=beta_of(least), high=high, most=beta_of(most), unproven=unproven
    )


def _by_chance(run: RunRecord) -> str:
    """The overlap of random rankings, from the agreement of rankings; empty where that was not analysed."""
    rows = rows_where(run, "ranking_agreement", between="betas", metric="density", scans="all")
    known = rows["overlap_chance"].dropna() if len(rows) else rows
    return f", {percent(known.iloc[0], 0)} is what random rankings share" if len(known) else ""


def _people(run: RunRecord) -> dict[str, int]:
    """Participants behind the ranking by each metric."""
    hits = run.group_sizes.get("TP", (0, 0))[1]
    return {metric: hits if metric == "gain" else run.group_sizes[run.positive][1] for metric in METRICS}


def _known_gains(run: RunRecord) -> str:
    """In how many regions gain is known, by beta; it is not where the mean of controls is negative."""
    values = run.region_values
    hits = values[(values["outcome"] == "TP") & values["map"].isin(run.lrp_names)]
    filled, known = (hits[hits[column].notna()].groupby("map")["group"].nunique() for column in ("density", "gain"))
    if known.reindex(filled.index, fill_value=0).equals(filled):
        return ""
    said = [
        f"β = {beta_of(name):g}, {number(known.get(name, 0))} of {number(filled[name])}"
        for name in run.lrp_names
        if name in filled
    ]
    return f" Regions in which the gain of at least one participant is known: {'; '.join(said)}."


LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")
_COLUMNS = (
    *worded_columns(WORDS, "columns"),
    *(
        numeric(name, title, percent, "median share of the start value, in absolute value")
        for name, title in zip(LOSSES, ("Absorbed by biases", "Lost, no contribution", "Stabiliser"), strict=True)
    ),
    numeric("residual", "Largest residual", number, "relative to the start value: rounding error"),
)


def build_conservation(material: Material) -> Mapping[str, Any]:
    """One row per LRP map."""
    table = shares(material.run.tables["conservation"])
    return {"table": page_table(table, _COLUMNS, "Where the relevance went, per LRP map.")}


def draw_overlap(matrices: Mapping[str, pd.DataFrame], top: int, people: Mapping[str, int]) -> Figure:
    """Per metric, the share of the first `top` regions that two values of beta have in common, in per cent.

    `matrices`: metric to a square table, beta by beta, values 0 to 100. `people`: participants that each metric is
    ranked over.
    """
    figure = new_figure(max(2.9 * len(matrices), 3.4), 3.3)
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for ax, (metric, matrix) in zip(axes, matrices.items(), strict=True):
        values = matrix.to_numpy(float)
        image = ax.imshow(values, cmap="cividis", vmin=0, vmax=100)
        for i in range(len(matrix)):
            for j in range(len(matrix)):
                value = float(values[i, j])
                colour = INK if value > 55 else "white"
                ax.text(j, i, "n/a" if value != value else f"{value:.0f}", ha="center", va="center", color=colour)
        names = [f"{beta:g}" for beta in matrix.index]
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(names)), names)
        ax.set_title(f"{metric.capitalize()}, n = {people[metric]}")
        ax.set_xlabel("β")
        ax.grid(False)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("β")
    figure.colorbar(image, ax=list(axes), label=f"overlap of the top {top}, %", shrink=0.75)
    return figure


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


LARGE_LOSS, SERIOUS_LOSS = 0.2, 0.5


def _losses(run: RunRecord) -> Caution | None:
    table = shares(run.tables["conservation"])
    table = table.assign(lost=table[list(LOSSES)].sum(axis=1))
    worst = table.sort_values("lost").iloc[-1]
    if not worst["lost"] > LARGE_LOSS:
        return None
    return Caution.read(WORDS, "losses", level="serious" if worst["lost"] > SERIOUS_LOSS else "note", worst=worst)


def _negative_start(run: RunRecord) -> Caution | None:
    """Scans whose explained output is negative; these can be true positives, since softmax compares two logits."""
    rows = run.tables["conservation"].drop_duplicates(KEYS)
    rows = rows.merge(run.tables["predictions"][[*KEYS, "outcome"]], on=KEYS)
    negative = rows[rows["start_value"] < 0]
    if negative.empty:
        return None
    hits = int((negative["outcome"] == "TP").sum())
    text = WORDS.say("negative_start", scans=len(negative), rows=len(rows), hits=hits, run=run)
    if run.config.attribution.start_value != "probability":
        text += ' With start_value = "probability" in [attribution], no sign is reversed.'
    return Caution("note", "Some maps have reversed signs.", text, "conservation")


BETA = Question.read(WORDS, "beta", draw=build_beta)
CONSERVATION = Question.read(
    WORDS,
    "conservation",
    draw=build_conservation,
    tasks=ANY_TASK,
    cautions=(
        Check("negative-start", _negative_start, ("conservation", "predictions")),
        Check("losses", _losses, ("conservation",)),
    ),
)


def build_patients(material: Material) -> Mapping[str, Any]:
    """Per leading map: the pair's slices, radar and profile, or the reason why there is no pair."""
    frame = material.run.tables["fingerprints"]
    blocks = []
    for name in material.run.main_maps:
        rows = frame[frame["map"] == name]
        pair = rows[rows["participant_id"].notna()]
        if pair.empty:
            notes = [str(note) for note in rows["note"].dropna()]
            blocks.append({"title": map_title(name), "notes": notes, "figures": [], "text": ""})
        else:
            blocks.append({"title": map_title(name), "notes": [], **_pair(material, name, pair)})
    return {"blocks": blocks}


def _pair(material: Material, map_name: str, pair: pd.DataFrame) -> dict[str, Any]:
    people = [rows for _, rows in pair.sort_values(["patient", "rank"]).groupby("patient", sort=True)]
    names = [_name(rows.iloc[0]) for rows in people]
    every = {name: rows.set_index("group")["density"] for name, rows in zip(names, people, strict=True)}
    small = [group for group in small_regions(material.run) if group in every[names[0]]]
    larger = {name: profile.drop(small) for name, profile in every.items()}
    profiles, small = (larger, small) if len(larger[names[0]]) else (every, [])
    distance, candidates = pair["cosine_distance"].iloc[0], pair["n_candidates"].iloc[0]
    left_out = f" Too small to be shown: {in_words(small)}." if small else ""
    figures = [_slices(material, map_name, people, names)]
    title, unit = map_title(map_name), f"{material.run.map_unit(map_name)} per voxel"
    figures.append(
        material.gallery.add(
            draw_radar(profiles),
            f"bohle2019-07b_fingerprints_{map_name}",
            f"Radar chart of relevance density in {len(profiles[names[0]])} regions for two participants.",
            WORDS.say("profiles_caption", title=title, left_out=left_out),
        )
    )
    figures.append(
        material.gallery.add(
            draw_profiles(profiles, unit),
            f"bohle2019-07c_profiles_{map_name}",
            f"The same regions as values side by side for {' and '.join(names)}.",
            f"{title}: the same values on one scale, n = 1 scan each.",
        )
    )
    text = WORDS.say("pair", participants=int(candidates), material=material, distance=distance)
    if small:
        without = fixed(cosine(*profiles.values()), 3)
        text += f" Without small regions ({in_words(small)}) the distance is {without}."
    if not material.run.keeps_single_maps:
        kept = material.run.config.attribution.keep_maps
        text += WORDS.say("no_single_maps", kept=kept)
    elif figures[0] is None:
        text += " Slices of their own maps are missing: a map is missing or damaged; see the top of the report."
    return {"figures": [figure for figure in figures if figure is not None], "text": text}


def _name(row: pd.Series) -> str:
    session = "" if is_missing(row["session_id"]) else f" {row['session_id']}"
    return f"{shortened(row['participant_id'])}{session} (probability {fixed(row['probability'], 3)})"


def _slices(material: Material, map_name: str, people: list[pd.DataFrame], names: list[str]) -> Picture | None:
    """Slices of the two scans' own maps, smoothed, on the colour scale of the mean map of their class, as the study.

    Each on its own scale where that map is missing.
    """
    if not material.run.keeps_single_maps:  # a map of an earlier setting may still lie there
        return None
    rows, unit = [], f"{material.run.map_unit(map_name)} per voxel"
    mean = material.group_view(material.run.positive, map_name)
    for number_, person in enumerate(people, start=1):
        first = person.iloc[0]
        view = material.view(material.run.files_of(first).relevance_map(map_name))
        if view is None:
            return None
        scale = view.scale(PERSON_PERCENTILES) if mean is None else mean.scale(PERSON_PERCENTILES, [view])
        rows.append(MapRow(f"Patient {number_}", scale, unit, [view]))
    figure = draw_map_grid(rows, [map_title(map_name)], MAP_CUTS, material.backdrop, material.gallery.density)
    whose = "the scan's own map" if mean is None else f"the mean map of {material.run.positive}"
    caption = WORDS.say(
        "slices_caption", map_name=map_name, first=names[0], second=names[1], whose=whose, SMOOTHED_MM=SMOOTHED_MM
    )
    alt = f"Brain slices with the individual maps of {names[0]} and {names[1]}."
    return material.gallery.add(figure, f"bohle2019-07a_patients_{map_name}", alt, caption, "png")


COLOURS, MARKERS = (VERMILION, BLUE), ("o", "s")
NAME_WIDTH = 24  # letters of a region's name on one line of the radar chart


def draw_profiles(profiles: Mapping[str, pd.Series], axis_title: str) -> Figure:
    """The same regions in two people, side by side.

    `profiles`: name of each person to value by region; the same regions in the same order.
    """
    first, second = profiles.values()
    regions = list(first.index)
    figure = new_figure(8.2, 0.25 * len(regions) + 1.2)
    ax = figure.subplots()
    places = np.arange(len(regions))
    ax.hlines(places, first, second, color=GREY, lw=1, alpha=0.6)
    for (name, profile), colour, marker in zip(profiles.items(), COLOURS, MARKERS, strict=True):
        ax.plot(profile, places, marker, color=colour, ms=6, mec="white", mew=0.5, label=name)
    ax.set_yticks(places, [shortened(region, LONGEST_REGION) for region in regions])
    ax.set_ylim(len(regions) - 0.4, -0.6)
    ax.set_xlabel(axis_title)
    ax.axvline(0, color=INK, lw=0.8)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")
    return figure


def draw_radar(profiles: Mapping[str, pd.Series]) -> Figure:
    """Fingerprints as radar charts, as in the founding study: each person's regions relative to their strongest."""
    width, height, side, below = 8.2, 7.0, 3.6, 1.9  # inches
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # which would make room for no label
    box = ((width - side) / 2 / width, below / height, side / width, side / height)
    ax: Any = figure.add_axes(box, projection="polar")
    regions: Sequence[str] = list(next(iter(profiles.values())).index)
    angles = np.linspace(0, 2 * np.pi, len(regions), endpoint=False)
    closed = np.append(angles, angles[0])
    for (name, profile), colour, marker in zip(profiles.items(), COLOURS, MARKERS, strict=True):
        top = float(profile.abs().max()) or 1.0
        values = np.append(profile, profile.iloc[0]) / top
        ax.plot(closed, values, color=colour, lw=1.6, marker=marker, ms=3.5, label=name)
        ax.fill(closed, values, color=colour, alpha=0.13)
    ax.set_xticks(angles, [])
    ax.set_rlim(min(0.0, *(float((p / (float(p.abs().max()) or 1)).min()) for p in profiles.values())), 1.05)
    ax.set_yticks([0.25, 0.5, 0.75, 1], ["", "0.5", "", "1"], fontsize=7)
    for region, angle in zip(regions, angles, strict=True):
        _name_spoke(ax, region, float(angle))
    figure.legend(loc="lower center", ncols=2)
    return figure


def _name_spoke(ax: Any, region: str, angle: float) -> None:
    """Write a region's name along its spoke, where names of neighbours cannot meet; never upside down."""
    left, name = np.cos(angle) < -1e-9, textwrap.fill(shortened(region, LONGEST_REGION), NAME_WIDTH)
    ax.text(
        angle, 1.09, name, fontsize=7, rotation=np.rad2deg(angle) - 180 * left,
        rotation_mode="anchor", ha="right" if left else "left", va="center", linespacing=0.95,
    )  # fmt: skip


PATIENTS = Question.read(WORDS, "patients", draw=build_patients, applies=lambda run: run.config.report.people)
