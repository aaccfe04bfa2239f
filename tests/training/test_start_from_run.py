"""Networks that start from those of another run: of the same family, or B-cos networks from conventional ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.evaluation.nulls import shuffled_config
from heatlas.pipeline.models.contract import ensemble_of
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.given import networks_of_run
from heatlas.pipeline.training.objectives.known_networks import (
    people_before,
    require_start,
    start_of,
    weights_to_start_from,
)
from heatlas.pipeline.training.stage import facts_of
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.workflows.preflight import with_backbone
from tests.training.run_of_folds import save_untrained

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
