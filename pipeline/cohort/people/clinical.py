"""Further clinical columns of the scans that are used: ``clinical.tsv``, beside ``scans.tsv``.

Values are those at the visit of the scan, from a column under any of its usual names (case, ``_`` and ``-`` are
ignored: ``CDRSB``, ``cdr_sb``). A column without any value is left out of the table. Values outside the ranges of
`pipeline.cohort.cells.ranges` are missing; a concentration beyond the limit of detection (``>1700``) is set to that
limit, with a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.cells.dates import visit_of
from heatlas.pipeline.cohort.cells.ranges import RANGES, plain_name
from heatlas.pipeline.cohort.cells.values import MISSING_CODES, number, up_to_limit
from heatlas.pipeline.cohort.records import SCAN_COLUMNS, Scan
from heatlas.pipeline.cohort.sharing.anonymise import Disguise
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

IDENTITY = {name: SCAN_COLUMNS[name] for name in ("participant_id", "session_id", "scan_id")}

MEASURES = {
    "cdrsb": "Clinical Dementia Rating, sum of boxes",
    "adas11": "ADAS-Cog, 11 items",
    "adas13": "ADAS-Cog, 13 items",
    "faq": "Functional Activities Questionnaire",
    "moca": "Montreal Cognitive Assessment",
    "ravlt_immediate": "Rey Auditory Verbal Learning Test, immediate recall (sum of five trials)",
    "logical_memory_delayed": "Logical memory, delayed recall",
    "abeta": "Amyloid beta 1-42 in cerebrospinal fluid, pg/ml, as the source gives it",
    "tau": "Total tau in cerebrospinal fluid, pg/ml, as the source gives it",
    "ptau": "Phosphorylated tau 181 in cerebrospinal fluid, pg/ml, as the source gives it",
    "amyloid_pet": "Florbetapir (AV45) uptake relative to the cerebellum",
    "fdg_pet": "FDG uptake in the regions of ADNI's composite",
    "education": "Years of education",
    "nwbv": "Volume of the whole brain as a share of the intracranial volume (nWBV of OASIS)",
}
"""Columns that are copied if the source has them."""

TIMES = {
    "years_since_first_scan": "Years since the participant's first scan in this table, by the months of the sessions, "
    "failing that by age; n/a if several visits have one age",
    "converted": "1 if AD was diagnosed after the scan and holds at the last diagnosis (before a dementia of another "
    "cause), 0 if no AD was diagnosed, n/a if AD was withdrawn; for CN and MCI only",
    "months_to_conversion": "Months from the diagnosis at the scan to the first of AD; n/a if there was none",
    "months_followed": "Months from the diagnosis at the scan to the last one (0: none later), the time of censoring "
    "where converted is 0",
    "other_dementia": "1 if a dementia of another cause, without AD before it, ended follow-up (a competing event: "
    "censored there), 0 if not; for CN and MCI only",
}
"""Columns computed from sessions and diagnoses."""

IDENTIFYING = frozenset({"rid", "ptid", "imageuid", "imageid", "subject", "subjectid", "siteid", "center", "centre"})
"""Columns, without ``_`` and in lower case, that are never copied: they name people, images or places."""


@dataclass(frozen=True, eq=False)
class Clinical:
    """Clinical columns of the kept scans.

    `frame`: one row per scan; `columns`: their descriptions.
    """

    frame: pd.DataFrame
    columns: Mapping[str, str]


def clinical_table(
    candidates: Sequence[Candidate], further: Sequence[str] = (), disguise: Disguise | None = None
) -> tuple[Clinical, list[str]]:
    """Gather the clinical columns of the scans that are used, and `further` columns of the source, copied unchanged.

    A disguise shifts dates in further columns too. A further column that is empty, names people or places, or exists
    already is refused. Notes name values set to a limit of detection, and participants without known times.
    """
    kept = [candidate for candidate in candidates if candidate.scan.kept]
    cells = [{plain_name(name): text for name, text in candidate.columns.items()} for candidate in kept]
    found = _LimitNotes()
    data: dict[str, list[object]] = {}
    shown = [candidate.scan if disguise is None else disguise.scan(candidate.scan) for candidate in kept]
    for field in IDENTITY:
        data[field] = [getattr(scan, field) for scan in shown]
    for name in MEASURES:
        data[name] = [found.measure(name, row) for row in cells]
    times, undated = times_of(kept)
    data |= times
    described = {**IDENTITY, **MEASURES, **TIMES}
    for name in further:
        data[name] = _further(name, kept, cells, set(data), disguise)
        described[name] = f"Column {name} of the source at the visit of the scan, as it stands there"
    frame = pd.DataFrame(data, dtype=object)
    empty = [name for name in (*MEASURES, *TIMES) if name in frame and frame[name].isna().all()]
    frame = frame.drop(columns=empty).sort_values(list(IDENTITY), na_position="first", ignore_index=True)
    frame = frame.infer_objects()
    return Clinical(frame, {name: described[name] for name in frame.columns}), [*found.notes(), *undated]


class _LimitNotes:
    """Notes on cells, collected while they are read."""

    def __init__(self) -> None:
        self.limits: Counter[str] = Counter()

    def measure(self, name: str, row: Mapping[str, str]) -> float | None:
        """Value of a measure in a row keyed by `plain_name`."""
        text = next((row[key] for key in (plain_name(name), *RANGES[name].names) if key in row), None)
        value = up_to_limit(text)
        if value is None or not RANGES[name].holds(value):  # the reader of the table has reported it
            return None
        if number(text) is None:
            self.limits[f"{name} '{text}'"] += 1
        return value

    def notes(self) -> list[str]:
        if not self.limits:
            return []
        cells = listed(f"{cell} ({counted(count, 'scan')})" for cell, count in sorted(self.limits.items()))
        return [f"clinical values beyond the limit of detection are set to that limit: {cells}"]


def measure_of(candidate: Candidate, name: str) -> float | None:
    """Value of a column of `MEASURES` at the visit of a scan."""
    return _LimitNotes().measure(name, {plain_name(column): text for column, text in candidate.columns.items()})


def times_of(kept: Sequence[Candidate]) -> tuple[dict[str, list[object]], list[str]]:
    """The columns of `TIMES`, one value per scan, and a note on participants without known times."""
    years, undated = _years(kept)
    later = [one.follow_up for one in kept]
    return {
        "years_since_first_scan": list(years),
        "converted": [None if one is None else int(one.converted) for one in later],
        "months_to_conversion": [None if one is None else one.months_to_conversion for one in later],
        "months_followed": [None if one is None else one.months_followed for one in later],
        "other_dementia": [None if one is None else int(one.other_dementia) for one in later],
    }, undated


def _years(kept: Sequence[Candidate]) -> tuple[list[float | None], list[str]]:
    """Years since the first kept scan of the participant, and a note on participants for whom they are unknown.

    The same age at several visits is that of participants.tsv, not that of the visits.
    """
    months: dict[str, list[float]] = {}
    ages: dict[str, list[float]] = {}
    sessions: dict[str, set[str | None]] = {}
    when = [_months(candidate.scan) for candidate in kept]
    for candidate, month in zip(kept, when, strict=True):
        sessions.setdefault(candidate.scan.participant_id, set()).add(candidate.scan.session_id)
        if month is not None:
            months.setdefault(candidate.scan.participant_id, []).append(month)
        if candidate.scan.age is not None:
            ages.setdefault(candidate.scan.participant_id, []).append(candidate.scan.age)
    n_scans = Counter(candidate.scan.participant_id for candidate in kept)
    years: list[float | None] = []
    for candidate, month in zip(kept, when, strict=True):
        person, age = candidate.scan.participant_id, candidate.scan.age
        if len(sessions[person]) == 1:
            years.append(0.0)
        elif month is not None and len(months[person]) == n_scans[person]:
            years.append(round((month - min(months[person])) / 12, 3))
        elif age is not None and len(ages[person]) == n_scans[person] and len(set(ages[person])) > 1:
            years.append(round(age - min(ages[person]), 3))
        else:
            years.append(None)
    unknown = {candidate.scan.participant_id for candidate, known in zip(kept, years, strict=True) if known is None}
    note = (
        f"{counted(len(unknown), 'participant')} with several sessions: neither session months nor different ages "
        "give the times of the scans, so years_since_first_scan is n/a"
    )
    return years, [note] if unknown else []


def _months(scan: Scan) -> int | None:
    return visit_of(scan.session_id.removeprefix("ses-")).months if scan.session_id else None


def _further(
    name: str, kept: Sequence[Candidate], cells: Sequence[Mapping[str, str]], taken: set[str], disguise: Disguise | None
) -> list[object]:
    """Cells of a source column: numbers if all are, else text."""
    if plain_name(name) in IDENTIFYING or name.lower() in SCAN_COLUMNS or name in taken:
        why = "names people, images or places" if plain_name(name) in IDENTIFYING else "is a column of the run already"
        raise BadInputError(f"cohort.clinical_columns: {name} {why}. Remove it.")
    texts = [row.get(plain_name(name)) for row in cells]
    if all(text is None for text in texts):
        known = listed(sorted({column for candidate in kept for column in candidate.columns}), 40)
        raise BadInputError(f"cohort.clinical_columns: no scan has a value in {name}. With values: {known}.")
    texts = [None if text is not None and text.strip() in MISSING_CODES else text for text in texts]
    if disguise is not None:
        people = [candidate.scan.participant_id for candidate in kept]
        texts = disguise.texts(people, texts)
    numbers = [number(text) for text in texts]
    whole = all(value is not None for value, text in zip(numbers, texts, strict=True) if text is not None)
    return list(numbers) if whole else list(texts)
