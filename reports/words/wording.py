"""Codes of tables in words: measures, levels of factors, covariates, subgroups, contrasts, and sources of volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import MISSING, is_missing, listing, shortened

WORDS: Mapping[str, str] = {
    "auc": "area under the curve", "auc_within_folds": "area under the curve, within folds",
    "probability_less_share": "mean probability less share of the positive class",
    "share_positive": "share of the positive class", "rank_correlation": "rank correlation over regions",
    "known_sites": "new people from sites of the run", "brier": "Brier score", "mae": "mean absolute error", "r2": "R²",
    "mae_of_mean": "mean absolute error of predicting the mean", "corrected_mae": "mean absolute corrected gap",
    "gap_slope": "slope of the gap on the target", "corrected_gap_slope": "slope of the corrected gap on the target",
    "rim": "rim of the mask", "rim_inside": "inner side of the rim",
    "outside": "outside the brain", "seen": "all the network sees", "brain_and_rim": "brain and rim",
    "dark": "dark voxels", "vessel": "vessels", "no_region": "no region of the atlas",
    "own volume": "the region's own volume", "mmse": "MMSE", "nwbv": "whole-brain ÷ intracranial volume",
    "intensity": "intensity", "log_jacobian": "volume change (log-Jacobian)",
    "model": "network's score", "location": "mean", "scale": "spread", "betas": "values of β",
    "p": "uncorrected",
    "p_fwe": "family-wise", "p_fwe_before": "family-wise, before ComBat", "p_fwe_after": "family-wise, after ComBat",
    "r2_before": "R² before", "r2_after": "R² after", "partial_r": "partial r",
    "severity_cdrsb": "CDRSB", "severity_adas13": "ADAS13", "severity_mmse": "MMSE", "cdrsb": "CDRSB",
    "adas11": "ADAS11", "adas13": "ADAS13", "faq": "FAQ", "moca": "MoCA",
    "site_effect_before_combat": "site in volumes, raw", "site_effect_after_combat": "site in volumes, after ComBat",
    "site_effect_in_relevance_before_combat": "site in relevance, raw",
    "site_effect_in_relevance_after_combat": "site in relevance, after ComBat",
}  # fmt: skip


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


VARIABLES: Mapping[str, str] = {
    "fold": "test fold", "label": "class", "field_strength": "field strength", "tiv_mm3": "intracranial volume",
    "apoe4": "APOE ε4", "mmse": "MMSE", "time": "years",
}  # fmt: skip
LEVELS: Mapping[tuple[str, str], str] = {
    ("sex", "F"): "women", ("sex", "M"): "men", ("apoe4", "e4 carrier"): "carriers of APOE ε4",
    ("apoe4", "no e4"): "without APOE ε4", ("field_strength", "1.5"): "1.5 T", ("field_strength", "3"): "3 T",
}  # fmt: skip
_OTHER: Mapping[str, str] = {"men": "women", "women": "men", "3 T": "1.5 T", "1.5 T": "3 T"}
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
    return LEVELS.get((str(variable), str(level)), f"{variable_in_words(variable)} {shortened(level)}")


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
    """A sentence whose dummy variables are in words.

    Examples
    --------
    >>> without_codes("sex[T.M]: follows from the others; site[T.991]: too few")
    'men: follows from the others; site 991: too few'
    """
    return _FACTOR.sub(lambda found: level_in_words(found[1], found[2]), str(text))


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
