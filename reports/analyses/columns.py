"""Columns of statistics tables as the page writes them: one title and one format per name, everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reports.page.tables import Column, footnote, text
from reports.words.numbers import fixed, number, p_cell, percent

Form = Callable[[object], str]

TEXT: Mapping[str, str] = {
    "map": "Map", "biomarker": "Biomarker", "scan_group": "Scans", "estimator": "Coefficient", "metric": "Measure",
    "covariates": "Held constant", "comparison": "Comparison", "variable": "Variable", "level": "Subgroup",
    "levels": "Subgroups", "predictor": "Predictor", "response": "Response", "between": "Between",
    "reference": "Part of", "scans": "Scans",
    "random_effects": "Random effects", "interval": "Interval", "family": "Family", "model": "Model", "site": "Site",
    "fold": "Fold",
    "treatment": "Treatment", "source": "Source", "effect": "Effect", "test": "Test", "target": "Predicted",
    "compartment": "Where", "measure": "Measure", "term": "Term", "outcome": "Outcome", "cluster": "Subtype",
    "subtype": "Subtype", "first": "First", "second": "Second", "across": "Between", "kind": "Kind",
    "expected": "Expected", "verdict": "Verdict", "where": "Clearest in", "estimate_is": "which is", "p_is": "which is",
    "planted": "What was planted", "contrast": "Contrast", "chosen": "Chosen", "compared": "Compared",
    "value": "Value", "analysis": "Analysis", "reason": "Reason", "event": "Conversion means",
    "feature": "Feature", "baseline": "Compared with",
}  # fmt: skip

RATIO, COUNT, VALUE, P, SHARE = "ratio", "count", "value", "p", "share"
FORMS: Mapping[str, Form] = {
    RATIO: lambda value: fixed(value, 2), COUNT: number, VALUE: number, P: p_cell,
    SHARE: lambda value: percent(value, 1),
}  # fmt: skip

NUMBERS: Mapping[str, tuple[str, str]] = {
    "r": ("r", RATIO), "rho": ("ρ", RATIO), "partial_r": ("Partial r", RATIO), "slope": ("Slope", VALUE),
    "ci_low": ("from", VALUE), "ci_high": ("to", VALUE), "estimate": ("Estimate", VALUE),
    "standard_error": ("Standard error", VALUE), "statistic": ("Statistic", RATIO), "difference": ("Difference", VALUE),
    "difference_low": ("from", VALUE), "difference_high": ("to", VALUE), "hedges_g": ("Hedges' g", RATIO),
    "class_difference": ("Difference", VALUE), "class_difference_low": ("from", VALUE),
    "class_difference_high": ("to", VALUE), "class_hedges_g": ("Hedges' g", RATIO), "mean_density": ("Mean density",
    VALUE),
    "mean_first": ("Mean, first", VALUE), "mean_second": ("Mean, second", VALUE), "ratio": ("Ratio", RATIO),
    "log_gain": ("Log-gain", RATIO), "log_gain_low": ("from", RATIO), "log_gain_high": ("to", RATIO),
    "log_gain_shrunk": ("Log-gain, shrunken", RATIO), "log_gain_shrunk_low": ("from", RATIO),
    "log_gain_shrunk_high": ("to", RATIO), "n_first": ("First, n", COUNT), "n_second": ("Second, n", COUNT),
    "enrichment": ("Enrichment", RATIO), "enrichment_positive": ("In {positive}", RATIO),
    "enrichment_negative": ("In {negative}", RATIO), "voxel_share": ("Share of voxels", SHARE),
    "null_mean": ("By class alone", RATIO), "overlap_chance": ("By chance", SHARE), "n_rankings": ("Rankings", COUNT),
    "n_regions": ("Regions", COUNT), "n_repeated": ("With repeated scans", COUNT), "mean_w": ("Mean w", RATIO),
    "t": ("t", RATIO), "f": ("F", RATIO),
    "hazard_ratio": ("Hazard ratio", RATIO), "concordance": ("Concordance", RATIO),
    "concordance_low": ("from", RATIO), "concordance_high": ("to", RATIO), "rest": ("Everyone else", VALUE),
    "p": ("Uncorrected p", P), "p_fwe": ("Corrected p (family-wise)", P), "p_fdr": ("Corrected p (FDR)", P),
    "p_holm": ("Corrected p (Holm)", P), "p_adjusted": ("p, adjusted", P),
    "p_fwe_adjusted": ("Corrected p (family-wise), adjusted", P), "kendall_w": ("Kendall's W", RATIO),
    "overlap": ("Overlap", SHARE), "share": ("Share", SHARE), "volume_share": ("Share of volume", SHARE),
    "accuracy": ("Accuracy", RATIO), "balanced_accuracy": ("Balanced accuracy", RATIO), "chance": ("Chance", RATIO),
    "gap": ("Gap", RATIO), "stability": ("Stability", RATIO), "gamma": ("Shift", RATIO), "scale": ("Scale", RATIO),
    "f_before": ("F before", RATIO), "f_after": ("F after", RATIO), "r2_before": ("R² before", RATIO),
    "r2_after": ("R² after", RATIO), "p_fwe_before": ("Corrected p (family-wise) before", P),
    "p_fwe_after": ("Corrected p (family-wise) after", P),
    "p_before": ("p before", P), "p_after": ("p after", P), "n_participants": ("Participants", COUNT),
    "n_scans": ("Scans", COUNT), "n_events": ("Conversions", COUNT), "n_converted": ("Conversions", COUNT),
    "n_censored": ("Without conversion", COUNT), "n_competing": ("Other dementia", COUNT),
    "n_positive": ("{positive}", COUNT), "n_negative": ("{negative}", COUNT), "n_sites": ("Sites", COUNT),
    "n_controls": ("Controls", COUNT), "mean_z": ("Mean z", RATIO), "sd_z": ("SD of z", RATIO),
    "beyond": ("Beyond ±1.96", SHARE), "k": ("Subtypes", COUNT), "gap_error": ("Gap's error", RATIO),
    "ambiguous": ("Ambiguous pairs", SHARE), "rand": ("Adjusted Rand index", RATIO), "rand_low": ("its 5 %", RATIO),
    "rand_high": ("its 95 %", RATIO), "smallest": ("Smallest", COUNT), "n_tests": ("Tests", COUNT),
    "magnitude": ("Magnitude", VALUE),
    "n_training": ("Training participants", COUNT), "n_tested": ("Tested scans", COUNT), "top": ("List length", COUNT),
}  # fmt: skip

CODED = frozenset({
    "compartment", "reference", "measure", "target", "variable", "effect", "predictor", "estimate_is", "biomarker",
    "response", "p_is", "between",
})  # fmt: skip
"""Columns of text that hold codes, written with `WORDS`."""
WORDS: Mapping[str, str] = {
    "auc": "area under the curve", "rim": "rim of the mask", "rim_inside": "inner side of the rim",
    "outside": "outside the brain", "seen": "all the network sees", "brain_and_rim": "brain and rim",
    "dark": "dark voxels", "vessel": "vessels", "no_region": "no region of the atlas",
    "own volume": "the region's own volume", "mmse": "MMSE",
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

CORRECTIONS: Mapping[str, str] = {
    "p_fwe": "family-wise, largest statistic", "p_fdr": "FDR, Benjamini–Hochberg", "p_holm": "family-wise, Holm",
}  # fmt: skip
"""Kinds of correction by the beginning of the column's name."""

