"""Codes that stand in tables, in words."""

from __future__ import annotations

from collections.abc import Mapping

from heatlas.reports.words.numbers import is_missing

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
