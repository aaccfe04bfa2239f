"""Explanations on demand: the right network, the right values, and nothing of the run touched."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import nibabel as nib
import numpy as np
import pytest
import torch
from brute_region_sums import index_labels, region_sums
from lrp_toys import lrp_beta
from outside_contrast import ATLAS, BOX, GRID, save_network, untrained, write_scans

from heatlas.pipeline.attribution.cam.weighted_maps import GradCam
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import Occlusion
from heatlas.pipeline.attribution.records import LEDGER_TABLE
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.on_demand import (
    EXPLAINED_BILATERAL_TABLE,
    EXPLAINED_REGIONS_TABLE,
    ExplanationRequest,
    chosen_scans,
    show_scans,
    unseen_fold,
)
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout
from heatlas.pipeline.run.layout.scan_files import sidecar
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

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
            "--participant-label sub-9: not among the kept scans of this run. Write one of sub-1, sub-2",
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
