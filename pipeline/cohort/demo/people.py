"""Who is in the demo cohort: people, their visits, and the scans that exist or are missing."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import numpy as np

from pipeline.cohort.demo.disease import Course, draw_course
from pipeline.run.seeds import generator

SITES = (990, 991, 992, 993, 994)
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

REPEATED_FRACTION = 8 / 30
"""Share of people with a second scan."""


@dataclass(frozen=True)
class Visit:
    """One visit of one person.

    Parameters
    ----------
    code : str
        As ADNI spells it: ``bl``, ``sc``, ``m06``, ``y1`` ...
    month : int
    date : datetime.date
        Of the examination.
    scanned : datetime.datetime
        Some days later.
    image_number : int
    sequence : str
    compressed : bool
        ``.nii.gz`` rather than ``.nii``.
    in_table, has_image : bool
        False for the planted dirt: a scan without a row, a row without a scan.
    """

    code: str
    month: int
    date: datetime.date
    scanned: datetime.datetime
    image_number: int
    sequence: str
    compressed: bool
    in_table: bool = True
    has_image: bool = True

    @property
    def years(self) -> float:
        return self.month / 12


@dataclass(frozen=True)
class Person:
    """One synthetic person; `age` at the first visit, in years."""

    rid: int
    site: int
    diagnosis: str
    sex: str
    age: float
    education: int
    apoe4: int | None
    field_strength: float
    course: Course
    visits: tuple[Visit, ...]

    @property
    def ptid(self) -> str:
        """ADNI's name: site, S, roster number."""
        return f"{self.site:03d}_S_{self.rid:04d}"

    @property
    def participant_id(self) -> str:
        """BIDS name."""
        return f"sub-ADNI{self.site:03d}S{self.rid:04d}"


def draw_people(seed: int, participants: int) -> tuple[Person, ...]:
    """Everyone in the cohort.

    Parameters
    ----------
    seed : int
    participants : int
        People with AD or CN and a usable scan, half of them AD; about a quarter have a second scan.

    Returns
    -------
    tuple of Person
        Those people, then the dirt: one with MCI, one row without a scan, one scan without a row.
    """
    patients = participants // 2
    repeated = round(participants * REPEATED_FRACTION)
    # Alternating, so that any few people in sequence hold both groups and repeats fall on both.
    diagnoses = ["AD" if n % 2 and n // 2 < patients else "CN" for n in range(participants)]
    people = [
        _draw_person(seed, number, diagnosis, visits=2 if number < repeated else 1)
        for number, diagnosis in enumerate(diagnoses)
    ]
    people.append(_draw_person(seed, participants, "MCI", visits=1))
    people.append(_draw_person(seed, participants + 1, "CN", visits=1, has_image=False))
    people.append(_draw_person(seed, participants + 2, "CN", visits=1, in_table=False))
    return tuple(people)


def _draw_person(
    seed: int, number: int, diagnosis: str, visits: int, in_table: bool = True, has_image: bool = True
) -> Person:
    rng = generator(seed, "demo", "person", number)
    age = float(np.round(np.clip(rng.normal(75, 6), 60, 88), 1))
    sex = "F" if rng.random() < 0.5 else "M"
    site = int(rng.choice(SITES))
    education = int(np.clip(rng.normal(15.5, 2.8), 8, 20))
    alleles = int(rng.binomial(2, {"CN": 0.14, "MCI": 0.27, "AD": 0.4}[diagnosis]))
    course = draw_course(rng, diagnosis)
    start = datetime.date(2006, 1, 10) + datetime.timedelta(days=int(rng.integers(0, 1400)))
    plan = [(str(rng.choice(BASELINE_CODES)), 0), FOLLOW_UPS[number % len(FOLLOW_UPS)]][:visits]
    drawn = []
    for n, (code, month) in enumerate(plan):
        date = start + datetime.timedelta(days=round(month * 30.44) + int(rng.integers(-6, 7)))
        moment = datetime.datetime.combine(date, datetime.time(int(rng.integers(8, 18)), int(rng.integers(60))))
        moment += datetime.timedelta(days=int(rng.integers(0, 15)), seconds=int(rng.integers(60)))
        image_number = 9_000_000 + 100 * number + 37 * n + int(rng.integers(1, 37))
        sequence, compressed = str(rng.choice(SEQUENCES)), bool(rng.random() < 0.6)
        drawn.append(Visit(code, month, date, moment, image_number, sequence, compressed, in_table, has_image))
    return Person(
        rid=9001 + number,
        site=site,
        diagnosis=diagnosis,
        sex=sex,
        age=age,
        education=education,
        apoe4=None if number == 4 else alleles,
        field_strength=3.0 if site % 2 else 1.5,
        course=course,
        visits=tuple(drawn),
    )
