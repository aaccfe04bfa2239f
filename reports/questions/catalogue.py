"""The sections about analyses of the statistics stage: what each asks, and which rows and columns answer it."""

from __future__ import annotations

from collections.abc import Sequence

from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES
from heatlas.reports.frame import pages
from heatlas.reports.questions import audit_verdicts, findings, map_verdicts, verdicts
from heatlas.reports.questions.question import ANY_TASK, CLASSES, Question
from heatlas.reports.questions.views import IntervalChart, View
from heatlas.reports.read.run_record import OUTCOMES

_N = ("n_participants", "n_scans")
_CI = ("ci_low", "ci_high")
_G = ("hedges_g", "hedges_g_low", "hedges_g_high")

_CORRELATION = (
    "biomarker", "scan_group", "estimator", "covariates", "map", "group", "r", *_CI, "p", "p_fwe", "p_fdr", *_N, "note",
)  # fmt: skip

PRIMARY = Question(
    "primary", "The primary outcome", "Primary outcome", pages.PERFORMANCE,
    "The one question that this run named before any result ([statistics.primary] of its configuration), so its p "
    "needs no correction. All other tests are secondary (a question of the study, corrected over all of its tests) or "
    "exploratory (several questions or audits side by side, not corrected for each other); the caption of each table "
    "says which, over which family its p values are corrected, and how.",
    (
        View(
            "primary", "One test.",
            ("map", "metric", "group", "biomarker", "scan_group", "covariates", "r", *_CI, "p", "exchanged", *_N,
             "note"), leading=False,
        ),
    ),
    answer=verdicts.primary,
    tasks=CLASSES,
)  # fmt: skip

ASSOCIATIONS = Question(
    "associations", "Does relevance follow clinical measures?", "Clinical measures", pages.CLINICAL,
    "Correlation over participants of regional relevance with volumes, scores and further measures at the visit of "
    "the scan; each person's scans are averaged first and participants are permuted. Corrected p values take account "
    "of all regions and maps of a question at once. A correlation over both classes together also reflects "
    "the difference between the classes; a correlation within a class does not.",
    (
        View(
            "associations", "Within a class: density against clinical measures, clearest first.", _CORRELATION,
            where={"metric": ["density"], "scan_group": ["{positive}", "{negative}", *OUTCOMES]},
            order=("p_fwe", "-r"), shown=20, finding="p_fwe", optional=True,
            intervals=IntervalChart(("biomarker", "group", "scan_group", "map", "estimator"), "r", "ci_low", "ci_high",
                                "correlation"),
        ),
        View(
            "associations", "Over both classes: density against clinical measures, clearest first.", _CORRELATION,
            where={"metric": ["density"], "scan_group": ["all", None]}, order=("p_fwe", "-r"), shown=10,
            finding="p_fwe", optional=True,
            text="Over {positive} and {negative} together, relevance and most measures differ between the classes, "
            "relevance because maps are scaled by the {start} of {positive}. A correlation here may reflect "
            "only that.",
        ),
    ),
    answer=verdicts.associations,
    tasks=CLASSES,
)  # fmt: skip

_MEASURED = ("fold", "metric", "estimate", *_CI, *_N)

