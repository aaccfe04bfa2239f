"""Probes without torch (`pipeline.models.families.family`): their settings, where their backbone lies, their family.

A probe is a small head on the features of a network that was trained before, its backbone: that of `heatlas pretrain`,
the networks of a finished run, or a file of weights. A run keeps a copy of it, so that what is trained later does not
need another folder. Unlike other families that of probes depends on its settings: what a probe takes in, and which
methods explain it, follows from its backbone and head.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatlas.pipeline.models.families.family import Family, OnBackbone, Shape
from heatlas.pipeline.models.families.monai import ResNetConfig
from heatlas.pipeline.run.config.files import network_settings
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import between
from heatlas.pipeline.run.documents import json_object, read_json
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work.digests import DigestCache, file_digest

if TYPE_CHECKING:
    from torch import Tensor

    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.models.inputs import NetworkInput
    from heatlas.pipeline.models.storage import LoadedModel


Head = Literal["linear", "mlp-2", "mlp-3", "bcos-1", "bcos-2", "bcos-3", "coda", "ca-stream"]


@dataclass(frozen=True)
class ProbeConfig(ModelConfig):
    """A probe on a backbone (``heatlas run --backbone``)."""

    architecture: Literal["probe"] = "probe"
    backbone: str = ""
    """Folder of `heatlas pretrain`, or of a finished run of the same people and folds, whose networks are the backbone;
    or a file of weights (safetensors, or a state_dict of PyTorch) of the network in `body`."""
    body: str = ""
    """Architecture and settings of the backbone, as JSON; read from `backbone` where it is empty."""
    head: Head = "linear"
    """What is trained: one linear layer after global average pooling, layers of 1×1×1 convolutions before it (MLP,
    B-cos), dynamic alignment units (CoDA), or one linear layer after pooling by attention (CA-Stream)."""
    first_attended: Annotated[int, between(0, 63)] = 0
    """Stage of the backbone, from 0, at which the query of a CA-Stream begins."""
    projections: bool = False
    """Of a CA-Stream: linear maps of the keys and the values of each stage."""
    class_queries: bool = False
    """Of a CA-Stream: a query for each class, whose logit reads what it pools; its maps differ from class to class."""
    b: Annotated[float, between(1, 8)] = 2.0
    """Exponent of B-cos heads."""
    hidden_channels: Annotated[int, between(0, 4096)] = 0
    """Channels of the hidden layers; 0 for as many as the backbone has."""
    stages: Annotated[int, between(0, 64)] = 0
    """Stages of the backbone that are kept; 0 for all that have voxels."""
    logit_bias: bool = False
    """Add log(1 / (C - 1)) to each of the C logits, so that with binary cross-entropy a scan without evidence gives
    each class the probability 1 / C. Nothing changes for two classes."""
    train_backbone: bool = False
    """Train the backbone on (fine-tuning) instead of keeping it as it is."""

    def checks(self) -> list[tuple[bool, str]]:
        readable = not self.body or _is_object(self.body)
        streams = self.head == "ca-stream"
        return [
            (readable, "model.body must be the JSON object of a network's settings"),
            *(
                (streams or not chosen, f'model.{name} is of a CA-Stream: set model.head = "ca-stream", or take it out')
                for name, chosen in (("projections", self.projections), ("class_queries", self.class_queries))
            ),
        ]

    @property
    def needs_classes(self) -> str:
        return "model.class_queries" if self.class_queries else ""


def _is_object(text: str) -> bool:
    try:
        return bool(json_object(text))
    except ValueError:
        return False


UNTRAINED = ResNetConfig("resnet10")
"""The backbone of a probe without one, so that its settings can be described."""


def backbone_digest(settings: ProbeConfig, fold: int) -> str:
    files = files_of(settings, fold)
    path = Path(settings.backbone) if files is None else files.weights
    try:
        return file_digest(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error}); finish the run that makes it.") from error


def backbone_files(folder: str, fold: int) -> FoldFiles:
    """Files of a pre-trained backbone, or else those of the network of a fold of a run."""
    layout = RunLayout(Path(folder))
    for files in (layout.backbone, layout.fold(fold)):
        if files.description.is_file():
            return files
    if not layout.root.is_dir():
        raise UsageError(
            f"model.backbone: {folder}: no such folder. Put it back there, or give --backbone the copy that a run of "
            "probes keeps in models/kept_backbone (runs of earlier versions hold no copy)."
        )
    raise UsageError(
        f"model.backbone: {folder}: no backbone there ({layout.backbone.description.relative_to(layout.root)}), and no "
        f"network of fold {fold}. Make one with `heatlas pretrain`, or name the folder of a finished run."
    )


def knows_labels(settings: ProbeConfig) -> bool:
    """Whether the backbone learned from labels: the network of a run, or one pre-trained with a schedule by class."""
    if not settings.backbone or Path(settings.backbone).is_file():
        return False
    files = backbone_files(settings.backbone, 0)
    if files != RunLayout(Path(settings.backbone)).backbone:
        return True
    description = read_json(files.description, "Make the backbone again with heatlas pretrain.")
    return bool(description.get("pretraining", {}).get("schedule") == "by-class")


def require_backbone(settings: ProbeConfig, shuffled: bool) -> None:
    """Refuse settings without a backbone, and for shuffled labels one that knows the true ones; raises UsageError."""
    if not settings.backbone:
        raise UsageError(
            'model.architecture = "probe" needs model.backbone: the folder of `heatlas pretrain` or of a finished run. '
            "`heatlas run --backbone FOLDER` sets both."
        )
    if shuffled and knows_labels(settings):
        raise UsageError(
            f"model.backbone: {settings.backbone}: a run on shuffled labels must not stand on networks that know "
            'the true ones. Name a folder of heatlas pretrain (not with pretraining.schedule = "by-class").'
        )


def on_shuffled_labels(settings: ProbeConfig) -> ProbeConfig:
    """The recipe for shuffled labels: where the backbone learned from true labels, the whole network is trained."""
    return replace(settings, train_backbone=True) if knows_labels(settings) else settings


def files_of(settings: ProbeConfig, fold: int) -> FoldFiles | None:
    """Files of the backbone of a fold, as `backbone_files`; None for a file of weights, which lists no people."""
    return None if Path(settings.backbone).is_file() else backbone_files(settings.backbone, fold)


def body_of(settings: ProbeConfig) -> ModelConfig:
    """Architecture and settings of the backbone, with the field of view of the probe; opens no file."""
    if settings.body:
        body = network_settings(json_object(settings.body), "model.body")
    elif settings.backbone:
        raise UsageError(
            f"model.body does not say which network the backbone {settings.backbone} is. Repeat `heatlas run` with "
            "--backbone, which writes it out."
        )
    else:
        body = UNTRAINED
    if isinstance(body, ProbeConfig):
        raise UsageError("model.backbone: a probe cannot be the backbone of another; name the run that it stands on.")
    return replace(body, **settings.shared)


def with_body(settings: ProbeConfig) -> ProbeConfig:
    """The settings with the backbone written out, and without its place."""
    if not settings.body and Path(settings.backbone).is_file():
        raise UsageError(
            f"model.backbone: {settings.backbone}: a file of weights does not say of which network. Name it in "
            """model.body, such as body = '{"architecture": "resnet18"}'."""
        )
    if not settings.body and settings.backbone:
        described = _described_body(backbone_files(settings.backbone, 0))
        settings = replace(settings, body=json.dumps({"architecture": described.architecture, **described.own}))
    body = body_of(settings)
    return replace(settings, backbone="", body=json.dumps({"architecture": body.architecture, **body.own}))


def placed(settings: ProbeConfig) -> ProbeConfig:
    if not settings.backbone:
        return settings
    return replace(with_body(settings), backbone=str(Path(settings.backbone).resolve()))


def _described_body(files: FoldFiles) -> ModelConfig:
    remedy = "Train it again."
    try:
        values: dict[str, Any] = dict(read_json(files.description, remedy)["architecture"])
        values.pop("input_shape")
        return network_settings({"architecture": values.pop("name"), **values}, str(files.description))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{files.description}: no readable network ({error}). {remedy}") from error


_WEIGHTS = "weights"


def keep_backbone(layout: RunLayout, settings: ProbeConfig, folds: Iterable[int], digests: DigestCache) -> None:
    """Copy the backbone of every fold into the run, unless it is there.

    One that was pre-trained is copied once, a file of weights under a name of its own.
    """
    wanted = _copies(layout.kept_backbone, settings.backbone, folds)
    for path in layout.kept_backbone.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()  # of another backbone that the run stood on before
    for target, source in wanted.items():
        if target != source and digests.digest(target) != digests.digest(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.tmp")
            shutil.copyfile(source, temporary)
            temporary.replace(target)


def _copies(kept: Path, backbone: str, folds: Iterable[int]) -> dict[Path, Path]:
    if Path(backbone).is_file():
        return {kept / f"{_WEIGHTS}{Path(backbone).suffix}": Path(backbone)}
    sources: dict[Path, Path] = {}
    for fold in folds:
        source = backbone_files(backbone, fold)
        target = FoldFiles(kept / source.folder.relative_to(backbone))
        sources |= {target.weights: source.weights, target.description: source.description}
    return sources


def on_kept_backbone(settings: ProbeConfig, layout: RunLayout) -> ProbeConfig:
    """The settings of the probes of a finished run with the copy of their backbone; unchanged where it has none."""
    kept = layout.kept_backbone
    copies = [*kept.glob(f"{_WEIGHTS}.*"), *(kept for _ in kept.glob("models/*/model.json"))]
    return replace(settings, backbone=str(copies[0])) if copies and settings.backbone else settings


RULES = (
    "its rules are defined for ReLU networks, and the head of this probe has dynamic linear layers, which no rule "
    "covers. Use expected-gradients"
)
DEEP_HEAD = (
    "CAM needs global average pooling and one linear layer after the backbone, and this head is another. Use grad-cam"
)
SIGNED = "the hidden features of this head may be negative, and the formula needs amounts. Use grad-cam"
ONE_LINEAR = "its rules begin with the mean of tokens and one linear layer, and this head is another. Use rollout"
NOT_AVERAGED = (
    "CAM needs global average pooling and one linear layer after the backbone, and this head pools by attention. Use "
    "grad-cam"
)
ATTENTION = (
    "its rules are not defined for the attention by which this head pools. Use expected-gradients, or the head linear"
)
DYNAMIC_HEAD: Mapping[str, str] = {"lrp": RULES, "guided-backpropagation": RULES, "deeplift": RULES, "cam": DEEP_HEAD}
HEADS = {
    "linear": "one linear layer", "mlp-2": "two layers of 1×1×1 convolutions",
    "mlp-3": "three layers of 1×1×1 convolutions", "bcos-1": "one B-cos layer", "bcos-2": "two B-cos layers",
    "bcos-3": "three B-cos layers", "coda": "two layers of dynamic alignment units [@coda]",
    "ca-stream": "one linear layer after pooling by a stream of attention [@castream]",
}  # fmt: skip


def refused_by(settings: ProbeConfig, body: Family) -> Mapping[str, str]:
    """Methods that are not defined for a head on a backbone of a family."""
    reasons = dict(body.refused)
    reasons.pop("cam", None)  # which depends on the head alone
    if settings.head == "linear":
        return reasons
    if settings.head == "ca-stream":
        reasons.pop("raw-attention", None)  # which is that of the pooling
        unruled = dict.fromkeys(("lrp", "deeplift", "inherent"), ATTENTION)
        return {"rollout": ATTENTION, "cgw1": ATTENTION, **reasons, "cam": NOT_AVERAGED, **unruled}
    reasons = {"cgw1": ONE_LINEAR, **reasons}
    if settings.head.startswith("mlp"):
        return {**reasons, "cam": DEEP_HEAD}
    if body.encoding != "pair":  # the head is explained from the features of the backbone on
        reasons.pop("inherent", None)
    reasons = {**reasons, **DYNAMIC_HEAD}
    hidden = () if settings.head == "bcos-1" else ("grad-cam++", "xgrad-cam", "opti-cam")
    return {**dict.fromkeys(hidden, SIGNED), **reasons}


def _family_of(settings: ModelConfig) -> Family:
    from heatlas.pipeline.models.families.registry import family_of  # which loads this module

    return family_of(settings)


def _body(settings: ProbeConfig) -> tuple[Family, ModelConfig]:
    body = body_of(settings)
    return _family_of(body), body


def _resolved(settings: ProbeConfig) -> Family:
    family, _ = _body(settings)
    refused = refused_by(settings, family)
    return replace(PROBE, encoding=family.encoding, needs=family.needs, refused=refused)


def _build(shape: Shape, settings: ProbeConfig, outputs: int) -> StagedModel:
    from heatlas.studies.probes.network import build

    settings = with_body(settings)
    family, body = _body(settings)
    family.require_fits(shape, body)
    return build(family.build(shape, body, outputs), shape, settings, family.encoding == "pair", outputs)


def _described(settings: ProbeConfig) -> str:
    family, body = _body(settings)
    kept = "trained further" if settings.train_backbone else "kept as it was"
    text = family.described(body).removeprefix("was ")
    head = HEADS[settings.head]
    head += ", with linear maps of keys and values" * settings.projections
    head += ", with a query for each class" * settings.class_queries
    return f"was a probe [@probing], {head}, on a backbone that was {kept}: {text}"


def _of_backbone(name: str) -> Callable[..., Any]:
    """What the family of the backbone says; settings come last."""

    def ask(*arguments: Any) -> Any:
        family, body = _body(arguments[-1])
        return getattr(family, name)(*arguments[:-1], body)

    return ask


def _weights(
    settings: ProbeConfig, spec: NetworkInput, fold: int, shuffled: bool, load: Callable[[FoldFiles], LoadedModel]
) -> Mapping[str, Tensor] | None:
    from heatlas.studies.probes.network import backbone_weights

    return None if shuffled and knows_labels(settings) else backbone_weights(settings, spec, fold, load)


PROBE = Family(
    name="probe",
    settings=ProbeConfig,
    build=_build,
    smallest_side=_of_backbone("smallest_side"),
    require_fits=_of_backbone("require_fits"),
    described=_described,
    covering_side=_of_backbone("covering_side"),
    seen_side=_of_backbone("seen_side"),
    resolve=_resolved,
    backbone=OnBackbone(
        body=body_of,
        keyed=with_body,
        placed=placed,
        require=require_backbone,
        for_shuffled=on_shuffled_labels,
        files=files_of,
        digest=backbone_digest,
        weights=_weights,
        keep=keep_backbone,
        kept=on_kept_backbone,
    ),
)
