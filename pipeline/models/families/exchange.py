"""Weights that MONAI's networks and ours exchange: the same tensors under MONAI's names or under ours.

Files are safetensors, or PyTorch files that hold nothing but tensors.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.documents import require_regular
from heatlas.pipeline.run.errors import BadInputError, UsageError

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
    """Weights for ``load_state_dict`` of the network of MONAI that a model was made of.

    Raises UsageError for a network that is not MONAI's.
    """
    if not model.monai_names:
        raise UsageError("this network is none of MONAI's, so MONAI has no names for its weights.")
    state = model.state_dict()
    return {theirs: state[ours] for ours, theirs in model.monai_names.items()}


def from_file(path: Path, model: StagedModel) -> dict[str, Tensor]:
    """Weights of a file by our names, all but those of the last stage, which belongs to another task.

    `path`: with our names or MONAI's. Raises BadInputError if the file cannot be read, or holds anything but tensors.
    Raises UsageError if a weight is missing or has another shape.
    """
    given = {name.removeprefix(PARALLEL): value for name, value in read_weights(path).items()}
    last = f"_stages.{len(model.stages) - 1}."
    found = {}
    for name, value in model.state_dict().items():
        if name.startswith(last) or name.endswith("num_batches_tracked"):
            continue
        known = [one for one in (name, model.monai_names.get(name, "")) if one in given]
        if not known:
            other = f" or {model.monai_names[name]}" if name in model.monai_names else ""
            raise UsageError(f"{path}: has no weight {name}{other}; it is of another network than model.body.")
        if given[known[0]].shape != value.shape:
            raise UsageError(
                f"{path}: {known[0]} has shape {tuple(given[known[0]].shape)}, and the network in model.body "
                f"{tuple(value.shape)}; give model.body the settings that the weights were made with."
            )
        found[name] = given[known[0]].to(value)
        if not bool(torch.isfinite(found[name]).all()):
            raise BadInputError(f"{path}: {known[0]} has values that are no finite numbers.")
    return found


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Named tensors of a file; raises `BadInputError` for one that holds anything else, or cannot be read safely."""
    try:
        require_regular(path)
        if (size := path.stat().st_size) > LARGEST:
            raise ValueError(f"{size:,} bytes, more than {LARGEST:,}")
        content = safetensors.torch.load_file(path) if path.suffix == ".safetensors" else _tensors(path)
    except Exception as error:  # a foreign file can raise anything
        said = " ".join(f"{error}".split())[:200] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to run what is in the file
            said = "it holds more than tensors, which are never read, or is damaged"
        raise BadInputError(
            f"{path}: no weights that can be read safely ({said}). Save them as safetensors, or with torch.save as a "
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
