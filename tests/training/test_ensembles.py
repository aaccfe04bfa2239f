"""Networks of several seeds, and networks that start from those of another run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from heatlas.atlases.regions import Region, RegionTable
from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.evaluation.nulls import layers_with_parameters, randomised, shuffled_config
from heatlas.pipeline.models.contract import Ensemble, ensemble_of, members_of
from heatlas.pipeline.models.families.plain import SFCNConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.regions.tables import SPREADS, bilateral_sums, scan_rows
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training import trainer
from heatlas.pipeline.training.given import networks_of_run
from heatlas.pipeline.training.objectives.known_networks import (
    people_before,
    require_start,
    start_of,
    weights_to_start_from,
)
from heatlas.pipeline.training.prediction import prediction_columns
from heatlas.pipeline.training.stage import facts_of
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.grids.stage import require_single
from heatlas.workflows.preflight import with_backbone
from tests.training.run_of_folds import CONFIG, SPLIT, save_untrained, train_all, write_registered

# Networks of several seeds within a fold that answer as one: trained, stored, asked and explained.

THREE = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, ensemble=3))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run with one network per fold, and with three."""
    layouts = []
    for config in (CONFIG, THREE):
        layout = RunLayout(tmp_path_factory.mktemp("run"))
        write_registered(layout)
        assert all(outcome.ok for outcome in train_all(layout, config=config))
        layouts.append(layout)
    return layouts


@pytest.mark.ci
def test_the_first_member_is_the_network_of_a_run_without_ensemble(runs):
    alone, ensemble = (load_model(layout.fold(0)).model for layout in runs)
    first, second, third = members_of(ensemble)
    assert all(torch.equal(value, first.state_dict()[name]) for name, value in alone.state_dict().items())
    assert not torch.equal(first.stages[0][0].weight, second.stages[0][0].weight)
    assert not torch.equal(second.stages[0][0].weight, third.stages[0][0].weight)
    assert members_of(alone) == (alone,)


def test_a_run_without_ensemble_has_no_further_columns(runs):
    one, three = (list(pd.read_csv(layout.group / "predictions.tsv", sep="\t")) for layout in runs)
    assert set(three) - set(one) == {"spread"}
    assert one == [name for name in prediction_columns(task_of(CONFIG.cohort)) if name != "spread"]
    assert "networks" not in json.loads(runs[0].fold(0).description.read_text())


def test_predictions_are_those_of_mean_logits_with_their_spread(runs):
    layout = runs[1]
    rows = pd.read_csv(layout.group / "predictions.tsv", sep="\t")
    loaded = load_model(layout.fold(0))
    files = layout.scan("sub-2", "ses-M00", 4.0)
    volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
    with torch.no_grad():
        logits = torch.stack([member(volume)[0] for member in members_of(loaded.model)]).double()
    row = rows[(rows["participant_id"] == "sub-2") & (rows["session_id"] == "ses-M00")].iloc[0]
    assert row["logit_positive"] == pytest.approx(logits[:, 1].mean().item(), rel=1e-6)
    assert row["probability"] == pytest.approx(torch.softmax(logits.mean(0), 0)[1].item(), rel=1e-6)
    margins = (logits[:, 1] - logits[:, 0]).numpy()
    assert row["spread"] == pytest.approx(margins.std(ddof=1), rel=1e-5)
    assert row["spread"] > 0


def test_the_description_says_how_each_member_ended(runs):
    description = json.loads(runs[1].fold(1).description.read_text())
    assert description["networks"] == len(description["members"]) == 3
    seed = description["fold_seed"]
    assert [one["seed"] for one in description["members"]] == [
        seed, derived_seed(seed, "member", 2), derived_seed(seed, "member", 3),
    ]  # fmt: skip
    assert description["epochs"] == description["members"][0]["epochs"]
    for count in (0, 101, True, 2):
        broken = {**description, "networks": count}
        runs[1].fold(1).description.write_text(json.dumps(broken))
        with pytest.raises(BadInputError):
            load_model(runs[1].fold(1))
    runs[1].fold(1).description.write_text(json.dumps(description))
    load_model(runs[1].fold(1))


