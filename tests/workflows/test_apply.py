"""``heatlas apply`` on one scan, on people without labels of both classes, and on a cohort with labels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from declared_tables import require_as_declared

from heatlas.pipeline.explaining import likeness
from heatlas.pipeline.explaining.planted_in_scan import PLANTED_IN_SCAN_TABLE
from heatlas.pipeline.registration.quality import likeness as quality_likeness
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.comparison.external import EXTERNAL_CALIBRATION_TABLE, EXTERNAL_TABLE
from heatlas.pipeline.statistics.normative.shared_norms import W_ANSWERS_TABLE
from heatlas.pipeline.statistics.normative.w_scores import W_SCORES_TABLE
from heatlas.reports.frame.material import Material
from heatlas.reports.page.parts import finished_sections
from heatlas.reports.people.likeness import why_unlike
from heatlas.reports.people.page import person_content
from heatlas.reports.questions.predictions import learned_elsewhere
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci

TRAINED, EVERYONE = 24, 36
SCAN = "sub-33"
INVERTED, MIRRORED = "sub-27", "sub-29"
"""A control and a patient whose images are not what they seem."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("apply")
    write_template_cohort(folder / "input", participants=EVERYONE)
    config = write_config(folder / "config.toml")
    text = config.read_text().replace("betas = [0.0]", 'betas = [0.0]\nmethods = ["lrp", "deeplift"]')
    config.write_text(text.replace("validation_fraction = 0.4", "validation_fraction = 0.1"))
    people = [f"{number:02d}" for number in range(TRAINED)]
    command = ["run", str(folder / "input"), str(folder / "run"), "--config", str(config), "--n-procs", "1"]
    assert main([*command, "--stop-after", "statistics", "--participant-label", *people]) == 0
    for name, changed in ((INVERTED, lambda brain: np.where(brain > 0, brain.max() + 1 - brain, 0)),
                          (MIRRORED, lambda brain: brain[::-1])):  # fmt: skip
        path = folder / "input" / name / "anat" / f"{name}_T1w.nii.gz"
        image = nib.load(path)
        nib.save(nib.Nifti1Image(changed(np.asarray(image.dataobj)), image.affine), path)
    return folder


def apply(folder: Path, new: Path, out: str, *options: str, run: str = "run") -> RunLayout:
    command = ["apply", str(folder / run), str(new), str(folder / out), "--n-procs", "1", "--start-at", "template"]
    assert main([*command, *options]) == 0
    return RunLayout(folder / out)


@pytest.fixture(scope="module")
def one(folder) -> RunLayout:
    image = folder / "scan.nii.gz"
    shutil.copyfile(folder / "input" / SCAN / "anat" / f"{SCAN}_T1w.nii.gz", image)
    return apply(folder, image, "one")


@pytest.fixture(scope="module")
def labelled(folder) -> Iterator[RunLayout]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (likeness, quality_likeness):  # fewer controls than usual are enough: 8 have been trained with
            patch.setattr(module, "FEWEST", 5)
        yield apply(folder, folder / "input", "labelled", "--stop-after", "statistics")


def test_one_scan_is_answered_by_each_network_as_in_a_cohort_with_labels(folder, one, labelled) -> None:
    (row,) = read_table(one.group / "predictions_applied.tsv").to_dict("records")
    assert (row["participant_id"], row["n_networks"], str(row["networks"])) == ("sub-scan", 2, "0;1")
    of_cohort = read_table(labelled.group / "predictions.tsv").set_index("participant_id").loc[SCAN]
    for answer in ("logit_negative", "logit_positive", "probability"):  # together, and each with the mean after
        assert row[answer] == pytest.approx(of_cohort[answer], abs=1e-5)
    answers = [read_table(one.fold(k).predictions_applied)["probability"].iloc[0] for k in (0, 1)]
    assert row["probability_sd"] == pytest.approx(np.std(answers, ddof=1))


