"""Anonymised outputs: ages of the very old always; on demand dates, and names of sites, participants and images.

Ages of 89 and above become 89, as BIDS recommends (HIPAA §164.514(b)(2)(i)(C) has 90).

``--anonymise KEY`` moves all dates of a participant back by the same number of days, so that intervals between visits
are preserved. Dates end up before 1926, by which BIDS recognises shifted dates. The shift is derived from the
participant and a secret in the file KEY, which is created if absent; the seed of the run would not do, since it is
written to the run. With the key the run can be repeated; with the outputs alone the shift cannot be undone.
``--pseudonymise sites,ids`` replaces names of sites, or of participants and images, by digests with the same secret.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heatlas.pipeline.cohort.cells.values import number
from heatlas.pipeline.cohort.records import OLDEST_AGE, Scan
from heatlas.pipeline.cohort.sharing.manifest import Match
from heatlas.pipeline.run.config.settings import PrivacyConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.regular_files import read_regular
from heatlas.pipeline.run.work.seeds import generator

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
        moved = dataclasses.replace(
            scan,
            session_id=None if scan.session_id is None else self.name(scan.participant_id, scan.session_id),
            scan_id=self.name(scan.participant_id, scan.scan_id),
            image=None if scan.image is None else self.name(scan.participant_id, scan.image),
            reason=None if scan.reason is None else self.name(scan.participant_id, scan.reason),
            location=scan.file or None,
        )
        if "sites" in self.pseudonyms and scan.site is not None:
            moved = dataclasses.replace(moved, site="S" + self.pseudonym("site", scan.site))
        return self._renamed(scan, moved) if "ids" in self.pseudonyms else moved

    def _renamed(self, scan: Scan, moved: Scan) -> Scan:
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
        text = pattern.sub(lambda match: _moved(match, days_back), text)
    return text


def _moved(match: re.Match[str], days_back: int) -> str:
    """A date moved back, in the same format."""
    found = match.groupdict()
    month, day = ("word" if "word" in found else "month"), "day"
    if month == "month" and "gap" in found and int(found[month]) > 12:
        month, day = day, month
    names = [name[:3].lower() for name in _MONTHS]
    number = names.index(found["word"][:3].lower()) + 1 if month == "word" else int(found[month])
    try:
        date = datetime.date(int(found["year"]), number, int(found[day])) - datetime.timedelta(days=days_back)
    except ValueError:
        return match[0]
    written = {"year": str(date.year), day: f"{date.day:0{len(found[day])}}"}
    written[month] = _MONTHS[date.month - 1][:3] if month == "word" else f"{date.month:0{len(found[month])}}"
    if found.get("time"):
        written["time"] = re.sub(r"\d", "0", found["time"])
    text, start = match[0], match.start()
    for name in sorted(written, key=match.start, reverse=True):
        text = text[: match.start(name) - start] + written[name] + text[match.end(name) - start :]
    return text


def open_disguise(key_file: Path | None, config: PrivacyConfig, kept_out_of: Sequence[Path]) -> Disguise | None:
    """The anonymisation that the settings ask for, or None.

    UsageError if a key is needed and not given, lies in one of these folders, or cannot be read, made or trusted.

    `key_file`: holds the secret; created, readable only by its owner, if absent. `kept_out_of`: input and output
    folders, in which the key must not lie.
    """
    if not config.shift_dates and not config.pseudonyms:
        return None
    if key_file is None:
        raise UsageError("privacy settings need a key: give --anonymise KEY, a file that is created if absent.")
    for folder in kept_out_of:
        if key_file.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"--anonymise {key_file}: the key lies inside {folder}; keep it apart from the data.")
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
