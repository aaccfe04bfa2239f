"""Write the locks, environment.yml and the table of sizes in docs/installation.md: ``make lock``.

Versions of the files that exist are kept where they still fit; ``--upgrade`` resolves everything anew. ``--measure``
installs both locks in empty environments and measures them; downloads are the sizes that the registry states.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
PYTHON = ".".join(map(str, sys.version_info[:3]))
TORCH = "2.13.0"
CUDA, DRIVER = "13.0", "580"
"""CUDA that the registry's build of this torch contains, and the first driver of NVIDIA that runs it on Linux."""
LOCKS = {"cpu": ROOT / "requirements.lock", "cuda": ROOT / "requirements-cuda.lock"}
TOOLS, DOCS = ROOT / ".ci" / "requirements.lock", ROOT / "docs" / "requirements.lock"
PAGE, ENVIRONMENT = ROOT / "docs" / "installation.md", ROOT / "environment.yml"
HEADS = {
    LOCKS["cpu"]: "What users install (Python 3.11, Linux, no GPU), exactly. Installed by `.ci/install`, which takes "
    "the build of torch without CUDA.",
    LOCKS["cuda"]: f"The same for GPUs: torch is built for CUDA {CUDA}, which needs NVIDIA's driver {DRIVER} or later.",
    TOOLS: "What `make test` and `make check` add to requirements.lock, exactly.",
    DOCS: "What `make docs` adds to requirements.lock, exactly.",
}
CONDA = ("numpy", "scipy", "pandas", "statsmodels", "formulaic", "scikit-learn", "nibabel", "numba", "scikit-image",
         "nilearn", "matplotlib", "jinja2", "safetensors", "tqdm", "pathspec")  # fmt: skip
"""Packages that conda-forge has under the same name; torch is ``pytorch`` there."""
EXTRAS = ["--extra", "scans", "--extra", "cluster"]


def compiled(backend: str, options: list[str], constraints: dict[str, str], upgrade: bool) -> dict[str, str]:
    """Resolve the project for this Python on Linux; versions by name."""
    with tempfile.TemporaryDirectory() as name:
        known, out = Path(name) / "constraints.txt", Path(name) / "out.txt"
        pins = {} if upgrade else constraints
        known.write_text("".join(f"{one}=={version}\n" for one, version in (pins | {"torch": TORCH}).items()))
        command = ["uv", "pip", "compile", "pyproject.toml", *EXTRAS, *options, "--python-version", PYTHON,
                   "--no-header", "--no-annotate", "--quiet", "--constraint", str(known), "--output-file", str(out),
                   *source(backend)]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
        return read(out)


def source(backend: str) -> list[str]:
    """Where uv finds torch: as `.ci/install`."""
    if backend == "cuda":
        return []
    folder = os.environ.get("PIP_FIND_LINKS")
    return ["--find-links", folder] if folder else ["--torch-backend", "cpu"]


