"""The name of a template, which is part of file names, from the setting that says where it lies."""

from __future__ import annotations

import re
from pathlib import Path

DEFAULT_TEMPLATE = "MNI152NLin2009cAsym"


def is_mni(name: str) -> bool:
    """Whether coordinates of a template are those of the Montreal Neurological Institute, up to some millimetres."""
    return name.startswith("MNI152")


def axes_of(name: str) -> str:
    """What coordinates in the space of a template are called."""
    return "MNI" if is_mni(name) else name


def template_name(setting: str) -> str:
    """Name as TemplateFlow and BIDS spell it; empty if the setting is neither a name nor the path of a ``tpl-`` folder.

    Examples
    --------
    >>> template_name("MNI152NLin6Asym"), template_name("/data/tpl-OASIS30ANTs/"), template_name("/data/OASIS30ANTs")
    ('MNI152NLin6Asym', 'OASIS30ANTs', '')
    """
    if re.fullmatch("[A-Za-z0-9]+", setting):
        return setting
    folder = re.fullmatch("tpl-([A-Za-z0-9]+)", Path(setting).name)
    return folder[1] if folder else ""
