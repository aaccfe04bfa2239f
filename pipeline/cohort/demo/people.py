"""Who is in the demo cohort, and what is planted in them: the disease, further effects, and effects that are not there.

Sites, sexes and field strengths are balanced within each diagnosis, in random order: with so few people, chance alone
could confound them with the disease. Visits have scans that exist or are missing.

The disease changes regions by magnitudes from published volumetry and from stated assumptions. They are never adjusted
to what a heatmap shows. Published figures are differences between the averages of patients and controls. One unit of
severity is such a difference:

- hippocampus -27 %, entorhinal cortex -39 %: Alzheimer's disease against normal cognition in Du et al. (2001),
  doi:10.1136/jnnp.71.4.441;
- amygdala -24 %: Klein-Koerkamp et al. (2014), doi:10.2174/1567205011666140131123653 (as much as the hippocampus; also
  Poulin et al. 2011, doi:10.1016/j.pscychresns.2010.12.014);
- parahippocampal gyrus -27 %: Echavarri et al. (2011), doi:10.1007/s00429-010-0283-8, find it at least as much
  reduced as the hippocampus;
- lateral ventricles, temporal horns included, +40 %: that they widen is from Nestor et al. (2008),
  doi:10.1093/brain/awn146; the figure is an assumption.

The patients of the demo are at a severe stage, about 1.85 units above the controls (`SEVERITY_RANGE`): two dozen people
teach a network only a strong effect within the minutes a demo may take. Tried on seed 43, judged by held-out balanced
accuracy alone and before any heatmap was made: patients 1 unit above the controls, half of the loss in place (the
founding network stayed at chance, a linear model on region averages reached 0.9); 1.45 units, two thirds in place
(0.7 to 0.93 per fold); the present values.

Volumetry gives only the total loss of a grey-matter region. One third of it (on the log scale) is planted as
contraction, two thirds as tissue replaced by cerebrospinal fluid in place: an assumption. Registration to the template
undoes much of the first and none of the second.

Over time, severity grows so that the hippocampus shrinks by 4.66 % a year in Alzheimer's disease and 1.41 % in controls
(meta-analysis of Barnes et al. 2009, doi:10.1016/j.neurobiolaging.2008.01.010); mild cognitive impairment lies halfway.

Cohort analyses are tested against further effects, and against effects that are not there:

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
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from heatlas.pipeline.run.work.seeds import generator

LOSS_IN_PLACE = 2 / 3
"""Share of a tissue loss, on the log scale, that is replaced by fluid in place; the rest is contraction."""


@dataclass(frozen=True)
class PlantedChange:
    """What one unit of severity does to one bilateral group."""

    group: str  # name of the bilateral group in the region table
    short: str  # the same in column names
    volume_change: float  # relative change of the volume of tissue (or of fluid, for a ventricle) per unit of severity
    # True for grey matter, which contracts and is lost in place; False for a fluid space, which only widens
    tissue: bool

    @property
    def log_size(self) -> float:
        """Log of the region's size per unit of severity: what the deformation does."""
        return math.log1p(self.volume_change) * (1 - LOSS_IN_PLACE if self.tissue else 1.0)

    @property
    def loss_rate(self) -> float:
        """-log of the tissue that remains in place after one unit of severity."""
        return -math.log1p(self.volume_change) * LOSS_IN_PLACE if self.tissue else 0.0


CHANGES = (
    PlantedChange("Hippocampus", "hippocampus", -0.27, tissue=True),
    PlantedChange("Amygdala", "amygdala", -0.24, tissue=True),
    PlantedChange("Entorhinal area", "entorhinal", -0.39, tissue=True),
    PlantedChange("Parahippocampal gyrus", "parahippocampal", -0.27, tissue=True),
    PlantedChange("Lateral ventricle", "lateral_ventricle", +0.40, tissue=False),
)
"""All planted changes, in the order of all arrays over groups in this package."""

PLANTED_GROUPS = tuple(change.group for change in CHANGES)

SEVERITY_RANGE = {"CN": (0.0, 0.3), "MCI": (0.5, 1.2), "AD": (1.5, 2.5)}
"""Severity at baseline, uniform within the diagnosis: mild in controls, severe in patients."""

