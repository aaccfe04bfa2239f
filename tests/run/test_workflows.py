"""The workflows of continuous integration: they can be read, and what they call is there. None of them has run here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS: list[tuple[str, dict[str, Any]]] = [
    (f"{name}: {job}", content)
    for name, text in WORKFLOWS.items()
    for job, content in yaml.safe_load(text)["jobs"].items()
]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
MADE_THERE = {"out", "heatlas.sif", "demo"}
"""Files that a job makes before it names them."""


def commands(job: dict[str, Any]) -> list[list[str]]:
    """What a job runs, an entry per command, with every value of its matrix in place."""
    found = []
    for step in job["steps"]:
        texts = [step.get("run", "")]
        for name, values in job.get("strategy", {}).get("matrix", {}).items():
            texts = [re.sub(rf"\${{{{ *matrix\.{name} *}}}}", str(one), text) for text in texts for one in values]
        found += [shlex.split(one) for text in dict.fromkeys(texts) for one in re.split(r"&&|\n", text) if one.strip()]
    return found


def test_everything_that_item_four_asks_for_is_a_job() -> None:
    names = {name for name, _ in JOBS}
    assert {"tests: locked", "tests: versions", "release: docs", "release: docker", "release: apptainer",
            "release: conda"} <= names  # fmt: skip


@pytest.mark.parametrize(("name", "job"), JOBS, ids=[name for name, _ in JOBS])
def test_what_a_job_calls_is_there(name: str, job: dict[str, Any]) -> None:
    ran = commands(job)
    assert ran
    assert job["timeout-minutes"] <= 300
    for words in ran:
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, f"{name}: {words}"
        if words[0].startswith("."):
            assert (ROOT / words[0]).is_file(), f"{name}: {words}"
        for word in words:
            file = word.partition("[")[0]
            if re.fullmatch(
                r"(\.?[\w-]+/)*[\w.-]+\.(def|yml|lock|toml|txt|py|sif)|(\.?[\w-]+/)+Dockerfile|tests/\w+", file
            ):
                assert (ROOT / file).exists() or file in MADE_THERE, f"{name}: {word}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_to_a_commit_and_jobs_may_only_read(name: str) -> None:
    text = WORKFLOWS[name]
    used = re.findall(r"uses: (.+)$", text, re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert "secrets." not in text


def test_one_action_has_one_version() -> None:
    used = {line for text in WORKFLOWS.values() for line in re.findall(r"uses: (.+)$", text, re.MULTILINE)}
    assert len({line.partition("@")[0] for line in used}) == len(used)


def test_containers_run_the_demo_without_network_and_docker_as_another_user() -> None:
    jobs = dict(JOBS)
    for name, program in (("release: docker", "docker run"), ("release: apptainer", "apptainer run")):
        (demo,) = [" ".join(words) for words in commands(jobs[name]) if "demo" in words]
        assert demo.startswith(program)
        assert "--network none" in demo
    both = [words for words in commands(jobs["release: docker"]) if words[:2] == ["docker", "build"]]
    assert [one for words in both for one in words if one.startswith("TORCH=")] == ["TORCH=cpu", "TORCH=cuda"]
    (demo,) = [words for words in commands(jobs["release: docker"]) if "demo" in words]
    assert demo[demo.index("--user") + 1].split(":")[0] not in ("0", "root")
