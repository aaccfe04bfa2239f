"""Trained networks on disk: weights as safetensors, everything else as JSON beside. Nothing that can execute.

The description holds the digest of the weights, so that weights of another training, or altered ones, are refused.
Weights that others made are safetensors too, or PyTorch files that hold nothing but tensors, under our names or under
those of MONAI.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from heatlas.atlases.spaces import DEFAULT_SPAN, Box, Placed
from heatlas.pipeline.models.contract import StagedModel, ensemble_of, members_of
from heatlas.pipeline.models.families.family import Family
from heatlas.pipeline.models.families.foreign import FOREIGN, MOST_CHANNELS, Feeding, place_of_code
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import NetworkInput, Normalisation
from heatlas.pipeline.run.config.files import network_settings
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.documents import read_json, read_regular, require_regular
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.tables import write_bytes, write_json
from heatlas.pipeline.run.work.digests import UNREADABLE, own_code_digest
from heatlas.pipeline.run.work.host import on_host

FORMAT = 1
"""Version of the description file."""
MOST_NETWORKS = 100
"""Largest ensemble that is read."""
SOURCE, CODE = "source", "model.network"
"""Where a description says what a network of others was made from: digests, by the setting that names it."""
RETRAIN = "Restore the file or train the model again."


@dataclass(frozen=True)
class LoadedModel:
    """A trained network in evaluation mode, and what it needs to be used."""

    model: StagedModel
    input: NetworkInput
    classes: tuple[str, ...]
    """Names of the output units: the classes, or the column of the number that is predicted."""
    description: Mapping[str, Any]

    @property
    def family(self) -> Family:
        return family_of(self.settings)

    @property
    def settings(self) -> ModelConfig:
        assert self.model.architecture is not None
        return self.model.architecture.settings


def save_model(
    files: FoldFiles, model: StagedModel, spec: NetworkInput, classes: tuple[str, ...], extra: Mapping[str, Any]
) -> None:
    """Write weights and description of a network of a family.

    `spec`: what the network was trained on. `classes`: names of the output units; of two classes the negative one
    first. `extra`: further entries of the description, such as participants and seeds.
    """
    files.folder.mkdir(parents=True, exist_ok=True)
    state = {name: on_host(value).contiguous() for name, value in model.state_dict().items()}
    content = safetensors.torch.save(state)
    write_bytes(files.weights, content)
    if model.architecture is None:
        raise ValueError("a network of no family cannot be stored: nothing says how to build it again.")
    settings, shape = model.architecture.settings, model.architecture.input_shape
    family, images = family_of(settings), model.architecture.images
    own_images = {"input_images": images} if images > 1 else {}
    description = {
        "format": FORMAT,
        "architecture": {"name": family.name, "input_shape": list(shape), **own_images, **family.stored(settings).own},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **({"networks": count} if (count := len(members_of(model))) > 1 else {}),
        "input": _input_to_json(spec),
        "seen_shape": [family.seen_side(side, settings) for side in shape],
        "classes": list(classes),
        "weights": {"file": files.weights.name, "sha256": hashlib.sha256(content).hexdigest()},
    }
    write_json(files.description, {**description, **extra})


def load_model(files: FoldFiles, device: torch.device | str = "cpu", code: str | None = None) -> LoadedModel:
    """Read a network that `save_model` wrote; in evaluation mode, float32, on `device`.

    `code`: what makes a network of the user's own, in place of what the description names; empty to run no such code.
    """
    description = read_json(files.description, RETRAIN)
    if description.get("format") != FORMAT:
        raise BadInputError(f"{files.description}: not a model description of format {FORMAT}. Train the model again.")
    if code is not None:
        description = with_code(description, code, files)
    try:
        _require_same_code(description, files)
        spec = _input_from_json(description["input"])
        classes = tuple(description["classes"])
        if not all(isinstance(name, str) for name in classes) or len(set(classes)) != len(classes) or not classes:
            raise ValueError(f"classes are {' and '.join(map(repr, classes))}")
        model, shape = _build(description["architecture"], len(classes), description.get("networks", 1))
        expected = description["weights"]["sha256"]
        assert model.architecture is not None
        if model.architecture.images != spec.channels:
            raise ValueError(f"the network takes {model.architecture.images} images, the input is {spec.channels}")
        if shape != tuple(spec.shape):
            raise ValueError(f"the network takes {shape}, the input is {tuple(spec.shape)}")
        if not np.allclose(spec.grid.affine, description["input"]["affine"]):
            raise ValueError("resolution_mm, box and affine of the input contradict each other")
    except (BadInputError, UsageError) as error:
        raise BadInputError(f"{files.description}: {error}") from error
    except (AttributeError, ArithmeticError, KeyError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInputError(f"{files.description}: not a usable description ({reason}). Train it again.") from error
    try:
        content = read_regular(files.weights, most_bytes(model))
    except OSError as error:
        raise BadInputError(
            f"{files.weights}: not the weights of this network ({error.strerror}). {RETRAIN}"
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise BadInputError(
            f"{files.weights}: not the weights that {files.description.name} describes (SHA-256 differs). {RETRAIN}"
        )
    try:
        model.load_state_dict(safetensors.torch.load(content))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInputError(
            f"{files.weights}: not the weights of a {description['architecture']['name']} with the settings in "
            f"{files.description.name}, but of another network ({reason}). {RETRAIN}"
        ) from error
    return LoadedModel(model.to(device).eval(), spec, classes, description)


def with_code(description: dict[str, Any], code: str, files: FoldFiles) -> dict[str, Any]:
    """A description that names `code` for a network of the user's own; that of any other network as it is."""
    architecture = description.get("architecture")
    if not isinstance(architecture, dict) or architecture.get("name") != FOREIGN.name:
        return description
    if not code:
        raise UsageError(
            f"{files.description}: the network is made by code of its own ({architecture.get('network')}), which is "
            "not run unless you name it: heatlas apply --code FILE.py:NAME, or [model] network of this run."
        )
    source = description.get(SOURCE)
    source = source if isinstance(source, dict) else {}
    if code != architecture.get("network"):
        source = {**source, CODE: own_code_digest(place_of_code(code))}
    return {**description, SOURCE: source, "architecture": {**architecture, "network": code}}


