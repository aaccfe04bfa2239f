"""The wheel holds one package, which nothing beside a notebook can hide."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def listed():
    """Files of the wheel by their names in it, as its builder lists them."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    builder = builders.WheelBuilder(str(ROOT))
    return {one.distribution_path: Path(one.path) for one in builder.recurse_included_files()}


def test_the_wheel_owns_one_name_and_holds_all_that_the_repository_tracks(listed):
    names = set(listed)
    assert {name.split("/")[0] for name in names} == {"heatlas"}
    assert "heatlas/py.typed" in names, "types reach a user only from the top of the package (PEP 561)"
    rooms = ("pipeline", "atlases", "reports", "studies", "workflows")
    files = {
        f"heatlas/{path.relative_to(ROOT).as_posix()}"
        for room in rooms
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing = sorted(files - names)
    assert not missing


def test_files_of_a_user_with_the_names_of_rooms_are_not_imported(listed, tmp_path):
    packages, notebook = tmp_path / "packages", tmp_path / "notebook"
    for name, path in listed.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).symlink_to(path)
    (notebook / "reports").mkdir(parents=True)
    for hiding in ("pipeline.py", "atlases.py", "workflows.py", "studies.py", "reports/__init__.py"):
        (notebook / hiding).write_text("raise ImportError('a file of the user')\n")
    code = (
        f"import sys; sys.path[:0] = [{str(notebook)!r}, {str(packages)!r}]; import heatlas, pathlib\n"
        "from heatlas.workflows.command_line import main\n"
        "from heatlas.reports.words.wording import *\n"
        f"assert pathlib.Path(heatlas.__file__).is_relative_to({str(packages)!r}), heatlas.__file__\n"
        "assert heatlas.open.__name__ == 'open_run'\n"
        "assert not {'pipeline', 'reports', 'atlases', 'studies', 'workflows'} & set(sys.modules)\n"
        "main(['--help'])"
    )
    run = subprocess.run([sys.executable, "-I", "-c", code], cwd=notebook, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "evaluate" in run.stdout
