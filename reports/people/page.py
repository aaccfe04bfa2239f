"""The page of one participant, made from tables: scans, predictions, where relevance lies, comparison with others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.statistics.data.features import VOLUME
from heatlas.reports.content.run.registration import mostly_flagged
from heatlas.reports.figures.gallery import OUTCOME_NAMES
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, remark, worded_columns
from heatlas.reports.people.likeness import why_unlike
from heatlas.reports.people.planted import planted_in
from heatlas.reports.people.regions import (
    FingerprintMeasure,
    cautions_of_maps,
    evidence_sentences,
    measure_of,
    regions_of_scans,
)
from heatlas.reports.people.scan_pictures import overview_of, portraits_of, viewers_of
from heatlas.reports.questions.question import Caution
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.vector.charts import (
    NEGATIVE,
    OTHER,
    POSITIVE,
    Look,
    ScoreRow,
    VisitSeries,
    draw_fingerprint,
    draw_visits,
)
from heatlas.reports.words.numbers import LONGEST_TEXT, count, fixed, is_missing, listing, number, shortened
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import source_name

WORDS = Words(__file__)


SHOWN = 16  # regions of the fingerprint in the chart; the table has all


_VOLUMES = FingerprintMeasure("Volume", "volume", number)


def person_content(material: Material, people: ParticipantRecords, participant_id: str) -> Mapping[str, Any]:
    """Variables of the page of a participant.

    `participant_id`: with at least one kept scan.
    """
    run = material.run
    visits = people.by_participant[participant_id]
    fingerprints = [_fingerprint(material, people, name, participant_id, visits) for name in run.main_maps]
    scored = people.scores(VOLUME, participant_id) if run.without_labels else pd.DataFrame()
    volumes = _scored(material, _VOLUMES, "Volume", scored.assign(value=np.nan)) if len(scored) else None
    return {
        "participant": shortened(participant_id),
        "applied": run.without_labels,
        "withheld": why_unlike(run, [str(scan) for scan in visits["scan_id"]]),
        "lead": _lead(material, visits),
        "evidence": evidence_sentences(run, visits),
        "cautions": _cautions(material, visits),
        "visits": page_table(
            _visit_rows(material, visits), _visit_columns(run), "Every kept scan of this participant."
        ),
        "course": _course(material, people, visits),
        "fingerprints": [found for found in (*fingerprints, volumes) if found is not None],
        "portraits": portraits_of(material, people, visits),
        "viewers": viewers_of(material, visits),
        "overviews": [found for row in visits.to_dict("records") if (found := overview_of(material, row)) is not None],
        "planted": planted_in(run, [str(scan) for scan in visits["scan_id"]]),
        "keeps_maps": run.keeps_single_maps,
        "positive": run.positive,
        "negative": run.negative,
    }


def _lead(material: Material, visits: pd.DataFrame) -> str:
    run, first = material.run, visits.iloc[0]
    facts = [
        "" if is_missing(first["age"]) else f"{fixed(first['age'], 0)} years old at the first scan",
        {"F": "a woman", "M": "a man"}.get(str(first["sex"]), ""),
        "" if is_missing(first["site"]) else f"site {shortened(first['site'])}",
    ]
    text = f"{count(len(visits), 'scan')}"
    known = [fact for fact in facts if fact]
    text += f"; {', '.join(known)}. " if known else ". "
    tested = visits[visits["predicted"].notna()]
    if tested.empty:
        return text + "These scans have no prediction: they are outside the contrast, or the run stopped before."
    held_out = tested[~tested["applied"].fillna(False).astype(bool)]
    if len(held_out):
        folds = sorted({str(fold).removesuffix(".0") for fold in held_out["fold"]})
        network = f"The network of fold {listing(folds)}, which was trained on no scan of this person,"
        if run.config.training.networks_of:
            network = f"The mean of the networks, which were trained {run.trained_with},"
        if not run.task.classes:
            means = [fixed(pd.to_numeric(held_out[name]).mean(), 1) for name in ("predicted", "label")]
            return text + f"{network} predicts {run.task.column} {means[0]}; the true value is {means[1]}."
        right = int((held_out["label"] == held_out["predicted"]).sum())
        return text + WORDS.say(
            "lead",
            network=network,
            rightly=_rightly(right, len(held_out)),
            mean="mean " * (len(held_out) > 1),
            run=run,
            probability=held_out["probability"].mean(),
        )
    if run.without_labels:
        return text + _applied(run, visits, tested)
    return text + WORDS.say("lead_outside", run=run, mean=tested["probability"].mean())


def _applied(run: RunRecord, visits: pd.DataFrame, tested: pd.DataFrame) -> str:
    """What the networks of another run say of someone without a label, and what is not known of them."""
    networks = len(run.models)
    by = f"{count(networks, 'network')} trained {run.trained_with}"
    if run.task.is_number:
        said, answer, places = f"Predicted {run.task.column}, the mean of {by}: ", "predicted", 1
    else:
        said, answer, places = f"Probability of {run.positive} by the mean logits of {by}: ", "probability", 3
    parts = [f"{fixed(row[answer], places)} ({_spread(row[f'{answer}_sd'], places)})"
             for row in tested.to_dict("records")]  # fmt: skip
    unknown = [name for name in ("age", "sex") if visits[name].isna().all()]
    text = f"{said}{listing(parts)}. No label says whether they are right."
    return text + (f" Not known: {listing(unknown)}; scores against controls do without." if unknown else "")


def _spread(sd: float, places: int) -> str:
    return "one network" if is_missing(sd) else f"standard deviation over the networks {fixed(sd, places)}"


def _rightly(right: int, scans: int) -> str:
    if scans == 1:
        return "predicts the only scan " + ("correctly" if right else "wrongly")
    return f"predicts {number(right)} of {number(scans)} scans correctly"


def _cautions(material: Material, visits: pd.DataFrame) -> list[Caution]:
    found = []
    wrong = visits[visits["outcome"].isin(["FP", "FN"])]
    if len(wrong):
        names = sorted({OUTCOME_NAMES[str(name)] for name in wrong["outcome"]})
        said = _maps_of_mistakes(material.run, set(wrong["outcome"]))
        text = f"{count(len(wrong), 'scan')} of this participant: {listing(names)}. {said}"
        found.append(Caution("serious", "The network is wrong here.", text))
    flags = shortened("; ".join(sorted(set(_flags(material, visits).values()))), LONGEST_TEXT)
    if flags:
        if mostly_flagged(material.run):
            text = f"{flags}. Most scans of this run are flagged, so this tells little about this one; look below."
            found.append(Caution("note", "Registration is flagged.", text, "quality"))
        else:
            text = f"{flags}. Relevance may be counted in the wrong regions."
            found.append(Caution("serious", "Registration is doubtful.", text, "quality"))
    unsure = visits[visits["probability"].between(0.35, 0.65)]
    if len(unsure):
        found.append(Caution.read(WORDS, "cautions", scans=len(unsure)))
    if material.run.has("conservation"):
        table = material.run.tables["conservation"]
        start = table[table["scan_id"].isin(visits["scan_id"])].drop_duplicates("scan_id")["start_value"]
        below = int((start < 0).sum())
        if below:
            text = f"The explained output of {count(below, 'scan')} is below 0, which reverses the sign of the maps."
            found.append(Caution("note", "Maps have reversed signs.", text))
    if len(material.run.region_sums):
        regions = regions_of_scans(material.run)
        named = [regions[scan].named for scan in map(str, visits["scan_id"]) if scan in regions]
        found += cautions_of_maps(material.run, dict.fromkeys(group for groups in named for group in groups))
    return found


def _started(run: RunRecord) -> str:
    """What the maps of a person explain: evidence maps the logit, the others what the run says."""
    start, positive = run.config.attribution.start_value, run.positive
    if not run.leads_with_evidence:
        return f"Maps explain the {start} of {positive}"
    return f"The leading map explains evidence for {positive} in logits, the others the {start} of {positive}"


def _maps_of_mistakes(run: RunRecord, outcomes: Collection[str]) -> str:
    """What the map of a wrong prediction shows: maps explain the positive class, whatever was predicted."""
    start, positive = run.config.attribution.start_value, run.positive
    said = []
    if "FP" in outcomes:
        said.append("The maps of a false positive show what misled the network, not where the disease is.")
    if "FN" in outcomes:
        said.append(
            f"{_started(run)}, so those of a false negative show what spoke for {positive}, not why it was missed"
            + (f"; where the {start} is below 0, the sign is reversed." if start == "logit" else ".")
        )
    return " ".join(said)


def _flags(material: Material, visits: pd.DataFrame) -> dict[str, str]:
    """Doubts about the registration by scan."""
    if not material.run.has("registration"):
        return {}
    table = material.run.tables["registration"]
    rows = table[table["scan_id"].isin(visits["scan_id"]) & table["flags"].notna()]
    return dict(zip(rows["scan_id"].astype(str), rows["flags"].astype(str), strict=True))


def _visit_columns(run: RunRecord) -> tuple[Column, ...]:
    probability = numeric("probability", f"Probability of {run.positive}", lambda x: fixed(x, 3))
    return (
        *worded_columns(WORDS, "visit_columns"),
        *[probability] * bool(run.task.classes),
        Column("predicted", f"Predicted {run.task.column}", remark if run.task.classes else number),
        *worded_columns(WORDS, "visit_columns_2"),
    )


def _visit_rows(material: Material, visits: pd.DataFrame) -> pd.DataFrame:
    flags = _flags(material, visits)
    applied = visits["applied"].fillna(False).astype(bool)
    folds = visits["fold"].map(lambda fold: None if is_missing(fold) else f"fold {str(fold).removesuffix('.0')}")
    return visits.assign(
        network=folds.where(~applied, "networks not trained on this person"),
        verdict=visits["outcome"].map(OUTCOME_NAMES),
        volume_from=visits["hippocampus_source"].map(source_name).where(visits["hippocampus_mm3"].notna(), None),
        registration=visits["scan_id"].map({scan: f"doubtful: {flag}" for scan, flag in flags.items()}),
    )


def _course(material: Material, people: ParticipantRecords, visits: pd.DataFrame) -> Markup | None:
    """Quantities over visits; None for a single visit."""
    if len(visits) < 2:
        return None
    ages = visits["age"].to_numpy(float)
    by_age = bool(np.isfinite(ages).all() and np.ptp(ages) > 0)
    times = list(ages) if by_age else list(np.arange(len(visits), dtype=float))
    run, name = material.run, material.run.leading_map
    courses = [VisitSeries(f"Probability of {run.positive}", _numbers(visits, "probability"), (0.0, 1.0), 0.5)]
    wide = people.values(name)
    group = next((group for group in wide.columns if str(group).lower() == "hippocampus"), None)
    if group is not None:
        measure = measure_of(run, name)
        title = f"{map_title(name)}, {measure.axis} in the hippocampus"
        courses.append(VisitSeries(title, (measure.factor * wide[group].reindex(visits["scan_id"])).tolist()))
    measured = visits[visits["hippocampus_mm3"].notna()]  # a source may also say why there is no volume
    sources = listing(sorted({source_name(source) for source in measured["hippocampus_source"].dropna()}))
    courses.append(VisitSeries(f"Hippocampal volume, mm³ ({sources})", _numbers(visits, "hippocampus_mm3")))
    courses.append(VisitSeries("MMSE", _numbers(visits, "mmse"), (0.0, 30.0)))
    known = [course for course in courses if np.isfinite(np.asarray(course.values, dtype=float)).any()]
    if not known:
        return None
    names = ["" if is_missing(name) else str(name) for name in visits["session_id"]]
    sentence = f"{listing([course.name for course in known])} over {count(len(visits), 'visit')}."
    return draw_visits(times, names, known, "visit, spaced by age" if by_age else "visit", sentence)


def _numbers(frame: pd.DataFrame, column: str) -> list[float]:
    if column not in frame:
        return [float("nan")] * len(frame)
    return [float(value) for value in pd.to_numeric(frame[column], errors="coerce")]


def _fingerprint(
    material: Material, people: ParticipantRecords, map_name: str, participant_id: str, visits: pd.DataFrame
) -> Mapping[str, Any] | None:
    """Evidence, or share of the map, in every bilateral group, mean over the person's scans, against controls."""
    wide = people.values(map_name)
    scans = [scan for scan in visits["scan_id"] if scan in wide.index]
    if not scans:
        return None
    title, person = map_title(map_name), wide.loc[scans].mean()
    measure = measure_of(material.run, map_name)
    controls = people.controls(map_name, participant_id)
    chart: Markup | None = None
    if controls is None and len(scored := people.scores(map_name, participant_id)):
        return _scored(material, measure, title, scored.assign(value=person.reindex(scored.index)))
    if controls is None:
        alone = pd.DataFrame({"group": person.index, "value": person.to_numpy()}).dropna()
        alone = alone.sort_values("value", ascending=False, kind="stable")
        why = f"Too few participants of {material.run.negative} with heatmaps to compare with."
        if not material.run.task.classes:
            why = "Not compared with controls: this run predicts a number and has no class of controls."
        return {"title": title, "chart": chart, "table": _region_table(material, measure, alone), "text": why}
    scores = controls.scores(person)
    table = pd.DataFrame({
        "value": person, "mean": controls.mean, "score": scores, "above": controls.share_below(person),
    }).reindex(person.index).rename_axis("group").reset_index().dropna(subset="value")  # fmt: skip
    adjusted = people.scores(map_name, participant_id)
    if len(adjusted):
        table["w"] = table["group"].map(adjusted["w"])
    table = table.sort_values("score", key=lambda values: -values.abs(), kind="stable", na_position="last")
    looks = {material.run.positive: POSITIVE, material.run.negative: NEGATIVE}
    look = looks.get(str(visits["label"].iloc[0]), OTHER)
    text = (
        WORDS.say("fingerprint_caption", measure=measure, title=title, scans=len(scans), controls=controls),
        "the controls", _reversed(material.run, map_name, scans),
    )  # fmt: skip
    return _furthest(material, measure, title, table, controls.bands, look, controls.who, text)


