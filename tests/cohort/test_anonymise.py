from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from input_trees import AdniTree, BidsTree

from heatlas.pipeline.cohort.reading import ScanSelection, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.sharing import Disguise, capped_ages, open_disguise, shifted_dates
from heatlas.pipeline.run.config.settings import CohortConfig, PrivacyConfig
from heatlas.pipeline.run.errors import UsageError

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


@pytest.mark.parametrize("key", ["0" * 64, "ab" * 32, "01234" * 20])
def test_a_key_of_few_different_characters_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "key"
    path.write_text(key + "\n")
    with pytest.raises(UsageError, match=r"different characters.*Name a file that is absent, and a key is made"):
        open_disguise(path, PrivacyConfig(shift_dates=True), [])


def test_a_table_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("path,participant_id,age,sex\na.nii.gz,01,70,F\n")
    with pytest.raises(UsageError, match="a key is one line"):
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
