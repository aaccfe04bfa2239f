"""Clinical columns of scans (``clinical.tsv``, beside ``scans.tsv``), and inclusion by a rule on all columns.

Values are those at the visit of the scan, from a column under any of its usual names (``CDRSB``, ``cdr_sb``). A
concentration beyond the limit of detection (``>1700``) is set to that limit, with a note.

In a rule (``[cohort] include``) a comparison with a missing value is unknown: ``not`` keeps it unknown, ``or`` needs
one side that is met (Kleene's logic, that of pandas' nullable booleans). The first part that is not met, or not known,
is the reason of a scan.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from heatlas.pipeline.cohort.candidates import ANOTHER_PREFERRED, Candidate, drop, participant_named
from heatlas.pipeline.cohort.cells.tables import RANGES, plain_name
from heatlas.pipeline.cohort.cells.values import MISSING_CODES, number, up_to_limit, visit_of_session
from heatlas.pipeline.cohort.records import OLDEST_AGE, SCAN_COLUMNS
from heatlas.pipeline.cohort.sharing import Disguise, oldest_shown, words_of
from heatlas.pipeline.run.config.inclusion import InclusionRule, constant, dropped_because, ids_in, read_rule
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.declared import declarations
from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, listed, nearest

IDENTITY = {name: SCAN_COLUMNS[name] for name in ("participant_id", "session_id", "scan_id")}

_COLUMNS = read_toml(declarations(__file__))
MEASURES: Mapping[str, str] = _COLUMNS["measures"]
"""Columns that are copied if the source has them."""
TIMES: Mapping[str, str] = _COLUMNS["times"]
"""Columns computed from sessions and diagnoses."""

IDENTIFYING = frozenset({"rid", "ptid", "imageuid", "imageid", "subject", "subjectid", "siteid", "center", "centre"})
"""Columns, without ``_`` and in lower case, that are never copied: they name people, images or places."""

_OF_PEOPLE = """
    name names surname lastname firstname forename givenname familyname fullname middlename maidenname nickname initials
    patientname participantname subjectname nachname vorname birth birthday birthdate birthyear born dateofbirth
    yearofbirth dob yob ptdob ptdobdd ptdobmm ptdobyy ptdobyyyy geburtsdatum geburtsjahr geburtstag accession medicare
    mrn nhs passport record recordid recordnumber ssn mail email emails phone phonenumber cellphone mobile telephone
    telefon fax address addresses adresse anschrift street postal postalcode postcode plz zip zipcode
"""
"""Words of columns that name people, or say when they were born, under which number, or how to reach them."""
_OF_THINGS = """
    device drug group length manufacturer medication order protocol scanner sequence series site software study weight