NUMBER_PERFORMANCE = Question(
    "number-performance",
    "How well is the number predicted?",
    "Performance",
    pages.PERFORMANCE,
    "{predicted} "
    "A network should do better than the mean of the target. The gap (predicted minus true) falls with the target "
    "wherever prediction is imperfect; the corrected gap is the gap minus this trend, a line fitted to the other folds "
    "(de Lange & Cole 2020). It uses the true value, so it describes a person and does not measure the prediction.",
    (
        View(
            "performance_number",
            "Out-of-fold predictions of all folds together.",
            (*_MEASURED, "note"),
            where={"fold": ["all"]},
        ),
        View("performance_number", "Test participants of each fold.", _MEASURED, shown=40),
    ),
    tasks=frozenset({NUMBER}),
)
CLASSES_PERFORMANCE = Question(
    "classes-performance", "How well are the classes distinguished?", "Performance", pages.PERFORMANCE,
    "{predicted} "
    "The balanced accuracy is the mean over classes of the share of their scans that are recognised.",
    (
        View("performance_classes", "Predictions of all folds together.", _MEASURED, where={"fold": ["all"]}),
        View(
            "confusion", "Scans by true and predicted class, all folds together.",
            ("label", "predicted", "n_scans", "n_participants", "share"), where={"fold": ["all"]}, shown=100,
        ),
    ),
    tasks=frozenset({SEVERAL_CLASSES}),
)  # fmt: skip
BASELINES = Question(
    "baselines", "Do the networks add anything to simple predictors?", "Simple predictors", pages.PERFORMANCE,
    "Ridge regression (logistic for classes) learned from the same people as the network of each fold, and was tested "
    "on the same people. Each predictor sees one thing: age and sex; volumes, where they are known; the mean and the "
    "spread of intensity in each region; the smoothed image. Maps of a network that adds nothing to them may still be "
    "right, but a table of regions would have told as much.",
    (
        View(
            "baselines", "Each predictor against the networks, best first.",
            ("baseline", "metric", "estimate", *_CI, "network", "difference", "difference_low", "difference_high", "p",
             "verdict", *_N),
        ),
    ),
    answer=audit_verdicts.baselines,
    tasks=ANY_TASK,
)  # fmt: skip
REPEATS = Question(
    "repeats", "Does the performance depend on the seed of the training?", "Repeats", pages.PERFORMANCE,
    "Each fold was trained several times with other seeds, on the same registration and the same split. Heatmaps are "
    "those of the first training.",
    (
        View("performance_repeats", "Out-of-fold predictions of each training, mean and standard deviation, and the "
             "mean of folds with an interval that includes training again.",
             ("repeat", "metric", "estimate", *_CI, "interval", *_N, "note"), shown=40),
    ),
    tasks=ANY_TASK,
)  # fmt: skip
NUMBER_ASSOCIATIONS = Question(
    "number-associations", "Does relevance follow the number?", "Relevance and the number", pages.CLINICAL,
    "Correlation over participants of regional relevance with the target, with the corrected gap and with further "
    "measures; each person's scans are averaged first and participants are permuted. Corrected p values take account "
    "of all regions and maps of a question at once. Maps explain the predicted number, so regions whose relevance "
    "follows the target contribute most to the prediction.",
    (
        View("associations", "Density against the target and further measures, clearest first.", _CORRELATION,
             where={"metric": ["density"]}, order=("p_fwe", "-r"), shown=20, finding="p_fwe"),
    ),
    answer=findings.follows_number,
    tasks=frozenset({NUMBER}),
)  # fmt: skip

_COMPARED = (
    "comparison", "map", "group", "mean_first", "mean_second", "difference", *_CI, *_G, "p_fwe",
    "p_fwe_adjusted", "n_first", "n_second", "note",
)  # fmt: skip

