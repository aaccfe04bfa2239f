"""Apply the networks to kept scans without a label: outside the contrast, mainly MCI, or of unknown number.

A participant who also has labelled scans gets only the network of the fold that tests them; everyone else gets the
networks of all folds, and their logits are averaged, as those of an ensemble. With the mean logit as start value the
explanation of the average is the average of the explanations; see `pipeline.attribution.records`. One unit of work per
fold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from scipy.special import expit

from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.people.splits import networks_for, people_of, require_unseen
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.families.registry import code_of
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import RETRAIN, load_model, require_family
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.unit import Unit, keyed
from heatlas.pipeline.training.answers import NO_CONTROL, positive_probability
from heatlas.pipeline.training.prediction import logits_of, number_of
from heatlas.pipeline.training.tables import declared

log = logging.getLogger("heatlas")

STAGE = "application"
IDENTITY = ["participant_id", "session_id", "scan_id"]
PREDICTIONS_APPLIED_TABLE = declared("predictions_applied")
PREDICTIONS_APPLIED_NUMBER_TABLE = declared("predictions_applied_number", column="age")


def applied_tables(task: Task) -> tuple[Table, Table]:
    """What each network answers to scans without a label, and what all of them do; the files are those of every task.

    >>> from heatlas.pipeline.run.config.settings import CohortConfig
    >>> [table.file for table in applied_tables(task_of(CohortConfig(target="age")))]
    ['models/fold-0/predictions_applied.tsv', 'group/predictions_applied.tsv']
    """
    if task.is_number:
        one, every = (f"predictions_{name}_number" for name in ("of_fold", "applied"))
        return declared(one, column=task.column), declared(every, column=task.column)
    return declared("predictions_of_fold"), PREDICTIONS_APPLIED_TABLE


class NetworkTask(Unit):
    """Input of a worker that applies one network.

    `scans`: registered; of participants the network was not trained or selected with. `files`: one per scan.
    """

    scans: tuple[Scan, ...] = keyed(lambda scans: [scan.scan_id for scan in scans])
    fold: int
    config: Config = keyed("training.device", "registration.resolution_mm")
    network: FoldFiles = keyed(inputs={"weights": "weights", "description": "description"})
    files: tuple[ScanFiles, ...] = keyed(
        inputs=lambda files, digests: {one.name: digests.joined(one.seen) for one in files}
    )


def apply_networks(work: Work, scans: Sequence[Scan], trained: Sequence[int]) -> list[Outcome]:
    """Predict kept scans outside the contrast; one outcome per network.

    `scans`: registered, without a label. Scans without an applicable network have no row (with a single split, if their
    participant's labelled scans were used for training; or if the only applicable network could not be trained); they
    are counted in the log. `trained`: folds with a trained network. ``predictions_applied.tsv`` is removed if no scan
    is predicted.
    """
    layout, split, task = work.layout, work.split, task_of(work.config.cohort)
    of_network, of_all = applied_tables(task)
    labelled = [scan.name for scan in scans if scan.label is not None]
    if labelled:
        raise BadInputError(f"{labelled[0]} has a label, so it is predicted by the fold that tests it.")
    networks = networks_for([scan.participant_id for scan in scans], split)
    jobs = []
    for fold in split.folds:
        asked_scans = tuple(scan for scan in scans if fold.index in networks[scan.participant_id])
        if asked_scans and fold.index in trained:
            asked_scans = _not_of_backbone(layout.fold(fold.index), asked_scans)
        if asked_scans and fold.index in trained:
            jobs.append(_job(work, fold.index, asked_scans))
    outcomes = run_jobs(layout, jobs, work.executor, "Other scans")
    asked = {job.arguments[0].fold for job in jobs}
    for fold in split.folds:
        if fold.index not in asked:
            of_network.remove(layout.fold(fold.index).predictions_applied)
    done = {outcome.job.arguments[0].fold for outcome in outcomes if outcome.ok}
    answered = [done & {*networks[scan.participant_id]} for scan in scans]
    none = sum(not folds for folds in answered)
    fewer = sum(0 < len(done) < len(networks[scan.participant_id]) for scan, done in zip(scans, answered, strict=True))
    if none:
        log.warning(
            "no prediction for %s outside the contrast: all networks were trained with them, or failed.",
            counted(none, "scan"),
        )
    if fewer:
        log.warning("%s outside the contrast predicted by fewer networks than expected.", counted(fewer, "scan"))
    if not any(answered):
        of_all.remove(layout)
        return outcomes
    answers = [of_network.read(layout.fold(fold).predictions_applied) for fold in sorted(done)]
    of_all.write(layout, mean_over_networks(pd.concat(answers, ignore_index=True), task))
    return outcomes


def _not_of_backbone(model: FoldFiles, scans: tuple[Scan, ...]) -> tuple[Scan, ...]:
    try:
        people = people_of(read_json(model.description, RETRAIN), str(model.description), "backbone")
    except BadInputError:  # the unit of work of this network says so
        return scans
    known = known_among([scan.participant_id for scan in scans], people)
    return tuple(scan for scan in scans if scan.participant_id not in known)


def mean_over_networks(answers: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Average the logits of the networks, as those of an ensemble are, or their numbers; a row per scan.

    `answers`, and what comes back: of `applied_tables`; `answers` has one row per scan and network.
    """
    answers = answers.sort_values("fold")
    by_scan = answers.groupby(IDENTITY, dropna=False, sort=False)
    answer = "prediction" if task.is_number else "probability"
    frame = by_scan[["prediction"] if task.is_number else ["logit_negative", "logit_positive"]].mean()
    if not task.is_number:
        frame["probability"] = expit(frame["logit_positive"] - frame["logit_negative"])
        frame["predicted"] = [task.classes[probability > 0.5] for probability in frame["probability"]]
    frame["networks"] = by_scan["fold"].agg(lambda folds: ";".join(map(str, folds)))
    frame["n_networks"] = by_scan.size()
    frame[f"{answer}_sd"] = by_scan[answer].std()
    frame["control"] = by_scan["control"].first()
    frame = frame.reset_index().sort_values(IDENTITY, na_position="first", ignore_index=True)
    return frame[list(applied_tables(task)[1].meanings)]


def _job(work: Work, fold: int, scans: tuple[Scan, ...]) -> Job:
    model, code = work.layout.fold(fold), code_of(work.config.model)
    task = NetworkTask(scans, fold, work.config, model, tuple(map(work.files, scans)))
    outputs = {"table": model.predictions_applied, "columns": model.predictions_applied.with_suffix(".json")}
    return task.job(STAGE, model.folder.name, outputs, work.digests, ask_network, *code, on_gpu=True)


@kept_memory()
@torch.inference_mode()
def ask_network(outputs: Mapping[str, Path], task: NetworkTask) -> None:
    """Predict all scans of a task by its network; the function of a `Job`.

    Refuses a network that was trained or selected with a participant.
    """
    model, device, asked = task.network, chosen_device(task.config.training), task_of(task.config.cohort)
    loaded = load_model(model, device)
    require_family(loaded, task.config.model, model)
    require_unseen(loaded.description, str(model.description), [scan.participant_id for scan in task.scans])
    rows = []
    for scan, files in zip(task.scans, task.files, strict=True):
        volume = torch.from_numpy(read_channels(files, loaded.input)).to(device)
        logits = logits_of(loaded, volume[None])
        control = str(loaded.description.get("control", NO_CONTROL))
        if asked.is_number:
            answer = [number_of(logits, loaded)]
        else:
            answer = [float(logits[0, 0]), float(logits[0, 1]), float(positive_probability(logits)[0])]
        rows.append([scan.participant_id, scan.session_id, scan.scan_id, task.fold, *answer, control])
    applied_tables(asked)[0].write(outputs["table"], rows)