"""
"""Words beside ``name`` and ``birth`` that say that no person is named: ``scanner_name``, ``birth_weight``."""


def names_people(column: str) -> bool:
    """Whether a column says who people are, by the words of its name.

    >>> [names_people(name) for name in ("Patient Name", "DOB", "birthYear", "tournament", "scanner_name", "phonemic")]
    [True, True, True, False, False, False]
    """
    words = words_of(column)
    of_people, of_things = words.intersection(_OF_PEOPLE.split()), words.intersection(_OF_THINGS.split())
    return bool(of_people) and not (of_people <= {"name", "names", "birth"} and of_things)


def require_no_person(config: CohortConfig) -> None:
    """Refuse settings by which results would show who people are: in classes, labels, rules or ``clinical.tsv``."""
    used = {
        "contrast_column": (config.contrast_column,),
        "target": (config.target,),
        "include": read_rule(config.include).columns if config.include else (),
        "clinical_columns": config.clinical_columns,
    }
    for setting, columns in used.items():
        for name in filter(names_people, columns):
            raise BadInputError(
                f"cohort.{setting}: {name} names people, or says when they were born or how to reach them, and results "
                "would show it. Leave it out; if it holds nothing of the kind, rename the column."
            )


@dataclass(frozen=True, eq=False)
class Clinical:
    """Clinical columns of the kept scans, one row each, and the descriptions of the columns."""

    frame: pd.DataFrame
    columns: Mapping[str, str]


def clinical_table(
    candidates: Sequence[Candidate], further: Sequence[str] = (), disguise: Disguise | None = None
) -> tuple[Clinical, list[str]]:
    """Clinical columns of the scans that are used, `further` columns of the source as they stand there, and notes."""
    kept = [candidate for candidate in candidates if candidate.scan.kept]
    cells = [{plain_name(name): text for name, text in candidate.columns.items()} for candidate in kept]
    limits: Counter[str] = Counter()
    shown = [candidate.scan if disguise is None else disguise.scan(candidate.scan) for candidate in kept]
    data: dict[str, list[object]] = {field: [getattr(scan, field) for scan in shown] for field in IDENTITY}
    for name in MEASURES:
        data[name] = [_measure(name, row, limits) for row in cells]
    times, notes = times_of(kept)
    data |= times
    described = {**IDENTITY, **MEASURES, **TIMES}
    for name in further:
        data[name] = _further(name, kept, cells, set(data), disguise)
        highest = "" if (oldest := oldest_shown(name)) is None else f"; ages above {oldest:g} as {oldest:g}"
        described[name] = f"Column {name} of the source at the visit of the scan, as it stands there{highest}"
    frame = pd.DataFrame(data, dtype=object)
    empty = [name for name in (*MEASURES, *TIMES) if name in frame and frame[name].isna().all()]
    frame = frame.drop(columns=empty).sort_values(list(IDENTITY), na_position="first", ignore_index=True)
    frame = frame.infer_objects()
    if limits:
        beyond = listed(f"{cell} ({counted(count, 'scan')})" for cell, count in sorted(limits.items()))
        notes = [f"clinical values beyond the limit of detection are set to that limit: {beyond}", *notes]
    return Clinical(frame, {name: described[name] for name in frame.columns}), notes


def _measure(name: str, row: Mapping[str, str], limits: Counter[str]) -> float | None:
    """Value of a measure in a row keyed by `plain_name`; cells beyond the limit of detection are counted."""
    text = next((row[key] for key in (plain_name(name), *RANGES[name].names) if key in row), None)
    value = up_to_limit(text)
    if value is None or not RANGES[name].holds(value):  # the reader of the table has reported it
        return None
    if number(text) is None:
        limits[f"{name} '{text}'"] += 1
    return value


def times_of(kept: Sequence[Candidate]) -> tuple[dict[str, list[object]], list[str]]:
    """The columns of `TIMES`, one value per scan, and a note on participants without known times."""
    years, undated = _years(kept)
    later = [candidate.follow_up for candidate in kept]
    return {
        "years_since_first_scan": list(years),
        "converted": [course and int(course.converted) for course in later],
        "months_to_conversion": [course and course.months_to_conversion for course in later],
        "months_followed": [course and course.months_followed for course in later],
        "other_dementia": [course and int(course.other_dementia) for course in later],
    }, undated


def _years(kept: Sequence[Candidate]) -> tuple[list[float | None], list[str]]:
    """Years since the first kept scan of the participant, and a note on participants for whom they are unknown.

    The same age at several visits is that of participants.tsv, not that of the visits.
    """
    when = [
        visit_of_session(scan.participant_id, scan.session_id).months if scan.session_id else None
        for scan in (candidate.scan for candidate in kept)
    ]
    of_people: dict[str, list[tuple[str | None, int | None, float | None]]] = {}
    for candidate, month in zip(kept, when, strict=True):
        scan = candidate.scan
        of_people.setdefault(scan.participant_id, []).append((scan.session_id, month, scan.age))
    years: list[float | None] = []
    for candidate, month in zip(kept, when, strict=True):
        sessions, months, ages = map(set, zip(*of_people[candidate.scan.participant_id], strict=True))
        if len(sessions) == 1:
            years.append(0.0)
        elif month is not None and None not in months:
            years.append(round((month - min(months)) / 12, 3))
        elif candidate.scan.age is not None and None not in ages and len(ages) > 1:
            years.append(round(candidate.scan.age - min(ages), 3))
        else:
            years.append(None)
    unknown = {candidate.scan.participant_id for candidate, year in zip(kept, years, strict=True) if year is None}
    note = (
        f"{counted(len(unknown), 'participant')} with several sessions: neither session months nor different ages "
        "give the times of the scans, so years_since_first_scan is n/a"
    )
    return years, [note] if unknown else []


def _further(
    name: str, kept: Sequence[Candidate], cells: Sequence[Mapping[str, str]], taken: set[str], disguise: Disguise | None
) -> list[object]:
    """Cells of a source column: numbers if all are, else text."""
    if plain_name(name) in IDENTIFYING or name.lower() in SCAN_COLUMNS or name in taken:
        why = "names people, images or places" if plain_name(name) in IDENTIFYING else "is a column of the run already"
        raise BadInputError(f"cohort.clinical_columns: {name} {why}. Remove it.")
    texts = [row.get(plain_name(name)) for row in cells]
    if all(text is None for text in texts):
        filled = listed(sorted({column for candidate in kept for column in candidate.columns}), 40)
        raise BadInputError(f"cohort.clinical_columns: no scan has a value in {name}. With values: {filled}.")
    texts = [None if text is not None and text.strip() in MISSING_CODES else text for text in texts]
    if disguise is not None:
        people = [candidate.scan.participant_id for candidate in kept]
        texts = disguise.texts(people, texts)
    numbers = [number(text) for text in texts]
    whole = all(value is not None for value, text in zip(numbers, texts, strict=True) if text is not None)
    return list(numbers) if whole else list(texts)


_NOT_COMPARED = frozenset({"label", "kept", "reason", "image"})
"""Columns of the scan table that do not describe a person or an image."""
_SIGNS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = dict(zip(_SIGNS, _COMPARISONS, strict=True))


@dataclass(frozen=True, eq=False)
class InclusionStep:
    """What one part of a rule leaves of the scans that met those before it: rows of the scan table, and counts."""

    part: str
    left: pd.DataFrame
    not_met: int
    unknown: int


class _NotComparable(ValueError):
    """What is wrong with a rule for the columns that there are."""


def apply_rule(candidates: Sequence[Candidate], include: str) -> list[Candidate]:
    kept = [candidate for candidate in candidates if candidate.scan.kept]
    if not include or not kept:
        return list(candidates)
    rule = read_rule(include)
    _require_known_ids(rule, candidates)
    reasons: list[str | None] = [None] * len(kept)
    try:
        times, _ = times_of(kept)
        frame = pd.DataFrame({name: _column(name, kept, times) for name in rule.columns}, dtype=object)
        for part, text in zip(rule.parts, rule.texts, strict=True):
            for place, value in enumerate(_met(part, frame)):
                if reasons[place] is None and (value is pd.NA or not value):
                    reasons[place] = dropped_because(text, unknown=value is pd.NA)
    except _NotComparable as error:
        raise BadInputError(f"cohort.include = {include!r}: {error}") from error
    decided = iter(reasons)
    decisions = drop(candidates, lambda candidate: next(decided))
    if not any(candidate.scan.kept for candidate in decisions):
        table = pd.DataFrame({"kept": False, "reason": [candidate.scan.reason for candidate in decisions]})
        raise _keeps_nobody(include, steps(table, rule), frame)
    return decisions


def _require_known_ids(rule: InclusionRule, candidates: Sequence[Candidate]) -> None:
    """Refuse ids that no scan has, used or dropped: a misspelt one would leave out nobody, and nobody would notice."""
    named = dict.fromkeys(pair for part in rule.parts for pair in ids_in(part))
    for column in dict.fromkeys(column for column, _ in named):
        known = sorted({str(getattr(candidate.scan, column)) for candidate in candidates})
        unknown = [name for of, name in named if of == column and name not in known]
        if unknown:
            of_people = column == "participant_id"  # which may be meant by 07 or 002_S_0295
            full = [participant_named(name, set(known)) if of_people else name for name in unknown]
            near = did_you_mean(*(nearest(name, known) for name in full))
            raise BadInputError(
                f"cohort.include: no scan has the {column} {listed(unknown)}.{near} The "
                f"{counted(len(known), 'id')} of the input begin {', '.join(known[:3])}."
            )


def scans_reached(scans: pd.DataFrame, rule: InclusionRule) -> pd.DataFrame:
    """Scans on which the rule decided: used, or dropped by it or in the choice of one per session, which follows."""
    by_rule = [dropped_because(part, unknown) for part in rule.texts for unknown in (False, True)]
    reasons = scans["reason"].fillna("").astype(str)
    return scans[scans["kept"].astype(bool) | reasons.isin(by_rule) | reasons.str.startswith(ANOTHER_PREFERRED)]


def steps(scans: pd.DataFrame, rule: InclusionRule) -> list[InclusionStep]:
    """What each part of a rule left, from the columns ``kept`` and ``reason`` of a scan table."""
    results, left = [], scans_reached(scans, rule)
    for part in rule.texts:
        not_met, unknown = (left["reason"] == dropped_because(part, missing) for missing in (False, True))
        left = left[~not_met & ~unknown]
        results.append(InclusionStep(part, left, int(not_met.sum()), int(unknown.sum())))
    return results


def _column(name: str, kept: Sequence[Candidate], times: Mapping[str, list[object]]) -> list[object]:
    """Values of a column of the run or else of the source, whatever its case; refused if no scan has one."""
    values = _of_run(name, kept, times)
    if all(value is None for value in values):
        values = _of_source(name, kept)
    if any(value is not None for value in values):
        return values
    ours = [*(name for name in SCAN_COLUMNS if name not in _NOT_COMPARED), *MEASURES, *TIMES]
    filled = {name for name in ours if any(value is not None for value in _of_run(name, kept, times))}
    source = {name for candidate in kept for name in candidate.columns if plain_name(name) not in IDENTIFYING}
    there = sorted(filled | {name for name in source if name.lower() not in filled}, key=str.lower)
    meant = nearest(name, there)
    shown = listed(there, 8 if meant else 60)
    raise _NotComparable(f"no scan has a value in {name}.{did_you_mean(meant)} Columns with values: {shown}.")


def _of_run(name: str, kept: Sequence[Candidate], times: Mapping[str, list[object]]) -> list[object]:
    """Values of a column of the scan table or the clinical table; ages as the tables write them."""
    lower = name.lower()
    if lower == "age":
        return [None if candidate.scan.age is None else min(candidate.scan.age, OLDEST_AGE) for candidate in kept]
    if lower in SCAN_COLUMNS and lower not in _NOT_COMPARED:
        return [getattr(candidate.scan, lower) for candidate in kept]
    if lower in TIMES:
        return times[lower]
    cells = [{plain_name(column): text for column, text in candidate.columns.items()} for candidate in kept]
    return [_measure(lower, row, Counter()) if lower in MEASURES else None for row in cells]


def _of_source(name: str, kept: Sequence[Candidate]) -> list[object]:
    if plain_name(name) in IDENTIFYING:
        return [None] * len(kept)
    cells = [{column.lower(): text for column, text in candidate.columns.items()} for candidate in kept]
    texts = [candidate.columns.get(name, lower.get(name.lower())) for candidate, lower in zip(kept, cells, strict=True)]
    return [None if text in MISSING_CODES else text for text in texts]


def _met(node: ast.expr, frame: pd.DataFrame) -> pd.Series:
    if isinstance(node, ast.BoolOp):
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return functools.reduce(join, [_met(part, frame) for part in node.values])
    if isinstance(node, ast.UnaryOp):
        return ~_met(node.operand, frame)
    if not isinstance(node, ast.Compare):
        raise TypeError(f"{ast.unparse(node)} is no condition")  # read_rule refuses it
    pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
    compared = [_compare(left, sign, right, frame) for left, sign, right in pairs]
    return functools.reduce(operator.and_, compared)


def _compare(left: ast.expr, sign: ast.cmpop, right: ast.expr, frame: pd.DataFrame) -> pd.Series:
    """One comparison, of numbers or of text, NA where a value is missing."""
    wanted = [constant(node) for node in getattr(right, "elts", (right, left))]
    as_text = any(isinstance(value, str) for value in wanted)
    first = _side(left, frame, as_text)
    if isinstance(sign, (ast.In, ast.NotIn)):
        met = first.isin(wanted)
        result = met if isinstance(sign, ast.In) else ~met
        return result.astype("boolean").mask(first.isna())
    if as_text and not isinstance(sign, (ast.Eq, ast.NotEq)):
        raise _NotComparable(
            f"text is compared by ==, != or in, not as in "
            f"{ast.unparse(ast.Compare(left, [sign], [right]))}. A number is written without quotes."
        )
    second = _side(right, frame, as_text)
    result = pd.Series(_ORDER[type(sign)](first, second), index=frame.index).astype("boolean")
    return result.mask(first.isna() | second.isna())


def _side(node: ast.expr, frame: pd.DataFrame, as_text: bool) -> pd.Series:
    """Values of a side of a comparison, as numbers or as text; a column must hold such."""
    if not isinstance(node, ast.Name):
        return pd.Series([constant(node)] * len(frame), index=frame.index)
    column = frame[node.id]
    filled = column.dropna()
    numeric = filled.map(lambda value: not isinstance(value, str)).all()
    if as_text:
        if numeric:
            raise _NotComparable(f"{node.id} holds numbers ({_examples(filled)}); write them without quotes.")
        return column
    values = column if numeric else column.map(number, na_action="ignore")
    if values.isna().all():
        raise _NotComparable(
            f"{node.id} holds text ({_examples(filled)}), not numbers; compare it with quoted text: "
            f'{node.id} == "{filled.iloc[0]}".'
        )
    return values.astype(float)


def _keeps_nobody(include: str, results: Sequence[InclusionStep], frame: pd.DataFrame) -> BadInputError:
    parts = [
        f"{step.part} leaves {len(step.left)} ({step.not_met} not met, {step.unknown} unknown)" for step in results
    ]
    last = next(step for step in results if step.left.empty)
    there = [f"{name}: {_span(frame[name])}" for name in read_rule(last.part).columns]
    return BadInputError(
        f"cohort.include = {include!r} keeps none of {counted(len(frame), 'scan')}: {'; '.join(parts)}. In the input, "
        f"{'; '.join(there)}. Correct the rule."
    )


def _span(values: pd.Series) -> str:
    """What a column holds, for a message."""
    filled = values.dropna()
    read = [number(cell) if isinstance(cell, str) else float(cell) for cell in filled]
    numbers = [cell for cell in read if cell is not None]
    if len(numbers) == len(read):
        return f"{min(numbers):g} to {max(numbers):g}"
    return _examples(filled)


def _examples(filled: pd.Series) -> str:
    return listed([str(value) for value in filled.value_counts().index], 8)
