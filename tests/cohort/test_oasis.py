"""OASIS downloads: layout, tables, sides, and what is wrong with them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from oasis_trees import OasisTree, head, write_pair, write_workbook

from heatlas.pipeline.cohort.cells.tables import read_workbook
from heatlas.pipeline.cohort.images.conversion import convert_scans, stated_affine
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.workflows.command_line import main


@pytest.fixture
def oasis(tmp_path: Path) -> OasisTree:
    (tmp_path / "oasis").mkdir()
    return OasisTree(tmp_path / "oasis")


def cross(tree: OasisTree, name: str = "oasis_cross-sectional-5708aa0a98d82080.csv") -> OasisTree:
    """Three people: one without dementia, scanned twice, one with, one not rated."""
    for session, disc in (("OAS1_0001_MR1", "disc1"), ("OAS1_0001_MR2", "disc2"), ("OAS1_0028_MR1", "disc1"),
                          ("OAS1_0101_MR1", "disc3")):  # fmt: skip
        tree.image(session, disc=disc)
    tree.row("OAS1_0001_MR1")
    tree.row("OAS1_0001_MR2", Delay="61", CDR="", MMSE="")
    tree.row("OAS1_0028_MR1", CDR="0.5", MMSE="27", eTIV="1215", **{"M/F": "M"}, Age="86")
    tree.row("OAS1_0101_MR1", CDR="", MMSE="", Educ="", Age="22")
    tree.table(name)
    return tree


def note(cohort: InputCohort, words: str) -> str:
    return next((one for one in cohort.notes if words in one), "")


@pytest.mark.parametrize("name", ["oasis_cross-sectional-5708aa0a98d82080.csv", "oasis_cross-sectional.xlsx"])
def test_oasis_1_is_recognised_and_read_with_either_table(oasis: OasisTree, name: str) -> None:
    cohort = cross(oasis, name).read()
    assert cohort.layout == "oasis"
    scans = {scan.scan_id: scan for scan in cohort.table}
    first = scans["OAS1_0001_MR1"]
    assert (first.participant_id, first.session_id, first.image) == (
        "sub-OASIS10001",
        "ses-M000",
        "disc1/OAS1_0001_MR1/PROCESSED/MPRAGE/SUBJ_111/OAS1_0001_MR1_mpr_n4_anon_sbj_111.img",
    )
    assert (first.diagnosis, first.age, first.sex, first.mmse, first.cdr, first.field_strength, first.entry) == (
        "CN", 74.0, "F", 29.0, 0.0, 1.5, "scan",
    )  # fmt: skip
    assert (first.tiv_mm3, first.tiv_source) == (1_344_000.0, f"{name}: eTIV")
    assert (scans["OAS1_0028_MR1"].diagnosis, scans["OAS1_0028_MR1"].label) == ("AD", "AD")
    assert [scans[one].diagnosis for one in ("OAS1_0101_MR1", "OAS1_0001_MR2")] == [None, None]
    assert scans["OAS1_0001_MR2"].session_id == "ses-M002"  # a repeat after 61 days
    assert all(scan.kept for scan in scans.values())
    clinical = cohort.clinical.frame.set_index("scan_id")
    assert clinical.loc["OAS1_0001_MR1", "nwbv"] == 0.743
    assert "education" not in clinical  # levels 1 to 5 are no years
    assert not note(cohort, "unsupported format")


def test_contrast_and_rule_work_on_oasis(oasis: OasisTree) -> None:
    cohort = cross(oasis).read(contrast_column="cdr", negative="0", positive=">=0.5", include="age >= 60 and cdr >= 0")
    assert {scan.scan_id: scan.label for scan in cohort.table.kept} == {
        "OAS1_0001_MR1": "cdr = 0",
        "OAS1_0028_MR1": "cdr ≥ 0.5",
    }
    assert cross(oasis).read(diagnosis_rule="cdr", include="cdr > 0").problem  # 0.5 is no AD by the stricter rule


@pytest.mark.parametrize(("kind", "image", "entry"), [("SUBJ_111", "subject", "scan"), ("T88_111", "atlas", "brain")])
def test_a_planted_asymmetry_lies_on_its_side_after_conversion(
    oasis: OasisTree, tmp_path: Path, kind: str, image: str, entry: str
) -> None:
    """The bright block is planted high, in front, on the right; stored as documented, it must come back there."""
    for session, cdr in (("OAS1_0001_MR1", "0"), ("OAS1_0002_MR1", "1")):
        oasis.image(session, kind)
        oasis.row(session, CDR=cdr)
    oasis.table()
    cohort = oasis.read(oasis_image=image)
    assert [scan.entry for scan in cohort.table.kept] == [entry, entry]
    with ThreadPoolExecutor(1) as pool:
        scans, outcomes = convert_scans(RunLayout(tmp_path / "run"), oasis.root, cohort.table.kept, 5.0, pool)
    assert [outcome.ok for outcome in outcomes] == [True, True]
    converted = nib.load(scans[0].file)
    assert "".join(nib.aff2axcodes(converted.affine)) == ("ASL" if image == "subject" else "LAS")
    ras = nib.as_closest_canonical(converted)
    assert np.array_equal(np.asanyarray(ras.dataobj), head())
    bright = np.argwhere(np.asanyarray(converted.dataobj) == 900)
    world = nib.affines.apply_affine(converted.affine, bright).mean(axis=0)
    assert (world > 1).all()  # right, anterior, superior of the middle
    assert (int(converted.header["sform_code"]), int(converted.header["qform_code"])) == (1, 1)


def test_affine_of_clinica_but_for_its_origin() -> None:
    clinica = np.array([[0, 0, -1], [1, 0, 0], [0, 1, 0]])
    made = stated_affine("ASL", (256, 256, 160), np.ones(3))
    assert np.array_equal(made[:3, :3], clinica)
    middle = made @ [127.5, 127.5, 79.5, 1]
    assert np.allclose(middle[:3], 0)


def test_a_pair_without_its_half_is_named(oasis: OasisTree) -> None:
    cross(oasis)
    pairs = sorted(oasis.root.rglob("*_sbj_111.img"))
    pairs[0].unlink()  # OAS1_0001_MR1
    pairs[1].with_suffix(".hdr").unlink()  # OAS1_0028_MR1
    reasons = {scan.scan_id: scan.reason for scan in oasis.read().table if not scan.kept}
    assert reasons == {
        "OAS1_0001_MR1": "pair without its image: OAS1_0001_MR1_mpr_n4_anon_sbj_111.img is missing; download the "
        "session again",
        "OAS1_0028_MR1": "pair without its header: OAS1_0028_MR1_mpr_n4_anon_sbj_111.hdr is missing; download the "
        "session again",
    }


def test_damaged_pairs_are_dropped_with_the_reason(oasis: OasisTree) -> None:
    cross(oasis)
    first, second, third, fourth = sorted(oasis.root.rglob("*_sbj_111.img"))
    first.write_bytes(first.read_bytes()[:-2])
    second.with_suffix(".hdr").write_bytes(b"no header" * 50)
    write_pair(third, np.ones((4, 5, 6), np.int16), (1.0, 1.0, 0.0))
    write_pair(fourth, np.ones((4, 5, 6), np.int16), (1.0, 1.0, 9.0))
    reasons = [scan.reason for scan in sorted(oasis.read().table, key=lambda scan: scan.image)]
    assert reasons[0] == "truncated file: 3358 bytes of 3360"
    assert reasons[1] == "not a readable header: it does not begin like one of Analyze 7.5"
    assert reasons[2] == "impossible voxel size: 1 x 1 x 0 mm"
    assert reasons[3].startswith("slices too thick: voxels of 1 x 1 x 9 mm")


def test_rows_without_images_and_images_without_rows_are_counted(oasis: OasisTree) -> None:
    cross(oasis)
    oasis.row("OAS1_0300_MR1", CDR="1")
    oasis.row("OAS1_0301_MR1", CDR="")
    oasis.table("oasis_cross-sectional-5708aa0a98d82080.csv")
    oasis.image("OAS1_0400_MR1")
    oasis.image("OAS1_0028_MR1", "RAW")  # besides its average
    oasis.image("OAS1_0500_MR1", "RAW")  # no average
    oasis.row("OAS1_0500_MR1")
    oasis.image("OAS1_0028_MR1", disc="disc1 copy")
    cohort = oasis.read()
    assert note(cohort, "more than once") == (
        "1 session is there more than once, the first by path is used: OAS1_0028_MR1"
    )
    assert note(cohort, "without an image") == (
        "2 sessions in oasis_cross-sectional-5708aa0a98d82080.csv without an image here, 1 of them with a diagnosis: "
        "OAS1_0300_MR1, OAS1_0301_MR1"
    )
    assert note(cohort, "with images but no row").startswith("2 sessions with images but no row in oasis_cross")
    reasons = {scan.scan_id: scan.reason for scan in cohort.table if not scan.kept}
    assert reasons["OAS1_0400_MR1"] == "no row in oasis_cross-sectional-5708aa0a98d82080.csv"
    assert reasons["OAS1_0500_MR1"].startswith("not downloaded: no image PROCESSED/MPRAGE/SUBJ_111/*_sbj_111.img")


def test_tables_of_another_release_incomplete_and_absent_ones_are_named(oasis: OasisTree) -> None:
    oasis.image("OAS1_0001_MR1")
    with pytest.raises(
        BadInputError, match=r"no table with the sessions of OASIS-1 and their CDR. Put oasis_cross-sec"
    ):
        oasis.read()
    other = OasisTree(oasis.root, "OAS2")
    other.row("OAS2_0001_MR1")
    path = other.table("oasis_longitudinal.csv")
    with pytest.raises(
        BadInputError, match=r"oasis_longitudinal\.csv: a table of OASIS-2, and the images are of OASIS-1"
    ):
        oasis.read()
    path.write_text("Subject,M/F,Age,cdr,CDR\nOAS30001,F,60,0,0\n")
    with pytest.raises(BadInputError, match=r"a table of another release, and the images are of OASIS-1"):
        oasis.read()
    path.write_text("ID,Sex,CDR\nOAS1_0001_MR1,F,0\n")
    with pytest.raises(BadInputError, match=r"column M/F, Age is missing, so this is no oasis_cross-sectional table"):
        oasis.read()


def test_two_tables_may_agree_but_not_disagree(oasis: OasisTree) -> None:
    cross(oasis, "a.csv")
    oasis.table("b.xlsx")
    assert len(oasis.read().table.kept) == 4  # 0.743 and 0.74299999999999999 are one number
    oasis.rows[2]["CDR"] = "1"
    oasis.table("b.xlsx")
    with pytest.raises(BadInputError, match=r"a\.csv and b\.xlsx disagree on OAS1_0028_MR1"):
        oasis.read()


def test_rows_of_one_session_may_repeat_and_complete_but_not_contradict_each_other(oasis: OasisTree) -> None:
    cross(oasis, "a.csv")
    oasis.rows.append({"ID": "OAS1_0028_MR1", "CDR": "0.50", "M/F": oasis.rows[2]["M/F"]})
    oasis.rows[2] = {**oasis.rows[2], "CDR": "0.5", "Age": ""}
    oasis.rows[-1]["Age"] = "77"
    oasis.table("a.csv")
    assert {scan.scan_id: scan.age for scan in oasis.read().table.kept}["OAS1_0028_MR1"] == 77
    oasis.rows[-1]["CDR"] = "0"
    oasis.table("a.csv")
    said = r"a\.csv: lines 4 and \d are both of OAS1_0028_MR1 and contradict each other \(CDR 0\.5 and 0\)"
    with pytest.raises(BadInputError, match=said):
        oasis.read()


def test_oasis_2_is_longitudinal(tmp_path: Path) -> None:
    tree = OasisTree(tmp_path, "OAS2")
    for session, delay, cdr, age in (("OAS2_0001_MR1", "0", "0", "60"), ("OAS2_0001_MR2", "457", "0.5", "61"),
                                     ("OAS2_0002_MR1", "0", "0.5", "70"), ("OAS2_0003_MR1", "0", "0", "65"),
                                     ("OAS2_0003_MR3", "1000", "0", "68")):  # fmt: skip
        tree.image(session, "RAW2", disc="OAS2_RAW_PART1")
        tree.row(session, CDR=cdr, Age=age, **{"MR Delay": delay})
    second = tree.root / "OAS2_RAW_PART1/OAS2_0001_MR1/RAW/mpr-2.nifti.img"
    write_pair(second, np.ones((4, 5, 6), np.int16))
    tree.row("OAS2_0003_MR2", CDR="0", **{"MR Delay": "500"})  # no image
    tree.table("oasis_longitudinal_demographics.xlsx")
    cohort = tree.read()
    found = {scan.scan_id: (scan.session_id, scan.diagnosis) for scan in cohort.table.kept}
    assert found == {
        "OAS2_0001_MR1": ("ses-M000", "CN"), "OAS2_0001_MR2": ("ses-M015", "AD"), "OAS2_0002_MR1": ("ses-M000", "AD"),
        "OAS2_0003_MR1": ("ses-M000", "CN"), "OAS2_0003_MR3": ("ses-M033", "CN"),
    }  # fmt: skip
    assert cohort.table.kept[0].image.endswith("RAW/mpr-1.nifti.img")
    clinical = cohort.clinical.frame.set_index("scan_id")
    assert clinical.loc["OAS2_0001_MR1", ["converted", "months_to_conversion"]].tolist() == [1, 15.0]
    assert clinical.loc["OAS2_0003_MR1", ["converted", "months_followed"]].tolist() == [0, 33.0]
    assert clinical.loc["OAS2_0001_MR1", "education"] == 14
    assert clinical.loc["OAS2_0001_MR2", "years_since_first_scan"] == 1.25
    with pytest.raises(BadInputError, match=r"OASIS-2 has no such image"):
        tree.read(oasis_image="atlas")
    OasisTree(tmp_path).image("OAS1_0001_MR1")
    with pytest.raises(BadInputError, match=r"holds OASIS-1 and OASIS-2"):
        tree.read()


def test_a_nifti_pair_that_states_its_orientation_is_read_by_it(tmp_path: Path) -> None:
    tree = OasisTree(tmp_path / "in", "OAS2")
    path = tree.image("OAS2_0001_MR1", "RAW2")
    image = nib.Nifti1Pair(head(), np.diag([1.0, 1, 1, 1]))
    image.to_filename(path)
    tree.row("OAS2_0001_MR1")
    tree.table("t.csv")
    with ThreadPoolExecutor(1) as pool:
        (scan,), _ = convert_scans(RunLayout(tmp_path / "run"), tree.root, tree.read().table.kept, 5.0, pool)
    assert "".join(nib.aff2axcodes(nib.load(scan.file).affine)) == "RAS"
    assert np.array_equal(np.asanyarray(nib.load(scan.file).dataobj), head())


def test_oasis_3_is_said_to_need_bids(tmp_path: Path) -> None:
    (tmp_path / "OAS30001_MR_d0129" / "anat2").mkdir(parents=True)
    with pytest.raises(BadInputError, match="sessions of OASIS-3, which is read as a BIDS dataset only"):
        OasisTree(tmp_path).read()


def test_check_and_manifest_read_pairs(oasis: OasisTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cross(oasis)
    (tmp_path / "c.toml").write_text("[cohort]\nfolds = 2\n")
    assert main(["check", str(oasis.root), "--stop-after", "registration"]) == 0
    assert "OASIS download\n4 scans found of 3 participants; 4 kept" in capsys.readouterr().out
    manifest = str(tmp_path / "m.tsv")
    assert main(["manifest", "export", str(oasis.root), manifest]) == 0
    assert main(["check", str(oasis.root), "--manifest", manifest, "--stop-after", "registration"]) == 0
    oasis.image("OAS1_0028_MR1", volume=head() + np.int16(1))
    assert main(["check", str(oasis.root), "--manifest", manifest, "--stop-after", "registration"]) == 1
    assert "1 different (OAS1_0028_MR1)" in capsys.readouterr().out


def test_workbooks_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    for content in (b"", b"ID,CDR\n", b"PK\x03\x04" + b"x" * 50):
        path.write_bytes(content)
        with pytest.raises(BadInputError, match="no readable workbook"):
            read_workbook(path)
    write_workbook(path, [["ID", "", "CDR"], ["a", "", "0.5"], ["", "", ""], ["b & c", "", "1"]])
    frame, _ = read_workbook(path)
    assert frame.to_dict("list") == {"ID": ["a", "b & c"], "CDR": ["0.5", "1"]}
    assert list(frame.index) == [2, 4]
