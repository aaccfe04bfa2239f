"""``heatlas check SCANS --network FILE.toml``: whether a network that others trained is fed as it was in training.

The same scans are given to it in all ways that its users may take for the right one (`conventions`), and its answers
are compared with a known column. Scans are taken as they are: in the space that the file names, if it names one.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.given_image import by_contract, given_image
from heatlas.pipeline.models.foreign.adapted import adapted, weights_of
from heatlas.pipeline.models.foreign.described import Description, read_description
from heatlas.pipeline.models.foreign.feeding import Convention, conventions
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, without_home
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.statistics.performance.conventions import AUC, CONVENTIONS_TABLE, MAE, conventions_table, verdict
from heatlas.workflows.check import SUMMARY, require_check_folder
from heatlas.workflows.commands import Check
from heatlas.workflows.preflight import places_read, selection_of, settings_of

FEWEST = 3
"""People below which there is no interval."""
_SHOWN = 15
_NAMED = 10
"""Largest number of scans left out that are named."""


def check_network(options: Check, file: Path) -> int:
    """Print and write how well a network answers in each way to feed it; exit code 65 if it cannot be asked."""
    if options.config is not None:
        raise UsageError("--network and --config: the description file holds the settings too; give one of them.")
    described = read_description(file)
    target = options.target or ("" if options.contrast else described.published.target)
    config = settings_of(dataclasses.replace(options, config=file, target=target or None))
    task = task_of(config.cohort)
    if not task.is_number and len(task.classes) != 2:
        raise UsageError("--network: tells two classes or a number; name two in --contrast.")
    places = places_read(options, config.cohort.table)
    require_check_folder(options.out, options.input, places)
    cohort = read_cohort(options.input, config.cohort, config.seed, selection_of(options, config, list(places)))
    if cohort.problem:
        raise BadInputError(cohort.problem)
    kept = {scan.participant_id for scan in cohort.table.kept}
    lost = [scan for scan in cohort.table if scan.participant_id not in kept]
    for scan in lost[:_NAMED]:
        print(f"left out: {scan.file or scan.name}: {scan.reason}")
    if len(lost) > _NAMED:
        print(f"and {len(lost) - _NAMED} more were left out")
    scans = list({scan.participant_id: scan for scan in reversed(cohort.table.labelled)}.values())[::-1]
    truth = np.array([float(scan.label or "nan") if task.is_number else task.explains(scan.label) for scan in scans])
    if len(scans) < FEWEST or (not task.is_number and len(set(truth)) < 2):
        raise BadInputError(
            f"{without_home(cohort.root)}: {counted(len(scans), 'person', 'has', 'people')} a scan and {task.column}; "
            f"at least {FEWEST} are needed, of both classes if there are classes."
        )
    names, answers = answers_of(described, cohort.root, scans, len(task.outputs))
    measure = MAE if task.is_number else AUC
    table = conventions_table(names, answers, truth, measure, config.seed)
    people = counted(len(scans), "person", plural="people")
    lines = [f"{measure} of {task.column}, {people}, best first (95 % interval):"]
    for place, row in table.iterrows():
        if int(str(place)) < _SHOWN or row["kind"] != "other":
            mark = {"declared": "*", "guess": "-"}.get(row["kind"], " ")
            p = "" if np.isnan(row["p_fwe"]) else f"  p = {row['p_fwe']:.2g}"
            known = np.isfinite(row["ci_low"])
            bounds = f"[{row['ci_low']:.2f} to {row['ci_high']:.2f}]" if known else "[no interval]"
            lines.append(f"{mark} {row['estimate']:8.2f} {bounds:<20} {row['convention']}{p}")
    lines += ["* as the file declares; - a guess; p: differs from the declared one, after all comparisons"]
    lines += [described.published.sentence] * bool(described.published.sentence)
    lines += [f"verdict: {verdict(table)}"]
    print("\n".join(lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / SUMMARY, {"network": described.published.name or file.name, "verdict": verdict(table)})
        print(f"written to {CONVENTIONS_TABLE.write(options.out / CONVENTIONS_TABLE.file, table)}")
    return EXIT_OK


def answers_of(described: Description, root: Path, scans: list[Scan], outputs: int) -> tuple[list[str], np.ndarray]:
    """Names of the conventions, and answers (conventions, people): the number, or the logit of the second class."""
    network, answers = described.network().float().eval(), []
    tried: list[Convention] = []
    with torch.no_grad(), tqdm(desc="Passes of the network", delay=2) as bar:
        for scan in scans:
            image = given_image(root / scan.file, weights_of(network))
            if not tried:
                tried = conventions(described.settings.feeding, image.grid)
                volume = by_contract(image, tried[0].feeding, scan.file).volume
                model = adapted(network, volume, outputs, described.form)
                bar.reset(len(tried) * len(scans))
            for one in tried:
                row = on_host(model(by_contract(image, one.feeding, scan.file).volume)[0].double())
                answers.append(float(row[-1] - row[0] if len(row) > 1 else row[0]))
                bar.update()
    return [one.name for one in tried], np.array(answers).reshape(len(scans), len(tried)).T