SEVERITY_PER_YEAR_OF_AGE = 0.01
"""Added for each year over 70, whatever the diagnosis (a third of a per cent of the hippocampus; an assumption)."""

SPREAD_BETWEEN_REGIONS = 0.12
"""Standard deviation of log severity between the regions of one person (an assumption)."""

_HIPPOCAMPAL_LOSS_PER_YEAR = {"CN": 0.0141, "MCI": (0.0141 + 0.0466) / 2, "AD": 0.0466}


def severity_per_year(diagnosis: str) -> float:
    """Growth of severity that gives the published yearly loss of hippocampal volume.

    >>> round((1 - 0.27) ** severity_per_year("AD"), 4)  # the hippocampus a year later
    0.9534
    """
    hippocampus = next(change for change in CHANGES if change.group == "Hippocampus")
    return math.log1p(-_HIPPOCAMPAL_LOSS_PER_YEAR[diagnosis]) / math.log1p(hippocampus.volume_change)


@dataclass(frozen=True)
class Course:
    """Course of the disease in one person."""

    baseline: float  # common severity at the first visit, without the effect of age
    per_year: float  # growth of severity
    region_factors: tuple[float, ...]  # individual emphasis per group, in the order of `CHANGES`, around 1

    def mean_severity(self, age: float, years: float) -> float:
        """Severity averaged over the regions: the basis of clinical scores and conversion."""
        return float(np.mean(self.severities(age, years)))

    def severities(self, age: float, years: float) -> tuple[float, ...]:
        """Severity per group, `years` (of which ageing is part of `per_year`) after the first visit at `age`."""
        common = self.baseline + SEVERITY_PER_YEAR_OF_AGE * max(age - 70, 0) + self.per_year * years
        return tuple(common * factor for factor in self.region_factors)


def draw_course(rng: np.random.Generator, diagnosis: str, stratum: tuple[int, int] = (0, 1)) -> Course:
    """Draw the course of one person; `stratum` is (number, count) of equal parts of the severity range."""
    low, high = SEVERITY_RANGE[diagnosis]
    part, parts = stratum
    baseline = low + (high - low) * (part + rng.random()) / parts
    factors = np.exp(SPREAD_BETWEEN_REGIONS * rng.standard_normal(len(CHANGES)))
    return Course(float(baseline), severity_per_year(diagnosis), tuple(factors.tolist()))


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
_LARGER_IN_MEN = f"{DIMORPHISM_TIMES * PUBLISHED_DIMORPHISM:.0%} larger in men"
_SEVERITY, _UNIT = "units of severity", "unit of severity"
_PLANTED = {
    "disease": "Tissue of patients is lost in the planted regions, at about 1.85 units of severity above controls",
    **{
        f"severity_{score.column.lower()}": f"{score.column} is a straight line in the planted mean severity, with "
        "noise; relevance for AD in the planted regions of grey matter goes with it"
        for score in SCORES
    },
    "sex_difference": f"{DIMORPHIC_GROUP}: {_LARGER_IN_MEN}, beyond the size of the head",
    "site_effect": f"The receive coil of site {COIL_SITE} brightens the back of the brain to {COIL_BACK_TO_FRONT:g} "
    "times its front; harmonisation should remove what it does to volumes and relevance",
    "conversion": f"MCI becomes dementia when mean severity exceeds {CONVERSION_SEVERITY:g}: the more severe convert "
    "sooner",
    "null_education": "Education changes nothing",
    "null_field_strength": "Field strength changes nothing",
    "null_sex_difference": f"Sex changes nothing in the {UNDIMORPHIC_GROUP.lower()} beyond the size of the head",
}
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("disease", "diagnosis", _GREY, "relevance", 1, 1.85, _SEVERITY, True),
    *(
        (f"severity_{name}", name, _GREY, "relevance", int(math.copysign(1, slope)), slope, f"points per {_UNIT}", True)
        for name, slope in ((score.column.lower(), score.per_severity) for score in SCORES)
    ),
    ("sex_difference", "sex", (DIMORPHIC_GROUP,), "volume", 1, DIMORPHIC_LOG_RATIO, "log volume, men over women", True),
    ("site_effect", "site", (), "volume", 0, math.log(COIL_BACK_TO_FRONT), "log signal, back over front", True),
    ("conversion", "progression", _GREY, "survival", 1, CONVERSION_SEVERITY, _SEVERITY, True),
    ("null_education", "education", (), "relevance", 0, None, None, False),
    ("null_field_strength", "field_strength", (), "relevance", 0, None, None, False),
    ("null_sex_difference", "sex", (UNDIMORPHIC_GROUP,), "volume", 0, None, None, False),
)
"""The fields of `PlantedEffect`, but for the sentence."""
EFFECTS = tuple(PlantedEffect(row[0], _PLANTED[row[0]], *row[1:]) for row in _ROWS)
"""All effects and nulls against which analyses of the demo are tested."""


