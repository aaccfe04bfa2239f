"""Scans whose registration is in doubt, by the columns of ``registration.tsv``."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.registration.quality.doubt import MIRRORED, MIRRORED_REASON, NOT_KNOWN
from heatlas.pipeline.registration.quality.flags import MIN_COHORT
from heatlas.reports.read.run_record import RunRecord

ROUGH = 0.1  # median share of brain masks outside the template's brain, above which extraction is rough
MOST = 0.5  # share of flagged scans above which a flag no longer tells one scan from another


def outlying_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that registration has flagged (`pipeline.registration.quality.flags`)."""
    return quality["flags"].notna()


def registered(run: RunRecord) -> pd.DataFrame:
    """Rows of registration that succeeded."""
    quality = run.tables["registration"]
    return quality[quality["status"] == "registered"]


def mirrored_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that look mirrored left to right (`pipeline.registration.quality.sides`)."""
    return quality["sides"].astype(str) == MIRRORED


def misplaced_scans(quality: pd.DataFrame) -> pd.Series:
    """Flagged scans with another reason than their sides."""
    others = quality["flags"].map(
        lambda said: [one for one in str(said).split("; ") if not one.startswith(MIRRORED_REASON)]
    )
    return outlying_scans(quality) & others.map(bool)


def sides_unknown(quality: pd.DataFrame) -> str:
    """Why nothing can be said about the sides of the scans; empty if something can, or they were not compared."""
    said = quality["sides"].dropna().astype(str)
    said = said[said.str.startswith(NOT_KNOWN)]
    return said.iloc[0].removeprefix(NOT_KNOWN) if len(said) else ""


def roughly_extracted(run: RunRecord) -> float:
    """Median share of the brain masks outside the template's brain if it is large and not cut off; else 0."""
    if not run.has("registration") or run.config.registration.brain_extraction == "template-mask":
        return 0.0
    share = float(registered(run)["outside_share"].astype(float).median())
    return share if share > ROUGH else 0.0


def mostly_flagged(run: RunRecord) -> bool:
    """Whether most registered scans are flagged: that says more about the limits, or about all, than about each."""
    if not run.has("registration"):
        return False
    good = registered(run)
    return len(good) >= MIN_COHORT and bool(outlying_scans(good).mean() > MOST)
