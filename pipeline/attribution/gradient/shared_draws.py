"""Expected gradients of the mean of several networks, which share the draws that each would take alone.

The mean over networks of their expected gradients is one expectation, over networks, controls and places on the path.
Explained one by one, every network takes all points; here each takes a few of them, and together they are a stratified
sample of the same quantity: each network has one point in each equal part of the path, no two networks the same, and
each control is used about equally often. It is unbiased whatever the number of points, and its error falls with the
number of all points, not of those of one network.

The sum of the map is known for each network, as in `pipeline.attribution.gradient.paths`, so the same control variate
makes it add up. Its slope is that within networks: how much the answers of networks differ is no sampling error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    PathSample,
    require_complete,
    sample_paths,
    stratified_alphas,
)
from heatlas.pipeline.attribution.methods import described, finite, one_channel
from heatlas.pipeline.attribution.network_view import StartValue, explaining
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import fitting, mean_value
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.seeds import derived_seed

FEWEST = 3
"""Points of a network, times `alphas`: how the slope varies within a network is known from two and more."""


@dataclass(frozen=True)
class Draws:
    """The points of one network: for each the control that its path begins at, and the place on the path."""

    controls: tuple[int, ...]
    alphas: Tensor


def points_of_each(method: ExpectedGradients, controls: int, networks: int) -> int:
    """Points of each of several networks: together at least as many as one of them would take alone.

    >>> from heatlas.pipeline.attribution.reference.references import Reference
    >>> method = ExpectedGradients(Reference(torch.zeros(12, 1, 1, 1, 1), ("control",) * 12))
    >>> [points_of_each(method, 12, networks) for networks in (1, 2, 5, 20)]
    [12, 6, 3, 3]
    """
    stands_for = 1 if method.reference is None else method.reference.controls
    alone = controls * method.alphas * stands_for
    return min(alone, max(FEWEST * method.alphas, -(-alone // networks)))


def dealt(counts: Sequence[int], each: int, seed: int) -> Iterator[Draws]:
    """The points of each network, of which `counts` has the number of controls.

    >>> [draws.controls for draws in dealt([4, 4], 2, seed=0)]
    [(2, 0), (1, 3)]
    """
    source = torch.Generator().manual_seed(derived_seed(seed, "controls of networks"))
    table = stratified_alphas(len(counts), each, seed)
    waiting: list[int] = []
    for number, count in enumerate(counts):
        if number and count != counts[number - 1]:
            waiting = []
        while len(waiting) < each:
            waiting += torch.randperm(count, generator=source).tolist()
        yield Draws(tuple(waiting[:each]), table[number])
        waiting = waiting[each:]


def pooled(samples: Sequence[PathSample]) -> PathSample:
    """The sample of the mean of networks with equally many points each; slopes vary as they do within networks."""
    mean = torch.stack([sample.slopes.mean() for sample in samples]).mean()
    slopes = torch.cat([sample.slopes - sample.slopes.mean() + mean for sample in samples])
    maps, leanings = ([getattr(sample, name) for sample in samples] for name in ("mean", "leaning"))
    return PathSample(_mean(maps), _mean(leanings), slopes)


def expected_gradients_of_mean(
    networks: Sequence[tuple[nn.Module, ExpectedGradients]], volume: Tensor, target: int, start: StartValue
) -> Attribution:
    """Expected gradients of the mean of networks at the input, each with its own controls.

    `networks`: each with the method that would explain it alone; settings are those of the first. `volume`: one, (1, C,
    D, H, W). Gives a map that adds up to the mean over networks of what theirs would add up to.
    """
    method = networks[0][1]
    references = [fitting(own.reference, volume, own.name) for _, own in networks]
    counts = [len(reference.people) for reference in references]
    each = points_of_each(method, min(counts), len(networks))
    samples, own_scores, bases = [], [], []
    for (model, _), reference, draws in zip(networks, references, dealt(counts, each, method.seed), strict=True):
        with explaining(model, volume, target, 0, start) as view:
            baselines = reference.volumes[list(draws.controls)]
            samples.append(
                sample_paths(view.score, view.features[0], baselines, draws.alphas[:, None], method.batch)
            )
            own_scores.append(view.own_score.double())
            with torch.no_grad():
                bases.append(mean_value(reference, view).double())
    score, base = torch.stack(own_scores).mean(0), torch.stack(bases).mean(0)
    wanted, sample = float(on_host((score - base)[0])), pooled(samples)
    path = sample.path(sample.controlled(wanted) if method.control_variate else sample.mean)
    remedy = f"raise alphas (now {method.alphas})"
    require_complete(method.name, path, score.to(volume.dtype), base.to(volume.dtype), method.tolerance, remedy)
    settings = described(method, 0, start) | {"points_of_each_network": each}
    answer = Attribution(
        path.attributions, method.name, target, score.to(volume.dtype), settings,
        reference_value=base.to(volume.dtype), sampling_error=(sample.slopes.mean() - wanted).to(volume.dtype)[None],
    )  # fmt: skip
    return one_channel(finite(answer), at_input=True)


def _mean(maps: Sequence[Tensor]) -> Tensor:
    return torch.stack([values.double() for values in maps]).mean(0).to(maps[0].dtype)
