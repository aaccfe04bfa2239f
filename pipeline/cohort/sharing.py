"""What may be shared: anonymised outputs, and manifests by which a cohort is shared without its scans.

Ages of 89 and above become 89, as BIDS recommends (HIPAA §164.514(b)(2)(i)(C) has 90). ``--anonymise KEY`` moves all
dates of a participant back by the same number of days, to before 1926, by which BIDS recognises shifted dates. The
shift is derived from the participant and a secret in the file KEY; the seed of the run would not do, since it is
written to the run. ``--pseudonymise sites,ids`` replaces names by digests with the same secret.

The digest in a manifest is that of the image, not of the file: compression, file name and free text in the header,
which LONI rewrites for each download, do not matter; a single voxel does.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime
import hashlib
import hmac
import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.spaces import UNREADABLE
from heatlas.pipeline.cohort.candidates import Candidate, drop
from heatlas.pipeline.cohort.cells.tables import RANGES
from heatlas.pipeline.cohort.cells.values import number
from heatlas.pipeline.cohort.images.conversion import is_pair
from heatlas.pipeline.cohort.images.dicom import series_of
from heatlas.pipeline.cohort.images.files import dicom_files, is_image
from heatlas.pipeline.cohort.records import OLDEST_AGE, Scan
from heatlas.pipeline.run.config.settings import PrivacyConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.tables import require_digests
from heatlas.pipeline.run.work.digests import file_digest, text_digest
from heatlas.pipeline.run.work.progress import Progress
from heatlas.pipeline.run.work.seeds import generator

MANIFEST_TABLE = declared("manifest", __file__)
MANIFEST_COMPARISON_TABLE = declared("manifest_comparison", __file__)
Status = Literal["same", "unchecked", "different", "unreadable", "dropped", "missing", "extra"]
MATCHING: frozenset[Status] = frozenset({"same", "unchecked"})


@dataclass(frozen=True)
class Manifest:
    """Images of a cohort: digest (or None) by scan id."""

    digests: Mapping[str, str | None]

    @property
    def digest(self) -> str:
        """One digest of the whole cohort, independent of the order of images; for a publication."""
        return text_digest("\n".join(f"{name} {digest}" for name, digest in sorted(self.digests.items())))

    def write(self, path: Path) -> None:
        MANIFEST_TABLE.write(path, sorted(self.digests.items()))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        frame = MANIFEST_TABLE.read(path)
        ids = [str(name) for name in frame["scan_id"]]
        repeated = [name for name, count in Counter(ids).items() if count > 1]
        if repeated or frame["scan_id"].isna().any():
            what = f"scan_id {listed(repeated)} appears twice" if repeated else "a scan_id is missing"
            raise BadInputError(f"{path}: {what}. Export the manifest again.")
        require_digests(path, frame, "sha256", "Export the manifest again.")
        digests = [None if pd.isna(digest) else str(digest) for digest in frame["sha256"]]
        return cls(dict(zip(ids, digests, strict=True)))


@dataclass(frozen=True)
class Match:
    """Result for one image of a manifest, or for one that is not in it."""

    scan_id: str
    status: Status
    detail: str | None = None


def make_manifest(root: Path, scans: Sequence[Scan], ids_only: bool = False) -> Manifest:
    """Manifest of kept scans below a folder; `ids_only`: without digests, for which every voxel is read."""
    digests = {} if ids_only else _digests(root, scans)
    failed = [digest for digest in digests.values() if isinstance(digest, BadInputError)]
    if failed:
        raise failed[0]
    return Manifest({scan.scan_id: None if ids_only else str(digests[scan.scan_id]) for scan in scans})


def select(root: Path, candidates: Sequence[Candidate], manifest: Manifest) -> tuple[list[Candidate], list[Match]]:
    """Keep the images of a manifest, drop all others, and report the result for each, then for unlisted ones."""
    scans = {candidate.scan.scan_id: candidate.scan for candidate in candidates if candidate.scan.kept}
    wanted = [scan for scan_id, scan in scans.items() if manifest.digests.get(scan_id) is not None]
    digests = _digests(root, wanted)
    reasons = {candidate.scan.scan_id: candidate.scan.reason for candidate in candidates if not candidate.scan.kept}
    matches: dict[str, Match] = {}
    for name, expected in manifest.digests.items():
        actual = digests.get(name)
        if name not in scans:
            matches[name] = Match(name, "dropped", reasons[name]) if name in reasons else Match(name, "missing")
        elif expected is None:
            matches[name] = Match(name, "unchecked")
        elif isinstance(actual, BadInputError):
            matches[name] = Match(name, "unreadable", str(actual))
        elif actual == expected:
            matches[name] = Match(name, "same")
        else:
            matches[name] = Match(name, "different", f"sha256 {actual}, not {expected}")

    def problem(candidate: Candidate) -> str | None:
        match = matches.get(candidate.scan.scan_id)
        if match is None:
            return "not in the manifest"
        return None if match.status in MATCHING else f"{match.status}, compared with the manifest: {match.detail}"

    unlisted = (c.scan.scan_id for c in candidates if c.scan.kept and c.scan.scan_id not in matches)
    extra = [Match(scan_id, "extra") for scan_id in unlisted]
    return drop(candidates, problem), [*matches.values(), *extra]


def write_comparison(where: RunLayout | Path, matches: Iterable[Match]) -> None:
    MANIFEST_COMPARISON_TABLE.write(where, [(match.scan_id, match.status, match.detail) for match in matches])


def _digests(root: Path, scans: Sequence[Scan]) -> dict[str, str | BadInputError]:
    """Digest of each image, or its error; in threads, since unpacking and hashing release Python's lock."""

    def digest(scan: Scan) -> str | BadInputError:
        try:
            one_file = is_image(scan.file) or is_pair(scan.file)
            first = image_digest(root / scan.file) if one_file else _series_digest(root, scan.file)
            others = [image_digest(root / path) for path in (scan.t1w, *scan.further) if path]
            return text_digest(" ".join([first, *others])) if others else first
        except BadInputError as error:
            return BadInputError(str(error).replace(f"{root}/", ""))

    with ThreadPoolExecutor(os.cpu_count()) as pool, Progress(len(scans), "Reading images") as bar:
        digests = {}
        for scan, result in zip(scans, pool.map(digest, scans), strict=True):
            digests[scan.scan_id] = result
            bar.update()
    return digests


