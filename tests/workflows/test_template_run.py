"""A whole run in the space of another template, given by path."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from template_cohort import write_config, write_template_cohort
from toy_template import write_toy, write_toy_labels

from heatlas.atlases.templates import load_template
from heatlas.workflows.command_line import main


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    template, labels = write_toy(folder), write_toy_labels(folder)
    write_template_cohort(folder / "bids", setting=str(template), entities="_space-Toy_desc-preproc")
    config = write_config(folder / "toy.toml")
    config.write_text(
        config.read_text()
        .replace('start_at = "template"\n', "")
        .replace("[registration]\n", f'[registration]\ntemplate = "{template}"\n')
        + f'[regions]\natlas = "{labels}"\n'
    )
    return folder


@pytest.fixture(scope="module")
def run(toy: Path) -> Path:
    out = toy / "out"
    assert main(["run", str(toy / "bids"), str(out), "--config", str(toy / "toy.toml"), "--n-procs", "1"]) == 0
    return out


@pytest.mark.slow
def test_files_sidecars_and_tables_are_in_the_space_of_the_template(run: Path, toy: Path) -> None:
    template = load_template(4.0, str(toy / "tpl-Toy"))
    named = [path for path in run.rglob("*space-*") if path.is_file()]
    assert named
    assert {re.search("space-([^_]*)", path.name)[1] for path in named} == {"Toy"}  # type: ignore[index]
    for path in named:
        if path.name.endswith(("_relevance.nii.gz", "_T1w.nii.gz")):
            image = nib.load(path)
            assert image.shape == template.grid.shape, path
            assert np.allclose(image.affine, template.grid.affine), path
    sidecar = json.loads((run / "sub-00/anat/sub-00_space-Toy_res-4_desc-preproc_T1w.json").read_text())
    assert sidecar["Registration"] == "none here: the image was given in the space of Toy"
    assert json.loads((run / "dataset_description.json").read_text())["TemplateSpace"] == "Toy"
    said = json.loads((run / "logs/provenance.json").read_text())["sources"]["template"]
    assert (said["name"], said["source"], said["sha256"]) == ("Toy", "path", template.source_digest)
    quality = pd.read_csv(run / "group/region_quality.tsv", sep="\t")
    labels = np.asarray(nib.load(toy / "toy_dseg.nii.gz").dataobj)
    first = quality[quality["participant_id"] == "sub-00"]
    expected = [int((labels == number).sum()) for number in first["region"]]
    assert first["voxels"].tolist() == expected
    relevance = pd.read_csv(run / "group/relevance.tsv", sep="\t")
    assert set(relevance["region"]) == set(range(9))  # 0: outside all regions


@pytest.mark.slow
def test_the_report_speaks_of_the_template_and_leaves_out_what_is_of_mni_space(run: Path) -> None:
    pages = {path.name: path.read_text() for path in run.rglob("*.html")}
    assert (
        "No surface and no glass brain: both are drawn in MNI space, and the maps lie in Toy." in pages["report.html"]
    )
    assert "Slices at Toy x, y, z in mm" in pages["report.html"]
    assert not list(run.rglob("*surface*"))
    for name, page in pages.items():
        assert "2009c" not in page, name
        assert "MNI152NLin2009cAsym" not in page, name
    assert "Template Toy: A toy; Nobody 2026; CC0" in (run / "logs/CITATION.md").read_text()
    assert main(["report", str(run)]) == 0


@pytest.mark.slow
def test_a_new_scan_is_explained_in_the_same_space(run: Path, toy: Path, tmp_path: Path) -> None:
    out, image = tmp_path / "one", toy / "bids/sub-00/anat/sub-00_space-Toy_desc-preproc_T1w.nii.gz"
    new = tmp_path / "sub-99_space-Toy_desc-preproc_T1w.nii.gz"
    known = nib.load(image)
    nib.save(nib.Nifti1Image(np.asarray(known.dataobj) * 1.1, known.affine, known.header), new)  # not the same bytes
    assert main(["apply", str(run), str(new), str(out), "--n-procs", "1"]) == 0
    assert list(out.glob("sub-99/**/*space-Toy*_relevance.nii.gz"))


def test_the_usual_atlas_and_the_demo_are_refused_in_another_space(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "no_labels.toml"
    config.write_text((toy / "toy.toml").read_text().split("[regions]")[0])
    assert main(["run", str(toy / "bids"), str(tmp_path / "out"), "--config", str(config)]) == 2
    assert (
        "regions.atlas = neuromorphometrics-cat12: lies in MNI152NLin2009cAsym, and registration.template is Toy. Give "
        "the path of a label image in Toy"
    ) in capsys.readouterr().err
    assert main(["demo", str(tmp_path / "demo"), "--config", str(toy / "toy.toml")]) == 2
    assert "registration.template: the demo's people are made from MNI152NLin2009cAsym" in capsys.readouterr().err
    config.write_text('[registration]\ntemplate = "/data/not-a-template"\n')
    assert main(["check", str(toy / "bids"), "--config", str(config)]) == 2
    assert "registration.template must be a name of TemplateFlow, or the path of a folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "demo").exists()
