"""Columns of result tables: what a cell may hold, and how a page writes it.

A column's name means the same kind of thing in every table, so its form and its heading stand here, once, and what it
means where many tables say the same; otherwise the table says it (`pipeline.run.declared.Table`). A name that is not
here is a number, unless it begins with ``n_`` (a count) or ``p_`` (a p value) or ends with ``_id`` (text).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Form(Enum):
    """What the cells of a column hold; the value is the type that the documentation gives."""

    TEXT = "text"
    CODE = "text, one of a few codes"
    MAP = "text, the name of a relevance map (or volume)"
    NOTE = "text, a remark"
    FLAG = "true or false"
    COUNT = "whole number, 0 or more"
    PROBABILITY = "number between 0 and 1"
    P = "p value, between 0 and 1"
    VALUE = "number"
    RATIO = "number without a unit"
    SHARE = "number, a share of 1"


TEXTS = frozenset({Form.TEXT, Form.CODE, Form.MAP, Form.NOTE})
UNITS: Mapping[str, str] = {
    "_mm3": "mm³", "_mm": "mm", "_ml": "ml", "_degrees": "degrees", "_percent": "%", "_strength": "T",
}  # fmt: skip
"""Unit by the end of a column's name."""
MEANINGS: Mapping[str, str] = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a if the input has no sessions",
    "scan_id": "Identifier of the image in its source",
    "cohort": "run or planted, as in evaluation.tsv",
    "map": "Relevance map",
    "method": "Method that makes it; none for a map made without a network",
    "region": "Number of the region in the atlas",
    "name": "Name of the region",
    "hemisphere": "left, right or both",
    "group": "Bilateral group of regions",
    "source": "Relevance map (density) or volume",
    "ci_high": "Upper bound of the interval",
    "p_fdr": "p adjusted for the false discovery rate over the family (Benjamini-Hochberg)",
    "family": "Family of tests that p_fdr is adjusted over",
    "n_participants": "Participants",
    "n_scans": "Scans of these participants",
    "n_planted": "Planted groups",
    "n_permutations": "Number of permutations",
    "exact": "true if all distinct permutations were used",
    "note": "Why there is no value, or a caveat",
}
"""What columns of many tables mean, in the same words."""


def described(*names: str) -> dict[str, str]:
    """Columns of `MEANINGS` with their description, for the declaration of a table."""
    return {name: MEANINGS[name] for name in names}


@dataclass(frozen=True)
class DescribedColumn:
    """A column of a table.

    `meaning`: its description in the data dictionary; empty in `KNOWN`, as each table has its own. `title`: heading on
    pages, where ``{positive}`` and ``{negative}`` are the classes; empty for one made from its name.
    """

    meaning: str
    form: Form = Form.VALUE
    title: str = ""

    @property
    def is_text(self) -> bool:
        return self.form in TEXTS


def column_of(name: str, meaning: str) -> DescribedColumn:
    """A column by its name: one of `KNOWN`, or what the name itself says.

    Examples
    --------
    >>> column_of("n_events", "Conversions").form, column_of("p_fdr_after", "Adjusted p").form.name
    (<Form.COUNT: 'whole number, 0 or more'>, 'P')
    >>> column_of("density", "Relevance per voxel").form.value
    'number'
    """
    if name in KNOWN:
        return replace(KNOWN[name], meaning=meaning)
    if name.endswith("_id"):
        return DescribedColumn(meaning, Form.TEXT)
    if name.startswith("n_"):
        return DescribedColumn(meaning, Form.COUNT)
    return DescribedColumn(meaning, Form.P if name.startswith("p_") else Form.VALUE)


def unit_of(name: str) -> str:
    """Unit of a column; empty where it has none, or the column's meaning says it."""
    return "years" if name == "age" else next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


