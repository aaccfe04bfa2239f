"""Files of one scan in a run folder, by BIDS names of participant and session, and names of its maps.

Without sessions in the dataset, names have none. ``lrpB025`` is the map of LRP with beta 0.25, ``gb`` that of guided
backpropagation; any other has the name of its method and of the settings that differ from the defaults:
``occlusionSize12``. `pipeline.attribution.titles` has their names for readers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, KINDS, template_name
from heatlas.pipeline.run.config.settings import AttributionConfig


def sidecar(image: Path) -> Path:
    """JSON file beside an image.

    Examples
    --------
    >>> sidecar(Path("sub-01_desc-gb_relevance.nii.gz")).name
    'sub-01_desc-gb_relevance.json'
    """
    return image.with_name(image.name.removesuffix(".nii.gz") + ".json")


def space_and_resolution(space: str, resolution_mm: float) -> str:
    """The BIDS entities of images on a grid of the template.

    Examples
    --------
    >>> space_and_resolution("MNI152NLin6Asym", 1.5)
    'space-MNI152NLin6Asym_res-1p5'
    """
    return f"space-{space}_res-{resolution_mm:g}".replace(".", "p")


class PathIn:
    """A path as an attribute of a class: a name below a folder, both by attributes of the object (``{0.name}``).

    Examples
    --------
    >>> class Session:
    ...     folder, name = Path("/run/sub-01"), "sub-01"
    ...     image = PathIn("folder", "anat/{0.name}_T1w.nii.gz")
    >>> str(Session().image)
    '/run/sub-01/anat/sub-01_T1w.nii.gz'
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, owner: Any, _: type) -> Path:
        folder: Path = getattr(owner, self._folder)
        return folder / self._name.format(owner)