COMPARISONS = Question(
    "comparisons", "Where do groups differ?", "Group comparisons", pages.REGIONS,
    "Classes, and right and wrong predictions, compared region by region over participants, with the test fold held. "
    "Outcomes (true and false positives and negatives) are defined by the network's output, which LRP and evidence "
    "maps divide among voxels; a difference between outcomes is therefore partly one of the output itself. "
    "The first tables show where relevance lies (share of the map), the last how much of it there is (density). With "
    "several test folds, the difference, its interval and g are within folds and may differ from the difference of the "
    "two means. Adjusted p: covariates are held constant too.",
    (
        View(
            "group_comparisons", "Share of the map in {positive} and {negative}, clearest first.", _COMPARED,
            where={"metric": ["share"], "comparison": ["{positive}/{negative}", "positive/negative"]},
            order=("p_fwe", "-hedges_g"), shown=20, finding="p_fwe", optional=True,
            intervals=IntervalChart(("group", "map"), "difference", "ci_low", "ci_high",
                                    "difference in share of the map", n=("n_first", "n_second")),
        ),
        View(
            "group_comparisons", "Share of the map, every comparison; outcomes condition on the network's output.",
            _COMPARED, where={"metric": ["share"]},
            order=("p_fwe", "-hedges_g"), shown=10, finding="p_fwe", optional=True,
        ),
        View(
            "group_comparisons", "Density between groups, clearest first.",
            ("comparison", "map", "group", "difference", *_CI, *_G, "p_fwe", "p_fwe_adjusted", "log_gain_shrunk",
             "log_gain_shrunk_low", "log_gain_shrunk_high", "n_first", "n_second", "note"),
            where={"metric": ["density"]}, order=("p_fwe", "-hedges_g"), shown=10, finding="p_fwe", optional=True,
            text="A density is not divided by the map's total, and a map adds up to about the {start} of {positive}, "
            "whatever the region. Between {positive} and {negative}, and between other groups that the "
            "network predicts differently, density therefore differs nearly everywhere: read the share of the map "
            "first. The log-gain is the logarithm of the ratio of two means. Shrinkage pulls uncertain log-gains "
            "towards the mean of their map, so that ratios of two very small means do not lead the list.",
        ),
    ),
    answer=verdicts.comparisons,
)  # fmt: skip

EFFECTS = Question(
    "effects", "Regions that tell the classes apart", "Region effects", pages.REGIONS,
    "Density of relevance in each region, compared between the classes. Read this with care, and the share of the map "
    "first: densities are not divided by the map's total, which is nearly the {start} of {positive}. A difference in "
    "almost every region therefore repeats the prediction and is no finding about the region. The corrected p is "
    "family-wise, over all maps and regions at once.",
    (
        View(
            "group_comparisons", "The clearest differences of the leading maps, {positive} first.",
            ("map", "group", "mean_first", "mean_second", "difference", *_CI, *_G, "t", "n_first", "n_second",
             "p_fwe", "p_fdr", "note"), where={"metric": ["density"], "comparison": ["{positive}/{negative}"]},
            order=("p_fwe", "-t"), shown=30, finding="p_fwe",
        ),
    ),
    answer=verdicts.effects,
    requires=("group_comparisons",),
    absent="Differences between the classes have not been tested yet.",
)  # fmt: skip

REGION_MEANS = Question(
    "region-means", "All regions", "Region table", pages.REGIONS,
    "Means over participants (each person's scans averaged first); gain is that of true positives against {negative} "
    "of the same test fold. Values of each scan and side are in group/relevance.tsv.",
    (
        View("region_summary", "Relevance by region and group of scans, densest first.",
             ("group", "map", "scan_group", "mean_density", *_CI, "mean_sum", "mean_gain", "n_gain", *_N),
             where={"scan_group": ["{positive}", "{negative}", "TP"]}, order=("-mean_density",), shown=60),
    ),
)  # fmt: skip

PLANTED = Question(
    "planted", "Are the planted regions found?", "Planted truth", pages.EVALUATION,
    "The regions in which disease was planted are known. The table shows how many of them lead the ranking of regions "
    "in true positives, and how much of the positive relevance lies in them.",
    (
        View("planted_recovery", "Recovery of the planted regions in true positives.",
             ("map", "metric", "hits", "n_planted", "top", "expected_hits", "p_value", "found", "relevance_share",
              "volume_share", "enrichment", *_N), leading=False, shown=40),
    ),
    answer=map_verdicts.planted_regions,
)  # fmt: skip