def test_networks_are_those_of_the_run_and_each_compares_with_its_own_controls(folder, one) -> None:
    run = RunLayout(folder / "run")
    for index in (0, 1):
        assert one.fold(index).weights.read_bytes() == run.fold(index).weights.read_bytes()
    scans = read_table(run.root / "scans.tsv").set_index("participant_id")
    splits = read_table(run.root / "splits.tsv")
    (sidecar,) = one.root.glob("sub-scan/**/*deeplift_relevance.json")
    named = set(json.loads(sidecar.read_text())["ReferenceParticipants"])
    trained = set(splits[splits["part"] == "train"]["participant_id"])
    assert named
    assert named <= trained
    assert set(scans.loc[sorted(named), "label"]) == {"CN"}


def test_regions_are_scored_against_the_controls_of_the_run(folder, one) -> None:
    scores = read_table(one.group / "statistics" / "w_scores.tsv")
    own = scores[(scores["source"] == "deeplift") & (scores["group"] == "Hippocampus")].iloc[0]
    density = read_table(one.group / "relevance_applied_bilateral.tsv")
    density = density[(density["map"] == "deeplift") & (density["group"] == "Hippocampus")]["density"].iloc[0]
    run = read_table(folder / "run" / "group" / "relevance_bilateral.tsv")
    run = run[(run["map"] == "deeplift") & (run["group"] == "Hippocampus")]
    labels = read_table(folder / "run" / "scans.tsv").set_index("participant_id")["label"]
    controls = run[run["participant_id"].map(labels) == "CN"]["density"]
    assert own["w"] == pytest.approx((density - controls.mean()) / controls.std(ddof=1))  # age and sex are not known
    assert "norm without age, sex" in own["note"]
    assert "mean over 2 networks" in own["note"]
    require_as_declared(one, W_SCORES_TABLE)
    require_as_declared(one, W_ANSWERS_TABLE)


def test_gain_divides_by_the_controls_of_the_run(folder, one) -> None:
    table = read_table(one.group / "relevance_applied_bilateral.tsv")
    row = table[(table["map"] == "lrpB000") & (table["group"] == "Hippocampus")].iloc[0]
    run = read_table(folder / "run" / "group" / "relevance_bilateral.tsv")
    run = run[(run["map"] == "lrpB000") & (run["group"] == "Hippocampus")]
    assert row["reference_sum"] == pytest.approx(np.mean(run["reference_sum"].unique()))


def test_the_report_says_why_there_is_no_performance_and_shows_the_person(one) -> None:
    run = read_run(one)
    assert run.without_labels
    text = json.dumps(json.loads((one.root / "report.json").read_text()), ensure_ascii=False)
    assert "No prediction is a diagnosis" in text
    assert learned_elsewhere(run)
    assert learned_elsewhere(run) in text
    assert "The run is not finished" not in text
    assert "no labels of both classes" in text or "there is no label" in text
    page = (one.root / "sub-scan.html").read_text()
    probability = read_table(one.group / "predictions_applied.tsv")["probability"].iloc[0]
    assert f"{probability:.3f}" in page
    assert "Not known: age and sex" in page
    assert "against the norms of CN of the run" in page
    assert "own brain in template space" in page
    sections = {section["id"] for section in json.loads((one.root / "report.json").read_text())["sections"]}
    assert {"scan", "applied"} <= sections
    first = one.report.read_text()
    assert (one.figures / "first_scan.png").is_file()
    assert first.index("figures/first_scan.png") < first.index('id="applied"')
    assert "What the networks say of scan.nii.gz" in first
    for heading in ("Session id", "Probability sd", "N networks"):
        assert heading not in first
    assert not sections & {"performance", "ranking", "training", "in-short"}


