"""Two patients predicted with high probability whose maps differ most (figure 7 of the founding study)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.spatial.distance import cosine

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, Picture, new_figure
from heatlas.reports.figures.maps import MapRow, draw_map_grid
from heatlas.reports.figures.slices import HIPPOCAMPAL_CUTS, PERSON_PERCENTILES, Plane
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import MAPS
from heatlas.reports.questions.findings import in_words, small_regions
from heatlas.reports.questions.question import Question
from heatlas.reports.words.numbers import count, fixed, is_missing, shortened


def build(material: Material) -> Mapping[str, Any]:
    """Per leading map: the pair's slices, radar and profile, or the reason why there is no pair."""
    frame = material.run.tables["fingerprints"]
    blocks = []
    for name in material.run.main_maps:
        rows = frame[frame["map"] == name]
        pair = rows[rows["participant_id"].notna()]
        if pair.empty:
            notes = [str(note) for note in rows["note"].dropna()] if "note" in rows else []
            blocks.append(
                {"title": map_title(name), "notes": notes or ["There is no pair."], "figures": [], "text": ""}
            )
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
            f"{title}: fingerprints over the regions with the highest mean density, each person (n = 1 scan) "
            f"relative to their own strongest region.{left_out}",
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
    text = (
        f"Of {count(int(candidates), 'participant')} labelled {material.run.positive} with a probability above 0.9, "
        f"these two have the most different profiles (cosine distance {fixed(distance, 3)}; 0: the same, 1: unrelated)."
    )
    if small:
        without = fixed(cosine(*profiles.values()), 3)
        text += f" Without small regions ({in_words(small)}) the distance is {without}."
    if not material.run.keeps_single_maps:
        kept = material.run.config.attribution.keep_maps
        text += (
            " Slices of their own maps cannot be shown: this run keeps no maps of single scans ([attribution] "
            f'keep_maps = "{kept}"). Set it to "all" and repeat the command.'
        )
    elif figures[0] is None:
        text += " Slices of their own maps are missing: a map is missing or damaged; see the top of the report."
    return {"figures": [figure for figure in figures if figure is not None], "text": text}


def _name(row: pd.Series) -> str:
    session = "" if is_missing(row["session_id"]) else f" {row['session_id']}"
    return f"{shortened(row['participant_id'])}{session} (probability {fixed(row['probability'], 3)})"


def _slices(material: Material, map_name: str, people: list[pd.DataFrame], names: list[str]) -> Picture | None:
    """Slices of the two scans' own maps as they are, on the colour scale of the mean map of their class, as the study.

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
    figure = draw_map_grid(
        rows, [map_title(map_name)], (*HIPPOCAMPAL_CUTS, *_MORE_CUTS), material.backdrop, material.gallery.density
    )
    whose = "the scan's own map" if mean is None else f"the mean map of {material.run.positive}"
    caption = (
        f"{map_title(map_name)} maps of patient 1, {names[0]}, and patient 2, {names[1]}; n = 1 scan each. "
        f"Colours run from the 90th to the 99.5th percentile of {whose}; not smoothed."
    )
    alt = f"Brain slices with the individual maps of {names[0]} and {names[1]}."
    return material.gallery.add(figure, f"bohle2019-07a_patients_{map_name}", alt, caption, "png")


_MORE_CUTS: tuple[tuple[Plane, float], ...] = (("axial", -28.0), ("axial", 8.0), ("axial", 34.0))


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
    ax.set_yticks(places, regions)
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
    left = np.cos(angle) < -1e-9
    ax.text(
        angle, 1.09, textwrap.fill(region, NAME_WIDTH), fontsize=7, rotation=np.rad2deg(angle) - 180 * left,
        rotation_mode="anchor", ha="right" if left else "left", va="center", linespacing=0.95,
    )  # fmt: skip


PATIENTS = Question(
    "patients", "Two individual patients", "Two patients", MAPS, draw=build, requires=("fingerprints",),
    absent="No pair of patients has been chosen yet.", applies=lambda run: run.config.report.people,
)  # fmt: skip
