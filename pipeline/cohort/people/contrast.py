"""The contrast: which two classes are told apart, and which of them a scan belongs to.

A contrast is any column and two of its values: a column of the scan table (``diagnosis``, ``sex``, ``site`` ...) or any
column of the source tables at the scan's visit (``age_group``). A scan with another value has no label. It is kept, so
that the networks can be asked about it, unless ``apply_outside_contrast`` is off.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.cohort.candidates import Candidate
from pipeline.cohort.cells.values import code_text
from pipeline.cohort.records import Scan
from pipeline.run.config.settings import CohortConfig
from pipeline.run.errors import BadInputError
from pipeline.run.plain_text import counted, listed
from pipeline.run.work.seeds import generator

SCAN_TABLE_COLUMNS = ("diagnosis", "progression", "sex", "site", "field_strength", "apoe4", "mmse", "cdr")
"""Columns of the scan table that may serve as contrast."""


def contrast_values(candidate: Candidate, column: str) -> tuple[str, ...]:
    """What a scan holds in a column: as the scan table writes it, then as the source does."""
    found = []
    if column in SCAN_TABLE_COLUMNS:
        value = getattr(candidate.scan, column)
        if value is not None:
            found.append(code_text(value))
    source = candidate.columns.get(column)
    return (*found, source) if source is not None and source not in found else tuple(found)


def with_labels(candidates: Sequence[Candidate], config: CohortConfig) -> list[Candidate]:
    """Label each kept scan with its class, or None outside the contrast.

    Where ``apply_outside_contrast`` is off, scans outside the contrast are dropped: no stage would use them.

    Raises
    ------
    BadInputError
        If no scan has the column, or none has one of the two values; names what there is.
    """
    column = config.contrast_column
    matched = [candidate for candidate in candidates if candidate.scan.kept]
    held = Counter(found[0] for candidate in matched if (found := contrast_values(candidate, column)))
    present = {value for candidate in matched for value in contrast_values(candidate, column)}
    if matched and not held:
        filled = {name for name in SCAN_TABLE_COLUMNS if any(contrast_values(one, name) for one in matched)}
        known = sorted(filled.union(*(candidate.columns for candidate in matched)))
        raise BadInputError(
            f"cohort.contrast_column = '{column}': no scan has a value in such a column. With values: "
            f"{listed(known, 40)}. Choose with --contrast COLUMN=NEGATIVE,POSITIVE."
        )
    for setting in ("negative", "positive"):
        wanted = getattr(config, setting)
        if matched and wanted not in present:
            there = listed((f"{value} ({counted(held[value], 'scan')})" for value in sorted(held)), 20)
            raise BadInputError(f"cohort.{setting} = '{wanted}': column '{column}' has no such value. It has {there}.")
    return [_labelled(candidate, config) for candidate in candidates]


def _labelled(candidate: Candidate, config: CohortConfig) -> Candidate:
    if not candidate.scan.kept:
        return candidate
    found = contrast_values(candidate, config.contrast_column)
    label = next((value for value in found if value in (config.negative, config.positive)), None)
    if label is None and not config.apply_outside_contrast:
        held = f"{found[0]} in" if found else "no value in"
        return candidate.dropped(
            f"outside the contrast (cohort.apply_outside_contrast is off): {held} {config.contrast_column}"
        )
    return dataclasses.replace(candidate, scan=dataclasses.replace(candidate.scan, label=label))


def unknown_diagnoses(candidates: Sequence[Candidate]) -> list[str]:
    """A note on diagnoses that are not CN, MCI or AD, and on scans without any."""
    kept = [candidate for candidate in candidates if candidate.scan.kept and candidate.scan.diagnosis is None]
    lower = [{name.lower(): value for name, value in candidate.columns.items()} for candidate in kept]
    texts = [columns.get("dx") or columns.get("diagnosis") for columns in lower]
    unknown = Counter(text for text in texts if text is not None)
    notes = []
    if unknown:
        kinds = listed(f"'{text}' ({counted(count, 'scan')})" for text, count in unknown.most_common())
        notes.append(f"diagnosis neither CN, MCI nor AD, taken as missing: {kinds}")
    absent = [candidate.scan.name for candidate, text in zip(kept, texts, strict=True) if text is None]
    if absent:
        notes.append(f"{len(absent)} kept scans have no diagnosis at their visit: {listed(absent)}")
    return notes


def participant_classes(scans: Sequence[Scan], positive: str) -> dict[str, bool]:
    """Class of each labelled participant: True if any of their scans is positive.

    The founding study counts someone with CN and AD scans as AD; each scan keeps its own label.
    """
    classes: dict[str, bool] = {}
    for scan in scans:
        if scan.label is not None:
            classes[scan.participant_id] = classes.get(scan.participant_id, False) or scan.label == positive
    return classes


def shuffled_labels(scans: Sequence[Scan], seed: int) -> list[Scan]:
    """A control without any truth: the labels, handed round between participants.

    Each participant receives the label sequence of another (or of themselves, by chance), in order of sessions, so
    that someone who converted still makes one convert. Where the numbers of scans differ the sequence is
    stretched or thinned with its first and last label in place; a single scan receives the last.
    Only labelled scans take part; every other column keeps its value.
    """
    sequences: dict[str, list[str]] = {}
    for scan in sorted(scans, key=lambda scan: (scan.participant_id, scan.session_id or "", scan.scan_id)):
        if scan.label is not None:
            sequences.setdefault(scan.participant_id, []).append(scan.label)
    people = list(sequences)
    donors = [people[i] for i in generator(seed, "shuffle-labels").permutation(len(people))]
    received = {
        person: _stretched(sequences[donor], len(sequences[person]))
        for person, donor in zip(people, donors, strict=True)
    }
    return _relabelled(scans, received)


def _stretched(sequence: Sequence[str], length: int) -> list[str]:
    if length == 1:
        return [sequence[-1]]
    return [sequence[round(i * (len(sequence) - 1) / (length - 1))] for i in range(length)]


def _relabelled(scans: Sequence[Scan], labels: Mapping[str, Sequence[str]]) -> list[Scan]:
    left = {person: iter(sequence) for person, sequence in labels.items()}
    ordered = sorted(
        range(len(scans)), key=lambda i: (scans[i].participant_id, scans[i].session_id or "", scans[i].scan_id)
    )
    result = list(scans)
    for i in ordered:
        if scans[i].label is not None:
            result[i] = dataclasses.replace(scans[i], label=next(left[scans[i].participant_id]))
    return result