def test_members_that_were_finished_are_not_trained_again(tmp_path, runs, monkeypatch):
    layout = RunLayout(tmp_path)
    write_registered(layout)
    split = dataclasses.replace(SPLIT, folds=SPLIT.folds[:1])
    done = []
    usual = trainer._epoch

    def dies_in_the_third_member(*arguments):
        done.append(arguments[-1])
        if len(done) == 8:
            raise KeyboardInterrupt
        return usual(*arguments)

    monkeypatch.setattr(trainer, "_epoch", dies_in_the_third_member)
    with pytest.raises(KeyboardInterrupt):
        train_all(layout, split=split, config=THREE)
    epochs = []
    monkeypatch.setattr(trainer, "_epoch", lambda *a: (epochs.append(a[-1]), usual(*a))[1])
    assert all(outcome.ok for outcome in train_all(layout, split=split, config=THREE))
    assert len(done) - 1 + len(epochs) == sum(
        one["epochs"] for one in json.loads(layout.fold(0).description.read_text())["members"]
    )
    assert layout.fold(0).weights.read_bytes() == runs[1].fold(0).weights.read_bytes()
    assert not list(layout.fold(0).folder.glob("checkpoint*"))


def networks(count: int = 3) -> Ensemble:
    members = []
    for seed in range(count):
        torch.manual_seed(seed)
        member = build_network(SFCNConfig(channels=(3, 4, 5)), (9, 11, 10), 2).double()
        for norm in (one for one in member.modules() if isinstance(one, torch.nn.BatchNorm3d)):
            norm.running_mean.normal_(std=0.2)
        members.append(member)
    return ensemble_of(members).eval()


@pytest.fixture
def volumes():
    return torch.rand(5, 1, 9, 11, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("method", ["lrp", "deeplift", "expected-gradients", "guided-backpropagation", "grad-cam"])
def test_maps_are_means_of_those_of_members(method, volumes):
    model, x, entry = networks(), volumes[:2], METHODS[method]
    start = "evidence" if entry.needs_reference else "logit"
    built, own = entry.record(), [entry.record()] * 3
    if entry.needs_reference:
        logits = [member(volumes[2:]).detach() for member in members_of(model)]
        references = [Reference(volumes[2:], ("a", "b", "c"), one) for one in logits]
        whole = Reference(volumes[2:], ("a", "b", "c"), torch.stack(logits).mean(0), members=tuple(references))
        built, own = entry.record(reference=whole), [entry.record(reference=one) for one in references]
    stage = entry.stage_of(model)
    answer = attribute(model, x, 1, built, stage, start)
    each = [attribute(one, x, 1, had, stage, start) for one, had in zip(members_of(model), own, strict=True)]
    expected = torch.stack([one.values for one in each]).mean(0)
    torch.testing.assert_close(answer.values, expected, rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(answer.start_value, start_values(model(x), 1, start), rtol=1e-12, atol=0)
    if answer.ledger is not None:
        assert float(answer.ledger.residual.abs().max()) < 1e-12


@pytest.mark.parametrize(
    "method", [DeepLift(compare="each"), ExpectedGradients(alphas=3)], ids=["deeplift", "expected"]
)
def test_evidence_of_an_ensemble_adds_up(method, volumes):
    model = networks()
    reference = Reference(volumes[2:], ("a", "b", "c"))
    answer = attribute(model, volumes[:2], 1, dataclasses.replace(method, reference=reference), start="evidence")
    with torch.no_grad():
        evidence, others = (start_values(model(x), 1, "evidence") for x in (volumes[:2], volumes[2:]))
    torch.testing.assert_close(answer.values.flatten(1).sum(1), evidence - others.mean(), rtol=1e-9, atol=1e-12)


def test_a_stage_of_an_ensemble_is_that_of_its_members(volumes):
    model = networks()
    answer = attribute(model, volumes[:1], 0, METHODS["lrp"].record(), stage="stages.1")
    each = [
        attribute(one, volumes[:1], 0, METHODS["lrp"].record(), stage="stages.1").values for one in members_of(model)
    ]
    torch.testing.assert_close(answer.values, torch.stack(each).mean(0), rtol=1e-12, atol=1e-15)


def test_layers_of_all_members_are_randomised_together(runs):
    loaded = load_model(runs[1].fold(0))
    names = layers_with_parameters(loaded.model)
    assert names == layers_with_parameters(load_model(runs[0].fold(0)).model)
    changed = randomised(loaded, 1, 3)
    heads = []
    for before, after in zip(members_of(loaded.model), members_of(changed.model), strict=True):
        same = {name for name, value in before.state_dict().items() if torch.equal(value, after.state_dict()[name])}
        assert {name for name in before.state_dict() if name.rpartition(".")[0] != names[-1]} == same
        heads.append(after.state_dict()[f"{names[-1]}.weight"])
    assert not torch.equal(heads[0], heads[1])


def test_settings_are_checked():
    with pytest.raises(UsageError, match="ensemble must lie between 1 and 100"):
        dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, ensemble=0))


