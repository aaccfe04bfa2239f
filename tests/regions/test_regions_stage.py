"""The stage that sums maps over regions, and the audit of its sums."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import distance_transform_edt
from toy_run import (
    CONFIG,
    GRID,
    MAPS,
    REGIONS,
    SCANS,
    Inline,
    map_path,
    predictions,
    toy_atlas,
    toy_brain,
    toy_labels,
    toy_maps,
    write_toy_run,
    write_toy_table,
)

from heatlas.atlases.spaces import Box, read_brain, write_template_image
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.regions.audit import (
    RELEVANCE_AUDIT_TABLE,
    Compartments,
    audit_rows,
    compartments,
    darkest,
    within_reach,
    write_audit_table,
)
from heatlas.pipeline.regions.maps import PARTIAL_TABLE, write_sums
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE, SPREADS
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import _execute_all

# The stage on a small run: contents of tables and maps, receipts, damage.


@pytest.fixture(scope="module")
def maps():
    return toy_maps()


@pytest.fixture
def run(tmp_path, maps):
    return write_toy_run(tmp_path / "run", maps)


def aggregate(layout, executor=None, **changes):
    config, digests = changes.pop("config", CONFIG), DigestCache(layout.digests)
    work = Work(layout, layout.root, config, SCANS, Split(()), executor or Inline(), digests)
    inputs = {"scans": SCANS, "predictions": predictions(), "map_names": MAPS, "grid": GRID}
    _, outcomes = aggregate_relevance(work, **(inputs | changes))
    return outcomes


def tables(layout):
    return {p.relative_to(layout.root): p.read_bytes() for p in layout.root.rglob("*.tsv")}


def test_every_region_of_every_map_and_the_rest(run, maps):
    assert all(outcome.ok for outcome in aggregate(run))
    table = read_table(run.group / "relevance.tsv")
    assert list(table.columns) == list(RELEVANCE_TABLE.without(*SPREADS).meanings)
    assert json.loads((run.group / "relevance.tsv").with_suffix(".json").read_text())["sum"]["Description"]
    assert len(table) == len(SCANS) * len(MAPS) * 7
    wide = table.set_index(["scan_id", "map", "region"]).sort_index()
    for scan in SCANS:
        for name in MAPS:
            values = maps[scan.name, name].astype(np.float64)
            for number in REGIONS.numbers:
                row = wide.loc[(scan.scan_id, name, number)]
                inside = values[toy_labels() == number]
                assert row["name"] == REGIONS.by_number(number).name
                assert row["n_voxels"] == inside.size
                assert row["sum"] == pytest.approx(inside.sum(), rel=1e-12)
                if inside.size:
                    assert row["density"] * inside.size == pytest.approx(row["sum"])
                else:
                    assert np.isnan(row["density"])
            total = wide.loc[(scan.scan_id, name)]["sum"].sum()
            assert total == pytest.approx(values.sum(), rel=1e-12)


@pytest.mark.parametrize("over", ["participants", "scans"])
def test_bilateral_groups_and_gain(run, maps, over):
    """Control 4 has two scans, the others one: the denominator of gain differs between both settings."""
    regions = dataclasses.replace(CONFIG.regions, gain_reference=over)
    aggregate(run, config=dataclasses.replace(CONFIG, regions=regions))
    table = read_table(run.group / "relevance_bilateral.tsv")
    assert list(table.columns) == list(RELEVANCE_BILATERAL_TABLE.without("evidence_sd").meanings)
    assert list(dict.fromkeys(table["group"])) == list(REGIONS.groups)
    sums = {
        (scan.scan_id, name): float(values[np.isin(toy_labels(), (47, 48))].sum(dtype=np.float64))
        for scan in SCANS
        for (owner, name), values in maps.items()
        if owner == scan.name
    }
    merged = table.merge(predictions().drop(columns=["participant_id", "session_id"]), on="scan_id")
    own = merged[merged["group"] == "Hippocampus"]
    for _, row in own.iterrows():
        assert row["n_voxels"] == 54
        assert row["sum"] == pytest.approx(sums[row["scan_id"], row["map"]], rel=1e-6)
        of_unit: dict[str, list[float]] = {}
        for scan in predictions().to_dict("records"):
            if scan["target"] == 0 and scan["fold"] == row["fold"]:
                unit = scan["participant_id"] if over == "participants" else scan["scan_id"]
                of_unit.setdefault(unit, []).append(sums[scan["scan_id"], row["map"]])
        reference = np.mean([np.mean(values) for values in of_unit.values()])
        assert row["reference_sum"] == pytest.approx(reference, rel=1e-6)
        expected = row["sum"] / reference if reference > 0 else np.nan
        assert row["gain"] == pytest.approx(expected, rel=1e-6, nan_ok=True)
    controls = own[(own["target"] == 0) & (own["map"] == "gb")]
    unit = "participant_id" if over == "participants" else "scan_id"
    means = controls.groupby(["fold", unit])["gain"].mean()
    assert means.groupby("fold").mean().tolist() == pytest.approx([1.0, 1.0])
    empty = table[table["group"] == "Vessel"]
    assert len(empty) == len(SCANS) * len(MAPS)
    assert empty["density"].isna().all()
    assert empty["gain"].isna().all()


def test_mean_maps(run, maps):
    aggregate(run)
    outcomes = dict(zip(predictions()["scan_id"], predictions()["outcome"], strict=True))
    for group in ("AD", "CN", "TP", "FN", "TN", "FP"):
        members = [s for s in SCANS if group in (s.label, outcomes[s.scan_id])]
        image = nib.load(run.group_map(group, "lrpB100"))
        expected = np.mean([maps[s.name, "lrpB100"].astype(np.float64) for s in members], axis=0)
        assert np.allclose(image.affine, GRID.affine)
        assert image.get_data_dtype() == np.float32
        assert np.array_equal(np.asarray(image.dataobj), expected.astype(np.float32))
        facts = json.loads(run.group_map(group, "lrpB100").with_suffix("").with_suffix(".json").read_text())
        assert facts["NumberOfScans"] == len(members)
        assert facts["NumberOfParticipants"] == len({s.participant_id for s in members})
        assert len(facts["Sources"]) == len(members)


def test_fingerprints_and_overlap_are_written(run):
    aggregate(run)
    pairs = read_table(run.statistics("fingerprints"))
    assert set(pairs["map"]) == set(MAPS)
    assert set(pairs["participant_id"].dropna()) == {"sub-01", "sub-02"}
    overlap = read_table(run.statistics("beta_overlap"))
    assert set(overlap["map_a"]) == {"lrpB000", "lrpB100"}
    assert overlap["note"].str.contains("only").all()  # four groups, ten wanted


def test_second_run_does_nothing_and_two_folders_agree(run, tmp_path, maps):
    aggregate(run)
    stamps = {p: p.stat().st_mtime_ns for p in run.group.rglob("*.*")}
    again = Inline()
    outcomes = aggregate(run, again)
    assert again.done == []
    assert {o.status for o in outcomes} == {"unchanged"}
    assert {p: p.stat().st_mtime_ns for p in run.group.rglob("*.*")} == stamps
    other = write_toy_run(tmp_path / "other", maps)
    aggregate(other)
    assert tables(other) == tables(run)


class KilledAfter(Inline):
    """Dies after some units, as a process does, without another word."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def submit(self, function, *arguments):
        if len(self.done) == self.units:
            raise KeyboardInterrupt
        return super().submit(function, *arguments)


