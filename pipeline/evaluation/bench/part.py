"""A part of the bench, and what is asked of the bench: methods, parts and how much of each.

One record says all that the bench, the command line and the report know of a part. The bench asks every part at fixed
points; it knows none by name. `pipeline.evaluation.parts` registers them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.evaluation.bench.judging import CohortMaps, Extent
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.explaining.requested import explanations_of_run
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.jobs import Outcome

if TYPE_CHECKING:
    from heatlas.pipeline.evaluation.bench.stage import Bench
    from heatlas.pipeline.evaluation.cohorts import JudgedCohort


def _nothing(*_: Any) -> None:
    """Nothing is refused."""


@dataclass(frozen=True)
class Shown:
    """A table of a part in the report.

    `title`: the question it answers. `table`: name of its declaration. `command`: what makes it, after ``heatlas
    evaluate OUT``; empty for ``--parts`` with the name of the part.
    """

    title: str
    table: str
    command: str = ""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of ``heatlas evaluate``.

    Parameters
    ----------
    name : str
        After ``--parts``.
    help : str
        What it does, in one line.
    require : callable
        ``require(request, config)``: refuse it with a `UsageError`, before anything is planted or trained.
    extent : collection of {"nulls", "faithful", "controls"}
        What it needs of the maps of every cohort; fields of `pipeline.evaluation.bench.judging.Extent`.
    cohort : callable or None
        ``cohort(bench)``: makes a further cohort.
    after : callable or None
        ``after(bench, cohort, rows)``: goes on with the maps of the first cohort.
    run : callable or None
        ``run(bench, cohort)``: all of its work, on the first cohort, with tables of its own. If no other part is
        asked for, the verdicts stay as they are.
    tables : sequence of Table
        Written by it alone.
    shown : sequence of Shown
        What the section *Further results of the evaluation* shows of it, in this order.
    options : mapping of str to str
        Arguments of the command that only it takes, each with the sentence that says so.
    usual, any_task, several_images, trains, last, at_stages : bool
        Whether it is asked by default; defined for several classes and for numbers too; defined for networks that see
        several images; trains networks with the recipe of the run; done after the others, since it may find nothing to
        do; asks inherent maps of hybrids at stages of its own, with a row that says so where they are not defined.
    """

    name: str
    help: str
    require: Callable[[BenchRequest, Config], object] = _nothing
    extent: Collection[Literal["nulls", "faithful", "controls"]] = ()
    cohort: Callable[[Bench], tuple[JudgedCohort, list[Outcome]]] | None = None
    after: Callable[[Bench, JudgedCohort, CohortMaps], list[Outcome]] | None = None
    run: Callable[[Bench, JudgedCohort], list[Outcome]] | None = None
    tables: Sequence[Table] = ()
    shown: Sequence[Shown] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    usual: bool = False
    any_task: bool = False
    several_images: bool = False
    trains: bool = False
    last: bool = False
    at_stages: bool = False


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

    `methods`: empty for `USUAL_METHODS` and the methods of the run, less those not defined for the family of networks.
    `quick`: one swap of labels instead of three, and less of other parts. `families`: further families of networks, for
    parts that ask other networks. `draws`: draws of random regions, for parts that draw some; None for as many as
    usual.
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

    Raises UsageError for a method that does not exist, or one asked for by name that is not defined for the family.
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