def read(path: Path) -> dict[str, str]:
    """Versions of a lock, without the local part that names the build of torch."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {
        str(canonicalize_name(name)): version.partition("+")[0].strip()
        for name, found, version in (line.partition("==") for line in lines) if found and not name.startswith("#")
    }  # fmt: skip


def write(path: Path, versions: dict[str, str]) -> None:
    lines = [f"# {HEADS[path]} Made by `make lock`.", *(f"{name}=={versions[name]}" for name in sorted(versions))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_environment(versions: dict[str, str]) -> None:
    """``environment.yml``: what conda-forge has comes from there, in the versions of the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    asked = [*project["project"]["dependencies"], *extras["study"], *extras["registration"], *extras["extraction"],
             *extras["template"], *extras["cluster"], *groups["test"]]  # fmt: skip
    direct = [str(canonicalize_name(Requirement(one).name)) for one in asked]
    by_pip = [name for name in direct if name not in (*CONDA, "torch")]
    lines = [
        "# For users of conda: the versions of requirements.lock, with pytest. `conda env create -f environment.yml`",
        "# Made by `make lock`.",
        "name: heatlas", "channels:", "  - conda-forge", "dependencies:", "  - python=3.11", "  - pip",
        *(f"  - {name}={versions[name]}" for name in CONDA), f"  - pytorch={versions['torch']}", "  - pip:",
        *(f"      - {name}=={versions[name]}" for name in by_pip), "      - -e .",
    ]  # fmt: skip
    ENVIRONMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def download(lock: Path, backend: str) -> int:
    """Bytes of the wheels that this machine would download for a lock."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "pylock.toml"
        command = ["uv", "pip", "compile", str(lock), "--no-deps", "--python-version", PYTHON, "--format",
                   "pylock.toml", "--quiet", "--output-file", str(out), *source(backend)]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
        packages = tomllib.loads(out.read_text(encoding="utf-8"))["packages"]
    return sum(chosen_size(package) for package in packages)


def chosen_size(package: dict[str, object]) -> int:
    """Size of the wheel of a package that fits best; its source if none does."""
    order = {tag: place for place, tag in enumerate(sys_tags())}
    best: tuple[int, int] | None = None
    for wheel in package.get("wheels", []):  # type: ignore[attr-defined]
        url = urlparse(wheel["url"])
        tags = parse_wheel_filename(unquote(Path(url.path).name))[3]
        place = min((order[tag] for tag in tags if tag in order), default=None)
        if place is not None and (best is None or place < best[0]):
            best = (place, wheel.get("size") or Path(url.path).stat().st_size)
    return best[1] if best else package["sdist"]["size"]  # type: ignore[index]


def installed(backend: str) -> tuple[int, float]:
    """Bytes on disk of an empty environment with a lock and the package, and the seconds it took."""
    with tempfile.TemporaryDirectory() as name:
        environment = Path(name) / "environment"
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([ROOT / ".ci" / "install", environment, backend], cwd=ROOT, check=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", "--no-deps", "."], cwd=ROOT, check=True)
        seconds = time.monotonic() - begun
        subprocess.run([environment / "bin" / "heatlas", "--version"], check=True)
        kilobytes = subprocess.run(["du", "-sk", environment], check=True, capture_output=True, text=True).stdout
        return int(kilobytes.split()[0]) * 1024, seconds


def write_sizes() -> None:
    """The table between the marks of docs/installation.md."""
    rows = ["| lock | download | on disk | driver |", "|---|---|---|---|"]
    for backend, lock in LOCKS.items():
        bytes_on_disk, _ = installed(backend)
        driver = "none" if backend == "cpu" else f"NVIDIA {DRIVER} or later (CUDA {CUDA})"
        rows.append(
            f"| `{lock.name}` | {download(lock, backend) / 1e9:.1f} GB | {bytes_on_disk / 1e9:.1f} GB | {driver} |"
        )
        print(json.dumps({"lock": lock.name, "row": rows[-1]}))
    text = PAGE.read_text(encoding="utf-8")
    marked = re.compile(r"(?<=<!-- sizes -->\n).*?(?=<!-- end -->)", re.DOTALL)
    PAGE.write_text(marked.sub("\n" + "\n".join(rows) + "\n\n", text), encoding="utf-8")


def main(arguments: list[str]) -> None:
    upgrade = "--upgrade" in arguments
    known = read(LOCKS["cpu"]) | read(TOOLS) | read(DOCS)
    users = compiled("cpu", [], known, upgrade)
    write(LOCKS["cpu"], users)
    write(LOCKS["cuda"], compiled("cuda", [], users | read(LOCKS["cuda"]), upgrade) | users)
    tools = compiled("cpu", ["--group", "test", "--group", "check"], known | users, upgrade)
    write(TOOLS, {name: tools[name] for name in tools.keys() - users.keys()})
    docs = compiled("cpu", ["--extra", "docs"], known | users, upgrade)
    write(DOCS, {name: docs[name] for name in docs.keys() - users.keys()})
    write_environment(tools)
    if "--measure" in arguments:
        write_sizes()


if __name__ == "__main__":
    main(sys.argv[1:])