def _series_digest(root: Path, image: str) -> str:
    """One digest of the files of a DICOM series, whatever their names."""
    series = series_of(root, image, dicom_files(root / image), math.inf)
    if series is None:
        raise BadInputError(f"{root / image}: belongs to no DICOM series. Download the scan again.")
    try:
        return text_digest("\n".join(sorted(file_digest(root / file) for file in series.files)))
    except OSError as error:
        raise BadInputError(f"{root / image}: a file of its series cannot be read ({error.strerror}).") from error


def image_digest(path: Path) -> str:
    """SHA-256 of a NIfTI image: of its voxels as stored, their type, scaling, shape and affine."""
    try:
        image: Any = nib.load(path)
        stored = np.asarray(image.dataobj.get_unscaled())
    except UNREADABLE as error:
        raise BadInputError(f"{path}: cannot be read ({error}). Download or convert the scan again.") from error
    description = [
        list(stored.shape),
        stored.dtype.newbyteorder("=").str.lstrip("<>=|"),
        [float(value) for value in (image.dataobj.slope, image.dataobj.inter)],
        np.round(image.affine, 4).tolist(),
    ]
    digest = hashlib.sha256(repr(description).encode())
    little = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    digest.update(little.tobytes(order="F"))
    return digest.hexdigest()


YEARS_BACK = 106
"""Dates of scans up to 2031 end up in 1925 or before."""
_SPREAD_DAYS = 3650
_MIN_KEY_LENGTH = 32
_MIN_DISTINCT = 6
"""Smallest number of different characters of a key; 32 random hexadecimal digits have fewer once in 3e12 cases."""

