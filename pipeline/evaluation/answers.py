"""Answers of the bench, and the level of its tests; one definition for every table."""

from __future__ import annotations

YES, PARTLY, NO, UNKNOWN = "yes", "partly", "no", "not known"
LEVEL = 0.05
"""A p below this answers a question. With shuffled labels it is a map that fails: random orders of the regions would
find planted ones as well in fewer cases than this. So it is also the share of sound maps that fail, were regions
independent."""
