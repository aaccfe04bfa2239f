"""The settings of the cohort statistics: one frozen record per analysis, nested in `StatisticsConfig`.

A record has defaults and its checks: pairs of whether a value passes and the message if it fails.
`StatisticsConfig.checks` joins those of the nested records, and `pipeline.run.config.settings` raises the first that
fails. In TOML a nested record is a section: ``[statistics.subgroups]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Checks = list[tuple[bool, str]]
MOST_REPEATS = 10_000_000
"""Largest number of permutations or resamples; more would take weeks without benefit."""


Metric = Literal["density", "sum", "gain", "share"]


SCAN_GROUPS = ("all", "positive", "negative", "TP", "FP", "TN", "FN")


@dataclass(frozen=True)
class PrimaryConfig:
    """The primary outcome: one partial correlation over participants, named before any result."""

    region: str = "Hippocampus"
    """A bilateral group of the atlas."""
    map: str = ""
    """As in the file names. Empty: the first evidence map of the run; without one, its first map."""
    metric: Literal["auto", "density", "sum", "gain", "share"] = "auto"
    """``auto``: the sum of an evidence map, the region's share of any other."""
    biomarker: str = "auto"
    """As in associations; one number per scan, so not ``own volume`` but ``volume of GROUP``. ``auto``: the first of
    ``hippocampus/tiv``, ``hippocampus``, ``nwbv`` and ``mmse`` that any explained scan has, whatever its values are."""
    scan_group: str = "all"
    """As in associations. Over all scans of the classes, the class is held."""

    def checks(self) -> Checks:
        return [
            (
                self.scan_group in SCAN_GROUPS,
                f"statistics.primary.scan_group must be one of {', '.join(SCAN_GROUPS)}",
            ),
            (
                bool(self.region.strip() and self.biomarker.strip()),
                "statistics.primary.region and statistics.primary.biomarker must not be empty",
            ),
            (
                "own volume" not in self.biomarker,
                'statistics.primary.biomarker must be one number per scan: name the region, as in "volume of '
                'Hippocampus/tiv", instead of "own volume"',
            ),
        ]


@dataclass(frozen=True)
class AssociationsConfig:
    """Associations of relevance with biomarkers."""

    biomarkers: tuple[str, ...] = (
        "hippocampus/tiv", "own volume/tiv", "mmse", "cdrsb", "adas13", "apoe4", "abeta", "tau", "ptau",
    )  # fmt: skip
    """Columns of ``scans.tsv`` or ``clinical.tsv``, quotients of two (hippocampus and tiv need no ``_mm3``), ``own
    volume`` (of each region, from the registration) or ``volume of GROUP``, both also divided by tiv."""
    scan_groups: tuple[str, ...] = ("all", "positive")
    """Groups of scans: all, positive or negative (classes of the contrast), TP, FP, TN, FN. Over all scans of both
    classes, everything that differs between them is associated; within a class it is not."""
    metrics: tuple[Metric, ...] = ("density",)
    """What is associated."""

    def checks(self) -> Checks:
        return [
            (
                set(self.scan_groups) <= set(SCAN_GROUPS),
                f"statistics.associations.scan_groups may hold {', '.join(SCAN_GROUPS)}",
            ),
            (
                len(set(self.metrics)) == len(self.metrics) > 0,
                "statistics.associations.metrics must name at least one metric, each once",
            ),
        ]


@dataclass(frozen=True)
class GroupComparisonsConfig:
    """Comparisons of relevance between groups of scans."""

    comparisons: tuple[str, ...] = ("positive/negative", "TP/TN", "FN/TP", "FP/TN")
    """Pairs of positive, negative, TP, FP, TN, FN."""
    metrics: tuple[Metric, ...] = ("density", "share")
    """What is compared."""
    gain_floor: float = 0.05
    """Means below this share of the map's mean over regions count as that much in the log-gain."""

    def checks(self) -> Checks:
        known = {"positive", "negative", "TP", "FP", "TN", "FN"}
        pairs = [tuple(pair.split("/")) for pair in self.comparisons]
        return [
            (
                all(len(pair) == 2 and set(pair) <= known and pair[0] != pair[1] for pair in pairs),
                "statistics.group_comparisons.comparisons must be pairs such as TP/TN of positive, negative, TP, FP, "
                "TN, FN",
            ),
            (
                len(set(self.metrics)) == len(self.metrics) > 0,
                "statistics.group_comparisons.metrics must name at least one metric, each once",
            ),
            (0 < self.gain_floor < 1, "statistics.group_comparisons.gain_floor must lie between 0 and 1"),
        ]


