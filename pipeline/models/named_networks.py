"""Networks by name: folders of ``heatlas export`` that come with Heatlas, and those in a folder of the user's.

The user's folder is named by the variable ``HEATLAS_NETWORKS``, not by a setting: the settings of `heatlas apply` are
those of the network itself, and a variable can be set once for everyone who uses a machine. Where both have a name, the
network that comes with Heatlas is meant; the other one is called by its path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import EXPORT_AGAIN, Bundle, BundleLayout, open_bundle
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.run.work.digests import file_digest

VARIABLE = "HEATLAS_NETWORKS"
"""Environment variable with the user's folder, or several, separated as in PATH."""
CARRIED = Path(__file__).with_name("carried")


def named_networks() -> dict[str, Path]:
    """The folder of each network that has a name, those that come with Heatlas first.

    Raises UsageError if a folder of the user's does not exist.
    """
    found: dict[str, Path] = {}
    for place in (CARRIED, *_own_places()):
        for folder in sorted(place.iterdir()) if place.is_dir() else ():
            if BundleLayout(folder).metadata.is_file():
                found.setdefault(folder.name, folder)
    return found


def _own_places() -> Iterator[Path]:
    for text in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if not Path(text).is_dir():
            raise UsageError(f"{VARIABLE}: {text} is not a folder. Name the folder that holds your exported networks.")
        yield Path(text)


def network_folder(name: str | Path) -> Path:
    """A folder as it is named: by its path, if that exists, else by the name of a network.

    Raises UsageError for an unknown name.
    """
    path = Path(name)
    if path.exists():
        return path
    found = named_networks()
    if str(name) in found:
        return found[str(name)]
    meant = did_you_mean(nearest(str(name), found))
    raise UsageError(
        f"{name}: no such folder, and no network has this name.{meant} Give the OUT of `heatlas run`, the FOLDER of "
        "`heatlas export`, or a name that `heatlas networks` lists."
    )


def open_network(name: str | Path) -> Bundle:
    """An exported network, with every file as it was exported.

    Raises UsageError for an unknown name or another folder, BadInputError for an altered file or another version.
    """
    folder = network_folder(name)
    bundle = open_bundle(folder)
    if bundle is None:
        raise UsageError(f"{name}: not a folder of heatlas export. Name a network (heatlas networks), or export a run.")
    require_as_exported(bundle)
    return bundle


def require_as_exported(bundle: Bundle) -> None:
    """Refuse a folder in which a file is missing or not the one that was exported; earlier versions list none."""
    for name, digest in bundle.files.items():
        path = bundle.layout.root / name
        if not path.is_file() or file_digest(path) != digest:
            raise BadInputError(f"{path}: missing, or not the one that was exported (SHA-256 differs). {EXPORT_AGAIN}")
