"""What a run would use, drop and miss (``heatlas check``), from names, tables and headers, and which images it has.

The list of images, a manifest, is written by ``heatlas manifest export``; a check with one rebuilds the cohort from it.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heatlas.pipeline.cohort.people.inclusion import steps
from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.sharing import MATCHING, Manifest, make_manifest, write_comparison
from heatlas.pipeline.run.config.inclusion import read_rule
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, without_home
from heatlas.pipeline.run.tables import write_json, write_text
from heatlas.pipeline.run.work.providers import PROVIDERS, require_file
from heatlas.workflows.commands import Check, ManifestExport, ManifestImport
from heatlas.workflows.estimates import expectations
from heatlas.workflows.preflight import (
    places_read,
    preflight,
    require_settings,
    require_unread,
    selection_of,
    settings_of,
    stages_until,
)

SUMMARY = "check.json"
"""Marks the folder of a check, which may be overwritten."""
WRITTEN = (
    SUMMARY, "check.txt", "scans.tsv", "scans.json", "manifest_comparison.tsv", "manifest_comparison.json",
)  # fmt: skip
_LISTED = 5
_WANTED = {
    "hippocampus_mm3": "hippocampal volume",
    "tiv_mm3": "intracranial volume",
    "age": "age",
    "sex": "sex",
    "field_strength": "field strength",
}


def check_command(options: Check | ManifestImport) -> int:
    """Describe an input on the terminal and in a folder; exit code 1 if a manifest differs, 65 if nothing is usable."""
    if isinstance(options, Check) and options.network is not None:
        from heatlas.workflows.check_network import check_network  # torch takes a second

        return check_network(options, options.network)
    config = settings_of(options)
    places = places_read(options, config.cohort.table)
    require_check_folder(options.out, options.input, places)
    stages = stages_until(options.stop_after)
    require_settings(config, stages, elsewhere=options.executor is not None)
    if options.executor is not None and options.executor not in PROVIDERS:
        require_file(Path(options.executor))
    selection = selection_of(options, config, [*places, *([] if options.out is None else [options.out])])
    cohort = read_cohort(options.input, config.cohort, config.seed, selection)
    problem, expected = "", []
    try:
        ready = preflight(config, cohort, stages)
        cohort = dataclasses.replace(cohort, notes=(*cohort.notes, *ready.notes))
        if options.executor is None:
            expected = expectations(config, cohort, ready.split, stages, os.cpu_count() or 1)
    except BadInputError as error:
        problem = str(error)
    text = "\n".join([describe_cohort(cohort, config.cohort, problem), *expected])
    if options.executor in PROVIDERS:
        text += f"\n{options.executor}: {config.cluster.in_words()} (not tried)"
    print(text)
    if options.out is not None:
        write_check(options.out, cohort, config.cohort, text, problem)
        print(f"written to {options.out}: scans.tsv, check.txt, {SUMMARY}")
    if problem:
        raise BadInputError(problem)
    return EXIT_OK if all(match.status in MATCHING for match in cohort.matches) else EXIT_SOME_FAILED


def require_check_folder(out: Path | None, root: Path, places: Mapping[Path, str]) -> None:
    """Refuse a folder that is, holds or lies in the input, holds anything other than a check, or would lose a file.

    `places`: that are read.
    """
    if out is None:
        return
    folder, source = out.resolve(), root.resolve()
    if folder == source or source in folder.parents or folder in source.parents:
        raise UsageError(f"{out}: is, holds or lies in the input folder, which is never written to. Choose another.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{out}: is a file. Choose a new folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SUMMARY).is_file():
        raise UsageError(f"{out}: is not empty and not an earlier check. Choose an empty or new folder.")
    for name in WRITTEN:
        require_unread(out / name, places)


def describe_cohort(cohort: InputCohort, config: CohortConfig, problem: str = "") -> str:
    """Describe in words what a run would use, drop and miss.

    `problem`: why there can be no run, which is said elsewhere.
    """
    table = cohort.table
    kept, labelled = table.kept, table.labelled
    notes = [f"note: {note}" for note in cohort.notes]
    if cohort.layout == "image":  # which has no label and is in no class
        return "\n".join([f"{without_home(cohort.root / kept[0].file)}: one image", *notes])
    lines = [
        f"{without_home(cohort.root)}: {_KINDS[cohort.layout]}" + (", SYNTHETIC people" if cohort.synthetic else ""),
        f"{counted(len(table), 'scan')} found of {_people(table.scans)}; {len(kept)} kept of {_people(kept)}",
    ]
    lines += _inclusion_lines(cohort, config)
    dropped = _grouped((_kind_of(scan), scan.scan_id) for scan in table if not scan.kept)
    for kind, names in sorted(dropped.items(), key=lambda item: -len(item[1])):
        lines.append(f"  dropped {len(names)}: {kind} ({_shown(names)})")
    matched = _grouped((match.status, match.scan_id) for match in cohort.matches)
    lines += [f"  manifest: {len(names)} {status} ({_shown(names)})" for status, names in matched.items()]
    lines += _task_lines(cohort, config, "" if cohort.problem == problem else cohort.problem)
    outside = [scan for scan in kept if scan.label is None]
    if outside:
        lines.append(f"  outside the contrast: {_scans(outside)} (registered, not trained on)")
    for name, text in _WANTED.items():
        missing = sum(getattr(scan, name) is None for scan in labelled)
        if missing:
            lines.append(f"  missing {text}: {missing} of {counted(len(labelled), 'scan')}")
    return "\n".join([*lines, *notes])


def _inclusion_lines(cohort: InputCohort, config: CohortConfig) -> list[str]:
    """What each part of the rule of inclusion leaves."""
    parts = steps(cohort.table.frame(), read_rule(config.include)) if config.include else []
    return [
        f"  included by {step.part}: {counted(len(step.left), 'scan')} of "
        f"{counted(step.left['participant_id'].nunique(), 'participant')} ({step.not_met} not met, {step.unknown} "
        "unknown)"
        for step in parts
    ]


def _task_lines(cohort: InputCohort, config: CohortConfig, why_none: str) -> list[str]:
    problem = [f"  no labels: {why_none}"] if why_none else []
    labelled = cohort.table.labelled
    if config.target:
        values = sorted(float(scan.label or "nan") for scan in labelled)
        span = f", from {values[0]:g} to {values[-1]:g}" if values else ""
        return [f"predicts {config.target}: {_scans(labelled)}{span}", *problem]
    lines = [f"contrast {config.contrast_column}: {' against '.join(config.labels)}", *problem]
    for label in config.labels:
        scans = [scan for scan in labelled if scan.label == label]
        lines.append(f"  {label}: {_scans(scans)}")
    return lines


def write_check(out: Path, cohort: InputCohort, config: CohortConfig, text: str, problem: str) -> None:
    """Write ``scans.tsv`` with its dictionary, ``check.txt``, ``check.json``, and the result of matching a manifest."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        cohort.table.write(out / "scans.tsv")
        if cohort.matches:
            write_comparison(out / "manifest_comparison.tsv", cohort.matches)
        write_text(out / "check.txt", text + "\n" + (f"problem: {problem}\n" if problem else ""))
        write_json(out / SUMMARY, summary(cohort, config, problem))
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({error.strerror}).") from error


