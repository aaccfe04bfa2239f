"""Sums over regions, rankings of regions, and regions of a user's own."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import scipy.io
import torch
from brute_region_sums import index_labels, region_sums
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import cosine
from toy_run import GRID, REGIONS, toy_labels

from heatlas.atlases.regions import freesurfer_names
from heatlas.atlases.spaces import Box, template_grid
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.segmented.images import names_of_regions, segmentation_of, table_beside
from heatlas.pipeline.explaining.own_regions import OWN_REGIONS_TABLE, OwnRegions, own_rows, sum_own_regions
from heatlas.pipeline.regions.ranking import (
    FINGERPRINTS_TABLE,
    fingerprint_table,
    mean_over_participants,
    most_different_pair,
    overlap_table,
    top_groups,
    top_overlap,
)
from heatlas.pipeline.regions.region_sums import (
    ROW,
    device_labels,
    device_region_sums,
    lay_out_labels,
    ordered_total,
    pack_labels,
    unpack_rows,
)
from heatlas.pipeline.regions.tables import gain, negative_class_reference
from heatlas.pipeline.registration.ants_transform import Volume, write_no_displacement
from heatlas.pipeline.registration.own_labels import labels_in_template
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.run.colophon import methods_markdown
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.command_line import main
from heatlas.workflows.preflight import _own_region_notes
from tests.workflows.template_cohort import write_config, write_template_cohort

# Sums per region: on any layout of labels, the same on every call, in float64, and as nilearn has them.

CPU = torch.device("cpu")
NUMBERS = (2, 5, 7, 300)
SIDES = (6, 5, 7)


@st.composite
def boxes(draw: st.DrawFn) -> Box | None:
    if draw(st.booleans()):
        return None
    starts = [draw(st.integers(0, side - 1)) for side in SIDES]
    sides = [draw(st.integers(1, side - start)) for side, start in zip(SIDES, starts, strict=True)]
    return Box(tuple(starts), tuple(sides))


@given(
    hnp.arrays(np.int32, SIDES, elements=st.sampled_from([0, *NUMBERS])),
    boxes(),
    st.permutations(NUMBERS),
    st.integers(0, 2**32 - 1),
)
def test_equal_to_the_sums_of_the_pasted_map(labels, box, order, seed):
    packed = pack_labels(labels, order)
    laid_out = lay_out_labels(packed, box, CPU)
    shape = SIDES if box is None else box.shape
    maps = np.random.default_rng(seed).normal(size=(3, *shape)).astype(np.float32)
    sums = device_region_sums(torch.from_numpy(maps), laid_out).numpy()
    index = index_labels(labels, order)
    whole = maps if box is None else box.paste(maps, SIDES)
    for values, own in zip(whole, sums, strict=True):
        limit = 1e-12 * np.abs(values).sum(dtype=np.float64)
        assert (np.abs(own - region_sums(values, index)) <= limit).all()
        assert own.sum() == pytest.approx(values.sum(dtype=np.float64), abs=limit)
    assert laid_out.numbers == index.numbers
    assert laid_out.n_voxels.tolist() == index.n_voxels.tolist()


def labelled_map() -> tuple[np.ndarray, np.ndarray]:
    """Regions of many rows, of one row exactly, and of one voxel."""
    labels = np.zeros((40, 41, 42), np.int32)
    labels[5:35, 5:36, 5:37] = 7
    labels[0, 0, :] = 2
    labels[20, 20, 20] = 5
    labels.reshape(-1)[-ROW:] = 300
    return labels, np.random.default_rng(3).normal(size=(2, *labels.shape)).astype(np.float32)


def test_large_regions_and_both_shapes_of_maps():
    labels, maps = labelled_map()
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    sums = device_region_sums(torch.from_numpy(maps), laid_out)
    flat = device_region_sums(torch.from_numpy(maps.reshape(2, -1)), laid_out)
    assert torch.equal(sums, flat)
    for values, own in zip(maps.astype(np.float64), sums.tolist(), strict=True):
        for number, total in zip(laid_out.numbers, own, strict=True):
            assert total == pytest.approx(values[labels == number].sum(), abs=1e-12 * np.abs(values).sum())


def test_the_same_bits_for_any_number_of_threads_and_a_batch_as_single_maps():
    labels, maps = labelled_map()
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    tensors, before = torch.from_numpy(maps), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = device_region_sums(tensors, laid_out)
        torch.set_num_threads(2)
        two = device_region_sums(tensors, laid_out)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)
    assert torch.equal(one[1:], device_region_sums(tensors[1:], laid_out))


def test_summed_in_float64():
    values = torch.full((100, 100, 101), 0.1)
    assert float(ordered_total(values.reshape(-1))) == pytest.approx(1.01e6 * float(np.float32(0.1)), rel=1e-13)
    laid_out = lay_out_labels(pack_labels(np.ones(values.shape, np.int32), [1]), None, CPU)
    sums = device_region_sums(values[None], laid_out)
    assert sums.dtype == torch.float64
    assert float(sums[0, 1]) == pytest.approx(1.01e6 * float(np.float32(0.1)), rel=1e-13)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 30_000])
def test_what_is_not_finite_is_refused_wherever_it_lies(bad, place):
    labels, maps = labelled_map()
    maps[1].reshape(-1)[place] = bad
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    with pytest.raises(BadInputError, match="map 2 of 2 holds NaN or infinite"):
        device_region_sums(torch.from_numpy(maps), laid_out)


def test_other_shape_and_other_box_are_refused():
    packed = pack_labels(labelled_map()[0], NUMBERS)
    with pytest.raises(ValueError, match="shape"):
        device_region_sums(torch.zeros(1, 40, 42, 41), lay_out_labels(packed, None, CPU))
    with pytest.raises(BadInputError, match="reaches beyond"):
        lay_out_labels(packed, Box((0, 0, 0), (41, 1, 1)), CPU)


def test_labels_are_laid_out_once_per_process():
    packed = pack_labels(labelled_map()[0], NUMBERS)
    again = pack_labels(labelled_map()[0], NUMBERS)
    box = Box((1, 2, 3), (30, 20, 10))
    assert device_labels(packed, box, CPU) is device_labels(again, box, CPU)
    assert device_labels(packed, None, CPU).shape == (40, 41, 42)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_same_bits_on_every_call():
    labels, maps = labelled_map()
    packed, gpu = pack_labels(labels, NUMBERS), torch.device("cuda")
    laid_out, tensors = lay_out_labels(packed, None, gpu), torch.from_numpy(maps).to(gpu)
    first = device_region_sums(tensors, laid_out)
    assert all(torch.equal(first, device_region_sums(tensors, laid_out)) for _ in range(5))
    on_cpu = device_region_sums(torch.from_numpy(maps), lay_out_labels(packed, None, CPU))
    assert torch.allclose(first.cpu(), on_cpu, rtol=0, atol=1e-12 * float(np.abs(maps).sum()))


def sums_of(values: np.ndarray, labels: np.ndarray, numbers) -> dict[int, float]:
    laid_out = lay_out_labels(pack_labels(labels, numbers), None, CPU)
    (sums,) = device_region_sums(torch.from_numpy(np.ascontiguousarray(values))[None], laid_out).tolist()
    return dict(zip(laid_out.numbers, sums, strict=True))


@given(hnp.arrays(np.int32, (2, 3, 4), elements=st.sampled_from([0, *NUMBERS])), st.permutations(NUMBERS))
def test_renaming_labels_renames_sums(labels, renamed):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    new = dict(zip(NUMBERS, renamed, strict=True)) | {0: 0}
    other = np.vectorize(new.get)(labels).astype(np.int32)
    before, after = sums_of(values, labels, NUMBERS), sums_of(values, other, renamed)
    assert {new[number]: value for number, value in before.items()} == after


def test_equal_to_nilearn_masker():
    nilearn_maskers = pytest.importorskip("nilearn.maskers")
    import nibabel as nib

    values = np.random.default_rng(1).normal(size=GRID.shape)
    labels = nib.Nifti1Image(toy_labels(), GRID.affine)
    masker = nilearn_maskers.NiftiLabelsMasker(labels, strategy="sum", resampling_target=None, standardize=None)
    oracle = masker.fit_transform(nib.Nifti1Image(values, GRID.affine)).ravel()
    sums = sums_of(values, toy_labels(), REGIONS.numbers)
    assert sums.pop(63) == 0.0  # nilearn has no column for it
    assert [sums[number] for number in sorted(sums) if number] == pytest.approx(oracle.tolist(), rel=1e-10)


def test_packed_labels_are_small_and_come_back():
    labels = np.zeros((97, 115, 97), np.int32)
    labels[30:60, 40:80, 20:50] = 47
    packed = pack_labels(labels, [47, 48])
    assert len(pickle.dumps(packed)) < 20_000
    assert np.array_equal(np.array(packed.numbers)[unpack_rows(packed)], labels)


def test_label_without_a_region_is_refused():
    with pytest.raises(BadInputError, match="label 101 without a row"):
        pack_labels(toy_labels(), [n for n in REGIONS.numbers if n != 101])
    with pytest.raises(BadInputError, match="twice"):
        pack_labels(np.zeros((2, 2, 2), int), [4, 4])


@pytest.mark.oracle
def test_faster_than_nilearn_on_a_whole_map(capsys):
    """One 1 mm map, 136 labels; the ratio is printed, and asserted far below what it is."""
    import nibabel as nib
    from nilearn.maskers import NiftiLabelsMasker

    rng = np.random.default_rng(2)
    labels = np.zeros((193, 229, 193), np.int32)
    blocks = rng.permutation(np.arange(1, 137)).reshape(4, 34).repeat(25, axis=0).repeat(5, axis=1)
    labels[40:140, 30:200, 40:150] = blocks[:, :, None]
    values = np.asfortranarray(rng.normal(size=labels.shape).astype(np.float32))
    affine = np.diag([1.0, 1, 1, 1])
    image = nib.Nifti1Image(values, affine)
    atlas = nib.Nifti1Image(labels, affine)
    masker = NiftiLabelsMasker(atlas, strategy="sum", resampling_target=None, standardize=None).fit()
    started = time.perf_counter()
    oracle = masker.transform(image).ravel()
    peer = time.perf_counter() - started
    laid_out = lay_out_labels(pack_labels(labels, range(1, 137)), None, CPU)
    tensor = torch.from_numpy(np.ascontiguousarray(values))[None]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        sums = device_region_sums(tensor, laid_out)[0].numpy()
        times.append(time.perf_counter() - started)
    with capsys.disabled():
        print(f"\nregion sums {1e3 * min(times):.0f} ms, nilearn {1e3 * peer:.0f} ms, {peer / min(times):.0f} x")
    assert np.allclose(sums[1:], oracle, rtol=1e-6, atol=1e-3)
    assert peer > 5 * min(times)


# Metrics, rankings, overlap and fingerprints on numbers worked out by hand.


def rows(densities, **scan):
    """Rows of one scan in map "a": a group per density."""
    frame = pd.DataFrame({"group": [f"g{i:02d}" for i in range(len(densities))], "density": densities})
    return frame.assign(**({"map": "a", "target": 1, "outcome": "TP", "probability": 0.95, "session_id": None} | scan))


def test_reference_is_the_mean_of_controls_in_the_same_fold():
    table = pd.DataFrame(
        {
            "participant_id": list("abcde"),
            "fold": [0, 0, 0, 1, 1],
            "target": [0, 0, 1, 0, 1],
            "map": "a",
            "group": "g",
            "sum": [2.0, 4.0, 9.0, -1.0, 5.0],
        }
    )
    reference = negative_class_reference(table, "participants")
    assert reference.tolist() == [3.0, 3.0, 3.0, -1.0, -1.0]
    got = gain(table["sum"].to_numpy(), reference.to_numpy())
    assert np.array_equal(got, [2 / 3, 4 / 3, 3.0, np.nan, np.nan], equal_nan=True)
    assert np.mean(got[:2]) == 1  # mean gain of controls


def test_fold_without_controls_has_no_reference():
    table = pd.DataFrame({"participant_id": ["p", "q"], "fold": [0, 1], "target": [0, 1], "sum": [2.0, 4.0]})
    table = table.assign(map="a", group="g")
    assert np.isnan(negative_class_reference(table, "participants").iloc[1])


@pytest.mark.parametrize(
    ("people", "over", "reference"),
    [
        (["a", "a", "a", "b", "c"], "participants", 4.0),  # (mean of 1, 2, 3 = 2; 6) / 2
        (["a", "a", "a", "b", "c"], "scans", 3.0),
        (["a", "a", "b", "b", "c"], "participants", 3.0),  # equal numbers of scans: no difference
        (["a", "a", "b", "b", "c"], "scans", 3.0),
        (["sub-ADNI131S0295"] * 2 + ["sub-ADNI002S0295", "b", "c"], "participants", 4.0),  # one person, two names
    ],
)
def test_controls_count_once_in_the_reference_however_many_scans_they_have(people, over, reference):
    table = pd.DataFrame({"participant_id": people, "target": [0, 0, 0, 0, 1], "sum": [1.0, 2.0, 3.0, 6.0, 8.0]})
    both = pd.concat([table.assign(fold=0), table.assign(fold=1, sum=-table["sum"])], ignore_index=True)
    got = negative_class_reference(both.assign(map="a", group="g"), over)
    assert got.tolist() == [reference] * 5 + [-reference] * 5


def test_participants_count_once_in_a_ranking():
    table = pd.concat(
        [
            rows([9.0, 0.0], participant_id="p", scan_id="1"),
            rows([9.0, 0.0], participant_id="p", scan_id="2"),
            rows([1.0, 8.0], participant_id="q", scan_id="3"),
            rows([0.0, 8.0], participant_id="r", scan_id="4"),
        ]
    )
    means = mean_over_participants(table, "density").droplevel("map")
    assert means.to_dict() == pytest.approx({"g00": 10 / 3, "g01": 16 / 3})  # over scans: 4.75 against 4
    assert top_groups(means, 5) == ["g01", "g00"]


@given(st.lists(st.integers(0, 30), min_size=10, max_size=10, unique=True), st.permutations(range(31)))
def test_overlap_is_symmetric_and_full_on_itself(a, b):
    names_a, names_b = [str(i) for i in a], [str(i) for i in b[:10]]
    assert top_overlap(names_a, names_a) == 100
    assert top_overlap(names_a, names_b) == top_overlap(names_b, names_a) == 10 * len(set(names_a) & set(names_b))


def test_overlap_table():
    rising, shifted = np.arange(14.0), np.roll(np.arange(14.0), 3)  # top 10 of both: 4..13 and 7..13 with 0..2
    table = pd.concat(
        [
            rows(rising, participant_id="p", scan_id="1"),
            rows(shifted, participant_id="p", scan_id="1", map="b"),
            rows(-rising, participant_id="q", scan_id="2", target=0, outcome="TN"),
        ]
    )
    table = table.assign(sum=table["density"] * 2, gain=np.where(table["group"] < "g09", table["density"], np.nan))
    got = overlap_table(table, ["a", "b"]).set_index(["metric", "map_a", "map_b"])
    assert got.loc[("sum", "a", "a"), "overlap"] == 100
    assert got.loc[("density", "a", "b"), "overlap"] == got.loc[("density", "b", "a"), "overlap"] == 70
    assert np.isnan(got.loc[("gain", "a", "b"), "overlap"])
    assert "only 9 groups" in got.loc[("gain", "a", "b"), "note"]
    nobody = overlap_table(table[table["target"] == 0], ["a", "b"])
    assert nobody["note"].str.contains("only 0 groups").all()


def test_most_different_pair_is_of_two_people():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    first, second, distance = most_different_pair(vectors, ["p", "p", "q", "r"])
    assert (first, second) == (0, 2)
    assert distance == pytest.approx(1)
    assert most_different_pair(vectors, ["p", "q", "r", "s"]) == (0, 1, pytest.approx(2))
    assert most_different_pair(vectors[[0, 1]], ["p", "p"]) is None
    assert most_different_pair(vectors[[0, 3]], ["p", "q"]) is None  # zeros have no direction


def test_fingerprints_of_the_planted_pair():
    rng = np.random.default_rng(0)
    profiles = {f"p{i}": np.linspace(10, 1, 30) + rng.normal(0, 0.1, 30) for i in range(4)}
    profiles["p3"] = profiles["p3"][::-1].copy()
    unsure = np.where(np.arange(30) % 2, 5.0, 0.0)
    table = pd.concat(
        [
            *(rows(v, participant_id=k, scan_id=k) for k, v in profiles.items()),
            rows(unsure, participant_id="u", scan_id="u", probability=0.9),
            rows(-unsure, participant_id="c", scan_id="c", target=0, outcome="FP"),
        ]
    )
    got = fingerprint_table(table, ["a"])
    assert list(got.columns) == list(FINGERPRINTS_TABLE.meanings)
    assert len(got) == 50
    assert "p3" in set(got["participant_id"])
    assert got["n_candidates"].eq(4).all()
    one, other = (got[got["patient"] == i].set_index("group")["density"] for i in (1, 2))
    assert list(one.index) == list(other.index)
    assert got["cosine_distance"].iloc[0] == pytest.approx(cosine(one, other))
    name = got["participant_id"].iloc[0]
    assert one["g03"] == profiles[name][3]
    means = table[table["target"] == 1].groupby("group")["density"].mean()
    assert list(one.index) == list(means.sort_values(ascending=False).index[:25])


def test_a_pair_is_not_chosen_by_a_small_region():
    """r differs from the others in a region of a few voxels alone, s in one of many."""
    profiles = {"p": [5.0, 4, 3, 0], "q": [5.0, 4, 3.1, 0], "r": [5.0, 4, 3, 90], "s": [1.0, 4, 9, 0]}
    table = pd.concat([rows(np.array(v), participant_id=k, scan_id=k) for k, v in profiles.items()])
    table["n_voxels"] = table["group"].map({"g00": 900, "g01": 50, "g02": 60, "g03": 49})
    assert "r" in set(fingerprint_table(table, ["a"])["participant_id"])
    got = fingerprint_table(table, ["a"], 50)
    assert set(got["participant_id"]) == {"s", "p"}
    assert set(got["group"]) == {"g00", "g01", "g02"}
    assert got["cosine_distance"].iloc[0] == pytest.approx(cosine(profiles["s"][:3], profiles["p"][:3]))
    assert len(fingerprint_table(table.assign(n_voxels=1), ["a"], 50)) == 8  # nothing else to choose by


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (rows([1.0, 2.0], participant_id="p", scan_id="1"), "1 participant of"),
        (rows([1.0, 2.0], participant_id="p", scan_id="1", probability=0.5), "0 participants"),
        (
            pd.concat([rows([0.0, 0.0], participant_id=p, scan_id=p) for p in "pq"]),
            "fewer than 2 of them have any relevance",
        ),
    ],
)
def test_no_pair_is_explained(table, said):
    got = fingerprint_table(table, ["a"])
    assert len(got) == 1
    assert said in got["note"].iloc[0]
    assert got["participant_id"].isna().all()


def test_gain_is_ranked_over_true_positives_only():
    """Missed patients would turn the order of gain round; those of sum and density are over all patients."""
    rising = np.arange(20.0)
    table = pd.concat(
        [
            rows(rising, participant_id="p", scan_id="1"),
            rows(rising, participant_id="p", scan_id="1", map="b"),
            rows(rising, participant_id="q", scan_id="2", outcome="FN"),
            rows(-10 * rising, participant_id="q", scan_id="2", outcome="FN", map="b"),
        ]
    )
    table = table.assign(sum=table["density"], gain=table["density"])
    got = overlap_table(table, ["a", "b"]).set_index(["metric", "map_a", "map_b"])["overlap"]
    assert got[("gain", "a", "b")] == 100
    assert got[("sum", "a", "b")] == got[("density", "a", "b")] == 0


# Maps summed over a person's own segmentation.

SEGMENTED_GRID = template_grid(4.0)
LABELS = (2, 17, 53, 1006, 2006, 4444)


def test_sums_are_those_of_a_loop_and_add_up() -> None:
    random = np.random.default_rng(2)
    labels = random.choice([0, *LABELS[:5]], size=(7, 5, 6)).astype(np.int32)
    maps = {name: np.asfortranarray(random.normal(size=labels.shape).astype(np.float32)) for name in ("a", "b")}
    rows = own_rows(maps, labels, {number: 3.0 for number in LABELS}, freesurfer_names())
    assert len(rows) == 2 * 7
    for row in rows.itertuples():
        inside = labels == row.region
        expected = maps[row.map][inside].sum(dtype=np.float64)
        assert row.n_voxels == inside.sum()
        assert row.sum == pytest.approx(expected, abs=1e-9)
        assert np.isnan(row.density) if not inside.any() else row.density == pytest.approx(expected / inside.sum())
    for name, values in maps.items():
        assert rows.loc[rows["map"] == name, "sum"].sum() == pytest.approx(values.sum(dtype=np.float64), abs=1e-9)
    named = rows.drop_duplicates("region").set_index("region")
    assert named.loc[1006, ["name", "hemisphere"]].tolist() == ["ctx-lh-entorhinal", "left"]
    assert named.loc[0, "name"] == "unlabelled rest"
    assert named.loc[4444, ["n_voxels", "volume_mm3"]].tolist() == [0, 3.0]
    assert named["name"].isna().tolist() == [number == 4444 for number in named.index]


def test_regions_of_a_dseg_are_named_by_its_own_table(tmp_path) -> None:
    path = tmp_path / "sub-1" / "sub-1_dseg.nii.gz"
    path.parent.mkdir()
    assert names_of_regions(path, table_beside(path, tmp_path)) == {}  # 17 may be anything
    (tmp_path / "dseg.tsv").write_text("index\tname\n17\tThalamus\n53\tLeft Insula\n")
    names = names_of_regions(path, table_beside(path, tmp_path))
    assert names == {17: ("Thalamus", "both"), 53: ("Left Insula", "left")}
    labels = np.array([0, 17, 17, 53], np.int32)
    rows = own_rows({"m": np.array([1, 2, 3, 4], np.float32)}, labels, {17: 2.0, 53: 1.0, 60: 1.0}, names)
    assert rows["name"].tolist()[:3] == ["unlabelled rest", "Thalamus", "Left Insula"]
    assert rows["name"].isna().tolist() == [False, False, False, True]
    assert rows["sum"].tolist() == [1, 5, 4, 0]
    other = tmp_path / "aparc+aseg.mgz"
    assert table_beside(other, tmp_path) is None
    assert names_of_regions(other, None)[17] == ("Left-Hippocampus", "left")


def test_both_sides_have_the_same_names() -> None:
    names = freesurfer_names()
    for number in range(1000, 1036):
        assert names[number + 1000][0] == names[number][0].replace("lh", "rh")
    left = {name.removeprefix("Left-") for name, side in names.values() if side == "left" and "ctx" not in name}
    assert left == {
        name.removeprefix("Right-") for name, side in names.values() if side == "right" and "ctx" not in name
    }
    assert len(names) == 49 + 72


def segmentation(path: Path, shift: np.ndarray) -> Path:
    """Two structures at known places of the world, moved by `shift`, on FreeSurfer's axes with 1 mm voxels."""
    affine = np.array([[-1.0, 0, 0, 100], [0, 0, 1, -60], [0, -1, 0, 30], [0, 0, 0, 1]])
    first, second, third = np.ogrid[:160, :80, :80]
    x, y, z = 100 - first - shift[0], third - 60 - shift[1], 30 - second - shift[2]
    labels = np.zeros((160, 80, 80), np.int32)
    for side, number in ((-26, 17), (26, 53)):
        labels[(abs(x - side) <= 10) & (abs(y + 20) <= 10) & (abs(z + 12) <= 10)] = number
    nib.save(nib.MGHImage(labels, affine), path)
    return path


