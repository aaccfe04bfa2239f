"""The container recipes: what they copy is there and is what the package holds, and both set the same variables."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = (ROOT / ".ci" / "container" / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (ROOT / ".ci" / "container" / "heatlas.def").read_text(encoding="utf-8")


@pytest.mark.studies
def test_all_that_the_package_holds_is_copied() -> None:
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKER, re.MULTILINE) for name in line.split()}
    files = APPTAINER.split("%files\n")[1].split("\n\n")[0]
    assert copied == {line.split()[0] for line in files.splitlines()}
    assert all((ROOT / name).exists() for name in copied)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = build["project"]
    rooms = {link.resolve().name for name in wheel["packages"] for link in (ROOT / name).iterdir() if link.is_symlink()}
    needed = {*wheel["packages"], *rooms, project["readme"], *project["license-files"]}
    assert copied == {*needed, "pyproject.toml", "requirements.lock", "requirements-cuda.lock", ".ci/install"}


def test_both_set_the_same_variables_and_neither_runs_as_root() -> None:
    of_docker = re.search(r"^ENV (.+?[^\\])$", DOCKER, re.MULTILINE | re.DOTALL)
    assert of_docker
    docker = dict(pair.split("=", 1) for pair in of_docker[1].replace("\\\n", " ").split())
    apptainer = dict(re.findall(r"^    export (\w+)=(.+)$", APPTAINER, re.MULTILINE))
    own = {name: value.replace("-$(id -u)", "") for name, value in apptainer.items()}  # several users share a node
    assert docker == own
    assert all(docker[name].startswith("/tmp/") for name in ("MPLCONFIGDIR", "NUMBA_CACHE_DIR"))
    last = DOCKER.split("FROM ")[-1]
    assert re.search(r"^USER heatlas$", last, re.MULTILINE)
    assert "RUN" not in last.split("USER heatlas")[1]


def test_both_install_the_lock_and_then_the_package_alone() -> None:
    for text, torch in ((DOCKER, "$TORCH"), (APPTAINER, "{{ TORCH }}")):
        installs = re.findall(r"(?:pip |\.ci/)install (.+?)(?: \\)?$", text, re.MULTILINE)[-2:]
        assert installs[0] == f"/opt/heatlas {torch}"
        assert "--no-deps ." in installs[1]
    assert "ARG TORCH=cpu" in DOCKER
    assert "%arguments\n    TORCH=cpu\n" in APPTAINER
    python = re.findall(r"python:(\d\.\d+)-slim", DOCKER + APPTAINER)
    assert python == ["3.11", "3.11", "3.11"]
