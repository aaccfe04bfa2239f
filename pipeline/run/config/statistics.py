"""Settings of the cohort statistics and of the bench: one frozen record per analysis.

In TOML a nested record is a section: ``[statistics.subgroups]``, ``[evaluation.grids]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from heatlas.pipeline.run.config.ranges import RISING, Count, Limit, above, at_least, between, matching, naming

MOST_REPEATS = 10_000_000
"""Largest number of permutations or resamples; more would take weeks without benefit."""
AtLeastTwo = Annotated[int, at_least(2)]
Metrics = Annotated[tuple[Literal["density", "sum", "gain", "share"], ...], naming(1, "metric", once=True)]
ScanGroup = Literal["all", "positive", "negative", "TP", "FP", "TN", "FN"]
_GROUP = "(positive|negative|TP|FP|TN|FN)"
_PAIR = matching(rf"{_GROUP}/(?!\1$){_GROUP}", "be a pair such as TP/TN of two of positive, negative, TP, FP, TN, FN")
_NONE_OR_MANY = Limit(
    f"be 0, or between 99 and {MOST_REPEATS:,}", lambda number: number == 0 or 99 <= number <= MOST_REPEATS
)
_BIOMARKER = matching(
    r"(?!.*own volume).*\S.*",
    'be one number per scan: name the region, as in "volume of Hippocampus/tiv", instead of "own volume"',
)


@dataclass(frozen=True)
class PrimaryConfig:
    """The primary outcome: one partial correlation over participants, named before any result."""

    region: Annotated[str, matching(r".*\S.*", "not be empty")] = "Hippocampus"
    """A bilateral group of the atlas."""
    map: str = ""
    """As in the file names. Empty: the first evidence map of the run; without one, its first map."""
    metric: Literal["auto", "density", "sum", "gain", "share"] = "auto"
    """``auto``: the sum of an evidence map, the region's share of any other."""
    biomarker: Annotated[str, _BIOMARKER] = "auto"
    """As in associations; one number per scan, so not ``own volume`` but ``volume of GROUP``. ``auto``: the first of
    ``hippocampus/tiv``, ``hippocampus``, ``nwbv`` and ``mmse`` that any explained scan has, whatever its values are."""
    scan_group: ScanGroup = "all"
    """As in associations. Over all scans of the classes, the class is held."""


@dataclass(frozen=True)
class AssociationsConfig:
    """Associations of relevance with biomarkers."""

    biomarkers: tuple[str, ...] = (
        "hippocampus/tiv", "own volume/tiv", "mmse", "cdrsb", "adas13", "apoe4", "abeta", "tau", "ptau",
    )  # fmt: skip
    """Columns of ``scans.tsv`` or ``clinical.tsv``, quotients of two (hippocampus and tiv need no ``_mm3``), ``own
    volume`` (of each region, from the registration) or ``volume of GROUP``, both also divided by tiv."""
    scan_groups: tuple[ScanGroup, ...] = ("all", "positive")
    """Groups of scans: all, positive or negative (classes of the contrast), TP, FP, TN, FN. Over all scans of both
    classes, everything that differs between them is associated; within a class it is not."""
    metrics: Metrics = ("density",)
    """What is associated."""


@dataclass(frozen=True)
class GroupComparisonsConfig:
    """Comparisons of relevance between groups of scans."""

    comparisons: Annotated[tuple[str, ...], _PAIR] = ("positive/negative", "TP/TN", "FN/TP", "FP/TN")
    """Pairs of positive, negative, TP, FP, TN, FN."""
    metrics: Metrics = ("density", "share")
    """What is compared."""
    gain_floor: Annotated[float, above(0, below=1)] = 0.05
    """Means below this share of the map's mean over regions count as that much in the log-gain."""


@dataclass(frozen=True)
class SubgroupsConfig:
    """Variables of ``subgroups.tsv``, ``interactions.tsv`` and ``fairness.tsv``."""

    variables: tuple[str, ...] = ("sex", "age", "apoe4", "field_strength", "site", "mmse", "course")
    """``course`` is CN, sMCI, pMCI or AD at the scan; any column of ``scans.tsv`` or ``clinical.tsv`` will do. Numbers
    with more than six values are cut into tertiles of participants, mmse into bands, apoe4 into carriers or not."""
    minimum_participants: AtLeastTwo = 5
    """Cells with fewer participants are suppressed and marked."""
    mmse_bands: Annotated[tuple[float, ...], RISING, above(0, up_to=30)] = (24.0, 27.0)
    """Lower bounds of the bands above the first: below 24 usually indicates dementia."""


