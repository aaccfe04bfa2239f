"""A cohort of T1w and FLAIR images, with a disease that the FLAIR alone shows, through a run and what follows it."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE, shares_of_kinds
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from tests.declared_tables import require_as_declared
from tests.workflows.template_cohort import SPAN, write_config, write_template_cohort

SPACE = "_space-MNI152NLin2009cAsym_res-4"


def write_both(folder: Path, participants: int) -> None:
    """T1w images of healthy people, and a FLAIR each that the disease brightens; the last person has no FLAIR."""
    table = write_template_cohort(folder, participants=participants, entities=SPACE)
    random = np.random.default_rng(8)
    stage = dict(zip(table["participant_id"], table["diagnosis"].map({"CN": 0, "MCI": 1, "AD": 2}), strict=True))
    for name in table["participant_id"]:
        path = folder / name / "anat" / f"{name}{SPACE}_T1w.nii.gz"
        image = nib.Nifti1Image.from_filename(path)
        t1w = image.get_fdata(dtype=np.float32)
        healthy = t1w.copy()
        healthy[SPAN] = np.median(t1w[SPAN])
        healthy += random.normal(0, 4, t1w.shape).astype(np.float32)
        flair = 60 + random.normal(0, 6, t1w.shape).astype(np.float32)
        flair[SPAN] *= 1 + 0.35 * stage[name]
        nib.save(nib.Nifti1Image(np.clip(healthy, 1, None) * (t1w > 0), image.affine), path)
        flair_path = path.with_name(path.name.replace("_T1w", "_FLAIR"))
        nib.save(nib.Nifti1Image(np.clip(flair, 1, None) * (t1w > 0), image.affine), flair_path)
    flair_path.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_both(folder / "in", 24)
    config = write_config(folder / "config.toml", epochs=12, rate=3e-3)
    config.write_text(
        config.read_text()
        .replace("[cohort]", '[cohort]\nfurther_suffixes = ["FLAIR"]')
        .replace("validation_fraction = 0.4", "validation_fraction = 0.2")
    )
    command = ["run", str(folder / "in"), str(folder / "run"), "--config", str(config), "--n-procs", "1"]
    assert main(command) == 0
    return folder


@pytest.mark.slow
def test_who_lacks_a_kind_is_named_and_left_out(folder: Path) -> None:
    scans = ScanTable.read(RunLayout(folder / "run"))
    (left,) = [one for one in scans if not one.kept]
    assert left.participant_id == "sub-23"
    assert left.reason == (
        "no FLAIR image of the session in the space of MNI152NLin2009cAsym, as its T1w image is: networks see FLAIR "
        "beside T1w (cohort.further_suffixes)"
    )


@pytest.mark.slow
def test_kinds_add_up_and_relevance_is_in_the_kind_that_shows_the_disease(folder: Path) -> None:
    layout = RunLayout(folder / "run")
    require_as_declared(layout, RELEVANCE_CHANNELS_TABLE)
    kinds, whole = RELEVANCE_CHANNELS_TABLE.read(layout), RELEVANCE_TABLE.read(layout)
    keys = ["scan_id", "map", "region"]
    summed = kinds.groupby(keys)["sum"].sum()
    wanted = whole.set_index(keys)["sum"].loc[summed.index]
    scale = wanted.groupby("map").transform(lambda one: one.abs().max())
    np.testing.assert_allclose(summed / scale, wanted / scale, atol=1e-5)
    assert set(kinds["map"]) == {"lrpB000", "gb", "expectedGradients"} & set(whole["map"])
    labels = {one.scan_id: one.label for one in ScanTable.read(layout).labelled}
    found = shares_of_kinds(kinds, labels).set_index(["map", "image", "label"])
    by_evidence = found.loc["expectedGradients"]
    assert by_evidence.loc[("FLAIR", "AD"), "sum"] > 5 * abs(by_evidence.loc[("T1w", "AD"), "sum"])
    assert by_evidence.loc[("FLAIR", "AD"), "share"] > 0.6
    # the baselines see both images too
    baselines = read_table(layout.root / "group" / "predictions_baselines.tsv")
    regions = baselines[baselines["baseline"] == "regions"]
    assert regions.groupby("target")["prediction"].mean().diff().iloc[-1] > 0.3


@pytest.mark.slow
def test_the_report_says_what_entered(folder: Path) -> None:
    first, regions, methods = (
        (folder / "run" / name).read_text(encoding="utf-8")
        for name in ("report.html", "report-regions.html", "report-methods.html")
    )
    assert "T1-weighted brain MRI and FLAIR brain MRI" in first
    assert "Which kind of image" in regions
    assert "a map is the sum of those of its channels" in methods


@pytest.mark.slow
def test_others_are_explained_by_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_both(folder / "new", 6)
    command = ["apply", str(folder / "run"), str(folder / "new"), str(folder / "applied"), "--n-procs", "1",
               "--new-people", "--stop-after", "regions"]  # fmt: skip
    assert main(command) == 0
    rows = read_table(folder / "applied" / "group" / "predictions_applied.tsv")
    assert len(rows) == 5  # the last one has no FLAIR
    scan = folder / "new" / "sub-01" / "anat" / f"sub-01{SPACE}_T1w.nii.gz"
    capsys.readouterr()
    assert main(["apply", str(folder / "run"), str(scan), str(folder / "one")]) == 65
    assert "one image, and the networks see T1w and FLAIR of each session" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_for_one_image_is_refused_and_the_nulls_are_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder / "run")
    assert main(["export", run, str(folder / "export")]) != 0
    assert "see images of several kinds" in capsys.readouterr().err
    assert main(["evaluate", run, "--parts", "faithfulness"]) != 0
    assert "is for networks that see one image" in capsys.readouterr().err
    assert main(["evaluate", run, "--parts", "nulls", "--quick", "--n-procs", "1"]) == 0
    judged = read_table(folder / "run" / "evaluation" / "evaluation.tsv")
    assert {"expectedGradients", "lrpB000"} <= set(judged["map"])


@pytest.mark.slow
def test_one_scan_is_explained_on_demand(folder: Path) -> None:
    assert main(["explain", str(folder / "run"), "--method", "deeplift", "--participant-label", "00"]) == 0
    (path,) = (folder / "run" / "sub-00" / "relevance").glob("*deeplift*_explanation.nii.gz")
    assert np.abs(nib.Nifti1Image.from_filename(path).get_fdata()).max() > 0
