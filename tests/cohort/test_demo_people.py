from __future__ import annotations

import csv
import io
from collections import Counter

import numpy as np
import pytest

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.demo.anatomy import ATLAS
from heatlas.pipeline.cohort.demo.cohort import adnimerge_csv, adnimerge_row
from heatlas.pipeline.cohort.demo.people import (
    CHANGES,
    EFFECTS,
    PLANTED_GROUPS,
    SCORES,
    SEVERITY_RANGE,
    SITES,
    draw_course,
    draw_people,
)


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
    # Person 30 is the first with MCI among 30 and an ordinary participant among 36.
    small, large = draw_people(43, 30)[30], draw_people(43, 36)[30]
    assert (small.diagnosis, large.diagnosis) == ("MCI", "CN")
    for name in ("rid", "age", "education"):
        assert getattr(small, name) == getattr(large, name)


@pytest.mark.parametrize("seed", [1, 43])
def test_sites_sexes_and_field_strengths_are_even_within_each_diagnosis(seed) -> None:
    regular = draw_people(seed, 30)[:30]
    for diagnosis in ("CN", "AD"):
        group = [person for person in regular if person.diagnosis == diagnosis]
        assert Counter(person.site for person in group) == dict.fromkeys(SITES, 5)
        assert sorted(Counter(person.sex for person in group).values()) == [7, 8]
        assert sorted(Counter(person.field_strength for person in group).values()) == [7, 8]
        sexes = Counter((person.site, person.sex) for person in group)
        assert set(sexes.values()) == {2, 3}
    assert Counter(person.sex for person in regular) == {"F": 15, "M": 15}
    assert Counter(person.field_strength for person in regular) == {1.5: 15, 3.0: 15}
    # In random order: who has a second visit must not decide where they are seen.
    assert [p.site for p in regular if p.diagnosis == "CN"] != [SITES[n % 3] for n in range(15)]


def test_thirty_people_give_thirty_five_scans_those_with_mci_and_the_dirt() -> None:
    people = draw_people(43, 30)
    regular, mci, (imageless, rowless) = people[:30], people[30:35], people[35:]
    assert Counter(person.diagnosis for person in regular) == {"AD": 15, "CN": 15}
    assert Counter(person.diagnosis for person in regular for _ in person.visits) == {"AD": 17, "CN": 18}
    assert {person.diagnosis for person in mci} == {"MCI"}
    assert [visit.has_image for visit in imageless.visits] == [False]
    assert [visit.in_table for visit in rowless.visits] == [False]
    assert all(visit.in_table and visit.has_image for person in regular for visit in person.visits)
    imaged = [visit for person in people for visit in person.visits if visit.has_image]
    assert len({visit.image_number for visit in imaged}) == len(imaged) == 35 + 5 + 1
    visits = [visit for person in people for visit in person.visits]
    assert len({person.ptid for person in people}) == len(people)
    assert {"bl", "sc", "m12", "m06", "y1", "m24"} == {visit.code for person in regular for visit in person.visits}
    assert all(visit.date <= visit.scanned.date() for visit in visits)


def test_people_with_mci_are_seen_for_four_years_and_the_more_severe_convert_sooner() -> None:
    months_of = {"pMCI": 0, "sMCI": 0}
    for seed in range(30):
        mci = draw_people(seed, 30)[30:35]
        low, high = SEVERITY_RANGE["MCI"]
        fifths = sorted(int((person.course.baseline - low) / (high - low) * 5) for person in mci)
        assert fifths == [0, 1, 2, 3, 4]
        for person in mci:
            assert [visit.month for visit in person.visits] == [0, 6, 12, 24, 36, 48]
            assert [visit.has_image for visit in person.visits] == [True] + [False] * 5
            diagnoses = [visit.diagnosis for visit in person.visits]
            assert diagnoses[0] == "MCI"
            assert diagnoses == sorted(diagnoses, reverse=True)  # nobody returns from AD to MCI
            for visit in person.visits[1:]:
                severe = person.course.mean_severity(person.age, visit.years) > high
                assert visit.diagnosis == ("AD" if severe else "MCI")
            months_of["pMCI" if diagnoses[4] == "AD" else "sMCI"] += 1
        courses = {visits.visits[4].diagnosis for visits in mci}
        assert courses == {"MCI", "AD"}  # some of both kinds in every cohort
    assert 0.3 < months_of["pMCI"] / 150 < 0.65


def test_everybody_in_the_longitudinal_cohort_has_three_scans_and_the_people_are_those_of_the_other() -> None:
    people = draw_people(43, 40, longitudinal=True)
    regular, mci, dirt = people[:40], people[40:60], people[60:]
    assert Counter(person.diagnosis for person in people[:60]) == {"AD": 20, "CN": 20, "MCI": 20}
    for person in (*regular, *mci):
        scanned = [visit for visit in person.visits if visit.has_image]
        assert [visit.month for visit in scanned] == [0, 12, 24]
        severities = [person.course.mean_severity(person.age, visit.years) for visit in scanned]
        assert severities[2] - severities[1] == pytest.approx(severities[1] - severities[0])
        assert severities[1] > severities[0]
    assert [len(person.visits) for person in dirt] == [1, 1]
    images = [visit.image_number for person in people for visit in person.visits if visit.has_image]
    assert len(set(images)) == len(images) == 181
    converted = [person for person in mci if person.visits[-1].diagnosis == "AD"]
    assert 5 < len(converted) < 20
    usual = draw_people(43, 40)
    assert [person.course for person in regular] == [person.course for person in usual[:40]]


def test_scores_follow_the_planted_severity_and_nothing_else() -> None:
    # In controls the end of the scale cuts the noise off.
    drawn = [(seed, one) for seed in range(12) for one in draw_people(seed, 30)[:30] if one.diagnosis == "AD"]
    people = [person for _, person in drawn]
    rows = [adnimerge_row(seed, person, person.visits[0], None) for seed, person in drawn]
    severity = np.array([person.course.mean_severity(person.age, 0) for person in people])
    for score in SCORES:
        residual = np.array([float(str(row[score.column])) for row in rows])
        residual -= score.healthy + score.per_severity * severity
        assert residual.mean() == pytest.approx(0, abs=3 * score.noise / np.sqrt(len(people)))
        assert np.std(residual) == pytest.approx(score.noise, rel=0.15)
        for other in (severity, [person.education for person in people], [person.age for person in people]):
            assert abs(np.corrcoef(residual, other)[0, 1]) < 3 / np.sqrt(len(people))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.column)
def test_scores_stay_on_their_scale(score) -> None:
    assert (
        score.measured(0.0, -9.0 * np.sign(score.per_severity)) == {"MMSE": 30, "CDRSB": 0, "ADAS13": 0}[score.column]
    )
    assert (score.measured(1.1, 0.3) / score.step) % 1 == 0


def test_every_effect_names_groups_that_exist_and_nulls_have_no_size() -> None:
    groups = load_atlas(ATLAS, template_grid(2.0)).regions.groups
    assert len({effect.effect for effect in EFFECTS}) == len(EFFECTS)
    for effect in EFFECTS:
        assert set(effect.groups) <= set(groups)
        assert effect.expected == (effect.magnitude is not None)
    assert {effect.effect for effect in EFFECTS if not effect.expected} == {
        "null_education", "null_field_strength", "null_sex_difference",
    }  # fmt: skip


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
    assert not person.visits[0].has_image
    row = adnimerge_row(43, person, person.visits[0], None)
    assert [row[name] for name in ("Hippocampus", "ICV", "Ventricles", "IMAGEUID")] == [None] * 4
