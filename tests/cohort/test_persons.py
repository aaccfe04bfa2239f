from __future__ import annotations

from input_trees import BidsTree

from heatlas.pipeline.cohort.people.persons import roll_over_notes, same_person


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
