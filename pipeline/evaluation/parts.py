"""All parts of the bench: those of the core, and those that plug in (``heatlas.parts``), studies first.

A part is one record, which says how its functions are called; the bench, the command line and the report find it.
"""

from __future__ import annotations

from collections.abc import Sequence

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.evaluation.bench.part import VERDICT_TABLES, Part, Shown
from heatlas.pipeline.evaluation.bench.table import SHIFT_CURVE_TABLE, write_shift_curve
from heatlas.pipeline.evaluation.claims.of_run import CLAIMS_TABLE
from heatlas.pipeline.evaluation.planting.cohort import planted_cohort
from heatlas.pipeline.models.families.registry import is_given
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import unknown
from heatlas.pipeline.run.plugins import plugged_in

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
        "plant", "loss planted in copies of the controls of the run", cohort=planted_cohort, any_task=True,
        trains=True,
    ),
)  # fmt: skip

PARTS: Sequence[Part] = (*OWN, *plugged_in("parts", Part, [part.name for part in OWN]))
BENCH_TABLES = (*VERDICT_TABLES, *(table for part in PARTS for table in part.tables), CLAIMS_TABLE)
"""Tables of ``heatlas evaluate`` and ``heatlas claims``; a run has none of them."""


def chosen_parts(names: Sequence[str]) -> tuple[Part, ...]:
    """Parts by their names; the usual ones for none.

    Raises UsageError for an unknown name.
    """
    by_name = {part.name: part for part in PARTS}
    for name in names:
        if name not in by_name:
            raise UsageError(unknown("--parts", name, by_name))
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
    usual = " and ".join(part.name for part in PARTS if part.usual)
    return f"{'; '.join(f'{part.name} ({part.help})' for part in PARTS)} (default: {usual})"
