"""The family of networks that somebody else made and trained, known by a description in ``[model]``.

A run with such a network trains nothing: every fold has the same network, and folds only say whose scans are controls
for whom. The description runs code of the user, named in it; weights are read as tensors and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from heatlas.pipeline.models.families.family import NO_ATTENTION, NOT_INHERENT, Family, Shape
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import above, at_least, between, matching
from heatlas.pipeline.run.documents import json_object
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

_LISTED = 3
"""Most names of weights in a message."""
MOST_CHANNELS = 16


Scaling = Literal["", "minmax", "percentiles", "zscore", "zscore-brain", "fixed", "none"]
_AXES = matching("(?=.*[RL])(?=.*[AP])(?=.*[SI]).{3}", "name three axes, such as RAS, LAS or SAR")


@dataclass(frozen=True)
class Feeding:
    """What a network was fed in training; with an empty `scaling` nothing is known of it, and there is no contract."""

    grid: Annotated[tuple[int, ...], at_least(1)] = ()
    """Voxels of its input along each axis; empty without `scaling`."""
    scaling: Scaling = ""
    """How it was fed; this makes the settings below an input contract, which replaces `field_of_view` and
    `intensities`. ``minmax``: minimum and maximum of the image become 0 and 1. ``percentiles``: two percentiles of the
    brain do, and what lies beyond is cut off. ``zscore``: mean 0 and standard deviation 1 over the image;
    ``zscore-brain``: over the brain, whose surroundings stay 0. ``fixed``: two intensities become 0 and 1. ``none``:
    as stored. The brain is what is not 0."""
    scaling_ends: tuple[float, ...] = ()
    """The two percentiles (0.5 and 99.5 if empty) or, of ``fixed``, the two intensities."""
    spacing_mm: Annotated[tuple[float, ...], above(0)] = ()
    """Its voxel size along each axis: the image is cut, or filled up with 0, to `grid`. Empty where the whole image was
    squeezed into `grid`, whatever its voxels."""
    orientation: Annotated[str, _AXES] = "RAS"
    """Where its axes go: ``LAS`` is mirrored left to right, ``SAR`` has its axes in the order of many arrays."""
    middle_mm: tuple[float, ...] = ()
    """Where the middle of `grid` lies, in mm to the right, front and top; empty for the middle of the image."""
    channels: Annotated[int, between(1, MOST_CHANNELS)] = 1
    """How often it is given the one image."""
    space: str = ""
    """Template that its images were registered to, as ``MNI152NLin6Asym``; empty if they were not."""
    registered: Literal["", "rigid", "affine", "nonlinear"] = ""
    """How they were registered."""
    head: bool = False
    """Whether it saw whole heads, not brains alone."""

    def problems(self) -> list[tuple[bool, str]]:
        """What must hold, and what is said where it does not."""
        ends, other = self.scaling_ends, replace(self.feeding, grid=(), scaling="")
        return [
            (len(self.grid) == 3 * bool(self.scaling), "model.grid must be three numbers, and goes with model.scaling"),
            (len(self.spacing_mm) in (0, 3), "model.spacing_mm must be three sizes of voxels, or empty"),
            (len(self.middle_mm) in (0, 3), "model.middle_mm must be three numbers, or empty"),
            (
                len(ends) in ((2,) if self.scaling == "fixed" else (0, 2)) and list(ends) == sorted(set(ends)),
                'model.scaling_ends must be two rising numbers, and model.scaling = "fixed" needs them',
            ),
            (bool(self.scaling) or other == Feeding(), "model.scaling must say how intensities were scaled"),
        ]

    @property
    def feeding(self) -> Feeding:
        """These settings alone."""
        return Feeding(**{one.name: getattr(self, one.name) for one in fields(Feeding)})


@dataclass(frozen=True)
class ForeignConfig(Feeding, ModelConfig):
    """A network of your own, trained elsewhere (docs/own_network.md)."""

    architecture: Literal["foreign"] = "foreign"
    network: str = ""
    """What makes the network: ``FILE.py:NAME`` or ``MODULE:NAME``, a class or a function. This code is run."""
    arguments: str = "{}"
    """Of that class or function by name, as a JSON object such as ``{"num_classes": 2}``."""
    weights: str = ""
    """File of its weights: safetensors, or a PyTorch file that holds nothing but tensors."""
    output: Literal["auto", "logits", "softmax", "log-softmax", "sigmoid"] = "auto"
    """What it answers; ``auto`` recognises probabilities that sum to 1, and their logarithms. What turns logits into
    them is taken off."""
    output_item: str = ""
    """Of a network that answers with a tuple or a dict: the place or the key of what counts."""
    bins: Annotated[tuple[float, ...], at_least(0)] = ()
    """Of a network with an output for each bin of a number: the centres of the bins. Their mean under the softmax is
    the prediction."""
    times: Annotated[float, above(0)] = 1.0
    """A number is this times what it answers: 100 for a network that answers in centuries."""
    unseen: bool = False
    """Whether you know that the network was trained with none of these people. If not, the report says that accuracy
    and maps may be in sample."""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Methods that take any network; others refuse what they have no rule for, and can be added."""
        return {"attribution": {"methods": ("expected-gradients", "grad-cam")}}

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (_is_object(self.arguments), 'model.arguments must be a JSON object, as {"num_classes": 2}'),
            *self.problems(),
        ]


