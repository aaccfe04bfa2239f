"""``heatlas export``: the networks of a finished run as a folder without scans, in the layout of a MONAI bundle.

Nothing in it names a person: lists of people are salted digests, by which ``heatlas apply`` recognises those that the
networks were trained with. Equal runs give equal bytes.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib.metadata
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import heatlas
from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.spaces import write_template_image
from heatlas.atlases.templates import find_template
from heatlas.pipeline.cohort.people.persons import hidden_name, spelled_in
from heatlas.pipeline.cohort.people.splits import PARTS, SPLITS_TABLE, Fold, Split, people_of
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.controls import (
    ANSWER,
    NORMS_TABLE,
    PEOPLE_TABLE,
    answer_to,
    controls_of,
    mean_logits,
    mean_volume,
)
from heatlas.pipeline.explaining.likeness import write_reference
from heatlas.pipeline.models.families.foreign import ForeignConfig, code_without_place
from heatlas.pipeline.models.families.registry import is_foreign, on_backbone
from heatlas.pipeline.models.inputs import NetworkInput, as_channels, configured_input, from_network, read_channels
from heatlas.pipeline.models.storage import SOURCE, LoadedModel, load_model
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.config.files import config_to_toml
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, T1W, ImageKind
from heatlas.pipeline.run.config.networks import ModelConfig, ObjectiveConfig, PretrainingConfig
from heatlas.pipeline.run.config.settings import Config, PrivacyConfig
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import SECTION, Bundle, BundleLayout
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.tables import write_bytes, write_json, write_text
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.run.work.providers import ClusterConfig
from heatlas.pipeline.statistics.stage import norms_to_share
from heatlas.reports.content.run.colophon import model_card
from heatlas.reports.content.run.summary import task_in_words
from heatlas.reports.questions.predictions import learning_in_words
from heatlas.reports.read.run_record import RunRecord, read_run
from heatlas.workflows.commands import Export

FEWEST_CONTROLS, FEWEST_OF_PUBLIC = 5, 30
"""Controls of whom a mean is given away, and of one that is given to everyone; that of fewer shows too much of each."""
ROUNDED_FROM = 10_000
"""Values of a tensor that is stored in half precision: smaller ones hold few bytes, and the first layers most error."""
LARGEST_CHANGE = 1e-3
"""Of any output of a network for any scan that it was trained with, by weights in half precision."""
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
        bundle = write_bundle(run, config, networks, target, options.public)
        require_nameless(target.root, run)
        if folder.is_dir():
            folder.rmdir()
        shutil.move(target.root, folder)
    print(
        f"{options.folder}: {counted(len(networks), 'network')}, settings, the mean of {bundle.controls} controls and "
        "a model card. Read docs/README.md before you give it away."
    )
    if options.public:
        print(f"  {bundle.summary['weights']}")
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
    distinct = list(files.items())[: 1 if is_foreign(config.model) else None]  # one network for all folds
    return config, {index: load_model(one) for index, one in distinct}


def write_bundle(
    run: RunLayout,
    config: Config,
    networks: Mapping[int, LoadedModel],
    target: BundleLayout,
    public: bool = False,
) -> Bundle:
    """Write the folder of a run.

    `config`: of the run. `networks`: by fold. `target`: does not exist yet. `public`: as of the command. Raises
    BadInputError if the run has too few controls, or one of its files is missing.
    """
    spec, task, split = configured_input(config), task_of(config.cohort), Split.read(run)
    of_run = dataclasses.replace(config.training, networks_of=str(run.root))
    alike = Split(tuple(Fold(fold.index, (), (), ()) for fold in split.folds))  # controls of all networks together
    pool = controls_of((), alike, dataclasses.replace(config, training=of_run))
    first = split.folds[0].index
    controls = pool.by_fold[first][: None if public else pool.size]
    fewest = FEWEST_OF_PUBLIC if public else FEWEST_CONTROLS
    if len(controls) < fewest:
        raise BadInputError(
            f"{run.root}: {len(controls)} registered scans of {pool.wanted} were trained with, and the mean of fewer "
            f"than {fewest} shows too much of each. Export a run with more of them."
        )
    for path in (target.metadata, target.card, target.mean_controls, *(target.fold(one).weights for one in networks)):
        path.parent.mkdir(parents=True)
    # From the weights, so that two exports of a run are alike and those of two runs are not.
    digests = " ".join(str(one.description["weights"]["sha256"]) for one in networks.values())
    salt = hashlib.sha256(digests.encode()).hexdigest()[:16]
    scans = [run.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in controls]
    changes, mean = [], mean_volume(scans, spec)
    for index, loaded in networks.items():
        shutil.copyfile(run.fold(index).weights, target.fold(index).weights)
        description = nameless(loaded.description, str(run.fold(index).description), salt)
        if public:
            changes.append(_halve(target.fold(index).weights, loaded, _trained_with(run, loaded, spec), spec))
            digest = file_digest(target.fold(index).weights)
            description["weights"] = {**description["weights"], "sha256": digest}
        if isinstance(config.model, ForeignConfig):
            description["architecture"]["network"] = code_without_place(config.model.network)
            description.pop(SOURCE, None)  # what comes with --code is told by its answer
            description[ANSWER] = answer_to(as_channels(mean, spec), loaded.model)
        write_json(target.fold(index).description, description)
    everyone = {name for fold in split.folds for part in PARTS for name in getattr(fold, part)}
    for index, loaded in networks.items():
        everyone |= set(people_of(loaded.description, str(run.fold(index).description), "backbone"))
    PEOPLE_TABLE.write(target.people, [(name,) for name in sorted(hidden_name(name, salt) for name in everyone)])
    write_text(target.config, config_to_toml(shared_settings(config)))
    title = f"mean of {len(scans)} training controls as networks see them"
    stored, grid = (mean, spec.grid) if spec.feeding else (from_network(mean, spec), spec.template_grid)
    write_template_image(target.mean_controls, stored, grid, title)
    if RELEVANCE_BILATERAL_TABLE.path(run).is_file():
        norms = norms_to_share(run)
        if len(norms):
            NORMS_TABLE.write(target.norms, norms)
    write_reference(run, pool.by_fold[first], networks.values(), config, target)
    norms_digest = file_digest(target.norms) if target.norms.is_file() else ""
    mean_digest, source, record = file_digest(target.mean_controls), read_run_input(run), read_run(run)
    terms, weights = terms_of(source.input), _on_weights(changes)
    write_json(target.inference, inference(tuple(networks), is_foreign(config.model)))
    write_text(target.card, model_card(record, len(scans), terms, weights))
    bundle = Bundle(
        target, source.preset, tuple(networks), len(scans), mean_digest, norms_digest,
        {name: file_digest(target.root / name) for name in target.digested()},
        {**summary_of(record), "licence": terms.get("License", ""), "weights": weights},
    )  # fmt: skip
    logits = {f"fold-{index}": mean_logits(one.model, scans, spec) for index, one in networks.items()}
    write_json(target.metadata, metadata(bundle, networks[first], spec, task, logits, config.cohort.kind, terms))
    return bundle


def _trained_with(run: RunLayout, network: LoadedModel, spec: NetworkInput) -> list[ScanFiles]:
    """Registered scans of the people whom a network learned from."""
    people = set(people_of(network.description, str(run.root), "train"))
    kept = [one for one in ScanTable.read(run).labelled if one.participant_id in people]
    found = [run.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in kept]
    return [one for one in found if all(path.is_file() for path in one.images)]


def _halve(weights: Path, network: LoadedModel, scans: Sequence[ScanFiles], spec: NetworkInput) -> float | None:
    """Store the large tensors of a network in half precision; the largest change of an output for `scans`.

    They stay as they are, and None comes back, where this is above `LARGEST_CHANGE`. They are used in full precision.
    """
    state = safetensors.torch.load_file(weights)
    large = {name for name, value in state.items() if value.is_floating_point() and value.numel() >= ROUNDED_FROM}
    halved = {name: value.half() if name in large else value for name, value in state.items()}
    rounded = copy.deepcopy(network.model)
    rounded.load_state_dict(halved)
    change = 0.0
    with torch.inference_mode():
        for scan in scans:
            volume = torch.from_numpy(read_channels(scan, spec))[None]
            change = max(change, float((rounded(volume) - network.model(volume)).abs().max()))
    if not change <= LARGEST_CHANGE:
        return None
    write_bytes(weights, safetensors.torch.save(halved))
    return change


def _on_weights(changes: Sequence[float | None]) -> str:
    """What was done to weights, in a sentence; empty where nothing was."""
    known = [change for change in changes if change is not None]
    if not known:
        return "Weights are in single precision: rounded, some answer would change too much." if changes else ""
    return (
        f"Large tensors of {len(known)} of {len(changes)} networks are stored in half precision and used in single "
        f"precision: no output for a training scan changes by more than {max(known):.1g}."
    )


TERMS = ("License", "HowToAcknowledge", "ReferencesAndLinks")


def terms_of(folder: Path) -> dict[str, Any]:
    """What the ``dataset_description.json`` of an input says of its licence and whom to thank; empty without one."""
    try:
        said = json.loads((folder / "dataset_description.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = said if isinstance(said, dict) else {}
    return {name: known[name] for name in TERMS if isinstance(known.get(name), str | list) and known[name]}


def summary_of(run: RunRecord) -> dict[str, Any]:
    """Task, people, accuracy by the first measure with its interval, and a sentence on whether the networks learned."""
    scans, task = run.tables["scans"], run.task
    kept = scans[scans["kept"].astype(bool) & scans["label"].notna()]
    measure = task.kind.measures[0]
    found = {"task": task_in_words(run), "people": int(kept["participant_id"].nunique()), "measure": measure}
    tables = ("performance", "performance_number", "performance_classes")
    for name in (one for one in tables if run.has(one)):
        rows = run.tables[name]
        rows = rows[(rows["fold"].astype(str) == "all") & (rows["metric"] == measure)]
        if len(rows):
            found |= {key: round(float(rows[key].iloc[0]), 4) for key in ("estimate", "ci_low", "ci_high")}
    found["learned"] = learning_in_words(run)
    return found | {"seed": run.config.seed, "commit": str(run.provenance.get("code_commit", ""))}


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
        model=_shared_network(config.model),
        regions=replace(config.regions, own_labels=""),
        report=replace(config.report, people=True),  # whether people are shown is for those to say who apply it
        privacy=PrivacyConfig(),
        objective=ObjectiveConfig(),
        pretraining=PretrainingConfig(),
        cluster=ClusterConfig(),
    )


def _shared_network(settings: ModelConfig) -> ModelConfig:
    if isinstance(settings, ForeignConfig):
        if re.search(r'"(/|~|[A-Za-z]:)', settings.arguments):
            raise UsageError(
                f"model.arguments = {settings.arguments}: names a place of this computer, which an export would "
                "tell. Let the code find it, and train again."
            )
        return dataclasses.replace(settings, network=code_without_place(settings.network), weights="")
    return on_backbone(settings).keyed(settings)


def metadata(
    bundle: Bundle,
    network: LoadedModel,
    spec: NetworkInput,
    task: Task,
    logits: Mapping[str, Any],
    kind: ImageKind = T1W,
    terms: Mapping[str, Any] | None = None,
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
        **{ours: terms[theirs] for ours, theirs in _TERMS_OF_MONAI.items() if terms and theirs in terms},
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image", "format": "magnitude", "modality": "PT" if kind.suffix == "pet" else "MR",
                    "num_channels": spec.channels, "spatial_shape": list(spec.shape), "dtype": "float32",
                    **({} if spec.feeding else {"value_range": [0, 1]}),
                    "is_patch_data": False, "channel_def": {str(channel): "image" for channel in range(spec.channels)},
                    "space": DEFAULT_TEMPLATE, "resolution_mm": spec.resolution_mm,
                    "affine": spec.grid.affine.tolist(),
                    "normalisation": spec.feeding.scaling if spec.feeding else spec.normalisation,
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


_TERMS_OF_MONAI = {"data_source": "HowToAcknowledge", "copyright": "License", "references": "ReferencesAndLinks"}


def inference(folds: Iterable[int], needs_code: bool = False) -> dict[str, Any]:
    """``inference.json``: a MONAI config that builds the network of all folds (``network_def``) with its weights.

    `needs_code`: whether its key ``code`` must name what makes the network, ``FILE.py:NAME``.
    """
    loaded = {
        f"fold_{index}": {
            "_target_": "heatlas.pipeline.models.storage.load_model",
            **({"code": "@code"} if needs_code else {}),
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
        **({"code": ""} if needs_code else {}),
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
