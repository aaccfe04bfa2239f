"""What check says and leaves alone, and estimates before a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import safetensors.torch
from torch import nn

import heatlas.workflows.adni
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from heatlas.workflows.commands import STAGES
from heatlas.workflows.estimates import (
    N4_SECONDS,
    TrainingStep,
    advice,
    bytes_kept,
    made_of,
    measured_step,
    not_estimated,
    registration_seconds,
    steps_of_maps,
)
from heatlas.workflows.preflight import stages_until

# What check says, writes and leaves alone; manifests and privacy from the command line.


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Twelve people of each class, each with a second run; one image is broken, one age is above 89."""
    root = tmp_path / "my data ö"
    rows = ["participant_id\tage\tsex\tdiagnosis\tsite"]
    for i in range(24):
        name = f"sub-{i:02d}"
        anat = root / name / "anat"
        anat.mkdir(parents=True)
        image = nib.Nifti1Image(np.full((7, 9, 11), i, np.int16), np.diag([2, 2, 2, 1]))
        for run in (1, 2):
            nib.save(image, anat / f"{name}_run-{run}_T1w.nii.gz")
        rows.append(f"{name}\t{93 if i == 5 else 70}\tF\t{'CN' if i % 2 else 'AD'}\t{i % 3}")
    (root / "participants.tsv").write_text("\n".join(rows) + "\n")
    (root / "sub-03" / "anat" / "sub-03_run-1_T1w.nii.gz").write_bytes(b"broken")
    return root


