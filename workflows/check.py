"""What ``heatlas check`` says about an input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.cohort.reading import InputCohort
from pipeline.cohort.records import Scan
from pipeline.run.config import CohortConfig


def describe_cohort(cohort: InputCohort, config: CohortConfig) -> str:
    """Describe in words what a run would use, drop and miss."""
    table = cohort.table
    kept, labelled = table.kept, table.labelled
    lines = [
        f"{cohort.root}: {_KINDS[cohort.layout]}",
        f"{len(table)} scans found of {_people(table.scans)}; {len(kept)} kept of {_people(kept)}",
    ]
    dropped = [scan for scan in table if not scan.kept]
    for kind, count in Counter(_kind_of(scan) for scan in dropped).most_common():
        names = [scan.scan_id for scan in dropped if _kind_of(scan) == kind]
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        lines.append(f"  dropped {count}: {kind} ({shown})")
    lines.append(f"contrast {config.contrast_column}: {config.negative} against {config.positive}")
    for label in (config.negative, config.positive):
        scans = [scan for scan in labelled if scan.label == label]
        lines.append(f"  {label}: {len(scans)} scans of {_people(scans)}")
    outside = [scan for scan in kept if scan.label is None]
    if outside:
        lines.append(f"  outside the contrast: {len(outside)} scans of {_people(outside)} (registered, not trained on)")
    for name, text in (("hippocampus_mm3", "hippocampal volume"), ("tiv_mm3", "intracranial volume"), ("age", "age")):
        missing = sum(getattr(scan, name) is None for scan in labelled)
        if missing:
            lines.append(f"  missing {text}: {missing} of {len(labelled)} scans")
    lines += [f"note: {note}" for note in cohort.notes]
    return "\n".join(lines)


_KINDS = {"adni": "ADNI download", "bids": "BIDS dataset"}


def _kind_of(scan: Scan) -> str:
    """Reason without its details, which follow a colon."""
    return (scan.reason or "").partition(":")[0]


def _people(scans: Iterable[Scan]) -> str:
    count = len({scan.participant_id for scan in scans})
    return f"{count} participant{'s' if count != 1 else ''}"
