"""Scans outside the contrast: asked by the networks that have not seen them, explained by the mean of their maps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from lrp_toys import lrp_beta
from outside_contrast import ATLAS, CONFIG, CONVERTER, LABELLED, SPLIT, STRANGER, OutsideRun, make_run

from heatlas.atlases.spaces import Box
from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.records import LOSSES, Attribution
from heatlas.pipeline.cohort.people.splits import Fold, Split, networks_for, require_unseen
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.explaining import explained_scan
from heatlas.pipeline.explaining.stage import explain_all, explain_applied, explain_scans
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.inputs import NetworkInput, from_network, read_network_volume
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.application import _not_of_backbone, mean_over_networks
from heatlas.studies.pretraining.stage import _without

CPU = torch.device("cpu")

BOX = Box((5, 7, 3), (26, 26, 26))


@pytest.fixture
def run(tmp_path: Path) -> OutsideRun:
    return make_run(tmp_path / "run")


def volume_of(run: OutsideRun, scan: Scan, fold: int) -> tuple[torch.nn.Module, torch.Tensor]:
    loaded = load_model(run.layout.fold(fold), CPU)
    files = run.layout.scan(scan.participant_id, scan.session_id, 4.0)
    return loaded.model, torch.from_numpy(read_network_volume(files, loaded.input))[None, None]


def single_maps(run: OutsideRun, scan: Scan, fold: int) -> dict[str, np.ndarray]:
    model, volume = volume_of(run, scan, fold)
    spec = load_model(run.layout.fold(fold), CPU).input
    by_beta = lrp_beta(model, volume, 1, (0.0, 0.5), "probability")
    maps = {"lrpB000": by_beta[0.0], "lrpB050": by_beta[0.5], "gb": guided_backprop(model, volume, 1, "probability")}
    return {name: from_network(one.values[0, 0].numpy(), spec) for name, one in maps.items()}


def written_map(run: OutsideRun, scan: Scan, name: str) -> np.ndarray:
    path = run.layout.scan(scan.participant_id, scan.session_id, 4.0).relevance_map(name)
    return np.asanyarray(nib.load(path).dataobj)


def test_a_network_is_never_asked_about_someone_it_was_trained_with(run: OutsideRun) -> None:
    run.predict()
    table = read_table(run.layout.group / "predictions_applied.tsv", text_columns=["networks"]).set_index("scan_id")
    assert table["networks"].to_dict() == {"I5": "1", "I6": "0;1"}
    assert table["n_networks"].to_dict() == {"I5": 1, "I6": 2}
    run.explain()
    sidecars = {
        scan.scan_id: json.loads(
            run.layout.scan(scan.participant_id, scan.session_id, 4.0).relevance_map("gb").with_suffix("").with_suffix(
                ".json").read_text()
        )
        for scan in (CONVERTER, STRANGER)
    }  # fmt: skip
    assert (sidecars["I5"]["Fold"], sidecars["I6"]["Fold"]) == (1, [0, 1])
    assert not any("fold-0" in source for source in sidecars["I5"]["Sources"])
    # The converter's maps are those of network 1 alone, to the bit.
    for name, values in single_maps(run, CONVERTER, 1).items():
        assert np.abs(values - single_maps(run, CONVERTER, 0)[name]).max() > 0
        np.testing.assert_array_equal(written_map(run, CONVERTER, name), values)


def test_labelled_scans_and_others_are_explained_at_once(run: OutsideRun) -> None:
    run.predict()
    others = (CONVERTER, STRANGER)
    with ThreadPoolExecutor(1) as executor:
        work = run.work(CONFIG, executor)
        done = explain_all(work, LABELLED, pd.DataFrame(), others, LABELLED, ATLAS)
        assert [[outcome.job.unit for outcome in outcomes] for outcomes in done] == [
            [scan.name for scan in scans] for scans in (LABELLED, others)
        ]
        assert {outcome.status for outcomes in done for outcome in outcomes} == {"done"}
        alone = [*explain_scans(work, LABELLED, pd.DataFrame(), ATLAS), *explain_applied(work, others, LABELLED, ATLAS)]
    assert {outcome.status for outcome in alone} == {"unchanged"}


def test_the_map_of_several_networks_is_the_mean_of_theirs(run: OutsideRun) -> None:
    run.predict()
    run.explain()
    singles = [single_maps(run, STRANGER, fold) for fold in (0, 1)]
    for name in ("lrpB000", "lrpB050", "gb"):
        expected = (singles[0][name].astype(np.float64) + singles[1][name]) / 2
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(
            written_map(run, STRANGER, name), expected, rtol=0, atol=1e-6 * np.abs(expected).max()
        )


def test_logits_are_averaged_and_what_is_explained_is_the_mean_probability(run: OutsideRun) -> None:
    run.predict()
    run.explain()
    means = {}
    predictions = read_table(run.layout.group / "predictions_applied.tsv").set_index("scan_id")
    for scan, folds in ((CONVERTER, (1,)), (STRANGER, (0, 1))):
        logits = [model(volume)[0].detach().double() for model, volume in (volume_of(run, scan, f) for f in folds)]
        probabilities = [float(torch.softmax(one, 0)[1]) for one in logits]
        row, together = predictions.loc[scan.scan_id], float(torch.softmax(torch.stack(logits).mean(0), 0)[1])
        means[scan.scan_id] = np.mean(probabilities)
        assert row["probability"] == pytest.approx(together, rel=1e-6)
        assert row["logit_positive"] == pytest.approx(np.mean([float(one[1]) for one in logits]), rel=1e-6)
        assert row["predicted"] == ("AD" if together > 0.5 else "CN")
        if len(folds) == 2:
            assert row["probability_sd"] == pytest.approx(np.std(probabilities, ddof=1), rel=1e-5)
        else:
            assert pd.isna(row["probability_sd"])
    table = read_table(run.layout.group / "conservation_applied.tsv")
    assert table["scan_id"].tolist() == ["I5", "I5", "I6", "I6"]
    explained = table.groupby("scan_id")["start_value"].first()
    assert explained.to_dict() == pytest.approx(means, rel=1e-5)
    residual = table["start_value"] - table["map_sum"] - table[list(LOSSES)].sum(axis=1)
    np.testing.assert_allclose(residual, table["residual"], atol=1e-12)
    assert (table["residual"].abs() <= 2e-6 * table["start_value"].abs()).all()


def test_gain_divides_by_the_controls_of_the_same_networks(run: OutsideRun) -> None:
    run.aggregate_labelled()
    run.predict()
    run.explain()
    assert run.aggregate()
    assert not run.aggregate()  # still valid
    labelled = read_table(run.layout.group / "relevance_bilateral.tsv", text_columns=["group"]).set_index(
        ["scan_id", "map", "group"]
    )
    applied = read_table(run.layout.group / "relevance_applied_bilateral.tsv", text_columns=["group"])
    applied = applied.set_index(["scan_id", "map", "group"])
    assert list(applied.columns) == list(labelled.columns)
    regions = read_table(run.layout.group / "relevance_applied.tsv")
    assert list(regions.columns) == list(read_table(run.layout.group / "relevance.tsv").columns)
    where = ("lrpB000", "Hippocampus")
    # Controls: sub-3 is tested by network 0, sub-2 by network 1.
    of_network = [labelled.loc[("I3", *where), "sum"], labelled.loc[("I2", *where), "sum"]]
    assert applied.loc[("I5", *where), "reference_sum"] == pytest.approx(of_network[1])
    assert applied.loc[("I6", *where), "reference_sum"] == pytest.approx(np.mean(of_network))
    row = applied.loc[("I6", *where)]
    assert min(row["sum"], *of_network) > 0
    assert row["gain"] == pytest.approx(row["sum"] / np.mean(of_network))
    both = regions[(regions["scan_id"] == "I6") & (regions["map"] == "lrpB000") & (regions["group"] == "Hippocampus")]
    assert row["sum"] == pytest.approx(both["sum"].sum())
    assert row["density"] == pytest.approx(both["sum"].sum() / both["n_voxels"].sum())


def test_a_second_run_does_nothing_and_one_new_network_only_what_depends_on_it(run: OutsideRun) -> None:
    assert {outcome.status for outcome in [*run.predict(), *run.explain()]} == {"done"}
    assert {outcome.status for outcome in [*run.predict(), *run.explain()]} == {"unchanged"}
    other = make_run(run.layout.root.with_name("other"))
    text = other.layout.fold(0).description.read_text()
    run.layout.fold(0).description.write_text(text.replace('"parameters"', '"again": 0, "parameters"'))
    assert [(outcome.job.unit, outcome.status) for outcome in run.predict()] == [
        ("fold-0", "done"),
        ("fold-1", "unchanged"),
    ]
    assert [outcome.status for outcome in run.explain()] == ["unchanged", "done"]  # the converter never met network 0


@pytest.mark.ci
def test_a_scan_that_gets_a_label_is_explained_again(run: OutsideRun) -> None:
    unlabelled = tuple(replace(scan, label=None) for scan in LABELLED[:1])
    run.predict((STRANGER, *unlabelled))
    run.aggregate_labelled()
    run.explain((STRANGER,))
    receipts = run.layout.logs / "receipts"
    assert (receipts / "attribution-applied" / "sub-5.json").is_file()
    run.explain(unlabelled)
    assert not (receipts / "attribution" / "sub-1.json").exists()
    run.aggregate_labelled()
    assert (receipts / "attribution" / "sub-1.json").is_file()
    assert not (receipts / "attribution-applied" / "sub-1.json").exists()


def test_maps_that_are_not_kept_leave_tables(run: OutsideRun) -> None:
    run.predict()
    run.explain()
    config = replace(CONFIG, attribution=replace(CONFIG.attribution, keep_maps="none"))
    assert {outcome.status for outcome in run.explain(config=config)} == {"unchanged"}
    files = run.layout.scan("sub-5", None, 4.0)
    assert files.maps_of_the_run() == []
    assert files.region_table.is_file()


@pytest.mark.ci
def test_without_such_scans_nothing_is_left(run: OutsideRun) -> None:
    run.aggregate_labelled()
    run.predict()
    run.explain()
    run.aggregate()
    assert run.predict(()) == run.explain(()) == []
    assert run.aggregate(())
    left = [path.name for path in run.layout.root.rglob("*applied*") if path.is_file() and "receipts" not in path.parts]
    assert left == []


def test_a_network_that_fails_costs_its_own_answer_only(run: OutsideRun) -> None:
    run.predict()
    both = read_table(run.layout.group / "predictions_applied.tsv").set_index("scan_id")
    run.layout.fold(0).description.write_text("{}")
    assert [outcome.status for outcome in run.predict()] == ["failed", "unchanged"]
    table = read_table(run.layout.group / "predictions_applied.tsv", text_columns=["networks"]).set_index("scan_id")
    assert table["networks"].to_dict() == {"I5": "1", "I6": "1"}
    assert table.loc["I6", "probability"] != both.loc["I6", "probability"]
    assert {outcome.status for outcome in run.explain()} == {"done"}
    for name, values in single_maps(run, STRANGER, 1).items():  # explained by who answered
        np.testing.assert_array_equal(written_map(run, STRANGER, name), values)


def test_an_old_network_that_knows_the_participant_is_refused(run: OutsideRun) -> None:
    model = run.layout.fold(1)
    text = model.description.read_text()
    known = json.loads(text)
    known["participants"]["train"].append("sub-5")
    model.description.write_text(json.dumps(known))
    outcome = run.predict((STRANGER,))[1]
    assert outcome.status == "failed"
    assert "trained or selected with sub-5" in outcome.message
    table = read_table(run.layout.group / "predictions_applied.tsv", text_columns=["networks"])
    assert table["networks"].tolist() == ["0"]


def test_a_network_that_knows_the_participant_is_not_even_asked_to_explain(
    run: OutsideRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.predict((STRANGER,))
    model = run.layout.fold(1)
    known = json.loads(model.description.read_text())
    known["participants"]["train"].append("sub-5")
    model.description.write_text(json.dumps(known))
    asked: list[int] = []

    answers_of = explained_scan.answers_of

    def noted(network: explained_scan.Network, *rest: Any) -> dict[str, Attribution]:
        asked.append(network.fold)
        return answers_of(network, *rest)

    monkeypatch.setattr(explained_scan, "answers_of", noted)
    (outcome,) = run.explain((STRANGER,))
    assert outcome.status == "failed"
    assert "trained or selected with sub-5" in outcome.message
    assert asked == [0]


def test_a_scan_with_a_label_is_none_of_these(run: OutsideRun) -> None:
    with pytest.raises(BadInputError, match="sub-1 has a label"):
        run.predict(LABELLED[:1])


def test_networks_left_for_each_participant() -> None:
    assert networks_for(["sub-2", "sub-5", "sub-2"], SPLIT) == {"sub-2": (1,), "sub-5": (0, 1)}
    single = Split((Fold(0, ("sub-1",), ("sub-2",), ("sub-3",)),))
    assert networks_for(["sub-1", "sub-2", "sub-3", "sub-4"], single) == {
        "sub-1": (), "sub-2": (), "sub-3": (0,), "sub-4": (0,),
    }  # fmt: skip


def test_a_person_who_rolled_over_is_known_under_both_names() -> None:
    split = Split((Fold(0, ("sub-ADNI131S0295",), (), ()), Fold(1, (), (), ("sub-ADNI131S0295",))))
    assert networks_for(["sub-ADNI002S0295"], split) == {"sub-ADNI002S0295": (1,)}
    description = {"participants": {"train": ["sub-ADNI131S0295"], "validation": []}}
    with pytest.raises(BadInputError, match="with sub-ADNI002S0295"):
        require_unseen(description, "model.json", ["sub-ADNI002S0295", "sub-ADNI002S0296"])
    require_unseen(description, "model.json", ["sub-ADNI002S0296"])
    description["backbone_participants"] = ["sub-ADNI131S0296"]
    with pytest.raises(BadInputError, match="with sub-ADNI002S0296"):
        require_unseen(description, "model.json", ["sub-ADNI002S0296"])
    with pytest.raises(BadInputError, match=r"model\.json: does not say with whom"):
        require_unseen({}, "model.json", ["sub-1"])


def test_a_tie_is_the_negative_class() -> None:
    answers = pd.DataFrame({"participant_id": "sub-1", "session_id": None, "scan_id": "I1", "fold": [1, 0]}).assign(
        logit_negative=[0.0, 1.0], logit_positive=[1.0, 0.0], probability=[0.75, 0.25], control="none"
    )
    row = mean_over_networks(answers, task_of(CohortConfig())).iloc[0]
    assert (row["networks"], row["probability"], row["predicted"]) == ("0;1", 0.5, "CN")


def test_numbers_of_networks_are_averaged_with_their_spread() -> None:
    answers = pd.DataFrame({"participant_id": "sub-1", "session_id": None, "scan_id": "I1", "fold": [1, 0]})
    answers = answers.assign(prediction=[70.0, 74.0], control="none")
    row = mean_over_networks(answers, task_of(CohortConfig(target="age"))).iloc[0]
    assert (row["networks"], row["n_networks"], row["prediction"]) == ("0;1", 2, 72.0)
    assert row["prediction_sd"] == pytest.approx(8**0.5)


def test_people_whom_the_backbone_knows_are_not_predicted(tmp_path: Path) -> None:
    model = RunLayout(tmp_path).fold(0)
    scans = tuple(Scan(person, None, person, "x.nii") for person in ("sub-1", "sub-2", "sub-ADNI002S0295"))
    network, spec = FoundingCNN((26, 26, 26), channels=(2,), pools=(2,), hidden_units=2), NetworkInput(4.0, BOX)
    save_model(model, network, spec, ("CN", "AD"), {"backbone_participants": ["sub-1", "sub-ADNI131S0295"]})
    assert _not_of_backbone(model, scans) == scans[1:2]
    save_model(model, network, spec, ("CN", "AD"), {})
    assert _not_of_backbone(model, scans) == scans
    model.description.write_text("damaged")  # said by the unit of work of the network
    assert _not_of_backbone(model, scans) == scans


def test_pretraining_leaves_out_everyone_whom_a_run_predicts(tmp_path: Path) -> None:
    """Those outside the contrast too, and one person under another name; scans that were dropped are nobody's."""
    theirs = [
        Scan("sub-1", None, "I1", "a.nii", label="AD"),
        Scan("sub-2", None, "I2", "b.nii", diagnosis="MCI"),
        Scan("sub-ADNI131S0295", None, "I3", "c.nii", label="CN"),
        Scan("sub-4", None, "I4", "d.nii", kept=False, reason="broken"),
    ]
    ScanTable(theirs).write(RunLayout(tmp_path).root / "scans.tsv")
    names = ("sub-1", "sub-2", "sub-4", "sub-5", "sub-ADNI002S0295")
    scans = [Scan(person, None, person, "x.nii") for person in names]
    assert [scan.participant_id for scan in _without(str(tmp_path), scans)] == ["sub-4", "sub-5"]