def _require_same_code(description: Mapping[str, Any], files: FoldFiles) -> None:
    """Refuse code of the user's own that has changed since; whoever builds the network names what is gone."""
    then, architecture = description.get(SOURCE, {}).get(CODE), description.get("architecture", {})
    if then is None:
        return
    now = own_code_digest(place_of_code(str(architecture.get("network", ""))))
    if now not in (then, UNREADABLE):
        raise BadInputError(
            f"{files.description}: the code of the network, {architecture['network']}, has changed since. Repeat the "
            "command that made this folder: the network predicts and explains again."
        )


def require_family(loaded: LoadedModel, settings: ModelConfig, files: FoldFiles) -> None:
    if loaded.settings.architecture != settings.architecture:
        raise BadInputError(
            f"{files.description}: the network is a {loaded.settings.architecture}, and the run has model.architecture "
            f'= "{settings.architecture}". {RETRAIN}'
        )


def most_bytes(model: nn.Module) -> int:
    """Size that a file of the weights of a network does not exceed: its tensors, and what is written of each."""
    tensors = model.state_dict().values()
    return int(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) + 1024 * (len(tensors) + 1024)


def _build(architecture: Mapping[str, Any], outputs: int, count: int) -> tuple[StagedModel, tuple[int, int, int]]:
    """The network of a description, or the ensemble of `count` such, and the grid of its input."""
    values = dict(architecture)
    sides, images = values.pop("input_shape"), values.pop("input_images", 1)
    settings = network_settings({"architecture": values.pop("name"), **values}, "architecture")
    left, back, top = sides
    if not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError("input_shape must be whole numbers above 0")
    if not isinstance(images, int) or not 1 <= images <= MOST_CHANNELS:
        raise ValueError(f"input_images must be a number from 1 to {MOST_CHANNELS}")
    if not 1 <= count <= MOST_NETWORKS:
        raise ValueError(f"networks must be a number from 1 to {MOST_NETWORKS}")
    with torch.random.fork_rng(devices=[]):  # initial weights are overwritten; draw none of the caller's numbers
        networks = [build_network(settings, (left, back, top), outputs, images) for _ in range(count)]
    return ensemble_of(networks), (left, back, top)


def _input_to_json(spec: NetworkInput) -> dict[str, Any]:
    box = None if spec.box is None else asdict(spec.box)
    return {
        "resolution_mm": spec.resolution_mm,
        "box": box,
        "normalisation": spec.normalisation,
        "affine": spec.grid.affine.tolist(),
        **({} if spec.span == DEFAULT_SPAN else {"span_mm": [list(end) for end in spec.span]}),
        **({"images": list(spec.images)} if spec.images else {}),
        **({"contract": asdict(spec.feeding)} if spec.feeding else {}),
    }


