"""Planted effects besides the disease, and planted nulls, against which the cohort analyses are tested.

Sex difference
    The putamen is larger in men. Published: larger in men in two cohorts of some 500 young adults, with grey and white
    matter and age accounted for (Rijpkema et al. 2012, doi:10.1002/hbm.21283; so also Tang et al. 2013,
    doi:10.1016/j.neulet.2013.09.038). Its size beyond that of the head is put at 4 % (an assumption), and planted six
    times as large: the published cohorts had hundreds of people and the demo has thirty, whose putamen differs by 7 %
    (standard deviation, relative to the head), and registration at 2 mm shows rather less than half of such a growth
    (0.055 and 0.042 of 0.113, on the log scale, in two people made as women and as men). That gives a test of it a
    power above 0.9. All of it is size of the region, nothing is lost in place; half is added in men and half taken off
    in women, on the log scale; deformations are smooth, so the pallidum beside it moves too. It has nothing to do with
    the disease: each diagnosis has as many women as men.

Site effect
    One of three sites receives more signal at the back of the head: a smooth gain that is a fifth higher at the back
    of the brain than at its front. Fields of uncorrected surface coils are of this order (10 to 40 %: Vovk et al. 2007,
    doi:10.1109/TMI.2006.891486), after N3 some per cent remain; the demo has the site skip its correction. Seen in one
    person made with and without it: registration takes part of it for anatomy (frontal pole 19 % larger, cuneus 9 %
    smaller), the rest stays in the intensities. Every diagnosis is at each site equally often.

Clinical scores
    CDR-SB, MMSE and ADAS-Cog 13 are straight lines in a person's mean severity at the visit, with noise. The lines pass
    near the averages of the diagnoses in ADNI-1 (Petersen et al. 2010, doi:10.1212/WNL.0b013e3181cb3e25); the noise is
    an assumption.

Conversion
    Someone with MCI has dementia from the first visit at which the mean severity exceeds the range of MCI. So the more
    severe convert sooner, and about two in five within three years (ADNI: 16.5 % in the first year, Petersen et al.).

Nothing
    Education and field strength are drawn independently of everything and have no effect in any region. Sex has no
    effect in the cuneus beyond the size of the head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.cohort.demo.disease import PLANTED_GROUPS, SEVERITY_RANGE

DIMORPHIC_GROUP = "Putamen"
"""Bilateral group that differs between the sexes, beyond the size of the head."""

DIMORPHIC_SHORT = "putamen"
PUBLISHED_DIMORPHISM = 0.04
"""How much larger the group is in men, relative to the head (an assumption of the published order)."""

DIMORPHISM_TIMES = 6
"""Factor by which the planted effect exceeds the published one."""

DIMORPHIC_LOG_RATIO = math.log1p(DIMORPHISM_TIMES * PUBLISHED_DIMORPHISM)
"""Log of the group's size in men over that in women."""

UNDIMORPHIC_GROUP = "Cuneus"
"""Bilateral group that neither disease nor sex changes; far from those that change."""

COIL_SITE = 991
"""Site whose coil brightens the back of the head."""

COIL_BACK_TO_FRONT = 1.20
"""Gain at the back of the brain over that at its front."""

BRAIN_LENGTH_MM = 180.0

CONVERSION_SEVERITY = SEVERITY_RANGE["MCI"][1]
"""Mean severity above which someone with MCI has dementia."""


def coil_log_gain_per_mm(site: int) -> float:
    """Growth of log signal per mm towards the back of the head at a site."""
    return math.log(COIL_BACK_TO_FRONT) / BRAIN_LENGTH_MM if site == COIL_SITE else 0.0


@dataclass(frozen=True)
class Score:
    """A clinical score as a straight line in mean severity, with noise, rounded and clipped."""

    column: str  # as ADNIMERGE names it
    healthy: float  # at severity 0
    per_severity: float
    noise: float  # standard deviation
    lowest: float
    highest: float
    step: float  # the scale's unit

    def measured(self, severity: float, standard_normal: float) -> float:
        """The score of someone of a mean severity.

        Examples
        --------
        >>> next(score for score in SCORES if score.column == "MMSE").measured(2.0, 0.0)
        23.0
        """
        exact = self.healthy + self.per_severity * severity + self.noise * standard_normal
        return float(min(max(round(exact / self.step) * self.step, self.lowest), self.highest))


