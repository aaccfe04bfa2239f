"""``heatlas pretrain`` on scans without labels, and a probe on what it made."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, ExplanationLayout, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.objectives.known_networks import weights_to_start_from
from heatlas.pipeline.training.stage import facts_of
from heatlas.studies.pretraining.stage import PRETRAINING_TABLE
from heatlas.studies.probes.records import knows_labels, on_kept_backbone
from heatlas.studies.representations.stage import diagnosed, require_frozen
from heatlas.studies.representations.table import REPRESENTATIONS_TABLE, SITE, features
from heatlas.workflows.command_line import main
from tests.declared_tables import require_as_declared
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci

PEOPLE = [f"{number:02d}" for number in range(27)]
LEARNT, LABELLED = PEOPLE[:9], PEOPLE[9:]
FEW = "\n[training.augmentation]\naffine_probability = 0.0\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    write_template_cohort(folder / "input", participants=len(PEOPLE))
    write_config(folder / "run.toml")
    (folder / "pretrain.toml").write_text(
        (folder / "run.toml").read_text().replace("repeats = 1\n", "repeats = 1\nwarmup_epochs = 0\n") + FEW
    )
    assert main(["pretrain", *asked(folder, "backbone", LEARNT, "pretrain.toml")]) == 0
    return folder


def asked(folder, out: str, people: list[str], config: str = "run.toml") -> list[str]:
    return [
        str(folder / "input"), str(folder / out), "--config", str(folder / config), "--n-procs", "1",
        "--participant-label", *people,
    ]  # fmt: skip


def test_the_backbone_says_whom_it_knows(folder, capsys):
    layout = RunLayout(folder / "backbone")
    loaded = load_model(layout.backbone)
    known = loaded.description["participants"]
    assert sorted(known["train"] + known["validation"]) == [f"sub-{one}" for one in LEARNT]
    assert (len(known["validation"]), loaded.settings.architecture) == (4, "founding")
    assert list(read_table(layout.backbone.history)) == list(PRETRAINING_TABLE.meanings)
    require_as_declared(layout, PRETRAINING_TABLE)
    assert not (layout.root / "splits.tsv").exists()
    weights = layout.backbone.weights.read_bytes()
    assert main(["pretrain", *asked(folder, "backbone", LEARNT, "pretrain.toml")]) == 0
    assert "pretraining   1 unchanged" in capsys.readouterr().out
    assert layout.backbone.weights.read_bytes() == weights


@pytest.fixture(scope="module")
def probed(folder) -> RunLayout:
    """A run of probes on the backbone."""
    more = ["--backbone", str(folder / "backbone"), "--stop-after", "attribution"]
    assert main(["run", *asked(folder, "run", LABELLED), *more]) == 0
    return RunLayout(folder / "run")


def test_a_probe_stands_on_it_and_is_explained(folder, probed):
    backbone = load_model(RunLayout(folder / "backbone").backbone).model
    for fold in (0, 1):
        probe = load_model(probed.fold(fold))
        assert probe.settings.architecture == "probe"
        assert json.loads(probe.settings.body)["architecture"] == "founding"
        theirs = torch.nn.Sequential(*backbone.stages[: len(probe.model.stages[0])]).state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in probe.model.stages[0].state_dict().items())
    assert len(read_table(probed.group / "evidence.tsv")) > 0


@pytest.mark.slow
def test_an_export_of_probes_stands_alone_and_knows_the_people_of_the_backbone(folder, probed, capsys, monkeypatch):
    monkeypatch.setattr("heatlas.workflows.export.FEWEST_CONTROLS", 3)
    assert main(["export", str(probed.root), str(folder / "given")]) == 0
    digests = json.loads(BundleLayout(folder / "given").fold(0).description.read_text())["backbone_participants"]
    assert len(digests) == len(LEARNT)
    assert not set(digests) & {f"sub-{one}" for one in LEARNT}
    scan = folder / "sub-new_T1w.nii.gz"
    shutil.copyfile(folder / "input" / "sub-03" / "anat" / "sub-03_T1w.nii.gz", scan)
    asked_for = ["--start-at", "template", "--stop-after", "training", "--n-procs", "1"]
    hidden = [folder / name for name in ("run", "backbone")]
    assert main(["apply", str(hidden[0]), str(scan), str(folder / "by_run"), *asked_for]) == 0
    for path in hidden:
        path.rename(path.with_name(f"{path.name}-away"))
    try:
        assert main(["apply", str(folder / "given"), str(scan), str(folder / "by_export"), *asked_for]) == 0
        known = scan.rename(folder / "sub-03_T1w.nii.gz")
        assert main(["apply", str(folder / "given"), str(known), str(folder / "known"), *asked_for]) == 65
    finally:
        for path in hidden:
            path.with_name(f"{path.name}-away").rename(path)
    by_run, by_export = (RunLayout(folder / name).group / "predictions_applied.tsv" for name in ("by_run", "by_export"))
    assert by_run.read_bytes() == by_export.read_bytes()
    assert "sub-03" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_finished_run_needs_its_backbone_no_longer(folder, probed, tmp_path):
    """A copy of the run, without the backbone's folder, is reported and explained alike."""

    def made(run: Path) -> dict[str, bytes]:
        assert main(["explain", str(run), "--method", "grad-cam", "--n-procs", "1"]) == 0
        assert main(["report", str(run), "--n-procs", "1"]) == 0
        tables = (run / "explanations").glob("*.tsv")
        return {path.name: path.read_bytes() for path in [*run.glob("*.html"), *tables]}

    for name in ("here", "away"):
        shutil.copytree(probed.root, tmp_path / name / "run")
        (tmp_path / name / "input").symlink_to(folder / "input")
    there = made(tmp_path / "here" / "run")
    (folder / "backbone").rename(folder / "elsewhere")
    try:
        assert made(tmp_path / "away" / "run") == there
        regions = ExplanationLayout(probed.root).regions("gradCam").name
        assert {"report.html", "report-methods.html", regions} <= there.keys()
        layout = RunLayout(tmp_path / "away" / "run")
        config = read_run_config(layout)
        assert not Path(config.model.backbone).exists()
        spec, task, fold = (
            configured_input(config),
            task_of(config.cohort),
            Split.read(layout.root / "splits.tsv").folds[0],
        )
        own = dataclasses.replace(config, model=on_kept_backbone(config.model, layout))
        kept = weights_to_start_from(own, task, spec, fold)  # as evaluate starts networks on other labels
        trained = load_model(layout.fold(0)).model.state_dict()
        assert kept
        assert all(torch.equal(value, trained[name]) for name, value in kept.items())  # the backbone was frozen
        assert not knows_labels(own.model)
        digests = [facts_of(one, fold)[1]["backbone"] for one in (own, replace_backbone(own, folder / "elsewhere"))]
        assert digests[0] == digests[1]
        shutil.rmtree(layout.kept_backbone)  # a run of an earlier version
        without_copy = dataclasses.replace(config, model=on_kept_backbone(config.model, layout))
        with pytest.raises(UsageError, match=r"backbone: no such folder\. .*earlier versions hold no copy"):
            weights_to_start_from(without_copy, task, spec, fold)
        without = "\n".join(line for line in layout.config.read_text().split("\n") if not line.startswith("body"))
        layout.config.write_text(without)
        layout.settings.write_text(without)
        assert read_run_config(layout).model == config.model  # read from the description of a network
    finally:
        (folder / "elsewhere").rename(folder / "backbone")


