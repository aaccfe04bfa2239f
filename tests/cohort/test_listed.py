"""A folder of images with a table of people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from input_trees import image_bytes

from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of three people, one of them seen twice."""
    root = tmp_path / "imäges"
    for name in ("a.nii", "b.nii", "c.nii", "deep/d.nii"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(image_bytes())
    return root


def read(root: Path, *lines: str, table: str = "people.csv", **settings: Any) -> InputCohort:
    (root / "people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_cohort(root, CohortConfig(table=table, **settings), 43)


FULL = (
    "File,Subject,Visit,Age,Gender,DX,Site,MMSE,hobby",
    "a.nii,1,bl,71.5,F,CN,Rome,29,chess",
    "b.nii,2,bl,80,male,AD,Oslo,21,",
    "deep/d.nii,2,m12,81,male,Dementia,Oslo,18,",
    "c.nii,sub-3,bl,66,2,MCI,Oslo,40,go",
)


def test_values_are_those_of_participants_tables(folder) -> None:
    cohort = read(folder, *FULL, clinical_columns=("hobby",))
    assert (cohort.layout, cohort.problem) == ("table", "")
    rows = [
        (s.participant_id, s.session_id, s.scan_id, s.image, s.age, s.sex, s.diagnosis, s.label, s.site, s.mmse)
        for s in cohort.table.kept
    ]
    assert rows == [
        ("sub-1", "ses-M000", "a", "a.nii", 71.5, "F", "CN", "CN", "Rome", 29.0),
        ("sub-2", "ses-M000", "b", "b.nii", 80.0, "M", "AD", "AD", "Oslo", 21.0),
        ("sub-2", "ses-M012", "d", "deep/d.nii", 81.0, "M", "AD", "AD", "Oslo", 18.0),
        ("sub-3", "ses-M000", "c", "c.nii", 66.0, "F", "MCI", None, "Oslo", None),
    ]
    assert cohort.table.kept[0].diagnosis_source == "people.csv: DX"
    assert cohort.clinical is not None
    assert cohort.clinical.frame["hobby"].tolist()[0] == "chess"
    said = "\n".join(cohort.notes)
    assert "columns of people.csv that are used: File for the path, Subject for the participant, Visit for" in said
    assert "people.csv line 5, MMSE '40'" in said


def test_separators_and_the_place_of_the_table_do_not_matter(folder, tmp_path) -> None:
    usual = read(folder, *FULL).table
    for separator in "\t;":
        assert read(folder, *(line.replace(",", separator) for line in FULL)).table == usual
    elsewhere = tmp_path / "tables" / "mine.tsv"
    elsewhere.parent.mkdir()
    elsewhere.write_text((folder / "people.csv").read_text().replace("a.nii", f"../{folder.name}/a.nii"))
    moved = read(folder, *FULL, table=str(elsewhere)).table
    assert [scan.image for scan in moved] == [scan.image for scan in usual]
    absolute = [FULL[0], *(f"{folder}/{line}" for line in FULL[1:])]
    assert read(folder, *absolute).table == usual


def test_visits_without_a_scan_say_who_progressed(folder) -> None:
    cohort = read(
        folder, "path,participant_id,session,diagnosis", "a.nii,1,bl,MCI", ",1,m24,AD", "b.nii,2,bl,MCI", ",2,m36,MCI"
    )
    assert [scan.progression for scan in cohort.table.kept] == ["pMCI", "sMCI"]
    assert "2 rows of people.csv without a path: sub-1 ses-M024, sub-2 ses-M036" in cohort.notes
    assert "2 images in the folder without a row ignored: c.nii, deep/d.nii" in cohort.notes


def test_names_of_files_and_sidecars_say_what_an_image_is(folder) -> None:
    for name in ("sub-1_desc-brain_T1w.nii", "x.nii"):
        (folder / name).write_bytes(image_bytes())
    (folder / "x.json").write_text('{"SkullStripped": true, "MagneticFieldStrength": 2.89}')
    cohort = read(folder, "path,id,dx", "sub-1_desc-brain_T1w.nii,1,CN", "x.nii,2,AD", "a.nii,3,AD")
    assert [scan.entry for scan in cohort.table.kept] == ["brain", "brain", "scan"]
    assert [scan.field_strength for scan in cohort.table.kept] == [None, 3.0, None]


def test_files_of_one_name_are_told_apart_by_their_people(folder) -> None:
    for person in ("p1", "p2"):
        (folder / person).mkdir()
        nib.save(nib.MGHImage(np.ones((7, 9, 11), np.float32), np.eye(4)), folder / person / "T1.mgz")
    cohort = read(folder, "path,participant,group", "p1/T1.mgz,p1,a", "p2/T1.mgz,p2,b", contrast_column="group",
                  negative="a", positive="b")  # fmt: skip
    assert [(s.scan_id, s.image, s.label) for s in cohort.table.kept] == [
        ("sub-p1", "p1/T1.mgz", "a"),
        ("sub-p2", "p2/T1.mgz", "b"),
    ]
    assert not any("unsupported format" in note for note in cohort.notes)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("name,id", "a.nii,1"), "no column with paths of images; found: name, id. Name the column path"),
        (("path,who", "a.nii,1"), "no column with participants; found: path, who. Name the column participant_id"),
        (("file,t1w,id", "a.nii,b.nii,1"), "columns file and t1w may hold the paths of images. Rename all but one"),
        (("file,scan,id", "x,y,1"), "columns file and scan may hold the paths"),
        (("path,id", "a.nii,1", "zz.nii,2"), "line 3, column path: zz.nii: no such file, from "),
        (("path,id", "deep,1"), "line 2, column path: deep is no image"),
        (("path,id,session", "a.nii,1,1", "a.nii,1,2"), "a.nii is in lines 2 and 3 (of sub-1). Correct the cells"),
        (("path,id", "a.nii,1", "./a.nii,2"), "a.nii is in lines 2 and 3 (of sub-1, sub-2)"),
        (("path,id", "../out.nii,1"), "line 2, column path: ../out.nii lies outside "),
        (("path,id", "a.nii,1", "b.nii,1"), "sub-1 has an image in lines 2 and 3. Name the session of each"),
        (("path,id,visit", "a.nii,1,bl", "b.nii,1,sc"), "sub-1 ses-M000 has an image in lines 2 and 3"),
        (("path,id", "a.nii,x-1", "b.nii,x1"), "'x-1' and 'x1' would both be sub-x1. Rename one of them"),
        (("path,id", "a.nii,--"), "line 2, column id: '--' is no name"),
        (("path,id", f"{'x' * 300}.nii,1"), f"line 2, column path: {'x' * 300}.nii: no such file, from "),
        (("path,id", "a.nii,#N/A"), "line 2, column id: '#N/A' is an error of the spreadsheet. Correct it"),
        (("path,id",), "has no row of a participant"),
    ],
)
def test_what_a_table_could_mix_up_is_refused_in_one_line(folder, lines, said) -> None:
    (folder.parent / "out.nii").write_bytes(image_bytes())
    with pytest.raises(BadInputError) as refused:
        read(folder, *lines)
    assert said in str(refused.value)
    assert str(folder / "people.csv") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_that_is_not_there(folder) -> None:
    with pytest.raises(BadInputError, match=r"cohort\.table = 'no.csv': no such file, neither here nor in .*imäges"):
        read(folder, *FULL, table="no.csv")


