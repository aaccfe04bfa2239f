"""A run from DICOM to template space, and a search of everything it wrote for what must never be written."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from dicom_series import SECRET_WORDS, write_series
from input_trees import AdniTree

from heatlas.atlases.templates import load_template
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main

pytestmark = pytest.mark.ci

P = "002_S_0295"
SETTINGS = """
[registration]
resolution_mm = 4.0
transform = "antsRegistrationSyNQuick[s]"
bias_correction = false
"""
XML = """<idaxs><project><subject><subjectIdentifier>002_S_0295</subjectIdentifier><subjectName>Quasimodo</subjectName>
<study><series><imagingProtocol><imageUID>1001</imageUID><description>MP-RAGE Esmeralda</description></imagingProtocol>
</series></study></subject></project></idaxs>"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """One brain as DICOM with its XML, one series with a missing slice, one that only fails in registration."""
    folder = tmp_path_factory.mktemp("dicom run é")
    adni = AdniTree(folder / "in put")
    brain = load_template(4.0).t1w
    # Slices upward, rows to the back, columns to the left, as DICOM counts.
    planes = np.round(brain[::-1, ::-1, :].transpose(2, 1, 0) * 10).astype(np.int16)
    geometry = {"spacing_mm": 4.0, "pixel_mm": (4.0, 4.0)}
    for person, number in ((P, "I1001"), ("002_S_0296", "I1002"), ("002_S_0297", "I1003")):
        series = adni.root / "ADNI" / person / "MPRAGE" / "2006-04-18_08_20_30.0" / number
        paths = write_series(series, planes[:20, :20, :20] if number == "I1003" else planes, **geometry)
        if number == "I1002":
            paths[20].unlink()
        adni.row(person, dx="CN" if number == "I1001" else "Dementia")
    (adni.root / "ADNI" / "ADNI_002_S_0295_I1001.xml").write_text(XML, encoding="utf-8")
    adni.table()
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    arguments = ["run", str(adni.root), str(folder / "out"), "--config", str(folder / "settings.toml")]
    assert main([*arguments, "--n-procs", "1", "--stop-after", "registration"]) == 1
    return RunLayout(folder / "out")


def test_a_series_is_registered_and_bad_ones_spoil_nothing(run: RunLayout) -> None:
    quality = read_table(run.group / "registration.tsv").set_index("scan_id")
    assert quality.loc["I1001", "status"] == "registered"
    assert quality.loc["I1001", "correlation"] > 0.9
    assert quality.loc["I1003", "status"] == "failed"
    scans = read_table(run.root / "scans.tsv").set_index("scan_id")
    assert scans.loc["I1001", "image"] == f"ADNI/{P}/MPRAGE/2006-04-18_08_20_30.0/I1001/2_0000.dcm"
    assert scans.loc["I1002", "reason"].startswith("missing slices: 1 of ")
    assert run.scan("sub-ADNI002S0295", "ses-M000", 4.0).converted.is_file()


def test_no_direct_identifier_is_in_any_file_or_name(run: RunLayout) -> None:
    found = []
    paths = [path for path in run.root.rglob("*") if path.is_file()]
    assert {"run.log", "digests.json", "failures.tsv", "scans.tsv", "provenance.json"} <= {path.name for path in paths}
    assert any("receipts" in path.parts for path in paths)
    assert any(path.parent.name == "failures" for path in paths)
    for path in paths:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        text = str(path.relative_to(run.root)).encode() + b"\n" + content
        found += [(path.name, word) for word in SECRET_WORDS if word.encode() in text]
    assert not found
    assert any(b"002S0295" in path.read_bytes() for path in paths)  # the search can find a word


def test_the_search_would_find_them_in_the_input(run: RunLayout) -> None:
    text = b"".join(path.read_bytes() for path in (run.root.parent / "in put").rglob("*") if path.is_file())
    assert not [word for word in SECRET_WORDS if word.encode() not in text and "-" not in word]


def test_an_anonymised_run_holds_neither_face_nor_date_and_repeats(run: RunLayout, tmp_path: Path) -> None:
    folder = run.root.parent
    arguments = ["run", str(folder / "in put"), str(tmp_path / "out"), "--config", str(folder / "settings.toml")]
    arguments += ["--anonymise", str(tmp_path / "key"), "--n-procs", "1", "--stop-after", "registration"]
    arguments += ["--participant-label", P]
    assert main(arguments) == 0
    hidden = RunLayout(tmp_path / "out")
    files = hidden.scan("sub-ADNI002S0295", "ses-M000", 4.0)
    assert files.converted_brain.is_file()
    assert "FaceRemoved" in files.converted.with_name(files.converted.name.replace(".nii.gz", ".json")).read_text()
    for path in hidden.root.rglob("*"):
        text = str(path.relative_to(hidden.root)) + (path.read_text(errors="replace") if path.is_file() else "")
        assert not re.search(r"2006-0?4-18|20060418", text), path
    before = {path: path.stat().st_mtime_ns for path in hidden.root.rglob("sub-*/**/*") if path.is_file()}
    assert main(arguments) == 0
    assert before == {path: path.stat().st_mtime_ns for path in hidden.root.rglob("sub-*/**/*") if path.is_file()}
    same = np.asarray(nib.load(run.scan("sub-ADNI002S0295", "ses-M000", 4.0).t1w).dataobj)
    np.testing.assert_array_equal(np.asarray(nib.load(files.t1w).dataobj) > 0, same > 0)