@contextmanager
def code_of_others(sentence: str) -> Iterator[None]:
    """Let code that is not ours raise one line: ``{}`` in the sentence is what it raised, be it an exit."""
    try:
        yield
    except (KeyboardInterrupt, HeatlasError):
        raise
    except BaseException as error:  # SystemExit too, which would end this program without a word
        raised = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInputError(sentence.replace("{}", raised)) from error


def _is_object(text: str) -> bool:
    try:
        return isinstance(json_object(text), dict)
    except ValueError:
        return False


def described_network(settings: ForeignConfig) -> nn.Module:
    """The network of a description, with the weights that its code gives it."""
    from torch import nn

    place, _, name = settings.network.rpartition(":")
    if not place:
        raise UsageError(f"model.network = {settings.network!r}: write FILE.py:NAME or MODULE:NAME.")
    with code_of_others(f"model.network = {settings.network!r}: its code raises {{}}."):
        try:
            if place.endswith(".py"):
                spec = importlib.util.spec_from_file_location(f"heatlas_foreign_{Path(place).stem}", place)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            else:
                module = importlib.import_module(place)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            raise UsageError(
                f"model.network = {settings.network!r}: {error}. Give the path of a file or a module."
            ) from error
    if not hasattr(module, name):
        raise UsageError(f"model.network = {settings.network!r}: {place} has no {name}.")
    with code_of_others(f"model.network = {settings.network!r}: with the model.arguments given it raises {{}}."):
        network = getattr(module, name)(**json_object(settings.arguments))
    if not isinstance(network, nn.Module):
        raise BadInputError(
            f"model.network = {settings.network!r}: gives a {type(network).__name__}, no torch.nn.Module."
        )
    return network


def place_of_code(code: str) -> str:
    """The file or module of ``FILE.py:NAME`` or ``MODULE:NAME``."""
    return code.rpartition(":")[0]


def absolute_code(code: str) -> str:
    """Code by its place from any folder, where it is a file: workers and later commands read it too.

    >>> absolute_code("torchvision.models:resnet18"), absolute_code("/lab/nets.py:Net")
    ('torchvision.models:resnet18', '/lab/nets.py:Net')
    """
    place, _, name = code.rpartition(":")
    return f"{Path(place).absolute()}:{name}" if place.endswith(".py") else code


def code_without_place(code: str) -> str:
    """Code as an export names it, which holds no path.

    >>> code_without_place("/lab/nets.py:Net"), code_without_place("torchvision.models:resnet18")
    ('nets.py:Net', 'torchvision.models:resnet18')
    """
    return code.rpartition("/")[2]


def with_weights(network: nn.Module, path: Path) -> nn.Module:
    from heatlas.pipeline.models.storage import PARALLEL, read_weights

    given = {name.removeprefix(PARALLEL): value for name, value in read_weights(path).items()}
    state = network.state_dict()
    missing = [name for name in state if name not in given and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in state]
    shapes = [
        f"{name} {tuple(given[name].shape)}, not {tuple(value.shape)}"
        for name, value in state.items()
        if name in given and given[name].shape != value.shape
    ]
    differing = [
        f"{what}: {', '.join(names[:_LISTED])}{f' and {len(names) - _LISTED} more' if len(names) > _LISTED else ''}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("another shape", shapes))
        if names
    ]
    if differing:
        raise BadInputError(
            f"{path}: not the weights of this network ({'; '.join(differing)}). Check model.network and arguments."
        )
    network.load_state_dict({**state, **given})
    return network


def _build(shape: Shape, settings: ForeignConfig, outputs: int, images: int = 1) -> StagedModel:
    import torch

    from heatlas.pipeline.models.families.family import Architecture
    from heatlas.pipeline.models.foreign.adapted import ForeignNetwork, OutputForm, adapted

    network = described_network(settings)
    if torch.empty(()).is_meta:  # only its weights are counted
        return ForeignNetwork([network], network)
    if settings.weights:
        with_weights(network, Path(settings.weights))
    volume = torch.rand((1, images, *shape), generator=torch.Generator().manual_seed(0))
    form = OutputForm(settings.output, settings.output_item, settings.bins, settings.times)
    model = adapted(network.float(), volume, outputs, form)
    model.architecture = Architecture(settings, shape)
    return model


def _require_fits(shape: Shape, settings: ForeignConfig) -> None:
    if not settings.network:
        raise UsageError('model.architecture = "foreign": name model.network and model.weights (docs/own_network.md).')


FOREIGN = Family(
    name="foreign",
    settings=ForeignConfig,
    build=_build,
    smallest_side=lambda _: 1,
    require_fits=_require_fits,
    described=lambda settings: (
        f"was a network of the user's own, {settings.network.rpartition(':')[2]}, trained elsewhere and not changed"
    ),
    covering_side=lambda side, _: side,
    fitted_by="nothing",
    refused={**NO_ATTENTION, **NOT_INHERENT},
    needs={"lrp": {"batch_norm": "auto"}},  # whether normalisations follow convolutions is not known before it is made
    stored=lambda settings: replace(settings, weights=""),
    several_images=True,
)
