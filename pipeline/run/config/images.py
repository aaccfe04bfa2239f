"""What images are: their kinds, by the suffix of BIDS names, and the template whose space they are in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Suffix = Literal["T1w", "T2w", "PDw", "FLAIR", "pet", "probseg"]


@dataclass(frozen=True)
class ImageKind:
    """One kind of image.

    `suffix`: last part of the names of its files. `scan`: one such image in a sentence. `images`: what these images are
    of, in a sentence. `folder`: where they lie in a session. `uneven`: whether intensities change slowly over the
    image, as those of MRI do, which N4 corrects. `descriptions`: values of ``desc-`` of processed images that are still
    of this kind, beside those of any. `normalised`: whether they are maps that are read in template space only.
    """

    suffix: Suffix
    scan: str
    images: str
    folder: Literal["anat", "pet"] = "anat"
    uneven: bool = True
    descriptions: frozenset[str] = frozenset()
    normalised: bool = False

    @property
    def through_t1w(self) -> bool:
        """Whether one that is not in template space is registered through the T1-weighted image of its session."""
        return self.suffix != "T1w"


KINDS: Mapping[str, ImageKind] = {
    kind.suffix: kind
    for kind in (
        ImageKind("T1w", "T1-weighted scan", "T1-weighted brain MRI"),
        ImageKind("T2w", "T2-weighted scan", "T2-weighted brain MRI"),
        ImageKind("PDw", "proton-density-weighted scan", "proton-density-weighted brain MRI"),
        ImageKind("FLAIR", "FLAIR scan", "FLAIR brain MRI"),
        ImageKind("pet", "PET image", "brain PET", "pet", uneven=False,
                  descriptions=frozenset({"mean", "average", "sum", "static", "suvr"})),
        ImageKind("probseg", "tissue map", "maps of brain tissue", uneven=False,
                  descriptions=frozenset({"modulated", "smooth", "smoothed"}), normalised=True),
    )
}  # fmt: skip
T1W = KINDS["T1w"]


def all_images(kinds: Sequence[ImageKind]) -> str:
    """What the images of several kinds are of, in a sentence.

    >>> all_images([KINDS["T1w"], KINDS["FLAIR"], KINDS["pet"]])
    'T1-weighted brain MRI, FLAIR brain MRI and brain PET'
    """
    *others, last = (kind.images for kind in kinds)
    return f"{', '.join(others)} and {last}" if others else last


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