@dataclass(frozen=True)
class SubgroupsConfig:
    """Variables of ``subgroups.tsv``, ``interactions.tsv`` and ``fairness.tsv``."""

    variables: tuple[str, ...] = ("sex", "age", "apoe4", "field_strength", "site", "mmse", "course")
    """``course`` is CN, sMCI, pMCI or AD at the scan; any column of ``scans.tsv`` or ``clinical.tsv`` will do. Numbers
    with more than six values are cut into tertiles of participants, mmse into bands, apoe4 into carriers or not."""
    minimum_participants: int = 5
    """Cells with fewer participants are suppressed and marked."""
    mmse_bands: tuple[float, ...] = (24.0, 27.0)
    """Lower bounds of the bands above the first: below 24 usually indicates dementia."""

    def checks(self) -> Checks:
        return [
            (
                self.minimum_participants >= 2,
                "statistics.subgroups.minimum_participants must be 2 or more",
            ),
            (
                list(self.mmse_bands) == sorted(set(self.mmse_bands)),
                "statistics.subgroups.mmse_bands must rise",
            ),
            (
                all(0 < bound <= 30 for bound in self.mmse_bands),
                "statistics.subgroups.mmse_bands must lie above 0 and up to 30",
            ),
        ]


@dataclass(frozen=True)
class MainEffectsConfig:
    """Variables tested in ``main_effects.tsv``, each adjusted for the others and the class."""

    variables: tuple[str, ...] = ("sex", "age", "education", "field_strength", "site")
    """Columns of ``scans.tsv`` or ``clinical.tsv``."""

    def checks(self) -> Checks:
        return [
            (
                len(set(self.variables)) == len(self.variables),
                "statistics.main_effects.variables must name each column once",
            )
        ]


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
    min_participants: int = 3
    """Sites with fewer training participants count as small."""
    small_site: Literal["pooled", "refuse"] = "pooled"
    """Small sites are joined to one, or the analysis is refused by name."""
    unseen_site: Literal["pooled", "refuse"] = "pooled"
    """A test site that is not in training is treated as the pool of small sites; without a pool it is not adjusted."""

    def checks(self) -> Checks:
        return [(self.min_participants >= 2, "statistics.harmonisation.min_participants must be 2 or more")]


@dataclass(frozen=True)
class NormativeConfig:
    """Normative scores against controls, and subtypes of patients based on them."""

    relevance_covariates: str = "age + sex + field_strength"
    """Of norms of relevance."""
    volume_covariates: str = "age + sex + field_strength + tiv_mm3"
    """Of norms of volumes."""
    min_freedom: int = 5
    """Residual degrees of freedom (controls less coefficients) below which there is no norm."""
    max_subtypes: int = 6
    """Largest number of subtypes that is tried."""
    min_subtype_participants: int = 3
    """Members of a smaller group are outliers; if the chosen number of subtypes has such a group, there are none."""
    resamples: int = 100
    """Subsamples of the consensus, bootstraps of the stability and reference data sets of the gap statistic."""
    subtype_level: Literal["removed", "kept"] = "removed"
    """Whether the mean of a fingerprint over regions is removed first, so that groups differ in pattern rather than in
    severity."""

    def checks(self) -> Checks:
        return [
            (self.min_freedom >= 2, "statistics.normative.min_freedom must be 2 or more"),
            (self.max_subtypes >= 2, "statistics.normative.max_subtypes must be 2 or more"),
            (self.min_subtype_participants >= 1, "statistics.normative.min_subtype_participants must be 1 or more"),
            (
                20 <= self.resamples <= MOST_REPEATS,
                f"statistics.normative.resamples must lie between 20 and {MOST_REPEATS:,}",
            ),
        ]