SUBGROUPS = Question(
    "subgroups", "For whom does it work? Performance and relevance in subgroups", "Subgroups", pages.FAIRNESS,
    "Performance and relevance in women and men, at different ages and at different sites. Subgroups with too few "
    "participants have no values. A small p in one subgroup and a large one in another do not show a difference "
    "between them; this is tested by the interaction.",
    (
        View(
            "fairness", "Balanced accuracy by subgroup.",
            ("variable", "level", "estimate", *_CI, "rest", "difference", "difference_low", "difference_high", "p",
             "p_fdr",
             *_N, "n_positive", "n_negative", "note"),
            where={"metric": ["balanced_accuracy", None]}, shown=40, finding="p_fdr",
            intervals=IntervalChart(("level",), "estimate", "ci_low", "ci_high", "balanced accuracy", 0.5),
        ),
        View(
            "interactions", "Whether the difference between {positive} and {negative} depends on the subgroup.",
            ("variable", "levels", "map", "group", "estimate", "statistic", "partial_r", "p", "p_fwe", "p_fdr", *_N,
             "note"),
            order=("p_fwe", "-partial_r"), shown=15, finding="p_fwe",
        ),
        View(
            "subgroups", "Density in the hippocampus by subgroup, over all explained participants (with MCI too).",
            ("variable", "level", "map", "n_participants", "n_scans", "mean_density", *_CI, "class_difference",
             "class_difference_low", "class_difference_high", "class_hedges_g", "class_hedges_g_low",
             "class_hedges_g_high", "note"),
            where={"group": ["Hippocampus", None]}, shown=40,
        ),
    ),
    answer=verdicts.fairness,
)  # fmt: skip

PROGRESSION = Question(
    "progression", "Does it predict who converts?", "Progression", pages.CLINICAL,
    "People with MCI, predicted by networks that were trained on {positive} and {negative} and never on them. "
    "Concordance is the chance that, of two people, the one with the higher score converts first; 0.5 is guessing. "
    "Concordance and Cox models use all conversions to AD at any later visit; the area under the curve, sensitivity "
    "and specificity use those within {horizon} months, among people who were followed that long. Trajectories: "
    "each person's visits give one slope; a group's mean slope is tested by flipping signs, and groups are compared "
    "with the network held, by permuting people within networks.",
    (
        View(
            "progression", "Prediction of conversion to AD from the first scan.",
            ("predictor", "measure", "estimate", *_CI, "p", "n_participants", "n_events", "event", "note"), shown=30,
            intervals=IntervalChart(("predictor", "measure"), "estimate", "ci_low", "ci_high", "estimate", 0.5),
        ),
        View(
            "cox", "Cox models, per standard deviation of the predictor.",
            ("predictor", "map", "group", "model", "covariates", "hazard_ratio", *_CI, "p_wald", "p", "p_fdr",
             "p_proportional", "concordance",
             "n_participants", "n_events", "n_censored", "n_competing", "event", "note"),
            order=("p_fdr", "p"), shown=20, finding="p_fdr",
        ),
        View(
            "trajectories", "Change per year, in standard deviations.",
            ("response", "map", "group", "term", "estimate", *_CI, "p", "p_fwe", "p_fdr",
             *_N, "n_repeated", "note"),
            order=("p_fdr", "p"), shown=20, finding="p_fdr",
        ),
    ),
    answer=verdicts.progression,
)  # fmt: skip

NORMS = Question(
    "norms", "Against the norm: w-scores and subtypes", "Norms", pages.CLINICAL,
    "A w-score is the distance of a person from the value expected for {negative} of the same age, sex and further "
    "covariates, in standard deviations; the norm of each fold comes from its own training participants of {negative}. "
    "Subtypes are clusters of fingerprints; they are reported only if they are stable and the gap statistic prefers "
    "them to a single group.",
    (
        View(
            "w_calibration", "Do the norms fit? Controls scored against the others, worst first.",
            ("source", "group", "n_controls", "mean_z", "sd_z", "beyond", "note"), where={"fold": ("all",)},
            order=("-mean_z",), shown=10,
        ),
        View(
            "subtype_numbers", "How many subtypes.",
            ("source", "k", "chosen", "gap", "gap_error", "ambiguous", "rand", "rand_low", "rand_high", "smallest",
             "n_participants", "note"), shown=30,
        ),
        View(
            "subtype_comparison", "How subtypes differ.",
            ("source", "compared", "measure", "value", "means", "f", "p", "p_fdr", "n_participants", "note"),
            order=("p_fdr",), shown=30, finding="p_fdr",
        ),
    ),
    answer=audit_verdicts.norms,
)  # fmt: skip

