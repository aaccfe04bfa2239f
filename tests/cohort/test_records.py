from __future__ import annotations

import pytest

from heatlas.pipeline.cohort.records import SCAN_COLUMNS, Scan, ScanTable
from heatlas.pipeline.run.errors import BadInputError


def scan(**changes):
    values = {"participant_id": "sub-01", "session_id": "ses-M000", "scan_id": "I1", "image": "a/b.nii"}
    return Scan(**{**values, **changes})


def test_table_comes_back_as_written(tmp_path):
    table = ScanTable(
        (
            scan(scan_id="0012", site="007", age=71.25, apoe4=1, label="AD", sex="F"),
            scan(participant_id="sub-02", session_id=None, image=None).dropped("no image"),
        )
    )
    table.write(tmp_path / "scans.tsv")
    assert ScanTable.read(tmp_path / "scans.tsv") == table
    assert (tmp_path / "scans.json").is_file()


def test_rows_are_sorted_whatever_the_order_of_finding():
    a, b = scan(), scan(session_id="ses-M012", scan_id="I0")
    assert ScanTable((b, a)) == ScanTable((a, b))


def test_two_kept_scans_of_a_session_are_refused():
    with pytest.raises(BadInputError, match="sub-01_ses-M000"):
        ScanTable((scan(), scan(scan_id="I2")))
    assert len(ScanTable((scan(), scan(scan_id="I2").dropped("repeat")))) == 2


def test_an_identifier_of_two_kept_scans_is_refused_and_both_are_named():
    other = scan(participant_id="sub-02", image="c/d.nii")
    with pytest.raises(BadInputError, match=r"I1 .*sub-01_ses-M000 \(a/b\.nii\) and sub-02_ses-M000 \(c/d\.nii\)"):
        ScanTable((other, scan()))
    assert len(ScanTable((scan(), other.dropped("copied by mistake")))) == 2


def test_unknown_and_missing_columns_are_named(tmp_path):
    path = tmp_path / "scans.tsv"
    ScanTable((scan(),)).write(path)
    header, row = path.read_text().splitlines()
    path.write_text(f"{header}\tshoe_size\n{row}\t42\n")
    with pytest.raises(BadInputError, match="shoe_size"):
        ScanTable.read(path)
    path.write_text(header.replace("diagnosis", "dx") + "\n" + row + "\n")
    with pytest.raises(BadInputError, match="diagnosis is missing"):
        ScanTable.read(path)


def test_labelled_scans_are_kept_scans_of_the_contrast():
    table = ScanTable((scan(label="AD"), scan(participant_id="sub-02", scan_id="I2"), scan(scan_id="I3").dropped("x")))
    assert [s.participant_id for s in table.kept] == ["sub-01", "sub-02"]
    assert [s.participant_id for s in table.labelled] == ["sub-01"]
    assert list(table.frame().columns) == list(SCAN_COLUMNS)


@pytest.mark.parametrize(
    "sessions", [("ses-9", "ses-10"), ("ses-M006", "ses-M012"), ("ses-M6", "ses-M12", "ses-M102"), (None, "ses-1"),
                 ("ses-2a", "ses-10a"), ("ses-baseline", "ses-followup1", "ses-followup11")],
)  # fmt: skip
def test_visits_are_in_their_natural_order(sessions: tuple[str | None, ...]) -> None:
    scans = [scan(session_id=name, scan_id=f"I{place}") for place, name in enumerate(sessions)]
    assert [one.session_id for one in ScanTable(tuple(reversed(scans))).scans] == list(sessions)
