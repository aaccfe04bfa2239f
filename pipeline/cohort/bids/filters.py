"""Filter files of BIDS Apps: which images are used, by the entities of their names.

The layout is fMRIPrep's: ``{"t1w": {"session": "baseline", "acquisition": ["mprage", null], "run": 1}}``. For another
``cohort.suffix`` the key is that suffix in lower case. Entities have the names of PyBIDS or those of file names; null
means that the entity is absent, and ``"*"`` any value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.run.config.image_kinds import T1W, ImageKind
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError

_SHORT = {
    "subject": "sub", "session": "ses", "acquisition": "acq", "ceagent": "ce", "reconstruction": "rec",
    "inversion": "inv", "description": "desc", "resolution": "res", "tracer": "trc",
}  # fmt: skip
_ENTITIES = frozenset({"sub", "ses", "acq", "ce", "rec", "run", "echo", "part", "inv", "space", "desc", "res", "trc"})

Filter = Mapping[str, tuple[str | None, ...]]
"""Values by entity; None where it may be absent."""


def read_filter(path: Path, kind: ImageKind = T1W) -> Filter:
    """The filter of images of a kind in a file; BadInputError if it cannot be one."""
    key = kind.suffix.lower()
    wanted = read_json(path, f"Give a filter of {key} images, as docs/bids_app.md shows.").get(key, {})
    if not isinstance(wanted, dict):
        raise BadInputError(f"{path}: {key} is not an object of entities and values.")
    always = {"datatype": kind.folder, "suffix": kind.suffix}  # filters of other programs name them too
    found: dict[str, tuple[str | None, ...]] = {}
    for name, value in wanted.items():
        values = value if isinstance(value, list) else [value]
        if not values or not all(one is None or type(one) in (str, int) for one in values):
            raise BadInputError(f"{path}: {key}.{name} must be a text, a whole number, null or a list of these.")
        if name in always:
            if always[name] not in values:
                raise BadInputError(f'{path}: {key}.{name} must be "{always[name]}"; other images are not read.')
            continue
        if (short := _SHORT.get(name, name)) not in _ENTITIES:
            raise BadInputError(f"{path}: {key}.{name} is no entity; known are {', '.join(sorted(_ENTITIES))}.")
        found[short] = tuple(None if one is None else _plain(str(one).removeprefix(f"{short}-")) for one in values)
    return found


def matching(candidates: Sequence[Candidate], wanted: Filter) -> list[Candidate]:
    """Drop the images whose names do not match; the reason names the entity."""
    return [_checked(candidate, wanted) if candidate.scan.kept else candidate for candidate in candidates]


def _checked(candidate: Candidate, wanted: Filter) -> Candidate:
    stem = PurePosixPath(candidate.scan.file).name.split(".")[0]
    entities = {key: _plain(value) for key, found, value in (part.partition("-") for part in stem.split("_")) if found}
    for name, values in wanted.items():
        if entities.get(name) not in values and not ("*" in values and name in entities):
            return candidate.dropped(f"not chosen by --bids-filter-file: {name}-{entities.get(name, '(absent)')}")
    return candidate


def _plain(value: str) -> str:
    """A value without the zeros before a number, so that 1 stands for ``run-01``.

    >>> _plain("01"), _plain("0"), _plain("m00")
    ('1', '0', 'm00')
    """
    return re.sub(r"^0+(?=\d+$)", "", value)
