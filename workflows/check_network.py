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

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.given_image import GivenImage, by_contract, given_image
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


def check_network(options: Check, file: Path) -> int:
    """Print and write how well a network answers in each way to feed it; exit code 65 if it cannot be asked."""
    if options.config is not None:
        raise UsageError("--network and --config: the description file holds the settings too; give one of them.")
    described = read_description(file)
    target = options.target or ("" if options.contrast else described.published.target)
    try:
        config = settings_of(dataclasses.replace(options, config=file, target=target or None))
    except UsageError as error:
        raise BadInputError(str(error)) from error
    task = task_of(config.cohort)
    if not task.is_number and len(task.classes) != 2:
        raise UsageError("--network: tells two classes or a number; name two in --contrast.")
    cohort = read_cohort(
        options.input, config.cohort, config.seed, selection_of(options, config, list(places_read(options)))
    )
    if cohort.problem:
        raise BadInputError(cohort.problem)
    kept = {scan.participant_id for scan in cohort.table.kept}
    lost = [scan for scan in cohort.table if scan.participant_id not in kept]
    if lost and not options.include:
        raise BadInputError(
            f"{lost[0].file or lost[0].name}: {lost[0].reason}. Correct it, or take it out of the table."
        )
    scans = list({scan.participant_id: scan for scan in reversed(cohort.table.labelled)}.values())[::-1]
    truth = np.array(
        [float(scan.label or "nan") if task.is_number else float(task.explains(scan.label)) for scan in scans]
    )
    if len(scans) < FEWEST or (not task.is_number and len(set(truth)) < 2):
        raise BadInputError(
            f"{without_home(cohort.root)}: {counted(len(scans), 'person', 'has', 'people')} a scan and {task.column}; "
            f"at least {FEWEST} are needed, of both classes if there are classes."
        )
    require_check_folder(options.out, options.input, places_read(options, config.cohort.table))
    names, answers = answers_of(described, cohort.root, scans, len(task.outputs))
    measure = MAE if task.is_number else AUC
    table = conventions_table(names, answers, truth, measure, config.seed)
    lines = [
        f"{measure} of {task.column}, {counted(len(scans), 'person', plural='people')}, best first (95 % interval):"
    ]
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
    network = described.network().eval()
    like = weights_of(network)
    images = [given_image(root / scan.file, like) for scan in scans]
    tried = conventions(described.settings.feeding, _grid(images[0]))
    first = by_contract(images[0], tried[0].feeding, scans[0].file)
    model = adapted(network.float(), first.volume, outputs, described.form)
    answers = np.full((len(tried), len(scans)), np.nan)
    with tqdm(total=answers.size, desc="Passes of the network", delay=2) as bar, torch.no_grad():
        for number, image in enumerate(images):
            for place, one in enumerate(tried):
                answers[place, number] = _answer(model, image, one, scans[number].file)
                bar.update()
    return [one.name for one in tried], answers


def _answer(model: torch.nn.Module, image: GivenImage, one: Convention, name: str) -> float:
    found = on_host(model(by_contract(image, one.feeding, name).volume)[0].double()).numpy()
    return float(found[0] if len(found) == 1 else found[1] - found[0])


def _grid(image: GivenImage) -> Grid:
    sides = image.volume.shape[2:]
    return Grid((sides[0], sides[1], sides[2]), image.affine)
