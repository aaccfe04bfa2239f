"""Explanations on demand: chosen scans of a finished run, each by a network that has not seen its participant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import pandas as pd

from atlases.labels import Atlas
from pipeline.attribution.explanations import PREDICTED, Explanation, ScanToShow, show_scan
from pipeline.attribution.method_settings import read_settings
from pipeline.attribution.methods import Accounting, require_defined
from pipeline.attribution.registry import Surroundings, find_method
from pipeline.attribution.stage import PACKAGES
from pipeline.attribution.subject import split_layers
from pipeline.attribution.targets import StartValue
from pipeline.cohort.records import Scan
from pipeline.cohort.splits import Split
from pipeline.models.storage import LoadedModel, load_model
from pipeline.regions.metrics import density
from pipeline.regions.tables import RELEVANCE_COLUMNS, bilateral_sums
from pipeline.regions.territory import Territory
from pipeline.run.config import Config
from pipeline.run.digests import DigestCache, unit_key
from pipeline.run.errors import UsageError
from pipeline.run.jobs import Job, Outcome, is_done, run_jobs
from pipeline.run.layout import ExplanationLayout
from pipeline.run.scan_files import sidecar
from pipeline.run.tables import read_table, write_table

STAGE = "explanations"

_HEAD = {
    "participant_id": RELEVANCE_COLUMNS["participant_id"],
    "session_id": RELEVANCE_COLUMNS["session_id"],
    "scan_id": RELEVANCE_COLUMNS["scan_id"],
    "map": "Map, named as in the file names",
    "fold": "Whose network explained the scan: one that has not seen the participant",
    "target": "Class that was explained",
    "start_value": "Value of the target (logit or probability)",
}
REGION_COLUMNS = _HEAD | {name: text for name, text in RELEVANCE_COLUMNS.items() if name not in _HEAD}
"""Columns of the table of regions."""

BILATERAL_COLUMNS = {
    **_HEAD,
    "group": "Bilateral group of regions",
    "n_voxels": "Voxels of all regions of the group",
    "sum": "Sum of the map over the group",
    "density": "Sum divided by voxels; n/a for an empty group",
}
"""Columns of the table of bilateral groups."""


@dataclass(frozen=True)
class Request:
    """A request as typed.

    Parameters
    ----------
    methods, settings : tuple of str
        Names, and ``key=value`` for all of them; ``method:key=value`` for one.
    target : str or None
        A class, ``predicted``, or None for the class that the run explains.
    stage : str or None
        Number or layer; None for where each method is usually asked.
    start : {"logit", "probability"} or None
        None for what the run starts from (LRP and guided backpropagation) or the logit (all others).
    participants, scans : tuple of str
        Participants with or without ``sub-``; scan ids or BIDS names. Both empty: every scan.
    """

    methods: tuple[str, ...]
    settings: tuple[str, ...] = ()
    target: str | None = None
    stage: str | None = None
    start: StartValue | None = None
    participants: tuple[str, ...] = ()
    scans: tuple[str, ...] = ()


def show_scans(
    layout: ExplanationLayout,
    request: Request,
    scans: Sequence[Scan],
    split: Split,
    atlas: Atlas,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Write maps, region sums and tables; nothing before the whole request has been checked.

    Parameters
    ----------
    layout : ExplanationLayout
    request : Request
    scans : sequence of Scan
        Kept scans of the run.
    split : Split
    atlas : Atlas
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per method and chosen scan.

    Raises
    ------
    UsageError
        For a method, setting, target, stage or scan that does not exist, or a scan that no network may explain.
    """
    able = _explainable(layout, scans, split, config)
    chosen = chosen_scans(request, scans, able)
    folds = sorted({able[scan.scan_id] for scan in chosen})
    territory = Territory.of(atlas)
    explanations = checked_explanations(request, load_model(layout.fold(folds[0])), territory, config)
    jobs = [
        {
            scan.scan_id: _job(layout, asked, scan, able[scan.scan_id], territory, config, digests)
            for scan in scans
            if scan.scan_id in able
        }
        for asked in explanations
    ]
    digests.save()
    wanted = [by_scan[scan.scan_id] for by_scan in jobs for scan in chosen]
    outcomes = run_jobs(layout, wanted, executor, "explanations")  # in one go: failures of all methods are listed
    for asked, by_scan in zip(explanations, jobs, strict=True):
        _write_tables(layout, asked, by_scan.values())
    return outcomes


def chosen_scans(request: Request, scans: Sequence[Scan], able: Mapping[str, int]) -> list[Scan]:
    """Scans of a request, in the order of the run.

    Parameters
    ----------
    request : Request
    scans : sequence of Scan
    able : mapping of str to int
        Fold by scan id, of the scans that a network may explain.

    Raises
    ------
    UsageError
        For a participant or scan that the run does not have or may not explain, or if there is none at all.
    """
    people = {name if name.startswith("sub-") else f"sub-{name}" for name in request.participants}
    wanted = set(request.scans)
    unknown = sorted(people - {scan.participant_id for scan in scans})
    if unknown:
        raise UsageError(f"--participant-label {unknown[0]}: not among the kept scans of this run; see its scans.tsv.")
    unknown = sorted(wanted - {name for scan in scans for name in (scan.scan_id, scan.name)})
    if unknown:
        raise UsageError(f"--scan {unknown[0]}: not among the kept scans of this run; see its scans.tsv.")
    chosen = [
        scan for scan in scans
        if (not people and not wanted) or scan.participant_id in people or {scan.scan_id, scan.name} & wanted
    ]  # fmt: skip
    closed = [scan for scan in chosen if scan.scan_id not in able]
    if closed and (people or wanted):
        raise UsageError(
            f"{closed[0].name}: no network of this run may explain it. It is not registered, its network is not "
            "trained, or every network has seen its participant."
        )
    chosen = [scan for scan in chosen if scan.scan_id in able]
    if not chosen:
        raise UsageError("this run has no scan with a trained network that has not seen it. Finish the run first.")
    return chosen


