"""``heatlas export``: the networks of a finished run as a folder without scans, in the layout of a MONAI bundle.

Nothing in it names a person: lists of people are salted digests, by which ``heatlas apply`` recognises those that the
networks were trained with. Equal runs give equal bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import heatlas
from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.spaces import write_template_image
from heatlas.atlases.templates import find_template
from heatlas.pipeline.cohort.people.persons import hidden_name, spelled_in
from heatlas.pipeline.cohort.people.splits import PARTS, SPLITS_TABLE, Fold, Split, people_of
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.controls import (
    NORMS_TABLE,
    PEOPLE_TABLE,
    controls_of,
    mean_logits,
    mean_volume,
    norms_of_controls,
)
from heatlas.pipeline.explaining.likeness import write_reference
from heatlas.pipeline.models.families.registry import is_given, on_backbone
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, from_network
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.config.files import config_to_toml
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, T1W, ImageKind
from heatlas.pipeline.run.config.networks import ObjectiveConfig, PretrainingConfig
from heatlas.pipeline.run.config.settings import Config, PrivacyConfig
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import SECTION, Bundle, BundleLayout
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_json, write_text
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.run.work.providers import ClusterConfig
from heatlas.reports.content.run.colophon import model_card
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.commands import Export

FEWEST_CONTROLS = 5
"""Controls of whom a mean is given away; that of fewer shows too much of each."""
TEXTS = (".json", ".md", ".toml", ".tsv")
PACKAGES = {"monai_version": "monai", "pytorch_version": "torch", "numpy_version": "numpy"}


def export_command(options: Export) -> int:
    run, folder = RunLayout(options.run.resolve()), options.folder.resolve()
    if folder == run.root or run.root in folder.parents:
        raise UsageError(f"{options.folder}: lies in the run. Choose a folder elsewhere.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{options.folder}: is not empty. Choose a new or empty folder.")
    config, networks = _exportable(run)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        target = BundleLayout(Path(scratch) / "export")
        bundle = write_bundle(run, config, networks, target)
        require_nameless(target.root, run)
        if folder.is_dir():
            folder.rmdir()
        shutil.move(target.root, folder)
    print(
        f"{options.folder}: {len(networks)} networks, settings, the mean of {bundle.controls} controls and a model "
        "card. Read docs/README.md before you give it away."
    )
    return EXIT_OK


def _exportable(run: RunLayout) -> tuple[Config, Mapping[int, LoadedModel]]:
    """Settings and networks of a run, by fold; refuses a run that cannot be exported, before any work."""
    read_run_input(run)
    config = read_run_config(run)
    if config.cohort.further_suffixes:
        raise UsageError(
            f"{run.root}: its networks see images of several kinds (cohort.further_suffixes), and an export holds the "
            "mean of one. Share the run itself."
        )
    if config.training.networks_of:
        raise UsageError(f"{run.root}: has the networks of another run. Export that one.")
    if is_given(config):
        raise UsageError(
            f"{run.root}: its networks need a file outside the run (model.architecture = "
            f'"{config.model.architecture}"), and a folder of heatlas export stands alone. Share the run itself.'
        )
    if "differ from" in (note := find_template(config.registration.template).note):
        raise UsageError(
            f"{run.root}: its template is another than the one that heatlas carries ({note}), and a folder of heatlas "
            "export stands alone. Share the run itself."
        )
    if not find_atlas(config.regions.atlas).carried:
        raise UsageError(
            f"{run.root}: its atlas {config.regions.atlas} is a file of your own, and a folder of heatlas export "
            "stands alone. Run it again with an atlas that heatlas carries (docs/atlases.md)."
        )
    if not SPLITS_TABLE.path(run).is_file():
        raise UsageError(f"{run.root}: has no trained networks. Finish the run with heatlas run.")
    files = {fold.index: run.fold(fold.index) for fold in Split.read(run).folds}
    lacking = [index for index, one in files.items() if not one.description.is_file()]
    if lacking or not files:
        named = f"fold {lacking[0]} has no network" if lacking else "it has no folds"
        raise UsageError(f"{run.root}: is not finished ({named}). Finish it with heatlas run.")
    return config, {index: load_model(one) for index, one in files.items()}


def write_bundle(run: RunLayout, config: Config, networks: Mapping[int, LoadedModel], target: BundleLayout) -> Bundle:
    """Write the folder of a run.

    `config`: of the run. `networks`: by fold. `made`: does not exist yet. Raises BadInputError if the run has too few
    controls, or one of its files is missing.
    """
    spec, task, split = configured_input(config), task_of(config.cohort), Split.read(run)
    of_run = dataclasses.replace(config.training, networks_of=str(run.root))
    alike = Split(tuple(Fold(fold.index, (), (), ()) for fold in split.folds))  # controls of all networks together
    pool = controls_of((), alike, dataclasses.replace(config, training=of_run))
    first = split.folds[0].index
    controls = pool.by_fold[first][: pool.size]
    if len(controls) < FEWEST_CONTROLS:
        raise BadInputError(
            f"{run.root}: {len(controls)} registered scans of {pool.wanted} were trained with, and the mean of fewer "
            f"than {FEWEST_CONTROLS} shows too much of each. Export a run with more of them."
        )
    for path in (target.metadata, target.card, target.mean_controls, *(target.fold(one).weights for one in networks)):
        path.parent.mkdir(parents=True)
    # From the weights, so that two exports of a run are alike and those of two runs are not.
    digests = " ".join(str(one.description["weights"]["sha256"]) for one in networks.values())
    salt = hashlib.sha256(digests.encode()).hexdigest()[:16]
    for index, loaded in networks.items():
        shutil.copyfile(run.fold(index).weights, target.fold(index).weights)
        write_json(target.fold(index).description, nameless(loaded.description, str(run.fold(index).description), salt))
    everyone = {name for fold in split.folds for part in PARTS for name in getattr(fold, part)}
    for index, loaded in networks.items():
        everyone |= set(people_of(loaded.description, str(run.fold(index).description), "backbone"))
    PEOPLE_TABLE.write(target.people, [(name,) for name in sorted(hidden_name(name, salt) for name in everyone)])
    write_text(target.config, config_to_toml(shared_settings(config)))
    scans = [run.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in controls]
    title = f"mean of {len(scans)} training controls as networks see them"
    write_template_image(target.mean_controls, from_network(mean_volume(scans, spec), spec), spec.template_grid, title)
    if RELEVANCE_BILATERAL_TABLE.path(run).is_file():
        norms = norms_of_controls(RELEVANCE_BILATERAL_TABLE.read(run), [*_people_of_class(run, task)], FEWEST_CONTROLS)
        if len(norms):
            NORMS_TABLE.write(target.norms, norms)
    write_reference(run, pool.by_fold[first], config, target)
    norms_digest = file_digest(target.norms) if target.norms.is_file() else ""
    mean_digest, preset = file_digest(target.mean_controls), read_run_input(run).preset
    bundle = Bundle(target, preset, tuple(networks), len(scans), mean_digest, norms_digest)
    logits = {f"fold-{index}": mean_logits(one.model, scans, spec) for index, one in networks.items()}
    write_json(target.metadata, metadata(bundle, networks[first], spec, task, logits, config.cohort.kind))
    write_json(target.inference, inference(tuple(networks)))
    write_text(target.card, model_card(read_run(run), len(scans)))
    return bundle


def _people_of_class(run: RunLayout, task: Task) -> Iterable[str]:
    """Those whose scans all have the first class; everyone with a label, where a number is predicted."""
    scans = ScanTable.read(run).labelled
    others = {scan.participant_id for scan in scans if not task.is_control(scan.label)}
    return sorted({scan.participant_id for scan in scans} - others)


def nameless(description: Mapping[str, Any], where: str, salt: str) -> dict[str, Any]:
    """The description of a network with digests in place of people, counts in place of scans, and no path.

    Raises BadInputError if it does not say whom the network was trained with.
    """

    def hidden(part: str) -> list[str]:
        return sorted(hidden_name(name, salt) for name in people_of(description, where, part))

    people = {part: hidden(part) for part in PARTS}
    backbone = {"backbone_participants": hidden("backbone")} if "backbone_participants" in description else {}
    scans = {part: len(names) for part, names in description.get("scans", {}).items()}
    goal = {name: value for name, value in description["objective"].items() if not isinstance(value, dict)}
    training = {**description["training"], "from_run": ""}
    return {
        **description, "participants": people, **backbone, "scans": scans, "objective": goal, "training": training,
    }  # fmt: skip


def shared_settings(config: Config) -> Config:
    """Settings without paths, and without those that only training and the own machines had use for."""
    replace = dataclasses.replace
    return replace(
        config,
        cohort=replace(config.cohort, without="", table="", freesurfer_folder=""),
        training=replace(config.training, from_run=""),
        registration=replace(config.registration, synthstrip_model="", template=DEFAULT_TEMPLATE),
        model=on_backbone(config.model).keyed(config.model),
        regions=replace(config.regions, own_labels=""),
        privacy=PrivacyConfig(),
        objective=ObjectiveConfig(),
        pretraining=PretrainingConfig(),
        cluster=ClusterConfig(),
    )


def metadata(
    bundle: Bundle,
    network: LoadedModel,
    spec: NetworkInput,
    task: Task,
    logits: Mapping[str, Any],
    kind: ImageKind = T1W,
) -> dict[str, Any]:
    """``metadata.json``: the keys that MONAI asks for, and the section of Heatlas."""
    outputs = " or ".join(task.outputs)
    facts = dict(bundle.facts)
    facts["reference"] = {**facts["reference"], "mean_logits": dict(logits)}
    return {
        "version": heatlas.__version__,
        **{key: importlib.metadata.version(name) for key, name in PACKAGES.items()},
        "required_packages_version": {"heatlas": heatlas.__version__},
        "task": f"{outputs} from {kind.images}",
        "description": f"{len(bundle.folds)} networks ({network.family.name}) of one run of Heatlas, one per fold; "
        "their mean logits answer.",
        "intended_use": "Research only; no medical device.",
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image", "format": "magnitude", "modality": "PT" if kind.suffix == "pet" else "MR",
                    "num_channels": 1,
                    "spatial_shape": list(spec.shape), "dtype": "float32", "value_range": [0, 1],
                    "is_patch_data": False, "channel_def": {"0": "image"},
                    "space": DEFAULT_TEMPLATE, "resolution_mm": spec.resolution_mm,
                    "affine": spec.grid.affine.tolist(), "normalisation": spec.normalisation,
                }
            },
            "outputs": {
                "pred": {
                    "type": "logits" if task.classes else "number", "format": "classes",
                    "num_channels": len(task.outputs), "spatial_shape": [], "dtype": "float32", "value_range": [],
                    "is_patch_data": False,
                    "channel_def": {str(place): name for place, name in enumerate(task.outputs)},
                }
            },
        },
        SECTION: facts,
    }  # fmt: skip


def inference(folds: Iterable[int]) -> dict[str, Any]:
    """``inference.json``: a MONAI config that builds the network of all folds (``network_def``) with its weights."""
    loaded = {
        f"fold_{index}": {
            "_target_": "heatlas.pipeline.models.storage.load_model",
            "files": {
                "_target_": "heatlas.pipeline.run.layout.run_layout.FoldFiles",
                "folder": f"$pathlib.Path(@bundle_root) / 'models' / 'fold-{index}'",
            },
        }
        for index in folds
    }
    members = " + ".join(f"members_of(@{name}.model)" for name in loaded)
    return {
        "imports": [
            "$import pathlib",
            "$from heatlas.pipeline.models.contract import ensemble_of",
            "$from heatlas.pipeline.models.contract import members_of",
        ],
        "bundle_root": ".",
        **loaded,
        "network_def": f"$ensemble_of({members}).eval()",
    }


def require_nameless(folder: Path, run: RunLayout) -> None:
    """Refuse a folder in which a participant (in texts: in any spelling) or scan, or the place of the run, is named.

    Raises BadInputError, naming the file and what to change.
    """
    scans = ScanTable.read(run).scans
    names = {name for scan in scans for name in (scan.participant_id, scan.name)}
    names |= {scan.scan_id for scan in scans if len(scan.scan_id) > 5}  # shorter ones are in any weights by chance
    names |= {str(run.root), str(Path.home())} - {"/"}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        named = next((name for name in sorted(names) if name.encode() in content), None)
        if named is None and path.suffix in TEXTS:
            named = spelled_in(content.decode(), {scan.participant_id for scan in scans})
        if named:
            raise BadInputError(
                f"{path.relative_to(folder)} would name {named}, in this or another spelling. Take it out of the "
                "settings of the run (such as cohort.include or report.title) and run heatlas run again."
            )
