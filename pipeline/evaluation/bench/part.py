"""A part of the bench: one record says all that the bench, the command line and the report know of it.

The bench asks every part at fixed points; it knows none by name. `pipeline.evaluation.parts` registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.jobs import Outcome

if TYPE_CHECKING:
    from heatlas.pipeline.evaluation.bench.judging import CohortMaps
    from heatlas.pipeline.evaluation.bench.request import BenchRequest
    from heatlas.pipeline.evaluation.bench.stage import Bench
    from heatlas.pipeline.evaluation.cohorts import JudgedCohort


def _nothing(*_: Any) -> None:
    """Nothing is refused."""


@dataclass(frozen=True)
class Shown:
    """A table of a part in the report.

    Parameters
    ----------
    title : str
        The question it answers.
    table : str
        Name of its declaration.
    command : str
        What makes it, after ``heatlas evaluate OUT``; empty for ``--parts`` with the name of the part.
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