def test_spreads_of_regions_and_of_their_groups():
    """Two sides that vary against each other: each has a spread, their group has none."""
    regions = RegionTable(
        (Region(3, "left a", "left", "n/a", "GM", "a"), Region(4, "right a", "right", "n/a", "GM", "a"))
    )
    members = np.array([[0.5, 1.0, 4.0], [0.5, 2.0, 3.0], [3.5, 6.0, -1.0]])
    index = SimpleNamespace(numbers=(0, 3, 4), n_voxels=np.array([9, 2, 2]))
    identity = {"participant_id": "sub-1", "session_id": None, "scan_id": "I1"}
    sums = {"evidence": members.mean(0), "lrp": np.ones(3)}
    rows = scan_rows(identity, sums, index, regions, ["evidence"], members={"evidence": members})
    own = rows[rows["map"] == "evidence"].set_index("region")
    assert own["evidence_sd"].tolist() == pytest.approx([3**0.5, 7**0.5, 7**0.5])
    assert own["group_evidence_sd"].tolist()[1:] == pytest.approx([0, 0])
    assert rows[rows["map"] == "lrp"][["evidence_sd", "group_evidence_sd"]].isna().all(axis=None)
    pooled = bilateral_sums(rows, ["participant_id", "session_id", "scan_id", "map"]).set_index("map")
    assert pooled.loc["evidence", ["evidence", "evidence_sd"]].tolist() == pytest.approx([5, 0])
    assert not set(SPREADS) & set(scan_rows(identity, sums, index, regions, ["evidence"]))


def test_evidence_of_members_stands_beside_the_mean(volumes):
    model, reference = networks(), Reference(volumes[2:], ("a", "b", "c"))
    answer = attribute(model, volumes[:1], 1, DeepLift(reference=reference), start="evidence")
    assert answer.members.shape == (3, *answer.values.shape)
    torch.testing.assert_close(answer.members.mean(0), answer.values, rtol=1e-12, atol=1e-15)
    assert attribute(model, volumes[:1], 1, METHODS["lrp"].record()).members is None


def test_grids_refuse_an_ensemble_before_anything_is_trained():
    require_single(CONFIG)
    many = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, ensemble=3))
    with pytest.raises(UsageError, match="each fold of this run has 3 networks"):
        require_single(many)


# Networks that start from those of another run: of the same family, or B-cos networks from conventional ones.

FOLD = Fold(0, ("sub-1", "sub-2"), ("sub-3",), ("sub-4",))
WIDTH = 1 / 64


def config(architecture="bcos-resnet18", folder="", width=WIDTH, **sections):
    model = {"architecture": architecture} | ({"width": width} if "resnet" in architecture else {})
    training = {"from_run": str(folder)} if folder else {}
    return load_config(
        overrides={"registration": {"resolution_mm": 4.0}, "model": model, "training": training, **sections}
    )


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(4)
    return save_untrained(tmp_path, config("resnet18"), FOLD)


def start(own, fold=FOLD):
    return weights_to_start_from(own, task_of(own.cohort), configured_input(own), fold)