def checked_explanations(
    request: Request, loaded: LoadedModel, territory: Territory, config: Config
) -> list[Explanation]:
    """One explanation per method, each checked against its record and the network.

    Raises
    ------
    UsageError
        For an unknown method, setting, target or stage, or a method that is not defined for the network there.
    """
    target = request.target or config.cohort.positive
    if target != PREDICTED and target not in loaded.classes:
        raise UsageError(f"--target {target}: write {PREDICTED}, {' or '.join(loaded.classes)}.")
    stage: int | str | None = request.stage
    if isinstance(stage, str) and stage.isdecimal():
        stage = int(stage)
    surroundings, explanations = Surroundings(territory, loaded.input.box), []
    for name in dict.fromkeys(request.methods):
        entry = find_method(name)
        settings = read_settings(name, entry.record, _own_settings(name, request))
        method = entry.build(settings, surroundings)
        usual = entry.stage_of(loaded.model)
        asked_at = usual if stage is None else stage
        split_layers(loaded.model, asked_at)
        start = config.attribution.start_value if entry.usual_start == "run" else "logit"
        require_defined(loaded.model, loaded.input.shape, method, asked_at, request.start or start)
        normal: dict[str, int | str] = {"target": config.cohort.positive, "stage": usual, "start": start}
        explanations.append(Explanation(name, settings, target, asked_at, request.start or start, normal))
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


def _own_settings(method: str, request: Request) -> list[str]:
    """Settings for one method: those for all, and those with its name before a colon."""
    own = []
    for text in request.settings:
        name, colon, _ = text.partition("=")[0].partition(":")
        if not colon:
            own.append(text)
        elif name == method:
            own.append(text[len(name) + 1 :])
        elif name not in request.methods:
            raise UsageError(f"--setting {text}: {name} is not among the methods asked for.")
    return own


def _explainable(layout: ExplanationLayout, scans: Sequence[Scan], split: Split, config: Config) -> dict[str, int]:
    """Fold by scan id, of scans that are registered and have a trained network that has not seen them."""
    able = {}
    for scan in scans:
        fold = unseen_fold(split, scan.participant_id)
        files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        if fold is not None and files.t1w.is_file() and layout.fold(fold).description.is_file():
            able[scan.scan_id] = fold
    return able


def _job(
    layout: ExplanationLayout,
    asked: Explanation,
    scan: Scan,
    fold: int,
    territory: Territory,
    config: Config,
    digests: DigestCache,
) -> Job:
    files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
    model = layout.fold(fold)
    inputs = {
        "t1w": digests.digest(files.t1w),
        "brain_mask": digests.digest(files.brain_mask),
        "weights": digests.digest(model.weights),
        "description": digests.digest(model.description),
    }
    image, regions = files.relevance_map(asked.label), files.explanation_regions(asked.label)
    outputs = {"map": image, "sidecar": sidecar(image), "regions": regions, "columns": regions.with_suffix(".json")}
    if issubclass(find_method(asked.method).record, Accounting):
        ledger = files.explanation_ledger(asked.label)
        outputs |= {"ledger": ledger, "ledger_columns": ledger.with_suffix(".json")}
    what = [asked.method, dict(asked.settings), asked.target, asked.stage, asked.start]
    identity = [scan.participant_id, scan.session_id, scan.scan_id]
    key = unit_key(inputs, [what, identity, fold, files.resolution_mm, territory.version], *PACKAGES)
    task = ScanToShow(asked, scan, files, fold, model, inputs["weights"], config.training, territory)
    return Job(STAGE, f"{files.name}_{asked.label}", key, outputs, show_scan, (task,))


def _write_tables(layout: ExplanationLayout, asked: Explanation, jobs: Iterable[Job]) -> None:
    """Tables of all scans that have this explanation, those of earlier calls included."""
    frames = []
    for job in jobs:
        result = is_done(layout, job)
        if result is not None:
            table = read_table(job.outputs["regions"], list(RELEVANCE_COLUMNS), ("map", "name", "hemisphere", "group"))
            frames.append(table.assign(**result))
    if not frames:
        return
    regions = pd.concat(frames, ignore_index=True)
    bilateral = bilateral_sums(regions, list(_HEAD))
    bilateral["density"] = density(bilateral["sum"].to_numpy(float), bilateral["n_voxels"].to_numpy())
    write_table(layout.regions(asked.label), regions, REGION_COLUMNS)
    write_table(layout.bilateral(asked.label), bilateral, BILATERAL_COLUMNS)
