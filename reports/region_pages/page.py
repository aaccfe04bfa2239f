"""The page of one bilateral group: its place, relevance by group, volume, and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.statistics.data.values import with_shares
from heatlas.reports.content.relevance.regions import MEANING, axis_title
from heatlas.reports.figures.gallery import OUTCOME_NAMES
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import PageTable, columns_of, page_table
from heatlas.reports.questions.comparisons import scaled_by_probability
from heatlas.reports.questions.findings import least_voxels
from heatlas.reports.questions.question import Caution
from heatlas.reports.read.run_record import OUTCOMES, RunRecord
from heatlas.reports.region_pages.results import (
    associations_by_group,
    effects_by_group,
    first_effects_by_group,
    lead_of,
    planted_here,
    sides_by_group,
)
from heatlas.reports.region_pages.viewer import RegionPictures, RegionViewers
from heatlas.reports.vector.charts import (
    NEGATIVE,
    OTHER,
    OUTCOME_LOOKS,
    POSITIVE,
    Group,
    Look,
    draw_groups,
    draw_scatter,
)
from heatlas.reports.words.numbers import listing, number, shortened
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import OWN

WORDS = Words(__file__)


@dataclass(frozen=True)
class RegionMaterial:
    """What the pages of all regions share, prepared once."""

    material: Material  # of a run with relevance

    @cached_property
    def pictures(self) -> RegionPictures | None:
        return RegionPictures.of(self.material)

    @cached_property
    def viewers(self) -> RegionViewers | None:
        return RegionViewers.of(self.material)

    @cached_property
    def sides(self) -> Mapping[str, PageTable]:
        """Both sides of each bilateral group."""
        return sides_by_group(self.material.run)

    @cached_property
    def tests(self) -> tuple[Callable[[str], list[PageTable]], Callable[[str], list[PageTable]]]:
        """Tests of a bilateral group: those that answer its questions first, and all of them."""
        run = self.material.run
        effects, associations = effects_by_group(run), associations_by_group(run)
        first = first_effects_by_group(run), associations_by_group(run, first=True)
        return (
            lambda group: [table[group] for table in first if group in table],
            lambda group: [*effects.get(group, []), *filter(None, [associations.get(group)])],
        )

    @cached_property
    def people(self) -> Mapping[tuple[str, str], Mapping[str, pd.DataFrame]]:
        """Per bilateral group and map: mean share, gain and evidence of each participant, by class and by outcome.

        Applied scans (outside the contrast) have neither and stand under their diagnosis.
        """
        run = self.material.run
        measures = [*METRICS, "evidence"]
        columns = ["participant_id", "map", "group", *measures, "label", "outcome"]
        frames = []
        if run.has("predictions"):
            rows = _with_evidence(run, run.region_values)
            frames.append(rows[rows["map"].isin(run.main_maps)][columns])
        if run.has("relevance_applied_bilateral", "scans"):
            rows = _with_evidence(run, run.tables["relevance_applied_bilateral"])
            diagnoses = run.tables["scans"][["scan_id", "diagnosis"]]
            rows = rows[rows["map"].isin(run.main_maps)].merge(diagnoses, on="scan_id")
            frames.append(rows.assign(label=rows["diagnosis"], outcome=None)[columns])
        found: dict[tuple[str, str], dict[str, pd.DataFrame]] = {}
        for column in ("label", "outcome") if frames else ():
            keys = ["group", "map", column]
            means = pd.concat(frames).groupby([*keys, "participant_id"], sort=True)[measures].mean()
            for (group, name, members), rows in means.groupby(level=keys, sort=True):
                found.setdefault((str(group), str(name)), {})[str(members)] = rows.droplevel([0, 1, 2])
        return found

    @cached_property
    def volumes(self) -> Mapping[str, pd.Series]:
        """Per bilateral group: volume in mm³, both sides, mean over each participant's scans."""
        run = self.material.run
        if not run.has("volumes"):
            return {}
        table = run.tables["volumes"]
        sides = table.groupby(["group", "participant_id", "scan_id"], sort=False)["volume_mm3"].sum(min_count=1)
        means = sides.groupby(level=["group", "participant_id"], sort=False).mean()
        return {str(group): rows.droplevel("group") for group, rows in means.groupby(level="group", sort=False)}


