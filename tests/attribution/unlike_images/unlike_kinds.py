"""Images that are not what they seem, made from ../shared/data for `unlike_images`, and ordinary ones as controls."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from scipy import ndimage

from heatlas.pipeline.cohort.images.conversion import dcm2niix_binary

NETWORK = Path(__file__).resolve().parents[3] / "pipeline" / "models" / "carried" / "oasis1-age"
RNG = np.random.default_rng
FIT = ("dice", "covered", "scale", "affine_residual_mm", "template_correlation")
LOOK = ("template_correlation", "white_minus_grey", "grey_minus_fluid", "region_distance")
FOCAL = ("region_distance", "side", "template_correlation", "one_sided_ml", "missing_ml", "enclosed_ml")
LIGHT = ("bright_end", "region_distance", "white_minus_grey", "grey_minus_fluid")


@dataclass
class Picture:
    """An image with axes to the right, front and up."""

    data: np.ndarray
    affine: np.ndarray

    @staticmethod
    def read(path: Path) -> Picture:
        found: Any = nib.as_closest_canonical(nib.load(path))  # type: ignore[no-untyped-call]
        return Picture(np.asarray(found.dataobj, dtype=np.float32), found.affine)

    def write(self, path: Path, dtype: Any = np.float32) -> None:
        made: Any = nib.Nifti1Image(self.data.astype(dtype), self.affine)  # type: ignore[no-untyped-call]
        made.set_qform(self.affine, 1)
        made.set_sform(self.affine, 1)
        made.to_filename(path)

    def on(self, change: Callable[[np.ndarray], np.ndarray]) -> Picture:
        return Picture(change(self.data), self.affine)

    @property
    def mm(self) -> np.ndarray:
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0))

    @property
    def levels(self) -> list[float]:
        """Fluid, grey and white matter, and the brightest."""
        return [float(value) for value in np.percentile(self.data[self.data > 0], [5, 35, 80, 99.9])]

    def places(self) -> np.ndarray:
        """Millimetres to the right, front and up from the middle of what is not 0: (3, X, Y, Z)."""
        inside = np.argwhere(self.data > 0)
        middle = (inside.min(0) + inside.max(0)) / 2
        return np.asarray((np.indices(self.data.shape) - middle[:, None, None, None]) * self.mm[:, None, None, None])

    def ball(self, centre: tuple[float, float, float], radius: float) -> np.ndarray:
        away = self.places() - np.array(centre)[:, None, None, None]
        return np.asarray((np.sqrt((away**2).sum(0)) < radius) & (self.data > 0))

    def with_ball(self, centre: tuple[float, float, float], radius: float, tone: float) -> Picture:
        return self.filled(self.ball(centre, radius), tone)

    def toned(self, *tones: float) -> Picture:
        """Contrast of another sequence, from that of 0, fluid, grey and white matter and the brightest."""
        low, grey, white, top = self.levels
        new = 1000 * np.interp(self.data, [low / 2, low, grey, white, top], tones)
        noisy = np.maximum(new + RNG(5).normal(0, 25, new.shape), 1)  # folded tones would be without noise
        return Picture(np.where(self.data > 0, noisy, 0).astype(np.float32), self.affine)

    def filled(self, where: np.ndarray, tone: float, seed: int = 0) -> Picture:
        """With a part at a multiple of the level of white matter, as rough as tissue."""
        rough = RNG(seed).normal(tone, 0.03, self.data.shape) * self.levels[2]
        return Picture(np.where(where, rough, self.data).astype(np.float32), self.affine)


HEADS = {
    "chris_t1": "0.88 mm", "IXI012-HH-1211_T1": "2 mm, axes PSR", "pycortex-S1_raw": "1 mm, axes LIA",
}  # fmt: skip
T2, FLAIR, PD = (1.0, 1.0, 0.5, 0.25, 0.2), (0.1, 0.15, 0.9, 0.65, 0.6), (0.8, 0.85, 0.9, 0.7, 0.65)


@dataclass
class Data:
    """What images are made of; draw 1 and 2 are of other people."""

    root: Path
    draw: int = 1

    def brain(self, who: str = "") -> Picture:
        who = who or self.person
        return Picture.read(self.root / f"oasis20/sub-{who}/anat/sub-{who}_T1w.nii.gz")

    @property
    def person(self) -> str:
        return ("1113", "1110")[self.draw - 1]

    def unchanged(self, kind: str) -> str:
        """The control that a kind was made of."""
        return f"head_{list(HEADS)[self.draw][:3]}" if kind in OF_HEADS else f"brain_{self.person}"

    def labels(self) -> Picture:
        folder = self.root / f"oasis20/derivatives/manual/sub-{self.person}/anat"
        return Picture.read(folder / f"sub-{self.person}_atlas-Neuromorphometrics_dseg.nii.gz")

    def head(self) -> Picture:
        found = Picture.read(self.root / f"heads/{list(HEADS)[self.draw]}.nii.gz")
        return found.on(lambda data: np.where(data > 0.05 * np.percentile(data, 98), data, 0))

    def converted(self, source: Path, path: Path) -> None:
        words = [dcm2niix_binary(), "-z", "y", "-b", "n", "-f", "made", "-o", path.parent, source]
        subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)
        (path.parent / "made.nii.gz").rename(path)

    def studyforrest(self, path: Path) -> None:
        folder = path.parent / "dicom"
        with zipfile.ZipFile(self.root / "dicom/studyforrest-t1w.zip") as packed:
            packed.extractall(folder)
        self.converted(folder, path)
        shutil.rmtree(folder)

    def of_oasis1(self, group: str, place: int) -> Path:
        return sorted((self.root / "oasis1" / group).glob("sub-*/**/*_T1w.nii.gz"))[place]


def moved(lines: np.ndarray) -> np.ndarray:
    """As of a head that moves during the scan: lines of k-space have phases of shifts of up to 6 mm."""
    seen = np.fft.fftshift(np.fft.fftn(lines), axes=1)
    rows = np.arange(lines.shape[1]) - lines.shape[1] // 2
    shifts = ndimage.gaussian_filter1d(RNG(0).normal(0, 8, rows.size), 3)
    phases = np.exp(2j * np.pi * rows * shifts / rows.size)
    return np.abs(np.fft.ifftn(np.fft.ifftshift(seen * phases[:, None], axes=1))).astype(np.float32)


def vessels(brain: Picture) -> Picture:
    """Bright tubes, and a bright sinus behind, in 1 to 2 % of the brain."""
    fields = [ndimage.gaussian_filter(RNG(seed).normal(size=brain.data.shape), 8) for seed in (0, 1)]
    tubes = np.logical_and(*(np.abs(field) < 0.12 * field.std() for field in fields))
    x, y, z = brain.places()
    rim = (brain.data > 0) & ~ndimage.binary_erosion(brain.data > 0, iterations=6)
    return brain.filled((brain.data > 0) & (tubes | (rim & (np.abs(x) < 5) & (y < 0) & (z > 0))), 2.2)


def lesions(brain: Picture, tone: float, count: int = 14) -> Picture:
    """Balls of 3 to 7 mm radius around the ventricles."""
    draw = RNG(3)
    for _ in range(count):
        side = draw.choice([-1, 1])
        centre = (side * draw.uniform(18, 30), draw.uniform(-45, 35), draw.uniform(5, 25))
        brain = brain.with_ball(centre, draw.uniform(3, 7), tone)
    return brain


def wide_ventricles(data: Data) -> Picture:
    brain, labels = data.brain(), data.labels().data
    near = ndimage.distance_transform_edt(~np.isin(labels, (51, 52))) < 14
    return brain.filled(near & ndimage.binary_erosion(brain.data > 0, iterations=12), 0.35)


def tissue(data: Data, *labels: int) -> Picture:
    """Probability of some labels, as a map of a tissue is smooth."""
    found = data.labels()
    inside = np.isin(found.data, labels) if labels else found.data >= 100
    return found.on(lambda _: ndimage.gaussian_filter(inside.astype(np.float32), 1.2))


def phantom(grid: bool) -> Picture:
    empty = Picture(np.ones((180, 180, 180), np.float32), np.diag([1.0, 1, 1, 1]))
    ball = np.sqrt((empty.places() ** 2).sum(0)) < 75
    lines = (np.indices(ball.shape) % 15 < 3).any(0) if grid else np.zeros_like(ball)
    return empty.on(lambda data: np.where(ball, RNG(0).normal(np.where(lines, 300, 900), 25), 0).astype(np.float32))


def foot() -> Picture:
    """A leg and a foot of fat marrow, dark bone and muscle."""
    empty = Picture(np.ones((120, 260, 220), np.float32), np.diag([1.0, 1, 1, 1]))
    x, y, z = empty.places()
    leg = np.hypot(x, y + 70) + np.where(z > -70, 0, 1e3)
    sole = np.hypot(x, 1.2 * (z + 75)) + np.where(np.abs(y) < 110, 0, 1e3)
    deep = np.minimum(leg, sole)
    tones = np.select([deep < 14, deep < 19, deep < 36, deep < 42], [900, 80, 450, 1000], 0)
    return empty.on(lambda _: np.where(tones > 0, RNG(0).normal(tones, 25), 0).astype(np.float32))


def turned(picture: Picture, path: Path, axes: str) -> None:
    """The same voxels under a header that says other directions."""
    ornt = nib.orientations
    there = ornt.ornt_transform(ornt.axcodes2ornt(tuple(axes)), ornt.axcodes2ornt("RAS"))  # type: ignore[no-untyped-call]
    affine = np.diag([*picture.mm, 1.0]) @ ornt.inv_ornt_aff(there, picture.data.shape)  # type: ignore[no-untyped-call]
    Picture(picture.data, affine).write(path)


def cropped(picture: Picture, low: float, high: float, axis: int = 2) -> Picture:
    """Between two shares of the field of view along one axis."""
    size = picture.data.shape[axis]
    part = [slice(None)] * 3
    part[axis] = slice(round(low * size), round(high * size))
    return picture.on(lambda data: data[tuple(part)])


def scaled(picture: Picture, factor: float) -> Picture:
    return Picture(picture.data, picture.affine @ np.diag([factor, factor, factor, 1]))


def stroke(brain: Picture) -> Picture:
    """Of a middle cerebral artery, roughly: a cone from the middle to the right."""
    x, y, z = brain.places()
    return brain.filled((brain.data > 0) & (x > 15) & (np.hypot(y + 5, z - 10) < 0.7 * x), 0.35)


def resection(brain: Picture) -> Picture:
    pole = brain.ball((-45, 15, -25), 28)
    return brain.on(lambda values: np.where(pole, 0, values))


def noisy(brain: Picture) -> Picture:
    spread = 0.4 * brain.levels[2]
    noise = RNG(0).normal(0, spread, (2, *brain.data.shape))
    return brain.on(lambda v: np.where(v > 0, np.hypot(v + noise[0], noise[1]), 0).astype(np.float32))


def template(data: Data) -> Picture:
    name = "templates/tpl-MNI152NLin2009cAsym_res-01_desc-{}.nii.gz"
    mask = Picture.read(data.root / name.format("brain_mask")).data
    return Picture.read(data.root / name.format("SSW_T1w")).on(lambda values: values * (mask > 0))


def skull_cut(head: Picture, path: Path) -> Picture:
    """From above, as much of a head as a brain could have volume."""
    litres = (head.data > 0).sum((0, 1))[::-1].cumsum()[::-1] * np.prod(head.mm) * 1e-6
    return cropped(head, float((litres > 2.1).sum()) / litres.size, 1)


def two_scans(data: Data, folder: Path) -> None:
    """A BIDS folder in which the two sessions of one person have the names of two people."""
    folder.mkdir()
    (folder / "dataset_description.json").write_text('{"Name": "two", "BIDSVersion": "1.10.0"}')
    (folder / "participants.tsv").write_text("participant_id\tage\nsub-x\t30\nsub-y\t30\n")
    later = sorted((data.root / "oasis1/younger").glob("sub-*/ses-2/anat/*_T1w.nii.gz"))[data.draw - 1]
    earlier = next((later.parents[2] / "ses-1").rglob("*_T1w.nii.gz"))
    for name, image in (("sub-x", earlier), ("sub-y", later)):
        (folder / name / "anat").mkdir(parents=True)
        shutil.copy(image, folder / name / "anat" / f"{name}_T1w.nii.gz")


def coarse(data: Data) -> Picture:
    found = Picture.read(data.of_oasis1("older", 20))
    blocks = found.data[:90, :108, :90].reshape(45, 2, 54, 2, 45, 2).mean((1, 3, 5))
    return Picture(blocks, found.affine @ np.diag([2, 2, 2, 1]))


@dataclass(frozen=True)
class Kind:
    """A kind of image: its words in the table, reasons that fit, and what makes it.

    `fits`: measures, or words of a refusal; none for a control. `make`: gives a picture, or writes to the path.
    """

    name: str
    words: str
    fits: tuple[str, ...]
    make: Callable[[Data, Path], object]


def head_of(name: str) -> Callable[[Data, Path], object]:
    return lambda data, path: shutil.copy(data.root / f"heads/{name}.nii.gz", path)


def brain_of(who: str) -> Callable[[Data, Path], object]:
    return lambda data, path: data.brain(who)


def oasis1_of(group: str, place: int) -> Callable[[Data, Path], object]:
    return lambda data, path: shutil.copy(data.of_oasis1(group, place), path)


OF_HEADS = (
    *("child", "child_of_6", "voxels_twice", "mirrored_head", "t2_head", "moved", "ghost", "half", "neck"),
    *("wrong_axes", "skull_left", "skull_cut"),
)
"""Kinds that are made of a whole head; all others count as made of a stripped brain."""
YEARS = {"1017": 22, "1110": 45, "1113": 54, "1119": 68, "1128": 90}
KINDS = [
    Kind("child", "child: head scaled to 0.75, weak contrast", (*FIT, *LOOK, "litres"),
         lambda d, p: scaled(d.head().toned(0.2, 0.3, 0.6, 0.75, 0.9), 0.75)),
    Kind("child_of_6", "child of 6: head scaled to 0.93", FIT, lambda d, p: scaled(d.head(), 0.93)),
    Kind("voxels_twice", "voxel size twice what it is", (*FIT, "litres", "brain"), lambda d, p: scaled(d.head(), 2)),
    Kind("mirrored_head", "head mirrored, header as before", ("side",), lambda d, p: d.head().on(np.flipud)),
    Kind("mirrored_brain", "brain mirrored, header as before", ("side",), lambda d, p: d.brain().on(np.flipud)),
    Kind("mirrored_old", "brain of 90 or 83 years mirrored", ("side",),
         lambda d, p: d.brain(("1128", "1125")[d.draw - 1]).on(np.flipud)),
    Kind("t2", "T2-like", LOOK, lambda d, p: d.brain().toned(*T2)),
    Kind("t2_head", "T2-like, whole head", (*LOOK, "brain"), lambda d, p: d.head().toned(*T2)),
    Kind("flair", "FLAIR-like", LOOK, lambda d, p: d.brain().toned(*FLAIR)),
    Kind("flair_lesions", "FLAIR-like with lesions", (*LOOK, "bright_end"),
         lambda d, p: lesions(d.brain().toned(*FLAIR), 1.8)),
    Kind("pd", "proton density", LOOK, lambda d, p: d.brain().toned(*PD)),
    Kind("contrast", "contrast agent: bright vessels and sinus", LIGHT, lambda d, p: vessels(d.brain())),
    Kind("tumour_dark", "cyst of 30 mm", FOCAL, lambda d, p: d.brain().with_ball((-28, 20, 15), 15, 0.35)),
    Kind("tumour_bright", "enhancing tumour of 30 mm", (*FOCAL, "bright_end"),
         lambda d, p: d.brain().with_ball((28, -25, 20), 15, 1.8)),
    Kind("stroke", "old stroke of a middle cerebral artery", FOCAL, lambda d, p: stroke(d.brain())),
    Kind("sclerosis", "14 dark lesions of white matter", FOCAL, lambda d, p: lesions(d.brain(), 0.5)),
    Kind("lacune", "lacune of 8 mm", FOCAL, lambda d, p: d.brain().with_ball((22, 10, 10), 4, 0.35)),
    Kind("hydrocephalus", "hydrocephalus", (*FOCAL, *FIT), lambda d, p: wide_ventricles(d)),
    Kind("resection", "resection of a temporal pole", (*FOCAL, "covered", "dice"), lambda d, p: resection(d.brain())),
    Kind("phantom", "uniform phantom", (*FIT, *LOOK, "detail"), lambda d, p: phantom(False)),
    Kind("grid", "phantom with a grid", (*FIT, *LOOK), lambda d, p: phantom(True)),
    Kind("fruit", "fruit, as NIfTI", (*FIT, *LOOK, "brain"),
         lambda d, p: d.converted(d.root / "dicom/fruit-ir-spgr", p)),
    Kind("fruit_dicom", "fruit, as DICOM", (*FIT, *LOOK, "brain", "not an image", "folder"),
         lambda d, p: p.symlink_to(d.root / "dicom/fruit-ir-spgr")),
    Kind("foot", "foot", (*FIT, *LOOK, "brain"), lambda d, p: foot()),
    Kind("monkey", "brain of a monkey", (*FIT, *LOOK, "brain", "litres"),
         lambda d, p: scaled(d.brain().on(lambda v: ndimage.gaussian_filter(v, 2) * (v > 0)), 0.6)),
    Kind("noise", "noise alone", (*FIT, *LOOK, "brain", "detail"),
         lambda d, p: d.head().on(lambda v: np.abs(RNG(0).normal(0, 200, v.shape)).astype(np.float32))),
    Kind("noisy", "strong noise", ("detail",), lambda d, p: noisy(d.brain())),
    Kind("blurred", "strong blur", ("detail",), lambda d, p: d.brain().on(lambda v: ndimage.gaussian_filter(v, 3))),
    Kind("moved", "movement during the scan", ("detail", "bright_air", *LOOK), lambda d, p: d.head().on(moved)),
    Kind("ghost", "ghosts at half the field of view", ("detail", "bright_air", *LOOK, *FIT),
         lambda d, p: d.head().on(lambda v: v + 0.4 * np.roll(v, v.shape[1] // 2, 1))),
    Kind("no_top", "truncated above", FIT, lambda d, p: cropped(d.brain(), 0, 0.65)),
    Kind("half", "half a head", (*FIT, "brain"), lambda d, p: cropped(d.head(), 0, 0.5, 0)),
    Kind("neck", "neck and chin alone", (*FIT, "brain", "mm"),
         lambda d, p: cropped(d.head(), 0, 0.4)),
    Kind("upside_down", "upside down by its header", (*FIT, *LOOK, "side"), lambda d, p: turned(d.brain(), p, "LAI")),
    Kind("wrong_axes", "front and above exchanged in the header", (*FIT, *LOOK, "side"),
         lambda d, p: turned(d.head(), p, "RSP")),
    Kind("labels", "label map of 136 regions", ("label",), lambda d, p: d.labels()),
    Kind("grey", "probability of grey matter", ("probability", *LOOK), lambda d, p: tissue(d)),
    Kind("white", "probability of white matter", ("probability", *LOOK), lambda d, p: tissue(d, 44, 45, 40, 41)),
    Kind("mask", "mask", ("mask",), lambda d, p: d.brain().on(lambda v: v > 0)),
    Kind("heatmap", "heatmap", (*LOOK, *FIT, "detail", "negative"),
         lambda d, p: d.brain().on(lambda v: (v > 0) * ndimage.gaussian_filter(RNG(0).normal(size=v.shape), 4))),
    Kind("template", "the template", ("template", "template_correlation"), lambda d, p: template(d)),
    Kind("mean", "mean of the controls", ("template", "detail"),
         lambda d, p: Picture.read(NETWORK / "reference/mean_controls.nii.gz")),
    Kind("two_brains", "two brains side by side", (*FIT, "brain", "litres"),
         lambda d, p: d.brain().on(lambda v: np.concatenate([v, v], axis=0))),
    Kind("wrapped", "bright voxels wrapped to negative ones", (*LOOK, *FIT, "negative", "brain"),
         lambda d, p: d.brain().on(lambda v: v * 32767 / np.percentile(v[v > 0], 70)).write(p, np.int16)),
    Kind("too_tight", "skull-strip 8 mm too tight", (*FIT, "bright_rim"),
         lambda d, p: d.brain().on(lambda v: v * ndimage.binary_erosion(v > 0, iterations=8))),
    Kind("skull_left", "head under the name of a brain", (*FIT, "litres"),
         lambda d, p: d.head().write(p.with_name("sub-x_desc-brain_T1w.nii.gz"))),
    Kind("two_scans", "two scans of one person", ("same_brain",), lambda d, p: two_scans(d, p.parent / "dataset")),
    Kind("skull_cut", "head without neck and face, as if stripped", FIT, lambda d, p: skull_cut(d.head(), p)),
]  # fmt: skip
CONTROLS = [
    *(Kind(f"head_{name[:3]}", f"whole head, {words}", (), head_of(name)) for name, words in HEADS.items()),
    Kind("defaced", "whole head, defaced, 0.7 mm", (), lambda d, p: d.studyforrest(p)),
    *(Kind(f"brain_{who}", f"stripped brain, {years} years", (), brain_of(who)) for who, years in YEARS.items()),
    *(Kind(f"oasis1_{place}", f"OASIS-1 as learned from, {group}, number {place}", (), oasis1_of(group, place))
      for group, place in (("older", 5), ("older", 60), ("younger", 10), ("younger", 90))),
    Kind("one_volume", "stripped brain, 4D with one volume", (),
         lambda d, p: d.brain("1119").on(lambda v: v[..., None])),
    Kind("eight_bits", "stripped brain in 8 bits", (),
         lambda d, p: d.brain("1119").on(lambda v: np.clip(255 * v / v.max(), 0, 255)).write(p, np.uint8)),
    Kind("coarse", "stripped brain at 4 mm", (), lambda d, p: coarse(d)),
]  # fmt: skip