def replace_backbone(config: Config, path: Path) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, backbone=str(path)))


def test_what_the_backbone_knows_is_measured_on_people_it_has_not_seen(folder, probed):
    """The backbone itself is not needed."""
    (folder / "backbone").rename(folder / "elsewhere")
    try:
        _measured(folder, EvaluationLayout(probed.root))
    finally:
        (folder / "elsewhere").rename(folder / "backbone")


def _measured(folder, layout):
    assert main(["evaluate", str(layout.root), "--parts", "representations", "--n-procs", "1"]) == 0
    require_as_declared(layout, REPRESENTATIONS_TABLE)
    table = REPRESENTATIONS_TABLE.read(layout)
    assert sorted(table["features"].unique()) == ["backbone", "untrained"]
    keys = ["features", "measure"]
    whole = table[table["classes"] == "all"].drop_duplicates(keys).set_index(keys)
    assert "site" in whole.loc[("backbone", SITE), "note"]  # there are none in this dataset
    own = whole.drop(SITE, level="measure")
    assert set(own["n_participants"].dropna()) <= {6, 0}  # two of six of each of three classes
    change = whole.loc[("backbone", "knn_1"), "estimate"] - whole.loc[("untrained", "knn_1"), "estimate"]
    assert whole.loc[("backbone", "knn_1"), "difference"] == pytest.approx(change)
    own = load_model(RunLayout(folder / "elsewhere").backbone)
    scans = diagnosed(ScanTable.read(layout.root / "scans.tsv").kept, frozenset({"sub-09"}))
    assert {scan.participant_id for scan in scans} == {f"sub-{one}" for one in LABELLED[1:]}
    files = [layout.scan(scan.participant_id, scan.session_id, own.input.resolution_mm) for scan in scans[:2]]
    body = torch.nn.Sequential(*own.model.stages[: len(load_model(layout.fold(0)).model.stages[0])])
    volumes = torch.stack([torch.from_numpy(read_network_volume(one, own.input))[None] for one in files])
    with torch.no_grad():
        expected = body.eval()(volumes).mean((2, 3, 4)).numpy()
    np.testing.assert_allclose(features(body, files, own.input), expected, rtol=1e-4, atol=1e-6)
    written = REPRESENTATIONS_TABLE.path(layout).stat().st_mtime_ns
    assert main(["evaluate", str(layout.root), "--parts", "representations", "--n-procs", "1"]) == 0
    assert REPRESENTATIONS_TABLE.path(layout).stat().st_mtime_ns == written