@pytest.mark.sample(1)
@pytest.mark.parametrize("units", [0, 1, 2])
def test_killed_run_continues_to_the_same_tables(units, run, tmp_path, maps):
    with pytest.raises(KeyboardInterrupt):
        aggregate(run, KilledAfter(units))
    rest = Inline()
    aggregate(run, rest)
    assert len(rest.done) == len(MAPS) - units
    whole = write_toy_run(tmp_path / "whole", maps)
    aggregate(whole)
    assert tables(run) == tables(whole)
    assert not list(run.scratch.glob("*"))


def test_only_what_depends_on_a_change_is_done_again(run, maps):
    aggregate(run)
    ones = np.ones(GRID.shape, np.float32)
    nib.save(nib.Nifti1Image(ones, GRID.affine), map_path(run, SCANS[2], "gb"))
    write_toy_table(run, SCANS[2], {name: maps[SCANS[2].name, name] for name in MAPS} | {"gb": ones}, toy_atlas())
    again = Inline()
    aggregate(run, again)
    assert again.done == list(MAPS)
    table = read_table(run.group / "relevance.tsv").set_index(["scan_id", "map", "region"])
    assert table.loc[(SCANS[2].scan_id, "gb", 47), "density"] == 1
    called = predictions().replace({"outcome": {"FP": "TN"}})
    again = Inline()
    aggregate(run, again, predictions=called)
    assert again.done == list(MAPS)
    assert not run.group_map("FP", "gb").exists()  # the group has lost its only scan
    again = Inline()
    aggregate(run, again, predictions=called)
    assert again.done == []