def test_a_file_that_is_there_from_both_folders_is_refused(folder, tmp_path) -> None:
    (folder / "deep" / "people.csv").write_text("path,id\nd.nii,1\n")
    (folder / "d.nii").write_bytes(image_bytes())
    with pytest.raises(BadInputError, match=r"d.nii is there twice, as d.nii and deep/d.nii"):
        read_cohort(folder, CohortConfig(table=str(folder / "deep" / "people.csv")), 43)


def test_one_column_of_several_is_that_whose_cells_are_images(folder) -> None:
    cohort = read(folder, "scan,path,id", "1,a.nii,1", "2,b.nii,2")
    assert [scan.image for scan in cohort.table] == ["a.nii", "b.nii"]


def test_a_folder_of_images_that_is_a_link_is_read_if_links_are_followed(folder, tmp_path) -> None:
    (tmp_path / "store").mkdir()
    (folder / "a.nii").replace(tmp_path / "store" / "a.nii")
    (folder / "linked").symlink_to(tmp_path / "store")
    lines = ("path,id", "linked/a.nii,1", "b.nii,2")
    with pytest.raises(BadInputError, match=r"linked/a\.nii lies outside .* or --follow-links if links lead there"):
        read(folder, *lines)
    cohort = read_cohort(folder, CohortConfig(table="people.csv"), 43, ScanSelection(follow_links=True))
    assert [scan.image for scan in cohort.table.kept] == ["linked/a.nii", "b.nii"]