def expected_labels() -> np.ndarray:
    world = nib.affines.apply_affine(SEGMENTED_GRID.affine, np.moveaxis(np.indices(SEGMENTED_GRID.shape), 0, -1))
    labels = np.zeros(SEGMENTED_GRID.shape, np.int32)
    labels[np.abs(world - [-26, -20, -12]).max(-1) <= 10] = 17
    labels[np.abs(world - [26, -20, -12]).max(-1) <= 10] = 53
    return labels


@pytest.mark.parametrize("shift", [(0.0, 0.0, 0.0), (5.0, -9.0, 13.0)])
def test_labels_follow_the_transform_of_the_scan(tmp_path, shift) -> None:
    """The scan lies `shift` away from the template, and its transform says so; left stays left."""
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    files.warp.parent.mkdir(parents=True)
    lps = np.array([-shift[0], -shift[1], shift[2]])
    parameters = np.concatenate([np.eye(3).ravel(), lps])[:, None]
    scipy.io.savemat(
        files.affine_transform, {"AffineTransform_double_3_3": parameters, "fixed": np.zeros((3, 1))}, format="4"
    )
    write_no_displacement(files.warp, Volume(np.zeros(SEGMENTED_GRID.shape, np.float32), SEGMENTED_GRID.affine))
    labels, volumes = labels_in_template(
        segmentation(tmp_path / "aparc+aseg.mgz", np.array(shift)), files, SEGMENTED_GRID, placed=False
    )
    np.testing.assert_array_equal(labels, expected_labels())
    assert volumes == {17: 9261.0, 53: 9261.0}  # 21 mm cubed