def test_maps_no_longer_asked_for_are_removed(run):
    aggregate(run)
    aggregate(run, map_names=MAPS[:2])
    assert run.group_map("AD", "lrpB000").exists()
    assert not run.group_map("AD", "gb").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", ["missing", "truncated", "other grid", "nan"])
def test_damaged_map_costs_one_mean_map_and_is_named(damage, run):
    path = map_path(run, SCANS[1], "gb")
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "nan":
        nib.save(nib.Nifti1Image(np.full(GRID.shape, np.nan, np.float32), GRID.affine), path)
    else:
        affine = GRID.affine.copy()
        affine[0, 3] += 1
        nib.save(nib.Nifti1Image(np.ones(GRID.shape, np.float32), affine), path)
    outcomes = aggregate(run)
    (failed,) = [outcome for outcome in outcomes if not outcome.ok]
    assert failed.job.unit == "gb"
    assert failed.error == "BadInputError"
    assert path.name in failed.message
    failures = read_table(run.failures)
    assert failures[["stage", "unit"]].to_numpy().tolist() == [["group-maps", "gb"]]
    assert set(read_table(run.group / "relevance.tsv")["scan_id"]) == {s.scan_id for s in SCANS}  # tables need no map
    assert run.group_map("AD", "lrpB000").is_file()


def test_missing_region_table_is_named(run):
    path = run.scan(SCANS[1].participant_id, SCANS[1].session_id, 1.0).region_table
    path.unlink()
    with pytest.raises(BadInputError, match=path.name):
        aggregate(run)
    write_toy_table(run, SCANS[1], {"gb": np.ones(GRID.shape, np.float32)}, toy_atlas())
    with pytest.raises(BadInputError, match="no sums of lrpB000, lrpB100"):
        aggregate(run)


def test_without_maps_tables_are_the_same_and_no_mean_map_is_left(run):
    aggregate(run)
    before = tables(run)
    for path in run.root.rglob("sub-*_relevance.nii.gz"):
        path.unlink()
    settings = dataclasses.replace(CONFIG.attribution, keep_maps="none")
    assert aggregate(run, config=dataclasses.replace(CONFIG, attribution=settings)) == []
    assert tables(run) == before
    assert not list(run.group.rglob("*.nii.gz"))


def partial_sums(layout, maps):
    """As attribution leaves them: parts of at most two scans of one fold and one outcome."""
    box = Box((1, 0, 2), (6, 9, 8))
    frame, rows = predictions(), []
    for (fold, outcome), members in frame.groupby(["fold", "outcome"]):
        for number in range(0, len(members), 2):
            part, few = f"fold-{fold}_{outcome}_{number}", members.iloc[number : number + 2]
            names = [next(s.name for s in SCANS if s.scan_id == scan_id) for scan_id in few["scan_id"]]
            sums = {m: sum(box.crop(maps[name, m]).astype(np.float64) for name in names) for m in MAPS}
            layout.partial_sums.mkdir(exist_ok=True, parents=True)
            write_sums(layout.partial_sum(part), sums, box)
            rows += few.assign(part=part)[list(PARTIAL_TABLE.meanings)].values.tolist()
    PARTIAL_TABLE.write(layout.partial_sums / "scans.tsv", rows)
    return box