def test_a_fold_whose_network_is_missing_is_named(folder, caplog) -> None:
    Split((FOLD, replace(FOLD, index=1, test=("sub-5",)))).write(folder / "splits.tsv")
    assert len(networks_of_run(str(folder))) == len(networks_of_run(str(folder))) == 1
    (line,) = caplog.messages
    assert line.startswith(f"{folder}: fold-1 has no network, so only those of the other folds are used. Repeat the")


def test_filters_are_those_of_the_same_fold(folder) -> None:
    own = config(folder=folder)
    require_start(own, Split((FOLD,)))
    spec = configured_input(own)
    made = build_network(own.model, spec.shape, 2)
    made.load_state_dict(start(own))
    plain = build_network(config("resnet18").model, spec.shape, 2)
    before = [module.weight for module in _stored(folder, plain).modules() if isinstance(module, torch.nn.Conv3d)]
    after = [module.weight for module in made.modules() if isinstance(module, BcosConv3d)]
    assert torch.equal(after[0], torch.cat([before[0], -before[0]], 1) / 2)
    assert len(after) == len(before) + 1  # and the classifier
    assert all(torch.equal(one, other) for one, other in zip(after[1:-1], before[1:], strict=True))
    assert start(config()) is None


def test_offsets_of_classes_are_left_behind(tmp_path) -> None:
    own = load_config(
        overrides={
            "registration": {"resolution_mm": 4.0},
            "model": {"architecture": "bcos-simple", "channels": [2], "strides": [3]},
            "training": {"from_run": str(tmp_path)},
        }
    )
    network, spec = build_network(own.model, configured_input(own).shape, 2), configured_input(own)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.stages[-1][-1].bias = torch.tensor([1.5, -1.5])
    parts = {"train": list(FOLD.train), "validation": list(FOLD.validation), "test": list(FOLD.test)}
    save_model(RunLayout(tmp_path).fold(0), network, spec, ("CN", "AD"), {"participants": parts})
    found = start(own)
    assert set(found) == set(before)
    assert all(torch.equal(found[name], value) for name, value in before.items())


def _stored(folder, network):
    import safetensors.torch

    network.load_state_dict(safetensors.torch.load_file(RunLayout(folder).fold(0).weights))
    return network


def test_people_whom_the_fold_tests_would_leak(folder) -> None:
    with pytest.raises(
        UsageError, match=r"training.from_run: .* trained with 1 test participant of this fold \(sub-2\)"
    ):
        start(config(folder=folder), Fold(0, ("sub-1",), ("sub-3",), ("sub-2",)))


def test_what_cannot_be_started_is_named(folder, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"does not become a resnet10 with .* settings under \[model\]"):
        start(config("resnet10", folder))
    with pytest.raises(UsageError, match="a linear is not trained step by step"):
        require_start(config("linear", folder), Split((FOLD,)))
    with pytest.raises(UsageError, match=r"does not become a bcos-resnet18 with these settings: _stages"):
        start(config(folder=folder, width=1 / 32))
    with pytest.raises(UsageError, match="does not become a bcos-simple"):
        start(config("bcos-simple", folder))
    with pytest.raises(BadInputError, match=r"model\.json: cannot be read"):
        start(config(folder=tmp_path / "nothing"))
    with pytest.raises(UsageError, match="must not start from networks that know the true"):
        require_start(config(folder=folder, cohort={"shuffle_labels": True}), Split((FOLD,)))
    assert shuffled_config(config(folder=folder), 1).training.from_run == ""


def test_shuffled_labels_are_not_learned_on_a_backbone_that_knows_the_true_ones(folder) -> None:
    def probe(**sections):
        overrides = {
            "registration": {"resolution_mm": 4.0},
            "model": {"architecture": "probe", "backbone": str(folder)},
        }
        return with_backbone(load_config(overrides=overrides | sections))

    assert start(probe())
    assert not probe().model.train_backbone
    with pytest.raises(UsageError, match=r"model.backbone: .* must not stand on networks that know the true ones"):
        require_start(probe(cohort={"shuffle_labels": True}), Split((FOLD,)))
    null = shuffled_config(probe(), 1)
    assert start(null) is None
    assert null.model.train_backbone
    files = RunLayout(folder).fold(0)
    files.folder.rename(RunLayout(folder).backbone.folder)  # as of heatlas pretrain, without labels
    null = shuffled_config(probe(), 1)
    assert start(null)
    assert not null.model.train_backbone


