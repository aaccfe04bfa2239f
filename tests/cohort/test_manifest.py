"""Manifests, records of people, and their names."""

from __future__ import annotations

import datetime
import gzip
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import AdniTree, BidsTree, image_bytes

from heatlas.pipeline.cohort.people.persons import roll_over_notes, same_person
from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_cohort
from heatlas.pipeline.cohort.records import SCAN_COLUMNS, Scan, ScanTable
from heatlas.pipeline.cohort.sharing import (
    Disguise,
    Manifest,
    capped_ages,
    image_digest,
    make_manifest,
    open_disguise,
    shifted_dates,
)
from heatlas.pipeline.run.config.settings import CohortConfig, PrivacyConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError

SEX = CohortConfig(contrast_column="sex", negative="F", positive="M")


def image(value: int = 1, shape: tuple[int, int, int] = (7, 9, 11), note: bytes = b"") -> bytes:
    made = nib.Nifti1Image(np.full(shape, value, np.int16), np.diag([-1.0, 1, 1, 1]))
    made.header["descrip"] = note
    return made.to_bytes()


@pytest.fixture
def here(tmp_path: Path) -> BidsTree:
    tree = BidsTree(tmp_path / "here")
    for i, person in enumerate("1234"):
        tree.image(f"sub-{person}/anat/sub-{person}_T1w.nii", image(i + 1))
    tree.table("participants.tsv", "participant_id sex age", "sub-1 F 71", "sub-2 M 72", "sub-3 F 73", "sub-4 M 74")
    return tree


def read(tree: BidsTree, manifest: Manifest | None = None) -> InputCohort:
    return read_cohort(tree.root, SEX, 43, ScanSelection(manifest=manifest))


def statuses(cohort: InputCohort) -> dict[str, str]:
    return {match.scan_id: match.status for match in cohort.matches}


def test_a_manifest_holds_ids_and_digests_and_nothing_else(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept)
    manifest.write(tmp_path / "m.tsv")
    lines = (tmp_path / "m.tsv").read_text().splitlines()
    assert lines[0] == "scan_id\tsha256"
    assert [line.split("\t")[0] for line in lines[1:]] == [f"sub-{i}_T1w" for i in "1234"]
    assert all(len(line.split("\t")) == 2 and len(line.split("\t")[1]) == 64 for line in lines[1:])
    assert Manifest.read(tmp_path / "m.tsv") == manifest
    shuffled = Manifest(dict(reversed(list(manifest.digests.items()))))
    assert shuffled.digest == manifest.digest


def test_the_same_cohort_is_rebuilt_elsewhere_and_every_difference_is_named(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept)
    there = BidsTree(tmp_path / "there")
    there.image("sub-1/anat/sub-1_T1w.nii.gz", gzip.compress(image(1, note=b"converted on another day")))
    there.image("sub-2/anat/sub-2_T1w.nii", image(9))
    there.image("sub-3/anat/sub-3_T1w.nii", b"no image")
    there.image("sub-1/anat/sub-1_run-0_T1w.nii", image(5))
    there.image("sub-5/anat/sub-5_T1w.nii", image(5))
    there.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M", "sub-3 F", "sub-5 M")
    cohort = read(there, manifest)
    assert statuses(cohort) == {
        "sub-1_T1w": "same", "sub-2_T1w": "different", "sub-3_T1w": "dropped", "sub-4_T1w": "missing",
        "sub-1_run-0_T1w": "extra", "sub-5_T1w": "extra",
    }  # fmt: skip
    assert [scan.scan_id for scan in cohort.table.kept] == ["sub-1_T1w"]
    reasons = {scan.scan_id: scan.reason or "" for scan in cohort.table if not scan.kept}
    assert reasons["sub-5_T1w"] == "not in the manifest"
    assert reasons["sub-2_T1w"].startswith("different, compared with the manifest: sha256 ")


def test_without_digests_ids_alone_are_compared(here: BidsTree, tmp_path: Path) -> None:
    manifest = make_manifest(here.root, read(here).table.kept, ids_only=True)
    manifest.write(tmp_path / "m.tsv")
    here.image("sub-2/anat/sub-2_T1w.nii", image(9))
    cohort = read(here, Manifest.read(tmp_path / "m.tsv"))
    assert set(statuses(cohort).values()) == {"unchecked"}
    assert len(cohort.table.kept) == 4


