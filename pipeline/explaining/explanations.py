"""One explanation of one scan, asked for by hand: which method, of which class, seen from which stage.

Its map and its table of region sums lie beside the maps of the run, under a name of their own that tells apart whatever
was asked for differently. Nothing that the run has written is touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from atlases.images import write_template_image
from pipeline.attribution.lrp.ledger import LEDGER_COLUMNS
from pipeline.attribution.method_settings import Setting
from pipeline.attribution.methods import attribute
from pipeline.attribution.records import Attribution
from pipeline.attribution.registry import Surroundings, find_method
from pipeline.attribution.targets import StartValue
from pipeline.cohort.records import Scan
from pipeline.explaining.explained_scan import cached_model, sources_of
from pipeline.models.device import chosen_device
from pipeline.models.inputs import from_network, read_network_volume
from pipeline.models.storage import LoadedModel
from pipeline.regions.packed_atlas import PackedAtlas, write_region_table
from pipeline.run.config.settings import TrainingConfig
from pipeline.run.errors import BadInputError
from pipeline.run.layout.run_layout import FoldFiles
from pipeline.run.layout.scan_files import ScanFiles
from pipeline.run.tables import write_json, write_table
from pipeline.run.work.digests import canonical_json, text_digest

PREDICTED = "predicted"
"""Target: the class that the network gives the scan."""
LONGEST_LABEL = 80


@dataclass(frozen=True)
class Explanation:
    """What is asked of the scans.

    Parameters
    ----------
    method : str
        Name in the registry.
    settings : mapping
        Those that differ from the method's defaults.
    target : str
        A class, or `PREDICTED`.
    stage : int or str
        Boundary at which it is asked.
    start : {"logit", "probability"}
        Value of the target that is explained.
    usual : mapping
        ``target``, ``stage`` and ``start`` where nothing else is asked for; these are left out of names.
    """

    method: str
    settings: Mapping[str, Setting]
    target: str
    stage: int | str
    start: StartValue
    usual: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """BIDS label, letters and digits only; different for whatever is different.

        Examples
        --------
        >>> usual = {"target": "AD", "stage": 0, "start": "logit"}
        >>> Explanation("grad-cam++", {}, "AD", 0, "logit", usual).label
        'gradcampp'
        >>> Explanation("rise", {"p": 0.25}, "CN", 2, "logit", usual).label
        'riseTargetCNStage2P0p25'
        """
        asked: dict[str, Setting] = {"target": self.target, "stage": self.stage, "start": self.start}
        unusual = {name: value for name, value in asked.items() if value != self.usual.get(name)}
        unusual |= {name: self.settings[name] for name in sorted(self.settings)}
        pieces = [re.sub(r"[^a-z0-9]", "", self.method.replace("+", "p"))]
        readable = True
        for name, value in unusual.items():
            key, number = _letters(name), not isinstance(value, str)
            text = str(value).replace(".", "p").replace("-", "m") if number else str(value)
            readable &= text.isascii() and text.isalnum()
            pieces.append(key + re.sub(r"[^A-Za-z0-9]", "", text[:1].upper() + text[1:]))
        label = "".join(pieces)
        if readable and len(label) <= LONGEST_LABEL:
            return label
        return label[:LONGEST_LABEL] + text_digest(canonical_json([self.method, unusual]))[:8]


def _letters(name: str) -> str:
    """A setting's name as one word.

    Examples
    --------
    >>> _letters("masking.inner"), _letters("kernel_width")
    ('MaskingInner', 'KernelWidth')
    """
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]", name))


@dataclass(frozen=True)
class ScanToShow:
    """All that a worker needs for one explanation of one scan.

    Parameters
    ----------
    explanation : Explanation
    scan : Scan
    files : ScanFiles
    fold : int
        Whose network explains it: one that has not seen the participant.
    model : FoldFiles
    weights_digest : str
    training : TrainingConfig
        For the device.
    atlas : PackedAtlas
    """

    explanation: Explanation
    scan: Scan
    files: ScanFiles
    fold: int
    model: FoldFiles
    weights_digest: str
    training: TrainingConfig
    atlas: PackedAtlas


def show_scan(outputs: Mapping[str, Path], task: ScanToShow) -> Mapping[str, Any]:
    """Make one map, its sidecar and its region sums; the work of one job.

    Parameters
    ----------
    outputs : mapping of str to Path
        ``map``, ``sidecar``, ``regions``, ``columns``; of a method that keeps one, ``ledger`` and ``ledger_columns``.
    task : ScanToShow

    Returns
    -------
    mapping
        ``target`` explained, ``fold`` and ``start_value``.

    Raises
    ------
    BadInputError
        If the model or the scan cannot be read or do not fit.
    UsageError
        If the method cannot be asked of this network at this stage.
    """
    asked, device = task.explanation, chosen_device(task.training)
    loaded = cached_model(task.model, task.weights_digest, device)
    volume = torch.from_numpy(read_network_volume(task.files, loaded.input))[None, None].to(device)
    target = _target(loaded, volume, asked.target)
    method = find_method(asked.method).build(asked.settings, Surroundings(task.atlas, loaded.input.box))
    answer = attribute(loaded.model, volume, target, method, asked.stage, asked.start)
    values = answer.values[0, 0]
    spec = loaded.input
    write_region_table(
        outputs["regions"], task.scan, {asked.label: values}, task.atlas, spec.template_grid, spec.box
    )
    on_template = from_network(values.cpu().numpy(), spec)
    write_template_image(outputs["map"], on_template, spec.template_grid, f"{asked.method}, {loaded.classes[target]}")
    write_json(outputs["sidecar"], _facts(task, loaded, answer))
    if answer.ledger is not None:
        write_table(outputs["ledger"], answer.ledger.frame(asked.label, 0), LEDGER_COLUMNS)
    return {"target": loaded.classes[target], "fold": task.fold, "start_value": float(answer.start_value[0])}


def _target(loaded: LoadedModel, volume: torch.Tensor, target: str) -> int:
    if target == PREDICTED:
        with torch.no_grad():
            return int(loaded.model(volume)[0].argmax())
    if target not in loaded.classes:
        raise BadInputError(f"the network tells {' from '.join(loaded.classes)} and knows no {target}; train it again.")
    return loaded.classes.index(target)


def _facts(task: ScanToShow, loaded: LoadedModel, answer: Attribution) -> dict[str, Any]:
    asked, name = task.explanation, loaded.classes[answer.target]
    return {
        "Description": f"{asked.method}: {find_method(asked.method).help}; output {name}, per voxel of the template",
        "Method": asked.method,
        "Settings": {key: value for key, value in answer.parameters.items() if key not in ("stage", "start")},
        "Stage": asked.stage,
        "Target": name,
        "TargetUnit": answer.target,
        "TargetChosenBy": "prediction of the network" if asked.target == PREDICTED else "name",
        "StartValue": float(answer.start_value[0]),
        "StartValueKind": asked.start,
        "MapSum": float(answer.values.sum(dtype=torch.float64)),
        "Fold": task.fold,
        "ModelWeightsSHA256": task.weights_digest,
        "Sources": sources_of(task.files, task.model),
    }
