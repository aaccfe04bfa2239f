"""Explanations on demand: chosen scans of a finished run, each by a network that has not seen its participant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.attribution.method_settings import read_settings, typed_settings
from heatlas.pipeline.attribution.network_view import StartValue, split_layers
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.cohort.candidates import participant_named
from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.people.splits import PARTS, SPLITS_TABLE, Split, known_to_network
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.explained_scan import PREDICTED, Explanation, asked_for, map_outputs
from heatlas.pipeline.explaining.scan_jobs import JobMaker, require_all_defined, require_listed, usual_start
from heatlas.pipeline.models.storage import LoadedModel, load_model, require_family
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE, SPREADS, bilateral_sums, density
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout
from heatlas.pipeline.run.layout.scan_files import settings_for
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.run.tables import REMEDY
from heatlas.pipeline.run.work.jobs import Job, Outcome, is_done, run_jobs

STAGE = "explanations"
LISTED = 5
"""Most names of people or scans in a message."""

_OF_A_MAP = {
    "target": "Class that was explained",
    "start_value": "Value of the target (logit, probability or evidence)",
}
_HEAD = {
    **described("participant_id", "session_id", "scan_id"),
    "map": "Map, named as in the file names",
    "fold": "Whose network explained the scan: one that has not seen the participant",
    **_OF_A_MAP,
}
_OF_RUN = RELEVANCE_TABLE.without("map", *SPREADS)
_BILATERAL = RELEVANCE_BILATERAL_TABLE.without("map", "reference_sum", "gain", "evidence_sd")
EXPLAINED_REGIONS_TABLE = Table(
    "explained_regions", {**_HEAD, **_OF_RUN.meanings},
    "scan and region", _OF_RUN.question, stage="explanations", file="explanations/desc-MAP_regions.tsv",
)  # fmt: skip
EXPLAINED_BILATERAL_TABLE = Table(
    "explained_bilateral", {**_HEAD, **_BILATERAL.meanings},
    "scan and bilateral group", _OF_RUN.question, stage="explanations", file="explanations/desc-MAP_bilateral.tsv",
)  # fmt: skip


@dataclass(frozen=True)
class ExplanationRequest:
    """A request as typed.

    `settings`: ``key=value`` for all methods; ``method:key=value`` for one. `target`: a class, ``predicted``, or None
    for the class that the run explains. `stage`: number or layer; None for where each method is usually asked. `start`:
    None for what the run starts from (LRP and guided backpropagation), the evidence (methods relative to controls) or
    the logit (all others). `participants`, `scans`: participants with or without ``sub-``; scan ids or BIDS names. Both
    empty: every scan.
    """

    methods: tuple[str, ...]
    settings: tuple[str, ...] = ()
    target: str | None = None
    stage: str | None = None
    start: StartValue | None = None
    participants: tuple[str, ...] = ()
    scans: tuple[str, ...] = ()


def show_scans(work: Work, request: ExplanationRequest, atlas: Atlas) -> list[Outcome]:
    """Write maps, region sums and tables of the scans of a run; one outcome per method and chosen scan.

    Nothing is written before the whole request has been checked.
    """
    layout, config, scans = ExplanationLayout(work.layout.root), work.config, work.scans
    able, closed = explainable(work)
    chosen = chosen_scans(request, scans, able, closed)
    networks = {fold: load_model(layout.fold(fold)) for fold in sorted({able[scan.scan_id] for scan in chosen})}
    for fold, network in networks.items():
        require_family(network, config.model, layout.fold(fold))
        if network.input.resolution_mm != config.registration.resolution_mm:
            raise BadInputError(
                f"{layout.fold(fold).description}: the network sees voxels of {network.input.resolution_mm:g} mm, and "
                f"those of the run have {config.registration.resolution_mm:g} mm ({layout.config.name}). {REMEDY}"
            )
    for fold, network in networks.items():
        _require_unseen(layout, [scan for scan in chosen if able[scan.scan_id] == fold], fold, network)
    first = next(iter(networks))
    if task_of(config.cohort).explained not in networks[first].classes:
        raise BadInputError(
            f"{layout.fold(first).description}: the network tells {' from '.join(networks[first].classes)}, and "
            f"{task_of(config.cohort).explained}, the positive class in {layout.config.name}, is neither. {REMEDY}"
        )
    there = [scan for scan in scans if not _lacking(work, scan)]
    controls = controls_of(there, work.split, config)
    maker = JobMaker(layout, STAGE, PackedAtlas.of(atlas), config, work.digests, controls)
    explanations = checked_explanations(request, networks[first], config)
    loaded = networks[first]
    require_all_defined(loaded.model, loaded.input, maker.atlas, explanations)
    jobs = [
        {scan.scan_id: _job(maker, asked, scan, able[scan.scan_id]) for scan in scans if scan.scan_id in able}
        for asked in explanations
    ]
    work.digests.save()
    wanted = [by_scan[scan.scan_id] for by_scan in jobs for scan in chosen]
    outcomes = run_jobs(layout, wanted, work.executor, "explanations")  # in one go: failures of all methods are listed
    for asked, by_scan in zip(explanations, jobs, strict=True):
        _write_tables(layout, asked, by_scan.values())
    return outcomes


def chosen_scans(
    request: ExplanationRequest, scans: Sequence[Scan], able: Mapping[str, int], shut: Mapping[str, str]
) -> list[Scan]:
    """Scans of a request, in the order of the run; `able` and `shut` as from `explainable`."""
    kept = {scan.participant_id for scan in scans}
    people = {participant_named(name, kept) for name in request.participants}
    wanted = set(request.scans)
    unknown = sorted(people - kept)
    if unknown:
        raise UsageError(_not_kept("--participant-label", unknown[0], sorted(kept)))
    unknown = sorted(wanted - {name for scan in scans for name in (scan.scan_id, scan.name)})
    if unknown:
        raise UsageError(_not_kept("--scan", unknown[0], [scan.name for scan in scans]))
    everyone = not people and not wanted
    named = [scan for scan in scans if scan.participant_id in people or {scan.scan_id, scan.name} & wanted]
    chosen = list(scans) if everyone else named
    closed = [scan for scan in chosen if scan.scan_id not in able]
    if closed and (people or wanted):
        raise UsageError(f"{closed[0].name}: no network of this run may explain it: {shut[closed[0].scan_id]}")
    chosen = [scan for scan in chosen if scan.scan_id in able]
    if not chosen:
        why = f" {next(iter(shut.values()))}" if shut else ""
        raise UsageError(f"this run has no scan with a trained network that has not seen it.{why}")
    return chosen


def _not_kept(option: str, name: str, kept: Sequence[str]) -> str:
    shown = f"{', '.join(kept[:LISTED])}{', ...' if len(kept) > LISTED else ''}"
    return (
        f"{option} {name}: not among the kept scans of this run.{did_you_mean(nearest(name, kept))} Write one of "
        f"{shown} ({len(kept)}; scans.tsv lists all, and why a scan was dropped)."
    )


def checked_explanations(request: ExplanationRequest, loaded: LoadedModel, config: Config) -> list[Explanation]:
    """One explanation per method, each checked against its record and the layers of the network."""
    target = request.target or task_of(config.cohort).explained
    if target != PREDICTED and target not in loaded.classes:
        raise UsageError(f"--target {target}: write {PREDICTED}, {' or '.join(loaded.classes)}.")
    stage: int | str | None = request.stage
    if isinstance(stage, str) and stage.isdecimal():
        stage = int(stage)
    entries = [find_method(name) for name in dict.fromkeys(request.methods)]
    require_listed(request.methods, request.settings, "--setting")
    explanations = []
    for entry in entries:
        loaded.family.require_method(entry.name)
        typed = read_settings(entry.name, entry.record, settings_for(entry.name, request.settings))
        needed = typed_settings(entry.name, entry.record, loaded.family.needs.get(entry.name, {}), "needed")
        settings = {**needed, **typed}
        usual, start = entry.stage_of(loaded.model), usual_start(entry, config)
        asked_at = usual if stage is None else stage
        split_layers(loaded.model, asked_at)
        normal: dict[str, int | str] = {"target": task_of(config.cohort).explained, "stage": usual, "start": start}
        explanations.append(asked_for(entry, settings, target, asked_at, request.start or start, normal))
    return explanations


def unseen_fold(split: Split, participant_id: str) -> int | None:
    """The fold that tests a participant; else, of one in no part of any fold, the first; else None.

    Someone outside the contrast (such as an MCI patient) has been seen by no network, and any may explain them.
    """
    fold = split.fold_of_test(participant_id)
    if fold is not None:
        return fold.index
    seen = any(participant_id in (*fold.train, *fold.validation) for fold in split.folds)
    return None if seen or not split.folds else split.folds[0].index


SEEN = "every network has seen its participant."
"""Why a scan is not explained though nothing is missing."""


def explainable(work: Work) -> tuple[dict[str, int], dict[str, str]]:
    """Fold by scan id, of registered scans with a trained network that has not seen them; why not, of the others."""
    layout, split = work.layout, work.split
    able, closed = {}, {}
    in_a_fold = {name for fold in split.folds for part in PARTS for name in getattr(fold, part)}
    for scan in work.scans:
        fold = unseen_fold(split, scan.participant_id)
        if scan.label is not None and scan.participant_id not in in_a_fold:
            who = f"{scan.participant_id}, who is {scan.label} in {SCANS_TABLE.file}"
            closed[scan.scan_id] = f"{SPLITS_TABLE.path(layout)} has no row of {who}. {REMEDY}"
        elif fold is None:
            closed[scan.scan_id] = SEEN
        elif lacking := _lacking(work, scan, layout.fold(fold).description):
            closed[scan.scan_id] = f"{lacking[0]} is missing. Repeat the command that made this run."
        else:
            able[scan.scan_id] = fold
    return able, closed


def _lacking(work: Work, scan: Scan, *further: Path) -> list[Path]:
    return [path for path in (*work.files(scan).seen, *further) if not path.is_file()]


def _require_unseen(layout: ExplanationLayout, scans: Sequence[Scan], fold: int, loaded: LoadedModel) -> None:
    """The split must not be another one than the network was trained with."""
    description = layout.fold(fold).description
    seen = known_among([scan.participant_id for scan in scans], known_to_network(loaded.description, str(description)))
    if seen:
        raise BadInputError(
            f"{SPLITS_TABLE.path(layout)}: {seen[0]} neither trains nor validates in fold {fold}, but the network was "
            f"trained or selected with it ({description}). {REMEDY}"
        )


def _job(maker: JobMaker, asked: Explanation, scan: Scan, fold: int) -> Job:
    files = maker.files(scan)
    tables = {"regions": files.explanation_regions(asked.label)}
    if asked.entry.has_ledger:
        tables["ledger"] = files.explanation_ledger(asked.label)
    outputs = map_outputs([asked], files.explanation_map) | tables
    outputs |= {f"{name}_columns": path.with_suffix(".json") for name, path in tables.items()}
    return maker.job(f"{files.name}_{asked.label}", scan, (fold,), (asked,), outputs)


def _write_tables(layout: ExplanationLayout, asked: Explanation, jobs: Iterable[Job]) -> None:
    """Tables of all scans that have this explanation, those of earlier calls included."""
    frames = []
    for job in jobs:
        result = is_done(layout, job)
        if result is not None:
            columns = ["map", *_OF_RUN.meanings]
            table = RELEVANCE_TABLE.read(job.outputs["regions"], columns)[columns]
            facts = {name: {label: result[f"{label}.{name}"] for label in asked.names} for name in _OF_A_MAP}
            head = {name: table["map"].map(by_map) for name, by_map in facts.items()}
            frames.append(table.assign(fold=job.arguments[0].networks[0].fold, **head))
    if not frames:
        return
    regions = pd.concat(frames, ignore_index=True)
    bilateral = bilateral_sums(regions, list(_HEAD))
    bilateral["density"] = density(bilateral["sum"].to_numpy(float), bilateral["n_voxels"].to_numpy())
    EXPLAINED_REGIONS_TABLE.write(layout.regions(asked.label), regions)
    EXPLAINED_BILATERAL_TABLE.write(layout.bilateral(asked.label), bilateral)
