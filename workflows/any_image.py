"""``heatlas.explain``: a network of the user's on an image that it takes, or one that has a name on any scan of a head.

The first needs no more than ``pip install heatlas`` brings; what the second needs is imported when it is asked for.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

from heatlas.pipeline.explaining import any_network
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.models.foreign.described import read_description
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.extras import require_study


@wraps(any_network.explain)
def explain(*given: Any, **options: Any) -> Explained:
    """As `any_network.explain`, whose words these become; of a network with a name it explains a scan."""
    network = options.get("network", given[0] if given else None)
    if not isinstance(network, str | Path):
        return any_network.explain(*given, **options)
    if "network" not in options:
        given = given[1:]
    if not given and "image" not in options:
        raise UsageError("heatlas.explain: give a scan and a network, as heatlas.explain(scan, network='oasis1-ad').")
    if str(network).endswith(".toml"):
        named = dict(zip(("image", "method"), given, strict=False)) | options
        return any_network.explain(**named | {"network": read_description(network).network(), "contract": network})
    require_study("a network with a name")
    from heatlas.workflows.explained_scan import explain_scan

    return explain_scan(*given, **options | {"network": network})