def test_labels_in_template_space_need_no_transform(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    labels, _ = labels_in_template(
        segmentation(tmp_path / "aparc+aseg.mgz", np.zeros(3)), files, SEGMENTED_GRID, placed=True
    )
    np.testing.assert_array_equal(labels, expected_labels())


def test_a_segmentation_in_another_space_is_refused(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    brain = np.zeros(SEGMENTED_GRID.shape, np.float32)
    brain[4:-4, 4:-4, 4:-4] = 1
    files.brain_mask.parent.mkdir(parents=True)
    nib.save(nib.Nifti1Image(brain, SEGMENTED_GRID.affine), files.brain_mask)
    scan = Scan("sub-1", None, "1", "sub-1/mri/brain.mgz", entry="template")
    task = OwnRegions((), files, scan, segmentation(tmp_path / "aparc+aseg.mgz", np.array([60.0, 0, 0])), "")
    with pytest.raises(BadInputError, match=r"the segmentation of the scan: \d+ % of it lies outside the brain"):
        sum_own_regions({}, task)


def test_where_segmentations_are_looked_for(tmp_path) -> None:
    (tmp_path / "bert" / "mri").mkdir(parents=True)
    scan = Scan("sub-bert", "ses-1", "bert", "bert/mri/brain.mgz")
    assert segmentation_of(tmp_path, scan, "") is None
    for name in ("aparc.DKTatlas+aseg.deep.mgz", "aparc+aseg.mgz"):
        (tmp_path / "bert" / "mri" / name).touch()
        assert segmentation_of(tmp_path, scan, "") == tmp_path / "bert" / "mri" / name
    given = tmp_path / "labels" / "sub-bert_ses-1.nii.gz"
    given.parent.mkdir()
    given.touch()
    assert segmentation_of(tmp_path, Scan("sub-bert", "ses-1", "x", "x.nii"), "labels/{name}.nii.gz") == given
    assert segmentation_of(tmp_path, Scan("sub-bert", "ses-1", "x", "x.nii"), "") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"regions": {"own_labels": "one.mgz"}}, "regions.own_labels may hold only {participant_id}"),
        (
            {"regions": {"own_labels": "{scan_id}.mgz"}, "attribution": {"keep_maps": "none"}},
            "set attribution.keep_maps",
        ),
    ],
)
def test_settings_that_make_no_sense(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        load_config("default", None, settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on a folder of subjects whose brains lie in template space; one subject has no segmentation."""
    folder = tmp_path_factory.mktemp("own")
    table = write_template_cohort(folder / "bids", participants=12)
    subjects = folder / "subjects"
    for name in table["participant_id"]:
        image = nib.load(folder / "bids" / name / "anat" / f"{name}_T1w.nii.gz")
        (subjects / name / "mri").mkdir(parents=True)
        nib.save(
            nib.MGHImage(np.asarray(image.dataobj, np.float32), image.affine), subjects / name / "mri" / "brain.mgz"
        )
        if name != "sub-02":
            segmentation(subjects / name / "mri" / "aparc+aseg.mgz", np.zeros(3))
    table.to_csv(subjects / "participants.tsv", sep="\t", index=False)
    command = ["run", str(subjects), str(folder / "run"), "--config", str(write_config(folder / "config.toml"))]
    assert main([*command, "--n-procs", "1", "--stop-after", "regions"]) == 0
    return folder / "run"


def test_one_segmentation_for_several_scans_is_refused_before_work(tmp_path) -> None:
    (tmp_path / "seg").mkdir()
    (tmp_path / "seg" / "sub-1.nii.gz").touch()
    visits = ScanTable(tuple(Scan("sub-1", session, session, f"{session}.nii") for session in ("ses-1", "ses-2")))
    cohort = InputCohort(tmp_path, "table", visits, ())
    config = load_config(overrides={"regions": {"own_labels": "seg/{participant_id}.nii.gz"}})
    with pytest.raises(BadInputError, match="several scans would have the same segmentation"):
        _own_region_notes(config, cohort)


@pytest.mark.slow
def test_a_pattern_that_finds_nothing_is_refused_before_work(run, capsys) -> None:
    settings = run.parent / "lost.toml"
    settings.write_text((run.parent / "config.toml").read_text() + '[regions]\nown_labels = "x/{name}.mgz"\n')
    check = ["check", str(run.parent / "subjects"), "--config"]
    assert main([*check, str(settings)]) == 65
    assert "regions.own_labels = 'x/{name}.mgz': no scan has a segmentation there" in capsys.readouterr().err
    assert main([*check, str(run.parent / "config.toml")]) == 0
    assert "maps of 11 of 12 scans are also summed over people's own segmentations" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_sums_its_maps_over_both_kinds_of_regions(run) -> None:
    layout = RunLayout(run)
    own = OWN_REGIONS_TABLE.read(layout)
    atlas = read_table(run / "group" / "relevance.tsv").query("scan_id != 'sub-02'")
    totals = atlas.groupby(["scan_id", "map"])["sum"].sum()
    labelled = own[own["scan_id"].isin(atlas["scan_id"])]
    assert labelled["scan_id"].nunique() == 7  # of 8 with a label
    np.testing.assert_allclose(labelled.groupby(["scan_id", "map"])["sum"].sum(), totals, rtol=1e-6, atol=1e-9)
    assert set(own["scan_id"]) - set(labelled["scan_id"])  # people outside the contrast too
    name, chosen = labelled["scan_id"].iloc[0], labelled["map"].iloc[0]
    values = np.asarray(nib.load(layout.scan(name, None, 4.0).relevance_map(chosen)).dataobj, np.float64)
    inside = values[expected_labels() == 53].sum()
    row = own.query("scan_id == @name and map == @chosen and region == 53").iloc[0]
    assert (row["name"], row["hemisphere"], row["volume_mm3"]) == ("Right-Hippocampus", "right", 9261.0)
    assert row["sum"] == pytest.approx(inside, rel=1e-5, abs=1e-9)
    assert row["sum"] != 0


@pytest.mark.slow
def test_the_methods_text_names_the_table(run) -> None:
    said = methods_markdown(read_run(RunLayout(run)))
    assert "group/relevance_own_regions.tsv has their sums over a segmentation of each person" in said
    assert "found in a folder of FreeSurfer subjects" in said
