"""Control runs: networks trained without disease information, as a baseline for accuracy and maps.

There are two: ``training.control = "binarised"`` (images are replaced by their brain masks, so that only the contour of
the brain extraction is left; Tinauer et al. 2025) and ``cohort.shuffle_labels`` (labels are permuted between
participants). Their outputs are marked: the description of each network and every row of its predictions.
"""

from __future__ import annotations

from heatlas.pipeline.run.config.settings import Config

NO_CONTROL = "none"


def control_of(config: Config) -> str:
    """Kind of control run; ``none`` for an ordinary run.

    Examples
    --------
    >>> from heatlas.pipeline.run.config.files import load_config
    >>> control_of(load_config())
    'none'
    >>> control_of(load_config(overrides={"training": {"control": "binarised"}, "cohort": {"shuffle_labels": True}}))
    'binarised, shuffled labels'
    """
    parts = ["binarised"] * (config.training.control == "binarised") + [
        "shuffled labels"
    ] * config.cohort.shuffle_labels
    return ", ".join(parts) or NO_CONTROL