def test_the_digest_is_of_the_image_and_not_of_the_file(tmp_path: Path) -> None:
    def digest(content: bytes, name: str = "a.nii") -> str:
        (tmp_path / name).write_bytes(content)
        return image_digest(tmp_path / name)

    same = digest(image())
    assert digest(gzip.compress(image()), "b.nii.gz") == digest(image(note=b"x"), "c.nii") == same
    moved = nib.Nifti1Image(np.ones((7, 9, 11), np.int16), np.diag([1.0, 1, 1, 1])).to_bytes()
    others = [image(2), image(shape=(9, 7, 11)), moved, image_bytes(dtype=np.uint16)]
    assert len({same, *(digest(content, f"{i}.nii") for i, content in enumerate(others))}) == 5


def test_an_image_that_breaks_off_is_named_on_export(here: BidsTree) -> None:
    noise = np.random.default_rng(4).integers(0, 30_000, (17, 19, 23), dtype=np.int16)
    whole = nib.Nifti1Image(noise, np.diag([-1.0, 1, 1, 1])).to_bytes()
    here.image("sub-2/anat/sub-2_T1w.nii.gz", gzip.compress(whole))
    (here.root / "sub-2/anat/sub-2_T1w.nii").unlink()
    kept = read(here).table.kept
    assert len(kept) == 4
    here.image("sub-2/anat/sub-2_T1w.nii.gz", gzip.compress(whole)[:9000])  # cut after it was read
    with pytest.raises(BadInputError, match=r"^sub-2/anat/sub-2_T1w\.nii\.gz: cannot be read"):
        make_manifest(here.root, kept)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scan_id\tdigest\nI1\tx\n", "column sha256 is missing"),
        ("scan_id\tsha256\nI1\tx\nI1\ty\n", "scan_id I1 appears twice"),
        ("scan_id\tsha256\nn/a\tx\n", "a scan_id is missing"),
    ],
)
def test_a_table_that_is_no_manifest_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "m.tsv").write_text(text)
    with pytest.raises(BadInputError, match=words):
        Manifest.read(tmp_path / "m.tsv")


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


def test_only_names_of_adni_are_joined() -> None:
    names = ["sub-ADNI002S0295", "sub-ADNI131S0295", "sub-ADNI002S1295", "sub-0295", "sub-002S0295"]
    joined = [one for one in same_person(names).values() if len(one) > 1]
    assert joined == [("sub-ADNI002S0295", "sub-ADNI131S0295")]
    assert roll_over_notes(["sub-01", "sub-02"]) == []


def test_a_bids_dataset_with_two_names_of_one_person_says_so(bids: BidsTree) -> None:
    for person in ("ADNI002S0295", "ADNI131S0295", "ADNI002S0300"):
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    rows = ("sub-ADNI002S0295 CN", "sub-ADNI131S0295 CN", "sub-ADNI002S0300 AD")
    bids.table("participants.tsv", "participant_id diagnosis", *rows)
    note = (
        "1 person has several names (one RID), always in the same part of a fold: sub-ADNI002S0295 and sub-ADNI131S0295"
    )
    assert note in bids.read().notes


KEY = "0123456789abcdef" * 4


def date_in(path: str | None) -> datetime.date:
    return datetime.date.fromisoformat(re.search(r"\d{4}-\d\d-\d\d", path or "")[0])  # type: ignore[index]


def test_ages_above_89_are_89_and_counted() -> None:
    scans = [Scan("sub-1", None, str(age), None, age=age) for age in (88.9, 89.0, 89.1, 97.0, None)]
    capped, notes = capped_ages(scans)
    assert [scan.age for scan in capped] == [88.9, 89.0, 89.0, 89.0, None]
    assert notes == ["ages above 89 of 2 scans are written as 89"]
    assert capped_ages(scans[:2])[1] == []


