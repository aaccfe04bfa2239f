"""Plug-ins: the example of the documentation is installed and used; what cannot be used is left out and said."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.atlases.templates import load_template

pytestmark = pytest.mark.ci

EXAMPLE = Path(__file__).parents[2] / "docs" / "example_plugin"
USED = """
import sys
import torch
from torch import nn

import heatlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.evaluation.parts import BENCH_TABLES, chosen_parts
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.plugins import origin
from heatlas.pipeline.run.work.digests import code_digest
from heatlas.pipeline.run.work.progress import package_versions, plugin_versions
from heatlas.workflows.estimates import described

assert origin("methods", "gradient-power") == "heatlas-example 0.1"
assert {origin("methods", name) for name in ("lrp", "inherent")} == {origin("networks", "probe")} == {"heatlas"}
assert list(METHODS)[-2:] == ["inherent", "gradient-power"]  # our own plug-ins come first
network = StagedModel([nn.Sequential(nn.Flatten(), nn.Linear(60, 2))]).eval()
method = find_method("gradient-power").build({"power": 3}, None)
found = attribute(network, torch.rand(1, 1, 3, 4, 5), 1, method).values
torch.testing.assert_close(found.flatten(), network.stages[0][1].weight[1].abs() ** 3)
table = heatlas.methods().set_index("method")
assert table.loc["gradient-power", "shows"] == "a power of the absolute gradient"
assert len(code_digest("heatlas_example.method")) == 64

config = load_config(overrides={"model": {"architecture": "one-convolution", "filters": 3}})
assert build_network(config.model, (9, 10, 11), 2)(torch.rand(2, 1, 9, 10, 11)).shape == (2, 2)
assert dict(described(FAMILIES["one-convolution"], (2.0,)))["added by"] == "heatlas-example 0.1"
assert "added by" not in dict(described(FAMILIES["founding"], (2.0,)))

part, = chosen_parts(["count"])
assert part.tables[0] in BENCH_TABLES
atlas = load_atlas("halves", template_grid(4.0))
assert sorted(atlas.regions.groups) == ["Back", "Front"], atlas.regions.groups
assert load_config(overrides={"regions": {"atlas": "halves"}}).regions.atlas == "halves"
assert plugin_versions() == {"heatlas-example": "0.1"}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the example as it is installed, its atlas with two labels."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")
    package = folder / "source" / "heatlas_example"
    template = load_template(4.0)
    labels = np.zeros(template.t1w.shape, np.uint8)
    labels[:, : labels.shape[1] // 2], labels[:, labels.shape[1] // 2 :] = 1, 2
    nib.save(nib.Nifti1Image(labels, template.grid.affine), package / "labels.nii.gz")
    (package / "labels.tsv").write_text("index\tname\n1\tBack\n2\tFront\n")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=folder / "source", capture_output=True, check=True)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "site")
    return folder / "site"


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_the_example_of_the_documentation_is_found_by_every_registry(site) -> None:
    made = run(site, USED)
    assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("method.py", "METHOD = Entry(", "METHOD = Entri("), "cannot be imported (NameError: name 'Entri' is not"),
        (("method.py", '"gradient-power"', '"lrp"'), "takes the name lrp, which exists. Give it another name."),
        (("network.py", "NETWORK = padded_family(", "NETWORK = str("), "cannot be imported (TypeError"),
        (("network.py", "NETWORK = ", "NETWORK, _ = 3, "), "gives a int. It must give a Family."),
    ],
)
def test_what_cannot_be_used_is_left_out_and_named(site, tmp_path, changed, said) -> None:
    file, before, after = changed
    shutil.copytree(site, tmp_path / "site")
    path = tmp_path / "site" / "heatlas_example" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    made = run(
        tmp_path / "site",
        "from heatlas.pipeline.attribution.registry import METHODS\n"
        "from heatlas.pipeline.models.families.registry import FAMILIES\n"
        "print(METHODS['lrp'].record.__module__, len(FAMILIES))",
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("heatlas.pipeline.attribution.lrp")
    assert made.stderr.count("\n") == 1
    assert said in made.stderr
    assert "of heatlas-example 0.1 is left out" in made.stderr
