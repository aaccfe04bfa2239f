"""What works without the packages of the extras, and what is said where they are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from template_cohort import write_config, write_template_cohort

from heatlas.pipeline.run.extras import STUDY
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    write_template_cohort(folder / "bids")
    write_config(folder / "some.toml")
    return folder


@pytest.mark.parametrize("command", ["check", "run"])
def test_registration_without_ants_is_refused_by_one_line_before_any_work(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ants", None)
    scans = ["--config", str(cohort / "some.toml"), "--start-at", "brain"]
    out = [str(tmp_path / "out")] if command == "run" else []
    assert main([command, str(cohort / "bids"), *out, *scans]) == 65
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "heatlas: scans are registered by ANTs, which is not installed: pip install 'heatlas[registration]', or give "
        "images that lie in template space (--start-at template). T1-weighted images need no ANTs with "
        'registration.transform = "affine" and bias_correction = false, as in the preset patients.'
    )
    assert not (tmp_path / "out").exists()
    assert main(["check", str(cohort / "bids"), "--config", str(cohort / "some.toml")]) == 0


@pytest.mark.ci
def test_brains_are_registered_by_torch_where_ants_is_absent(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ants", None)
    linear = "[registration]\ntransform = 'affine'\nbias_correction = false"
    settings = (cohort / "some.toml").read_text().replace("[registration]", linear)
    (tmp_path / "linear.toml").write_text(settings.replace('start_at = "template"', 'start_at = "brain"'))
    out = tmp_path / "out"
    words = [cohort / "bids", out, "--config", tmp_path / "linear.toml", "--stop-after", "registration"]
    people = ["--participant-label", "00", "01"]
    assert main(["run", *map(str, words), *people, "--n-procs", "1"]) == 0
    sidecars = [json.loads(path.read_text()) for path in out.rglob("*desc-preproc_T1w.json")]
    assert [one["Registration"] for one in sidecars] == ["affine-torch"] * 2
    assert {*sidecars[0]["PackageVersions"]} == {"torch", "deepbet", "nibabel"}
    quality = read_table(out / "group" / "registration.tsv")
    assert (quality["affine_residual_mm"] == 0).all()
    assert np.allclose(quality["scale"], 1, atol=0.02)  # they are brains of the template


@pytest.mark.slow
def test_a_cohort_in_template_space_runs_and_is_applied_to_without_the_extras(cohort: Path, tmp_path: Path) -> None:
    hidden, new = tmp_path / "hidden", tmp_path / "others"
    for name in ("ants", "deepbet"):  # in this process and in its workers
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text(f"raise ImportError('{name} is hidden')\n")
    paths = os.pathsep.join([str(hidden), str(ROOT)])
    for path in (cohort / "bids").rglob("*.*"):  # the same images of people with other names
        to = new / str(path.relative_to(cohort / "bids")).replace("sub-", "sub-9")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    people = new / "participants.tsv"
    people.write_text(people.read_text().replace("sub-", "sub-9"))
    for words in (
        ["run", cohort / "bids", tmp_path / "out", "--config", cohort / "some.toml", "--n-procs", "1"],
        ["apply", tmp_path / "out", new, tmp_path / "applied", "--start-at", "template", "--n-procs", "1"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "heatlas", *map(str, words)],
            env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    for out in ("out", "applied"):
        assert (tmp_path / out / "report.html").is_file()


def test_the_modules_that_are_asked_for_are_those_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [Requirement(line).name for line in project["optional-dependencies"]["study"]]
    other_names = {"scikit-image": "skimage", "scikit-learn": "sklearn"}
    assert sorted(other_names.get(name, name.replace("-", "_")) for name in names) == sorted(STUDY)


LIGHT = """
import sys
from importlib.machinery import PathFinder

class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Light
import nibabel, numpy
import heatlas
assert not {"torch", "numpy.random", "pandas"} <= set(sys.modules), "importing heatlas takes no time"
import torch
from torch import nn

def refused(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)

torch.manual_seed(0)
network = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2))
affine = numpy.diag([20.0, 20.0, 20.0, 1.0])
affine[:3, 3] = -70, -110, -50
files = []
for name in ("T1w.nii.gz", "control.nii.gz"):
    image = nibabel.Nifti1Image(torch.rand(8, 10, 8).numpy(), affine)
    image.set_sform(affine, 4)
    nibabel.save(image, name)
    files.append(name)
nibabel.save(nibabel.Nifti1Image((image.get_fdata() > 0.5).astype("int16"), affine), "labels.nii.gz")
with open("labels.tsv", "w") as table:
    table.write("index\\tname\\n1\\tBright\\n")
assert {"lrp", "deeplift", "expected-gradients"} <= {*heatlas.methods()["method"]}
ready = heatlas.prepare(network, files[0])
for method in ("lrp", "deeplift", "expected-gradients"):
    found = heatlas.explain(ready, files[0], method, reference=files[1:])
    assert abs(found.missing) < 1e-5
    assert len(repr(found).splitlines()) == 3
    whole = found.map.get_fdata().sum()
    sums = found.regions("labels.nii.gz")["sum"]
    assert len(sums) == 2 and abs(sums.sum() - whole) < 1e-5
found.save("explained")
refused(found.plot)
refused(lambda: heatlas.open("run"))
assert not hasattr(heatlas, "run") and hasattr(heatlas, "explain")
refused(lambda: heatlas.explain(files[0], network="oasis1-ad"))
refused(lambda: heatlas.explain(network, files[0], "lime"))
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
sys.exit(main(["run", "BIDS", "OUT"]))
"""


@pytest.mark.ci
def test_a_network_of_ones_own_is_explained_with_what_the_plain_installation_brings(tmp_path: Path) -> None:
    absent = {*STUDY, "ants", "deepbet", "parsl"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"ABSENT = {absent}\n{LIGHT}"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 65, done.stderr
    remedy = "pip install 'heatlas[study]'."
    every = "(dcm2niix, formulaic, jinja2, matplotlib, monai and 7 more)"
    assert done.stdout.splitlines() == [
        f"MissingDataError .plot() needs packages that are not installed (matplotlib, nilearn): {remedy}",
        f"AttributeError heatlas.open needs packages that are not installed {every}: {remedy}",
        f"MissingDataError a network with a name needs packages that are not installed {every}: {remedy}",
        f"MissingDataError lime needs packages that are not installed (skimage): {remedy}",
    ]
    assert done.stderr == f"heatlas: heatlas run needs packages that are not installed {every}: {remedy}\n"
    assert not (tmp_path / "OUT").exists()