@pytest.mark.parametrize("followed", [False, True])
def test_paths_through_a_link_to_the_input_are_those_of_the_input(folder, tmp_path, followed) -> None:
    (tmp_path / "link").symlink_to(folder)
    (folder / "people.csv").write_text(f"path,id\n{tmp_path}/link/a.nii,1\n{tmp_path}/link/deep/d.nii,2\n")
    cohort = read_cohort(folder, CohortConfig(table="people.csv"), 43, ScanSelection(follow_links=followed))
    assert [scan.image for scan in cohort.table] == ["a.nii", "deep/d.nii"]


def test_a_link_out_of_the_folder_is_left_out(folder, tmp_path) -> None:
    (tmp_path / "out.nii").write_bytes(image_bytes())
    (folder / "link.nii").symlink_to(tmp_path / "out.nii")
    cohort = read(folder, "path,id", "link.nii,1", "a.nii,2")
    assert [scan.reason for scan in cohort.table] == [
        "a link to a file outside the input folder: copy the file into it, or give --follow-links",
        None,
    ]


def test_the_same_people_as_a_bids_dataset(folder, bids) -> None:
    """A flat folder and a BIDS dataset of the same files give the same table, but for names of files and tables."""
    bids.root = folder.parent / "bids"
    for person, name in (("1", "a"), ("2", "b"), ("3", "c")):
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii", (folder / f"{name}.nii").read_bytes())
    bids.table("participants.tsv", "participant_id age sex diagnosis site apoe4 tiv_mm3", "sub-1 70 F CN x 0 1400000",
               "sub-2 81 M AD y 2 1500000", "sub-3 75 F AD x 1 n/a")  # fmt: skip
    lines = (bids.root / "participants.tsv").read_text().replace("\t", ",").splitlines()
    images = ["path", "a.nii", "b.nii", "c.nii"]
    listed = read(folder, *(f"{image},{line}" for image, line in zip(images, lines, strict=True)))
    others = {"scan_id", "image", "diagnosis_source", "tiv_source"}
    mine, theirs = (one.frame().drop(columns=others) for one in (listed.table, bids.read().table))
    assert mine.equals(theirs)


def test_ids_that_differ_in_case_alone_are_refused(folder) -> None:
    with pytest.raises(BadInputError, match=r"'a1' and 'A1' differ in case alone\. Write them alike"):
        read(folder, "path,id,dx", "a.nii,a1,CN", "b.nii,A1,AD")


@pytest.mark.parametrize(
    ("codes", "sexes"),
    [("12", ["M", "F"]), ("11", ["M", "M"]), ("20", ["F", None]), ("fm", ["F", "M"]), ("0.0 1", None), ("10", None)],
)
def test_sexes_as_0_and_1_are_refused_since_either_may_be_female(folder, codes, sexes) -> None:
    one, other = codes.split() if " " in codes else codes
    rows = ("path,id,Gender,dx", f"a.nii,1,{one},CN", f"b.nii,2,{other},AD")
    if sexes:
        assert [scan.sex for scan in read(folder, *rows).table.kept] == sexes
        return
    with pytest.raises(
        BadInputError, match=r"people\.csv: column Gender holds 0 and 1, .*\. Write F and M, or 1 for male"
    ):
        read(folder, *rows)


