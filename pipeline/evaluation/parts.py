"""All parts of the bench. Adding one is adding a record here; the bench, the command line and the report find it.

A part that stands in its own room keeps its functions there; the record says how they are called.
"""

from __future__ import annotations

from collections.abc import Sequence

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.evaluation.bench.part import (
    VERDICT_TABLES,
    Bench,
    Part,
    Shown,
    few_methods,
    methods_of,
    with_methods,
)
from heatlas.pipeline.evaluation.bench.table import SHIFT_CURVE_TABLE, write_shift_curve
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.planting.cohort import planted_cohort
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.families.registry import family_of, is_given
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.studies.before_after.table import BEFORE_AFTER_TABLE
from heatlas.studies.before_after.training import OBJECTIVE_WEIGHTS_TABLE, before_and_after, require_maps
from heatlas.studies.consensus.agreement import CONSENSUS_TABLES, agree
from heatlas.studies.consensus.networks import require_different
from heatlas.studies.grids.stage import GRID_METHODS, evaluate_grids, require_single
from heatlas.studies.grids.tables import GRID_TABLES
from heatlas.studies.interactions.sides import INTERACTIONS_TABLE, require_pairs
from heatlas.studies.interactions.stage import SOURCES_TABLE, interactions
from heatlas.studies.marker.marked import marker_cohort
from heatlas.studies.marker.marker_table import MARKER_TABLE
from heatlas.studies.representations.table import REPRESENTATIONS_TABLE, judge_backbone, require_frozen
from heatlas.studies.retraining.removal import SHARES
from heatlas.studies.retraining.stage import RETRAINING_TABLE, remove_and_retrain

FURTHER_SEEDS = 2
"""Further trainings of each fold for the consensus; one with ``--quick``."""
RANDOM_DRAWS, QUICK_DRAWS = 19, 4  # of fewer than 19 no p can be .05


