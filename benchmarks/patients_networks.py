"""Claims asked of patients: a study asks networks about each person, with the same people and folds for all.

    python benchmarks/patients_networks.py own RUN OUT --seeds 43 44 45 --numbers NAME
    python benchmarks/patients_networks.py cams OUT/seed-43 OUT/seed-44 OUT/seed-45 OUT/cams --numbers NAME

Runs are those of `benchmarks/patients.py`; they are only read. Some studies train networks, on the scans of one RUN:

own        B-cos and CoDA networks beside conventional ones: answers, and their own maps in grids beside post-hoc maps
own-further  B-cos networks of a larger B beside founding ones with and without biases
tests      what own maps are worth: voxels taken away, layers drawn anew, constants, air; their settings in grids
penalty    CoDA networks with a penalty on the size of their weights, and their own maps in grids
probes     heads of both losses on frozen networks: answers, grids, sparsity, and what the least important places do
losses     linear heads of both losses with all that the source asks of them, over all folds
depth      the same heads, deeper ones less linear ones: answers and grids
pretrained  linear heads on networks that learned from the younger people without labels, in OUT/younger (registered)
readable   networks trained with readable gradients beside weight 0: answers and masked recognition of CAM methods
alone      networks trained by guided gradients alone beside weight 0: answers, and losses in OUT/epochs.tsv
planted    CAM methods where the truth is known: loss planted in copies of controls
guidance-first, guidance-further, guidance-swept  networks trained with maps, their students, and controls
evidence   whether more accurate networks have better evidence (`--seeds 43`); two tables in OUT

The others ask finished runs, whose names end with their seed:

relevance  LRP and guided backpropagation by region; with volumes of the hippocampus of a run in OUT/volumes, if there
grids      shares of maps in grids of runs that `heatlas evaluate RUN --parts grids` has judged
grids-nine  the same of runs that were judged in grids of nine cells
cams       CAM methods and Opti-CAM with its variants by masked recognition
stream, stream-starts, stream-variants  CA-Stream against average pooling: heads on the frozen network of each fold

One command at a time works in OUT. OUT/people.tsv (or the `table` of a study, so that some may share networks) keeps
what each unit of work says of each person by seed; the same command continues. With --numbers all that is there is
stored for claims (`claim_numbers.py`); measures of a recipe are named "RECIPE, MEASURE".
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_study
from harness import added, arguments_of, kept_rows, replaced
from inherent_runs import PERSON, Ask, Recipe, Workplace, scan_of, trained_networks
from patients_cams import map_and_scores
from patients_network_studies import STUDIES, Study
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.evaluation.scores.masking import part_numbers, removal_curve
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.studies.consensus.stage import Networks
from heatlas.studies.grids.directions import by_participant
from heatlas.studies.grids.stage import evaluate_grids, read_scores

KEYS = ["recipe", "seed"]
"""Of rows; what is asked at once stands in the place of a recipe where a study has none."""
STEPS = 20
DIVERGED = "not a finite number"
"""In what a training says whose loss is no longer finite."""


def answers(cohort: JudgedCohort, found: Networks, study: Study, recipe: Recipe) -> Iterator[dict[str, object]]:
    of_recipe = recipe.explanations(found.config) if study.whole else ()
    explanations = [dataclasses.replace(one, start="logit") for one in of_recipe]
    for fold in cohort.tested_folds:
        loaded = load_model(found.layout.fold(fold.index))
        context = RunContext(cohort.atlas, loaded.input.box, None)
        own = sorted((scan for scan in cohort.scans if cohort.fold_of(scan) == fold.index), key=lambda s: s.scan_id)
        for place, scan in enumerate(own):
            volume = scan_of(cohort.layout, loaded.input, scan.participant_id, scan.session_id)
            target = int(scan in cohort.positive)
            with torch.no_grad():
                logits = loaded.model(volume)[0]
            row: dict[str, object] = {}
            for measure, people in study.measures.get(recipe.name, {}).items():
                if not people or place < people:
                    row |= measure(loaded, volume, target)
            row |= {"correct": 100.0 * (int(logits.argmax()) == target), "logit": float(logits[1] - logits[0])}
            for name in study.cams:
                rest = ("insertion", "deletion") if place < study.curves else ()
                scores = map_and_scores(loaded.model, volume, target, name, rest)[1]
                row |= {f"{score}: {name}": value for score, value in scores.items() if score != "seconds"}
            for asked in (one for one in explanations if place < study.whole and not one.entry.slow):
                method = asked.build(context)
                maps = attribute_all(loaded.model, volume, target, method, asked.stage_in(loaded.model), asked.start)
                for name, one in zip(asked.names, maps, strict=True):
                    scores = shape(loaded.model, volume, target, one.values[0, 0])
                    row |= {f"{score}: {name}": value for score, value in scores.items()}
            yield {"person": scan.participant_id, "class": target, "fold": fold.index, **row}


def shape(model: torch.nn.Module, volume: Tensor, target: int, values: Tensor) -> dict[str, float]:
    """Sparsity of a map's positive values in the brain, and the mean probability while the least go first.

    Of those who are recognised, also as share of the probability of the whole scan, which two losses set apart.
    """
    brain = volume[0, 0] != 0
    if values.shape != brain.shape:
        return {}
    above = np.where(brain.numpy(), values.clamp(min=0).numpy(), 0).astype(float)
    found = {"gini": gini(above[brain.numpy()]), "entropy": entropy(above[brain.numpy()])}
    score = lambda volumes: model(volumes).softmax(1)[:, target]  # noqa: E731
    curve = removal_curve(score, volume[0, 0], torch.zeros_like(volume[0, 0]), part_numbers(brain), -values, STEPS)
    with torch.no_grad():
        whole = float(score(volume))
    relative = {"least first, of the whole": 100 * curve.area / whole} if whole > 0.5 else {}
    return found | {"least first": 100 * curve.area} | relative


def shares(cohort: JudgedCohort, found: Networks, recipe: Recipe, work: Workplace) -> pd.DataFrame:
    """Mean share of a person's grids, and that of the largest values alone; a column by map and depth."""
    explaining = found.explaining(cohort)
    # maps start from the logit; a recipe that names a slow method wants it, though the rest is quick
    asked = tuple(
        dataclasses.replace(one, start="logit", entry=dataclasses.replace(one.entry, slow=""))
        for one in recipe.explanations(explaining.config)
    )
    outcomes = evaluate_grids(explaining, asked, True, work.executor, work.digests)
    scores = read_scores([one.job.outputs["scores"] for one in outcomes if one.ok])
    people = {place: scan.participant_id for place, scan in enumerate(explaining.scans)}
    columns = {}
    for (setting, name, depth), own in scores[scores["grid"].notna()].groupby(["setting", "method", "depth"]):
        where = "" if setting == "GridPG" else f"{setting} "
        for column, word in (("share", "share"), ("top_share", "top")):
            columns[f"{where}{word}: {name} at {depth:g}"] = 100 * by_participant(own, people, column)
    return pd.DataFrame(columns).rename_axis("person").reset_index()


