"""``heatlas.explain`` of a network that has a name, on any scan of a head.

The scan is registered as ``heatlas apply`` registers it, and the mean of all networks is explained relative to the mean
of their controls.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining import any_network
from heatlas.pipeline.explaining.controls import mean_controls
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.models.contract import ensemble_of
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.named_networks import open_network
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.given import members_in_unit
from heatlas.workflows.library import apply_until_registered

METHOD = "deeplift"
"""The usual one for networks with a name: it adds up, and takes one pass of each network."""
_MNI = 4
"""NIfTI's code of the space of the template."""


def explain_scan(image: str | Path, method: str = METHOD, *, network: str | Path, **options: Any) -> Explained:
    """Explain what the networks of an export answer to a scan of a head or brain.

    `image`: its path. `network`: a name, or a folder. `options`: of `any_network.explain`, and ``start_at`` and
    ``new_people`` of `heatlas apply`. Raises UsageError or BadInputError for a network that cannot be used, and
    CommandError for a scan that cannot be registered.
    """
    if not isinstance(image, str | Path):
        raise UsageError(f"{network}: explains a scan by its path, as heatlas.explain('scan.nii.gz', network='...').")
    if "reference" in options or "others" in options:
        raise UsageError(f"{network}: brings the mean of its own controls; leave reference and others out.")
    bundle = open_network(network)
    mean, task = mean_controls(bundle), task_of(read_config(bundle.layout.config).cohort)
    loaded = [load_model(files, code="") for files in bundle.networks]
    spec = loaded[0].input
    with tempfile.TemporaryDirectory(prefix="heatlas.") as folder:
        out = Path(folder) / "out"
        given = {name: options.pop(name) for name in ("start_at", "new_people") if name in options}
        apply_until_registered(bundle.layout.root, Path(image), out, **given)
        layout = RunLayout(out.resolve())
        (kept,) = ScanTable.read(layout).kept
        seen = read_channels(layout.scan(kept.participant_id, kept.session_id, spec.resolution_mm), spec)

    def placed(values: np.ndarray) -> Any:
        made: Any = nib.Nifti1Image(values[0], spec.grid.affine)  # type: ignore[no-untyped-call]
        made.set_sform(spec.grid.affine, _MNI)
        return made

    members = [member for one in loaded for member in members_in_unit(one)]
    options = {"target": task.unit, **options}
    whole = ensemble_of(members).eval()
    return any_network.explain(whole, placed(seen), method, reference=[placed(mean.seen(spec))], **options)