def summary(cohort: InputCohort, config: CohortConfig, problem: str) -> dict[str, Any]:
    """The same in machine-readable form."""
    table = cohort.table
    people, counts = {scan.participant_id for scan in table.kept}, Counter(scan.label for scan in table.kept)
    return {
        "layout": cohort.layout,
        "synthetic": cohort.synthetic,
        "usable": not problem,
        "problem": problem or None,
        "scans": {"found": len(table), "kept": len(table.kept), "labelled": len(table.labelled)},
        "participants": {"found": len({scan.participant_id for scan in table}), "kept": len(people)},
        "included": [
            {"rule": step.part, "left": len(step.left), "not_met": step.not_met, "unknown": step.unknown}
            for step in (steps(table.frame(), read_rule(config.include)) if config.include else [])
        ],
        "entries": dict(Counter(scan.entry for scan in table.kept)),
        "labels": {} if config.target else {name: counts[name] for name in config.labels},
        "dropped": dict(Counter(_kind_of(scan) for scan in table if not scan.kept).most_common()),
        "missing": {name: sum(getattr(scan, name) is None for scan in table.labelled) for name in _WANTED},
        "manifest": dict(Counter(match.status for match in cohort.matches)),
        "notes": list(cohort.notes),
    }


_KINDS = {
    "adni": "ADNI download", "bids": "BIDS dataset", "oasis": "OASIS download", "caps": "CAPS dataset",
    "freesurfer": "FreeSurfer subjects", "table": "images with a table",
}  # fmt: skip


def _grouped(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for group, name in named:
        groups.setdefault(group, []).append(name)
    return groups


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _kind_of(scan: Scan) -> str:
    """Reason without its details, which follow a colon."""
    return (scan.reason or "").partition(":")[0]


def _scans(scans: Sequence[Scan]) -> str:
    return f"{counted(len(scans), 'scan')} of {_people(scans)}"


def _people(scans: Iterable[Scan]) -> str:
    return counted(len({scan.participant_id for scan in scans}), "participant")


def manifest_command(options: ManifestExport) -> int:
    config = settings_of(options)
    if options.anonymise is not None:
        raise UsageError("manifest export: a manifest needs the real ids; leave --anonymise out.")
    if options.file.suffix != ".tsv":
        raise UsageError(f"{options.file}: a manifest is a table; give a name that ends in .tsv.")
    require_manifest_file(options.file, places_read(options, config.cohort.table))
    cohort = read_cohort(options.input, config.cohort, config.seed, selection_of(options, config, []))
    kept = cohort.table.kept
    if not kept:
        raise BadInputError(f"{without_home(cohort.root)}: no scan can be used; heatlas check says why.")
    manifest = make_manifest(cohort.root, kept, options.ids_only)
    try:
        manifest.write(options.file)
    except OSError as error:
        raise UsageError(f"{options.file}: cannot write there ({error.strerror}).") from error
    print(f"{_scans(kept)}: {options.file}")
    print(f"digest of the cohort: {manifest.digest}")
    return EXIT_OK


def require_manifest_file(file: Path, places: Mapping[Path, str]) -> None:
    """Refuse to write a manifest, and its data dictionary beside it, over a file that is read or is no manifest."""
    dictionary = file.with_suffix(".json")
    for path in (file, dictionary):
        require_unread(path, places)
    if file.exists():
        try:
            Manifest.read(file)
        except BadInputError:
            raise UsageError(f"{file}: exists, and is no manifest that may be replaced. Choose a new name.") from None
    elif dictionary.exists():
        raise UsageError(f"{dictionary}: exists, and the manifest's data dictionary goes there. Choose another name.")