def test_partial_sums_give_the_mean_maps_of_single_maps(run, tmp_path, maps):
    layout = write_toy_run(tmp_path / "parts", maps)
    box = partial_sums(layout, maps)
    inside = {key: box.paste(box.crop(values), GRID.shape) for key, values in maps.items()}
    other = write_toy_run(tmp_path / "single", inside)
    aggregate(other)
    settings = dataclasses.replace(CONFIG.attribution, keep_maps="group")
    config = dataclasses.replace(CONFIG, attribution=settings)
    assert all(outcome.ok for outcome in aggregate(layout, config=config))
    written = sorted(path.name for path in other.group.rglob("*.nii.gz"))
    assert len(written) == 6 * len(MAPS)
    for name in written:
        images = [np.asarray(nib.load(next(r.group.rglob(name))).dataobj) for r in (layout, other)]
        np.testing.assert_allclose(*images, rtol=1e-6, atol=1e-12)
        facts = [json.loads(next(r.group.rglob(name.replace(".nii.gz", ".json"))).read_text()) for r in (layout, other)]
        for entry in ("NumberOfScans", "NumberOfParticipants", "Group"):
            assert facts[0][entry] == facts[1][entry]
    with pytest.raises(BadInputError, match="not of the same scans"):
        aggregate(layout, config=config, scans=SCANS[1:])
    layout.partial_sum("fold-0_TP_0").write_bytes(b"damaged")
    layout.group_map("TP", "gb").unlink()
    assert "fold-0_TP_0" in next(o.message for o in aggregate(layout, config=config) if not o.ok)


def test_dataset_without_sessions(run, maps, tmp_path):
    scans = [dataclasses.replace(s, session_id=None) for s in SCANS if s.session_id == "ses-M000"]
    plain = {(s.name, name): maps[f"{s.participant_id}_ses-M000", name] for s in scans for name in MAPS}
    layout = write_toy_run(tmp_path / "plain", plain, scans)
    kept = predictions()[predictions()["scan_id"].isin([s.scan_id for s in scans])]
    outcomes = aggregate(layout, scans=scans, predictions=kept.assign(session_id=None))
    assert all(outcome.ok for outcome in outcomes)
    table = read_table(layout.group / "relevance_bilateral.tsv")
    assert table["session_id"].isna().all()
    assert len(table) == len(scans) * len(MAPS) * 4


def test_bad_predictions_are_named(run):
    with pytest.raises(BadInputError, match="I100 has no row"):
        aggregate(run, predictions=predictions().iloc[1:])
    with pytest.raises(BadInputError, match="I100 has two rows"):
        aggregate(run, predictions=pd.concat([predictions(), predictions().iloc[:1]]))
    with pytest.raises(BadInputError, match="column fold is missing"):
        aggregate(run, predictions=predictions().drop(columns="fold"))
    with pytest.raises(BadInputError, match="outcome 'hit'"):
        aggregate(run, predictions=predictions().replace({"outcome": {"TP": "hit"}}))
    assert not run.logs.exists()  # refused before any work
    with pytest.raises(BadInputError, match="no scan with relevance and"):
        aggregate(run, scans=[])


def test_jobs_travel_to_other_processes(run):
    import pickle

    class Remote(Inline):
        def submit(self, function, *arguments):
            assert function is _execute_all
            return super().submit(function, *pickle.loads(pickle.dumps(arguments)))

    assert all(outcome.ok for outcome in aggregate(run, Remote()))


# Compartments of a scan and the shares of |relevance| in them.

SHAPE = (5, 6, 7)
BALL_SHAPE = (31, 33, 35)


@settings(max_examples=60, deadline=None)
@given(arrays(bool, SHAPE), st.sampled_from([1.0, 1.5, 2.0, 3.5, 6.5]))
def test_reach_is_that_of_the_euclidean_distance(mask: np.ndarray, reach: float) -> None:
    expected = distance_transform_edt(~mask) <= reach if mask.any() else np.zeros(SHAPE, bool)
    np.testing.assert_array_equal(within_reach(mask, reach), expected)


def test_a_reach_beyond_the_number_type_is_refused_not_wrapped_round() -> None:
    with pytest.raises(ValueError, match="reach of 12"):
        within_reach(np.zeros(SHAPE, bool), 12.0)