@dataclass(frozen=True)
class ProgressionConfig:
    """Conversion from MCI to AD, and change over visits."""

    min_events_per_variable: int = 5
    """A Cox model with fewer conversions per variable is not fitted (Vittinghoff & McCulloch 2007); below twice as many
    a note says so (Peduzzi et al. 1995)."""
    further_covariates: str = "mmse"
    """Covariates of the adjusted Cox models beside ``statistics.covariates``, as a formula."""
    min_participants: int = 10
    """Smallest number of participants with repeated scans for tests of change over visits."""
    trajectory_maps: tuple[str, ...] = ()
    """Maps whose regions are followed over visits, as in the file names; empty: the first map of the run (a model
    takes up to a second, and there is one per region)."""

    def checks(self) -> Checks:
        return [
            (
                self.min_events_per_variable >= 2,
                "statistics.progression.min_events_per_variable must be 2 or more",
            ),
            (self.min_participants >= 5, "statistics.progression.min_participants must be 5 or more"),
        ]


@dataclass(frozen=True)
class ShortcutsConfig:
    """Whether relevance predicts where and how a scan was made."""

    permutations: int = 1_000
    """Permutations of sites between participants; each repeats the prediction, so there are fewer than elsewhere."""
    min_participants: int = 5
    """Sites, or field strengths, with fewer participants are excluded from their prediction."""

    def checks(self) -> Checks:
        return [
            (
                99 <= self.permutations <= MOST_REPEATS,
                f"statistics.shortcuts.permutations must lie between 99 and {MOST_REPEATS:,}",
            ),
            (self.min_participants >= 2, "statistics.shortcuts.min_participants must be 2 or more"),
        ]


@dataclass(frozen=True)
class ComparisonConfig:
    """Agreement of region rankings."""

    top: int = 10
    """Number of top regions whose overlap is counted."""

    def checks(self) -> Checks:
        return [(self.top >= 1, "statistics.comparison.top must be 1 or more")]


@dataclass(frozen=True)
class VoxelwiseConfig:
    """Tests between the classes voxel by voxel: of images, volume change and the leading map."""

    permutations: int = 1_000
    """Random permutations; each makes a whole map, so there are fewer than elsewhere. 0 leaves these tests out."""
    fwhm_mm: float = 8.0
    """Smoothing before the test (full width at half maximum); voxels are about half as wide."""

    def checks(self) -> Checks:
        return [
            (
                self.permutations == 0 or 99 <= self.permutations <= MOST_REPEATS,
                f"statistics.voxelwise.permutations must be 0 or lie between 99 and {MOST_REPEATS:,}",
            ),
            (0 <= self.fwhm_mm <= 30, "statistics.voxelwise.fwhm_mm must lie between 0 and 30"),
        ]


@dataclass(frozen=True)
class StatisticsConfig:
    """Inference; the participant is the unit."""

    permutations: int = 10_000
    """Random permutations of a test; if there are not more distinct ones, all are used and p is exact."""
    bootstrap_samples: int = 2_000
    """Bootstrap draws for intervals of performance and of conversion."""
    confidence: float = 0.95
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

    def checks(self) -> Checks:
        return [
            (
                1 <= self.permutations <= MOST_REPEATS,
                f"statistics.permutations must lie between 1 and {MOST_REPEATS:,}",
            ),
            (
                100 <= self.bootstrap_samples <= MOST_REPEATS,
                f"statistics.bootstrap_samples must lie between 100 and {MOST_REPEATS:,}",
            ),
            (0.5 < self.confidence <= 0.9999, "statistics.confidence must be above 0.5 and at most 0.9999"),
            *self.primary.checks(),
            *self.associations.checks(),
            *self.group_comparisons.checks(),
            *self.subgroups.checks(),
            *self.main_effects.checks(),
            *self.harmonisation.checks(),
            *self.normative.checks(),
            *self.progression.checks(),
            *self.shortcuts.checks(),
            *self.comparison.checks(),
            *self.voxelwise.checks(),
        ]
