"""The questions that the statistics stage answers, in the order of their pages."""

from __future__ import annotations

from collections.abc import Sequence

from heatlas.reports.questions.clinical import ASSOCIATIONS, NORMS, NUMBER_ASSOCIATIONS, PROGRESSION
from heatlas.reports.questions.comparisons import COMPARISONS, EFFECTS
from heatlas.reports.questions.predictions import BASELINES, CLASSES_PERFORMANCE, EXTERNAL, NUMBER_PERFORMANCE, REPEATS
from heatlas.reports.questions.question import Question
from heatlas.reports.questions.shortcuts import SHORTCUTS
from heatlas.reports.questions.subgroups import HARMONISATION, MAIN_EFFECTS, SUBGROUPS
from heatlas.reports.questions.trust import AGREEMENT, CLAIMS, PLANTED, PLANTED_EFFECTS

ANALYSES: Sequence[Question] = (
    NUMBER_PERFORMANCE, CLASSES_PERFORMANCE, EXTERNAL, BASELINES, REPEATS, AGREEMENT, COMPARISONS, EFFECTS,
    ASSOCIATIONS, NUMBER_ASSOCIATIONS, PROGRESSION, NORMS, SUBGROUPS, MAIN_EFFECTS, SHORTCUTS, HARMONISATION, PLANTED,
    PLANTED_EFFECTS, CLAIMS,
)  # fmt: skip
"""All but the primary outcome, which leads its page; on each page in this order, after the sections of the page."""
