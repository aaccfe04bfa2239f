"""Explanations on demand, and which maps are kept."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from brute_region_sums import index_labels, region_sums
from lrp_toys import lrp_beta
from outside_contrast import ATLAS, BOX, GRID, save_network, untrained, write_scans

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.regions import RegionTable
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import Occlusion
from heatlas.pipeline.attribution.records import LEDGER_TABLE
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining import partial
from heatlas.pipeline.explaining.on_demand import (
    EXPLAINED_BILATERAL_TABLE,
    EXPLAINED_REGIONS_TABLE,
    ExplanationRequest,
    chosen_scans,
    show_scans,
    unseen_fold,
)
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.run.config.settings import AttributionConfig, Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout, RunLayout
from heatlas.pipeline.run.layout.scan_files import sidecar
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

# Explanations on demand: the right network, the right values, and nothing of the run touched.

CONFIG = Config(registration=RegistrationConfig(resolution_mm=4.0), training=TrainingConfig(device="cpu"))
SPLIT = Split((Fold(0, ("sub-2",), ("sub-4",), ("sub-1",)), Fold(1, ("sub-1",), ("sub-4",), ("sub-2",))))
SCANS = (
    Scan("sub-1", "ses-M000", "I1", "a.nii", label="AD"),
    Scan("sub-2", None, "I2", "b.nii", label="CN"),
    Scan("sub-3", None, "I3", "c.nii", label=None),  # MCI, say: in no fold
    Scan("sub-4", None, "I4", "d.nii", label="CN"),  # validates in every fold
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ExplanationLayout:
    layout = ExplanationLayout(tmp_path_factory.mktemp("explain") / "run")
    write_scans(layout, SCANS)
    for fold in SPLIT.folds:
        save_network(layout, fold, untrained(fold.index, offsets=False))
    return layout


def show(layout: ExplanationLayout, *methods: str, **request: object) -> list[Outcome]:
    with ThreadPoolExecutor(1) as executor:
        digests = DigestCache(layout.digests)
        asked = ExplanationRequest(methods, **request)  # type: ignore[arg-type]
        return show_scans(Work(layout, layout.root, CONFIG, tuple(SCANS), SPLIT, executor, digests), asked, ATLAS)


def expected(layout: ExplanationLayout, scan: Scan, fold: int, target: int, method, stage: int) -> np.ndarray:
    loaded = load_model(layout.fold(fold))
    files = layout.scan(scan.participant_id, scan.session_id, 4.0)
    volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
    values = attribute(loaded.model, volume, target, method, stage).values[0, 0].numpy()
    return BOX.paste(values, GRID.shape)


def test_maps_of_an_unseen_network_with_sidecar_and_sums(whole: ExplanationLayout) -> None:
    outcomes = show(whole, "occlusion", "grad-cam", settings=("occlusion:size=12", "occlusion:stride=12"))
    assert [outcome.status for outcome in outcomes] == ["done"] * 6
    for scan, fold in ((SCANS[0], 0), (SCANS[1], 1), (SCANS[2], 0)):
        files = whole.scan(scan.participant_id, scan.session_id, 4.0)
        for label, method, stage in (("occlusionSize12Stride12", Occlusion(12, 12), 0), ("gradCam", GradCam(), 2)):
            values = expected(whole, scan, fold, 1, method, stage)
            image = nib.load(files.explanation_map(label))
            stored = np.asanyarray(image.dataobj)
            np.testing.assert_allclose(stored, values, rtol=0, atol=1e-6 * np.abs(values).max())
            np.testing.assert_array_equal(image.affine, GRID.affine)
            facts = json.loads(sidecar(files.explanation_map(label)).read_text())
            assert facts["Fold"] == fold
            assert facts["Target"] == "AD"
            assert facts["Stage"] == stage
            assert all((whole.root / source.removeprefix("bids::")).is_file() for source in facts["Sources"])
            table = EXPLAINED_REGIONS_TABLE.read(whole.regions(label)).set_index(["scan_id", "region"])
            index = index_labels(ATLAS.labels, ATLAS.regions.numbers)
            own = table.loc[scan.scan_id].loc[list(index.numbers)]
            limit = 1e-12 * np.abs(stored).sum(dtype=np.float64)
            assert (np.abs(own["sum"].to_numpy() - region_sums(stored, index)) <= limit).all()
            hippocampus = EXPLAINED_BILATERAL_TABLE.read(whole.bilateral(label))
            pooled = hippocampus[(hippocampus["scan_id"] == scan.scan_id) & (hippocampus["group"] == "Hippocampus")]
            assert pooled["sum"].item() == pytest.approx(own.loc[[47, 48], "sum"].sum(), abs=limit)
            assert pooled["density"].item() * pooled["n_voxels"].item() == pytest.approx(pooled["sum"].item())
    dictionary = json.loads(whole.regions("gradCam").with_suffix(".json").read_text())
    assert dictionary.keys() == EXPLAINED_REGIONS_TABLE.meanings.keys()


def test_the_predicted_class_is_that_of_each_scan(whole: ExplanationLayout) -> None:
    outcomes = show(whole, "grad-cam", target="predicted", scans=("I1", "sub-2"))
    for outcome, scan, fold in zip(outcomes, SCANS, (0, 1), strict=False):
        loaded = load_model(whole.fold(fold))
        files = whole.scan(scan.participant_id, scan.session_id, 4.0)
        volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
        logits = loaded.model(volume)[0]
        assert outcome.result["gradCamTargetPredicted.target"] == loaded.classes[int(logits.argmax())]
        assert outcome.result["gradCamTargetPredicted.start_value"] == pytest.approx(
            float(logits.detach().max()), rel=1e-5
        )


def test_a_second_call_does_nothing_and_tables_gather_earlier_calls(whole: ExplanationLayout) -> None:
    show(whole, "layer-cam", scans=("I1",))
    assert set(read_table(whole.regions("layerCam"))["scan_id"]) == {"I1"}
    assert [outcome.status for outcome in show(whole, "layer-cam", scans=("I1",))] == ["unchanged"]
    show(whole, "layer-cam", participants=("2",))
    assert set(read_table(whole.regions("layerCam"))["scan_id"]) == {"I1", "I2"}
    bytes_before = whole.regions("layerCam").read_bytes()
    show(whole, "layer-cam", stage="1", scans=("I1",))
    assert whole.regions("layerCam").read_bytes() == bytes_before
    assert set(read_table(whole.regions("layerCamStage1"))["scan_id"]) == {"I1"}


@pytest.mark.parametrize("label", ["sub-ADNI002S0295", "ADNI002S0295", "002S0295", "002_S_0295"])
def test_participants_are_named_as_for_a_run(label: str) -> None:
    scans = [Scan(f"sub-ADNI002S029{i}", None, f"I{i}", None, "AD", "AD") for i in (5, 6)]
    chosen = chosen_scans(ExplanationRequest(("lrp",), participants=(label,)), scans, {"I5": 0, "I6": 0}, {})
    assert [scan.scan_id for scan in chosen] == ["I5"]


def test_a_scan_that_fails_is_a_failure_of_the_explanation_only(whole: ExplanationLayout) -> None:
    path = whole.scan("sub-2", None, 4.0).t1w
    content = path.read_bytes()
    path.write_bytes(b"not an image")
    try:
        outcomes = show(whole, "hires-cam", "ablation-cam", scans=("I1", "I2"))
    finally:
        path.write_bytes(content)
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False]
    failures = read_table(whole.failures)
    assert failures["unit"].tolist() == ["sub-2_ablationCam", "sub-2_hiresCam"]
    assert path.name in failures["message"][0]
    assert not (whole.root / "failures.tsv").exists()
    assert not (whole.logs / "receipts").exists()


@pytest.mark.parametrize(
    ("methods", "request_", "words"),
    [
        (("grad_cam",), {}, "--method grad_cam: unknown"),
        (("occlusion",), {"settings": ("sizes=3",)}, "no setting 'sizes'"),
        (("occlusion", "grad-cam"), {"settings": ("size=20",)}, "grad-cam has no setting 'size'; it has none"),
        (("occlusion",), {"settings": ("rise:p=0.5",)}, "rise is not among the methods"),
        (("occlusion",), {"settings": ("batch=0",)}, "batch = 0"),
        (("grad-cam",), {"target": "MCI"}, "--target MCI: write predicted, CN or AD"),
        (("grad-cam",), {"stage": "9"}, "stage 9 does not exist"),
        (("grad-cam",), {"stage": "layer4"}, "no such layer"),
        (("grad-cam",), {"stage": "²"}, "no such layer"),
        (("grad-cam",), {"scans": ("I9",)}, "--scan I9: not among the kept scans of this run. Write one of sub-1"),
        (
            ("grad-cam",),
            {"participants": ("9",)},
            "--participant-label sub-9: not among the kept scans of this run. Did you mean sub-4? Write one of sub-1",
        ),
        (("grad-cam",), {"scans": ("I4",)}, "sub-4: no network of this run may explain it"),
    ],
)
def test_what_does_not_exist_is_named_before_any_work(whole: ExplanationLayout, methods, request_, words) -> None:
    before = sorted(whole.root.rglob("*"))
    with pytest.raises(UsageError) as caught:
        show(whole, *methods, **request_)
    assert words in str(caught.value)
    assert sorted(whole.root.rglob("*")) == before


def test_unseen_folds() -> None:
    assert [unseen_fold(SPLIT, f"sub-{number}") for number in (1, 2, 3, 4)] == [0, 1, 0, None]
    assert unseen_fold(Split(()), "sub-1") is None


def test_a_changed_network_is_another_explanation(whole: ExplanationLayout) -> None:
    show(whole, "xgrad-cam", scans=("I1", "I2"))
    stored = whole.fold(1).weights.read_bytes(), whole.fold(1).description.read_bytes()
    save_network(whole, SPLIT.folds[1], untrained(7, offsets=False))
    try:
        outcomes = show(whole, "xgrad-cam", scans=("I1",))
        assert [outcome.status for outcome in outcomes] == ["unchanged"]
        assert set(read_table(whole.regions("xgradCam"))["scan_id"]) == {"I1"}  # that of I2 is of another network
        assert show(whole, "xgrad-cam", scans=("I2",))[0].status == "done"
    finally:
        whole.fold(1).weights.write_bytes(stored[0])
        whole.fold(1).description.write_bytes(stored[1])


def test_scans_without_a_network_are_left_out_unless_asked_for(whole: ExplanationLayout) -> None:
    outcomes = show(whole, "fake-cam")
    assert [outcome.job.arguments[0].scan.scan_id for outcome in outcomes] == ["I1", "I2", "I3"]


def test_a_method_that_the_network_cannot_be_asked_is_refused_before_any_scan(whole: ExplanationLayout) -> None:
    """The founding network has a hidden layer: CAM is not defined, and one refusal says so, not one per scan."""
    before = sorted(whole.root.rglob("*"))
    for methods in (("cam",), ("grad-cam", "cam")):
        with pytest.raises(UsageError, match=r"CAM needs global average pooling and one linear layer") as refused:
            show(whole, *methods, target="CN")
        assert "Use grad-cam" in str(refused.value)
    assert sorted(whole.root.rglob("*")) == before


def test_an_explanation_by_lrp_has_the_ledger_of_conservation_and_others_have_none(whole: ExplanationLayout) -> None:
    (outcome,) = show(whole, "lrp", settings=("beta=1",), scans=("I1",))
    assert outcome.ok
    label = outcome.job.arguments[0].explanations[0].label
    files = whole.scan("sub-1", "ses-M000", 4.0)
    ledger = read_table(files.explanation_ledger(label), list(LEDGER_TABLE.meanings), ["layer"])
    dictionary = json.loads(files.explanation_ledger(label).with_suffix(".json").read_text())
    assert dictionary.keys() == LEDGER_TABLE.meanings.keys()
    loaded = load_model(whole.fold(0))
    volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
    own = lrp_beta(loaded.model, volume, 1, [1.0], CONFIG.attribution.start_value)[1.0]
    assert own.ledger is not None
    wanted = own.ledger.frame(label, 0)
    assert ledger["layer"].tolist() == wanted["layer"].tolist()
    for name in ("relevance_in", "relevance_out", "lost_no_contribution"):
        np.testing.assert_allclose(ledger[name], wanted[name], rtol=1e-6, atol=1e-9)
    facts = json.loads(sidecar(files.explanation_map(label)).read_text())
    lost = ledger[["absorbed_by_bias", "lost_no_contribution", "stabiliser"]].to_numpy().sum()
    assert facts["StartValue"] == pytest.approx(facts["MapSum"] + lost, rel=1e-4)
    assert files.explanation_ledger(label) != files.ledger
    (other,) = show(whole, "fake-cam", scans=("I1",))
    assert "ledger" not in other.job.outputs
    assert not files.explanation_ledger("fakeCam").exists()


# What is kept decides what is written, never what is computed: none, mean maps of groups, or all maps.

KEPT_SCANS = tuple(
    Scan(f"sub-{person}", session, f"I{person}{session or ''}", "x.nii", label="AD" if person % 2 else "CN")
    for person in range(1, 7)
    for session in (("ses-1", "ses-2") if person == 1 else ("ses-1",) if person % 3 else (None,))
)
OUTCOMES = {1: "TP", 2: "TN", 3: "TP", 4: "FP", 5: "FN", 6: "TN"}
PEOPLE = tuple(f"sub-{person}" for person in range(1, 7))
KEPT_SPLIT = Split((Fold(0, PEOPLE[3:], (), PEOPLE[:3]), Fold(1, PEOPLE[:3], (), PEOPLE[3:])))


def settings(kept: str) -> Config:
    return Config(
        registration=RegistrationConfig(resolution_mm=4.0),
        attribution=AttributionConfig(betas=(0.0, 0.5), keep_maps=kept),  # type: ignore[arg-type]
        training=TrainingConfig(device="cpu"),
    )


def predictions() -> pd.DataFrame:
    rows = []
    for scan in KEPT_SCANS:
        person = int(scan.participant_id[4:])
        rows.append(
            dict(participant_id=scan.participant_id, session_id=scan.session_id, scan_id=scan.scan_id)
            | dict(fold=int(person > 3), target=person % 2, probability=0.6, outcome=OUTCOMES[person])
        )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    """A few regions, one without a voxel, one that reaches out of the network's box, one wholly outside."""
    whole = load_atlas("neuromorphometrics-cat12", GRID)
    labels = np.where(np.isin(whole.labels, (47, 48, 59)), whole.labels, 0)
    labels[0:20, 10:12, 10:12] = 60
    labels[0:3, 0:4, 0:2] = 31
    regions = RegionTable(tuple(r for r in whole.regions.regions if r.number in (47, 48, 59, 60, 31, 32)))
    return dataclasses.replace(whole, labels=labels, regions=regions, empty=(32,))


