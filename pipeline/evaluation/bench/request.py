"""What is asked of the bench: methods, parts and how much of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.evaluation.bench.judging import Extent
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.run.config.settings import Config

PARTS = ("nulls", "faithfulness", "interactions", "plant", "grids", "retrain", "consensus", "marker", "objective",
         "representations")  # fmt: skip
USUAL_PARTS = PARTS[:2]
ANY_TASK = ("nulls", "faithfulness", "plant")
"""Parts that are defined for several classes and for numbers as well."""
SEPARATE = frozenset({"grids", "retrain", "consensus", "marker", "objective", "representations"})
"""Parts with tables of their own; asked without others (but ``plant``), they leave the verdicts as they are."""
USUAL_METHODS = (
    "expected-gradients", "integrated-gradients-from-mean", "deeplift", "region-swap", "lrp", "guided-backpropagation",
    "gradient", "input-x-gradient", "integrated-gradients", "grad-cam",
)  # fmt: skip
"""Those that a run makes by default, the other maps relative to controls, and the most used of the rest."""
FEW_METHODS = ("expected-gradients", "deeplift", "lrp")
"""Of the parts that train networks for every method, unless methods are named."""
SHUFFLES, FURTHER_SEEDS = 3, 2
RANDOM_DRAWS, QUICK_DRAWS = 9, 4


@dataclass(frozen=True)
class Request:
    """What is asked of the bench.

    Parameters
    ----------
    methods : tuple of str
        Empty for `USUAL_METHODS` and the methods of the run, less those not defined for the family of networks.
    parts : tuple of str
        Of `PARTS`.
    quick : bool
        One swap of labels instead of three; remove and retrain with the smaller volume and four draws; consensus with
        one more seed and two numbers of epochs.
    families : tuple of str
        Further families for the consensus, as `pipeline.evaluation.consensus.networks.family_settings` reads them.
    draws : int or None
        Of random regions that are removed; None for `RANDOM_DRAWS`, or `QUICK_DRAWS` with `quick`.
    """

    methods: tuple[str, ...] = ()
    parts: tuple[str, ...] = USUAL_PARTS
    quick: bool = False
    families: tuple[str, ...] = ()
    draws: int | None = None

    @property
    def random_draws(self) -> int:
        """Draws of random regions for remove and retrain."""
        if self.draws is not None:
            return self.draws
        return QUICK_DRAWS if self.quick else RANDOM_DRAWS

    @property
    def further_seeds(self) -> int:
        """Further trainings of each fold for the consensus."""
        return 1 if self.quick else FURTHER_SEEDS

    def extent(self, shuffles: int = SHUFFLES) -> Extent:
        nulls = "nulls" in self.parts
        swaps = min(shuffles, 1 if self.quick else SHUFFLES) if nulls else 0
        sides = "interactions" in self.parts
        return Extent(swaps, nulls, "faithfulness" in self.parts, sides)


def methods_of(request: Request, config: Config) -> tuple[str, ...]:
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


def with_methods(config: Config, methods: Sequence[str]) -> Config:
    """The same settings with other methods: those of the run with their settings, and of LRP two values of β."""
    kept = tuple(text for text in config.attribution.settings if text.partition("=")[0].partition(":")[0] in methods)
    betas = config.attribution.betas
    ends = tuple(dict.fromkeys((min(betas), max(betas))))
    attribution = dataclasses.replace(config.attribution, methods=tuple(methods), settings=kept, betas=ends)
    return dataclasses.replace(config, attribution=attribution)