def test_networks_that_learned_from_labels_have_no_backbone_to_judge():
    with pytest.raises(UsageError, match=r"learned from labels.*--backbone"):
        require_frozen(load_config("demo"))
    tuned = {"model": {"architecture": "probe", "body": '{"architecture": "founding"}', "train_backbone": True}}
    with pytest.raises(UsageError, match="learned from labels"):
        require_frozen(load_config("demo", overrides=tuned))


def test_people_whom_a_fold_tests_are_refused(folder, capsys):
    more = ["--backbone", str(folder / "backbone")]
    assert main(["run", *asked(folder, "leaking", [*LEARNT, *LABELLED]), *more]) == 2
    said = capsys.readouterr().err
    assert "of this fold" in said
    assert "--without" in said
    assert not RunLayout(folder / "leaking").config.exists()


@pytest.mark.slow
def test_people_of_a_run_can_be_left_out(folder, probed, capsys):
    more = ["--without", str(probed.root)]
    assert main(["pretrain", *asked(folder, "others", PEOPLE, "pretrain.toml"), *more]) == 0
    known = load_model(RunLayout(folder / "others").backbone).description["participants"]
    tested = set(read_table(probed.root / "splits.tsv")["participant_id"])
    assert not tested & {*known["train"], *known["validation"]}
    assert {f"sub-{one}" for one in LEARNT} <= {*known["train"], *known["validation"]}
    assert main(["pretrain", *asked(folder, "none", LABELLED[:3], "pretrain.toml")]) == 65
    assert "3 participants" in capsys.readouterr().err
    assert main(["pretrain", *asked(folder, "none", LEARNT, "pretrain.toml"), "--without", str(folder / "input")]) == 65
    assert "no run there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[pretraining]\nmethod = "moco"\nqueue = 9\n', "pretraining.queue = 9"),
        ("[pretraining]\ntemperature = 0.0\n", "pretraining.temperature must lie above 0"),
        ("[pretraining]\ntemperature = 2.0\n", "pretraining.highest_temperature"),
        ('[pretraining]\nmethod = "clip"\n', "clip"),
        ('[pretraining]\nmethod = "masked"\n', 'Set it to "vit"'),
        ("[pretraining]\nmasking_ratio = 1.0\n", "pretraining.masking_ratio"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(folder, capsys, section, message):
    path = folder / "wrong.toml"
    path.write_text((folder / "pretrain.toml").read_text() + section)
    assert main(["pretrain", *asked(folder, "wrong", LEARNT, "wrong.toml")]) == 2
    assert message in capsys.readouterr().err
    assert not RunLayout(folder / "wrong").config.exists()


def test_a_probe_without_a_backbone_is_refused(folder, capsys):
    path = folder / "bare.toml"
    path.write_text((folder / "run.toml").read_text().split("[model]")[0] + '[model]\narchitecture = "probe"\n')
    assert main(["run", *asked(folder, "bare", LABELLED, "bare.toml")]) == 2
    assert "model.backbone" in capsys.readouterr().err
    more = ["--backbone", str(folder / "input")]
    assert main(["run", *asked(folder, "bare", LABELLED), *more]) == 2
    assert "no backbone there" in capsys.readouterr().err