_TIME = r"(?P<time>(?:[T_-]\d\d[:_.-]?\d\d(?:[:_.-]?\d\d(?:\.\d+)?)?| \d\d:\d\d(?::\d\d(?:\.\d+)?)?)(?!\d))?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_MONTHS = tuple(calendar.month_name)[1:]
_WORD = rf"(?P<word>{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _MONTHS)})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<!\d){_YEAR}(?P<gap>[-_./])(?P<month>\d\d?)(?P=gap)(?P<day>\d\d?)(?!\d){_TIME}",
        rf"(?<!\d){_YEAR}(?P<month>\d\d)(?P<day>\d\d)(?P<time>[T_]?\d{{4,12}})?(?!\d)",
        rf"(?<![\d/])(?P<day>\d\d?)(?P<gap>[.])(?P<month>\d\d?)(?P=gap){_YEAR}(?![\d/]){_TIME}",
        rf"(?<![\d/])(?P<month>\d\d?)(?P<gap>[-_/])(?P<day>\d\d?)(?P=gap){_YEAR}(?![\d/]){_TIME}",
        rf"(?<!\d)(?P<day>\d\d?)(?P<gap>[-_. ]?){_WORD}(?P<last>[-_., ]*){_YEAR}(?!\d){_TIME}",
        rf"(?<![a-z]){_WORD}(?P<gap>[-_. ]?)(?P<day>\d\d?)(?P<last>[-_., ]+){_YEAR}(?!\d){_TIME}",
    )
)
"""Dates in names and tables. If the first of two numbers cannot be a month, it is the day."""
_UID = re.compile(r"(?<![\d.])[0-2](?:\.\d+){5,}(?!\d)")
"""DICOM identifiers, into which scanners write date and time."""


def words_of(column: str) -> frozenset[str]:
    """The words of a column's name, in lower case.

    >>> sorted(words_of("PatientName")), sorted(words_of("DOB_year")), sorted(words_of("E-mail 2"))
    (['name', 'patient'], ['dob', 'year'], ['e', 'mail'])
    """
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+", column))


_AGE = re.compile(r"(?:pt)?ages?(?:bl|yrs?|years?|months?|days?)?")
_SPANS = frozenset({"band", "bin", "category", "class", "decade", "group", "groups", "range"})
"""Words of columns of age groups, which are no ages."""


@cache
def oldest_shown(column: str) -> float | None:
    """The highest age that a column is written with, in its unit; None if it holds no ages, by its name.

    >>> oldest_shown("age_years"), oldest_shown("AgeMonths"), oldest_shown("age_group"), oldest_shown("stage")
    (89.0, 1068.0, None, None)
    """
    words = words_of(column)
    if words & _SPANS or not any(_AGE.fullmatch(word) for word in words):
        return None
    plain = column.lower()
    return OLDEST_AGE * (12 if "month" in plain else 365.25 if "day" in plain else 1)


