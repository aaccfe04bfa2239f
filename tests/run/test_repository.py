"""Files of the repository agree with each other and with the package."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import heatlas
from heatlas.pipeline.evaluation.bench.part import USUAL_METHODS
from heatlas.reports.content.run.colophon import REFERENCES

# Facts that stand on several pages are the same on all of them.

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PAPER, BIBLIOGRAPHY = ((ROOT / "paper" / name).read_text(encoding="utf-8") for name in ("paper.md", "paper.bib"))


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def short(text: str) -> str:
    """The text with .76 where it has 0.76."""
    return re.sub(r"(?<![\d.])0(?=\.\d)", "", text)


def test_the_download_is_the_measured_one_on_every_page() -> None:
    measured = re.search(r"`requirements.lock` \| ([\d.]+ GB) \| ([\d.]+) GB", text("docs/installation.md"))
    assert measured
    for page in ("README.md", "docs/start.md"):
        assert f"installation ({measured[1]})" in text(page)
        disk = re.search(r"(\d+) GB of disk", text(page))
        assert disk
        assert int(disk[1]) >= float(measured[2]) + 0.3, "the environment and the demo"


def test_what_was_not_tried_is_the_same_on_both_pages() -> None:
    said = [re.findall(r"- Not tried yet: ([^(]+)", text(page)) for page in ("README.md", "docs/limits.md")]
    assert len(said[0]) == 1
    assert said[0] == said[1]


def test_version_licence_and_authors_are_those_of_the_package() -> None:
    (author,) = (one["name"] for one in PROJECT["authors"])
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"] == "BSD-3-Clause"
    assert [one["name"] for one in CITATION["authors"]] == [author]
    assert [one["name"] for one in yaml.safe_load(PAPER.split("---")[1])["authors"]] == [author]
    assert re.search(r"Copyright \(c\) \d{4}, (.+)", (ROOT / "LICENSE").read_text())[1].lower() == author.lower()
    assert "BSD 3-Clause License" in (ROOT / "LICENSE").read_text()
    assert "Code: BSD 3-Clause." in text("README.md")
    assert f"Cite the program: {author}. Heatlas" in (ROOT / "reports/content/run/colophon.toml").read_text()


def test_the_changelog_begins_with_this_version_and_a_release_has_one_date() -> None:
    version, date = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert version == PROJECT["version"]
    assert CITATION.get("date-released", "unreleased") == date


def test_addresses_are_those_of_the_package_or_nowhere() -> None:
    urls = PROJECT.get("urls", {})
    assert CITATION.get("repository-code") == urls.get("Repository")
    assert CITATION.get("url") == urls.get("Documentation")


def test_the_paper_says_what_the_page_of_the_study_says_and_is_short() -> None:
    study, patients, limits = (
        short(PAPER.split("# Research impact statement")[1].split("\n# ")[0]),
        short(text("docs/patients.md")),
        text("docs/limits.md"),
    )
    assert len(PAPER.split()) <= 1000
    for in_the_paper, on_the_page in (
        (".77", "area under the curve of .77"),
        (".79", "regression on the means and standard deviations of regions (.79)"),
        ("−.09 to +.04", "−.02 (−.09 to +.04)"),
        ("was .68 (ridge .76)", "| .68 | .76 | 12, .52 (.02 to 1.03) | 0 |"),
        ("place 12, and no region differed", "| .68 | .76 | 12, .52 (.02 to 1.03) | 0 |"),
        ("Hedges' g 1.31", "| expected gradients (evidence) | hippocampus 1.31, "),
        ("guided backpropagation in 65", "temporal gyrus 1.10 | 5, 24, 34 | 65 |"),
        ("11.5 minutes on two", "11.5 minutes on two idle cores"),
    ):
        assert in_the_paper in " ".join(study.split())
        assert on_the_page in patients
    assert "5 of 5 planted regions among the first 10" in limits
    assert "1.8 on average with shuffled labels" in limits
    assert "5 of 5 planted regions among the first ten" in " ".join(PAPER.split())
    claims, proven, people, do_not, made_up, undecided, not_asked = map(
        int, re.search(r"\| \*\*all\*\* \|" + r" (\d+) \|" * 7, text("docs/claims.md")).groups()
    )
    assert f"{claims} claims" in study
    counts = (
        f"{proven + people + made_up} hold ({proven} of them proven by a test), {do_not} do not, {undecided} are open"
    )
    assert f"{counts} and {not_asked} were not asked" in " ".join(study.split())


def test_the_paper_has_the_sections_that_its_journal_asks_for() -> None:
    sections = re.findall(r"^# (.+)$", PAPER, re.MULTILINE)
    asked = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    assert sections[:5] == asked
    assert {"AI usage disclosure", "Acknowledgements", "References"} <= set(sections)


def test_works_that_the_paper_cites_are_listed_as_in_methods_texts() -> None:
    cited = set(re.findall(r"@(\w+)", PAPER.split("---", 2)[2]))
    listed = dict(re.findall(r"^(@\w+\{(\w+),$.*?^\})", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL))
    listed = {key: entry for entry, key in listed.items()}
    assert cited == listed.keys()
    for key in cited & REFERENCES.keys():
        assert listed[key] == REFERENCES[key].bibtex


def test_numbers_of_the_study_of_patients_are_the_same_on_every_page() -> None:
    patients = short(text("docs/patients.md"))
    found = re.search(
        r"hippocampus \(g ([\d.]+)\), their AUC is (\.\d+), ridge has (\.\d+)",
        short(text("README.md")),
    )
    assert found
    g, area, ridge = found.groups()
    assert f"area under the curve of {area}: no better than a ridge regression" in patients
    assert f"of regions ({ridge})" in patients
    assert f"in the hippocampus (g {g})" in patients
    for page in ("README.md", "docs/index.md", "docs/patients.md"):
        assert "133 people" in text(page)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_demo_takes_the_same_time_on_every_page(page: str) -> None:
    minutes = {int(one) for one in re.findall(r"(\d+) minutes(?: on two cores|\))", text(page))}
    assert minutes == {10}


def test_pages_that_are_read_in_a_minute_are_short_and_how_tos_give_a_command() -> None:
    assert len(text("README.md").split()) <= 700
    for page in (ROOT / "docs" / "howto").glob("*.md"):
        how_to = page.read_text(encoding="utf-8")
        assert len(how_to.split()) <= 300, page.name
        assert re.search(r"^heatlas \w+ ", how_to, re.MULTILINE), page.name


def test_the_number_of_planted_regions_is_the_same_on_every_page() -> None:
    assert "find 5 of 5" in text("README.md")
    assert "5 of 5 planted regions" in text("docs/limits.md")


def test_the_default_methods_of_the_evaluation_are_as_many_as_pages_say() -> None:
    words = {10: "ten"}[len(USUAL_METHODS)]
    assert f"The {words} default methods" in text("docs/benchmarks/evaluation.md")
    assert f"`heatlas evaluate`: {words} methods" in text("CHANGELOG.md")


def test_every_public_name_is_on_the_page_of_the_library() -> None:
    page = text("docs/library.md")
    hidden = {"Explained", "OpenRun"}  # what the functions return
    assert {name for name in heatlas.__all__ if f"heatlas.{name}(" not in page} == hidden


def test_the_examples_are_as_many_as_pages_say() -> None:
    examples = list((ROOT / "docs" / "examples").glob("*.py"))
    assert len(examples) == 10
    assert all(
        "ten short examples" in text(page) for page in ("README.md", "docs/index.md", "docs/start.md", "CHANGELOG.md")
    )


# The workflows of continuous integration: they can be read, and what they call is there. None of them has run here.

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


# The container recipes: what they copy is there and is what the package holds, and both set the same variables.

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


# ``environment.yml`` installs: pip refuses a line that it cannot read, and conda stops there.

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


# The ranges of pyproject.toml can be installed on every Python that they name.

PYTHONS = [
    one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if one.startswith("Programming Language") and "." in one
]
EXTRAS = PROJECT["optional-dependencies"]
CORE = PROJECT["dependencies"]
CARRIED = [*CORE, *EXTRAS["study"], *EXTRAS["template"], *EXTRAS["extraction"]]
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


def test_the_extra_for_scans_holds_the_four_others() -> None:
    assert EXTRAS["scans"] == ["heatlas[study,registration,extraction,template]"]
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
    found = resolved([*CORE, *EXTRAS["study"], other], "", tmp_path)  # some of theirs have no wheels
    assert found["pandas"].startswith("2.")
    assert {"torch", other.partition("=")[0]} <= found.keys()


# The script that says whether two trees give the same: a difference is named, one that is meant with its reason.

_SPEC = importlib.util.spec_from_file_location("same_results", Path(__file__).parents[2] / ".ci" / "same_results.py")
assert _SPEC is not None
same_results = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(same_results)  # type: ignore[union-attr]


def write_record(root: Path) -> None:
    for folder in ("run/group", "run/logs/receipts/training", "applied"):
        (root / folder).mkdir(parents=True)
    (root / "said.json").write_text(json.dumps({"help/heatlas": "usage: heatlas"}))
    (root / "origin.txt").write_text("")
    (root / "run/group/tests.tsv").write_text("region\tp\tseconds\nHippocampus\t0.1\t3\n")
    page = "<style>p {}</style><p>No effect.</p><p>Run of 2026-11-28</p>"
    (root / "run/report.html").write_text(page)
    (root / "run/logs/receipts/training/fold-0.json").write_text(json.dumps({"key": "k", "seconds": 1.0}))


@pytest.mark.parametrize(
    ("file", "was", "now", "named"),
    [
        ("run/group/tests.tsv", "0.1\t3", "0.1\t4", None),
        ("run/group/tests.tsv", "0.1", "0.2", "p: 1 of 1 rows, first line 2: '0.1', now '0.2'"),
        ("run/group/tests.tsv", "region", "area", "-region"),
        ("run/report.html", "2026-11-28", "2026-12-01", None),
        ("run/report.html", "No effect", "An effect", "+An effect."),
        ("run/logs/receipts/training/fold-0.json", '"k"', '"l"', "1 of 1 keys differ"),
        ("said.json", "usage", "use", "+use: heatlas"),
    ],
)
def test_what_differs_is_named_unless_it_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, was: str, now: str, named: str | None
) -> None:
    old, new, expected = tmp_path / "old", tmp_path / "new", tmp_path / "expected.toml"
    write_record(old)
    shutil.copytree(old, new)
    text = (new / file).read_text()
    assert was in text
    (new / file).write_text(text.replace(was, now))
    expected.touch()
    assert same_results.compare(old, new, expected, most=9) == (named is not None)
    assert (named or "0 differences") in capsys.readouterr().out
    expected.write_text('[[expected]]\nplace = "*"\nwhat = "[a-z]"\nwhy = "a repair"\n')
    assert same_results.compare(old, new, expected, most=9) == 0
    expected.write_text('[[expected]]\nplace = "*"\nwhat = "no such"\nwhy = "a repair"\n')
    assert same_results.compare(old, new, expected, most=9) == (named is not None)
