"""Where the pages of a report lie, seen from one another.

``report.html`` and one page per participant lie in the run folder; one page per bilateral group lies in ``pages``.
File names are made here and nowhere else: any text may be the name of a participant or a region.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

PAGES = "pages"
LONGEST = 80  # characters of a file name that come from a name


def region_files(groups: Iterable[str]) -> dict[str, str]:
    """File of each bilateral group's page, relative to the run folder; no two alike, whatever their names.

    Examples
    --------
    >>> region_files(["Hippocampus", "Amygdala"])["Hippocampus"]
    'pages/region-hippocampus.html'
    >>> sorted(region_files(["A b", "a-b"]).values())
    ['pages/region-a-b-a760b0e1.html', 'pages/region-a-b-d44362d6.html']
    """
    names = list(dict.fromkeys(groups))
    stems = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST] for name in names]
    shared = {stem for stem in stems if stems.count(stem) > 1 or not stem}
    return {
        name: f"{PAGES}/region-{_with_digest(stem, name) if stem in shared else stem}.html"
        for name, stem in zip(names, stems, strict=True)
    }


def participant_file(participant_id: str) -> str:
    """File of a participant's page, relative to the run folder.

    Examples
    --------
    >>> participant_file("sub-ADNI002S0295")
    'sub-ADNI002S0295.html'
    >>> participant_file("sub-<b>/1")
    'sub-b-1-c99de82f.html'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", participant_id.removeprefix("sub-")).strip("-")[:LONGEST]
    return f"sub-{plain if f'sub-{plain}' == participant_id else _with_digest(plain, participant_id)}.html"


def _with_digest(stem: str, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{stem}-{digest}" if stem else digest


@dataclass(frozen=True)
class Links:
    """Addresses of the pages there are, as seen from one page."""

    regions: dict[str, str]  # files relative to the run folder, by bilateral group and by participant
    people: dict[str, str]
    up: str = ""  # from the page to the run folder: empty, or ``../`` for a page in a folder

    @property
    def index(self) -> str:
        return f"{self.up}report.html"

    def region(self, group: object) -> str | None:
        """Address of a bilateral group's page; None where there is none."""
        return self._to(self.regions.get(str(group)))

    def participant(self, participant_id: object) -> str | None:
        """Address of a participant's page; None where there is none."""
        return self._to(self.people.get(str(participant_id)))

    def _to(self, file: str | None) -> str | None:
        return None if file is None else self.up + quote(file)

    def seen_from(self, folder: str) -> Links:
        """The same pages, seen from a page in a folder of the run."""
        return Links(self.regions, self.people, "../" * len([part for part in folder.split("/") if part]))