@dataclass(frozen=True)
class ScanFiles:
    """Files of one scan inside a run folder.

    `root`: the run folder. `participant_id`: with its ``sub-`` prefix. `session_id`: with its ``ses-`` prefix; None
    where the dataset has no sessions. `resolution_mm`: voxel size in template space; part of the file names. `tissue`:
    voxels that are replaced when a network reads the scan (`pipeline.models.inputs`). `suffix`, `label`: what
    the image is, as `pipeline.run.config.settings.CohortConfig` has it; part of its name. `further`: suffixes of images
    of further kinds. `template`: as in the settings of the run; its name is part of the file names.
    """

    root: Path
    participant_id: str
    session_id: str | None
    resolution_mm: float
    tissue: Path | None = None
    suffix: str = "T1w"
    label: str = ""
    further: tuple[str, ...] = ()
    template: str = DEFAULT_TEMPLATE

    @property
    def name(self) -> str:
        """BIDS prefix; also the name of this scan's units of work."""
        return "_".join(part for part in (self.participant_id, self.session_id) if part)

    @property
    def folder(self) -> Path:
        return self.root.joinpath(*(part for part in (self.participant_id, self.session_id) if part))

    @property
    def space(self) -> str:
        return template_name(self.template)

    @property
    def _prefix(self) -> str:
        return f"{self.name}_{space_and_resolution(self.space, self.resolution_mm)}"

    converted = PathIn("folder", "anat/{0.name}_desc-converted_T1w.nii.gz")
    """NIfTI image made of a DICOM series, in the space of the scan."""
    converted_brain = PathIn("folder", "anat/{0.name}_desc-brain_mask.nii.gz")
    """Brain mask on the voxels of `converted`, if voxels far from it were set to 0 to remove the face."""

    @property
    def image(self) -> Path:
        """Brain in template space, float32, background 0: what networks see, or the first of its channels."""
        return self.image_of(self.suffix)

    @property
    def images(self) -> tuple[Path, ...]:
        """The image of each kind, in the order of the channels that networks see."""
        return tuple(self.image_of(suffix) for suffix in (self.suffix, *self.further))

    @property
    def seen(self) -> tuple[Path, ...]:
        """All that decides what a network sees of the scan: its images and its brain mask."""
        return *self.images, self.brain_mask

    def image_of(self, suffix: str) -> Path:
        kind = KINDS[suffix]
        label = f"_label-{self.label}" if self.label and kind.normalised else ""
        return self.folder / kind.folder / f"{self._prefix}{label}_desc-preproc_{suffix}.nii.gz"

    t1w = PathIn("folder", "anat/{0._prefix}_desc-preproc_T1w.nii.gz")
    """The T1-weighted brain in template space, through which an image of another kind was registered.

    The same file as `image` in a run on T1-weighted images. None is there if the image came in template space.
    """
    brain_mask = PathIn("folder", "anat/{0._prefix}_desc-brain_mask.nii.gz")
    """Brain mask of the scan in template space."""
    own_labels = PathIn("folder", "anat/{0._prefix}_desc-own_dseg.nii.gz")
    """Regions of the person's own label image in template space, for masks of guidance; only where there is one."""
    log_jacobian = PathIn("folder", "anat/{0._prefix}_desc-logjacobian_T1w.nii.gz")
    """Natural log of the Jacobian determinant of the map template -> scan; > 0 where the scan is larger."""

    rigid_transform = PathIn("folder", "anat/{0.name}_from-{0.suffix}_to-T1w_mode-image_desc-rigid_xfm.mat")
    """From an image of another kind to the T1-weighted one of its session."""

    def rigid_transform_of(self, suffix: str) -> Path:
        """The same of an image of a further kind."""
        return self.folder / "anat" / f"{self.name}_from-{suffix}_to-T1w_mode-image_desc-rigid_xfm.mat"

    affine_transform = PathIn("folder", "anat/{0.name}_from-T1w_to-{0.space}_mode-image_desc-affine_xfm.mat")
    warp = PathIn("folder", "anat/{0.name}_from-T1w_to-{0.space}_mode-image_desc-syn_xfm.nii.gz")
    inverse_warp = PathIn("folder", "anat/{0.name}_from-{0.space}_to-T1w_mode-image_desc-syn_xfm.nii.gz")
    quality = PathIn("folder", "anat/{0._prefix}_desc-registration_quality.json")
    """Registration numbers of this scan (JSON)."""
    region_quality = PathIn("folder", "anat/{0._prefix}_desc-regions_quality.tsv")
    """Registration quality of this scan in each region (TSV)."""
    asymmetry = PathIn("folder", "anat/{0._prefix}_desc-sides_quality.npy")
    """Right minus left of this scan, to compare its sides with those of other scans (NumPy array)."""
    volumes = PathIn("folder", "anat/{0._prefix}_desc-jacobian_volumes.tsv")
    """Volumes of atlas regions in this scan, from the Jacobian determinant (TSV)."""
    overview = PathIn("folder", "figures/{0._prefix}_desc-registration_{0.suffix}.png")
    """The registered scan under the contours of the template, on three planes (PNG)."""
    portrait = PathIn("folder", "figures/{0._prefix}_desc-relevance_{0.suffix}.png")
    """The leading relevance maps of the scan on its brain, smoothed, and its regions coloured (PNG)."""
    unsmoothed_portrait = PathIn("folder", "figures/{0._prefix}_desc-unsmoothed_{0.suffix}.png")
    """The same maps as they are (PNG)."""
    viewer = PathIn("folder", "figures/{0._prefix}_desc-relevance_viewer.html")
    """Viewer of the leading relevance maps of this scan on its brain (HTML)."""

    def relevance_map(self, map_name: str) -> Path:
        return self.folder / "relevance" / f"{self._prefix}_desc-{map_name}_relevance.nii.gz"

    ledger = PathIn("folder", "relevance/{0._prefix}_desc-lrp_ledger.tsv")
    """Conservation ledger of this scan's LRP maps (TSV)."""
    region_table = PathIn("folder", "relevance/{0._prefix}_desc-regions_relevance.tsv")
    """Sums of this scan's maps over regions (TSV)."""
    channel_table = PathIn("folder", "relevance/{0._prefix}_desc-channels_relevance.tsv")
    """Sums of the maps of each kind of image over regions (TSV), where networks see several."""
    own_region_table = PathIn("folder", "relevance/{0._prefix}_desc-ownregions_relevance.tsv")
    """Sums of this scan's maps over the regions of a segmentation of its own (TSV)."""
    audit_table = PathIn("folder", "relevance/{0._prefix}_desc-audit_relevance.tsv")
    """Shares of this scan's maps at the rim of the brain mask, outside it, in fluid and in vessels (TSV)."""

    def maps_of_the_run(self) -> list[Path]:
        """Relevance maps of this scan that the run has written; those of ``heatlas explain`` have another suffix."""
        return sorted((self.folder / "relevance").glob(f"{self._prefix}_desc-*_relevance.nii.gz"))

    def explanation_map(self, label: str) -> Path:
        """A map made by ``heatlas explain``; its suffix differs from maps of the run."""
        return self.folder / "relevance" / f"{self._prefix}_desc-{label}_explanation.nii.gz"

    def explanation_ledger(self, label: str) -> Path:
        """Conservation ledger of such a map, if its method has one (TSV); not named as that of the run."""
        return self.folder / "relevance" / f"{self._prefix}_desc-{label}_conservation.tsv"

    def explanation_regions(self, label: str) -> Path:
        """Sums over regions of a map that ``heatlas explain`` has made (TSV)."""
        return self.folder / "relevance" / f"{self._prefix}_desc-{label}_regions.tsv"