SITES = (990, 991, 992)
"""Site numbers that ADNI does not use, so that no synthetic person can be taken for a real one."""

SEQUENCES = (
    "MPR__GradWarp__B1_Correction__N3__Scaled",
    "MPR-R__GradWarp__B1_Correction__N3__Scaled",
    "MPR__GradWarp__N3__Scaled",
    "MT1__GradWarp__N3m",
)
"""ADNI's names of processed images: corrected for gradient non-linearity and for the bias field."""

FOLLOW_UPS = (("m12", 12), ("m06", 6), ("y1", 12), ("m24", 24))
BASELINE_CODES = ("bl", "bl", "bl", "sc")

REPEATED_FRACTION = 5 / 30
"""Share of people with AD or CN who have a second scan."""

MCI_FRACTION = 5 / 30
"""People with MCI per person with AD or CN; at least one."""

MCI_FOLLOW_UPS = (("m06", 6), ("m12", 12), ("m24", 24), ("m36", 36), ("m48", 48))
"""Visits without a scan that show who converted."""

SCANNED_MONTHS = (0, 12, 24)
"""When everybody has a scan in the longitudinal cohort, where half as many people have MCI as have AD or CN."""


@dataclass(frozen=True)
class SyntheticVisit:
    """One visit of one person."""

    code: str  # as ADNI spells it: ``bl``, ``sc``, ``m06``, ``y1``
    month: int
    date: datetime.date  # of the examination
    scanned: datetime.datetime  # some days later
    image_number: int
    sequence: str
    compressed: bool  # ``.nii.gz`` rather than ``.nii``
    diagnosis: str  # at this visit
    # False for planted irregularities (a scan without a row, a row without a scan) and follow-up without scans
    in_table: bool = True
    has_image: bool = True

    @property
    def years(self) -> float:
        return self.month / 12


@dataclass(frozen=True)
class SyntheticPerson:
    """One synthetic person; `age` and `diagnosis` at the first visit."""

    rid: int
    site: int
    diagnosis: str
    sex: str
    age: float
    education: int
    apoe4: int | None
    field_strength: float
    course: Course
    visits: tuple[SyntheticVisit, ...]

    @property
    def ptid(self) -> str:
        """ADNI's name: site, S, RID."""
        return f"{self.site:03d}_S_{self.rid:04d}"

    @property
    def participant_id(self) -> str:
        """BIDS name."""
        return f"sub-ADNI{self.site:03d}S{self.rid:04d}"


