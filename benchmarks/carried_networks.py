"""Make the networks that come with Heatlas: oasis1-ad and oasis1-age, from OASIS-1.

    python benchmarks/carried_networks.py OASIS1 OUT --n-procs 2

OASIS1 holds ``older`` and ``younger``, BIDS folders (their README says where they are from); it is only read. OUT gets
the cohort of both, a run of each network, and its export. Settings are in ``benchmarks/carried``; seed and commit are
in each export (configs/metadata.json). What is finished is not repeated. Move OUT/export/* to pipeline/models/carried.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from heatlas.workflows.command_line import main

SETTINGS = Path(__file__).with_name("carried")
PEOPLE = "participants.tsv"


def merge(source: Path, target: Path) -> None:
    """Both groups as one BIDS folder; what stands beside people is that of the older ones."""
    if target.is_dir():
        return
    scratch = target.with_name(f".{target.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    people = []
    for group in ("older", "younger"):
        for path in sorted((source / group).iterdir()):
            if path.is_dir():
                shutil.copytree(path, scratch / path.name)
            elif not (scratch / path.name).exists():
                shutil.copy(path, scratch / path.name)
        head, *rows = (source / group / PEOPLE).read_text(encoding="utf-8").splitlines()
        people += rows
    (scratch / PEOPLE).write_text("\n".join([head, *sorted(people)]) + "\n", encoding="utf-8")
    scratch.rename(target)


def make(source: Path, out: Path, name: str, n_procs: int) -> None:
    exported = out / "export" / name
    if exported.is_dir():
        return
    config, run = SETTINGS / f"{name}.toml", out / name
    words = ["run", source, run, "--preset", "patients", "--config", config, "--n-procs", n_procs]
    for command in (words, ["export", run, exported, "--public"]):
        if code := main(list(map(str, command))):
            sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("oasis1", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n-procs", type=int, default=1)
    given = parser.parse_args()
    merge(given.oasis1, given.out / "cohort")
    make(given.oasis1 / "older", given.out, "oasis1-ad", given.n_procs)
    make(given.out / "cohort", given.out, "oasis1-age", given.n_procs)
