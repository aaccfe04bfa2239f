"""Networks beside those of the run, in the report.

What training with maps changed; what networks without some regions, other networks and frozen backbones show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.run.config.images import axes_of
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.maps import MapRow, draw_map_grid
from heatlas.reports.figures.slices import HIPPOCAMPAL_CUTS, PERSON_PERCENTILES
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, worded_columns
from heatlas.reports.questions.question import ANY_TASK, ROWS, PartView, Question
from heatlas.reports.questions.trust import title_of
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, mid_sentence, number, p_value, percent, signed
from heatlas.reports.words.sentences import Words
from heatlas.studies.before_after.measures import AFTER, BEFORE
from heatlas.studies.before_after.stage import LARGEST_DROP, OF_MAPS
from heatlas.studies.before_after.stage import NAME as OBJECTIVE
from heatlas.studies.consensus.agreement import FOLDS, SEVERAL
from heatlas.studies.long_tail import TAIL
from heatlas.studies.marker.marked import NAME
from heatlas.studies.marker.marker_groups import DIAGNOSIS, GROUPS, REVERSED
from heatlas.studies.marker.stage import CONTROL, GUIDED, TAUGHT, recipe_of
from heatlas.studies.objectives.guidance import BRAIN
from heatlas.studies.objectives.maps_in_training import ATTENTION
from heatlas.studies.representations.probes import ALL, PROBES
from heatlas.studies.representations.table import AGREEMENT, BACKBONE, SITE
from heatlas.studies.retraining.stage import AT_RANDOM, NOTHING

WORDS = Words(__file__)

ALPHA = 0.05
_PAIRS = {
    FOLDS: "Other folds", "seed": "Other seeds", "epochs": "Other numbers of epochs", "family": "Other families",
    SEVERAL: "Several of these",
}  # fmt: skip
_PROBES = {
    **dict(zip(PROBES, ("Nearest person", "Ten nearest people", "Few of each class", "All, with rare classes"),
               strict=True)),
    AGREEMENT: "Nearest other scan", SITE: "Site",
}  # fmt: skip


def retraining(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Accuracy of networks trained without the regions that each map ranks first, beside random regions."""
    whole = table.loc[table["map"] == NOTHING, "balanced_accuracy"]
    judged = table[~table["map"].isin([NOTHING, AT_RANDOM])]
    needed = judged[judged["p_balanced_accuracy"] < ALPHA]
    shares = [f"{title_of(row['map'])} ({percent(row['volume_share'], 0)})" for row in needed.to_dict("records")]
    text = WORDS.say("retraining", ALPHA=ALPHA, maps=listing(shares) if shares else "no map")
    if len(whole):
        text += f" Balanced accuracy with all regions: {fixed(whole.iloc[0])}."
    rows = judged.assign(
        title=judged["map"].map(title_of),
        volume=judged["volume_share"].map(lambda share: percent(share, 0)),
        order=judged["balanced_accuracy_drop"].fillna(-1),
    ).sort_values(["volume_share", "order"], ascending=[True, False], kind="stable")
    columns = worded_columns(WORDS, "retraining")
    draws = table["n_draws"].max()
    by_draws = f"{number(draws)} draws of random regions; " if pd.notna(draws) else ""
    return text, (page_table(rows, columns, f"{by_draws}95 % intervals over participants.", ROWS),)


