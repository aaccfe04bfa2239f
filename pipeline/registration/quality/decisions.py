"""Decisions on scans whose registration is in doubt: keep, drop, or ask a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.tables import read_table

KEEP, DROP = "keep", "drop"
DROPPED_REASON = "registration in doubt"
FLAGGED_TABLE = Table(
    "flagged",
    {
        **described("participant_id", "session_id", "scan_id"),
        "flags": "Why the registration is in doubt",
        "figure": "The scan under the contours of the template, relative to the run folder",
        "decision": "For you to fill in: keep or drop",
    },
    "scan whose registration is in doubt",
    "Which scans do you want to keep? Written with flagged = \"ask\"; fill in the last column.", stage="registration",
    file="flagged.tsv", filled=("participant_id", "scan_id", "flags"), on_pages=False,
    values={"decision": (KEEP, DROP)},
)  # fmt: skip


def decide(
    scans: Sequence[Scan], flags: Mapping[str, str], policy: str, file: Path, figures: Mapping[str, str]
) -> dict[str, str]:
    """Decision for every flagged scan by `Scan.name`: keep, drop or, with ``ask``, empty text if undecided.

    `flags` says why scans are in doubt, and `figures` where their overviews are. With ``ask``, `file` (``flagged.tsv``)
    is read, brought up to date and written; a decision is valid as long as the reasons for the doubt do not change.
    """
    if policy != "ask":
        return dict.fromkeys(flags, policy)
    known = _read_decisions(file)
    doubtful = [scan for scan in scans if scan.name in flags]
    decisions = {scan.name: known.get((scan.name, flags[scan.name]), "") for scan in doubtful}
    if doubtful or file.is_file():
        rows = [
            (scan.participant_id, scan.session_id, scan.scan_id, flags[scan.name], figures.get(scan.name),
             decisions[scan.name] or None)
            for scan in doubtful
        ]  # fmt: skip
        FLAGGED_TABLE.write(file, rows)
    return decisions


def require_decisions(decisions: Mapping[str, str], file: Path) -> None:
    """Stop, resumably, unless a person has decided on every flagged scan.

    Raises ResumableError if a decision is missing.
    """
    open_ones = [name for name, decision in decisions.items() if not decision]
    if open_ones:
        shown = ", ".join(open_ones[:5]) + (", ..." if len(open_ones) > 5 else "")
        raise ResumableError(
            f"{file}: {len(open_ones)} of {len(decisions)} doubtful registrations have no decision ({shown}). Look at "
            "their figures, write keep or drop into the column decision, and run the same command again."
        )


def dropped_reason(flags: str) -> str:
    """Reason of a scan that is dropped for its flags, as ``scans.tsv`` gives it."""
    return f"{DROPPED_REASON}: {flags}"


def _read_decisions(file: Path) -> dict[tuple[str, str], str]:
    """Decisions so far, by scan and reasons for the doubt."""
    if not file.is_file():
        return {}
    columns = ("participant_id", "session_id", "flags", "decision")
    table = read_table(file, columns, columns).astype(object)
    found = {}
    for line, row in enumerate(table.where(table.notna(), "").to_dict("records"), start=2):
        name = "_".join(part for part in (row["participant_id"], row["session_id"]) if part)
        decision = row["decision"].strip().lower()
        if decision not in ("", KEEP, DROP):
            raise BadInputError(f"{file}: line {line}, column decision: {row['decision']!r}; write keep or drop.")
        found[name, row["flags"]] = decision
    return found