def ball(radius: float) -> np.ndarray:
    centre = (np.array(BALL_SHAPE) - 1) / 2
    offsets = np.indices(BALL_SHAPE) - centre[:, None, None, None]
    inside: np.ndarray = (offsets**2).sum(0) <= radius**2
    return inside


def nothing() -> dict[str, np.ndarray]:
    return {name: np.zeros(BALL_SHAPE, bool) for name in ("CSF", "vessel", "no_region")}


@pytest.mark.parametrize(("voxel_mm", "layers"), [(1.0, 3), (2.0, 2), (3.0, 1)])
def test_rim_of_a_plane_is_the_layers_within_three_millimetres(voxel_mm: float, layers: int) -> None:
    brain = np.zeros((20, 4, 4), bool)
    brain[:10] = True
    tissue = {name: np.zeros(brain.shape, bool) for name in ("CSF", "vessel", "no_region")}
    masks = compartments(brain.astype(np.float32), brain, tissue, voxel_mm).masks
    assert sorted(np.unique(np.nonzero(masks["rim_inside"][1])[0])) == list(range(10 - layers, 10))
    assert sorted(np.unique(np.nonzero(masks["rim"][1])[0])) == list(range(10 - layers, 10 + layers))


def test_edge_of_the_box_is_no_surface_of_the_brain() -> None:
    brain = np.ones(BALL_SHAPE, bool)
    parts = compartments(brain.astype(np.float32), brain, nothing(), 1.0)
    assert not parts.masks["rim"][1].any()
    assert not parts.masks["outside"][1].any()


def test_planted_shares_come_back() -> None:
    brain = ball(12)
    tissue = nothing()
    tissue["CSF"][14:17, 14:17, 14:17] = True
    parts = compartments(np.where(brain, 0.5, 0).astype(np.float32), brain, tissue, 1.0)
    inner = parts.masks["rim_inside"][1]
    values = np.zeros(BALL_SHAPE, np.float32)
    values[tissue["CSF"]] = -1.0
    values[inner] = 0.25
    values[~brain] = 0.125
    rows = {str(row["compartment"]): row for row in audit_rows({"m": torch.from_numpy(values)}, parts)}
    in_brain = 27 + 0.25 * inner.sum()
    assert rows["fluid"]["share"] == pytest.approx(27 / in_brain)
    assert rows["fluid"]["enrichment"] == pytest.approx((27 / in_brain) / (27 / brain.sum()))
    assert rows["rim_inside"]["share"] == pytest.approx(0.25 * inner.sum() / in_brain)
    total = in_brain + 0.125 * (~brain).sum()
    assert rows["outside"]["share"] == pytest.approx(0.125 * (~brain).sum() / total)
    beyond = parts.masks["rim"][1] & ~brain
    around = in_brain + 0.125 * beyond.sum()
    assert rows["rim"]["share"] == pytest.approx((0.25 * inner.sum() + 0.125 * beyond.sum()) / around)
    assert rows["rim"]["voxel_share"] == pytest.approx((inner | beyond).sum() / (brain | beyond).sum())
    assert rows["vessel"]["n_voxels"] == 0
    assert math.isnan(float(rows["vessel"]["enrichment"]))


def test_relevance_spread_evenly_is_no_enrichment_anywhere() -> None:
    rng = np.random.default_rng(0)
    brain = ball(13)
    tissue = nothing()
    tissue["CSF"] = ball(4)
    volume = np.where(brain, rng.random(BALL_SHAPE), 0).astype(np.float32)
    rows = audit_rows({"flat": torch.full(BALL_SHAPE, -2.0)}, compartments(volume, brain, tissue, 1.0))
    for row in rows:
        expected = math.nan if row["compartment"] in ("vessel", "no_region") else 1.0
        np.testing.assert_allclose(float(row["enrichment"]), expected)