def consensus(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """How alike rankings of regions and people's maps are between sets of networks; which regions most have first."""
    means = table.groupby(["map", "differ_in"], sort=False)[
        ["region_spearman", "shared_first", "shared_first_expected", "map_spearman"]
    ].mean()
    rows = means.reset_index().assign(pairs=table.groupby(["map", "differ_in"], sort=False).size().to_numpy())
    rows = rows.assign(title=rows["map"].map(title_of), differ=rows["differ_in"].map(_PAIRS))
    columns = worded_columns(WORDS, "consensus")
    text = (
        "Networks of other folds, seeds, epochs and families are asked for the same maps: do they rank regions alike? "
    )
    seeds = rows[rows["differ_in"] == "seed"]
    if len(seeds):
        best = seeds.sort_values("region_spearman", ascending=False).iloc[0]
        text += WORDS.say("consensus", best=best)
    tables = [page_table(rows, columns, "Means over pairs of sets of networks.", ROWS)]
    if run.has("consensus_regions"):
        sentence, region_table = _regions(run.tables["consensus_regions"])
        text, tables = text + sentence, [*tables, region_table]
    return text.rstrip(), tuple(tables)


def _regions(table: pd.DataFrame) -> tuple[str, PageTable]:
    """Regions by their mean rank, of the map whose networks agree best on its first one."""
    name = table.sort_values("mean_place", kind="stable")["map"].iloc[0]
    of_map = table[table["map"] == name].sort_values("place", kind="stable")
    columns = worded_columns(WORDS, "regions")
    networks = number(of_map["n_networks"].max())
    caption = f"{title_of(name)}: regions by their mean rank over {networks} sets of networks."
    return f"First over all: {listing(of_map['group'].head(3).tolist())}.", page_table(of_map, columns, caption, ROWS)


def representations(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """What the backbone knows, beside the same network untrained: classes by probes, and the site."""
    probes = table[
        (table["features"] == BACKBONE) & table["measure"].isin(_PROBES) & table["classes"].isin((ALL, TAIL))
    ]
    rows = probes.assign(title=probes["measure"].map(_PROBES), n_participants=probes["n_participants"].astype(float))
    columns = worded_columns(WORDS, "representations")
    everyone = probes[(probes["classes"] == ALL) & probes["measure"].isin(PROBES)]
    better = everyone.loc[everyone["difference_low"] > 0, "measure"].map(_PROBES)
    text = WORDS.say("representations_text", probes=listing([mid_sentence(probe) for probe in better]) or "no probe")
    site = probes[(probes["measure"] == SITE) & probes["p"].notna()]
    if len(site):
        row = site.iloc[0]
        text += (
            f" It also knows the site: {fixed(row['estimate'])} recognised, {fixed(row['chance'])} by chance, "
            if row["p"] < ALPHA
            else WORDS.say("representations", row=row)
        ) + f"{p_value(row['p'])}."
    caption = "All: mean over classes; tail: the rarest. 95 % intervals. Single classes are in the file."
    return text, (page_table(rows, columns, caption, ROWS),)


VIEWS = (
    PartView("retraining", retraining),
    PartView("consensus", consensus),
    PartView("representations", representations),
)


TABLES = ("before_after", "objective_weights", "marker_groups")
COMMANDS = {"before_after": "heatlas evaluate OUT --parts objective"}
_three, _change = partial(fixed, decimals=3), partial(signed, decimals=3)
_KINDS = {
    "guided": "guided into a mask",
    "distilled": "like those of a teacher",
    "readable-gradients": "like those of guided backpropagation",
}
_MEASURES = {
    "correct": "Accuracy", "epg": "In the mask (EPG)", "iou": "Overlap with the mask (IoU)",
    "on_object_epg": "In the mask, of what lies in its boxes", "agrees": "Same class as the teacher",
    "teacher_cosine": "Cosine with the teacher's map", "guided_cosine": "Cosine with the guided gradient",
}  # fmt: skip
_TASKS = {DIAGNOSIS: "Networks learn the diagnosis", REVERSED: "Networks learn the marker"}
_PLANTED = {
    DIAGNOSIS: "A bright block outside the brain goes with the diagnosis in training, and with nothing when people are "
    "tested, each with a copy of the scan that has it and one that has not.",
    REVERSED: "The same scans, and networks learn to tell copies with the block from those without.",
}
_SHORTCUTS = {DIAGNOSIS: "the marker", REVERSED: "the diagnosis"}
_LEARNT = {DIAGNOSIS: "the diagnosis", REVERSED: "the marker"}
_WITHOUT, _WITH = (
    {GUIDED: "Without guidance", TAUGHT: "Taught answers alone", ATTENTION: "Labels alone"},
    {GUIDED: "With guidance", TAUGHT: "Taught answers and maps", ATTENTION: "Labels and taught maps"},
)


@dataclass(frozen=True)
class Comparison:
    """Networks with and without maps in training, on the same people."""

    title: str
    text: str
    table: PageTable
    figure: Picture | None


def applies(run: RunRecord) -> bool:
    """Whether the run was trained with maps, or anything was compared."""
    return run.config.objective.uses_maps or any(run.has(name) or name in run.unreadable for name in TABLES)


def build(material: Material) -> Mapping[str, Any]:
    """What was compared; and what was not, with the command for it."""
    run, found, absent = material.run, [], []
    if run.has("before_after"):
        found.append(_objective(material, run.tables["before_after"]))
    elif run.config.objective.uses_maps or "before_after" in run.unreadable:
        asked = f"Not compared with networks trained without maps yet: {COMMANDS['before_after']} does it."
        absent.append(run.why_absent("before_after", otherwise=asked))
    if run.has("objective_weights"):
        found.append(_weights(run.tables["objective_weights"]))
    elif "objective_weights" in run.unreadable:
        absent.append(run.why_absent("objective_weights", otherwise=""))
    if run.has("marker_groups"):
        found += [_marker(material, str(task), rows) for task, rows in run.tables["marker_groups"].groupby("task")]
    elif "marker_groups" in run.unreadable:
        absent.append(run.why_absent("marker_groups", otherwise=""))
    return {"comparisons": found, "absent": absent}


def _objective(material: Material, table: pd.DataFrame) -> Comparison:
    kind, people = str(table["objective"].iloc[0]), count(int(table["n_participants"].max()), "participant")
    rows = table.assign(title=table["measure"].map(lambda name: _MEASURES.get(str(name), str(name))))
    columns = worded_columns(WORDS, "objective")
    clear = [
        mid_sentence(row["title"]) for row in rows.to_dict("records") if row["change_low"] > 0 or row["change_high"] < 0
    ]
    alone = material.run.config.objective.guided_alone
    learned = "taught by guided gradients alone" if alone else f"whose maps were {_KINDS[kind]} while they learned"
    text = WORDS.say("objective", learned=learned, measures=listing(clear) if clear else "no measure")
    if material.run.config.objective.own_anatomy:
        masked = table.loc[table["measure"].isin(["epg", "iou", "on_object_epg"]), "n_participants"].max()
        with_mask = count(0 if pd.isna(masked) else int(masked), "participant")
        text += (
            f" Measures in the mask are of {with_mask} with a mask of their own; people without labels are left out."
        )
    caption = f"{people}; 95 % bootstrap intervals of the paired change."
    blocks = {BEFORE: "Before: trained without maps", AFTER: "After: trained with maps"}
    figure = _maps(material, OBJECTIVE, blocks, f"Mean maps of {people} before and after training with maps.")
    return Comparison("Before and after", text, page_table(rows, columns, caption), figure)


def _weights(table: pd.DataFrame) -> Comparison:
    """Networks by the weight of their maps, and which weight the validation parts choose.

    The run may have other settings by now, so its measures are those of the kind that has values.
    """
    best = table[table["chosen"].astype(bool)].iloc[0]
    known = (names for names in OF_MAPS.values() if table[f"validation_{names[0]}"].notna().any())
    measures = next(known, OF_MAPS["guided"])
    names = {"balanced_accuracy": "Balanced accuracy"} | {name: _MEASURES[name] for name in measures}
    columns = [numeric("weight", "Weight")]
    columns += [numeric(f"validation_{name}", f"{title}, validation", _three) for name, title in names.items()]
    columns += [Column("in_pareto_set", "In the Pareto set"), Column("chosen", "Chosen")]
    columns += [numeric(f"test_{name}", f"{title}, test", _three) for name, title in names.items()]
    of_run = "that of this run" if best["of_run"] else "not that of this run"
    said = f"The weight chosen is {number(best['weight'])}, {of_run}"
    if best["weight"] == 0:
        said = "The weight chosen is 0: no other has better maps at an acceptable cost in accuracy"
    text = WORDS.say("weights_text", said=said, drop=100 * LARGEST_DROP, measure=_MEASURES[measures[0]])
    caption = WORDS.say("weights_caption", best=best)
    return Comparison("Which weight?", text, page_table(table, columns, caption), None)


def _marker(material: Material, task: str, table: pd.DataFrame) -> Comparison:
    run = material.run
    kind = TAUGHT if (table["training"] == TAUGHT).any() else GUIDED
    said = ATTENTION if kind == TAUGHT and run.config.objective.map == ATTENTION else kind
    names = {CONTROL: _WITHOUT[said], kind: _WITH[said]}
    rows = table.assign(title=table["training"].map(lambda name: names.get(str(name), str(name))))
    classes = {"negative": run.config.cohort.negative, "positive": run.config.cohort.positive}
    marked = {"plain": "without", "marked": "with"}
    groups = []
    for name in GROUPS:
        label, copy = name.split("_")
        groups.append(numeric(f"accuracy_{name}", f"{classes[label]}, {marked[copy]} marker", fixed))
    columns = [Column("title", "Training"), *groups, *worded_columns(WORDS, "marker")]
    if kind == TAUGHT:
        columns += [
            numeric("agreement_as_in_training", "As the teacher, as in training", fixed, "share with the same answer"),
            numeric("agreement_against_training", "As the teacher, against training", fixed, "the other two groups"),
        ]
    people = count(int(table["n_participants"].max()), "participant")
    where = _where(recipe_of(run.config, task, GUIDED).objective)
    learnt = f"Maps are guided to {where}"
    if kind == TAUGHT:
        shown = "scans of an unrelated cohort, without the marker," if run.config.objective.scans else "these copies,"
        taught = "its maps, beside the labels" if said == ATTENTION else f"its answers for {shown} and its maps"
        learnt = f"The teacher of the run teaches {taught}. The mask is {where}"
    text = f"{_PLANTED.get(task, '')} {learnt}."
    for _, row in table.iterrows():
        if row["training"] == CONTROL:
            text += _uses(row, task, names[CONTROL])
        elif pd.notna(row["epg_change"]):
            text += WORDS.say(
                "marker_text",
                trained=names[kind],
                against_changes=_changes(row, "against_training", 2),
                mean_changes=_changes(row, "mean_accuracy", 2),
                share_changes=_changes(row, "epg", 3),
                against_chance=_against_chance(row, task),
            )
            if kind == TAUGHT:
                text += WORDS.say("marker", changes=_changes(row, "agreement_against_training", 2))
    caption = WORDS.say("marker_caption", people=people, task=_TASKS.get(task, task))
    figure = _maps(material, f"{NAME}_{task}", {name: names[name] for name in table["training"]}, caption)
    title = f"Scanner marker: {_TASKS.get(task, task)[0].lower()}{_TASKS.get(task, task)[1:]}"
    return Comparison(title, text, page_table(rows, columns, f"Accuracy by group; {people}."), figure)


def _uses(control: pd.Series, task: str, name: str) -> str:
    """What networks without maps rely on: the lowest group against those that training knows."""
    known, worst = (percent(control[name], 0) for name in ("as_in_training", "worst_group"))
    follows = ""
    if control["worst_group_high"] < control["as_in_training"]:
        follows = f": they follow {_SHORTCUTS.get(task, 'what goes with it in training')}"
    return WORDS.say("uses", name=name, known=known, worst=worst, follows=follows)


def _against_chance(row: pd.Series, task: str) -> str:
    """The worst group with guidance beside that of a coin."""
    worst, chance, low, high = (
        percent(row[name], 0) for name in ("worst_group", "chance", "chance_low", "chance_high")
    )
    text = (
        f"They recognise {worst} of the worst group; a coin tossed for each participant has {chance} ({low} to {high})"
    )
    if row["worst_group"] <= row["chance_high"]:
        return f"{text}, so this does not show that they recognise {_LEARNT.get(task, 'their classes')}."
    return f"{text}."


def _where(objective: ObjectiveConfig) -> str:
    """The mask of an objective, inside a sentence."""
    named = "a given mask" if objective.mask else listing([mid_sentence(name) for name in objective.regions])
    named = "the brain" if objective.regions == (BRAIN,) and not objective.mask else named
    return f"all but {named}" if objective.outside else named


def _maps(material: Material, comparison: str, blocks: Mapping[str, str], caption: str) -> Picture | None:
    """Mean maps side by side, on the colours of the first; None where there is none."""
    views = {name: material.view(material.run.layout.compared_map(comparison, name)) for name in blocks}
    there = [view for view in views.values() if view is not None]
    if not there:
        return None
    row = MapRow("", there[0].scale(PERSON_PERCENTILES, there), "share of a map per voxel", list(views.values()))
    titles = list(blocks.values())
    figure = draw_map_grid([row], titles, HIPPOCAMPAL_CUTS, material.backdrop, material.gallery.density)
    said = WORDS.say("maps_caption", caption=caption, axes_of=axes_of(material.run.layout.space))
    return material.gallery.add(figure, f"before-after_{comparison}", f"Brain slices: {caption}", said, "png")


def _changes(row: pd.Series, name: str, decimals: int) -> str:
    change, *bounds = (row[f"{name}_change{end}"] for end in ("", "_low", "_high"))
    if pd.isna(bounds[0]):  # nobody differs from the others of the class
        return "does not change" if change == 0 else f"changes by {signed(change, decimals)}"
    low, high = (signed(bound, decimals) for bound in bounds)
    return f"changes by {signed(change, decimals)} (95 % interval {low} to {high})"


BEFORE_AFTER = Question.read(WORDS, "before-after", draw=build, applies=applies, tasks=ANY_TASK)
