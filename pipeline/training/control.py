"""Control runs: networks trained on what cannot tell the disease, to see what accuracy and maps are worth without it.

Two settings make one: ``training.control = "binarised"`` (images become their brain masks, so that only the contour of
the brain extraction is left; Tinauer et al. 2025) and ``cohort.shuffle_labels`` (labels change places between
participants). What is made by such a run says so: the description of each network and every row of its predictions.
"""

from __future__ import annotations

from pipeline.run.config.settings import Config

NO_CONTROL = "none"


def control_of(config: Config) -> str:
    """What makes a run a control run; ``none`` if nothing does.

    Examples
    --------
    >>> from pipeline.run.config.files import load_config
    >>> control_of(load_config())
    'none'
    >>> control_of(load_config(overrides={"training": {"control": "binarised"}, "cohort": {"shuffle_labels": True}}))
    'binarised, shuffled labels'
    """
    parts = ["binarised"] * (config.training.control == "binarised") + [
        "shuffled labels"
    ] * config.cohort.shuffle_labels
    return ", ".join(parts) or NO_CONTROL