def test_sexes_of_a_bids_dataset_as_0_and_1_are_refused(bids) -> None:
    for person in ("sub-1", "sub-2"):
        bids.image(f"{person}/anat/{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis sex", "sub-1 CN 0", "sub-2 AD 1")
    with pytest.raises(BadInputError, match=r"participants\.tsv: column sex holds 0 and 1"):
        bids.read()
    bids.table("participants.tsv", "participant_id diagnosis", "sub-1 CN", "sub-2 AD")
    for person, sex in (("sub-1", "1"), ("sub-2", "0")):  # each table holds one code alone
        bids.image(f"{person}/ses-M000/anat/{person}_ses-M000_T1w.nii")
        bids.table(f"{person}/{person}_sessions.tsv", "session_id Sex", f"ses-M000 {sex}")
    with pytest.raises(
        BadInputError,
        match=r"sub-2_sessions\.tsv: column Sex holds 0 and that of \S+/sub-1_sessions\.tsv 1, and nothing",
    ):
        bids.read()


def test_numbered_visits_of_another_study_are_no_times(folder, bids) -> None:
    rows = ("path,id,visit,dx,age", "a.nii,1,v01,MCI,70", "b.nii,1,v02,MCI,70", "c.nii,1,v05,MCI,70", ",1,v21,AD,70")
    cohort = read(folder, *rows)
    assert [scan.session_id for scan in cohort.table.kept] == ["ses-v01", "ses-v02", "ses-v05"]
    assert {scan.progression for scan in cohort.table.kept} == {None}
    assert cohort.clinical is not None
    assert cohort.clinical.frame.get("years_since_first_scan", pd.Series(dtype=float)).isna().all()
    adni = [row.replace(",1,", ",002_S_0295,") for row in rows if ",v02," not in row]
    assert [scan.session_id for scan in read(folder, *adni).table.kept] == ["ses-M000", "ses-M006"]
    for session in ("v01", "v05"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis", "sub-1 MCI")
    bids.table("sessions.tsv", "participant_id session_id diagnosis", "sub-1 ses-v01 MCI", "sub-1 ses-v21 AD")
    assert {scan.progression for scan in read_cohort(bids.root, CohortConfig(), 43).table} == {None}


@pytest.mark.parametrize("name", ["1234567890123456.0", "9e+15", "1.23457E+15"])
def test_names_that_a_spreadsheet_rounded_are_refused(folder, name) -> None:
    with pytest.raises(BadInputError, match=r"people\.csv: line 3, column id: '.*' is a number of more .* as text"):
        read(folder, "path,id,dx", "a.nii,1234567890123456,CN", f"b.nii,{name},AD")
    with pytest.raises(BadInputError, match=r"people\.csv: line 2, column visit: '.*' is a number of more"):
        read(folder, "path,id,visit", f"a.nii,1,{name}")


def test_a_name_that_no_file_can_have_is_refused_with_its_row(folder) -> None:
    rows = ("path,id,dx", "a.nii,1,CN", f"b.nii,{'x' * 300},AD")
    with pytest.raises(
        BadInputError, match=r"people\.csv: line 3: the names .* \(sub-x{16}…\) have 304 letters, .* at most 80"
    ):
        read(folder, *rows)


def test_a_long_name_of_a_bids_dataset_is_refused_with_its_image(bids) -> None:
    person = f"sub-{'x' * 100}"
    bids.image(f"{person}/anat/{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis", f"{person} CN")
    with pytest.raises(BadInputError, match=r"xxx_T1w\.nii: the names .* have 104 letters"):
        bids.read()


def test_a_name_that_says_another_kind_or_tissue_is_not_used(folder) -> None:
    for name in ("sub-1_FLAIR.nii", "sub-2_T1w.nii", "sub-3_label-WM_probseg.nii"):
        (folder / name).write_bytes(image_bytes())
    lines = ["path,id,dx", "a.nii,0,CN", "sub-1_FLAIR.nii,1,CN", "sub-2_T1w.nii,2,AD"]
    reasons = {scan.scan_id: scan.reason for scan in read(folder, *lines).table}
    assert reasons["sub-1_FLAIR"] == "named as a FLAIR scan, and cohort.suffix is T1w"
    assert reasons["sub-2_T1w"] is None
    assert reasons["a"] is None
    maps = read(
        folder, *lines[:2], "sub-3_label-WM_probseg.nii,3,AD", suffix="probseg", label="GM", start_at="template"
    )
    reasons = {scan.scan_id: scan.reason for scan in maps.table}
    assert reasons["sub-3_label-WM_probseg"] == "another map than cohort.label: label-WM"