@dataclass(frozen=True)
class MainEffectsConfig:
    """Variables tested in ``main_effects.tsv``, each adjusted for the others and the class."""

    variables: Annotated[tuple[str, ...], naming(0, "column", once=True)] = (
        "sex",
        "age",
        "education",
        "field_strength",
        "site",
    )
    """Columns of ``scans.tsv`` or ``clinical.tsv``."""


@dataclass(frozen=True)
class HarmonisationConfig:
    """ComBat over sites, fitted outside the fold that it is applied to."""

    site_column: str = "site"
    """Column of the site or scanner of a scan."""
    relevance_covariates: str = "age + sex"
    """As `volume_covariates`, for relevance."""
    volume_covariates: str = "age + sex + tiv_mm3"
    """Their effects are kept. The class is never among them, since it must not be used for test participants."""
    training_covariates: str = "label"
    """Used only while the model is fitted, so that the disease is not removed at sites with many patients."""
    empirical_bayes: bool = True
    """Draw the estimates of a site towards their mean over regions, more so the fewer participants it has."""
    reference_site: str = ""
    """Site to which the others are adjusted. Empty: all are adjusted to the mean."""
    min_participants: AtLeastTwo = 3
    """Sites with fewer training participants count as small."""
    small_site: Literal["pooled", "refuse"] = "pooled"
    """Small sites are joined to one, or the analysis is refused by name."""
    unseen_site: Literal["pooled", "refuse"] = "pooled"
    """A test site that is not in training is treated as the pool of small sites; without a pool it is not adjusted."""


@dataclass(frozen=True)
class NormativeConfig:
    """Normative scores against controls, and subtypes of patients based on them."""

    relevance_covariates: str = "age + sex + field_strength"
    """Covariates of norms of relevance."""
    volume_covariates: str = "age + sex + field_strength + tiv_mm3"
    """Covariates of norms of volumes."""
    min_freedom: AtLeastTwo = 5
    """Residual degrees of freedom (controls less coefficients) below which there is no norm."""
    max_subtypes: AtLeastTwo = 6
    """Largest number of subtypes that is tried."""
    min_subtype_participants: Count = 3
    """Members of a smaller group are outliers; if the chosen number of subtypes has such a group, there are none."""
    resamples: Annotated[int, between(20, MOST_REPEATS)] = 100
    """Subsamples of the consensus, bootstraps of the stability and reference data sets of the gap statistic."""
    subtype_level: Literal["removed", "kept"] = "removed"
    """Whether the mean of a fingerprint over regions is removed first, so that groups differ in pattern rather than in
    severity."""


@dataclass(frozen=True)
class ProgressionConfig:
    """Conversion from MCI to AD, and change over visits."""

    min_events_per_variable: AtLeastTwo = 5
    """A Cox model with fewer conversions per variable is not fitted (Vittinghoff & McCulloch 2007); below twice as many
    a note says so (Peduzzi et al. 1995)."""
    further_covariates: str = "mmse"
    """Covariates of the adjusted Cox models beside ``statistics.covariates``, as a formula."""
    min_participants: Annotated[int, at_least(5)] = 10
    """Smallest number of participants with repeated scans for tests of change over visits."""
    trajectory_maps: tuple[str, ...] = ()
    """Maps whose regions are followed over visits, as in the file names; empty: the first map of the run (a model
    takes up to a second, and there is one per region)."""


@dataclass(frozen=True)
class ShortcutsConfig:
    """Whether relevance predicts where and how a scan was made."""

    permutations: Annotated[int, between(99, MOST_REPEATS)] = 1_000
    """Permutations of sites between participants; each repeats the prediction, so there are fewer than elsewhere."""
    min_participants: AtLeastTwo = 5
    """Sites, or field strengths, with fewer participants are excluded from their prediction."""


@dataclass(frozen=True)
class ComparisonConfig:
    """Agreement of region rankings."""

    top: Count = 10
    """Number of top regions whose overlap is counted."""


@dataclass(frozen=True)
class VoxelwiseConfig:
    """Tests between the classes voxel by voxel: of images, volume change and the leading map."""

    permutations: Annotated[int, _NONE_OR_MANY] = 1_000
    """Random permutations; each makes a whole map, so there are fewer than elsewhere. 0 leaves these tests out."""
    fwhm_mm: Annotated[float, between(0, 30)] = 8.0
    """Smoothing before the test (full width at half maximum); voxels are about half as wide."""