MAIN_EFFECTS = Question(
    "main-effects", "What else influences relevance and volume?", "Other influences", pages.FAIRNESS,
    "Sex, age, education, field strength and site, each adjusted for the others and the class. Influences that have "
    "nothing to do with the disease may change volumes but should change relevance little.",
    (
        View(
            "main_effects", "Effects on density and volume, clearest first.",
            ("source", "variable", "contrast", "group", "estimate", "statistic", "partial_r", "p", "p_fwe", "p_fdr",
             "n_participants", "note"),
            order=("p_fwe", "-partial_r"), shown=20, finding="p_fwe",
        ),
    ),
)  # fmt: skip

HARMONISATION = Question(
    "harmonisation", "Do results depend on the site? Before and after harmonisation", "Sites", pages.FAIRNESS,
    "Effect of the site on relevance and volumes, adjusted for the covariates, before and after ComBat. Parameters "
    "are estimated from the training participants of each fold and applied to its test participants. Covariates of "
    "the training participants (the class, unless [statistics.harmonisation] training_covariates says otherwise) keep "
    "effects of the disease from being removed as effects of the site; those of test participants are not used. This "
    "test has other covariates and joins other sites than “What else influences relevance and volume?”, so p values "
    "differ.",
    (
        View(
            "site_effects", "Effect of site by region, largest before harmonisation first.",
            ("source", "group", "effect", "f_before", "r2_before", "p_fwe_before", "f_after", "r2_after", "p_fwe_after",
             "n_participants", "n_sites", "note"),
            order=("p_fwe_before", "-r2_before"), shown=15, leading=False, finding="p_fwe_before",
        ),
        View(
            "harmonisation_models", "How harmonisation changed each site.",
            ("source", "fold", "site", "n_training", "n_tested", "treatment", "gamma", "scale", "note"), shown=15,
        ),
    ),
    answer=audit_verdicts.sites,
)  # fmt: skip

SHORTCUTS = Question(
    "shortcuts", "Does it use shortcuts?", "Shortcut audit", pages.FAIRNESS,
    "A network can be right for reasons that have nothing to do with the disease: the edge of the brain mask, fluid, "
    "the scanner. An enrichment of 1 means that relevance is spread evenly; site and field strength should not be "
    "predictable from relevance. Relevance in fluid need not be a shortcut: ventricles widen in Alzheimer's.",
    (
        View(
            "shortcuts", "Relevance in places that should not matter.",
            ("map", "compartment", "reference", "share", "voxel_share", "enrichment", *_CI, "enrichment_positive",
             "enrichment_negative", "difference", "difference_low", "difference_high", "p_fdr", "n_participants",
             "note"), shown=30,
            intervals=IntervalChart(("compartment", "map"), "enrichment", "ci_low", "ci_high", "enrichment", 1.0),
        ),
        View(
            "site_prediction", "Site and field strength from relevance, out of fold.",
            ("target", "map", "balanced_accuracy", *_CI, "chance", "null_mean", "p", "p_fwe", "n_sites", *_N, "note"),
            shown=20, finding="p_fwe", leading=False,
            intervals=IntervalChart(("target", "map"), "balanced_accuracy", "ci_low", "ci_high",
                                    "balanced accuracy", None),
        ),
    ),
    answer=audit_verdicts.shortcuts,
)  # fmt: skip

AGREEMENT = Question(
    "agreement", "Do networks, values of β and methods agree?", "Agreement", pages.MAPS,
    "Agreement of rankings of regions. Kendall's W is 1 if all rankings are the same, and 1 divided by their number "
    "by chance. Networks of different folds share most of their training participants, so their agreement is an upper "
    "bound.",
    (
        View(
            "ranking_agreement", "Agreement of rankings of regions by density, over all scans.",
            ("between", "map", "n_rankings", "kendall_w", "overlap", "overlap_chance", "top", "n_regions",
             "n_participants", "note"), where={"metric": ["density"], "scans": ["all"]}, shown=30, leading=False,
        ),
    ),
    answer=audit_verdicts.agreement,
)  # fmt: skip