LEFT_OUT = {"note": "Note"}


def correction(column: str) -> str:
    """Name of the correction that a column of p values has, to stand after `corrected p`.

    Examples
    --------
    >>> correction("p_fdr"), correction("p_fwe_before")
    ('(FDR, Benjamini–Hochberg)', '(family-wise, largest statistic)')
    """
    return next(f"({kind})" for start, kind in CORRECTIONS.items() if column.startswith(start))


def column_of(name: str) -> Column:
    """A column by its name in the table; one that the house does not know is shown as it is called."""
    if name == "group":
        return Column("group", "Region", link="group_page")
    if name == "participant_id":
        return Column("participant_id", "Participant", link="person_page")
    if name in LEFT_OUT:
        return Column(name, LEFT_OUT[name], footnote)
    if name in NUMBERS:
        title, kind = NUMBERS[name]
        return Column(name, title, FORMS[kind], True)
    if name in TEXT:
        return Column(name, TEXT[name], worded if name in CODED else text)
    title = name.replace("_", " ").capitalize()
    return Column(name, title, plain)


def worded(value: object) -> str:
    """A code of the tables in words.

    Examples
    --------
    >>> worded("rim_inside"), worded("auc"), worded("null_education"), worded(None)
    ('inner side of the rim', 'area under the curve', 'null: education', 'n/a')
    >>> worded("own volume/tiv"), worded("hippocampus/tiv")
    ("the region's own volume ÷ intracranial", 'hippocampus ÷ intracranial')
    """
    said = text(value)
    if said.endswith("/tiv"):
        return f"{worded(said.removesuffix('/tiv'))} ÷ intracranial"
    if said.startswith("null_"):
        return f"null: {said.removeprefix('null_').replace('_', ' ')}"
    return WORDS.get(said, said.replace("_", " "))


def plain(value: object) -> str:
    """A cell of a column whose kind is not known: numbers short, text as it is.

    Examples
    --------
    >>> plain(0.123456), plain("AD"), plain(None), plain(True)
    ('0.123', 'AD', 'n/a', 'yes')
    """
    return number(value) if isinstance(value, float | int) and not isinstance(value, bool) else text(value)