def test_a_training_depends_on_the_weights_and_not_on_their_place(folder) -> None:
    first = facts_of(config(folder=folder), FOLD)
    assert facts_of(config(), FOLD) == (None, {})
    moved = folder.parent / f"{folder.name}_moved"
    folder.rename(moved)
    assert facts_of(config(folder=moved), FOLD) == first
    weights = RunLayout(moved).fold(0).weights
    weights.write_bytes(weights.read_bytes() + b" ")
    assert facts_of(config(folder=moved), FOLD) != first


def test_one_person_under_two_names_would_leak(folder) -> None:
    files = RunLayout(folder).fold(0)
    files.description.write_text(files.description.read_text().replace("sub-1", "sub-ADNI131S0295"))
    with pytest.raises(UsageError, match=r"1 test participant of this fold \(sub-ADNI002S0295\)"):
        start(config(folder=folder), Fold(0, ("sub-2",), ("sub-3",), ("sub-ADNI002S0295",)))


def test_a_probe_says_whom_its_backbone_knows(folder) -> None:
    model = {"architecture": "probe", "backbone": str(folder)}
    probe = load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": model})
    assert people_before(probe, FOLD) == ["sub-1", "sub-2", "sub-3"]
    assert people_before(config(), FOLD) == []


def test_a_network_goes_on_from_one_of_the_same_family_and_says_with_whom_that_one_was_trained(folder) -> None:
    own = config("resnet18", folder)
    require_start(own, Split((FOLD,)))
    stored = _stored(folder, build_network(own.model, configured_input(own).shape, 2)).state_dict()
    assert set(start(own)) == set(stored)
    assert all(torch.equal(value, stored[name]) for name, value in start(own).items())
    assert people_before(own, FOLD) == ["sub-1", "sub-2", "sub-3"]


@pytest.mark.parametrize("task", [{"target": "age"}, {"negative": "MCI"}])
def test_of_another_task_all_but_the_last_stage_is_taken(folder, task) -> None:
    own = config("resnet18", folder, cohort=task)
    found, last = start(own), f"_stages.{len(build_network(own.model, configured_input(own).shape, 1).stages) - 1}."
    stored = _stored(folder, build_network(own.model, configured_input(own).shape, 2)).state_dict()
    assert set(found) == {name for name in stored if not name.startswith(last)} != set(stored)
    assert all(torch.equal(value, stored[name]) for name, value in found.items())


def test_a_fold_starts_from_a_network_that_knows_none_of_the_people_it_tests(folder) -> None:
    elsewhere = Fold(7, ("sub-a",), ("sub-b",), ("sub-c",))  # of another cohort, with more folds
    assert start_of(str(folder), elsewhere).folder == RunLayout(folder).fold(0).folder
    second = RunLayout(folder).fold(1)
    second.folder.mkdir()
    text = RunLayout(folder).fold(0).description.read_text()
    second.description.write_text(text.replace("sub-1", "sub-4").replace("sub-2", "sub-5"))
    assert start_of(str(folder), Fold(0, (), (), ("sub-2",))).folder == second.folder
    assert start_of(str(folder), Fold(1, (), (), ("sub-4",))).folder == RunLayout(folder).fold(0).folder
    assert start_of(str(folder), Fold(0, (), (), ("sub-3",))).folder == RunLayout(folder).fold(0).folder


def test_of_an_ensemble_the_first_member_is_gone_on_from(folder) -> None:
    own = config("resnet18", folder)
    spec = configured_input(own)
    members = [build_network(own.model, spec.shape, 2) for _ in range(2)]
    parts = {"train": list(FOLD.train), "validation": [], "test": []}
    save_model(RunLayout(folder).fold(0), ensemble_of(members), spec, ("CN", "AD"), {"participants": parts})
    assert all(torch.equal(value, members[0].state_dict()[name]) for name, value in start(own).items())
