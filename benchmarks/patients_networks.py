"""Claims about kinds of networks, their probes and their own maps, asked of patients: one cohort, the same folds.

    python benchmarks/patients_networks.py own RUN OUT --seeds 43 44 45 --numbers NAME
    python benchmarks/patients_networks.py tests RUN OUT --seeds 43 44 45 --numbers NAME
    python benchmarks/patients_networks.py probes RUN OUT --seeds 43 44 45 --numbers NAME

RUN is a registered run of `benchmarks/patients.py`; it is only read.

own        B-cos and CoDA networks beside conventional ones: answers, and their own maps in grids beside post-hoc maps
own-further  B-cos networks of a larger B beside founding ones with and without biases
tests      what own maps are worth: voxels taken away, layers drawn anew, constants, air; their settings in grids
penalty    CoDA networks with a penalty on the size of their weights, and their own maps in grids
probes     heads of both losses on frozen networks: answers, grids, sparsity, and what the least important places do
losses     linear heads of both losses with all that the source asks of them, over all folds
depth      the same heads, deeper ones less linear ones: answers and grids
pretrained  linear heads on networks that learned from the younger people without labels, in OUT/younger (registered)
readable   networks trained with readable gradients beside weight 0: answers and masked recognition of CAM methods
alone      networks trained by guided gradients alone beside weight 0: answers and losses

One command at a time works in OUT. OUT/people.tsv (or the `table` of a study, so that some may share networks) keeps a
row per recipe, seed, person and measure, OUT/people_losses.tsv one per epoch; the same command continues. With
--numbers they are stored for claims, where a measure is named "RECIPE, MEASURE" (`claim_numbers.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_study
from harness import arguments_of, kept_rows
from inherent_runs import Recipe, Workplace, networks, trained
from patients_cams import map_and_scores
from patients_network_studies import STUDIES, Study
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.evaluation.scores.masking import part_numbers, removal_curve
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.studies.consensus.stage import Networks
from heatlas.studies.grids.directions import by_participant
from heatlas.studies.grids.stage import evaluate_grids, read_scores

KEYS = ["recipe", "seed"]
PERSON = ["person", "class", "fold"]
STEPS = 20
DIVERGED = "not a finite number"
"""In what a training says whose loss is no longer finite."""


def answers(cohort: JudgedCohort, found: Networks, study: Study, recipe: Recipe) -> Iterator[dict[str, object]]:
    explanations = [dataclasses.replace(one, start="logit") for one in recipe.explanations(found.config)]
    for fold in cohort.tested_folds:
        loaded = load_model(found.layout.fold(fold.index))
        context = RunContext(cohort.atlas, loaded.input.box, None)
        own = sorted((scan for scan in cohort.scans if cohort.fold_of(scan) == fold.index), key=lambda s: s.scan_id)
        for place, scan in enumerate(own):
            files = cohort.layout.scan(scan.participant_id, scan.session_id, loaded.input.resolution_mm)
            volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
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
    """Mean share of a person's grids, and that of the largest values alone; measures named by map and depth."""
    explaining = found.explaining(cohort)
    # maps start from the logit; a recipe that names a slow method wants it, though the rest is quick
    asked = tuple(
        dataclasses.replace(one, start="logit", entry=dataclasses.replace(one.entry, slow=""))
        for one in recipe.explanations(explaining.config)
    )
    outcomes = evaluate_grids(explaining, asked, True, work.executor, work.digests)
    scores = read_scores([one.job.outputs["scores"] for one in outcomes if one.ok])
    scores = scores[scores["grid"].notna()]
    people = {place: scan.participant_id for place, scan in enumerate(explaining.scans)}
    rows = []
    for (setting, name, depth), own in scores.groupby(["setting", "method", "depth"]):
        for column, word in (("share", "share"), ("top_share", "top")):
            each, where = 100 * by_participant(own, people, column), "" if setting == "GridPG" else f"{setting} "
            measure = f"{where}{word}: {name} at {depth:g}"
            rows.append(pd.DataFrame({"person": each.index, "measure": measure, "value": each.to_numpy()}))
    return pd.concat(rows, ignore_index=True)


def measured(work: Workplace, study: Study, recipe: Recipe, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All measures of the networks of a recipe and seed, and their losses by epoch, the mean over folds.

    A training whose loss is no longer finite has one loss, which is not, and no measures.
    """
    cohort = work.cohort(recipe.config(work.run, seed))
    found = networks(recipe, cohort, seed)
    named = {"recipe": recipe.name, "seed": seed}
    try:
        trained(work, found, cohort)
    except RuntimeError as error:
        if not study.losses or DIVERGED not in str(error):
            raise
        return pd.DataFrame(), pd.DataFrame([{**named, "epoch": np.nan, "train_loss": np.nan}])
    epochs = pd.concat(read_table(found.layout.fold(fold.index).history) for fold in cohort.tested_folds)
    losses = epochs.groupby("epoch", as_index=False)["train_loss"].mean().assign(**named)
    wide = pd.DataFrame(list(answers(cohort, found, study, recipe)))
    if study.of_cohort and recipe.name.endswith(", CE"):
        wide = wide.merge(pd.DataFrame(list(study.of_cohort(cohort, found.config))), on="person")
    rows = wide.melt(id_vars=PERSON, var_name="measure").dropna(subset="value")
    if study.grids and recipe.methods:
        rows = pd.concat(
            [rows, shares(cohort, found, recipe, work).merge(wide[PERSON], on="person")], ignore_index=True
        )
    return rows.assign(**named), losses


def main() -> None:
    names = "study run out --seeds --only --folds --n-procs"
    options = arguments_of(__doc__, names, study={"choices": STUDIES}, numbers=("", NUMBERS))
    torch.set_num_threads(1)
    study = STUDIES[options.study]
    kept = options.out / study.table
    of_epochs = kept.with_name(f"{kept.stem}_losses.tsv")
    rows, losses = kept_rows(kept, [*KEYS, *PERSON, "measure", "value"]), kept_rows(of_epochs, KEYS)
    with open_executor(options.n_procs) as executor:
        work = Workplace(options.run, options.out, executor, options.folds)
        for seed in options.seeds:
            for recipe in study.recipes(work, seed):
                done = ((rows["recipe"] == recipe.name) & (rows["seed"] == seed)).any()
                if done or (options.only and not any(re.fullmatch(one, recipe.name) for one in options.only)):
                    continue
                new = measured(work, study, recipe, seed)
                rows, losses = (pd.concat(both, ignore_index=True) for both in zip((rows, losses), new, strict=True))
                losses.to_csv(of_epochs, sep="\t", index=False)
                rows.to_csv(kept, sep="\t", index=False)  # last: what is here is done
                print(f"{recipe.name}, seed {seed}", flush=True)
    print(f"{kept}: {len(rows)} rows; losses: {of_epochs.name}")
    if options.numbers:
        named = rows.assign(measure=rows["recipe"] + ", " + rows["measure"])
        print(write_of_study(options.numbers, named, options.run))


if __name__ == "__main__":
    main()
