"""Whom a student learns from: fewer people of each class, or scans of another cohort without their labels."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil

import pytest
import torch
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold, Split, few_people
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.objectives import ObjectiveConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.objectives.explanations import answered_by, require_explanations, unlabelled_scans
from heatlas.pipeline.training.volumes import LabelledVolumes
from tests.training.run_of_folds import CONFIG, SPLIT, labelled_scans, train_all, write_registered


def test_a_share_of_each_class_is_drawn_and_fewer_are_among_more() -> None:
    labels = {f"sub-{number}": "AD" if number < 20 else "CN" for number in range(60)}
    fold = Fold(0, tuple(labels), ("a",), ("b",))
    parts = [set(few_people(fold, labels, share, seed=3).train) for share in (0.1, 0.25, 0.5, 1.0)]
    for smaller, larger in itertools.pairwise(parts):
        assert smaller < larger
    assert [sum(labels[name] == "AD" for name in part) for part in parts] == [2, 5, 10, 20]
    assert [len(part) for part in parts] == [6, 15, 30, 60]
    assert set(few_people(fold, labels, 0.1, seed=4).train) != parts[0]
    assert len(few_people(fold, labels, 0.001, seed=3).train) == 2
    assert len(few_people(fold, {}, 0.5, seed=3).train) == 30  # a number: nobody has a class


def test_a_teacher_gives_scans_their_classes() -> None:
    class Bright(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.least = nn.Parameter(torch.tensor(0.5))

        def forward(self, volumes: torch.Tensor) -> torch.Tensor:
            found = volumes.mean((1, 2, 3, 4)) - self.least
            return torch.stack([-found, found], 1)

    volumes = torch.tensor([0.1, 0.9, 0.7, 0.2, 0.6]).half()[:, None, None, None, None].expand(-1, 1, 2, 3, 2)
    found = answered_by(Bright(), LabelledVolumes(volumes, torch.zeros(5, dtype=torch.int64)), 2)
    assert found.targets.tolist() == [0, 1, 1, 0, 1]
    assert found.volumes is volumes


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunLayout:
    layout = RunLayout(tmp_path_factory.mktemp("teacher"))
    write_registered(layout)
    ScanTable(tuple(labelled_scans())).write(layout.root / "scans.tsv")
    train_all(layout, split=Split(SPLIT.folds[:1]))
    return layout


@pytest.mark.slow
class TestRun:
    @pytest.fixture
    def others(self, finished, tmp_path) -> RunLayout:
        """Three other people, one of whom has a name that the run knows."""
        layout = RunLayout(tmp_path / "others")
        scans = [Scan(f"sub-{name}", "ses-M00", f"O{name}", None) for name in ("x", "y", "3")]
        for scan, taken in zip(scans, labelled_scans()[2:], strict=False):
            for name in ("t1w", "brain_mask"):
                own, other = (
                    getattr(where.scan(one.participant_id, one.session_id, 4.0), name)
                    for where, one in ((layout, scan), (finished, taken))
                )
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(other, own)
        ScanTable(tuple(scans)).write(layout.root / "scans.tsv")
        return layout

    def trained(self, finished, tmp_path, config):
        layout = RunLayout(tmp_path / "student")
        shutil.copytree(finished.root, layout.root, ignore=shutil.ignore_patterns("models", "predictions*", "logs"))
        outcomes = train_all(layout, split=Split(SPLIT.folds[:1]), config=config)
        return layout, outcomes

    def test_few_people_are_those_who_train_and_the_others_are_in_no_part(self, finished, tmp_path) -> None:
        few = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, participants=0.5))
        layout, (outcome,) = self.trained(finished, tmp_path, few)
        assert outcome.ok
        text = json.loads(layout.fold(0).description.read_text())
        train = text["participants"]["train"]
        assert len(train) == 2
        assert {int(name[-1]) % 2 for name in train} == {0, 1}
        assert text["participants"]["test"] == ["sub-1", "sub-2"]
        assert len(read_table(layout.group / "predictions.tsv")) == 3

    def test_a_student_learns_from_scans_without_labels(self, finished, others, tmp_path) -> None:
        wanted = ObjectiveConfig(
            kind="distilled", teacher=str(finished.root), scans=str(others.root), map="grad-cam", stage=-1
        )
        config = dataclasses.replace(CONFIG, objective=wanted)
        require_explanations(config, Split(SPLIT.folds[:1]))
        layout, (outcome,) = self.trained(finished, tmp_path, config)
        assert outcome.ok, outcome.message
        text = json.loads(layout.fold(0).description.read_text())
        assert text["participants"]["train"] == ["sub-x", "sub-y"]  # sub-3 may be someone of the run
        student, teacher = (load_model(one.fold(0)).model.state_dict() for one in (layout, finished))
        assert any(not torch.equal(student[name], teacher[name]) for name in teacher)

    def test_a_folder_without_other_people_is_refused(self, finished, others) -> None:
        spec = load_model(finished.fold(0)).input
        wanted = ObjectiveConfig(kind="distilled", teacher="x", scans=str(finished.root))
        with pytest.raises(UsageError, match=r"objective.scans: .*no scan of another person is registered .* 4 mm"):
            unlabelled_scans(wanted, spec, SPLIT.folds[0])
        with pytest.raises(UsageError, match=r"no scans.tsv there; name the folder of a run"):
            unlabelled_scans(dataclasses.replace(wanted, scans=str(others.root / "sub-x")), spec, SPLIT.folds[0])