def _grids(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    """Judge the usual methods and those of `GRID_METHODS`."""
    methods = methods_of(bench.request, cohort.config)
    if not bench.request.methods:
        refused = family_of(cohort.config.model).refused
        methods = tuple(dict.fromkeys((*methods, *(name for name in GRID_METHODS if name not in refused))))
    explanations = explanations_of_run(with_methods(cohort.config, methods))
    return evaluate_grids(cohort, explanations, bench.request.quick, bench.executor, bench.digests)


def _retrain(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    request = bench.request
    draws = (QUICK_DRAWS if request.quick else RANDOM_DRAWS) if request.draws is None else request.draws
    shares = SHARES[:1] if request.quick else SHARES
    methods = few_methods(request, cohort.config)
    return remove_and_retrain(cohort, methods, draws, bench.executor, bench.digests, shares)


def _consensus(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    request = bench.request
    seeds = 1 if request.quick else FURTHER_SEEDS

    def methods(config: Config) -> tuple[Explanation, ...]:
        return few_methods(request, config)

    return agree(cohort, methods, seeds, request.families, request.quick, bench.executor, bench.digests)


OWN: Sequence[Part] = (
    Part(
        "nulls", "networks on shuffled labels and without training, which no good map can be told from",
        extent={"nulls"}, usual=True, any_task=True, several_images=True,
    ),
    Part(
        "faithfulness", "what the network answers when what a map marks is hidden or shown alone",
        extent={"faithful"}, usual=True, any_task=True, after=write_shift_curve, tables=(SHIFT_CURVE_TABLE,),
        shown=(Shown("Do maps move with a moved scan?", "shift_curve", "--parts faithfulness --config shifts.toml"),),
    ),
    Part(
        "interactions", "the two sides of each region alone and together", extent={"controls"}, after=interactions,
        require=lambda _, config: require_pairs(config), tables=(INTERACTIONS_TABLE, SOURCES_TABLE),
        shown=(
            Shown(
                "Does the network need both sides of a region?", "interactions_of_sides", "--parts nulls interactions"
            ),
            Shown(
                "Is evidence related to size or to brightness?", "evidence_sources",
                "--parts nulls interactions --methods expected-gradients",
            ),
        ),
    ),
    Part(
        "plant", "loss planted in copies of the controls of the run", cohort=planted_cohort, any_task=True,
        trains=True,
    ),
    Part(
        "grids", "several scans side by side: which of them every map marks", tables=GRID_TABLES, run=_grids,
        require=lambda _, config: require_single(config), last=True,  # since a weak network may allow no grid at all
        at_stages=True,
        shown=(
            Shown("Of several scans, does a map mark the right one?", "grids"),
            Shown("Does what is known of grids hold here?", "grid_directions"),
            Shown("Does a map depend on how a function is written?", "invariance"),
        ),
    ),
    Part(
        "retrain", "networks trained without the regions that a map ranks first", tables=(RETRAINING_TABLE,),
        run=_retrain, trains=True, shown=(Shown("Do networks need the regions ranked first?", "retraining"),),
        options={"draws": "only remove and retrain draws regions"},
    ),
    Part(
        "consensus", "networks of other seeds, epochs and families", tables=CONSENSUS_TABLES,
        run=_consensus, trains=True,
        require=lambda request, config: require_different(request.families, config),
        shown=(Shown("Do other networks show the same regions?", "consensus"),),
        options={"families": "only the consensus asks other families"},
    ),
    Part(
        "marker", "a scanner marker that goes with the diagnosis in training only", tables=(MARKER_TABLE,),
        trains=True, run=lambda bench, cohort: marker_cohort(cohort, bench.executor, bench.digests),
    ),
    Part(
        "objective", "networks trained with maps and without", tables=(BEFORE_AFTER_TABLE, OBJECTIVE_WEIGHTS_TABLE),
        trains=True, require=lambda _, config: require_maps(config),
        run=lambda bench, cohort: before_and_after(cohort, bench.executor, bench.digests),
    ),
    Part(
        "representations", "what a backbone learned without labels", tables=(REPRESENTATIONS_TABLE,),
        require=lambda _, config: require_frozen(config),
        run=lambda bench, cohort: judge_backbone(cohort, bench.scans, bench.executor, bench.digests),
        shown=(Shown("What does the backbone know?", "representations"),),
    ),
)  # fmt: skip

PARTS: Sequence[Part] = (*OWN, *plugged_in("parts", Part, [part.name for part in OWN]))
BENCH_TABLES = (*VERDICT_TABLES, *(table for part in PARTS for table in part.tables))
"""Tables of ``heatlas evaluate``; a run has none of them."""


def chosen_parts(names: Sequence[str]) -> tuple[Part, ...]:
    """Parts by their names; the usual ones for none.

    Raises UsageError for an unknown name.
    """
    by_name = {part.name: part for part in PARTS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--parts {name}: unknown; known are {', '.join(by_name)}.")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or tuple(part for part in PARTS if part.usual)


def require_task(parts: Sequence[Part], config: Config, split: Split) -> None:
    """Refuse parts that are not defined for the task, the images or the networks of a run."""
    of_one = [part.name for part in parts if not part.several_images]
    if config.cohort.further_suffixes and of_one:
        parts_defined = ", ".join(part.name for part in PARTS if part.several_images)
        raise UsageError(
            f"--parts {of_one[0]}: is for networks that see one image, and these see several "
            f"(cohort.further_suffixes). Give --parts {parts_defined}."
        )
    undefined = task_of(config.cohort).kind.undefined
    asked = [part.name for part in parts if not part.any_task]
    if split.folds and undefined and asked:
        parts_defined = ", ".join(part.name for part in PARTS if part.any_task)
        raise UsageError(f"--parts {asked[0]}: {undefined} Defined for every task are {parts_defined}.")
    trains = [part.name for part in parts if part.trains and is_given(config)]
    if trains:
        parts_defined = ", ".join(part.name for part in PARTS if not part.trains)
        raise UsageError(
            f"--parts {trains[0]}: trains networks with the recipe of the run, and those of this run were trained "
            f"elsewhere. Defined for them are {parts_defined}."
        )


def parts_in_words() -> str:
    """All parts with what they do, for the help of the command line."""
    usual = " and ".join(part.name for part in PARTS if part.usual)
    return f"{'; '.join(f'{part.name} ({part.help})' for part in PARTS)} (default: {usual})"
