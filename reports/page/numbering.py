"""Numbers of figures: given when the index is put together, in the order in which a reader meets them.

Sections are made apart from each other, perhaps in different processes, and one that does not apply is left out. So a
template only marks where a number belongs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from markupsafe import Markup

MARK = "<!--figure-->"
"""Stands before a caption; text of the input cannot hold it, since templates escape that."""


def numbered(parts: Sequence[Markup]) -> list[Markup]:
    """Parts of a page with their marks replaced by numbers that run through all of them.

    Examples
    --------
    >>> numbered([Markup("<!--figure--> A <!--figure--> B"), Markup("<!--figure--> C")])
    [Markup('Figure 1. A Figure 2. B'), Markup('Figure 3. C')]
    """
    numbers = count(1)
    return [Markup(re.sub(re.escape(MARK), lambda _: f"Figure {next(numbers)}.", part)) for part in parts]
