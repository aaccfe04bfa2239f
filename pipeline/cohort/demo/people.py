"""Who is in the demo cohort: people, their visits, and the scans that exist or are missing.

Sites, sexes and field strengths are balanced within each diagnosis, in random order: with so few people, chance alone
could confound them with the disease.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heatlas.pipeline.cohort.demo.disease import Course, draw_course
from heatlas.pipeline.cohort.demo.effects import CONVERSION_SEVERITY
from heatlas.pipeline.run.work.seeds import generator

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
    """Draw all people: `participants` with AD or CN and a usable scan, then those with MCI, then two irregular cases.

    Half of the first have AD, and one in six of them has a second scan. People with MCI have one scan and visits over
    four years. The irregular cases are a row without a scan and a scan without a row. `longitudinal`: everybody else
    has scans at `SCANNED_MONTHS`.
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
            follow_ups = [one for one in MCI_FOLLOW_UPS if one[1] in SCANNED_MONTHS]
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


@dataclass(frozen=True)
class SyntheticSite:
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
        rid=9001 + number,
        site=place.site,
        diagnosis=diagnosis,
        sex=place.sex,
        age=age,
        education=education,
        apoe4=None if number == 4 else alleles,
        field_strength=place.field_strength,
        course=course,
        visits=tuple(drawn),
    )
