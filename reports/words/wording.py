"""Words for codes, variables and covariates, and the glossary: words that a page explains where they first stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import MISSING, is_missing, listing, sentence_case, shortened
from heatlas.reports.words.sentences import Words

_TOLD = Words(__file__).all
WORDS: Mapping[str, str] = _TOLD["words"]


def worded(value: object) -> str:
    """A code of the tables in words.

    Examples
    --------
    >>> worded("rim_inside"), worded("auc"), worded("null_education"), worded(None)
    ('inner side of the rim', 'area under the curve', 'null: education', 'n/a')
    >>> worded("own volume/tiv"), worded("hippocampus/tiv")
    ("the region's own volume ÷ intracranial volume", 'hippocampal volume ÷ intracranial volume')
    """
    said = "n/a" if is_missing(value) else str(value)
    if said.endswith("/tiv"):
        base = said.removesuffix("/tiv")
        return f"{'hippocampal volume' if base == 'hippocampus' else worded(base)} ÷ intracranial volume"
    if said.startswith("null_"):
        return f"null: {said.removeprefix('null_').replace('_', ' ')}"
    return WORDS.get(said, said.replace("_", " "))


OWN = "own, Jacobian of the registration"
"""Volumes that this run measures itself: of every region, and of the hippocampus where the input has none."""


def source_name(source: object) -> str:
    """Short name of an entry of ``hippocampus_source``; what it says in brackets is in the scan table.

    Examples
    --------
    >>> source_name("ADNIMERGE (FreeSurfer 5.1)"), source_name("Jacobian of the registration, test atlas")
    ('ADNIMERGE', 'own, Jacobian of the registration')
    """
    if is_missing(source):
        return "source not known"
    said = str(source)
    return OWN if said.startswith(JACOBIAN_SOURCE) else said.split(" (")[0]


def biomarker_in_words(run: RunRecord, name: object) -> str:
    """What relevance is compared with, in words; a volume with its source."""
    sources = {"hippocampus": hippocampal_source(run), "own volume": OWN}
    source = sources.get(str(name).removesuffix("/tiv"))
    return worded(name) if source is None else f"{worded(name)} ({source})"


def hippocampal_source(run: RunRecord, whole: bool = False) -> str:
    """Sources of the hippocampal volumes of the kept scans, in short or (`whole`) as the scan table has them."""
    if not run.has("scans"):
        return "source not known"
    scans = run.tables["scans"]
    known = scans[scans["kept"].astype(bool) & scans["hippocampus_mm3"].notna()]
    said = known["hippocampus_source"].dropna().astype(str)
    names = list(dict.fromkeys(said if whole else said.map(source_name)))
    return listing(names) or "source not known"


VARIABLES: Mapping[str, str] = _TOLD["variables"]
LEVELS: Mapping[str, Mapping[str, str]] = _TOLD["levels"]
"""Levels by variable."""
_OTHER: Mapping[str, str] = {"men": "women", "women": "men", "3 T": "1.5 T", "1.5 T": "3 T"}
_LOST = re.compile(r"\b(rows? without) ([^;]+)")
_ABSENT = re.compile(r"^[^:;]+(?=: no scan has a value)|(?<=, so )\S+(?= takes its place)|(?<=, nor one of )[^.;]+")
_FACTOR = re.compile(r"(?<!\w)(?:C\()?(\w+)\)?\[T\.([^\[\]]+)\]")
"""A dummy variable. It begins where a word does and its level holds no bracket: no letter is looked at twice, however
long a name is."""
_AGAINST = " - the other"


def variable_in_words(name: object) -> str:
    """A variable.

    Examples
    --------
    >>> variable_in_words("field_strength"), variable_in_words("education")
    ('field strength', 'education')
    """
    said = str(name)
    return VARIABLES.get(said, shortened(said.replace("_", " ")))


def level_in_words(variable: object, level: object) -> str:
    """A subgroup, so that it can stand alone; empty where the row is of no level.

    Examples
    --------
    >>> level_in_words("sex", "F"), level_in_words("site", 990), level_in_words("age", "below 70.4")
    ('women', 'site 990', 'age below 70.4')
    """
    if is_missing(level):
        return ""
    return LEVELS.get(str(variable), {}).get(str(level), f"{variable_in_words(variable)} {shortened(level)}")


def levels_in_words(variable: object, levels: object) -> str:
    """Several subgroups.

    Examples
    --------
    >>> levels_in_words("sex", "F, M"), levels_in_words("age", None)
    ('women, men', '')
    """
    if is_missing(levels):
        return ""
    return ", ".join(level_in_words(variable, level) for level in str(levels).split(", "))


def without_codes(text: object) -> str:
    """A sentence whose dummy variables, and columns that rows have no value of, are in words.

    Examples
    --------
    >>> without_codes("sex[T.M]: follows from the others; site[T.991]: too few")
    'men: follows from the others; site 991: too few'
    >>> without_codes("1 row without hippocampus/tiv; 2 rows without apoe")
    '1 row without hippocampal volume ÷ intracranial volume; 2 rows without APOE genotype'
    >>> without_codes("hippocampus/tiv: no scan has a value, so mmse takes its place")
    'Hippocampal volume ÷ intracranial volume: no scan has a value, so MMSE takes its place'
    >>> without_codes("the mean of CN is below the floor; log_gain uses the floor instead")
    'the mean of CN is below the floor; the logarithm of the gain uses the floor instead'
    """
    said = _FACTOR.sub(lambda found: level_in_words(found[1], found[2]), str(text))
    said = said.replace("log_gain", "the logarithm of the gain").replace(f"; {NOT_MEASURED}", "; ")
    absent = _ABSENT.sub(lambda found: _columns_in_words(found[0]), said)
    said = absent if absent == said else sentence_case(absent)
    return _LOST.sub(lambda found: f"{found[1]} {_column_in_words(found[2])}", said)


def _columns_in_words(names: str) -> str:
    """Columns of a list.

    >>> _columns_in_words("hippocampus, nwbv or mmse")
    'hippocampal volume, whole-brain ÷ intracranial volume or MMSE'
    """
    parts = enumerate(re.split("(, | or )", names))
    return "".join(part if place % 2 else _column_in_words(part) for place, part in parts)


def _column_in_words(name: str) -> str:
    return worded(name) if name.endswith("/tiv") else variable_in_words(name)


def covariates_in_words(terms: object) -> str:
    """What is held constant: each variable once, whatever its levels.

    Examples
    --------
    >>> covariates_in_words("fold, age, sex[T.M], site[T.991], site[T.992]"), covariates_in_words("age + mmse")
    ('test fold, age, sex, site', 'age, MMSE')
    """
    if is_missing(terms):
        return MISSING
    names = [_FACTOR.sub(r"\1", term.strip()) for term in re.split(r"[,+]", str(terms))]
    return ", ".join(dict.fromkeys(variable_in_words(name) for name in names if name))


def contrast_in_words(variable: object, contrast: object) -> str:
    """Which level is compared with which.

    Examples
    --------
    >>> contrast_in_words("sex", "M - the other"), contrast_in_words("field_strength", "3 - the other")
    ('men − women', '3 T − 1.5 T')
    >>> contrast_in_words("age", None)
    ''
    """
    if is_missing(contrast):
        return ""
    level = str(contrast).removesuffix(_AGAINST)
    if level == str(contrast):
        return without_codes(contrast)
    first = level_in_words(variable, level)
    return f"{first} − {_OTHER.get(first, 'the other')}"


@dataclass(frozen=True)
class Term:
    """A word of the report."""

    id: str  # of its anchor, after ``term-``
    name: str  # as the glossary lists it
    forms: Sequence[str]  # spellings that are linked, the longest first
    meaning: str  # one or two sentences; ``{positive}``, ``{negative}`` and ``{start}`` are filled in from the run


GLOSSARY: Sequence[Term] = [Term(**term) for term in _TOLD["glossary"]]


_BY_FORM: Mapping[str, Term] = {form.casefold(): term for term in GLOSSARY for form in term.forms}
_FORMS = re.compile(
    r"(?<![\w-])(" + "|".join(sorted(map(re.escape, _BY_FORM), key=len, reverse=True)) + r")(?![\w-])", re.IGNORECASE
)

_TOGETHER = re.compile(r"(?<=\d) (?=%|\d{3}\b)|(?<=[=<±]) (?=[\d−])|(?<=\w) (?=[=<±] [\d−])|(?<=\w) (?=[=<±]\xa0)")
"""Spaces at which no line may end."""


def linked(text: str) -> Markup:
    r"""Text with the first use of each word of the glossary as a link to it; no number is parted from its sign.

    Examples
    --------
    >>> linked("1 608 tests, n = 15, 5 % of them")
    Markup('1\xa0608 tests, n\xa0=\xa015, 5\xa0% of them')
    >>> linked("Gain < 1, and gain > 1.")
    Markup('<a class="term" href="#term-gain">Gain</a>\xa0&lt;\xa01, and gain &gt; 1.')
    """
    text = _TOGETHER.sub("\xa0", text)
    seen: set[str] = set()
    parts: list[Markup] = []
    end = 0
    for found in _FORMS.finditer(text):
        term = _BY_FORM[found.group().casefold()]
        if term.id in seen:
            continue
        seen.add(term.id)
        parts += [
            escape(text[end : found.start()]),
            Markup('<a class="term" href="#term-{}">{}</a>').format(term.id, found.group()),
        ]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])
