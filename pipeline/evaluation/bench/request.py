"""What is asked of the bench: methods, parts and how much of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.evaluation.bench.judging import Extent
from heatlas.pipeline.evaluation.bench.part import Part
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.explaining.requested import explanations_of_run
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.run.config.settings import Config

USUAL_METHODS = (
    "expected-gradients", "integrated-gradients-from-mean", "deeplift", "region-swap", "lrp", "guided-backpropagation",
    "gradient", "input-x-gradient", "integrated-gradients", "grad-cam",
)  # fmt: skip
"""Those that a run makes by default, the other maps relative to controls, and the most used of the rest."""
FEW_METHODS = ("expected-gradients", "deeplift", "lrp")
"""Methods of the parts that train networks for every method, unless methods are named."""
SHUFFLES = 3


@dataclass(frozen=True)
class BenchRequest:
    """What is asked of the bench.

    Parameters
    ----------
    methods : tuple of str
        Empty for `USUAL_METHODS` and the methods of the run, less those not defined for the family of networks.
    parts : tuple of Part
    quick : bool
        One swap of labels instead of three, and less of other parts.
    families : tuple of str
        Further families of networks, for parts that ask other networks.
    draws : int or None
        Draws of random regions, for parts that draw some; None for as many as usual.
    """

    methods: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    quick: bool = False
    families: tuple[str, ...] = ()
    draws: int | None = None

    @property
    def in_order(self) -> list[Part]:
        """The parts in the order in which they are done."""
        return sorted(self.parts, key=lambda part: part.last)

    def extent(self, shuffles: int = SHUFFLES) -> Extent:
        needed = {name: True for part in self.parts for name in part.extent}
        swaps = min(shuffles, 1 if self.quick else SHUFFLES) if "nulls" in needed else 0
        return Extent(swaps, **needed)


def methods_of(request: BenchRequest, config: Config) -> tuple[str, ...]:
    """Names of the methods that are judged.

    Raises
    ------
    UsageError
        For a method that does not exist, or one asked for by name that is not defined for the family.
    """
    family = family_of(config.model)
    for name in request.methods:
        find_method(name, "--methods")
        family.require_method(name)
    known = [name for name in dict.fromkeys((*USUAL_METHODS, *config.attribution.methods)) if name in METHODS]
    return tuple(dict.fromkeys(request.methods)) or tuple(name for name in known if name not in family.refused)


def few_methods(request: BenchRequest, config: Config) -> tuple[Explanation, ...]:
    """The methods named, or `FEW_METHODS`, less those not defined for the family of networks."""
    refused = family_of(config.model).refused
    asked = dict.fromkeys(request.methods or FEW_METHODS)
    return explanations_of_run(with_methods(config, tuple(name for name in asked if name not in refused)))


def with_methods(config: Config, methods: Sequence[str]) -> Config:
    """The same settings with other methods: those of the run with their settings, and of LRP two values of β."""
    kept = tuple(text for text in config.attribution.settings if text.partition("=")[0].partition(":")[0] in methods)
    betas = config.attribution.betas
    ends = tuple(dict.fromkeys((min(betas), max(betas))))
    attribution = dataclasses.replace(config.attribution, methods=tuple(methods), settings=kept, betas=ends)
    return dataclasses.replace(config, attribution=attribution)