@pytest.mark.parametrize("covered", [0.0, 0.5, 1.0])
def test_relevance_in_no_region_is_counted_inside_the_mask_and_whatever_its_sign(tmp_path, covered: float) -> None:
    """An atlas that covers part of the mask: the rest of |relevance| in the mask is in no region."""
    layout = write_toy_run(tmp_path, toy_maps())
    scan = SCANS[1]
    brain = read_brain(layout.scan(scan.participant_id, scan.session_id, 1.0).brain_mask, GRID)
    atlas = toy_atlas()
    labels = np.where(np.indices(GRID.shape)[0] < covered * GRID.shape[0], atlas.regions.numbers[0], 0)
    packed = PackedAtlas.of(dataclasses.replace(atlas, labels=labels.astype(atlas.labels.dtype)))
    values = toy_maps()[scan.name, "gb"].astype(np.float32)
    path = tmp_path / "audit.tsv"
    mask = layout.scan(scan.participant_id, scan.session_id, 1.0).brain_mask
    write_audit_table(path, scan, {"gb": torch.from_numpy(values)}, values, mask, packed, GRID, None)
    row = read_table(path, text_columns=["compartment"]).set_index("compartment").loc["no_region"]
    uncovered = brain & (labels == 0)
    assert row["n_voxels"] == uncovered.sum()
    expected = np.abs(values[uncovered].astype(float)).sum() / np.abs(values[brain].astype(float)).sum()
    assert (0 if np.isnan(row["share"]) else row["share"]) == pytest.approx(expected)


def test_map_without_relevance_has_no_shares() -> None:
    brain = ball(12)
    parts = compartments(brain.astype(np.float32), brain, nothing(), 1.0)
    rows = audit_rows({"zero": torch.zeros(BALL_SHAPE)}, parts)
    assert all(math.isnan(float(row["share"])) for row in rows)


def test_darkest_class_is_the_planted_fluid() -> None:
    rng = np.random.default_rng(1)
    brain = ball(14)
    fluid, white = brain & ball(5), brain & ~ball(10)
    volume = np.where(fluid, 0.15, np.where(white, 0.9, 0.55)) + rng.normal(0, 0.03, BALL_SHAPE)
    np.testing.assert_array_equal(darkest(np.where(brain, volume, 0).astype(np.float32), brain), fluid)


def test_a_binarised_image_has_no_dark_class() -> None:
    assert not darkest(ball(9).astype(np.float32), ball(9)).any()


def test_table_of_a_scan_names_it_and_every_map(tmp_path) -> None:
    layout = write_toy_run(tmp_path, toy_maps())
    scan = SCANS[1]
    table = read_table(
        layout.scan(scan.participant_id, scan.session_id, 1.0).audit_table, list(RELEVANCE_AUDIT_TABLE.meanings)
    )
    assert set(table["scan_id"]) == {scan.scan_id}
    assert list(table["map"].unique()) == ["lrpB000", "lrpB100", "gb"]
    values = np.abs(toy_maps()[scan.name, "gb"].astype(float))
    outside = table[(table["map"] == "gb") & (table["compartment"] == "outside")].iloc[0]
    assert outside["absolute_sum"] == pytest.approx(values[~toy_brain()].sum(), rel=1e-6)
    assert outside["reference_sum"] == pytest.approx(values.sum(), rel=1e-6)


def test_unreadable_brain_mask_is_named(tmp_path) -> None:
    path = tmp_path / "mask.nii.gz"
    path.write_bytes(b"not an image")
    volume = np.zeros(GRID.shape, np.float32)
    maps = {"gb": torch.zeros(GRID.shape)}
    with pytest.raises(BadInputError, match=r"mask\.nii\.gz.*run the registration"):
        write_audit_table(tmp_path / "a.tsv", SCANS[0], maps, volume, path, PackedAtlas.of(toy_atlas()), GRID, None)


def test_no_map_gives_no_rows() -> None:
    assert audit_rows({}, Compartments({}, {})) == []


def test_an_empty_brain_mask_is_refused(tmp_path: Path) -> None:
    write_template_image(tmp_path / "mask.nii.gz", np.zeros(GRID.shape, np.uint8), GRID, "empty")
    with pytest.raises(BadInputError, match=r"mask.nii.gz: the brain mask is empty"):
        read_brain(tmp_path / "mask.nii.gz", GRID)
