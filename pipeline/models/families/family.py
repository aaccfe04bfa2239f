"""A family of networks: one small record, which is all that the rest of the pipeline knows of it.

Without torch, so that ``heatlas check`` can ask in a moment whether a network fits a grid: functions that build
import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.models.inputs import NetworkInput
    from heatlas.pipeline.models.storage import LoadedModel
    from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
    from heatlas.pipeline.run.work.digests import DigestCache

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Architecture:
    """What a network was built from; enough to build it again. Each image that enters is a channel."""

    settings: ModelConfig
    input_shape: Shape
    images: int = 1


NOT_INHERENT = {
    "inherent": "it reads the map that a dynamic linear network is for one scan, and these layers are not dynamic "
    'linear. Use expected-gradients, or a B-cos network (architecture = "bcos-simple")'
}
"""Refused by all other families."""

NO_ATTENTION = dict.fromkeys(
    ("raw-attention", "rollout", "cgw1", "vit-cx"),
    "it explains vision transformers, and this network has no attention between tokens. Use grad-cam, or a vision "
    'transformer (architecture = "vit")',
)
"""Refused by all families but vision transformers."""


HIDDEN_LAYER = {
    "cam": "CAM needs global average pooling and one linear layer after the last stage, and this network has a "
    "hidden layer there. Use grad-cam"
}
"""Refused by families with linear layers after the features."""

INHERENT = "Use inherent, which is exact for this family"


@dataclass(frozen=True)
class OnBackbone:
    """The trained network that each network of a family stands on, as a probe does; by default there is none.

    Every function takes the settings of the network first.
    """

    body: Callable[[Any], ModelConfig | None] = lambda _: None
    """Settings of the backbone; opens no file."""
    keyed: Callable[[Any], ModelConfig] = lambda settings: settings
    """The settings with the backbone written out and without its place, for receipts and exports."""
    placed: Callable[[Any], ModelConfig] = lambda settings: settings
    """The settings with the backbone written out and its place from any folder, for a run."""
    require: Callable[[Any, bool], None] = lambda _, shuffled: None
    """Refuse a missing backbone, and one that knows the true labels where those of the run are shuffled."""
    for_shuffled: Callable[[Any], ModelConfig] = lambda settings: settings
    """The recipe for shuffled labels."""
    files: Callable[[Any, int], FoldFiles | None] = lambda _, fold: None
    """Files of the backbone of a fold; None where there are weights alone."""
    digest: Callable[[Any, int], str | None] = lambda _, fold: None
    """Digest of the weights of the backbone of a fold, for receipts."""
    weights: Callable[
        [Any, NetworkInput, int, bool, Callable[[FoldFiles], LoadedModel]], Mapping[str, Tensor] | None
    ] = lambda *_: None
    """Its weights, for an input, a fold and maybe shuffled labels, by their names in the network; None where it must
    start from fresh ones. The last argument reads a network, and refuses one that the fold must not build on."""
    keep: Callable[[RunLayout, Any, Sequence[int], DigestCache], None] = lambda *_: None
    """Copy the backbones of these folds into the run before it trains."""
    kept: Callable[[Any, RunLayout], ModelConfig] = lambda settings, layout: settings
    """The settings with the copy that a finished run keeps."""


NO_BACKBONE = OnBackbone()


@dataclass(frozen=True)
class Family:
    """A family of networks.

    Its module holds this record, the record of its settings, each with its range (`pipeline.run.config.ranges`), and
    the functions that build it; settings files, commands, storage and report find it by its line in
    `pipeline.models.families.registry`. ``tests/attribution/test_methods_of_run.py`` tries every method on it.
    """

    name: str
    """As in ``[model] architecture``."""
    settings: type[ModelConfig]
    """Its settings: a record that stands beside it, and whose ``architecture`` may be `name`."""
    build: Callable[..., StagedModel]
    """``build(shape, settings, outputs)``: a network for a grid, with weights drawn by torch's generator; with
    `several_images` also ``build(shape, settings, outputs, images)``."""
    smallest_side: Callable[[Any], int]
    """``smallest_side(settings)``: fewest voxels along an axis of the input."""
    require_fits: Callable[[Shape, Any], None]
    """``require_fits(shape, settings)``: refuse a grid or settings that no network can be built for."""
    described: Callable[[Any], str]
    """``described(settings)``: the sentence of the methods section, with citations as ``[@key]``."""
    covering_side: Callable[[int, Any], int]
    """``covering_side(side, settings)``: fewest voxels, at least `side`, of which every one reaches a feature."""
    seen_side: Callable[[int, Any], int] = lambda side, _: side
    """``seen_side(side, settings)``: voxels of an axis, counted from the first, that reach a feature."""
    encoding: str = "intensity"
    """How a scan enters: ``intensity``, one channel of intensities, or ``pair``, each intensity v as [v, 1 - v]."""
    loss: str = "cross-entropy"
    """Usual loss for classes: ``cross-entropy`` or ``off-target`` (`pipeline.training.objectives`)."""
    fitted_by: Literal["gradients", "ridge", "nothing"] = "gradients"
    """``gradients``: in epochs. ``ridge``: the last layer is solved exactly (`pipeline.training.exact`), and nothing
    before it learns. ``nothing``: it is used as it was given (`pipeline.training.given`)."""
    stored: Callable[[Any], Any] = lambda settings: settings
    """``stored(settings)``: the settings that build a stored network again, without files that it no longer needs."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Attribution methods that are not defined for the family, each with the reason."""
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that a method needs here and that are not its defaults."""
    several_images: bool = False
    """Whether it takes several images as channels."""
    resolve: Callable[[Any], Family] | None = None
    """``resolve(settings)``: the family as the settings make it, if it depends on them."""
    convert: Callable[[StagedModel, Any, Shape], StagedModel] | None = None
    """``convert(network, settings, shape)``: a network of the family with the weights of a conventional one, if
    training may start from such."""
    backbone: OnBackbone = NO_BACKBONE
    """Of a family whose networks stand on trained ones."""

    def require_images(self, images: int) -> None:
        if images > 1 and not self.several_images:
            raise UsageError(
                f"cohort.further_suffixes: networks of the family {self.name} see one image, not {images} as channels. "
                'Choose another model.architecture, such as "founding", "sfcn" or "resnet10", or take the setting out.'
            )

    def require_method(self, method: str) -> None:
        if method in self.refused:
            raise UsageError(f"{method} is not defined for networks of the family {self.name}: {self.refused[method]}")

    def batch_norm(self, asked: Literal["auto", "fold", "identity"]) -> Literal["auto", "fold", "identity"]:
        """How LRP treats batch normalisation: as asked, or (``auto``) folded unless the family needs it otherwise.

        ``auto`` of a family whose networks differ: each is folded where it allows it.
        """
        needed: Literal["auto", "fold", "identity"] = self.needs.get("lrp", {}).get("batch_norm", "fold")
        return needed if asked == "auto" else asked


def padded_family(
    name: str,
    settings: type[ModelConfig],
    build: Callable[..., StagedModel],
    smallest: Callable[[Any], int],
    described: str | Callable[[Any], str],
    refused: Mapping[str, str] | None = None,
    needs: Mapping[str, Mapping[str, Any]] | None = None,
    step: Callable[[Any], int] = lambda _: 1,
    has_attention: bool = False,
    several_images: bool = False,
) -> Family:
    """A family that sees every voxel (or all that fill a step), on grids that leave two voxels per axis."""

    def require_fits(shape: Shape, settings: Any) -> None:
        if min(shape) < smallest(settings):
            raise BadInputError(
                f"model: a grid of {'x'.join(map(str, shape))} voxels is too small for {name}: its last stage needs "
                f"two voxels along each axis, so each side must have at least {smallest(settings)}. Choose a finer "
                "resolution, or an architecture for smaller grids (heatlas models lists them)."
            )

    return Family(
        name,
        settings,
        build,
        smallest,
        require_fits,
        described=(lambda _: described) if isinstance(described, str) else described,
        covering_side=lambda side, settings: max(-(-side // step(settings)) * step(settings), smallest(settings)),
        seen_side=lambda side, settings: side // step(settings) * step(settings),
        refused={**({} if has_attention else NO_ATTENTION), **(refused or {}), **NOT_INHERENT},
        needs=needs or {},
        several_images=several_images,
    )


def dynamic_family(
    name: str,
    settings: type[ModelConfig],
    build: Callable[[Shape, Any, int], StagedModel],
    smallest: Callable[[Any], int],
    described: Callable[[Any], str],
    layers: tuple[str, str],
    refused: Mapping[str, str] = NO_ATTENTION,
    needs: Mapping[str, Mapping[str, Any]] | None = None,
    step: Callable[[Any], int] = lambda _: 1,
) -> Family:
    """A dynamic linear family: its input is encoded as a pair, and `inherent` explains it.

    `layers` says why rules for ReLU networks do not cover its layers, and what classifies each voxel in place of one
    linear layer.
    """
    rules = f"its rules are defined for ReLU networks; {layers[0]}, which no rule covers. {INHERENT}"
    noise = f"noise leaves intensities from 0 to 1, which the pair [v, 1 - v] is defined for. {INHERENT}"
    head = (
        f"CAM needs global average pooling and one linear layer after the last stage, and here {layers[1]}. "
        f"{INHERENT}, or grad-cam"
    )
    signed = "the features of its last stage may be negative, and the formula needs amounts. Use grad-cam"
    reasons = {
        **dict.fromkeys(("lrp", "guided-backpropagation", "deeplift"), rules),
        **{"cam": head, "smoothgrad": noise},
        **dict.fromkeys(("grad-cam++", "xgrad-cam", "opti-cam"), signed),
        **refused,
    }
    family = padded_family(name, settings, build, smallest, described, needs=needs, step=step)
    return replace(family, encoding="pair", loss="off-target", refused=reasons)
