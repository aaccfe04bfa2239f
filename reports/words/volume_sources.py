"""Where a hippocampal volume comes from, said wherever one is shown: two sources differ by more than anatomy."""

from __future__ import annotations

from pipeline.registration.settled import JACOBIAN_SOURCE
from reports.analyses.columns import worded
from reports.read.run_record import RunRecord
from reports.words.numbers import is_missing, listing

OWN = "own, Jacobian of the registration"
"""Volumes that this run measures itself: of every region, and of the hippocampus where the input has none."""


def source_name(source: object) -> str:
    """Short name of an entry of ``hippocampus_source``; what it says in brackets is in the scan table.

    Examples
    --------
    >>> source_name("ADNIMERGE (FreeSurfer 5.1)"), source_name("Jacobian of the registration, test atlas")
    ('ADNIMERGE', 'own, Jacobian of the registration')
    """
    if is_missing(source):
        return "source not known"
    said = str(source)
    return OWN if said.startswith(JACOBIAN_SOURCE) else said.split(" (")[0]


def biomarker_in_words(run: RunRecord, name: object) -> str:
    """What relevance is compared with, in words; a volume with its source."""
    sources = {"hippocampus": hippocampal_source(run), "own volume": OWN}
    source = sources.get(str(name).removesuffix("/tiv"))
    return worded(name) if source is None else f"{worded(name)} ({source})"


def hippocampal_source(run: RunRecord, whole: bool = False) -> str:
    """Sources of the hippocampal volumes of the kept scans, in short or (`whole`) as the scan table has them."""
    if not run.has("scans"):
        return "source not known"
    scans = run.tables["scans"]
    known = scans[scans["kept"].astype(bool) & scans["hippocampus_mm3"].notna()]
    said = known["hippocampus_source"].dropna().astype(str)
    names = list(dict.fromkeys(said if whole else said.map(source_name)))
    return listing(names) or "source not known"
