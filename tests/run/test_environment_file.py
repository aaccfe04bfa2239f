"""``environment.yml`` installs: pip refuses a line that it cannot read, and conda stops there."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ENVIRONMENT = (ROOT / "environment.yml").read_text(encoding="utf-8").partition("\ndependencies:\n")[2]
CONDA, PIP = ([line.strip().removeprefix("- ") for line in part.splitlines() if line.strip()]
              for part in ENVIRONMENT.split("  - pip:\n"))  # fmt: skip
LOCKED = {
    name.lower().replace("_", "-"): version.split()[0]
    for lock in ("requirements.lock", ".ci/requirements.lock")
    for name, found, version in (line.partition("==") for line in (ROOT / lock).open(encoding="utf-8"))
    if found and not name.startswith("#")
}


@pytest.mark.parametrize("line", PIP)
def test_pip_reads_every_line_as_it_does_in_a_file_of_requirements(line: str) -> None:
    assert line == "-e ." or Requirement(line).specifier


@pytest.mark.parametrize("line", [line for line in (*CONDA, *PIP) if "==" in line or line.count("=") == 1])
def test_versions_are_those_of_the_lock(line: str) -> None:
    name, _, version = line.replace("==", "=").partition("=")
    if name != "python":
        assert LOCKED[{"pytorch": "torch"}.get(name, name)] == version


def test_it_can_run_the_tests() -> None:
    assert any(line.startswith("pytest==") for line in PIP)
