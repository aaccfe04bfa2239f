"""What works without ANTs and deepbet, which are extras, and what is said where they are needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from template_cohort import write_config, write_template_cohort

from heatlas.workflows.command_line import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    write_template_cohort(folder / "bids")
    write_config(folder / "some.toml")
    return folder


@pytest.mark.parametrize("command", ["check", "run"])
def test_registration_without_ants_is_refused_by_one_line_before_any_work(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ants", None)
    scans = ["--config", str(cohort / "some.toml"), "--start-at", "brain"]
    out = [str(tmp_path / "out")] if command == "run" else []
    assert main([command, str(cohort / "bids"), *out, *scans]) == 65
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "heatlas: scans are registered by ANTs, which is not installed: pip install 'heatlas[registration]', or give "
        "images that lie in template space (--start-at template)."
    )
    assert not (tmp_path / "out").exists()
    assert main(["check", str(cohort / "bids"), "--config", str(cohort / "some.toml")]) == 0


@pytest.mark.slow
def test_a_cohort_in_template_space_runs_and_is_applied_to_without_the_extras(cohort: Path, tmp_path: Path) -> None:
    hidden, new = tmp_path / "hidden", tmp_path / "others"
    for name in ("ants", "deepbet"):  # in this process and in its workers
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text(f"raise ImportError('{name} is hidden')\n")
    paths = os.pathsep.join([str(hidden), str(ROOT)])
    for path in (cohort / "bids").rglob("*.*"):  # the same images of people with other names
        to = new / str(path.relative_to(cohort / "bids")).replace("sub-", "sub-9")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    people = new / "participants.tsv"
    people.write_text(people.read_text().replace("sub-", "sub-9"))
    for words in (
        ["run", cohort / "bids", tmp_path / "out", "--config", cohort / "some.toml", "--n-procs", "1"],
        ["apply", tmp_path / "out", new, tmp_path / "applied", "--start-at", "template", "--n-procs", "1"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "heatlas", *map(str, words)],
            env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    for out in ("out", "applied"):
        assert (tmp_path / out / "report.html").is_file()