KNOWN: Mapping[str, DescribedColumn] = {
    name: DescribedColumn("", form, title)
    for form, titles in {
        Form.TEXT: {
            "analysis": "Analysis", "brain_extraction": "", "claim": "", "class_difference_interval": "",
            "classes": "", "compared": "Compared", "comparison": "Comparison", "contrast": "Contrast", "control": "",
            "covariates": "Held constant", "decision": "", "diagnosis": "", "diagnosis_source": "",
            "difference_interval": "", "distractor": "", "entry": "", "error": "", "estimator": "Coefficient",
            "event": "Conversion means", "exchanged": "Exchanged", "expected": "Expected", "family": "Family",
            "features": "", "figure": "", "first_groups": "", "first_networks": "", "flags": "", "found": "Found",
            "group": "Region", "hemisphere": "Side", "hippocampus_source": "", "image": "", "interval": "Interval",
            "label": "Class", "larger": "", "levels": "Subgroups", "lobe": "Lobe", "magnitude_unit": "", "means": "",
            "message": "", "model": "Model", "name": "Region", "networks": "", "numbers": "", "orientation": "",
            "outcome": "Outcome", "part": "", "participant_id": "Participant", "planted": "What was planted",
            "predicted": "", "progression": "",
            "random_effects": "Random effects", "rankings": "", "reason": "Reason", "removed_groups": "",
            "result": "", "rows": "", "scan_group": "Scans", "scans": "Scans", "second_networks": "", "sex": "",
            "sides": "Sides", "site": "Site", "smaller": "", "stage": "", "status": "", "tables": "", "term": "Term",
            "test": "Test", "tiv_source": "", "traceback": "", "treatment": "Treatment", "unit": "",
            "verdict": "Verdict", "volume": "", "where": "Clearest in", "worst_regions": "",
        },
        Form.CODE: {
            "between": "Between", "biomarker": "Biomarker", "cohort": "", "compartment": "Where", "differ_in": "",
            "effect": "Effect", "estimate_is": "which is", "finds": "", "follows_parameters": "", "holds": "",
            "kind": "", "local": "", "marks_rim": "", "marks_unused": "", "measure": "Measure", "method": "",
            "method_a": "", "method_b": "", "metric": "Measure", "objective": "", "p_is": "which is",
            "predictor": "Predictor", "reference": "Part of", "response": "Response", "setting": "", "severity": "",
            "target": "Predicted", "task": "", "tells_labels": "", "training": "", "variable": "Variable",
        },
        Form.MAP: {
            "map": "Map", "map_a": "", "map_b": "", "source": "Source",
        },
        Form.NOTE: {
            "note": "Note",
        },
        Form.FLAG: {
            "best": "", "chosen": "Chosen", "exact": "", "fold_held": "Within test folds", "in_consensus": "",
            "invariant": "", "is_planted": "", "kept": "", "marked": "", "passed": "",
        },
        Form.COUNT: {
            "epoch": "", "fold": "Fold", "hits": "Planted regions found", "k": "Subtypes",
            "n_censored": "Without conversion", "n_competing": "Other dementia", "n_controls": "Controls",
            "n_events": "Conversions", "n_first": "First, n", "n_gain": "Gain, n", "n_negative": "{negative}, n",
            "n_participants": "Participants", "n_planted": "Planted regions", "n_positive": "{positive}, n",
            "n_rankings": "Rankings", "n_regions": "Regions", "n_repeated": "With repeated scans", "n_scans": "Scans",
            "n_second": "Second, n", "n_sites": "Sites", "n_tested": "Tested scans", "n_tests": "Tests",
            "n_training": "Training participants", "n_voxels": "Voxels", "patient": "",
            "place_high": "to", "place_low": "Place, from", "rank": "",
            "reference_voxels": "", "region": "", "regions": "", "repeat": "", "smallest": "Smallest", "stage_a": "",
            "stage_b": "", "subtype": "Subtype", "top": "List length", "voxels": "",
        },
        Form.PROBABILITY: {
            "probability": "", "superiority": "Superiority",
        },
        Form.P: {
            "p": "Uncorrected p", "p_adjusted": "p, adjusted", "p_after": "p after",
            "p_before": "p before", "p_fdr": "Corrected p (FDR)", "p_fwe": "Corrected p (family-wise)",
            "p_fwe_adjusted": "Corrected p (family-wise), adjusted",
            "p_fwe_after": "Corrected p (family-wise) after",
            "p_fwe_before": "Corrected p (family-wise) before",
            "p_fwe_ranks": "Corrected p (family-wise), ranks", "p_proportional": "p, proportional hazards",
            "p_value": "Uncorrected p", "p_wald": "p of the interval (Wald)",
        },
        Form.VALUE: {
            "ci_high": "to", "ci_low": "from", "class_difference": "Difference",
            "class_difference_high": "to", "class_difference_low": "from", "difference": "Difference",
            "difference_high": "to", "difference_low": "from", "estimate": "Estimate",
            "level": "Subgroup", "magnitude": "Magnitude", "mean_density": "Mean density", "mean_evidence": "Evidence",
            "mean_first": "Mean, first", "mean_gain": "Mean gain",
            "mean_negative": "Mean, {negative}", "mean_positive": "Mean, {positive}", "mean_second": "Mean, second",
            "mean_share": "Share of the map", "mean_sum": "Mean sum", "rest": "Everyone else",
            "slope": "Slope", "standard_error": "Standard error", "value": "Value",
        },
        Form.RATIO: {
            "accuracy": "Accuracy", "auc": "", "balanced_accuracy": "Balanced accuracy", "chance": "Chance",
            "class_hedges_g": "Hedges' g", "class_hedges_g_high": "to", "class_hedges_g_low": "from",
            "concordance": "Concordance", "enrichment": "Enrichment", "enrichment_negative": "In {negative}",
            "enrichment_positive": "In {positive}", "expected_hits": "In a random ranking", "f": "F",
            "f_after": "F after", "f_before": "F before", "gamma": "Shift", "gap": "Gap", "gap_error": "Gap's error",
            "hazard_ratio": "Hazard ratio", "hedges_g": "Hedges' g", "hedges_g_high": "to", "hedges_g_low": "from",
            "kendall_w": "Kendall's W", "log_gain": "Log-gain", "log_gain_high": "to", "log_gain_low": "from",
            "log_gain_shrunk": "Log-gain, shrunken", "log_gain_shrunk_high": "to", "log_gain_shrunk_low": "from",
            "mean_w": "Mean w", "mean_z": "Mean z", "null_mean": "By class alone", "partial_r": "Partial r", "r": "r",
            "r2_after": "R² after", "r2_before": "R² before", "rand": "Adjusted Rand index", "rand_high": "its 95 %",
            "rand_low": "its 5 %", "ratio": "Ratio", "scale": "Scale", "sd_z": "SD of z", "statistic": "Statistic",
            "t": "t",
        },
        Form.SHARE: {
            "ambiguous": "Ambiguous pairs", "beyond": "Beyond ±1.96", "first_share": "", "overlap": "Overlap",
            "overlap_chance": "By chance", "planted_share": "", "relevance_share": "Relevance in planted regions",
            "removed_share": "", "share": "Share", "volume_share": "Share of volume",
            "voxel_share": "Share of voxels",
        },
    }.items()
    for name, title in titles.items()
}  # fmt: skip
"""Form and heading of columns by name; an empty heading is made from the name."""