def test_dates_move_back_together_and_people_apart(adni: AdniTree) -> None:
    for day, number, code in (("2006-04-18", "I1", "bl"), ("2007-04-20", "I2", "m12")):
        adni.image("002_S_0295", day, number)
        adni.row("002_S_0295", code, day)
    adni.both_classes()
    adni.table()
    disguise = Disguise(KEY)
    cohort = read_cohort(adni.root, CohortConfig(), 43, ScanSelection(disguise=disguise))
    scans = {scan.scan_id: scan for scan in cohort.table}
    first, second, other = (date_in(scans[name].image) for name in ("I1", "I2", "I9999"))
    assert (second - first).days == 367
    assert max(first, second, other).year <= 1925
    assert (datetime.date(2006, 4, 18) - first).days != (datetime.date(2006, 4, 18) - other).days
    assert (adni.root / scans["I1"].file).is_file()
    assert "2006" not in cohort.table.frame().to_csv() + " ".join(cohort.notes)
    assert KEY not in repr(disguise)


def test_the_same_key_gives_the_same_shift_and_another_another() -> None:
    assert Disguise(KEY).days_back("sub-1") == Disguise(KEY).days_back("sub-1")
    assert len({Disguise(KEY[::-1] + str(i)).days_back("sub-1") for i in range(20)}) > 15


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("on 2006-04-18.", "on 1906-04-19."),
        ("2006-04-18_08_20_30.0/I1", "1906-04-19_00_00_00.0/I1"),
        ("raw_20060418193538026_1_S13408_I13722.nii", "raw_19060419000000000_1_S13408_I13722.nii"),
        ("4/18/2006", "4/19/1906"),
        ("2006-13-40, 20061340, I20060418x1", "2006-13-40, 20061340, I19060419x1"),
        ("002_S_0295, S13408, 120060418", "002_S_0295, S13408, 120060418"),
        ("2006_04_18 2006.4.18 2006/04/18", "1906_04_19 1906.4.19 1906/04/19"),
        ("20060418T082030 200604180820 2006-04-18T08:20:30", "19060419T000000 190604190000 1906-04-19T00:00:00"),
        ("18/4/2006 04-18-2006 18.04.2006 18_04_2006", "19/4/1906 04-19-1906 19.04.1906 19_04_1906"),
        ("18Apr2006 18-April-2006 Apr 18, 2006", "19Apr1906 19-Apr-1906 Apr 19, 1906"),
        ("2.5.1 1.2.3 V1.2006 M2006 12.2006", "2.5.1 1.2.3 V1.2006 M2006 12.2006"),
    ],
)
def test_what_counts_as_a_date(text: str, moved: str) -> None:
    assert shifted_dates(text, 36524) == moved