EFFECTS_FOUND = Question(
    "planted-effects", "Are planted effects found, and only these?", "Planted effects", pages.EVALUATION,
    "Planted effects are the disease in the planted regions and everything else that was put into the data of a "
    "synthetic cohort; they should be found. Null effects were not planted and should not be found.",
    (
        View(
            "planted_effects", "What was planted and what was found.",
            ("effect", "expected", "verdict", "where", "estimate", "estimate_is", "p", "p_is", "n_tests", "note"),
            leading=False, shown=40, verdicts=True,
        ),
    ),
    answer=map_verdicts.planted_effects,
)  # fmt: skip

EXTERNAL = Question(
    "external", "Does it hold in this cohort? The run and this cohort side by side", "External validation",
    pages.PERFORMANCE,
    "The networks were trained with other people. Of the cohort of the run that they are from, only predictions and "
    "maps out of fold count; the people here are answered by all networks together, as one. The interval of a "
    "difference is combined from an interval of each cohort.",
    (
        View(
            "external_validation", "Performance and calibration of both cohorts.",
            ("measure", "run", "new", "estimate", *_CI, "n_run", "n_new", "note"), where={"part": ["performance"]},
            intervals=IntervalChart(
                ("measure",), "estimate", "ci_low", "ci_high", "here less run", n=("n_run", "n_new")
            ),
        ),
        View(
            "external_validation",
            "Agreement over regions: rank correlation of Hedges' g of the classes, which noise draws towards 0.",
            ("map", "estimate", *_CI, "n_run", "n_new"), where={"part": ["regions"]}, leading=False, optional=True,
        ),
        View(
            "external_validation", "Who is in both cohorts.",
            ("measure", "label", "run", "new", "estimate", *_CI, "n_run", "n_new"), where={"part": ["people"]},
            shown=30,
        ),
        View(
            "external_validation", "Intensities of registered scans, and sites.",
            ("measure", "label", "run", "new", "estimate", "by_chance", "n_run", "n_new"),
            where={"part": ["images", "sites"]},
        ),
        View(
            "external_calibration", "Predicted and observed frequency of {positive} in both cohorts.",
            ("cohort", "low", "high", "mean_probability", "share_positive", *_CI, "n_participants"),
        ),
    ),
    answer=audit_verdicts.other_cohort,
)  # fmt: skip

APPLIED = Question(
    "applied", "What do the networks say?", "Predictions", pages.SUMMARY,
    "Every network of the run was asked; none was trained with these people. Logits, probabilities and maps are means "
    "over the networks, and the spread of the probability says how far the networks agree, not how often they are "
    "right. Scores compare each region with the controls of that run.",
    (
        View(
            "predictions_applied", "Each scan, most likely {positive} first.",
            ("participant_id", "session_id", "probability", "probability_sd", "n_networks", "predicted"),
            order=("-probability",), shown=40,
        ),
        View(
            "w_fingerprints", "The regions of each person that deviate most from controls, by map, and by volume where "
            "it was measured.", ("participant_id", "source", "group", "w", "z", "rank"), where={"rank": [1, 2, 3]},
            order=("source", "participant_id", "rank"), shown=40,
        ),
    ),
    requires=("predictions_applied",),
    applies=lambda run: run.without_labels,
)  # fmt: skip
"""In place of all others, where networks were applied to people without labels."""

ANALYSES: Sequence[Question] = (
    NUMBER_PERFORMANCE, CLASSES_PERFORMANCE, EXTERNAL, BASELINES, REPEATS, AGREEMENT, COMPARISONS, EFFECTS,
    ASSOCIATIONS, NUMBER_ASSOCIATIONS, PROGRESSION, NORMS, SUBGROUPS, MAIN_EFFECTS, SHORTCUTS, HARMONISATION, PLANTED,
    EFFECTS_FOUND,
)  # fmt: skip
"""All but the primary outcome, which leads its page; on each page in this order, after the sections of the page."""