def _reversed(run: RunRecord, map_name: str, scans: list[str]) -> str:
    """That a map starts from an output below 0 in any of these scans, in a sentence; empty where none does."""
    if not run.has("conservation"):
        return ""
    rows = run.tables["conservation"]
    rows = rows[(rows["map"] == map_name) & rows["scan_id"].isin(scans) & (rows["start_value"] < 0)]
    return WORDS.say("reversed") if len(rows) else ""


def _scored(material: Material, measure: FingerprintMeasure, title: str, scores: pd.DataFrame) -> Mapping[str, Any]:
    """Scores by bilateral group against the norms of the run whose networks were applied."""
    table = scores.dropna(subset="z").rename_axis("group").reset_index()
    table = table.assign(score=table["z"]).sort_values("z", key=lambda z: -z.abs(), kind="stable")
    who = f"{material.run.negative} of the run that the networks are from"
    text = (
        f"{title} in each region against the norms of {who}, as normal deviates (z).", "these controls",
        " w_scores.tsv says what each norm takes account of.",
    )  # fmt: skip
    return _furthest(material, measure, title, table, {}, OTHER, who, text)


def _furthest(
    material: Material, measure: FingerprintMeasure, title: str, table: pd.DataFrame,
    bands: Mapping[str, tuple[float, ...]], look: Look, who: str, text: tuple[str, str, str],
) -> Mapping[str, Any]:  # fmt: skip
    """Chart and table of regions, those furthest from controls first; `text`: before, the controls, after."""
    shown = table[table["score"].notna()].head(SHOWN)
    rows = [
        ScoreRow(str(group), bands.get(str(group)), float(score), measure.form(value), material.links.region(group))
        for group, score, value in zip(shown["group"], shown["score"], shown["value"], strict=True)
    ]
    before, whom, after = text
    said = f"{before} Shown: {count(len(rows), 'region')} furthest from {whom}, of {number(len(table))}.{after}"
    alt = f"{title}: {listing([f'{row.name} {fixed(row.score, 1)}' for row in rows[:5]])} standard deviations."
    chart = draw_fingerprint(rows, look, who, alt) if rows else None
    return {"title": title, "chart": chart, "table": _region_table(material, measure, table), "text": said}


def _region_table(material: Material, measure: FingerprintMeasure, rows: pd.DataFrame) -> PageTable:
    linked = rows.assign(page=rows["group"].map(material.links.region).astype(object))
    columns = (
        Column("group", "Region", link="page"),
        numeric("value", measure.title, measure.form),
        numeric("mean", f"Mean of {material.run.negative}", measure.form),
        *worded_columns(WORDS, "region_table"),
    )
    return page_table(linked, columns, "All bilateral groups.")
