"""What outputs must not tell: ages of the very old always; on demand true dates, and names of sites, people and images.

Ages of 89 and above become 89, as the BIDS specification recommends (and US law for data without identifiers: HIPAA
§164.514(b)(2)(i)(C) has 90).

``--anonymise KEY`` moves every date of a participant back by one and the same number of days, so that the time between
visits stays true. The dates end up before 1926, by which BIDS recognises a shifted date. How far is derived from the
participant and a secret in the file KEY, which is made if it is absent: the run's own seed would not do, since it is
written to the run. Whoever keeps the key can repeat the run; whoever has the outputs only cannot undo it.
``--pseudonymise sites,ids`` replaces names of sites, or of participants and images, by digests with the same secret.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.cohort.manifest import Match
from pipeline.cohort.records import Scan
from pipeline.run.config import PrivacyConfig
from pipeline.run.errors import UsageError
from pipeline.run.regular_files import read_regular
from pipeline.run.seeds import generator

OLDEST_AGE = 89.0
YEARS_BACK = 106
"""Dates of scans up to 2031 end up in 1925 or before."""
_SPREAD_DAYS = 3650
_MIN_KEY_LENGTH = 32

_DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)-(\d\d)-(\d\d)(?!\d)(_\d\d_\d\d_\d\d\.\d+)?")
_COMPACT_DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)(\d\d)(\d\d)(\d{6,9})?(?!\d)")
_AMERICAN_DATE = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})/((?:19|20)\d\d)(?![\d/])")


def capped_ages(scans: Iterable[Scan]) -> tuple[list[Scan], list[str]]:
    """The scans with ages of at most 89 years, and a note on how many were older."""
    older = 0
    capped = []
    for scan in scans:
        if scan.age is not None and scan.age > OLDEST_AGE:
            older += 1
            scan = dataclasses.replace(scan, age=OLDEST_AGE)
        capped.append(scan)
    return capped, [f"ages above {OLDEST_AGE:g} of {older} scans are written as {OLDEST_AGE:g}"] if older else []


@dataclass(frozen=True)
class Disguise:
    """How records are anonymised.

    Parameters
    ----------
    key : str
        The secret; kept out of every output, and of what this record shows of itself.
    pseudonyms : tuple of str
        ``sites``, ``ids``, both or none.
    """

    key: str = dataclasses.field(repr=False)
    pseudonyms: tuple[str, ...] = ()

    def days_back(self, participant_id: str) -> int:
        """Number of days that all dates of a participant are moved back by."""
        spread = generator(int(hashlib.sha256(self.key.encode()).hexdigest(), 16), "dates", participant_id)
        return round(YEARS_BACK * 365.25) + int(spread.integers(_SPREAD_DAYS))

    def pseudonym(self, kind: str, name: str) -> str:
        """Ten hexadecimal digits for a name; two of a million names agree with probability 0.4."""
        return hmac.new(self.key.encode(), f"{kind}:{name}".encode(), hashlib.sha256).hexdigest()[:10]

    def scan(self, scan: Scan) -> Scan:
        """The scan as outputs may show it; `Scan.location` still says where its image lies."""
        back = self.days_back(scan.participant_id)
        moved = dataclasses.replace(
            scan,
            scan_id=shifted_dates(scan.scan_id, back),
            image=None if scan.image is None else shifted_dates(scan.image, back),
            reason=None if scan.reason is None else shifted_dates(scan.reason, back),
            location=scan.file or None,
        )
        if "sites" in self.pseudonyms and scan.site is not None:
            moved = dataclasses.replace(moved, site="S" + self.pseudonym("site", scan.site))
        return self._renamed(scan, moved) if "ids" in self.pseudonyms else moved

    def _renamed(self, scan: Scan, moved: Scan) -> Scan:
        scan_id = "I" + self.pseudonym("scan", f"{scan.participant_id}/{scan.scan_id}/{scan.image}")
        image = None if scan.image is None else scan_id + "".join(re.findall(r"\.nii(?:\.gz)?$", scan.image))
        # What follows the colon of a reason may name other scans and files.
        reason = None if moved.reason is None else moved.reason.partition(":")[0]
        participant = "sub-P" + self.pseudonym("participant", scan.participant_id)
        return dataclasses.replace(moved, participant_id=participant, scan_id=scan_id, image=image, reason=reason)

    def matches(self, matches: Sequence[Match], scans: Iterable[Scan]) -> list[Match]:
        """Comparison with a manifest, in the scan ids that outputs show and without details."""
        shown = {scan.scan_id: shifted_dates(scan.scan_id, self.days_back(scan.participant_id)) for scan in scans}
        missing = [match for match in matches if match.scan_id not in shown]  # as the manifest names them
        return [Match(shown[match.scan_id], match.status) for match in matches if match.scan_id in shown] + missing

    def notes(self, notes: Sequence[str]) -> list[str]:
        """Notes on the input, without what they name after a colon: people, files, visits."""
        return [note.partition(":")[0] for note in notes]


def shifted_dates(text: str, days_back: int) -> str:
    """A text with every date in it moved back and every time of day set to 0.

    Known are 2006-04-18 and LONI's 2006-04-18_08_20_30.0, 20060418 and 20060418082030123, 4/18/2006. What looks like
    one and is no date is left.

    Examples
    --------
    >>> shifted_dates("ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I118671", 36525)
    'ADNI/002_S_0295/MPRAGE/1906-04-18_00_00_00.0/I118671'
    >>> shifted_dates("br_raw_20060418193538026_1_S13408", 36525)
    'br_raw_19060418000000000_1_S13408'
    """

    def moved(year: str, month: str, day: str) -> datetime.date | None:
        try:
            return datetime.date(int(year), int(month), int(day)) - datetime.timedelta(days=days_back)
        except ValueError:
            return None

    def dashed(match: re.Match[str]) -> str:
        date = moved(match[1], match[2], match[3])
        return match[0] if date is None else date.isoformat() + ("_00_00_00.0" if match[4] else "")

    def compact(match: re.Match[str]) -> str:
        date = moved(match[1], match[2], match[3])
        return match[0] if date is None else date.strftime("%Y%m%d") + "0" * len(match[4] or "")

    def american(match: re.Match[str]) -> str:
        date = moved(match[3], match[1], match[2])
        return match[0] if date is None else f"{date.month}/{date.day}/{date.year}"

    return _AMERICAN_DATE.sub(american, _COMPACT_DATE.sub(compact, _DATE.sub(dashed, text)))


def open_disguise(key_file: Path | None, config: PrivacyConfig, kept_out_of: Sequence[Path]) -> Disguise | None:
    """The disguise that the settings ask for; None if they ask for none.

    Parameters
    ----------
    key_file : Path or None
        Holds the secret; made, for its owner's eyes only, if it is absent.
    config : PrivacyConfig
    kept_out_of : sequence of Path
        Folders that are handed on or only read: the key must lie in none of them.

    Raises
    ------
    UsageError
        If a key is needed and not given, lies in one of these folders, or cannot be read, made or trusted.
    """
    if not config.shift_dates and not config.pseudonyms:
        return None
    if key_file is None:
        raise UsageError("privacy settings need a key: give --anonymise KEY, a file that is made if it is absent.")
    for folder in kept_out_of:
        if key_file.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"--anonymise {key_file}: the key lies inside {folder}; keep it apart from the data.")
    return Disguise(_read_or_make_key(key_file), config.pseudonyms)


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
    return key
