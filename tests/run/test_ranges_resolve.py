"""The ranges of pyproject.toml can be installed on every Python that they name."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [
    one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if one.startswith("Programming Language") and "." in one
]
EXTRAS = PROJECT["optional-dependencies"]
CORE = PROJECT["dependencies"]
CARRIED = [*CORE, *EXTRAS["template"], *EXTRAS["extraction"]]
SCANS = [*CARRIED, *EXTRAS["registration"], *EXTRAS["cluster"]]


def resolved(requirements: list[str], python: str, folder: Path) -> dict[str, str]:
    """What pip would install, for another Python from wheels alone; versions by name."""
    elsewhere = ["--target", str(folder / "target"), "--python-version", python, "--only-binary=:all:"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report",
         "report.json", *(elsewhere if python else []), *requirements],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / "report.json").read_text())["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}


def test_the_extra_for_scans_holds_the_three_others() -> None:
    assert EXTRAS["scans"] == ["heatlas[registration,extraction,template]"]
    assert PYTHONS == ["3.11", "3.12", "3.13", "3.14"]
    assert not any(one.startswith(("antspyx", "deepbet", "deepmriprep")) for one in CORE)


@pytest.mark.network
@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_installs_all_but_ants(python: str, tmp_path: Path) -> None:
    found = resolved(CARRIED, python, tmp_path)
    assert {"torch", "numpy", "deepmriprep"} <= found.keys()
    assert "antspyx" not in found


@pytest.mark.network
@pytest.mark.parametrize("python", PYTHONS[:3])
def test_all_extras_install_where_ants_has_wheels(python: str, tmp_path: Path) -> None:
    assert {"antspyx", "parsl"} <= resolved(SCANS, python, tmp_path).keys()


@pytest.mark.network
@pytest.mark.parametrize("other", ["clinica==0.12.*", "clinicadl==2.0.*"])
def test_it_stands_beside_programs_that_hold_pandas_below_3(other: str, tmp_path: Path) -> None:
    found = resolved([*CORE, other], "", tmp_path)  # some of theirs have no wheels
    assert found["pandas"].startswith("2.")
    assert {"torch", other.partition("=")[0]} <= found.keys()
