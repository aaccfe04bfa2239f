"""Scans whose registration is in doubt: why, and what is decided of them (keep, drop, or ask a person)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.quality import outliers
from heatlas.pipeline.registration.quality.sides import Sides
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table

DROPPED_REASON = "registration in doubt"
FLAGGED_TABLE = declared("flagged", __file__)
KEEP, DROP = FLAGGED_TABLE.values["decision"]


def decide(
    scans: Sequence[Scan], flags: Mapping[str, str], policy: str, file: Path, figures: Mapping[str, str]
) -> dict[str, str]:
    """Decision for every flagged scan by `Scan.name`: keep, drop or, with ``ask``, empty text if undecided.

    `flags` says why scans are in doubt, and `figures` where their overviews are. With ``ask``, `file` (``flagged.tsv``)
    is read, brought up to date and written; a decision is valid as long as the reasons for the doubt do not change.
    """
    if policy != "ask":
        return dict.fromkeys(flags, policy)
    earlier = _read_decisions(file)
    doubtful = [scan for scan in scans if scan.name in flags]
    decisions = {scan.name: earlier.get((scan.name, flags[scan.name]), "") for scan in doubtful}
    if doubtful or file.is_file():
        rows = []
        for scan in doubtful:
            facts = (flags[scan.name], figures.get(scan.name), decisions[scan.name] or None)
            rows.append((scan.participant_id, scan.session_id, scan.scan_id, *facts))
        FLAGGED_TABLE.write(file, rows)
    return decisions


def require_decisions(decisions: Mapping[str, str], file: Path) -> None:
    """Stop, resumably, unless a person has decided on every flagged scan."""
    open_ones = [name for name, decision in decisions.items() if not decision]
    if open_ones:
        shown = ", ".join(open_ones[:5]) + (", ..." if len(open_ones) > 5 else "")
        raise ResumableError(
            f"{file}: {len(open_ones)} of {len(decisions)} doubtful registrations have no decision ({shown}). Look at "
            "their figures, write keep or drop into the column decision, and run the same command again."
        )


def dropped_reason(flags: str) -> str:
    return f"{DROPPED_REASON}: {flags}"


def _read_decisions(file: Path) -> dict[tuple[str, str], str]:
    if not file.is_file():
        return {}
    columns = ("participant_id", "session_id", "flags", "decision")
    table = read_table(file, columns, columns).astype(object)
    decisions = {}
    for line, row in enumerate(table.where(table.notna(), "").to_dict("records"), start=2):
        name = "_".join(part for part in (row["participant_id"], row["session_id"]) if part)
        decision = row["decision"].strip().lower()
        if decision not in ("", KEEP, DROP):
            raise BadInputError(f"{file}: line {line}, column decision: {row['decision']!r}; write keep or drop.")
        decisions[name, row["flags"]] = decision
    return decisions


MIRRORED, AS_OTHERS, NOT_KNOWN = "mirrored", "as the others", "not known: "
"""Values of the column ``sides``; the last is the start of one."""
MIRRORED_REASON = "looks mirrored left to right"


def add_doubt(
    quality: pd.DataFrame,
    regions: pd.DataFrame,
    scans: Sequence[Scan],
    layout: RunLayout,
    config: RegistrationConfig,
    decided: bool,
    sides: Sides | None,
) -> pd.DataFrame:
    """Fill in the columns on doubt of a registration; with ``flagged = "ask"`` also write ``flagged.tsv``.

    `quality` has one row per scan, in the order of `scans`; `regions` is ``region_quality.tsv``. `decided` is False
    while scans are still being registered: the cohort may change, so nothing is decided. `sides` are those of the
    registered scans, in their order; None if they have not been compared.
    """
    registered = (quality["status"] == "registered").to_numpy()
    good = [scan for scan, fine in zip(scans, registered, strict=True) if fine]
    reasons = outliers.flag_reasons(quality[registered], [scan.age for scan in good])
    local = outliers.region_reasons(regions)
    scores: dict[str, float] = {}
    side_of: dict[str, str] = {}
    if sides is not None:
        scores = dict(zip((scan.name for scan in good), sides.scores, strict=False))
        usual = NOT_KNOWN + sides.unknown if sides.unknown else AS_OTHERS
        for scan, mirrored in zip(good, sides.mirrored, strict=True):
            side_of[scan.name] = MIRRORED if mirrored else usual
    flags: dict[str, str] = {}
    for scan, of_scan in zip(good, reasons, strict=True):
        every = [*of_scan, *local.get(scan.scan_id, ())]
        if side_of.get(scan.name) == MIRRORED:
            every.insert(0, f"{MIRRORED_REASON} (asymmetry {scores[scan.name]:.2f} against the others')")
        if every:
            flags[scan.name] = "; ".join(every)
    figures = {
        scan.name: os.path.relpath(
            layout.scan(scan.participant_id, scan.session_id, config.resolution_mm).overview, layout.root
        )
        for scan in good
    }
    decisions = decide(scans, flags, config.flagged, FLAGGED_TABLE.path(layout), figures) if decided else {}
    worst = outliers.worst_regions(regions)
    rounded = [round(float(scores[scan.name]), 3) if scan.name in scores else None for scan in scans]
    columns = {
        "side_score": pd.Series(rounded, quality.index, dtype=float),
        "worst_regions": pd.Series([worst.get(scan.scan_id) for scan in scans], quality.index, dtype=object),
    }
    for column, texts in {"sides": side_of, "flags": flags, "decision": decisions}.items():
        columns[column] = pd.Series([texts.get(scan.name) or None for scan in scans], quality.index, dtype=object)
    return quality.assign(**columns)
