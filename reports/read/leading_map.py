"""Which map a report leads with: the one that the evaluation passed, or else the one that shows evidence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

FIRST = ("inherent", "expectedGradients")
"""Evidence maps that lead before others: the exact one of networks that have it, then the one made by default."""


def leading_map(names: Sequence[str], evidence: Collection[str], usual: str, verdicts: pd.DataFrame | None) -> str:
    """Decide the leading map of a run.

    Gives the first of the evidence maps (inherent and expected gradients first) and then `usual` that passed the
    evaluation; without an evaluation, or if none of them passed, the first.

    Parameters
    ----------
    names : sequence of str
        Maps of the run.
    evidence : collection of str
        Those that are in units of evidence, relative to controls.
    usual : str
        The map that leads without an evidence map.
    verdicts : pandas.DataFrame or None
        ``verdicts.tsv``; None where the run was not evaluated.

    Examples
    --------
    >>> leading_map(["lrpB000", "gb", "expectedGradients"], {"expectedGradients"}, "lrpB000", None)
    'expectedGradients'
    >>> verdicts = pd.DataFrame({"map": ["deeplift", "expectedGradients"], "passed": [True, False]})
    >>> leading_map(["lrpB000", "deeplift", "expectedGradients"], verdicts["map"].tolist(), "lrpB000", verdicts)
    'deeplift'
    """
    places = {name: place for place, name in enumerate(FIRST)}
    candidates = sorted((name for name in names if name in evidence), key=lambda name: places.get(name, len(FIRST)))
    candidates.append(usual)
    return next((name for name in candidates if has_passed(verdicts, name)), candidates[0])


def has_passed(verdicts: pd.DataFrame | None, name: str) -> bool | None:
    """Whether a map passed on every cohort where anything could be asked; None where nothing is known.

    Examples
    --------
    >>> table = pd.DataFrame({"map": ["gb", "gb", "lrpB000"], "passed": ["true", None, "false"]})
    >>> has_passed(table, "gb"), has_passed(table, "lrpB000"), has_passed(table, "occlusion"), has_passed(None, "gb")
    (True, False, None, None)
    """
    if verdicts is None:
        return None
    known = verdicts.loc[verdicts["map"] == name, "passed"].dropna()
    return None if known.empty else bool(known.astype(str).str.lower().eq("true").all())