SCORES = (
    Score("CDRSB", 0.0, 2.2, 0.6, 0.0, 18.0, 0.5),
    Score("ADAS13", 8.5, 10.0, 3.5, 0.0, 85.0, 1.0),
    Score("MMSE", 29.2, -3.1, 1.2, 0.0, 30.0, 1.0),
)
"""Healthy value and slope follow ADNI-1: CN, MCI, AD have MMSE 29.1, 27.0, 23.3; CDR-SB 0.0, 1.6, 4.3 and ADAS-Cog 13
9.5, 18.7, 29 at mean severities of about 0.2, 0.9 and 2.0."""


def clinical_scores(rng: np.random.Generator, severity: float) -> dict[str, float]:
    """All scores of a visit, by column."""
    return {score.column: score.measured(severity, float(rng.standard_normal())) for score in SCORES}


@dataclass(frozen=True)
class PlantedEffect:
    """An effect that an analysis should find, or a null in which it should find nothing."""

    effect: str  # short name
    planted: str  # what was done to the data, in a sentence
    variable: str  # column of the scan table or of ``clinical.tsv`` that it goes with
    groups: tuple[str, ...]  # bilateral groups in which it shows; empty for all groups
    measure: str  # what differs: ``relevance``, ``volume`` or ``survival``
    direction: int  # sign of the expected relation; 0 where there is none, or where the sign is not known beforehand
    magnitude: float | None  # of the planted change; None for a null
    magnitude_unit: str | None
    expected: bool  # whether it should be found

    def record(self) -> Mapping[str, object]:
        """As it is written to ``truth/effects.json``."""
        return {**dataclasses.asdict(self), "groups": list(self.groups)}


_GREY = PLANTED_GROUPS[:4]


def _dose_response(score: Score) -> PlantedEffect:
    return PlantedEffect(
        f"severity_{score.column.lower()}",
        f"{score.column} is a straight line in the planted mean severity, with noise; relevance for AD in the planted "
        "regions of grey matter goes with it",
        score.column.lower(),
        _GREY,
        "relevance",
        1 if score.per_severity > 0 else -1,
        score.per_severity,
        "points per unit of severity",
        expected=True,
    )


EFFECTS = (
    PlantedEffect(
        "disease",
        "Tissue of patients is lost in the planted regions, at about 1.85 units of severity above controls",
        "diagnosis", _GREY, "relevance", 1, 1.85, "units of severity", expected=True,
    ),
    *(_dose_response(score) for score in SCORES),
    PlantedEffect(
        "sex_difference",
        f"{DIMORPHIC_GROUP}: {DIMORPHISM_TIMES * PUBLISHED_DIMORPHISM:.0%} larger in men, beyond the size of the head",
        "sex", (DIMORPHIC_GROUP,), "volume", 1, DIMORPHIC_LOG_RATIO, "log volume, men over women", expected=True,
    ),
    PlantedEffect(
        "site_effect",
        f"The receive coil of site {COIL_SITE} brightens the back of the brain to {COIL_BACK_TO_FRONT:g} times its "
        "front; harmonisation should remove what it does to volumes and relevance",
        "site", (), "volume", 0, math.log(COIL_BACK_TO_FRONT), "log signal, back over front", expected=True,
    ),
    PlantedEffect(
        "conversion",
        f"MCI becomes dementia when mean severity exceeds {CONVERSION_SEVERITY:g}: the more severe convert sooner",
        "progression", _GREY, "survival", 1, CONVERSION_SEVERITY, "units of severity", expected=True,
    ),
    PlantedEffect(
        "null_education", "Education changes nothing", "education", (), "relevance", 0, None, None, expected=False
    ),
    PlantedEffect(
        "null_field_strength", "Field strength changes nothing", "field_strength", (), "relevance", 0, None, None,
        expected=False,
    ),
    PlantedEffect(
        "null_sex_difference", f"Sex changes nothing in the {UNDIMORPHIC_GROUP.lower()} beyond the size of the head",
        "sex", (UNDIMORPHIC_GROUP,), "volume", 0, None, None, expected=False,
    ),
)  # fmt: skip
"""All effects and nulls against which analyses of the demo are tested."""
