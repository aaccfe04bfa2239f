"""What the functions of the library are given: one table of what each argument must be, and one line where it is not.

Whether an image fits a network, or a setting its method, is said where it is read.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

from heatlas.pipeline.run.config.typed_values import shown
from heatlas.pipeline.run.errors import UsageError


def require_arguments(**given: Any) -> None:
    """Refuse an argument that cannot be what its name says.

    `**given`: arguments by the names of `ARGUMENTS`.

    Examples
    --------
    >>> require_arguments(method="lrp", target=None, stage=0)
    >>> require_arguments(stage=True)
    Traceback (most recent call last):
    heatlas.pipeline.run.errors.UsageError: stage = true: must be the number of a stage or the name of a layer.
    """
    for name, value in given.items():
        holds, must = ARGUMENTS[name]
        if not holds(value):
            raise UsageError(f"{name} = {' '.join(shown(value).split())}: must be {must}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_path(value: Any) -> bool:
    return _is_text(value) or isinstance(value, os.PathLike)


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number of Python, numpy or torch, and no truth."""
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        return not truth and operator.index(value) >= 0
    except TypeError:  # an array of several, or of no whole numbers
        return False


def _is_network(value: Any) -> bool:
    import torch  # takes a second

    return isinstance(value, torch.nn.Module)


def _is_image(value: Any) -> bool:
    import numpy as np
    import torch

    return _is_path(value) or hasattr(value, "dataobj") or isinstance(value, np.ndarray | torch.Tensor)


def _are_images(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_image, value))


def _are_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _are_numbers(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and all(math.isfinite(one) for one in value)
    except TypeError:
        return False


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _one_of(*texts: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, str) and value in texts, f"one of {', '.join(map(repr, texts))}"


_PATH = (_is_path, "a path, as text or Path")
_STARTS = _one_of("logit", "probability", "evidence")
ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "network": (
        _is_network,
        "a torch.nn.Module that holds its weights; create the network, load its weights, and give it "
        "(no class, function, file or state_dict)",
    ),
    "image": (_is_image, "the path of an image, a nibabel image, an array or a tensor"),
    "reference": (_or_none(_are_images), "a list of images of controls, as reference=[control]"),
    "method": (_is_text, 'a name, as "lrp"; heatlas.methods() has them all'),
    "target": (_or_none(_is_count), "the number of an output unit, counted from 0"),
    "stage": (
        _or_none(lambda value: _is_text(value) or _is_count(value)),
        "the number of a stage or the name of a layer",
    ),
    "start": (_or_none(_STARTS[0]), _STARTS[1]),
    "settings": (_or_none(_are_named), 'settings by name, as {"samples": 200}; of heatlas.run those of sections, as '
                 '{"training": {"ensemble": 4}}'),
    "output": _one_of("auto", "logits", "softmax", "log-softmax", "sigmoid"),
    "output_item": (lambda value: isinstance(value, str), "text: the key of a dict, or the place in a tuple"),
    "bins": (_are_numbers, "a list of numbers, one for each output"),
    "atlas": (_is_path, "the name of an atlas, or the path of a label image"),
    "preset": (_is_text, 'the name of a preset, as "patients"'),
    "seed": (_or_none(_is_count), "a whole number, 0 or more"),
    **dict.fromkeys(("input", "out", "run", "new", "folder"), _PATH),
}  # fmt: skip