@dataclass(frozen=True)
class StatisticsConfig:
    """Inference; the participant is the unit."""

    permutations: Annotated[int, between(1, MOST_REPEATS)] = 10_000
    """Random permutations of a test; if there are not more distinct ones, all are used and p is exact."""
    bootstrap_samples: Annotated[int, between(100, MOST_REPEATS)] = 2_000
    """Bootstrap draws for intervals of performance and of conversion."""
    confidence: Annotated[float, above(0.5, up_to=0.9999)] = 0.95
    """Confidence level of all intervals."""
    covariates: str = "age + sex + field_strength"
    """Covariates of tests over participants, as a formula; uninformative columns are left out and named."""
    fold_effect: bool = True
    """Adjust tests on relevance for the test fold: the maps of each fold come from a different network with its own
    scale. Otherwise a covariate that is unbalanced over folds appears as an effect (docs/cohort_analyses.md)."""
    primary: PrimaryConfig = field(default_factory=PrimaryConfig)
    associations: AssociationsConfig = field(default_factory=AssociationsConfig)
    group_comparisons: GroupComparisonsConfig = field(default_factory=GroupComparisonsConfig)
    subgroups: SubgroupsConfig = field(default_factory=SubgroupsConfig)
    main_effects: MainEffectsConfig = field(default_factory=MainEffectsConfig)
    harmonisation: HarmonisationConfig = field(default_factory=HarmonisationConfig)
    normative: NormativeConfig = field(default_factory=NormativeConfig)
    progression: ProgressionConfig = field(default_factory=ProgressionConfig)
    shortcuts: ShortcutsConfig = field(default_factory=ShortcutsConfig)
    comparison: ComparisonConfig = field(default_factory=ComparisonConfig)
    voxelwise: VoxelwiseConfig = field(default_factory=VoxelwiseConfig)


@dataclass(frozen=True)
class GridsConfig:
    """How many grids are made, and how finely methods are computed in them; docs/evaluation.md.

    The defaults are those of the literature where it has any.
    """

    kinds: Annotated[tuple[Literal["needle", "corner", "pair"], ...], naming(1, "kind", once=True)] = (
        "needle",
        "corner",
        "pair",
    )
    """Which are made; with ``--quick`` never pairs."""
    per_class: Annotated[int, between(1, 100_000)] = 2
    """Scans of each class and fold that are explained in each kind of grid; with ``--quick`` half as many."""
    top: Annotated[float, above(0, up_to=1)] = 0.5
    """Share of the recognised scans of each class, the most confident, that may stand in a grid."""
    layout: Annotated[tuple[int, int, int], at_least(1)] = (2, 2, 1)
    """Cells along each axis of grids of more than two cells."""
    steps: Annotated[int, between(1, 10_000)] = 20
    """Points on the path of integrated gradients."""
    masks: Annotated[int, between(1, 1_000_000)] = 1000
    """Random masks of RISE, each one pass of the network."""
    boxes: Annotated[int, between(1, 100)] = 3
    """Boxes of occlusion along each edge of a cell."""

    def checks(self) -> list[tuple[bool, str]]:
        cells = math.prod(self.layout)
        return [(3 <= cells <= 64, "evaluation.grids.layout must name three whole numbers, and 3 to 64 cells in all")]


@dataclass(frozen=True)
class EvaluationConfig:
    """How maps are judged against the network itself."""

    scans: Annotated[int, at_least(0)] = 0
    """Positive scans of each fold with curves of insertion and deletion and repeated maps, which are slow; 0 for as
    many as make twelve in all. Average drop, gain and increase are measured in every positive scan."""
    steps: Annotated[int, between(2, 1000)] = 20
    """Steps of the curves of insertion and deletion."""
    samples: Annotated[int, between(1, 100)] = 2
    """Changed scans of max-sensitivity; each takes another map of every method."""
    shift: Annotated[int, between(0, 32)] = 0
    """Voxels by which the same scans are moved along the diagonal, forward and back, to ask whether maps move with
    them; 0 does not ask. Each method makes two more maps."""
    shifts: Annotated[tuple[int, ...], naming(0, once=True), between(0, 32)] = ()
    """The same for several shifts, such as 0 to 8, in a table of their own (``shift_curve.tsv``): how far maps depend
    on where the scan lies. Each shift makes two more maps by each method."""
    replacement: Literal["controls", "air"] = "controls"
    """What is shown in place of what is taken away: the mean of training controls, or air (0), with which Opti-CAM
    is optimised."""
    pairs: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Pairs of bilateral groups of the atlas, such as ``Hippocampus + Entorhinal area``, that the interactions take
    away alone and together, beside the two sides of each group."""
    objective_weights: Annotated[tuple[float, ...], naming(0, once=True), between(0, 1_000_000)] = ()
    """Weights in place of `objective.weight` that ``--parts objective`` also trains networks with, as long as those of
    the run; one of all is chosen on the validation parts. None compares the networks of the run with weight 0 alone."""
    grids: GridsConfig = field(default_factory=GridsConfig)
