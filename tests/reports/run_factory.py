"""A small made-up run folder, stopped after any stage: tables with known numbers and maps on a 4 mm grid.

The numbers are invented; only tables that the stages of statistics write are made by those stages themselves, so
that the report is tested against what they really write.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from hashlib import sha256
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.evaluation.planted import evaluate_planted
from heatlas.pipeline.explaining.stage import CONSERVATION_TABLE, EVIDENCE_TABLE
from heatlas.pipeline.regions.ranking import BETA_OVERLAP_TABLE, FINGERPRINTS_TABLE, fingerprint_table, overlap_table
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, negative_class_reference
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.run.config.files import config_to_toml, load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table, write_json, write_text
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE
from heatlas.pipeline.run.work.progress import write_provenance
from heatlas.pipeline.statistics.data.values import IMAGE_REGIONS_TABLE
from heatlas.pipeline.statistics.stage import analyse
from heatlas.pipeline.training.answers import outcome
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import HISTORIES_TABLE

STAGES = ("cohort", "registration", "training", "attribution", "regions", "statistics")
PLANTED = ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus", "Lateral ventricle")
EVIDENCE = "expectedGradients"
RESOLUTION = 4.0
VISITS = ("M000", "M012", "M024", "M036")
KEPT: Path | None = None
"""Folder of the finished runs of this session of tests, shared by its processes (conftest.py); none elsewhere."""
REGION_TABLE = Path(__file__).parents[2] / "atlases" / "tables" / "neuromorphometrics.tsv"


@dataclass(frozen=True)
class RunPlan:
    """What the run should be like.

    Parameters
    ----------
    until : str
        Last stage that was reached.
    people : int
        Participants per class.
    folds : int
    mistakes : bool
        Whether there are false positives and false negatives.
    volumes : bool
    guided : bool
    evidence : bool
        Whether the run has an evidence map, `EVIDENCE`.
    text : str
        Put into ids, sites and reasons.
    site : str
        A second site, of every other participant.
    preset : str
    contrast : tuple of str
        Positive and negative class.
    classes : tuple of str, optional
        Classes that have participants; both of the contrast if not given.
    visits : tuple of int
        Scans of each participant; one and two by turns where nothing is given.
    """

    until: str = "statistics"
    people: int = 8
    folds: int = 2
    mistakes: bool = True
    volumes: bool = True
    guided: bool = True
    evidence: bool = False
    text: str = ""
    site: str = ""
    preset: str = "default"
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    contrast: tuple[str, str] = ("AD", "CN")
    classes: tuple[str, ...] | None = None
    visits: tuple[int, ...] = ()
    overrides: dict[str, dict[str, object]] = field(default_factory=dict)


WITH_EVIDENCE = RunPlan(betas=(0.0,), people=7, evidence=True, preset="demo")
SMALL = RunPlan(people=4, betas=(0.0, 0.5), preset="demo")
"""Plans of several files, whose runs are made once."""


def make_run(folder: Path, plan: RunPlan | None = None) -> RunLayout:
    """Write a run folder; a finished one is a copy of that of the first test of the session that had the same plan."""
    plan, run = plan or RunPlan(), RunLayout(folder)
    if KEPT is None or plan.until != "statistics":
        _begin(run, plan)
        _make(run, plan)
        return run
    kept = KEPT / sha256(repr(plan).encode()).hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        flock(lock, LOCK_EX)  # processes that share the tests wait for the one that makes it
        if not (kept / "finished").exists():
            shutil.rmtree(kept / "run", ignore_errors=True)
            _begin(RunLayout(kept / "run"), plan)
            _make(RunLayout(kept / "run"), plan)
            (kept / "finished").touch()
    shutil.copytree(kept / "run", folder, dirs_exist_ok=True)
    if (kept / "planted.json").exists():
        shutil.copyfile(kept / "planted.json", folder.parent / "planted.json")
    _begin(run, plan)
    return run


def _begin(run: RunLayout, plan: RunPlan) -> None:
    """What names the folder: configuration and provenance."""
    config = _config(plan)
    text = config_to_toml(config) + f'\n[run]\ninput = "{run.root.parent / "input"}"\npreset = "{plan.preset}"\n'
    write_text(run.config, text)
    sources = {
        "input_layout": "adni",
        "template": {"name": "MNI152NLin2009cAsym", "sha256": "aa" * 32},
        "atlas": {
            "name": "test",
            "title": "Test atlas",
            "sha256": "bb" * 32,
            "credit": "Labels by A. Nobody, CC BY-NC.",
        },
    }
    write_provenance(run, ["heatlas", "run", "IN", "OUT"], config.seed, sources)


def _make(run: RunLayout, plan: RunPlan) -> None:
    scans, config = _scans(plan), _config(plan)
    steps = [_write_cohort, _write_registration, _write_training, _write_attribution, _write_regions, _write_statistics]
    for step in steps[: STAGES.index(plan.until) + 1]:
        step(run, scans, config, plan)


def _config(plan: RunPlan) -> Config:
    methods = ["lrp", *["guided-backpropagation"] * plan.guided, *["expected-gradients"] * plan.evidence]
    sections = {
        "cohort": {"folds": max(plan.folds, 2), "positive": plan.contrast[0], "negative": plan.contrast[1]},
        "registration": {"resolution_mm": RESOLUTION},
        "attribution": {"betas": list(plan.betas), "methods": methods},
        "statistics": {"permutations": 99, "bootstrap_samples": 100},
    }
    for name, values in plan.overrides.items():
        sections[name] = {**sections.get(name, {}), **values}
    return load_config(overrides=sections)


def _scans(plan: RunPlan) -> list[Scan]:
    rng = np.random.default_rng(7)
    scans, planned = [], iter(plan.visits)
    sites = (f"S1{plan.text}", plan.site or f"S1{plan.text}")
    for label in plan.classes or plan.contrast:
        prefix = "".join(re.findall("[A-Za-z0-9]", label))[:20]
        for person in range(plan.people):
            how_many = next(planned, 1 + person % 2)
            name = f"sub-{prefix}{person:03d}{plan.text if person == 0 else ''}"
            for visit in VISITS[:how_many]:
                small = 0.75 if label == plan.contrast[0] else 1.0
                scans.append(
                    Scan(
                        name, f"ses-{visit}", f"I{label}{person}{visit}", f"x/{name}_{visit}.nii.gz", label, label,
                        age=70.0 + person % 25, sex="FM"[person % 2], site=sites[person % 2], field_strength=1.5,
                        apoe4=person % 3, mmse=25.0, cdr=0.0, tiv_mm3=1.5e6 if plan.volumes else None,
                        hippocampus_mm3=float(7000 * small + 300 * rng.normal()) if plan.volumes else None,
                        hippocampus_source="test" if plan.volumes else None,
                    )
                )  # fmt: skip
    return scans


def _write_cohort(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    dropped = Scan("sub-LOST", "ses-M000", "I999", "x/lost.nii.gz", site=f"S1{plan.text}").dropped(
        f"all voxels are zero{plan.text}"
    )
    outside = Scan("sub-MCI001", "ses-M000", "I998", "x/mci.nii.gz", "MCI")
    ScanTable((*scans, dropped, outside)).write(run.root / "scans.tsv")
    people = sorted({scan.participant_id for scan in scans})
    rows = [
        {"participant_id": person, "fold": fold, "part": "test" if place % plan.folds == fold else "train"}
        for fold in range(plan.folds)
        for place, person in enumerate(people)
    ]
    SPLITS_TABLE.write(run, rows)


def _write_registration(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for place, scan in enumerate([*scans, Scan("sub-MCI001", "ses-M000", "I998", "x/mci.nii.gz")]):
        bad = place == 1
        rows.append(
            dict(participant_id=scan.participant_id, session_id=scan.session_id, scan_id=scan.scan_id)
            | dict(status="registered", entry="scan", brain_extraction="stripped", brain_mm3=1.4e6, orientation="sform")
            | dict(correlation=0.4 if bad else 0.95 + 0.01 * rng.random(), dice=0.97, min_jacobian=-0.2 if bad else 0.3)
            | dict(nonpositive_jacobian_share=0.002 if bad else 0.0, rotation_degrees=3.0, scale=1.01)
            | dict(affine_residual_mm=2.0, dark_ml=0.5)
            | dict(flags=f"correlation 0.4 is below 0.45{plan.text}" if bad else None, decision="keep" if bad else None)
        )
    REGISTRATION_TABLE.write(run.group / "registration.tsv", rows)
    failures = pd.DataFrame(
        [["registration", f"sub-BAD{plan.text}", "BadInputError", f"image is 4D{plan.text}", "logs/failures/x.txt"]],
        columns=list(FAILURES_TABLE.meanings),
    )
    FAILURES_TABLE.write(run.failures, failures)


def _fold_of(scan: Scan, scans: list[Scan], plan: RunPlan) -> int:
    people = sorted({other.participant_id for other in scans})
    return people.index(scan.participant_id) % plan.folds


def _write_training(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    for fold in range(plan.folds):
        files = run.fold(fold)
        epochs = np.arange(1, 21)
        history = dict(epoch=epochs, train_loss=0.7 * 0.9**epochs, train_balanced_accuracy=1 - 0.5 * 0.8**epochs)
        history |= dict(validation_loss=0.7 * 0.93**epochs, validation_balanced_accuracy=1 - 0.5 * 0.85**epochs)
        history = pd.DataFrame(history | dict(best=epochs == 17))
        HISTORIES_TABLE.write(files.history, history)
        parts = {"train": ["a", "b"], "validation": ["c"], "test": ["d"]}
        write_json(
            files.description,
            dict(fold=fold, participants=parts, epochs=20, best_epoch=17, validation_balanced_accuracy=0.97)
            | dict(validation_loss=0.21, converged=fold != 0, ended_by="max_epochs" if fold == 0 else "early stopping"),
        )
    rng = np.random.default_rng(2)
    rows = []
    for place, scan in enumerate(scans):
        target = int(scan.label == plan.contrast[0])
        wrong = plan.mistakes and place % 9 == 4
        logit = (4.0 + rng.random()) * (1 if (target == 1) != wrong else -1)
        predicted = int(logit > 0)
        rows.append([
            scan.participant_id, scan.session_id, scan.scan_id, _fold_of(scan, scans, plan), scan.label, target,
            -logit / 2, logit / 2, 1 / (1 + np.exp(-logit)), plan.contrast[1 - predicted], outcome(target, predicted),
            "none",
        ])  # fmt: skip
    PREDICTIONS_TABLE.write(run, PREDICTIONS_TABLE.without("spread").frame(rows))


def _map_names(config: Config) -> list[str]:
    return map_names(config.attribution)


def _write_attribution(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    rows = []
    for place, scan in enumerate(scans):
        files, positive = run.scan(scan.participant_id, scan.session_id, RESOLUTION), scan.label == plan.contrast[0]
        for name in _map_names(config):
            _write_map(files.relevance_map(name), name, positive, place)
            if name not in ("gb", EVIDENCE):
                start = 2.0 if positive else 0.5
                rows.append([scan.participant_id, scan.session_id, scan.scan_id, name, start, 0.8 * start, 0.15 * start,
                             0.05 * start, 0.0, 0.0])  # fmt: skip
    if plan.evidence:
        _write_evidence(run, scans, plan)
    CONSERVATION_TABLE.write(run.group / "conservation.tsv", rows)


def _write_evidence(run: RunLayout, scans: list[Scan], plan: RunPlan) -> None:
    """Evidence +2.5 of scans of the positive class and -1 of the others; -1.5 of 12 controls; an error of 0.01.

    The points alone miss by -0.1.
    """
    rows = []
    for scan in scans:
        evidence = 2.5 if scan.label == plan.contrast[0] else -1.0
        rows.append([
            scan.participant_id, scan.session_id, scan.scan_id, EVIDENCE, evidence, -1.5, evidence + 1.51, 0.01, 0.004,
            -0.1, 0.04, 12,
        ])  # fmt: skip
    EVIDENCE_TABLE.write(run.group / "evidence.tsv", rows)


def _write_map(path: Path, name: str, positive: bool, place: int) -> None:
    grid = template_grid(RESOLUTION)
    axes = [grid.affine[k, 3] + grid.affine[k, k] * np.arange(grid.shape[k]) for k in range(3)]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    values = np.zeros(grid.shape, np.float32)
    for side in (-26, 26 + place % 4):
        values += np.exp(-((x - side) ** 2 + (y + 20) ** 2 + (z + 16) ** 2) / (2 * 12.0**2))
    if name not in ("lrpB000", "gb"):
        values -= 0.4 * np.exp(-(x**2 + (y - 30) ** 2 + (z - 20) ** 2) / (2 * 15.0**2))
    values *= 0.01 * (2.0 if positive else 0.7) * (np.abs(values) > 0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values.astype(np.float32), grid.affine), path)


def region_names() -> list[str]:
    return list(dict.fromkeys(pd.read_csv(REGION_TABLE, sep="\t")["group"]))


def _write_regions(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    rng = np.random.default_rng(3)
    names = region_names()
    rows = []
    for scan in scans:
        for name in _map_names(config):
            for group in names:
                planted = group in PLANTED
                if name == EVIDENCE:  # differs between the classes in planted regions alone
                    total = 0.05 * rng.normal() + 0.5 * (planted and scan.label == plan.contrast[0])
                    rows.append(
                        [scan.participant_id, scan.session_id, scan.scan_id, name, group, 100, total, total / 100]
                    )
                    continue
                mean = (3.0 if planted else 1.0) * (2.0 if scan.label == plan.contrast[0] else 1.0)
                total = mean * rng.lognormal(0, 0.3)
                rows.append([scan.participant_id, scan.session_id, scan.scan_id, name, group, 100, total, total / 100])
    columns = ["participant_id", "session_id", "scan_id", "map", "group", "n_voxels", "sum", "density"]
    frame = pd.DataFrame(rows, columns=columns)
    predictions = read_table(run.group / "predictions.tsv")[
        ["scan_id", "fold", "target", "label", "outcome", "probability"]
    ]
    full = frame.merge(predictions, on="scan_id")
    full["reference_sum"] = negative_class_reference(full, config.regions.gain_reference)
    full["gain"] = (full["sum"] / full["reference_sum"]).where((full["group"] != "Vessel") & (full["map"] != EVIDENCE))
    full["evidence"] = full["sum"].where(full["map"] == EVIDENCE)
    _write_image_regions(run, scans, plan)
    columns = [name for name in RELEVANCE_BILATERAL_TABLE.meanings if name in full]
    RELEVANCE_BILATERAL_TABLE.write(run, full[columns])
    lrp = [name for name in _map_names(config) if name not in ("gb", EVIDENCE)]
    FINGERPRINTS_TABLE.write(run.statistics("fingerprints"), fingerprint_table(full, _map_names(config)))
    BETA_OVERLAP_TABLE.write(run.statistics("beta_overlap"), overlap_table(full, lrp))
    _write_group_maps(run, scans, config)


def _write_image_regions(run: RunLayout, scans: list[Scan], plan: RunPlan) -> None:
    """Intensities that are lower in the positive class in the first planted region and in the putamen."""
    rng = np.random.default_rng(4)
    rows = [
        [scan.participant_id, scan.session_id, scan.scan_id, group, 100,
         rng.normal() - 5.0 * (scan.label == plan.contrast[0] and group in (PLANTED[0], "Putamen")), np.nan]
        for scan in scans for group in region_names()
    ]  # fmt: skip
    IMAGE_REGIONS_TABLE.write(run, rows)


def _write_group_maps(run: RunLayout, scans: list[Scan], config: Config) -> None:
    predictions = read_table(run.group / "predictions.tsv").set_index("scan_id")
    for name in _map_names(config):
        for column in ("label", "outcome"):
            for group in predictions[column].unique():
                members = [scan for scan in scans if predictions.loc[scan.scan_id, column] == group]
                paths = [run.scan(s.participant_id, s.session_id, RESOLUTION).relevance_map(name) for s in members]
                images = [nib.load(path) for path in paths]
                mean = np.mean([image.get_fdata() for image in images], axis=0)
                target = run.group_map(str(group), name)
                target.parent.mkdir(parents=True, exist_ok=True)
                nib.save(nib.Nifti1Image(mean.astype(np.float32), images[0].affine), target)


def _write_statistics(run: RunLayout, scans: list[Scan], config: Config, plan: RunPlan) -> None:
    analyse(run, scans, read_table(run.group / "predictions.tsv"), config)
    if plan.preset == "demo":
        truth = run.root.parent / "planted.json"
        write_json(truth, {"planted": list(PLANTED)})
        evaluate_planted(run, truth)
