"""Which of several T1-weighted images of a visit is used.

The first criterion on which two images differ decides, and the reason of the rejected image names it:


1.  **quality control**: passed or not graded before failed (`CohortConfig.failed_quality` can drop failed images);
2.  **protocol**: full before accelerated, or the reverse (`CohortConfig.preferred_protocol`);
3.  **choice of the Mayo Clinic**: its selected series before others;
4.  **grade**: 1 before 2 before 3; an ungraded image counts as 1, since grades serve as warnings;
5.  **processing**: more of ADNI's own steps (gradient unwarping, B1, N3, scaling) before fewer;
6.  **repeat**: the first acquisition before the repeated one;
7.  **field strength**: 1.5 T before 3 T, or the reverse (`CohortConfig.preferred_field_strength`), unknown last;
8.  **date**: nearer to the date of the visit;
9.  **number**: the lower image number, which LONI assigned first; then the path.

The order is total, so the choice does not depend on the order in which files are found.
"""

from __future__ import annotations

import re

from heatlas.pipeline.cohort.adni.image_quality import ImageFacts
from heatlas.pipeline.run.config.settings import CohortConfig

CRITERIA = (
    "it passed ADNI's quality control",
    "the preferred protocol",
    "selected by the Mayo Clinic",
    "a better grade by the Mayo Clinic",
    "more of ADNI's processing steps",
    "the first acquisition, not a repeat",
    "the preferred field strength",
    "nearer to the date of the visit",
    "a lower image number",
)
"""The criteria in words, in the order of `preference`."""

_PROCESSING = ("gradwarp", "b1_correction", "n3", "scaled")
_REPEAT = re.compile(r"repeat|(^|_)mpr-?r(_|$)|(^|_)(rep|2nd)(_|$)", re.IGNORECASE)
_ACCELERATED = re.compile(r"acc?el|grappa|sense|arc(_|$)|(^|_)p2(_|$)", re.IGNORECASE)
_NO_DATE = 10_000


def preference(
    description: str, image_id: str, facts: ImageFacts, days_from_visit: int | None, config: CohortConfig
) -> tuple[int, ...]:
    """Sort key of an image among those of its visit; the smallest is used."""
    text = re.sub(r"[\s;,]+", "_", f"{description}_{facts.description or ''}")
    accelerated = facts.accelerated if facts.accelerated is not None else bool(_ACCELERATED.search(text))
    number = re.fullmatch(r"[A-Za-z]?(\d+)", image_id)
    return (
        int(facts.failed is not None),
        int(accelerated != (config.preferred_protocol == "accelerated")),
        int(facts.selected is False),
        facts.grade or 1,
        -sum(step in text.lower() for step in _PROCESSING),
        int(bool(_REPEAT.search(text))),
        _field_rank(facts.field_strength, float(config.preferred_field_strength)),
        _NO_DATE if days_from_visit is None else days_from_visit,
        int(number[1]) if number else 0,
    )


def _field_rank(field_strength: float | None, preferred: float) -> int:
    if field_strength is None:
        return 2
    return int(abs(field_strength - preferred) > 0.75)
