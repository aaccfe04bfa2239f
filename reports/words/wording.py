"""Words for codes, variables and covariates, and the glossary: words that a page explains where they first stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

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


@dataclass(frozen=True)
class Term:
    """A word of the report."""

    id: str  # of its anchor, after ``term-``
    name: str  # as the glossary lists it
    forms: tuple[str, ...]  # spellings that are linked, the longest first
    meaning: str  # one or two sentences; ``{positive}``, ``{negative}`` and ``{start}`` are filled in from the run


GLOSSARY: Sequence[Term] = (
    Term("relevance", "Relevance", ("relevance",),
         "How much a voxel of a scan supports {positive} according to the network; negative values oppose it. "
         "It shows what the network used, not where disease is."),
    Term("susceptibility", "Susceptibility", ("susceptibility",),
         "Result of guided backpropagation: how sensitive the output is to a change of a voxel, without a sign."),
    Term("lrp", "LRP", ("LRP",),
         "Layer-wise relevance propagation: distributes the output of the network, layer by layer, to the voxels."),
    Term("beta", "β", ("β",),
         "The parameter of LRP that weights negative contributions. With β = 0 only positive contributions are used; "
         "the larger β, the more negative relevance a map has."),
    Term("start", "Start value", ("start value",),
         "The value that LRP distributes; here the {start} of {positive}. A map adds up to about this number, so maps "
         "of people classified as {positive} are larger everywhere."),
    Term("logit", "Logit", ("logits", "logit"),
         "Output of a network for a class, before softmax turns the outputs into probabilities. The difference of two "
         "logits is the log odds of the two classes."),
    Term("evidence", "Evidence", ("evidence map", "evidence maps"),
         "The logit of {positive} minus the mean of the other logits: for two classes the log odds. An evidence map "
         "divides the difference in evidence between a scan and its reference among voxels, in logits."),
    Term("reference", "Reference", ("reference scans",),
         "What an evidence map compares a scan with: scans of {negative} from the training part of the network, or "
         "their mean."),
    Term("inherent", "Inherent", ("inherent",),
         "Map of a network that is one linear map of its input for each scan (B-cos, CoDA): the summand of each voxel, "
         "read off and not estimated; less the mean of the controls' maps."),
    Term("completeness", "Completeness error", ("completeness error",),
         "Sum of an evidence map minus the difference in evidence that it should add up to; 0 for a complete map."),
    Term("sum", "Sum", ("relevance sum",), "All relevance inside a region."),
    Term("density", "Density", ("density", "densities", "densest"),
         "Sum divided by the number of voxels of the region: where relevance is concentrated. In a region of few "
         "voxels it depends on small errors of the registration."),
    Term("share", "Share of the map", ("share of the map", "shares of the map"),
         "Sum of a region divided by the absolute sums of all regions of the same scan: where relevance lies, whatever "
         "its amount. Comparable between scans whose maps differ in scale."),
    Term("gain", "Gain", ("gain",),
         "Sum divided by the mean sum of {negative} of the same test fold; 1 means as much as in {negative}. n/a if "
         "that mean is not above 0."),
    Term("log-gain", "Log-gain, shrunken", ("log-gain",),
         "Logarithm of the ratio of two groups' means; uncertain values are shrunk towards the mean of their map."),
    Term("fold", "Out-of-fold, test fold", ("out-of-fold", "test folds", "test fold"),
         "The participants are divided into folds; each fold is predicted and explained by a network trained on the "
         "others. A test adjusted for fold compares people of the same fold, who share a network."),
    Term("outcome", "True positive, false negative …", ("true-positive", "true positives", "true positive"),
         "A true positive (TP) is a scan of {positive} classified as {positive}, a false negative (FN) one classified "
         "as {negative}; a true negative (TN) is a scan of {negative} classified as {negative}, a false positive (FP) "
         "one classified as {positive}."),
    Term("balanced-accuracy", "Balanced accuracy", ("balanced accuracy",),
         "Mean of sensitivity and specificity; 0.5 is guessing, however unequal the classes are."),
    Term("corrected", "Corrected p", ("corrected p", "correction"),
         "A p value that accounts for all tests of a family: family-wise (the chance of any false positive) by "
         "the largest statistic over permutations or, where it says FDR, the share of false positives among the "
         "significant results (Benjamini and Hochberg). Uncorrected p values are always labelled as such."),
    Term("interval", "Interval", ("interval",),
         "Of a difference or a correlation, from the critical value of its permutation test, so it excludes 0 exactly "
         "where p is small; of means, from Student's t corrected for skewness; of performance, from resampling "
         "participants with all their scans within test folds and classes (bootstrap)."),
    Term("hedges", "Hedges' g", ("Hedges' g",), "A difference of means in standard deviations, for small samples."),
    Term("place", "Place", ("between place",),
         "Where a region stands among all regions by Hedges' g. Other people would give another order, so the places "
         "between which it lies are given, from intervals of its differences to all others at once."),
    Term("w-score", "W-score", ("w-scores", "w-score"),
         "Distance of a person from the value expected for {negative} of the same age, sex and further covariates, in "
         "standard deviations."),
    Term("enrichment", "Enrichment", ("enrichment",),
         "Share of relevance in part of the scan divided by its share of voxels; 1 is relevance spread evenly."),
    Term("concordance", "Concordance", ("concordance",),
         "Probability that of two people the one with the higher score converts first; 0.5 is guessing."),
    Term("combat", "ComBat, harmonisation", ("ComBat", "harmonisation"),
         "Removes effects of the site (shift and scale) from a measure, with parameters from training participants."),
)  # fmt: skip


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
