"""The wheel holds one package, which nothing beside a notebook can hide."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_owns_one_name_and_holds_all_that_the_repository_tracks(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    assert {name.split("/")[0].split("-")[0] for name in names} == {"heatlas"}
    rooms = ("pipeline", "atlases", "reports", "workflows")
    files = {
        f"heatlas/{path.relative_to(ROOT).as_posix()}"
        for room in rooms for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    missing = sorted(files - names)
    assert not missing


def test_files_of_a_user_with_the_names_of_rooms_are_not_imported(wheel, tmp_path):
    packages, notebook = tmp_path / "packages", tmp_path / "notebook"
    zipfile.ZipFile(wheel).extractall(packages)
    (notebook / "reports").mkdir(parents=True)
    for hiding in ("pipeline.py", "atlases.py", "workflows.py", "reports/__init__.py"):
        (notebook / hiding).write_text("raise ImportError('a file of the user')\n")
    code = (
        f"import sys; sys.path[:0] = [{str(notebook)!r}, {str(packages)!r}]; import heatlas, pathlib\n"
        "from heatlas.workflows.command_line import main\n"
        "from heatlas.reports.words.references import *\n"
        f"assert pathlib.Path(heatlas.__file__).is_relative_to({str(packages)!r}), heatlas.__file__\n"
        "assert heatlas.open.__name__ == 'open_run'\n"
        "assert not {'pipeline', 'reports', 'atlases', 'workflows'} & set(sys.modules)\n"
        "main(['--help'])"
    )
    run = subprocess.run([sys.executable, "-I", "-c", code], cwd=notebook, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "evaluate" in run.stdout
