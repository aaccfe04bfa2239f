"""The table of people of images whose names say whose they are: given, or that of a BIDS dataset around them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS, BidsTables, read_bids_tables
from heatlas.pipeline.cohort.listed.images import require_single
from heatlas.pipeline.cohort.listed.people import as_bids, find_table, read_people
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

_NEAR = 4
"""Folders above the input that may hold its table, as above ``derivatives/fmriprep/sourcedata/freesurfer``."""


def visits_and_tables(
    root: Path, named: Mapping[str, tuple[str, str | None]], config: CohortConfig
) -> tuple[dict[str, tuple[str, str | None]], BidsTables, list[str]]:
    """Participant and session of each subject, what the tables say of them, and where these are.

    The tables are ``--table``, else ``participants.tsv`` in the folder or one above. A file of that name brings the
    sessions tables beside it along.

    `named`: participant and session by the name of each subject.
    """
    if config.table and (file := find_table(config.table, root)).name != PARTICIPANTS:
        table = read_people(file, named)
        rows = {row: row.path for row in table.rows if row.path in named}
        require_single(table, rows, of_visits=False)
        said = {name: (row.person, row.session or named[name][1]) for row, name in rows.items()}
        renamed = any(named[name][0] != row.person for row, name in rows.items())  # then no folder stands for itself
        return said if renamed else {**named, **said}, as_bids(table), []
    near = [find_table(config.table, root).parent] if config.table else [root, *root.parents[:_NEAR]]
    where = next((folder for folder in near if (folder / PARTICIPANTS).is_file()), None)
    if where is None:
        raise BadInputError(
            f"{root}: no table of its people. Give one with --table, with a column of the subjects' names, or put a "
            f"{PARTICIPANTS} there."
        )
    visits = sorted(set(named.values()), key=str)
    tables = read_bids_tables(where, sorted({person for person, _ in visits}), visits)
    return dict(named), tables, [] if where == root else [f"tables come from {where.name}"]