def _input_from_json(values: Mapping[str, Any]) -> NetworkInput:
    box, contract = values["box"], values.get("contract")
    if box is not None:
        kind = Placed if "to_whole" in box else Box
        box = kind(**{name: _tuples(value) for name, value in box.items()})
    first, last = values.get("span_mm", DEFAULT_SPAN)
    if values["normalisation"] not in get_args(Normalisation):
        raise ValueError(f"unknown normalisation {values['normalisation']}")
    return NetworkInput(
        float(values["resolution_mm"]),
        box,
        values["normalisation"],
        (tuple(first), tuple(last)),
        tuple(map(str, values.get("images", ()))),
        None if contract is None else Feeding(**{name: _tuples(value) for name, value in contract.items()}),
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


WRAPPED = ("state_dict", "model", "network")
"""Entries of a PyTorch file below which weights often lie."""
LARGEST = 8 * 2**30
"""Bytes of a file of weights; those of a network that can be trained here take a tenth."""
PARALLEL = "module."
"""What data-parallel training puts before every name."""


def names_in(network: nn.Module, model: StagedModel) -> dict[str, str]:
    """MONAI's name of each weight and buffer of a model that holds the modules of a network of MONAI, by our name."""
    theirs = {id(value): name for name, value in network.state_dict(keep_vars=True).items()}
    return {name: theirs[id(value)] for name, value in model.state_dict(keep_vars=True).items() if id(value) in theirs}


def to_monai(model: StagedModel) -> dict[str, Tensor]:
    """Weights for ``load_state_dict`` of the network of MONAI that a model was made of."""
    if not model.monai_names:
        raise UsageError("this network is none of MONAI's, so MONAI has no names for its weights.")
    state = model.state_dict()
    return {theirs: state[ours] for ours, theirs in model.monai_names.items()}


def from_file(path: Path, model: StagedModel) -> dict[str, Tensor]:
    """Weights of a file, under our names or MONAI's, by ours: all but the last stage, which belongs to another task."""
    given = {name.removeprefix(PARALLEL): value for name, value in read_weights(path).items()}
    last = f"_stages.{len(model.stages) - 1}."
    weights = {}
    for name, value in model.state_dict().items():
        if name.startswith(last) or name.endswith("num_batches_tracked"):
            continue
        names = [alias for alias in (name, model.monai_names.get(name, "")) if alias in given]
        if not names:
            other = f" or {model.monai_names[name]}" if name in model.monai_names else ""
            raise UsageError(f"{path}: has no weight {name}{other}; it is of another network than model.body.")
        if given[names[0]].shape != value.shape:
            raise UsageError(
                f"{path}: {names[0]} has shape {tuple(given[names[0]].shape)}, and the network in model.body "
                f"{tuple(value.shape)}; give model.body the settings that the weights were made with."
            )
        weights[name] = given[names[0]].to(value)
        if not bool(torch.isfinite(weights[name]).all()):
            raise BadInputError(f"{path}: {names[0]} has values that are no finite numbers.")
    return weights


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Named tensors of a file; raises `BadInputError` for one that holds anything else, or cannot be read safely."""
    if not path.exists():
        raise BadInputError(f"{path}: no such file; name the file of the trained weights.")
    try:
        require_regular(path)
        if (size := path.stat().st_size) > LARGEST:
            raise ValueError(f"{size:,} bytes, more than {LARGEST:,}")
        content = safetensors.torch.load_file(path) if path.suffix == ".safetensors" else _tensors(path)
    except Exception as error:  # a foreign file can raise anything
        reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch's words advise to run what is in the file
            reason = "it holds more than tensors, which are never read, or is damaged"
        raise BadInputError(
            f"{path}: no weights that can be read safely ({reason}). Save them as safetensors, or with torch.save as a "
            "dictionary of tensors."
        ) from error
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise BadInputError(f"{path}: holds something other than named tensors; save the network's state_dict().")
    for name, value in content.items():
        if not is_plain_tensor(value) or value.is_complex():
            raise BadInputError(f"{path}: {name} is no plain tensor of real numbers; save the state_dict() as float32.")
    return content


def is_plain_tensor(value: Tensor) -> bool:
    """Whether a tensor has a number per place: it is no meta, sparse, nested or quantised tensor."""
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized or value.is_nested)


def _tensors(path: Path) -> Mapping[str, Tensor]:
    content = torch.load(path, map_location="cpu", weights_only=True)
    for _ in WRAPPED:
        inner = next((name for name in WRAPPED if isinstance(content, Mapping) and name in content), None)
        content = content if inner is None else content[inner]
    return content  # type: ignore[no-any-return]