LRP, GUIDED = "lrp", "guided-backpropagation"
"""Methods of the founding study, whose maps have short names."""
GUIDED_MAP = "gb"
"""Name of the map of guided backpropagation in files and tables."""
LONGEST_LABEL = 80


def lrp_map_name(beta: float) -> str:
    """Name of an LRP map in files and tables: beta times 100, three digits.

    Examples
    --------
    >>> lrp_map_name(0.25)
    'lrpB025'
    """
    return f"lrpB{round(beta * 100):03d}"


def beta_of(name: str) -> float | None:
    """Beta of an LRP map by its name; None for any other map.

    Examples
    --------
    >>> beta_of("lrpB025"), beta_of("gb"), beta_of("lrpBatchNormIdentity")
    (0.25, None, None)
    """
    return int(name[4:]) / 100 if re.fullmatch(r"lrpB\d{3,}", name) else None


def map_label(method: str, unusual: Mapping[str, object]) -> str:
    """BIDS label of a map, letters and digits only; unique for each method and settings.

    `method`: name in the registry. `unusual`: settings that differ from the defaults, by name, in the order of the
    label.

    Examples
    --------
    >>> map_label("grad-cam++", {})
    'gradCampp'
    >>> map_label("rise", {"target": "CN", "stage": 2, "masking.baseline": 0.25})
    'riseTargetCNStage2MaskingBaseline0p25'
    """
    word = _letters(method.replace("+", "p"))
    pieces, readable = [word[:1].lower() + word[1:]], True
    for name, value in unusual.items():
        text = str(value)
        if not isinstance(value, str) or re.fullmatch(r"-?[\d.]+", text):
            text = text.replace(".", "p").replace("-", "m")
        readable &= text.isascii() and text.isalnum()
        pieces.append(_letters(name) + re.sub(r"[^A-Za-z0-9]", "", text[:1].upper() + text[1:]))
    label = "".join(pieces)
    if readable and len(label) <= LONGEST_LABEL:
        return label
    text = json.dumps([method, dict(unusual)], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return label[:LONGEST_LABEL] + hashlib.sha256(text.encode()).hexdigest()[:8]


def _letters(name: str) -> str:
    """A setting's name as one word.

    >>> _letters("masking.inner"), _letters("kernel_width")
    ('MaskingInner', 'KernelWidth')
    """
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]", name))


def settings_for(method: str, settings: Sequence[str]) -> list[str]:
    """Settings of one method: ``key=value`` holds for every method, ``method:key=value`` for one.

    Examples
    --------
    >>> settings_for("rise", ["batch=4", "rise:masks=500", "lime:samples=9"])
    ['batch=4', 'masks=500']
    """
    pairs = []
    for text in settings:
        name, colon, _ = text.partition("=")[0].partition(":")
        if not colon or name.strip() == method:
            pairs.append(text.partition(":")[2] if colon else text)
    return pairs


def names_of(method: str, settings: Sequence[str], betas: Sequence[float]) -> list[str]:
    """Maps that a run makes with one method and its settings."""
    if method == LRP and not settings:
        return [lrp_map_name(beta) for beta in betas]
    if method == GUIDED and not settings:
        return [GUIDED_MAP]
    written = dict(sorted((text.partition("=")[0].strip(), text.partition("=")[2].strip()) for text in settings))
    return [map_label(method, written)]


def map_names(attribution: AttributionConfig) -> list[str]:
    """Maps that a run with these settings makes, in the order of its methods.

    Examples
    --------
    >>> map_names(AttributionConfig(methods=("lrp", "rise"), betas=(0.0, 0.5), settings=("rise:masks=500",)))
    ['lrpB000', 'lrpB050', 'riseMasks500']
    """
    return [
        name
        for method in attribution.methods
        for name in names_of(method, settings_for(method, attribution.settings), attribution.betas)
    ]