def with_capped_columns(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Limit the ages in columns of the source, whatever they are called, to 89 years."""
    return [
        dataclasses.replace(candidate, columns={name: _capped(name, cell) for name, cell in candidate.columns.items()})
        for candidate in candidates
    ]


def _capped(column: str, text: str) -> str:
    """A cell, with ages above the highest shown as this one, also inside a text such as ``95 years``."""
    oldest = oldest_shown(column)
    if oldest is None:
        return text

    def shown(age: re.Match[str]) -> str:
        years = float(age[0].replace(",", ".")) * OLDEST_AGE / oldest
        return f"{oldest:g}" if OLDEST_AGE < years <= RANGES["age"].high else age[0]

    return re.sub(r"[0-9]+(?:[.,][0-9]+)?", shown, text)


def capped_ages(scans: Iterable[Scan]) -> tuple[list[Scan], list[str]]:
    """Limit ages to 89 years, and note how many were older."""
    older = 0
    capped = []
    for scan in scans:
        if scan.age is not None and scan.age > OLDEST_AGE:
            older += 1
            scan = dataclasses.replace(scan, age=OLDEST_AGE)
        capped.append(scan)
    return capped, [
        f"ages above {OLDEST_AGE:g} of {counted(older, 'scan')} are written as {OLDEST_AGE:g}"
    ] if older else []


@dataclass(frozen=True)
class Disguise:
    """How records are anonymised."""

    key: str = dataclasses.field(repr=False)  # the secret; never in an output or in the representation of this record
    pseudonyms: tuple[str, ...] = ()  # ``sites``, ``ids``, both or none
    exposed: bool = False  # whether others than its owner can read the key file

    def days_back(self, participant_id: str) -> int:
        """Number of days that all dates of a participant are moved back by."""
        spread = generator(int(hashlib.sha256(self.key.encode()).hexdigest(), 16), "dates", participant_id)
        return round(YEARS_BACK * 365.25) + int(spread.integers(_SPREAD_DAYS))

    def pseudonym(self, kind: str, name: str) -> str:
        """Ten hexadecimal digits for a name; any two of a million names agree with probability 0.4."""
        return hmac.new(self.key.encode(), f"{kind}:{name}".encode(), hashlib.sha256).hexdigest()[:10]

    def name(self, participant_id: str, text: str) -> str:
        """Name of a participant's image or session, with dates moved back and DICOM identifiers replaced."""
        hidden = _UID.sub(lambda match: "uid" + self.pseudonym("uid", match[0]), text)
        return shifted_dates(hidden, self.days_back(participant_id))

    def texts(self, people: Sequence[str], texts: Sequence[str | None]) -> list[str | None]:
        """Cells of a clinical column, one per scan of `people`: dates moved back, names of participants replaced."""
        names = {_bare(name): name for name in people} if "ids" in self.pseudonyms else {}
        spelt = "|".join("[-_. ]?".join(map(re.escape, name)) for name in names)
        anyone = re.compile(rf"(?<![a-z0-9])(?:sub-)?(?:adni)?(?:{spelt})(?![a-z0-9])", re.IGNORECASE)

        def pseudonym(match: re.Match[str]) -> str:
            return "P" + self.pseudonym("participant", names[_bare(match[0])])

        moved: list[str | None] = []
        for person, text in zip(people, texts, strict=True):
            if text is not None:
                text = shifted_dates(text, self.days_back(person))
                text = anyone.sub(pseudonym, text) if names and number(text) is None else text
            moved.append(text)
        return moved

    def scan(self, scan: Scan) -> Scan:
        """The scan as outputs may show it; `Scan.location` keeps the path of its image."""
        texts = {name: getattr(scan, name) for name in ("session_id", "scan_id", "image", "reason")}
        shown: dict[str, Any] = {name: text and self.name(scan.participant_id, text) for name, text in texts.items()}
        moved = dataclasses.replace(scan, location=scan.file or None, **shown)
        if "sites" in self.pseudonyms and scan.site is not None:
            moved = dataclasses.replace(moved, site="S" + self.pseudonym("site", scan.site))
        if "ids" not in self.pseudonyms:
            return moved
        scan_id = "I" + self.pseudonym("scan", f"{scan.participant_id}/{scan.scan_id}/{scan.image}")
        image = None if scan.image is None else scan_id + "".join(re.findall(r"\.nii(?:\.gz)?$|\.mgz$", scan.image))
        # The part of a reason after the colon may name other scans and files.
        reason = None if moved.reason is None else moved.reason.partition(":")[0]
        participant = "sub-P" + self.pseudonym("participant", scan.participant_id)
        return dataclasses.replace(moved, participant_id=participant, scan_id=scan_id, image=image, reason=reason)

    def matches(self, matches: Sequence[Match], scans: Iterable[Scan]) -> list[Match]:
        """Comparison with a manifest, with anonymised scan ids and without details."""
        shown = {scan.scan_id: self.name(scan.participant_id, scan.scan_id) for scan in scans}
        missing = [match for match in matches if match.scan_id not in shown]  # as the manifest names them
        return [Match(shown[match.scan_id], match.status) for match in matches if match.scan_id in shown] + missing

    def notes(self, notes: Sequence[str]) -> list[str]:
        """Notes on the input without the names after a colon: people, files, visits."""
        shortened = [note.partition(":")[0] for note in notes]
        if self.exposed:
            shortened.append("other users can read the key of --anonymise; remove that permission (chmod 600)")
        return shortened


def _bare(name: str) -> str:
    """A participant's name without prefix, case and punctuation: sub-ADNI002S0295 and 002_S_0295 are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("sub-").removeprefix("adni"))


def shifted_dates(text: str, days_back: int) -> str:
    """Move every date in a text back, and set every time of day beside one to 0.

    Known formats are 2006-04-18 (also with ``_``, ``.`` or ``/``, as LONI's 2006-04-18_08_20_30.0), 20060418,
    20060418T082030 and 20060418082030123, 4/18/2006 and 18/4/2006, 18.4.2006, 18Apr2006 and April 18, 2006. Text that
    only looks like a date is kept.

    >>> shifted_dates("ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I118671", 36525)
    'ADNI/002_S_0295/MPRAGE/1906-04-18_00_00_00.0/I118671'
    >>> shifted_dates("br_raw_20060418193538026_1_S13408", 36525), shifted_dates("ses-18Apr2006", 36525)
    ('br_raw_19060418000000000_1_S13408', 'ses-18Apr1906')
    """
    for pattern in _DATES:
        text = pattern.sub(lambda match: _shift_date(match, days_back), text)
    return text


def _shift_date(match: re.Match[str], days_back: int) -> str:
    parts = match.groupdict()
    month, day = ("word" if "word" in parts else "month"), "day"
    if month == "month" and "gap" in parts and int(parts[month]) > 12:
        month, day = day, month
    names = [name[:3].lower() for name in _MONTHS]
    number = names.index(parts["word"][:3].lower()) + 1 if month == "word" else int(parts[month])
    try:
        date = datetime.date(int(parts["year"]), number, int(parts[day])) - datetime.timedelta(days=days_back)
    except ValueError:
        return match[0]
    written = {"year": str(date.year), day: f"{date.day:0{len(parts[day])}}"}
    written[month] = _MONTHS[date.month - 1][:3] if month == "word" else f"{date.month:0{len(parts[month])}}"
    if parts.get("time"):
        written["time"] = re.sub(r"\d", "0", parts["time"])
    text, start = match[0], match.start()
    for name in sorted(written, key=match.start, reverse=True):
        text = text[: match.start(name) - start] + written[name] + text[match.end(name) - start :]
    return text


def open_disguise(key_file: Path | None, config: PrivacyConfig, kept_out_of: Sequence[Path]) -> Disguise | None:
    """The anonymisation that the settings ask for, or None.

    `key_file`: holds the secret; created, readable only by its owner, if absent. `kept_out_of`: where it must not lie.
    """
    if not config.shift_dates and not config.pseudonyms:
        return None
    if key_file is None:
        raise UsageError("privacy settings need a key: give --anonymise KEY, a file that is created if absent.")
    for folder in kept_out_of:
        if key_file.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"--anonymise {key_file}: the key is or lies inside {folder}; keep it apart from the data."
            )
    key = _read_or_make_key(key_file)
    return Disguise(key, config.pseudonyms, exposed=bool(key_file.stat().st_mode & 0o077))


def _read_or_make_key(path: Path) -> str:
    try:
        if not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        key = read_regular(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--anonymise {path}: cannot read or make the key ({error}).") from error
    if len(key.splitlines()) > 1:
        raise UsageError(
            f"--anonymise {path}: a key is one line, and this file has more, as a table. Name a file that is absent, "
            "and a key is made."
        )
    if len(key) < _MIN_KEY_LENGTH:
        raise UsageError(
            f"--anonymise {path}: a key has {_MIN_KEY_LENGTH} characters or more, as `openssl rand -hex 32` makes. "
            "Name a file that is absent, and one is made."
        )
    if len(set(key)) < _MIN_DISTINCT:
        raise UsageError(
            f"--anonymise {path}: the key has too few different characters ({len(set(key))}, not "
            f"{_MIN_DISTINCT} or more) and can be guessed. Name a file that is absent, and a key is made."
        )
    return key