def draw_people(seed: int, participants: int, longitudinal: bool = False) -> tuple[SyntheticPerson, ...]:
    """Draw `participants` with AD or CN, then those with MCI, then a row without a scan and a scan without a row.

    Half of the first have AD; one in six of them has a second scan, or all have scans at `SCANNED_MONTHS`.
    """
    patients = participants // 2
    repeated = round(participants * REPEATED_FRACTION)
    n_mci = participants // 2 if longitudinal else max(round(participants * MCI_FRACTION), 1)
    # Alternating, so that any few people in sequence, and the repeats, include both groups.
    diagnoses = ["AD" if n % 2 and n // 2 < patients else "CN" for n in range(participants)] + ["MCI"] * n_mci
    dealt = {name: iter(_dealt(seed, name, diagnoses.count(name))) for name in ("CN", "AD", "MCI")}
    strata = generator(seed, "demo", "strata").permutation(n_mci)
    people = []
    for number, diagnosis in enumerate(diagnoses):
        follow_ups = [FOLLOW_UPS[number % len(FOLLOW_UPS)]] if number < repeated else []
        stratum = (0, 1)
        if diagnosis == "MCI":
            follow_ups, stratum = list(MCI_FOLLOW_UPS), (int(strata[number - participants]), n_mci)
        elif longitudinal:
            follow_ups = [months for months in MCI_FOLLOW_UPS if months[1] in SCANNED_MONTHS]
        person = _draw_person(seed, number, diagnosis, next(dealt[diagnosis]), follow_ups, stratum)
        if longitudinal:
            visits = tuple(replace(visit, has_image=visit.month in SCANNED_MONTHS) for visit in person.visits)
            person = replace(person, visits=visits)
        people.append(person)
    for in_table, has_image in ((True, False), (False, True)):
        number = len(people)
        place = SyntheticSite(SITES[number % len(SITES)], "FM"[number % 2], (1.5, 3.0)[number % 2])
        person = _draw_person(seed, number, "CN", place)
        visits = tuple(replace(visit, in_table=in_table, has_image=has_image) for visit in person.visits)
        people.append(replace(person, visits=visits))
    return tuple(people)


class SyntheticSite(NamedTuple):
    """The balanced properties: site, sex, and field strength in tesla."""

    site: int
    sex: str
    field_strength: float


def _dealt(seed: int, diagnosis: str, count: int) -> list[SyntheticSite]:
    """Places of the people of one diagnosis: balanced over sites and sexes, in random order."""
    rng = generator(seed, "demo", "places", diagnosis)
    first = {"CN": 0, "AD": 1, "MCI": 0}[diagnosis]  # with an odd number of people the extra one differs
    cells = [(SITES[n % len(SITES)], "FM"[(n + first) % 2]) for n in range(count)]
    strengths = rng.permutation([(1.5, 3.0)[(n + first) % 2] for n in range(count)])
    places = [SyntheticSite(site, sex, float(tesla)) for (site, sex), tesla in zip(cells, strengths, strict=True)]
    return [places[n] for n in rng.permutation(count)]


def _draw_person(
    seed: int,
    number: int,
    diagnosis: str,
    place: SyntheticSite,
    follow_ups: Sequence[tuple[str, int]] = (),
    stratum: tuple[int, int] = (0, 1),
) -> SyntheticPerson:
    rng = generator(seed, "demo", "person", number)
    age = float(np.round(np.clip(rng.normal(75, 6), 60, 88), 1))
    education = int(np.clip(rng.normal(15.5, 2.8), 8, 20))
    alleles = int(rng.binomial(2, {"CN": 0.14, "MCI": 0.27, "AD": 0.4}[diagnosis]))
    course = draw_course(rng, diagnosis, stratum)
    start = datetime.date(2006, 1, 10) + datetime.timedelta(days=int(rng.integers(0, 1400)))
    drawn = []
    for n, (code, month) in enumerate([(str(rng.choice(BASELINE_CODES)), 0), *follow_ups]):
        date = start + datetime.timedelta(days=round(month * 30.44) + int(rng.integers(-6, 7)))
        moment = datetime.datetime.combine(date, datetime.time(int(rng.integers(8, 18)), int(rng.integers(60))))
        moment += datetime.timedelta(days=int(rng.integers(0, 15)), seconds=int(rng.integers(60)))
        image_number = 9_000_000 + 100 * number + 100_000 * (n // 2) + 37 * (n % 2) + int(rng.integers(1, 37))
        sequence, compressed = str(rng.choice(SEQUENCES)), bool(rng.random() < 0.6)
        converted = diagnosis == "MCI" and n > 0 and course.mean_severity(age, month / 12) > CONVERSION_SEVERITY
        has_image = diagnosis != "MCI" or n == 0
        visit = SyntheticVisit(
            code, month, date, moment, image_number, sequence, compressed, "AD" if converted else diagnosis
        )
        drawn.append(replace(visit, has_image=has_image))
    return SyntheticPerson(
        **place._asdict(),
        rid=9001 + number,
        diagnosis=diagnosis,
        age=age,
        education=education,
        apoe4=None if number == 4 else alleles,
        course=course,
        visits=tuple(drawn),
    )