def small_run(folder: Path) -> RunLayout:
    layout = RunLayout(folder)
    write_scans(layout, KEPT_SCANS)
    for fold in KEPT_SPLIT.folds:  # without positive weights a unit may have no contribution that beta 0 could pass on
        save_network(layout, fold, untrained(fold.index, positive=True))
    return layout


def explain(layout: RunLayout, kept: str, atlas: Atlas, executor: Executor | None = None) -> list[Outcome]:
    digests = DigestCache(layout.digests)
    with executor or ThreadPoolExecutor(1) as workers:
        work = Work(layout, layout.root, settings(kept), KEPT_SCANS, KEPT_SPLIT, workers, digests)
        return explain_scans(work, KEPT_SCANS, predictions(), atlas)


def aggregate(layout: RunLayout, kept: str, scans: tuple[Scan, ...] = KEPT_SCANS) -> list[Outcome]:
    config = settings(kept)
    with ThreadPoolExecutor(1) as executor:
        work = Work(layout, layout.root, config, KEPT_SCANS, KEPT_SPLIT, executor, DigestCache(layout.digests))
        return aggregate_relevance(work, scans, predictions(), work.map_names, GRID)[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, atlas: Atlas) -> dict[str, RunLayout]:
    """One run of each kind, with parts of two scans."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "PART", 2)
        for kept in ("all", "group", "none"):
            found[kept] = small_run(tmp_path_factory.mktemp(kept) / "run")
            assert {outcome.status for outcome in explain(found[kept], kept, atlas)} == {"done"}
            assert all(outcome.ok for outcome in aggregate(found[kept], kept))
    return found


def relevance_images(layout: RunLayout) -> list[Path]:
    return sorted(layout.root.rglob("*_relevance.nii.gz"))


def test_region_sums_are_those_of_the_maps_with_the_atlas(runs: dict[str, RunLayout], atlas: Atlas) -> None:
    index = index_labels(atlas.labels, atlas.regions.numbers)
    table = read_table(runs["all"].group / "relevance.tsv").set_index(["scan_id", "map", "region"]).sort_index()
    for scan in KEPT_SCANS:
        files = runs["all"].scan(scan.participant_id, scan.session_id, 4.0)
        for name in ("lrpB000", "lrpB050", "gb"):
            values = np.asanyarray(nib.load(files.relevance_map(name)).dataobj)
            own = table.loc[(scan.scan_id, name)].loc[list(index.numbers)]
            magnitude = region_sums(np.abs(values), index)
            assert (np.abs(own["sum"] - region_sums(values, index)) <= 1e-12 * magnitude).all()
            assert own["n_voxels"].tolist() == index.n_voxels.tolist()
    rows = table.loc[(KEPT_SCANS[0].scan_id, "lrpB000")]
    assert rows.loc[31, "n_voxels"] == 24
    assert rows.loc[31, "sum"] == 0  # outside the box: the network does not see it
    assert rows.loc[32, "n_voxels"] == 0
    assert np.isnan(rows.loc[32, "density"])
    assert rows.loc[60, "n_voxels"] == 80
    assert rows.loc[60, "density"] == pytest.approx(rows.loc[60, "sum"] / 80)


def test_tables_do_not_depend_on_what_is_kept(runs: dict[str, RunLayout]) -> None:
    def tables(layout: RunLayout) -> dict[str, bytes]:
        paths = [p for p in layout.root.rglob("*.tsv") if layout.partial_sums not in p.parents]
        return {p.relative_to(layout.root).as_posix(): p.read_bytes() for p in paths}

    assert tables(runs["none"]) == tables(runs["all"])
    assert tables(runs["group"]) == tables(runs["all"])
    assert len(tables(runs["all"])) > 2 * len(KEPT_SCANS)


def test_only_the_maps_that_are_kept_are_written(runs: dict[str, RunLayout]) -> None:
    assert relevance_images(runs["none"]) == []
    assert {p.parent for p in relevance_images(runs["group"])} == {runs["group"].group / "maps"}
    assert len(relevance_images(runs["all"])) == 4 * len(KEPT_SCANS) + 4 * 6
    assert not runs["all"].partial_sums.exists()
    assert not runs["none"].partial_sums.exists()


def test_mean_maps_are_equal_with_and_without_single_maps(runs: dict[str, RunLayout]) -> None:
    names = [p.name for p in relevance_images(runs["group"])]
    assert len(names) == 4 * 6
    for name in names:
        images = [nib.load(runs[kept].group / "maps" / name) for kept in ("group", "all")]
        values = [np.asanyarray(image.dataobj) for image in images]
        assert np.abs(values[1]).max() > 0
        np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-7 * np.abs(values[1]).max())
        np.testing.assert_array_equal(images[0].affine, images[1].affine)
        facts = [
            json.loads((runs[kept].group / "maps" / name.replace(".nii.gz", ".json")).read_text())
            for kept in ("group", "all")
        ]
        assert facts[0]["NumberOfScans"] == facts[1]["NumberOfScans"]
        assert facts[0]["NumberOfParticipants"] == facts[1]["NumberOfParticipants"]
        assert all((runs["group"].root / source.removeprefix("bids::")).is_file() for source in facts[0]["Sources"])


@pytest.mark.parametrize("kept", ["all", "group", "none"])
def test_second_run_does_nothing(runs: dict[str, RunLayout], atlas: Atlas, kept: str, monkeypatch) -> None:
    monkeypatch.setattr(partial, "PART", 2)
    layout = runs[kept]
    files = [p for p in layout.root.rglob("*.*") if p.is_file() and p != layout.digests]
    stamps = {p: p.stat().st_mtime_ns for p in files}
    assert {outcome.status for outcome in explain(layout, kept, atlas)} == {"unchanged"}
    assert {outcome.status for outcome in aggregate(layout, kept)} <= {"unchanged"}
    assert {p: p.stat().st_mtime_ns for p in files} == stamps


@pytest.mark.ci
def test_going_from_all_to_none_explains_nothing_again_and_leaves_no_map(tmp_path: Path, atlas: Atlas) -> None:
    layout = small_run(tmp_path / "run")
    explain(layout, "all", atlas)
    aggregate(layout, "all")
    foreign = layout.scan("sub-1", "ses-1", 4.0).explanation_map("gradCam")
    foreign.write_bytes(b"made by heatlas explain")
    assert {outcome.status for outcome in explain(layout, "none", atlas)} == {"unchanged"}
    aggregate(layout, "none")
    assert relevance_images(layout) == []
    assert foreign.is_file()
    assert {outcome.status for outcome in explain(layout, "all", atlas)} == {"done"}


@pytest.mark.ci
def test_another_atlas_is_another_table(tmp_path: Path, atlas: Atlas) -> None:
    layout = small_run(tmp_path / "run")
    explain(layout, "none", atlas)
    other = dataclasses.replace(atlas, labels=np.where(atlas.labels == 59, 0, atlas.labels))
    assert {outcome.status for outcome in explain(layout, "none", other)} == {"done"}


@pytest.mark.ci
def test_a_scan_that_fails_is_listed_alone_and_in_no_mean_map(tmp_path: Path, atlas: Atlas, monkeypatch) -> None:
    monkeypatch.setattr(partial, "PART", 3)
    layout = small_run(tmp_path / "run")
    path = layout.scan("sub-1", "ses-2", 4.0).t1w
    whole = path.read_bytes()
    path.write_bytes(b"not an image")
    outcomes = explain(layout, "group", atlas)
    assert [outcome.job.unit for outcome in outcomes if not outcome.ok] == ["sub-1_ses-2"]
    failures = read_table(layout.failures)
    assert failures[["stage", "unit", "error"]].values.tolist() == [["attribution", "sub-1_ses-2", "BadInputError"]]
    assert path.name in failures["message"][0]
    trace = (layout.root / failures["traceback"][0]).read_text()
    assert "read_channels" in trace  # where it failed, not where it was told
    assert len(read_table(layout.group / "conservation.tsv")) == 2 * (len(KEPT_SCANS) - 1)
    rest = tuple(scan for scan in KEPT_SCANS if scan.name != "sub-1_ses-2")
    aggregate(layout, "group", rest)
    facts = json.loads(layout.group_map("TP", "gb").with_suffix("").with_suffix(".json").read_text())
    assert facts["NumberOfScans"] == 2
    again = {outcome.job.unit: outcome.status for outcome in explain(layout, "group", atlas)}
    assert again.pop("sub-1_ses-2") == "failed"
    assert set(again.values()) == {"unchanged"}
    path.write_bytes(whole)
    assert all(outcome.ok for outcome in explain(layout, "group", atlas))
    assert read_table(layout.failures).empty
    assert all(outcome.ok for outcome in aggregate(layout, "group"))
    facts = json.loads(layout.group_map("TP", "gb").with_suffix("").with_suffix(".json").read_text())
    assert facts["NumberOfScans"] == 3


@pytest.mark.ci
def test_tables_of_an_earlier_part_never_pass_for_those_of_one_that_fails(
    tmp_path: Path, atlas: Atlas, monkeypatch
) -> None:
    """A part as a whole fails (no memory for its sums, say) after the atlas has changed."""
    layout = small_run(tmp_path / "run")
    explain(layout, "group", atlas)
    other = dataclasses.replace(atlas, labels=np.where(atlas.labels == 59, 0, atlas.labels))

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(partial, "write_sums", fails)
        outcomes = explain(layout, "group", other)
    assert not any(outcome.ok for outcome in outcomes)
    assert "failed together; see attribution-parts" in outcomes[0].message
    assert "MemoryError" in set(read_table(layout.failures)["error"])
    assert all(outcome.ok for outcome in explain(layout, "group", other))
    for scan in KEPT_SCANS:
        table = read_table(layout.scan(scan.participant_id, scan.session_id, 4.0).region_table)
        assert table.loc[table["region"] == 59, "n_voxels"].eq(0).all()


@pytest.mark.ci
def test_killed_between_parts_continues_to_the_same_maps(
    tmp_path: Path, atlas: Atlas, runs: dict[str, RunLayout], monkeypatch
) -> None:
    monkeypatch.setattr(partial, "PART", 2)
    layout = small_run(tmp_path / "run")

    class Killed(ThreadPoolExecutor):
        left = 2

        def submit(self, *arguments, **options):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().submit(*arguments, **options)

    with pytest.raises(KeyboardInterrupt):
        explain(layout, "group", atlas, Killed(1))
    done = list((layout.logs / "receipts" / partial.STAGE).glob("*"))
    stamps = {p: p.stat().st_mtime_ns for p in done}
    assert 0 < len(done) <= 2
    explain(layout, "group", atlas)
    aggregate(layout, "group")
    assert {p: p.stat().st_mtime_ns for p in done} == stamps
    for path in relevance_images(runs["group"]):
        other = layout.group / "maps" / path.name
        assert other.read_bytes() == path.read_bytes()


def test_a_table_that_cannot_be_written_leaves_no_wrong_mean_map(
    tmp_path: Path, atlas: Atlas, runs: dict[str, RunLayout], monkeypatch
) -> None:
    monkeypatch.setattr(partial, "PART", 2)
    layout, first = small_run(tmp_path / "run"), KEPT_SCANS[0]
    table = layout.scan(first.participant_id, first.session_id, 4.0).region_table
    table.mkdir(parents=True)
    failed = [outcome.job.unit for outcome in explain(layout, "group", atlas) if not outcome.ok]
    assert failed == [first.name]
    with pytest.raises(BadInputError, match=rf"not of the same scans \({first.scan_id}\)"):
        aggregate(layout, "group", KEPT_SCANS[1:])
    table.rmdir()
    assert all(outcome.ok for outcome in explain(layout, "group", atlas))
    assert all(outcome.ok for outcome in aggregate(layout, "group"))
    for path in relevance_images(runs["group"]):
        own = layout.root / path.relative_to(runs["group"].root)
        assert np.array_equal(np.asanyarray(nib.load(own).dataobj), np.asanyarray(nib.load(path).dataobj))


def test_strange_folders_beside_the_sums_are_left_alone(tmp_path: Path, atlas: Atlas) -> None:
    layout = small_run(tmp_path / "run")
    strange = layout.partial_sums / "@eaDir"
    strange.mkdir(parents=True)
    assert all(outcome.ok for outcome in explain(layout, "group", atlas))
    assert strange.is_dir()


@pytest.mark.ci
def test_failures_of_parts_end_with_the_parts(tmp_path: Path, atlas: Atlas, monkeypatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("made up")

    layout = small_run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(partial, "write_sums", refused)
        explain(layout, "group", atlas)
    assert set(read_table(layout.failures)["stage"]) == {"attribution", "attribution-parts"}
    assert all(outcome.ok for outcome in explain(layout, "none", atlas))
    assert len(read_table(layout.failures)) == 0