def state(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_check_prints_and_writes_what_would_be_used_dropped_and_missing(dataset, tmp_path, capsys):
    before = state(dataset)
    assert main(["check", str(dataset), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "48 scans found of 24 participants; 24 kept of 24 participants" in said
    assert "dropped 23: another scan of this session is preferred" in said
    assert "dropped 1: not a readable NIfTI file (sub-03_run-1_T1w)" in said
    assert "missing hippocampal volume: 24 of 24 scans" in said
    assert "note: ages above 89 of 2 scans are written as 89" in said
    table = ScanTable.read(tmp_path / "out" / "scans.tsv")
    assert (len(table), len(table.kept)) == (48, 24)
    assert max(scan.age or 0 for scan in table) == 89.0
    assert (tmp_path / "out" / "check.txt").read_text().splitlines() == said.splitlines()[:-1]
    summary = json.loads((tmp_path / "out" / "check.json").read_text())
    assert summary["usable"] is True
    assert summary["scans"] == {"found": 48, "kept": 24, "labelled": 24}
    assert summary["labels"] == {"CN": 12, "AD": 12}
    assert summary["dropped"]["not a readable NIfTI file"] == 1
    assert summary["missing"]["field_strength"] == 24
    assert (summary["synthetic"], "SYNTHETIC" in said) == (False, False)
    assert state(dataset) == before
    assert main(["check", str(dataset), "--out", str(tmp_path / "out")]) == 0  # may be written again


def test_check_says_what_each_part_of_a_rule_leaves(dataset, tmp_path, capsys):
    rule = "sex == 'F' and age < 80"
    assert main(["check", str(dataset), "--include", rule, "--out", str(tmp_path / "out")]) in (0, 65)
    said = capsys.readouterr().out
    made = json.loads((tmp_path / "out" / "check.json").read_text())["included"]
    assert [one["rule"] for one in made] == ["sex == 'F'", "age < 80"]
    assert made[0]["left"] == made[1]["left"] + made[1]["not_met"] + made[1]["unknown"]
    assert f"included by age < 80: {made[1]['left']} scans of " in said
    assert main(["check", str(dataset), "--include", "sex = 'F'"]) == 2
    assert "equality is written ==" in capsys.readouterr().err


def test_check_says_what_jobs_of_a_cluster_will_ask_for(dataset, tmp_path, capsys):
    settings = tmp_path / "study.toml"
    settings.write_text("[cluster]\njobs = 10\nworkers = 3\nmemory_gb = 7\ngpus = 2\n")
    command = ["check", str(dataset), "--config", str(settings)]
    assert main([*command, "--executor", "slurm"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "slurm: up to 10 jobs, each on one node with 3 cores and 21 GB for 04:00:00; up to 1 job with 2 GPUs "
        "(not tried)"
    )
    assert main([*command, "--executor", "slrum"]) == 2
    assert "one of slurm" in capsys.readouterr().err
    assert main(command) == 0
    assert "(not tried)" not in capsys.readouterr().out


def test_nothing_usable_is_65_and_still_described_and_written(dataset, tmp_path, capsys):
    options = ["--contrast", "diagnosis=CN,FTD", "--out", str(tmp_path / "out")]
    assert main(["check", str(dataset), *options]) == 65
    said = capsys.readouterr()
    assert "48 scans found" in said.out
    assert "has no such value" not in said.out, "what is wrong is said once"
    assert said.err.startswith("heatlas: cohort.positive = 'FTD': column 'diagnosis' has no such value")
    assert json.loads((tmp_path / "out" / "check.json").read_text())["usable"] is False
    assert len(ScanTable.read(tmp_path / "out" / "scans.tsv").kept) == 24


def test_folders_that_must_not_be_written_to(dataset, tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    for out in (dataset, dataset / "check", dataset.parent, tmp_path / "thesis"):
        assert main(["check", str(dataset), "--out", str(out)]) == 2
    assert "Traceback" not in capsys.readouterr().err


TABLE = "path,participant_id,age,diagnosis\n" + "".join(
    f"sub-{i:02d}/anat/sub-{i:02d}_run-2_T1w.nii.gz,{i},70,{'CN' if i % 2 else 'AD'}\n" for i in range(24)
)


def test_a_file_that_is_read_or_is_no_manifest_is_not_replaced(dataset, tmp_path, capsys):
    table, filters, config = tmp_path / "people.tsv", tmp_path / "f.json", tmp_path / "c.toml"
    table.write_text(TABLE.replace(",", "\t"))
    filters.write_text("{}")
    config.write_text("")
    before = state(tmp_path)
    words = ["manifest", "export", str(dataset)]
    assert main([*words, str(table), "--table", str(table)]) == 2
    assert "is or lies inside the table of people, which is never written to" in capsys.readouterr().err
    assert main([*words, str(table)]) == 2
    assert "exists, and is no manifest that may be replaced. Choose a new name." in capsys.readouterr().err
    assert main([*words, str(tmp_path / "f.tsv"), "--bids-filter-file", str(filters)]) == 2  # f.json would be replaced
    assert main([*words, str(tmp_path / "f.tsv")]) == 2
    assert main(["check", str(dataset), "--config", str(config), "--anonymise", str(config)]) == 2
    assert "the key is or lies inside" in capsys.readouterr().err
    assert state(tmp_path) == before


def test_the_tables_above_a_derivative_are_not_replaced_by_its_manifest(dataset, tmp_path, capsys):
    inside = dataset / "derivatives" / "prep"
    inside.mkdir(parents=True)
    before = state(dataset)
    for name in ("participants.tsv", "sessions.tsv"):
        assert main(["manifest", "export", str(inside), str(dataset / name)]) == 2
        assert "a table above the input, which is never written to" in capsys.readouterr().err
    assert state(dataset) == before


def test_a_check_does_not_replace_the_table_that_it_reads(dataset, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "check.json").write_text("{}")  # of an earlier check
    (out / "scans.tsv").write_text(TABLE.replace(",", "\t"))
    before = state(out)
    assert main(["check", str(dataset), "--table", str(out / "scans.tsv"), "--out", str(out)]) == 2
    assert "scans.tsv: is or lies inside the table of people" in capsys.readouterr().err
    assert main(["run", str(dataset), str(out), "--table", str(out / "scans.tsv")]) == 2
    assert state(out) == before


def test_what_followed_links_lead_to_is_not_written_to(dataset, tmp_path, capsys):
    real, root = tmp_path / "elsewhere" / "sub-04", tmp_path / "linked"
    real.parent.mkdir()
    (dataset / "sub-04").rename(real)
    root.mkdir()
    for path in (*dataset.iterdir(), real):
        (root / path.name).symlink_to(path)
    before = state(tmp_path)
    for words in (
        ["check", str(root), "--out", str(real / "check")],
        ["check", str(root), "--anonymise", str(real / "key")],
        ["manifest", "export", str(root), str(real / "m.tsv")],
        ["run", str(root), str(real / "run")],
    ):
        assert main([*words, "--follow-links"]) == 2
        assert "is or lies inside" in capsys.readouterr().err
    assert state(tmp_path) == before
    assert main(["check", str(root), "--out", str(tmp_path / "elsewhere" / "check"), "--follow-links"]) == 0


def test_an_unknown_participant_is_named(dataset, capsys):
    assert main(["check", str(dataset), "--participant-label", "sub-00", "nobody"]) == 65
    assert "--participant-label nobody: no such participant among the 24" in capsys.readouterr().err


@pytest.mark.ci
def test_a_manifest_there_and_back(dataset, tmp_path, capsys):
    manifest = tmp_path / "cohort.tsv"
    assert main(["manifest", "export", str(dataset), str(manifest)]) == 0
    said = capsys.readouterr().out
    assert "24 scans of 24 participants" in said
    assert "digest of the cohort: " in said
    assert {"AD", "CN", "70", str(tmp_path)}.isdisjoint(manifest.read_text().split())
    out = tmp_path / "out"
    assert main(["manifest", "import", str(manifest), str(dataset), "--out", str(out)]) == 1  # second runs are extra
    assert read_table(out / "manifest_comparison.tsv")["status"].value_counts().to_dict() == {"same": 24, "extra": 23}
    image = dataset / "sub-00" / "anat" / "sub-00_run-1_T1w.nii.gz"
    nib.save(nib.Nifti1Image(np.full((7, 9, 11), 77, np.int16), np.diag([2, 2, 2, 1])), image)
    assert main(["check", str(dataset), "--manifest", str(manifest)]) == 1
    assert "manifest: 1 different (sub-00_run-1_T1w)" in capsys.readouterr().out
    assert main(["manifest", "export", str(dataset), str(dataset / "m.tsv")]) == 2
    assert main(["check", str(dataset), "--manifest", str(tmp_path / "absent.tsv")]) == 65


def test_anonymised_output_holds_no_names_and_the_key_stays_out(dataset, tmp_path, capsys):
    key, out = tmp_path / "key", tmp_path / "out"
    options = ["--anonymise", str(key), "--pseudonymise", "sites,ids", "--out", str(out)]
    assert main(["check", str(dataset), *options]) == 0
    written = "".join(path.read_text() for path in out.iterdir())
    assert key.read_text().strip() not in written
    assert "sub-03" not in written + capsys.readouterr().out
    table = ScanTable.read(out / "scans.tsv")
    assert len({scan.participant_id for scan in table}) == 24
    assert len({scan.site for scan in table}) == 3
    assert main(["check", str(dataset), "--pseudonymise", "ids"]) == 2
    assert main(["check", str(dataset), "--anonymise", str(dataset / "key")]) == 2
    assert main(["check", str(dataset), "--anonymise", str(key), "--pseudonymise", "names"]) == 2
    assert "Traceback" not in capsys.readouterr().err


COHORT_SETTINGS = [
    ("[cohort]\nfolds = 13\n", "cohort.folds = 13"),
    ('[cohort]\nsplit = "single"\n', "cohort.split = 'single'"),
    ('[cohort]\npositive = "FTD"\n', "cohort.positive = 'FTD'"),
    ('[cohort]\nclinical_columns = ["tremor"]\n', "cohort.clinical_columns: no scan has a value in tremor"),
    ('[cohort]\nfreesurfer_folder = "/nowhere"\n', "cohort.freesurfer_folder = '/nowhere': no such folder"),
    ('[registration]\nbrain_extraction = "given-mask"\n', "no scan has a mask"),
    ('[registration]\nmask_pattern = "masks/{name}.nii.gz"\n', "no scan has a mask"),
    ('[statistics]\ncovariates = "age + seks"\n', "statistics.covariates"),
    ('[statistics]\ncovariates = "age + "\n', "statistics.covariates"),
    ('[statistics]\ncovariates = "age | sex"\n', "statistics.covariates"),
    ('[statistics]\ncovariates = "log(sex)"\n', "statistics.covariates"),
    ('[statistics]\ncovariates = "age + education"\n', "statistics.covariates"),
    ('[statistics]\ncovariates = "__import__(1)"\n', "statistics.covariates"),
    ('[statistics.harmonisation]\nrelevance_covariates = "age + seks"\n', "harmonisation.relevance_covariates"),
    ('[statistics.harmonisation]\nvolume_covariates = "diagnosis"\n', "harmonisation.volume_covariates"),
    ('[statistics.harmonisation]\ntraining_covariates = "labl"\n', "harmonisation.training_covariates"),
    ('[statistics.harmonisation]\nsite_column = "scanner"\n', "statistics.harmonisation.site_column"),
    ('[statistics.harmonisation]\nreference_site = "7"\n', "statistics.harmonisation.reference_site: '7'"),
    ('[statistics.normative]\nrelevance_covariates = "agee"\n', "normative.relevance_covariates"),
    ('[statistics.normative]\nvolume_covariates = "label"\n', "normative.volume_covariates"),
    (
        '[statistics.associations]\nbiomarkers = ["mmsee"]\n',
        "associations.biomarkers: 'mmsee' is not known. Did you mean",
    ),
    (
        '[statistics.associations]\nbiomarkers = ["hippocampus/tivv"]\n',
        "'hippocampus/tivv' (tivv) is not known. Did you",
    ),
    ('[statistics.associations]\nbiomarkers = ["volume of Hipocampus"]\n', "Did you mean volume of Hippocampus?"),
    ('[statistics.associations]\nbiomarkers = ["sex"]\n', "sex: not a numeric column"),
    (
        '[statistics.subgroups]\nvariables = ["sexx"]\n',
        "statistics.subgroups.variables: 'sexx' is not known. Did you mean sex?",
    ),
    ('[statistics.main_effects]\nvariables = ["educaton"]\n', "Did you mean education?"),
    ('[statistics.progression]\nfurther_covariates = "mmsee"\n', "progression.further_covariates"),
    ('[statistics.progression]\ntrajectory_maps = ["lrpB033"]\n', "statistics.progression.trajectory_maps"),
]
"""Settings that only the cohort can refute."""
OTHER_SETTINGS = [
    ('[regions]\natlas = "neuromorfometrics"\n', "atlas 'neuromorfometrics': unknown"),
    ('[regions]\natlas = "/nowhere/labels.nii.gz"\n', "/nowhere/labels.nii.gz does not exist"),
    ('[regions]\natlas = "{folder}/lonely.nii.gz"\n', "lonely.tsv does not exist"),
    ('[regions]\natlas = "{folder}/broken.nii.gz"\n', "broken.nii.gz: not a readable image"),
    ('[regions]\natlas = "{folder}/unnamed.nii.gz"\n', "unnamed.nii.gz: labels 3 are not in the table"),
    (
        '[regions]\natlas = "{folder}/toy.nii.gz"\n[registration]\nhippocampus_source = "jacobian"\n',
        "no group Hippocampus",
    ),
    ("[model]\npools = [9, 9, 2, 3]\n", "is too small for founding with pools (9, 9, 2, 3)"),
    (
        '[model]\nfield_of_view = "template"\n[registration]\nresolution_mm = 4.0\n',
        "is too small for founding",
    ),
    *(
        (f'[model]\narchitecture = "{name}"\n[registration]\nresolution_mm = 4.0\n', f"is too small for {name}")
        for name in ("densenet121", "efficientnet-b0")
    ),
    (
        '[model]\narchitecture = "resnet10"\nstem_stride = 4\n[registration]\nresolution_mm = 4.0\n',
        "49x58x49 voxels is too small for resnet10: its last stage needs two voxels along each axis, so each side must "
        "have at least 65. Choose a finer resolution",
    ),
    (
        '[model]\narchitecture = "efficientnet-b0"\n',
        "guided-backpropagation is not defined for networks of the family efficientnet-b0",
    ),
    *(
        (
            f'[model]\narchitecture = "{name}"\n[attribution]\nmethods = ["lrp"]\n',
            f"lrp is not defined for networks of the family {name}: its rules are defined for ReLU networks",
        )
        for name in ("bcos-simple", "coda-s")
    ),
    ('[model]\narchitecture = "bcos-simple"\nb = 0.5\n', "model.b must lie between 1 and 8"),
    (
        '[model]\narchitecture = "bcos-vgg11"\n[registration]\nresolution_mm = 4.0\n',
        "is too small for bcos-vgg11: its last stage needs two voxels along each axis, so each side must",
    ),
    ('[model]\narchitecture = "bcos-resnet18"\n[training]\nfrom_run = "{folder}"\n', "cannot be read"),
    (
        '[model]\narchitecture = "densenet121"\n[attribution]\nbatch_norm = "fold"\n',
        'attribution.batch_norm = "fold": densenet121 has',
    ),
    ("[model]\nhidden_units = 1000000\n", "weights; at most 1,000,000,000 are trained here"),
    ("[model]\nchannels = [8, 16, 32, 6400000]\n", "weights; at most"),
    ("[training]\nmax_shift_voxels = 400\n", "training.max_shift_voxels = 400: the network sees"),
    ('[training]\ndevice = "cuda"\n', 'training.device = "cuda": '),
    ("[training]\nlearning_rate = -1.0\n", "training.learning_rate must lie above 0"),
    ("[training]\nweight_decay = inf\n", "training.weight_decay = inf: must be a finite number"),
    (
        '[registration]\nbrain_extraction = "synthstrip"\nsynthstrip_model = "/nowhere"\n',
        "mri_synthstrip is not on the PATH",
    ),
    ('[registration]\nmask_pattern = "{name:q}"\n', "registration.mask_pattern"),
]
"""Settings that work on no input."""


@pytest.fixture
def small_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with label images, on a machine without GPU or FreeSurfer."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    labels = np.zeros((20, 20, 20), np.int16)
    labels[4:8, 4:8, 4:8], labels[9:12, 4:8, 4:8] = 1, 3
    image = nib.Nifti1Image(labels, np.diag([2, 2, 2, 1]))
    for name in ("lonely", "unnamed", "toy"):
        nib.save(image, tmp_path / f"{name}.nii.gz")
    (tmp_path / "broken.nii.gz").write_bytes(b"broken")
    for name in ("unnamed", "broken"):
        (tmp_path / f"{name}.tsv").write_text("index\tname\n1\tCuneus\n")
    (tmp_path / "toy.tsv").write_text("index\tname\n1\tCuneus\n3\tInsula\n")
    return tmp_path


@pytest.mark.sample(18)
@pytest.mark.parametrize(("text", "words"), [*COHORT_SETTINGS, *OTHER_SETTINGS])
def test_check_refuses_what_run_refuses_in_the_same_words(dataset, small_settings, capsys, monkeypatch, text, words):
    """Before any work: no scan is registered, no worker is started."""
    monkeypatch.setattr(heatlas.workflows.adni, "open_executor", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("heatlas.workflows.command_line.import_ahead", lambda _: None)
    config, out = small_settings / "mine.toml", small_settings / "run"
    config.write_text(text.replace("{folder}", str(small_settings)))
    said = []
    for command in (["check", str(dataset)], ["run", str(dataset), str(out)]):
        assert main([*command, "--config", str(config)]) in (2, 65)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        said.append([line for line in error.splitlines() if line.startswith("heatlas: ")])
    assert said[0] == said[1]
    assert len(said[0]) == 1
    assert words in said[0][0]
    assert not (out / "config.toml").exists(), "refused settings must not become those of a finished run"


NETS = """
from torch import nn

class Sort(nn.Module):
    def forward(self, x):
        return x.sort(2).values

def net():
    return nn.Sequential(nn.Conv3d(1, 2, 3), Sort(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))

def leaving():
    raise SystemExit(0)
"""


@pytest.mark.ci
def test_check_says_that_it_runs_the_code_of_a_network_and_tries_the_methods(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("heatlas.workflows.check.expectations", lambda *_: [])
    (tmp_path / "nets.py").write_text(NETS)
    made_of = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Identity(), nn.Identity(), nn.Identity(), nn.Linear(2, 2))
    safetensors.torch.save_file(made_of.state_dict(), tmp_path / "w.safetensors")

    def checked(name: str, method: str) -> tuple[int, str, str]:
        (tmp_path / "own.toml").write_text(
            f'[model]\narchitecture = "foreign"\nnetwork = "{tmp_path}/nets.py:{name}"\n'
            f'weights = "{tmp_path}/w.safetensors"\n[registration]\nresolution_mm = 4.0\n'
            f'[attribution]\nmethods = ["{method}"]\n'
        )
        return main(["check", str(dataset), "--config", str(tmp_path / "own.toml")]), *capsys.readouterr()

    code, said, _ = checked("net", "gradient")
    assert (code, "note: the code of model.network" in said) == (0, True)
    code, _, error = checked("net", "deeplift")
    assert (code, error.count("\n")) == (2, 1)
    assert "attribution.methods: deeplift does not explain this network" in error
    code, _, error = checked("leaving", "gradient")
    assert (code, "it raises SystemExit: 0" in error) == (65, True)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("text", "_words"),
    [pytest.param(*one, marks=pytest.mark.slow) if place % 3 else one for place, one in enumerate(COHORT_SETTINGS[7:])],
)
def test_settings_of_later_stages_do_not_stop_a_run_that_ends_before(dataset, tmp_path, text, _words):
    (tmp_path / "mine.toml").write_text(text)
    command = ["check", str(dataset), "--config", str(tmp_path / "mine.toml"), "--stop-after"]
    assert main([*command, "regions"]) == 0


@pytest.mark.parametrize(("stage", "code"), [(name, 0 if i < 2 else 65) for i, name in enumerate(STAGES)])
def test_two_people_can_be_registered_though_not_told_apart(dataset, capsys, stage, code):
    two = ["--participant-label", "sub-00", "sub-01", "--stop-after", stage]
    assert main(["check", str(dataset), *two]) == code
    assert ("cohort.folds" in capsys.readouterr().err) == (code == 65)
    assert stages_until(stage)[-1] == stage


def test_masks_that_some_scans_lack_are_noted(dataset, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('[registration]\nmask_pattern = "masks/{name}.nii.gz"\n')
    (dataset / "masks").mkdir()
    (dataset / "masks" / "sub-07.nii.gz").write_bytes(b"mask")
    assert main(["check", str(dataset), "--config", str(tmp_path / "mine.toml")]) == 0
    assert "note: 23 of 24 scans have no brain mask" in capsys.readouterr().out


def test_a_gpu_is_not_asked_of_this_machine_if_workers_are_elsewhere(dataset, small_settings):
    (small_settings / "mine.toml").write_text('[training]\ndevice = "cuda"\n')
    command = ["check", str(dataset), "--config", str(small_settings / "mine.toml")]
    assert main(command) == 2
    assert main([*command, "--executor", "slurm"]) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("preset", ["default", "demo", "patients"])
def test_the_presets_name_only_what_there_is(dataset, preset):
    assert load_config(preset)
    assert main(["check", str(dataset), "--preset", preset]) == 0


NOT_MEASURED = {
    "resolution_mm = 4.0": "at 2 mm or finer (here 4 mm)",
    'transform = "antsRegistrationSyNQuick[s]"': "after the usual transform (here antsRegistrationSyNQ",
}


@pytest.mark.parametrize("setting", NOT_MEASURED)
@pytest.mark.parametrize("source", ["jacobian", "fill", "auto", "table"])
def test_a_hippocampal_volume_that_would_not_be_measured_is_said_before_work(
    dataset, tmp_path, capsys, source, setting
):
    (tmp_path / "c.toml").write_text(f'[registration]\nhippocampus_source = "{source}"\n{setting}\n')
    code = main(["check", str(dataset), "--config", str(tmp_path / "c.toml"), "--stop-after", "registration"])
    said = capsys.readouterr()
    why = f"hippocampi are measured only {NOT_MEASURED[setting]}"
    assert code == (2 if source == "jacobian" else 0)
    if source == "jacobian":
        assert f'registration.hippocampus_source = "jacobian": {why}' in said.err
        assert main(["check", str(dataset), "--config", str(tmp_path / "c.toml"), "--stop-after", "cohort"]) == 0
    assert ("24 scans of 24 will have no hippocampal volume: the input gives none, and hippocampi are" in said.out) == (
        source in ("fill", "auto")
    )
    assert (why in said.out) == (source in ("fill", "auto"))


@pytest.mark.parametrize(("source", "noted"), [("auto", False), ("fill", True)])
def test_scans_without_a_volume_beside_those_with_one(dataset, tmp_path, capsys, source, noted):
    table = dataset / "participants.tsv"
    header, *rows = table.read_text().splitlines()
    rows = [f"{row}\t{'7000' if n < 20 else 'n/a'}" for n, row in enumerate(rows)]
    table.write_text("\n".join([f"{header}\thippocampus_mm3", *rows, ""]))
    (tmp_path / "c.toml").write_text(f'[registration]\nhippocampus_source = "{source}"\nresolution_mm = 4.0\n')
    assert main(["check", str(dataset), "--config", str(tmp_path / "c.toml"), "--stop-after", "registration"]) == 0
    assert ("4 scans of 24 will have no hippocampal volume" in capsys.readouterr().out) == noted


# Estimates of time, memory and disk before a run.

ALL = ("registration", "training", "attribution")


def configured(**sections: Any) -> Any:
    return load_config(overrides=sections)


@pytest.mark.parametrize(
    ("transform", "resolution", "seconds"),
    [("affine", 4.0, 2.0), ("affine", 2.0, 5.0), ("syn", 2.0, 107.0), ("syn-quick", 1.0, 139.0), ("syn", 1.0, 150.0)],
)
def test_seconds_of_registration_are_those_of_the_pages(transform: str, resolution: float, seconds: float) -> None:
    own = {"transform": transform, "resolution_mm": resolution}
    bare = registration_seconds(configured(registration={**own, "bias_correction": False}))
    assert bare == pytest.approx(seconds, rel=0.05)
    assert registration_seconds(configured(registration=own)) == pytest.approx(bare + N4_SECONDS)


def test_scans_in_template_space_are_not_counted_as_registered() -> None:
    config = configured(registration={"resolution_mm": 1.0})
    mixed = made_of(config, 10, 10, [8], ["registration"], None, 2, placed=4)
    assert mixed.seconds == {"registration": pytest.approx(3 * registration_seconds(config))}
    placed = made_of(config, 10, 10, [8], ["registration"], None, 2, placed=10)
    assert placed.seconds == {}
    assert placed.memory < mixed.memory


def test_training_is_steps_of_the_largest_fold_by_rounds_of_workers() -> None:
    config = configured(training={"max_epochs": 12, "min_epochs": 1, "ensemble": 3})
    made = made_of(config, 10, 10, [8, 9, 7, 8, 8], ALL, TrainingStep(2.0, 1e6), workers=4)
    # 15 networks on four workers: four rounds of 12 epochs of 9 scans, and validation at a twelfth of that
    assert made.seconds["training"] == pytest.approx(4 * 12 * 9 * 2.0 * 13 / 12)
    alone = made_of(config, 10, 10, [8, 9, 7, 8, 8], ALL, TrainingStep(2.0, 1e6), workers=15)
    assert alone.seconds["training"] == pytest.approx(made.seconds["training"] / 4)
    assert alone.seconds["maps"] == pytest.approx(3 * steps_of_maps(config) * 2.0)
    applied = configured(training={"ensemble": 3, "networks_of": "RUN"})  # all networks explain everybody
    maps = made_of(applied, 10, 0, [0] * 5, ["attribution"], TrainingStep(2.0, 1e6), workers=15).seconds["maps"]
    assert maps == pytest.approx(5 * alone.seconds["maps"])


def test_lrp_counts_for_each_beta_and_slow_methods_are_named() -> None:
    one = configured(attribution={"methods": ["lrp"], "betas": [0.0]})
    three = configured(attribution={"methods": ["lrp", "occlusion"], "betas": [0.0, 0.5, 1.0]})
    assert steps_of_maps(three) == 3 * steps_of_maps(one)
    assert not_estimated(one) == []
    assert not_estimated(three) == ["occlusion"]


def test_disk_holds_a_map_per_method_and_per_beta_of_lrp_alone() -> None:
    """Betas count only where LRP is asked for."""

    def voxel_bytes(**attribution: Any) -> float:
        return (bytes_kept(configured(attribution=attribution), 1000, with_maps=True) - 1e6) / 1000

    one = voxel_bytes(methods=["gradient"])
    assert voxel_bytes(methods=["gradient", "rise"]) - one == pytest.approx(1.2)
    assert voxel_bytes(methods=["gradient", "lrp"], betas=[0.0, 0.5, 1.0]) - one == pytest.approx(3 * 1.2)


def test_disk_without_warps_or_maps_is_smaller() -> None:
    def disk(transform: str, keep: str) -> float:
        config = configured(
            registration={"transform": transform, "resolution_mm": 2.0}, attribution={"keep_maps": keep}
        )
        return made_of(config, 40, 40, [30], ALL, None, 2).disk

    assert disk("syn", "all") == pytest.approx(1.1e9, rel=0.2)  # the demo: 40 scans, 1.1 GB
    assert disk("affine", "all") < disk("syn", "group") < disk("syn", "all")


def test_a_step_is_that_of_the_configured_network() -> None:
    small = measured_step(configured(registration={"resolution_mm": 4.0}, model={"pools": [2, 2, 2, 1]}))
    wide = measured_step(
        configured(registration={"resolution_mm": 4.0}, model={"pools": [2, 2, 2, 1], "channels": [32, 64, 128, 256]})
    )
    assert 0 < small.seconds < wide.seconds
    assert wide.memory > 2 * small.memory


class People:
    """A cohort of as many labelled people as asked for."""

    def __init__(self, count: int) -> None:
        self.table = self
        self.labelled = [type("Scan", (), {"participant_id": str(one % math.ceil(count))}) for one in range(2 * count)]


@pytest.mark.parametrize(("people", "resolution", "said"), [(133, 1.0, True), (500, 1.0, False), (133, 2.0, False)])
def test_few_people_at_a_fine_grid_are_told_of_the_preset(people: int, resolution: float, said: bool) -> None:
    lines = advice(configured(registration={"resolution_mm": resolution}), People(people))  # type: ignore[arg-type]
    assert bool(lines) is said
    assert all(f"{people} people" in line and "--preset patients" in line for line in lines)


def test_a_network_that_is_solved_is_not_counted_in_epochs() -> None:
    config = configured(model={"architecture": "linear"}, training={"max_epochs": 200})
    made = made_of(config, 10, 10, [8, 8], ALL, TrainingStep(2.0, 1e6), workers=2)
    assert made.seconds["training"] == pytest.approx(8 * 2.0)


def test_a_step_of_a_network_trained_elsewhere_is_timed_though_its_weights_are_held(tmp_path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    features = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1))\n"
        "    return nn.Sequential(features, nn.Flatten(), nn.Linear(2, 2))\n"
    )
    model = {"architecture": "foreign", "network": f"{tmp_path}/nets.py:net"}
    assert measured_step(load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": model})).seconds > 0