def measured(work: Workplace, study: Study, recipe: Recipe, seed: int) -> pd.DataFrame:
    """All measures of the networks of a recipe and seed, a row for each person; none if a loss is no longer finite."""
    try:
        cohort, found = trained_networks(work, recipe, seed)
    except RuntimeError as error:
        if not study.losses or DIVERGED not in str(error):
            raise
        keep_losses(work, recipe, seed, pd.DataFrame({"epoch": [np.nan], "train_loss": np.nan}))
        return pd.DataFrame()
    if study.losses:
        epochs = pd.concat(read_table(found.layout.fold(fold.index).history) for fold in cohort.tested_folds)
        keep_losses(work, recipe, seed, epochs.groupby("epoch", as_index=False)["train_loss"].mean())
    rows = pd.DataFrame(list(answers(cohort, found, study, recipe)))
    if study.of_cohort and recipe.name.endswith(", CE"):
        rows = rows.merge(pd.DataFrame(list(study.of_cohort(cohort, found.config))), on="person")
    if study.grids and recipe.methods:
        rows = rows.merge(shares(cohort, found, recipe, work), on="person", how="left")
    return rows


def keep_losses(work: Workplace, recipe: Recipe, seed: int, losses: pd.DataFrame) -> None:
    """Write the losses of a recipe by epoch, the mean over folds; one that is not finite is an answer too."""
    replaced(losses.assign(recipe=recipe.name, seed=seed), work.out / "epochs.tsv", [*KEYS, "epoch"])


def units_of(study: Study, work: Workplace, seed: int) -> Iterator[tuple[str, Ask]]:
    """What is asked at once, by name; of a finished run first the probabilities of its own networks."""
    if study.recipes:
        for recipe in study.recipes(work, seed):
            yield recipe.name, partial(measured, work, study, recipe, seed)
    elif not study.of_runs:
        yield from study.units(work, seed)
    else:
        names = {"participant_id": "person", "target": "class"}
        known = pd.read_csv(work.run / "group" / "predictions.tsv", sep="\t").rename(columns=names)
        yield "probability", lambda: known[[*PERSON, "probability"]]
        for name, ask in study.units(work, seed):
            yield name, partial(with_class, work, known[PERSON], ask)


def with_class(work: Workplace, known: pd.DataFrame, ask: Ask) -> pd.DataFrame:
    """What was asked of a finished run, with the class and fold of each person."""
    rows = pd.DataFrame(ask())
    if lost := sorted(set(rows["person"]) - set(known["person"])):
        sys.exit(f"{work.run}: no prediction of {', '.join(lost)} in group/predictions.tsv. Finish the run first.")
    return rows.merge(known, on="person")


def main() -> None:
    names = "study runs out --seeds --only --folds"
    options = arguments_of(__doc__, names, study={"choices": STUDIES}, numbers=("", NUMBERS))
    torch.set_num_threads(1)
    study = STUDIES[options.study]
    kept = options.out / study.table
    rows = kept_rows(kept, [*KEYS, *PERSON, "measure", "value"])
    asked = [(options.runs[0], seed) for seed in options.seeds]
    if study.of_runs:
        asked = [(run, int(run.name.rpartition("-")[2])) for run in options.runs]
    with open_executor(1) as executor:
        for run, seed in asked:
            work = Workplace(run, options.out, executor, options.folds)
            for name, ask in units_of(study, work, seed):
                done = ((rows["recipe"] == name) & (rows["seed"] == seed)).any()
                if done or (options.only and not any(one == name or re.fullmatch(one, name) for one in options.only)):
                    continue
                wide = pd.DataFrame(ask())
                if len(wide):
                    new = wide.melt(id_vars=PERSON, var_name="measure").dropna(subset="value")
                    rows = added(rows, new.assign(recipe=name, seed=seed), kept)
                print(f"{name}, seed {seed}", flush=True)
    print(f"{kept}: {len(rows)} rows")
    if study.summary:
        study.summary(options.runs[0], options.out, rows)
    if options.numbers:
        rows = study.numbers(rows) if study.numbers else rows
        if study.recipes or study.numbers:
            rows = rows.assign(measure=rows["recipe"] + ", " + rows["measure"])
        print(write_of_study(options.numbers, rows, options.runs[0], **study.about(options.runs[0])))


if __name__ == "__main__":
    main()
