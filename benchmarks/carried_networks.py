"""Make the networks that come with Heatlas: oasis1-ad and oasis1-age, from OASIS-1.

    python benchmarks/carried_networks.py OASIS1 OUT --n-procs 2

OASIS1 holds ``older`` and ``younger``, BIDS folders (their README says where they are from); it is only read. OUT gets
the cohort of both, a run of each network, and its export. Settings are in ``benchmarks/carried``; seed and commit are
in each export (configs/metadata.json). What is finished is not repeated. Move OUT/export/* to pipeline/models/carried.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import arguments_of
from patients import call

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
    call("run", source, run, "--preset", "patients", "--config", config, "--n-procs", n_procs)
    call("export", run, exported, "--public")


def main() -> None:
    given = arguments_of(__doc__, "oasis1 out --n-procs", oasis1={"type": Path})
    merge(given.oasis1, given.out / "cohort")
    make(given.oasis1 / "older", given.out, "oasis1-ad", given.n_procs)
    make(given.out / "cohort", given.out, "oasis1-age", given.n_procs)


if __name__ == "__main__":
    main()
