from __future__ import annotations

import csv
import io
from collections import Counter

import numpy as np
import pytest

from pipeline.cohort.demo.adnimerge import adnimerge_csv, adnimerge_row
from pipeline.cohort.demo.disease import CHANGES, PLANTED_GROUPS, SEVERITY_RANGE, draw_course
from pipeline.cohort.demo.people import draw_people


def test_planted_groups_are_those_of_the_contract() -> None:
    assert PLANTED_GROUPS == (
        "Hippocampus",
        "Amygdala",
        "Entorhinal area",
        "Parahippocampal gyrus",
        "Lateral ventricle",
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.short)
def test_contraction_and_loss_make_up_the_planted_change(change) -> None:
    assert np.exp(change.log_size - change.loss_rate) - 1 == pytest.approx(change.volume_change)
    if change.tissue:
        assert change.log_size < 0 < change.loss_rate
    else:
        assert change.log_size > 0 == change.loss_rate


def test_severity_adds_age_and_time_and_scales_by_region() -> None:
    course = draw_course(np.random.default_rng(5), "AD")
    young, old = np.array(course.severities(65, 0)), np.array(course.severities(80, 0))
    factors = np.array(course.region_factors)
    assert young == pytest.approx(course.baseline * factors)
    assert old - young == pytest.approx(0.1 * factors)
    # Two years on, the hippocampus has lost 4.66 % twice.
    later = np.array(course.severities(65, 2)) - young
    hippocampus = [change.group for change in CHANGES].index("Hippocampus")
    assert 0.73 ** (later[hippocampus] / factors[hippocampus]) == pytest.approx(0.9534**2)


def test_diagnosis_sets_the_range_of_severity_and_nothing_else() -> None:
    for seed in range(50):
        streams = {name: np.random.default_rng(seed) for name in SEVERITY_RANGE}
        courses = {name: draw_course(rng, name) for name, rng in streams.items()}
        for name, (low, high) in SEVERITY_RANGE.items():
            assert low <= courses[name].baseline <= high
        assert len({course.region_factors for course in courses.values()}) == 1
        assert len({rng.random() for rng in streams.values()}) == 1  # the streams stay in step


def test_nothing_but_disease_and_its_risk_depends_on_the_diagnosis() -> None:
    # Person 30 is the one with MCI among 30 and an ordinary participant among 36.
    small, large = draw_people(43, 30)[30], draw_people(43, 36)[30]
    assert (small.diagnosis, large.diagnosis) == ("MCI", "CN")
    for name in ("rid", "site", "sex", "age", "education", "field_strength"):
        assert getattr(small, name) == getattr(large, name)


def test_thirty_people_give_thirty_eight_scans_and_the_dirt() -> None:
    people = draw_people(43, 30)
    regular, (mci, imageless, rowless) = people[:30], people[30:]
    assert Counter(person.diagnosis for person in regular) == {"AD": 15, "CN": 15}
    assert Counter(person.diagnosis for person in regular for _ in person.visits) == {"AD": 19, "CN": 19}
    assert mci.diagnosis == "MCI"
    assert [visit.has_image for visit in imageless.visits] == [False]
    assert [visit.in_table for visit in rowless.visits] == [False]
    assert all(visit.in_table and visit.has_image for person in (*regular, mci) for visit in person.visits)
    visits = [visit for person in people for visit in person.visits]
    assert len({visit.image_number for visit in visits}) == len(visits)
    assert len({person.ptid for person in people}) == len(people)
    assert {"bl", "sc", "m12", "m06", "y1", "m24"} == {visit.code for visit in visits}
    assert all(visit.date <= visit.scanned.date() for visit in visits)


def test_seeds_make_different_people_and_equal_seeds_equal_ones() -> None:
    assert draw_people(1, 10) == draw_people(1, 10)
    assert [person.age for person in draw_people(1, 10)] != [person.age for person in draw_people(2, 10)]


def test_a_row_says_what_adni_would_say() -> None:
    people = draw_people(43, 30)
    patient = next(person for person in people if person.diagnosis == "AD" and len(person.visits) == 2)
    volumes = {change.group: 1000.0 * (n + 1) for n, change in enumerate(CHANGES)} | {"intracranial": 1_500_000.4}
    rows = [adnimerge_row(43, patient, visit, volumes) for visit in patient.visits]
    first, second = csv.DictReader(io.StringIO(adnimerge_csv(rows)))
    assert (first["PTID"], first["DX"], first["DX_bl"]) == (patient.ptid, "Dementia", "AD")
    assert first["IMAGEUID"] == str(patient.visits[0].image_number)
    assert second["IMAGEUID"] == ""
    assert first["ICV"] == "1500000"
    assert int(first["Hippocampus"]) == pytest.approx(1000, rel=0.25)
    assert int(first["Hippocampus"]) != int(second["Hippocampus"])
    assert float(first["AGE"]) == float(second["AGE"]) == patient.age  # age at baseline, as in ADNI
    days = (patient.visits[1].date - patient.visits[0].date).days
    assert float(second["Years_bl"]) == pytest.approx(days / 365.25, abs=1e-5)
    assert "SYNTHETIC" in first["FSVERSION"]


def test_measured_volumes_scatter_by_five_per_cent() -> None:
    person = draw_people(43, 4)[0]
    volumes = {change.group: 1e6 for change in CHANGES} | {"intracranial": 1e6}
    measured = [
        float(str(adnimerge_row(seed, person, person.visits[0], volumes)["Hippocampus"])) for seed in range(400)
    ]
    assert np.mean(measured) == pytest.approx(1e6, rel=0.01)
    assert np.std(measured) == pytest.approx(5e4, rel=0.15)


def test_a_visit_without_a_scan_has_no_volumes() -> None:
    person = draw_people(43, 4)[-2]
    row = adnimerge_row(43, person, person.visits[0], None)
    assert [row[name] for name in ("Hippocampus", "ICV", "Ventricles", "IMAGEUID")] == [None] * 4
