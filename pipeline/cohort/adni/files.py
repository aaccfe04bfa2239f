"""Which CSV file of an ADNI download is which table: recognised by name, whatever LONI appended to it.

``DXSUM_PDXCONV_ADNIALL_12Oct2023.csv``, ``dxsum.csv`` and ``DXSUM_18Feb2025 (1).csv`` are the same table. Of several
downloads of a table, the file with the newest date in its name is used, and a note names the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime

from heatlas.pipeline.run.plain_text import listed

ADNIMERGE = "ADNIMERGE"
DXSUM = "DXSUM"
CDR = "CDR"
MPRAGEMETA = "MPRAGEMETA"
MRIQC = "MRIQC"
QUALITY_ADNI1 = ("MRIQUALITY", "MRIPROT")
"""One table, renamed by LONI in 2024."""
QUALITY_MAYO = ("MAYOADIRL_MRI_IMAGEQC", "MAYOADIRL_MRI_QUALITY")
"""The Mayo Clinic's grades, of ADNIGO/2 and of ADNI3."""
FREESURFER = ("UCSFFSX", "UCSFFSX51", "UCSFFSX6", "UCSFFSX7")

_SUFFIX = r"(?P<suffix>([^A-Za-z0-9][^/]*)?)\.csv$"
_NAMES = {
    ADNIMERGE: re.compile(r"adnimerge(?P<suffix>[^/]*)\.csv$", re.IGNORECASE),
    DXSUM: re.compile(r"(^|/)dxsum(_pdxconv)?(_adniall)?" + _SUFFIX, re.IGNORECASE),
    "MAYOADIRL_MRI_QUALITY": re.compile(r"(^|/)mayoadirl_mri_quality(_adni\d)?" + _SUFFIX, re.IGNORECASE),
    **{
        name: re.compile(rf"(^|/){name}" + _SUFFIX, re.IGNORECASE)
        for name in (CDR, MPRAGEMETA, MRIQC, *QUALITY_ADNI1, QUALITY_MAYO[0], *FREESURFER)
    },
}
_DATES = (
    (re.compile(r"\d{1,2}[A-Za-z]{3}\d{4}"), "%d%b%Y"),
    (re.compile(r"(?<!\d)\d{8}(?!\d)"), "%Y%m%d"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "%Y-%m-%d"),
    (re.compile(r"(?<!\d)\d\d_\d\d_\d\d(?!\d)"), "%m_%d_%y"),
)


def newest_tables(names: Sequence[str]) -> tuple[Mapping[str, str], list[str]]:
    """File of each known table, such as ``DXSUM``; notes name older files that are not used.

    >>> newest_tables(["a/DXSUM_02Feb2024.csv", "dxsum_pdxconv_adniall.csv", "CDR (1).csv"])[0]
    {'DXSUM': 'a/DXSUM_02Feb2024.csv', 'CDR': 'CDR (1).csv'}
    """
    files, notes = {}, []
    for table, pattern in _NAMES.items():
        found = sorted((_suffix_date(match["suffix"]), name) for name in names if (match := pattern.search(name)))
        if found:
            files[table] = found[-1][1]
        if len(found) > 1:
            older = listed(name for _, name in found[:-1])
            notes.append(f"several {table} tables; {files[table]} is used, not {older}")
    return files, notes


def _suffix_date(suffix: str) -> date:
    """Date in a file name; the earliest possible date if there is none."""
    for pattern, form in _DATES:
        if found := pattern.search(suffix):
            try:
                return datetime.strptime(found[0], form).date()
            except ValueError:
                continue
    return date.min