NAMES = [
    "20060418",
    "2006-04-18",
    "18Apr2006",
    "2006_04_18",
    "20060418T082030",
    "1.3.12.2.1107.5.2.32.2006041808203012345",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_scan_keeps_its_date(name: str) -> None:
    scan = Scan("sub-1", f"ses-{name}", f"sub-1_ses-{name}_T1w", f"a/{name}/x_{name}.dcm").dropped(
        f"better: {name}.dcm"
    )
    hidden = Disguise(KEY).scan(scan)
    shown = " ".join(map(str, (hidden.session_id, hidden.scan_id, hidden.image, hidden.reason)))
    assert not re.search("2006|0418|18Apr|0820", shown)
    assert hidden.file == scan.image
    other = Disguise(KEY).scan(Scan("sub-1", "ses-" + name.replace("18", "19", 1).replace("4", "5", 1), "b", "c"))
    assert hidden.session_id != other.session_id  # two visits stay two


def test_two_visits_named_by_date_stay_as_far_apart(bids: BidsTree) -> None:
    for session in ("20060418", "20070420"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
    bids.image("sub-2/anat/sub-2_T1w.nii")
    bids.table("participants.tsv", "participant_id sex scanned", "sub-1 F 20060418", "sub-2 M 20080101")
    config = CohortConfig(contrast_column="sex", negative="F", positive="M", clinical_columns=("scanned",))
    cohort = read_cohort(bids.root, config, 43, ScanSelection(disguise=Disguise(KEY)))
    first, second, _ = (scan.session_id or "" for scan in cohort.table)
    day = [datetime.datetime.strptime(one, "ses-%Y%m%d") for one in (first, second)]
    assert (day[1] - day[0]).days == 367
    assert cohort.clinical is not None
    assert not re.search("200[678]", cohort.table.frame().to_csv() + cohort.clinical.frame.to_csv())


def test_pseudonyms_hide_people_images_and_sites() -> None:
    scan = Scan("sub-ADNI002S0295", "ses-M000", "I7", "ADNI/002_S_0295/2006-04-18/I7/a.nii.gz", site="2")
    twice = scan.dropped("another scan of this session is preferred: I8 of 002_S_0295")
    hidden, dropped = (Disguise(KEY, ("sites", "ids")).scan(one) for one in (scan, twice))
    assert re.fullmatch(r"sub-P[0-9a-f]{10}", hidden.participant_id)
    assert re.fullmatch(r"I[0-9a-f]{10}\.nii\.gz", hidden.image or "")
    assert re.fullmatch(r"S[0-9a-f]{10}", hidden.site or "")
    assert (hidden.session_id, hidden.file) == ("ses-M000", scan.image)
    assert dropped.reason == "another scan of this session is preferred"
    assert Disguise(KEY, ("sites",)).scan(scan).participant_id == scan.participant_id


def test_the_key_is_made_once_for_its_owner_only_and_kept_apart(tmp_path: Path) -> None:
    settings = PrivacyConfig(shift_dates=True)
    path = tmp_path / "key"
    made = open_disguise(path, settings, [])
    assert made is not None
    assert (path.stat().st_mode & 0o777, len(made.key)) == (0o600, 64)
    assert open_disguise(path, settings, []) == made
    assert open_disguise(None, PrivacyConfig(), []) is None
    with pytest.raises(UsageError, match="need a key"):
        open_disguise(None, settings, [])
    with pytest.raises(UsageError, match="lies inside"):
        open_disguise(tmp_path / "out" / "key", settings, [tmp_path / "in", tmp_path / "out"])
    path.write_text("short")
    with pytest.raises(UsageError, match="32 characters or more"):
        open_disguise(path, settings, [])
    with pytest.raises(UsageError, match="cannot read or make"):
        open_disguise(tmp_path / "absent" / "key", settings, [])


FEW = r"different characters.*Name a file that is absent, and a key is made"


@pytest.mark.parametrize(
    ("text", "message"),
    [*((key, FEW) for key in ("0" * 64, "ab" * 32, "01234" * 20)), ("path,age\na.nii.gz,70", "a key is one line")],
)
def test_a_key_of_few_different_characters_and_a_table_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "key"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match=message):
        open_disguise(path, PrivacyConfig(shift_dates=True), [])


def test_no_text_of_a_clinical_column_names_a_person() -> None:
    people = ["sub-ADNI002S0295", "sub-01", "sub-abc"]
    texts = ["as 002_S_0296, 002_s_0295 and sub-ADNI002S0295", "1", "abcd, Abc; sub-01. On 18Apr2006", None]
    disguise = Disguise("k" * 20, ("ids",))
    first, number, last, none = disguise.texts([*people, "sub-01"], texts)
    name = {person: "P" + disguise.pseudonym("participant", person) for person in people}
    assert first == f"as 002_S_0296, {name['sub-ADNI002S0295']} and {name['sub-ADNI002S0295']}"
    assert (number, none) == ("1", None)
    assert last.startswith(f"abcd, {name['sub-abc']}; {name['sub-01']}. On ")
    assert "2006" not in last
    assert Disguise("k" * 20).texts(people, texts[:3])[0] == texts[0]


@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o640, True), (0o604, True), (0o622, True)])
def test_a_key_that_others_may_read_is_noted(tmp_path: Path, mode: int, exposed: bool) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(mode)
    disguise = open_disguise(key, PrivacyConfig(shift_dates=True), [])
    assert disguise is not None
    assert [note for note in disguise.notes([]) if "chmod 600" in note] == disguise.notes([])
    assert bool(disguise.notes([])) == exposed
