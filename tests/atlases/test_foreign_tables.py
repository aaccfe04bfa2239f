import pytest

from heatlas.atlases.regions import Region, read_cat12_table, read_dseg_table, split_side
from heatlas.pipeline.run.errors import BadInputError


@pytest.mark.parametrize(
    ("name", "side", "structure"),
    [
        ("left anteroventral", "left", "Anteroventral"),
        ("Left-Hippocampus", "left", "Hippocampus"),
        ("ctx-rh-precuneus", "right", "Precuneus"),
        ("lh.cuneus", "left", "Cuneus"),
        ("Lateral ventricle temporal horn L", "left", "Lateral ventricle temporal horn"),
        ("Hippocampus_R", "right", "Hippocampus"),
        ("Amygdala right", "right", "Amygdala"),
        ("  Left   Thalamus ", "left", "Thalamus"),
        ("Bothside Cerebellar Lobe", "both", "Cerebellar Lobe"),
        ("Vermis VIIb", "both", "Vermis VIIb"),
        ("Leftover", "both", "Leftover"),
        ("Area l", "both", "Area l"),
        ("Right", "both", "Right"),
        ("17Networks_LH_ContA_IPS_1", "left", "17Networks_LH_ContA_IPS_1"),
    ],
)
def test_side_and_structure(name, side, structure):
    assert split_side(name) == (side, structure)


def test_cat12_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("ROIid;ROIname;Vgm;Vwm;Vcsf\n7;Left Ventral DC;1;1;0\n9;CSF;0;0;1\n8;Right Ventral DC;1;;0\n")
    assert read_cat12_table(path).regions == (
        Region(7, "Left Ventral DC", "left", "n/a", "mixed", "Ventral DC"),
        Region(8, "Right Ventral DC", "right", "n/a", "GM", "Ventral DC"),
        Region(9, "CSF", "both", "n/a", "CSF", "CSF"),
    )
    path.write_text("ROIid;ROIname\n3;NA\n")
    assert read_cat12_table(path).regions[0].name == "NA"


def test_bids_table_with_and_without_the_optional_columns(tmp_path):
    path = tmp_path / "a_dseg.tsv"
    path.write_text("index\tname\n0\tBackground\n12\tHippocampus L\n")
    assert read_dseg_table(path).regions == (Region(12, "Hippocampus L", "left", "n/a", "n/a", "Hippocampus"),)
    rows = ["index name hemi group tissue lobe", "12 CA1_L R Hippocampus GM limbic", "13 X n/a n/a n/a "]
    path.write_text("\n".join(rows).replace(" ", "\t") + "\n")
    assert read_dseg_table(path).regions == (
        Region(12, "CA1_L", "right", "limbic", "GM", "Hippocampus"),
        Region(13, "X", "both", "n/a", "n/a", "X"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("number\tname\n1\tA\n", "column index is missing"),
        ("index\tname\n0\tBackground\n", "names no label"),
        ("index\tname\n1.5\tA\n", "1.5 is not a whole number"),
        ("index\tname\nx\tA\n", "'x' is not a whole number"),
        ("index\tname\nn/a\tA\n2\tB\n", "nan is not a whole number"),
        ("index\tname\n1\tn/a\n", "label 1 has none"),
        ("index\tname\n1\tA\n1\tB\n", "number 1 occurs more than once"),
        ("index\tname\themi\n1\tA\tnorth\n", "hemisphere 'north'"),
    ],
)
def test_bids_tables_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "bad_dseg.tsv"
    path.write_text(text)
    with pytest.raises(BadInputError, match=rf"bad_dseg\.tsv.*{message}"):
        read_dseg_table(path)
