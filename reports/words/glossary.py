"""Words of the report, each explained once; where a section first uses one it is a link to its explanation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape


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
