"""The model card of an exported run (``docs/README.md`` of the folder), in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import pandas as pd

from heatlas.atlases.templates import find_template
from heatlas.pipeline.evaluation.bench.verdicts import VERDICTS_TABLE
from heatlas.pipeline.models.families.registry import parameter_count
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import listing

NOT_COMPUTED = "Not computed: the run stopped before its statistics."
_SHOWN = {
    "balanced_accuracy", "sensitivity", "specificity", "auc", "auc_within_folds", "accuracy", "mae", "mae_of_mean",
    "r", "r2",
}  # fmt: skip
_LIMITS = (
    "Trained on the people above, on their scanners and with their way of registration; elsewhere it may be wrong, "
    "which `heatlas apply` on a cohort of your own with labels will show.",
    "Probabilities are not calibrated for other proportions of the classes.",
    "A map says what the network used, not where disease is.",
    "Maps relative to controls compare with one mean image, without the spread of single controls.",
    "People are listed as salted digests, so that they are recognised and left out. Whoever knows an identifier can "
    "ask whether it is among them, and identifiers of few digits can all be tried.",
    "For research; not a medical device.",
)


def model_card(run: RunRecord, controls: int) -> str:
    """The card, filled from the tables of a run; what the run does not have is said to be missing.

    `controls`: in the mean image.
    """
    config, task = run.config, run.task
    shape = configured_input(config).shape
    parameters = parameter_count(config.model, shape, len(task.outputs))
    told = listing(list(task.outputs))
    return "\n".join([
        f"# {told} from {config.cohort.kind.images}",
        "",
        f"{len(run.models)} networks `{config.model.architecture}` ({parameters:,} parameters each), one per fold of "
        f"one run of Heatlas {version('heatlas')}, seed {config.seed}. Input: brain in {run.layout.space} at "
        f"{config.registration.resolution_mm:g} mm, {' × '.join(map(str, shape))} voxels, scaled to 0–1 in the brain. "
        "Nothing here is the image of a single person.",
        "",
        "    heatlas apply THIS_FOLDER NEW OUT",
        "",
        *(["The people of this run are **synthetic** (demo cohort).", ""] if run.is_synthetic else []),
        "## Cohort",
        "",
        *_cohort(run),
        "",
        f"The reference image is the mean of {controls} training controls.",
        "",
        "## Performance",
        "",
        "Out of fold: each scan by the network that was not trained with its person.",
        "",
        *_performance(run),
        "",
        "## Beside baselines, on the same folds",
        "",
        *_baselines(run),
        "",
        "## Methods",
        "",
        *_verdicts(run),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _LIMITS),
        "",
        "## Licences and credit",
        "",
        *_credit(run),
        "",
    ])  # fmt: skip


def _table(rows: pd.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Some columns of a table in Markdown, under other headings; n/a where nothing is known."""
    lines = [f"| {' | '.join(columns.values())} |", f"|{'---|' * len(columns)}"]
    for row in rows[list(columns)].to_dict("records"):
        lines.append(f"| {' | '.join(_cell(value) for value in row.values())} |")
    return lines


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "n/a"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _cohort(run: RunRecord) -> Iterator[str]:
    scans = run.tables["scans"]
    kept = scans[scans["kept"].astype(bool) & scans["label"].notna()]
    people = kept.drop_duplicates("participant_id")
    groups = [*people.groupby("label", sort=True)] if run.task.classes else [("all", people)]
    rows = [
        {
            "class": name, "people": len(own), "scans": int(kept["participant_id"].isin(own["participant_id"]).sum()),
            "age": f"{own['age'].mean():.1f} ± {own['age'].std():.1f}" if own["age"].notna().sum() > 1 else "n/a",
            "women": int((own["sex"] == "F").sum()), "men": int((own["sex"] == "M").sum()),
        }
        for name, own in groups
    ]  # fmt: skip
    heads = ("class", "people", "scans", "age", "women", "men")
    yield from _table(pd.DataFrame(rows), {**{name: name for name in heads}, "age": "age (mean ± SD)"})


def _performance(run: RunRecord) -> list[str]:
    name = next((one for one in run.tables if one in ("performance", "performance_number", "performance_classes")), "")
    if not name:
        return [NOT_COMPUTED]
    rows = run.tables[name]
    rows = rows[(rows["fold"].astype(str) == "all") & rows["metric"].isin(_SHOWN)]
    level = f"{run.config.statistics.confidence:.0%} interval"
    return _table(
        rows.assign(interval=rows["ci_low"].map(_cell) + " to " + rows["ci_high"].map(_cell)),
        {"metric": "metric", "estimate": "estimate", "interval": level, "n_participants": "people"},
    )


def _baselines(run: RunRecord) -> list[str]:
    if not run.has("baselines"):
        return ["Not computed."]
    columns = ("baseline", "metric", "estimate", "network", "difference", "verdict")
    return _table(run.tables["baselines"], {name: name for name in columns})


def _verdicts(run: RunRecord) -> list[str]:
    path = VERDICTS_TABLE.path(EvaluationLayout(run.layout.root))
    if not path.is_file():
        return ["Not evaluated. `heatlas evaluate RUN`, then export again, says here which maps can be trusted."]
    columns = ("cohort", "map", "passed", "verdict")
    return _table(VERDICTS_TABLE.read(path), {name: name for name in columns})


def _credit(run: RunRecord) -> Iterator[str]:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    yield f"- Atlas {atlas.get('title', run.config.regions.atlas)}: {atlas.get('credit', 'see its authors')}"
    yield f"- Template {run.layout.space}: {find_template(run.config.registration.template).credit}"
    yield "- The networks: under the terms of the data that they were trained on; ask whoever gave you this folder."