def _with_evidence(run: RunRecord, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of relevance with the share of the map, and the sums of evidence maps as ``evidence``."""
    return with_shares(rows).assign(evidence=rows["sum"].where(rows["map"].isin(run.evidence_maps)))


def region_content(shared: RegionMaterial, group: str) -> Mapping[str, Any]:
    """Variables of the page of a bilateral group."""
    material = shared.material
    maps = [name for name in material.run.main_maps if (group, name) in shared.people]
    first_tests, tests = shared.tests
    picture = shared.pictures.draw(group) if shared.pictures is not None else None
    return {
        "region": shortened(group),
        "lead": lead_of(material.run, group),
        "cautions": _cautions(material, group),
        "picture": picture,
        "no_picture": _why_no_picture(material, shared.pictures),
        "blocks": [_block(shared, name, group) for name in maps],
        "summary": _summary(material, group),
        "scatters": _scatters(shared, maps, group),
        "volume_text": _VOLUME_TEXT,
        "sides": shared.sides.get(group),
        "first_tests": first_tests(group),
        "tests": tests(group),
    }


_VOLUME_TEXT = (
    f"Volumes: {OWN} (its determinant), both sides together, mean over a participant's scans; not divided by "
    "intracranial volume. The section about hippocampal volume may use another source. The charts are descriptive; the "
    "tables below have the tests."
)


def _cautions(material: Material, group: str) -> list[Caution]:
    run, found = material.run, []
    sizes = run.tables["relevance_bilateral"].loc[run.tables["relevance_bilateral"]["group"] == group, "n_voxels"]
    voxels = int(sizes.max()) if len(sizes) else 0
    least = least_voxels(run)
    if voxels < least:
        text = WORDS.say("cautions", voxels=voxels, least=least)
        found.append(Caution("note", "A small region.", text))
    scaled = scaled_by_probability(run)
    if scaled is not None:
        found.insert(0, replace(scaled, section=""))  # its section is on another page
    if run.is_synthetic:
        said = f"Nothing here says anything about Alzheimer's disease.{planted_here(run, group)}"
        found.append(Caution("note", "Synthetic people.", said))
    return found


def _why_no_picture(material: Material, pictures: RegionPictures | None) -> str:
    if not material.run.keeps_mean_maps:
        return 'This run keeps no maps ([attribution] keep_maps = "none"), so none can be shown here.'
    missing = material.missing_maps(material.run.labels, material.run.main_maps[:1])
    if missing and pictures is None:
        return missing
    if pictures is None:
        return "The template or the atlas is not at hand, or no mean map was found in group/maps."
    return "This region has no voxel at the resolution of the run."


METRICS = ("share", "gain")  # metrics that do not depend on the strength of the whole map, as sum and density do


def metrics_of(run: RunRecord, map_name: str) -> tuple[str, ...]:
    """Metrics of a map that its charts show: evidence has a unit, so that people can be compared by it."""
    return ("evidence",) if map_name in run.evidence_maps else METRICS


def _block(shared: RegionMaterial, map_name: str, group: str) -> Mapping[str, Any]:
    """Evidence, or share of the map and gain, by class and outcome, one point per participant."""
    run, charts = shared.material.run, []
    for metric in metrics_of(run, map_name):
        groups = _groups(shared, map_name, group, metric)
        known = [g for g in groups if np.isfinite(g.values).any()]
        if not known:
            continue
        medians = listing([f"{g.name} {number(float(np.nanmedian(g.values)))}" for g in known])
        at = 1.0 if metric == "gain" else 0.0
        axis = axis_title(map_name, metric, run)
        chart = draw_groups(groups, axis, f"{metric} in {shortened(group)}; medians: {medians}.", at)
        caption = f"{MEANING[metric].format(positive=run.positive, negative=run.negative)} One point per participant; "
        title = f"{axis}, {map_title(map_name)}"
        charts.append({"picture": chart, "caption": f"{caption}box, quartiles.", "title": title})
    return {"title": map_title(map_name), "charts": charts}


def _groups(shared: RegionMaterial, map_name: str, group: str, metric: str) -> list[Group]:
    """Classes, further diagnoses, outcomes that occur."""
    run, members = shared.material.run, shared.people[group, map_name]
    looks: dict[str, Look] = {run.positive: POSITIVE, run.negative: NEGATIVE}
    others = sorted(set(members) - set(looks) - set(OUTCOMES))
    looks.update(dict.fromkeys(others, OTHER))
    looks.update(OUTCOME_LOOKS)
    order = [name for name in (*run.labels, *others, *OUTCOMES) if name in members]
    return [_group(members[name][metric], name, looks[name], shared.material.shows_people) for name in order]


def _group(means: pd.Series, name: str, look: Look, named: bool) -> Group:
    hints = [f"{person}: {number(value)}" if named else "" for person, value in means.items()]
    return Group(name, means.to_numpy(float), look, hints)


_SUMMARY = (
    "map", "scan_group", "n_participants", "n_scans", "mean_density", "ci_low", "ci_high", "mean_sum", "mean_gain",
    "n_gain",
)  # fmt: skip


def _summary(material: Material, group: str) -> PageTable:
    run = material.run
    if not run.has("region_summary"):
        return page_table(pd.DataFrame(), (), "The summary over regions is written with the statistics.")
    table = run.tables["region_summary"]
    rows = table[(table["group"] == group) & (table["n_scans"] > 0)]
    names = rows["scan_group"].map(lambda name: OUTCOME_NAMES.get(str(name), str(name)))
    place = rows["map"].map({name: place for place, name in enumerate(run.ordered_maps)})
    rows = rows.assign(map=rows["map"].map(map_title), scan_group=names, place=place)
    rows = rows.sort_values("place", kind="stable")
    level = f"{100 * run.config.statistics.confidence:g} % intervals over participants"
    caption = WORDS.say("summary", level=level)
    return page_table(rows, columns_of(run, "region_summary", _SUMMARY), caption)


def _scatters(shared: RegionMaterial, maps: Sequence[str], group: str) -> list[dict[str, str]]:
    """Share of the map, or evidence, against volume, by class, one point per participant."""
    volumes, run, charts = shared.volumes.get(group), shared.material.run, []
    if volumes is None:
        return []
    for name in maps:
        pairs, metric = [], metrics_of(run, name)[0]
        what = {"share": "share of the map", "evidence": f"evidence ({run.evidence_unit})"}[metric]
        for label, look in ((run.positive, POSITIVE), (run.negative, NEGATIVE)):
            members = shared.people[group, name].get(label)
            if members is not None:
                across = volumes.reindex(members.index).to_numpy(float)
                pairs.append((_group(members[metric], label, look, shared.material.shows_people), across))
        n = sum(int(np.isfinite(g.values + x).sum()) for g, x in pairs)
        if n:
            title = WORDS.say("scatters", what=what, name=name, group=group, n=n)
            picture = draw_scatter(pairs, "own volume (Jacobian), mm³", what, title)
            charts.append({"picture": picture, "caption": title})
    return charts