def test_the_pages_say_beside_the_map_whether_answer_and_map_followed(one, labelled) -> None:
    require_as_declared(one, PLANTED_IN_SCAN_TABLE)
    table = PLANTED_IN_SCAN_TABLE.read(one)
    asked = table[table["planted"] == table["name"]].set_index("name")
    assert set(asked.index) == {"Right hippocampus"}
    assert set(asked["map"]) == {"deeplift"}
    # what each map must add up to, both in float32
    np.testing.assert_allclose(asked["map_change"], asked["change"], rtol=1e-2, atol=1e-4)
    for page in (one.root / "sub-scan.html", one.root / "scan_report.html"):
        text = page.read_text()
        assert text.count('<p class="badge') == 1
        assert "A tenth of it was taken out of this scan" in text
    assert not PLANTED_IN_SCAN_TABLE.path(labelled).exists()


def test_a_region_that_the_atlas_lacks_is_refused_before_anything_is_written(folder, tmp_path, capsys) -> None:
    command = ["apply", str(folder / "run"), str(folder / "scan.nii.gz"), str(tmp_path / "out"), "--plant", "Putamenn"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "--plant Putamenn: the atlas neuromorphometrics-cat12 has no such region. Did you mean Putamen?" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_scans_with_labels_are_compared_too(labelled) -> None:
    require_as_declared(labelled, likeness.LIKENESS_TABLE)
    table = likeness.LIKENESS_TABLE.read(labelled)
    assert table["scan_id"].nunique() == EVERYONE - 16  # of both classes, and outside the contrast
    measures = table[table["verdict"] == "unlike"].groupby("participant_id")["measure"].agg(set)
    assert set(measures.index) == {INVERTED, MIRRORED}
    assert "template_correlation" in measures[INVERTED]
    assert "side" in measures[MIRRORED]
    run = read_run(labelled)
    assert why_unlike(run).startswith(f"2 of {EVERYONE - 16} scans are unlike those that the networks learned from")
    material, people = Material.of(labelled), ParticipantRecords(run)
    withheld = {name: person_content(material, people, name)["withheld"] for name in (INVERTED, MIRRORED, SCAN)}
    assert [text.startswith("This scan is unlike") for text in withheld.values()] == [True, True, False]
    assert withheld[SCAN] == ""
    assert (
        "The mean of the networks, which were trained on other people,"
        in person_content(material, people, SCAN)["lead"]
    )


def test_the_log_of_people_with_labels_speaks_of_no_folds_and_no_training(labelled) -> None:
    log = labelled.log.read_text()
    assert "folds" not in log
    assert "training" not in log
    assert "prediction    done" in log


def test_a_second_call_does_nothing(folder, one) -> None:
    before = {path: path.stat().st_mtime_ns for path in one.root.rglob("*.tsv")}
    apply(folder, folder / "scan.nii.gz", "one")
    assert {path: path.stat().st_mtime_ns for path in one.root.rglob("*.tsv") if path in before} == before


def test_people_of_one_class_are_predicted_with_what_is_known_of_them(folder, tmp_path) -> None:
    new = folder / "patients"
    shutil.copytree(folder / "input", new)
    people = pd.read_csv(new / "participants.tsv", sep="\t", dtype=str)
    people = people[people["diagnosis"] == "AD"]
    for path in new.glob("sub-*"):
        if path.name not in set(people["participant_id"]):
            shutil.rmtree(path)
    people.to_csv(new / "participants.tsv", sep="\t", index=False)
    layout = apply(folder, new, "of_patients", "--stop-after", "statistics")
    found = read_table(layout.group / "predictions_applied.tsv")
    assert len(found) == (EVERYONE - TRAINED) / 3
    notes = read_table(layout.group / "statistics" / "w_scores.tsv")["note"]
    assert not notes.str.contains("norm without", na=False).any()
    assert "3 people of each class are needed" in layout.log.read_text()


def test_an_export_serves_for_one_scan_with_norms_that_know_no_covariate(folder, one) -> None:
    assert main(["export", str(folder / "run"), str(folder / "given")]) == 0
    layout = apply(folder, folder / "scan.nii.gz", "by_export", "--stop-after", "statistics", run="given")
    ours, theirs = (read_table(of.group / "predictions_applied.tsv") for of in (one, layout))
    pd.testing.assert_frame_equal(ours, theirs)
    scores = read_table(layout.group / "statistics" / "w_scores.tsv")
    assert scores["note"].str.contains("mean and spread alone are known").all()
    wanted = read_table(one.group / "statistics" / "w_scores.tsv")
    lrp = [table[table["source"] == "lrpB000"]["w"].to_numpy() for table in (wanted, scores)]
    np.testing.assert_allclose(
        lrp[1], lrp[0], rtol=1e-5
    )  # maps that owe nothing to controls; nothing known of the scan


def test_both_cohorts_stand_side_by_side(folder, labelled) -> None:
    table = read_table(labelled.group / "statistics" / "external_validation.tsv")
    table = table.set_index(["measure", "label", "map"]).sort_index()  # pandas warns of a search in unsorted rows
    run, new = (read_table(of.group / "statistics" / "performance.tsv").set_index(["fold", "metric"])["estimate"]
                for of in (RunLayout(folder / "run"), labelled))  # fmt: skip
    area = table.loc["auc"].iloc[0]
    assert (area["run"], area["new"]) == (run["all", "auc_within_folds"], new["all", "auc"])
    assert area["estimate"] == pytest.approx(area["new"] - area["run"])
    assert (area["n_run"], area["n_new"]) == (16, 8)
    people = read_table(folder / "input" / "participants.tsv").set_index("participant_id")
    young = people.loc[read_table(labelled.group / "predictions.tsv")["participant_id"], "age"]
    assert table.loc[("age", "all")].iloc[0]["new"] == pytest.approx(young.mean())
    assert {"rank_correlation", "intensity", "share_positive", "known_sites"} <= set(table.index.get_level_values(0))
    cohorts = read_table(labelled.group / "statistics" / "external_calibration.tsv")
    assert cohorts.groupby("cohort")["n_scans"].sum().to_dict() == {"run": 16, "new": 8}
    for made in (EXTERNAL_TABLE, EXTERNAL_CALIBRATION_TABLE):
        require_as_declared(labelled, made)
    (section,) = finished_sections(Material.of(labelled), ["external"]).sections
    assert not section.absent
    assert "Does it hold in this cohort?" in section.html


def test_bad_images_and_people_of_the_run_are_refused_before_anything_is_written(folder, tmp_path, capsys) -> None:
    known = tmp_path / "sub-00_T1w.nii.gz"
    shutil.copyfile(folder / "input" / "sub-00" / "anat" / "sub-00_T1w.nii.gz", known)
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    for new, expected in (
        (known, "is a scan of sub-00, who is among the people of the run"),
        (text, "not an image. Give one T1-weighted scan (.nii, .nii.gz or .mgz)"),
        (
            tmp_path / "gone.nii.gz",
            "no such folder. Give an ADNI or OASIS download, a BIDS or CAPS dataset",
        ),
    ):
        assert main(["apply", str(folder / "run"), str(new), str(tmp_path / "out")]) == 65
        said = capsys.readouterr().err
        assert expected in said
        assert len(said.strip().splitlines()) == 1
        assert not (tmp_path / "out" / "config.toml").exists()


def test_people_with_the_ids_of_the_run_are_left_out_unless_they_are_said_to_be_others(folder, tmp_path) -> None:
    kept = {}
    for option in ([], ["--new-people"]):
        out = tmp_path / f"out{len(option)}"
        command = ["apply", str(folder / "run"), str(folder / "input"), str(out), "--stop-after", "cohort", *option]
        assert main([*command, "--start-at", "template"]) == 0
        scans = read_table(out / "scans.tsv")
        kept[len(option)] = set(scans.loc[scans["kept"], "participant_id"])
    assert len(kept[1]) == EVERYONE
    known = set(read_table(folder / "run" / "splits.tsv")["participant_id"])
    assert 0 < len(known) < TRAINED  # MCI is no class of the run
    assert kept[0] == kept[1] - known


def test_maps_of_people_without_labels_are_not_judged(one, capsys) -> None:
    assert main(["evaluate", str(one.root), "--n-procs", "1"]) != 0
    assert "nobody has a label, and the bench compares classes" in capsys.readouterr().err
