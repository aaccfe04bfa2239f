"""The stage on a small cohort: maps by the right network, in the right place, with accounts that add up."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from lrp_toys import lrp_beta
from outside_contrast import ATLAS, save_network, untrained, write_scans

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.records import LEDGER_TABLE, LOSSES
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.stage import CONSERVATION_TABLE, explain_scans
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.config.settings import AttributionConfig, Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import beta_of
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

CONFIG = Config(
    registration=RegistrationConfig(resolution_mm=4.0),
    attribution=AttributionConfig(methods=("lrp", "guided-backpropagation"), betas=(0.0, 0.5)),
    training=TrainingConfig(device="cpu"),
)
SPLIT = Split((Fold(0, ("sub-2", "sub-3"), (), ("sub-1",)), Fold(1, ("sub-1", "sub-3"), (), ("sub-2",))))
SCANS = (
    Scan("sub-1", "ses-M000", "I1", "a.nii", label="AD"),
    Scan("sub-1", "ses-M012", "I2", "b.nii", label="AD"),
    Scan("sub-2", None, "I3", "c.nii", label="CN"),
    Scan("sub-2", "ses-M006", "I4", "d.nii", label=None),
    Scan("sub-3", None, "I5", "e.nii", label="CN"),
)
MAPS = ("lrpB000", "lrpB050", "gb")
PREDICTIONS = pd.DataFrame({"scan_id": ["I1", "I2", "I3"], "outcome": ["TP", "FN", "TN"]})


@dataclass(frozen=True)
class SmallRun:
    layout: RunLayout
    networks: tuple[FoundingCNN, ...]


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    layout = RunLayout(tmp_path / "run")
    write_scans(layout, SCANS)
    networks = tuple(untrained(fold.index) for fold in SPLIT.folds)
    for fold, network in zip(SPLIT.folds, networks, strict=True):
        save_network(layout, fold, network)
    return SmallRun(layout, tuple(network.eval() for network in networks))


def explain(run: SmallRun, config: Config, scans: tuple[Scan, ...], executor: Executor) -> list[Outcome]:
    digests = DigestCache(run.layout.digests)
    work = Work(run.layout, run.layout.root, config, tuple(scans), SPLIT, executor, digests)
    return explain_scans(work, scans, PREDICTIONS, ATLAS)


def run_stage(run: SmallRun, config: Config = CONFIG, scans: tuple[Scan, ...] = SCANS) -> list[tuple[str, str]]:
    with ThreadPoolExecutor(1) as executor:
        outcomes = explain(run, config, scans, executor)
    return [(outcome.job.unit, outcome.status) for outcome in outcomes]


def expected_input(run: SmallRun, scan: Scan) -> torch.Tensor:
    files = run.layout.scan(scan.participant_id, scan.session_id, 4.0)
    t1w, mask = (np.asanyarray(nib.load(path).dataobj) for path in (files.t1w, files.brain_mask))
    low, high = t1w[mask > 0].min(), t1w[mask > 0].max()
    scaled = np.where(mask > 0, (t1w - low) / (high - low), 0).astype(np.float32)
    return torch.from_numpy(scaled[5:34, 7:38, 3:36].copy())[None, None]


def test_maps_of_the_network_that_has_not_seen_the_participant(run: SmallRun) -> None:
    assert run_stage(run) == [("sub-1_ses-M000", "done"), ("sub-1_ses-M012", "done"), ("sub-2", "done")]
    for scan, fold in ((SCANS[1], 0), (SCANS[2], 1)):
        network, volume = run.networks[fold], expected_input(run, scan)
        expected = lrp_beta(network, volume, 1, [0.0, 0.5])
        maps = {"lrpB000": expected[0.0], "lrpB050": expected[0.5], "gb": guided_backprop(network, volume, 1)}
        files = run.layout.scan(scan.participant_id, scan.session_id, 4.0)
        for name, attribution in maps.items():
            image = nib.load(files.relevance_map(name))
            on_template = np.zeros(template_grid(4.0).shape, np.float32)
            on_template[5:34, 7:38, 3:36] = attribution.values[0, 0].numpy()
            np.testing.assert_allclose(
                np.asanyarray(image.dataobj), on_template, rtol=0, atol=1e-6 * float(np.abs(on_template).max())
            )
            np.testing.assert_array_equal(image.affine, template_grid(4.0).affine)
            described = json.loads(files.relevance_map(name).with_suffix("").with_suffix(".json").read_text())
            assert described["Fold"] == fold
            assert described["Target"] == "AD"
            assert described["TargetUnit"] == 1
            assert described["Settings"].get("beta") == beta_of(name)
            assert described["StartValue"] == pytest.approx(float(network(volume)[0, 1].detach()), rel=1e-5)
            assert described["StartValueKind"] == "logit"
            assert described["Sources"][2] == f"bids::models/fold-{fold}/model.safetensors"
            assert all((run.layout.root / source.removeprefix("bids::")).is_file() for source in described["Sources"])
            assert len(described["ModelWeightsSHA256"]) == 64


def test_accounts_add_up(run: SmallRun) -> None:
    run_stage(run)
    table = read_table(run.layout.group / "conservation.tsv", list(CONSERVATION_TABLE.meanings))
    assert list(table["scan_id"]) == ["I1", "I1", "I2", "I2", "I3", "I3"]
    assert list(table["map"]) == ["lrpB000", "lrpB050"] * 3
    assert table["session_id"].isna().tolist() == [False] * 4 + [True] * 2
    losses = table[list(LOSSES)].sum(axis=1)
    np.testing.assert_allclose(table["start_value"] - table["map_sum"] - losses, table["residual"], atol=1e-12)
    assert (table["residual"].abs() <= 1e-6 * table["start_value"].abs()).all()
    assert (table["lost_no_contribution"].abs() > 1e-6).any()
    for row in table.itertuples():
        files = run.layout.scan(row.participant_id, None if pd.isna(row.session_id) else row.session_id, 4.0)
        values = np.asanyarray(nib.load(files.relevance_map(row.map)).dataobj)
        assert values.sum(dtype=np.float64) == pytest.approx(row.map_sum, rel=1e-9)
        ledger = read_table(files.ledger, list(LEDGER_TABLE.meanings))
        own = ledger[ledger["map"] == row.map]
        assert own["layer"].tolist() == ["stages.3.1", "stages.2.2", "stages.1.0", "stages.0.0"]
        assert own["relevance_in"].iloc[0] == pytest.approx(row.start_value)
        assert own["lost_no_contribution"].sum() == pytest.approx(row.lost_no_contribution)
        assert json.loads(files.ledger.with_suffix(".json").read_text()).keys() == LEDGER_TABLE.meanings.keys()


def test_second_run_does_nothing_and_a_new_setting_or_network_redoes_its_scans(run: SmallRun) -> None:
    run_stage(run)
    before = (run.layout.group / "conservation.tsv").read_bytes()
    assert {status for _, status in run_stage(run)} == {"unchanged"}
    assert (run.layout.group / "conservation.tsv").read_bytes() == before
    save_network(run.layout, SPLIT.folds[1], run.networks[0])
    assert run_stage(run) == [("sub-1_ses-M000", "unchanged"), ("sub-1_ses-M012", "unchanged"), ("sub-2", "done")]
    settings = replace(CONFIG, attribution=replace(CONFIG.attribution, start_value="probability"))
    assert {status for _, status in run_stage(run, settings)} == {"done"}
    assert read_table(run.layout.group / "conservation.tsv")["start_value"].between(0, 1).all()


@pytest.mark.ci
def test_two_runs_give_the_same_bytes(run: SmallRun) -> None:
    run_stage(run)
    files = sorted(path for path in run.layout.root.rglob("*") if "relevance" in path.parts and path.is_file())
    assert len(files) == 3 * (2 * len(MAPS) + 6)
    before = {path: path.read_bytes() for path in files}
    for path in files:
        path.unlink()
    run_stage(run)
    assert {path: path.read_bytes() for path in files} == before


def test_guided_backpropagation_can_be_left_out(run: SmallRun) -> None:
    config = replace(CONFIG, attribution=replace(CONFIG.attribution, methods=("lrp",)))
    run_stage(run, config)
    files = run.layout.scan("sub-2", None, 4.0)
    assert files.relevance_map("lrpB000").is_file()
    assert not files.relevance_map("gb").exists()


def test_what_cannot_be_explained_is_a_failure_and_the_rest_goes_on(run: SmallRun) -> None:
    run.layout.scan("sub-1", "ses-M000", 4.0).t1w.write_bytes(b"not an image")
    run.layout.fold(1).weights.unlink()
    assert run_stage(run) == [("sub-1_ses-M000", "failed"), ("sub-1_ses-M012", "done"), ("sub-2", "failed")]
    failures = read_table(run.layout.failures).set_index("unit")["message"]
    assert "desc-preproc_T1w.nii.gz" in failures["sub-1_ses-M000"]
    assert "fold-1" in failures["sub-2"]
    assert set(read_table(run.layout.group / "conservation.tsv")["scan_id"]) == {"I2"}
    assert not list(run.layout.scratch.glob("*"))


def test_network_of_another_contrast_is_refused(run: SmallRun) -> None:
    save_network(run.layout, SPLIT.folds[1], run.networks[1], ("young", "old"))
    run_stage(run)
    failures = read_table(run.layout.failures)
    assert failures["message"].tolist() == [
        "OUT/models/fold-1/model.json: the network tells young from old and knows no AD; train it again."
    ]


def test_no_scan_gives_an_empty_table(run: SmallRun) -> None:
    assert run_stage(run, scans=SCANS[3:]) == []
    table = read_table(run.layout.group / "conservation.tsv", list(CONSERVATION_TABLE.meanings))
    assert table.empty


def test_jobs_survive_pickling(run: SmallRun) -> None:
    """They run in other processes: nothing in them may be bound to this one."""
    import pickle

    class Pickling(ThreadPoolExecutor):
        def submit(self, fn, /, *arguments, **options) -> Future:  # type: ignore[no-untyped-def]
            fn, arguments = pickle.loads(pickle.dumps((fn, arguments)))
            return super().submit(fn, *arguments, **options)

    with Pickling(1) as executor:
        outcomes = explain(run, CONFIG, SCANS, executor)
    assert all(outcome.ok for outcome in outcomes)
