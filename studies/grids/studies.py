"""What is asked in a grid: every method at its stages (ML-Att), smoothing, configurations of LRP, and invariance.

*Invariance*: two networks that compute the same may be explained differently. Between features and logits a layer is
put that hands on the connected features and adds two units, plus and minus the sum of all disconnected ones, which
cancel. No logit changes, and neither does any gradient. The z+ rule sees the positive one of the two units only, and
sends relevance to features that cannot change the logit.

Sources: Rao, Böhle & Schiele 2022; Böhle 2024, appendix A.8 (invariance).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pandas as pd
import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.entry import RunContext, last_spatial_stage
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients, IntegratedGradientsFromMean
from heatlas.pipeline.attribution.gradient.smoothing import Averaged, SmoothGrad
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.network_view import StartValue, split_layers
from heatlas.pipeline.attribution.perturbation.masking import Masking, Occlusion
from heatlas.pipeline.attribution.perturbation.random_masks import Rise
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.graph.tracing import is_piecewise_linear
from heatlas.pipeline.run.config.statistics import GridsConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.grids.grid_scores import GridMethod
from heatlas.studies.grids.layout import Kind, Shape
from heatlas.studies.inherent import Inherent
from heatlas.studies.probes.network import conventional_stem

DEFAULTS = GridsConfig()
KERNEL_SHARES = (9 / 224, 17 / 224, 33 / 224, 65 / 224, 129 / 224, 257 / 224)
"""Edges of the Gaussians of the literature, as shares of the edge of a cell."""
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
GAMMAS = (0.0, 0.001, 0.01, 0.1, 0.25)
FEW_GAMMAS = (0.01, 0.25)
LEFT_OUT = (
    "not asked with --quick: a hundred passes and more of the whole grid through the network; run the same command "
    "without --quick"
)
FROM_AIR = "integrated-gradients from=air"
"""Integrated gradients at a stage from the features of air, as `heatlas explain` computes them."""
IN_STEM = "stem="
"""In names of inherent maps of hybrids: asked after so many stages of the piecewise linear stem."""
SMOOTHED = ("input-x-gradient", "integrated-gradients")


@dataclass(frozen=True)
class Depth:
    """A stage of a network, and how deep it lies: 0 is the input, 1 the last stage with places."""

    stage: int | str
    relative: float


def depths(model: nn.Module, every: bool = True) -> tuple[Depth, ...]:
    """Stages at which a map can be asked for, from the input to the last with a convolution; or these two alone."""
    last = last_spatial_stage(model)
    stages = range(last + 1) if every else sorted({0, last})
    return tuple(Depth(stage, stage / last if last else 0.0) for stage in stages)


def asked_at(one: Explanation, model: nn.Module, every: bool) -> tuple[Depth, ...]:
    """`depths`, and where a method is usually asked, if that is none of them: at the tokens of a transformer.

    Those of a probe lie inside of its first stage, and stand in place of the input.
    """
    found, usual = depths(model, every), one.entry.stage_of(model)
    if isinstance(usual, str):
        return (Depth(usual, 0.0), *found[1:])
    if any(usual == depth.stage for depth in found):
        return found
    return (found[0], Depth(usual, usual / last_spatial_stage(model)), *found[1:])


def stem_depths(model: StagedModel) -> tuple[Depth, ...]:
    """Boundaries inside of the piecewise linear stem of a hybrid, between its stages; none for any other network.

    Behind the stem a hybrid (Böhle 2024, section 5.2.4) is one linear map of its features. Asked farther back, layers
    of the stem belong to what is explained. Gradient times features is their contribution, up to constants, only if
    they are piecewise linear (`is_piecewise_linear`). A stem with softmax, GELU or gates has no depths.
    """
    stem = conventional_stem(model)
    if stem is None or not is_piecewise_linear(stem):
        return ()
    last = last_spatial_stage(model)
    return tuple(Depth(f"stages.0.{place - 1}", place / len(stem) / last) for place in range(1, len(stem)))


def regional(asked: Explanation) -> bool:
    """Whether a method hides the regions of one brain; a grid holds several brains."""
    return any(field.name == "regions" for field in dataclasses.fields(asked.entry.record))


def asked_in_grids(
    explanations: Sequence[Explanation], surroundings: RunContext, model: StagedModel, cell: Shape, kind: Kind,
    every: bool = True, settings: GridsConfig = DEFAULTS,
) -> tuple[GridMethod, ...]:  # fmt: skip
    """All that is asked in a grid, in the order of the tables.

    Settings are those of the literature. Where ours differ, a second row has them and says so in its name: integrated
    gradients at a stage start from zero features, and once more from those of air; the biases of LRP-Focus stand in its
    denominators, and once more do not. Inherent maps of hybrids are also asked inside of the stem (`stem_depths`).

    `explanations`: without methods for which `regional` is true. `surroundings`: with the controls of a cell. `cell`:
    voxels of a cell. `every`: every stage; otherwise two, `FEW_GAMMAS`, and in needle grids a note in place of methods
    that are slow there. The studies of smoothing and LRP are asked in needle grids only.
    """
    found: list[GridMethod] = []
    gammas = GAMMAS if every else FEW_GAMMAS
    for one in explanations:
        name = one.entry.name
        for depth in asked_at(one, model, every):
            if kind == "needle" and not every and one.entry.is_slow_at(depth.stage):
                method = one.build(surroundings)
                found.append(GridMethod(name, method, depth.stage, one.start, depth=depth.relative, note=LEFT_OUT))
                continue
            if name == "lrp":
                batch_norm: Any = one.settings.get("batch_norm", "fold")
                found += lrp_study(depth, batch_norm, gammas if kind == "needle" and depth.stage == 0 else ())
                continue
            built, sides = one.build(surroundings), _sides(model, cell, depth.stage)
            method = fitted(built, sides, depth.stage, settings)
            if isinstance(method, SmoothGrad):
                quick = kind == "needle" and not every
                found += smoothgrad_study(method, depth, one.start, LEFT_OUT if quick and depth.stage == 0 else "")
                continue
            kernels: tuple[int, ...] = ()
            if name in SMOOTHED and depth.stage == 0 and kind != "pair":
                kernels = smoothing_kernels(min(cell))
            more = tuple(smoothed_name(name, kernel) for kernel in kernels)
            found.append(GridMethod(name, method, depth.stage, one.start, more, kernels, depth.relative))
            if depth.stage and name == IntegratedGradients.name:
                from_air = fitted(built, sides, 0, settings)
                found.append(GridMethod(FROM_AIR, from_air, depth.stage, one.start, depth=depth.relative))
        if every and name == Inherent.name:
            for place, depth in enumerate(stem_depths(model), 1):
                title, method = f"{name} {IN_STEM}{place}", one.build(surroundings)
                found.append(GridMethod(title, method, depth.stage, one.start, depth=depth.relative))
    return tuple(found)


def fitted(method: Method, sides: Sequence[int], stage: int | str = 0, settings: GridsConfig = DEFAULTS) -> Method:
    """A method with the settings of the literature, for cells of some voxels.

    Boxes of occlusion, masks of RISE, points on a path (shares need no completeness); hidden features of a later stage
    are zero.
    """
    masking = getattr(method, "masking", None)
    if stage and isinstance(masking, Masking):
        zero: Any = dataclasses.replace(method, masking=dataclasses.replace(masking, inner="zero"))  # type: ignore[type-var]
        method = zero
    if isinstance(method, Occlusion):
        a, b, c = (max(1, round(side / settings.boxes)) for side in sides)
        return dataclasses.replace(method, size=(a, b, c), stride=(a, b, c))
    if isinstance(method, Rise):
        return dataclasses.replace(method, masks=settings.masks)
    if isinstance(method, IntegratedGradients):
        return dataclasses.replace(method, steps=settings.steps, tolerance=float("inf"))
    if isinstance(method, (IntegratedGradientsFromMean, SmoothGrad)):
        return dataclasses.replace(method, steps=settings.steps)
    return method


def _sides(model: StagedModel, cell: Shape, stage: int | str) -> tuple[int, ...]:
    weight = next(model.parameters())
    features = torch.zeros((1, 1, *cell), dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        for _, one in split_layers(model, stage)[0]:
            features = one(features)
    return tuple(features.shape[-3:])


def smoothing_kernels(edge: int) -> tuple[int, ...]:
    """Odd edges of Gaussians for cells of `edge` voxels.

    Examples
    --------
    >>> smoothing_kernels(96), smoothing_kernels(64)
    ((5, 7, 15, 29, 55, 111), (3, 5, 9, 19, 37, 73))
    """
    sizes = (round(share * edge) for share in KERNEL_SHARES)
    return tuple(dict.fromkeys(size + (size % 2 == 0) for size in sizes))


def smoothed_name(name: str, kernel: int) -> str:
    return f"smooth-{name} kernel={kernel}"


def smoothgrad_study(method: SmoothGrad, depth: Depth, start: StartValue, slow: str = "") -> Iterator[GridMethod]:
    """SmoothGrad of the gradient, and of the maps that the literature smooths, at one stage.

    `slow`: why that of integrated gradients, with passes for each copy and point, is left out; empty if it is not.
    """
    for of in get_args(Averaged):
        name = method.name if of == "gradient" else f"{method.name} of={of}"
        note = slow if of == IntegratedGradients.name else ""
        yield GridMethod(name, dataclasses.replace(method, of=of), depth.stage, start, depth=depth.relative, note=note)


def lrp_study(depth: Depth, batch_norm: Any = "fold", gammas: Sequence[float] = GAMMAS) -> Iterator[GridMethod]:
    """Configurations of LRP at one stage: the β-rule everywhere, *focus* (ε, z+, zB), and *composite* (ε, γ, zB).

    The bounds of zB are [0, 1] in the brain and 0 outside it, voxel by voxel. γ = 0 is LRP-0 on convolutions, and γ to
    infinity approaches *focus*. Biases stand in the denominators of both, as in the literature; a second row of *focus*
    leaves them out, as `heatlas explain` does. In a head that slides over the grid the fully connected layers are
    convolutions, and get their rule.
    """
    names = [f"lrp beta={beta:g}" for beta in BETAS]
    place = {"stage": depth.stage, "depth": depth.relative}
    yield GridMethod(names[0], Lrp(beta=BETAS, batch_norm=batch_norm), more=tuple(names[1:]), **place)  # type: ignore[arg-type]
    focus = Lrp(rules="focus", bias=True, batch_norm=batch_norm)
    yield GridMethod("lrp focus", focus, **place)  # type: ignore[arg-type]
    yield GridMethod("lrp focus bias=false", dataclasses.replace(focus, bias=False), **place)  # type: ignore[arg-type]
    for gamma in gammas:
        rules = Lrp(rules="composite", gamma=gamma, bias=True, batch_norm=batch_norm)
        yield GridMethod(f"lrp composite gamma={gamma:g}", rules, **place)  # type: ignore[arg-type]


def spearman_matrix(scores: pd.DataFrame, setting: str, kind: str) -> pd.DataFrame:
    """Rank correlation of the shares of every two methods and stages over the same grids.

    `scores`: of `studies.grids.grid_scores.grid_scores`; the share of undefined maps counts as 0. Rows and columns are
    (method, stage) in the order of the table; NaN where a method has the same share on all grids.
    """
    of_setting = scores[(scores["setting"] == setting) & (scores["kind"] == kind) & scores["grid"].notna()]
    wide = of_setting.assign(share=of_setting["share"].fillna(0)).pivot_table(
        index="grid", columns=["method", "stage"], values="share", sort=False
    )
    return wide.corr(method="spearman")


INVARIANCE_ROW = ("method", "logit_difference", "share_plain", "share_cancelling", "note")


def cancelling_pair(weight: Tensor, bias: Tensor, connected: Tensor) -> tuple[nn.Module, nn.Module]:
    """Heads with the same logits on a map of features: a linear one, and one with two more units that cancel.

    `weight`: (K, F): of the connected features; those of the others are set to 0. `bias`: (K,). `connected`: (F,),
    bool: features of the map, flattened, that the head reads: some of them.
    """
    if bool(connected.all()) or not bool(connected.any()):
        raise BadInputError("the head must read some features and not others; a cell of a grid does.")
    classes, count = weight.shape
    plain = nn.Linear(count, classes, dtype=weight.dtype)
    plain.weight.data = weight.detach() * connected
    plain.bias.data = bias.detach().clone()
    places = connected.nonzero()[:, 0]
    first = nn.Linear(count, len(places) + 2, bias=False, dtype=weight.dtype)
    first.weight.data.zero_()
    first.weight.data[torch.arange(len(places)), places] = 1
    first.weight.data[-2, ~connected], first.weight.data[-1, ~connected] = 1, -1
    second = nn.Linear(len(places) + 2, classes, dtype=weight.dtype)
    second.weight.data = torch.cat([weight.detach()[:, places], weight.new_ones(classes, 2)], dim=1)
    second.bias.data = bias.detach().clone()
    heads = [plain], [first, second]
    plain_head, cancelling = (nn.Sequential(nn.Flatten(), *layers).eval() for layers in heads)
    return plain_head, cancelling


def share_on_disconnected(
    network: nn.Module, features: Tensor, connected: Tensor, target: int, method: Method, start: StartValue = "logit"
) -> float:
    """Share of absolute attribution on features that cannot change the logit; NaN for a map of zeros.

    `features`: (1, 1, d, h, w). `connected`: (F,), bool.
    """
    size = attribute(network, features, target, method, 0, start).values.flatten().double().abs()
    total = size.sum()
    return float(size[~connected].sum() / total) if total > 0 else float("nan")


def invariance_rows(
    features: Tensor, slopes: Tensor, connected: Tensor, target: int, asked: Sequence[GridMethod]
) -> list[dict[str, object]]:
    """What methods make of a `cancelling_pair` on given features, a row per map: `INVARIANCE_ROW`.

    `features`: (1, 1, d, h, w). `slopes`: (K, F), weights of the head. `connected`: (F,), bool. `asked`: their
    controls, if any, are features too.
    """
    networks = cancelling_pair(slopes, slopes.new_zeros(len(slopes)), connected)
    with torch.no_grad():
        logits = [network(features) for network in networks]
    difference = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    rows = []
    for one in asked:
        row: dict[str, object] = {"method": one.name, "logit_difference": difference}
        try:
            for name, network in zip(("share_plain", "share_cancelling"), networks, strict=True):
                row[name] = share_on_disconnected(network, features, connected, target, one.method, one.start)
            row["note"] = None
        except (BadInputError, UsageError) as error:
            row |= {"share_plain": float("nan"), "share_cancelling": float("nan"), "note": str(error)}
        rows.append(row)
    return rows
