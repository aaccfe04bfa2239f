"""Random masks: RISE averages the score over them, LIME fits a linear model to it.

RISE (Petsiuk, Das & Saenko 2018) is the mean score over random masks, weighted by how much they show a voxel. A mask
starts as a coarse grid of cells, each shown with probability p, is upsampled trilinearly to the volume and shifted at
random by up to one cell, so every voxel is shown with the mean weight p. The map is ``sum of score mask / (M p)``, an
estimate of the score given that the voxel is shown. The mean score is an offset of the whole map, multiplied by the
random coverage of a voxel by the M masks: a relative error of about ``sqrt((1 - p) / (p M))``, 9 % for the usual p =
0.1 and M = 1000. Since the expected coverage p is known, this part of the noise can be removed without changing the
estimate (`control_variate`).

LIME (Ribeiro, Singh & Guestrin 2016) divides the brain into supervoxels, by scikit-image's SLIC, which supports masked
volumes. Random samples of the volume show some and hide the others; a linear model, fitted to their scores with more
weight on samples near the whole volume, gives each supervoxel a coefficient: the change of the score when it is shown.
Check the R² of the fit, which says how well a linear model describes the network. The settings are those of the
reference implementation for images: half of the supervoxels shown, a Gaussian kernel of width 0.25 on the cosine
distance, ridge 1 on 0/1 features with a free intercept. The fit is a closed form in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, find_objects
from torch import Tensor

from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import AIR, Masking, masked_scores, painted
from heatlas.pipeline.run.config.ranges import Count, Seed, above, at_least
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.extras import require_study
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.seeds import derived_seed


def interpolation(length: int, cells: int, shift: int) -> Tensor:
    """Linear interpolation of one axis of a coarse grid, cropped at a shift: (length, cells), float64; rows sum to 1.

    The cells are upsampled to ``(cells + 1) ceil(length / cells)`` voxels, of which `length` from `shift` on are taken.

    >>> interpolation(4, 2, 0)
    tensor([[1.0000, 0.0000],
            [1.0000, 0.0000],
            [0.6667, 0.3333],
            [0.3333, 0.6667]], dtype=torch.float64)
    """
    stretched = (cells + 1) * math.ceil(length / cells)
    centre = (torch.arange(shift, shift + length, dtype=torch.float64) + 0.5) * cells / stretched - 0.5
    centre = centre.clamp(0, cells - 1)
    return (1 - (centre[:, None] - torch.arange(cells, dtype=torch.float64)).abs()).clamp(min=0)


def random_masks(grid: tuple[int, ...], count: int, cells: int, p: float, seed: int, like: Tensor) -> Iterator[Tensor]:
    """`count` masks (d, h, w) in [0, 1], one by one; the same for a seed in any precision and on any device."""
    source = torch.Generator().manual_seed(derived_seed(seed, "rise"))
    for _ in range(count):
        coarse = torch.rand(cells, cells, cells, generator=source) < p
        shifts = [int(torch.randint(math.ceil(length / cells), (), generator=source)) for length in grid]
        a, b, c = (interpolation(length, cells, shift).to(like) for length, shift in zip(grid, shifts, strict=True))
        rows = torch.einsum("xa,abc->xbc", a, coarse.to(like))  # axis by axis: six products per voxel
        yield torch.einsum("yb,xbc->xyc", b, rows) @ c.T


def rise(
    view: NetworkView, masks: int, cells: int, p: float, seed: int, masking: Masking, batch: int, control_variate: bool
) -> Tensor:
    """``sum of score mask / (M p)`` over M random masks, the same for all volumes, (B, 1, d, h, w).

    With the control variate, ``mean score (sum of mask / (M p) - 1)``, whose expectation is 0 up to O(1 / M), is
    subtracted.
    """
    grid = tuple(view.features.shape[-3:])
    hidden = masking.hidden_features(view)
    values = torch.zeros_like(view.features[:, :1], dtype=torch.float64)
    for volume in range(len(values)):
        weighted, shown = torch.zeros_like(values[0, 0]), torch.zeros_like(values[0, 0])
        score_sum = torch.zeros_like(weighted[0, 0, 0])
        drawn = random_masks(grid, masks, cells, p, seed, view.features)
        for keep, scores in masked_scores(view, volume, drawn, hidden, batch):
            # one by one, so that the order of summation, and thus rounding, does not depend on `batch`
            for mask, score in zip(keep, scores.double(), strict=True):
                weighted += score * mask.double()
                score_sum += score
                if control_variate:
                    shown += mask
        values[volume, 0] = weighted / (masks * p)
        if control_variate:
            values[volume, 0] -= score_sum / masks * (shown / (masks * p) - 1)
    return values.to(view.features.dtype)


@dataclass(frozen=True)
class Rise(CheckedSettings):
    """Mean score of random masks that show a voxel; see `rise`.

    `masks`: each one evaluation. `cells`: of the coarse grid along each axis. `p`: probability that a cell is shown.
    `score`: softmax probability of the target, as in the paper, or the value explained. `control_variate`: remove the
    noise due to the masks' coverage; changes the expectation by O(1 / masks) only.
    """

    name: ClassVar[str] = "rise"
    masks: Count = 1000
    cells: Count = 6
    p: Annotated[float, above(0, below=1)] = 0.1
    score: Literal["probability", "start"] = "probability"
    control_variate: bool = False
    seed: Seed = 0
    masking: Masking = field(default_factory=Masking)
    batch: Count = 8

    def maps(self, view: NetworkView) -> Tensor:
        if self.score == "probability":
            view = replace(view, start="probability")
        return rise(view, self.masks, self.cells, self.p, self.seed, self.masking, self.batch, self.control_variate)


@dataclass(frozen=True, eq=False)
class LocalFit:
    """The linear model of one volume.

    `supervoxels`: (D, H, W), 1 to K inside the brain, 0 in air. `coefficients`: (K,), float64: change of the score when
    a supervoxel is shown. `intercept`: predicted score with everything hidden. `r_squared`: share of the
    kernel-weighted variance of the scores explained by the linear model; NaN if they do not vary.
    """

    supervoxels: Tensor
    coefficients: Tensor
    intercept: float
    r_squared: float


def supervoxels(
    volume: NDArray[np.float64], brain: NDArray[np.bool_], count: int, compactness: float
) -> NDArray[np.int64]:
    """Divide the brain of a volume (D, H, W) into about `count` supervoxels by SLIC (Achanta et al. 2012).

    Labels are 1 to K in the brain, 0 elsewhere. `compactness` is the difference of intensity that is equivalent to the
    distance between supervoxels.
    """
    require_study("lime", "skimage")
    from skimage.segmentation import slic

    box = find_objects(brain.astype(np.uint8))[0]  # crop to the brain, for speed and independence of the background
    inside = volume[brain]
    spread = max(float(np.ptp(inside)), np.finfo(np.float64).tiny)
    scaled = np.where(brain, (volume - inside.min()) / spread, 0.0)[box]
    labels = np.zeros(brain.shape, dtype=np.int64)
    labels[box] = slic(
        scaled, n_segments=count, compactness=compactness, mask=brain[box], channel_axis=None, start_label=1
    )
    labels[~brain] = 0
    if not labels.any():  # fewer voxels than SLIC can cut
        return brain.astype(np.int64)
    forgotten = brain & (labels == 0)
    if forgotten.any():  # islands that SLIC left out join the nearest supervoxel
        nearest = distance_transform_edt(labels == 0, return_distances=False, return_indices=True)
        labels[forgotten] = labels[tuple(nearest)][forgotten]
    numbers = np.unique(labels[brain])
    return np.where(brain, np.searchsorted(numbers, labels) + 1, 0).astype(np.int64)


def samples(count: int, features: int, seed: int) -> Tensor:
    """Supervoxels shown by each sample: (count, features), 0 or 1 with equal probability, float64; all in the first."""
    source = torch.Generator().manual_seed(derived_seed(seed, "lime"))
    shown = (torch.rand(count, features, generator=source) < 0.5).double()
    shown[0] = 1
    return shown


def kernel_weights(shown: Tensor, width: float) -> Tensor:
    """Weight of each sample, ``sqrt(exp(-d² / width²))`` with d its cosine distance to showing everything.

    Between 0/1 vectors ``d = 1 - sqrt(share shown)``; a sample that shows nothing has d = 1.

    >>> kernel_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), 0.5).tolist()
    [1.0, 0.8423388600349426]
    """
    distance = 1 - shown.mean(dim=1).sqrt()
    return torch.exp(-0.5 * (distance / width) ** 2)


def weighted_ridge(features: Tensor, values: Tensor, weights: Tensor, ridge: float) -> tuple[Tensor, float, float]:
    """Minimise ``sum_m weights_m (values_m - a - features_m · b)² + ridge |b|²`` in closed form, in float64.

    Features are (M, K), values and weights (M,); the intercept a is not penalised. Gives b (K,), a, and R²,
    ``1 - weighted residual / weighted variance``; NaN if the values do not vary.
    """
    share = weights / weights.sum()
    feature_means, value_mean = share @ features, share @ values
    centred, deviations = features - feature_means, values - value_mean
    gram = centred.T @ (weights[:, None] * centred) + ridge * torch.eye(features.shape[1]).to(features)
    b = torch.linalg.solve(gram, centred.T @ (weights * deviations))
    residual = weights @ (deviations - centred @ b) ** 2
    variance = weights @ deviations**2
    # scores of a network that ignores all hidden parts differ only by rounding
    varies = bool(deviations.abs().max() > 1e-12 * values.abs().max())
    return b, float(value_mean - feature_means @ b), float(1 - residual / variance) if varies else float("nan")


@dataclass(frozen=True)
class Lime(CheckedSettings):
    """Coefficients of a local linear model in supervoxels of the brain, at the input only; `fits` gives those and R².

    `segments`: about so many supervoxels. `compactness`: difference of intensity, as a share of its range in the brain,
    that is equivalent to the distance between supervoxels; larger values give rounder ones. `samples`: each one
    evaluation; use several per supervoxel. `kernel_width`: on the cosine distance. `ridge`: penalty on the squared
    coefficients. `spread`: give each voxel the coefficient of its supervoxel, as in the paper, or an equal share of it,
    so that sums over regions are in units of the score. `air`: voxels of exactly this value are not brain.
    """

    name: ClassVar[str] = "lime"
    segments: Count = 100
    compactness: Annotated[float, above(0)] = 0.1
    samples: Annotated[int, at_least(2)] = 1000
    kernel_width: Annotated[float, above(0)] = 0.25
    ridge: Annotated[float, above(0)] = 1.0
    spread: Literal["coefficient", "per-voxel"] = "coefficient"
    air: float = AIR
    seed: Seed = 0
    masking: Masking = field(default_factory=Masking)
    batch: Count = 8

    def fits(self, view: NetworkView) -> tuple[LocalFit, ...]:
        if not view.at_input:
            raise UsageError("lime hides supervoxels of the volume; explain at stage 0.")
        brains = on_host((view.volumes != self.air).any(dim=1)).numpy()
        for number, brain in enumerate(brains):
            if not brain.any():
                raise BadInputError(
                    f"lime: volume {number} of the batch is air everywhere ({self.air}) and has no brain."
                )
        hidden = self.masking.hidden_features(view)
        return tuple(self._fit(view, number, brain, hidden) for number, brain in enumerate(brains))

    def maps(self, view: NetworkView) -> Tensor:
        return torch.cat([self._painted(fit) for fit in self.fits(view)]).to(view.features)

    def _fit(self, view: NetworkView, number: int, brain: NDArray[np.bool_], hidden: Tensor) -> LocalFit:
        volume = on_host(view.volumes[number, 0].double()).numpy()
        parts = torch.from_numpy(supervoxels(volume, brain, self.segments, self.compactness))
        cut, shown = parts.to(view.volumes.device), samples(self.samples, int(parts.max()), self.seed)
        # air belongs to no supervoxel and is never hidden
        keeps = (torch.cat([torch.ones(1), row.float()]).to(view.features)[cut] for row in shown)
        scores = torch.cat([scores for _, scores in masked_scores(view, number, keeps, hidden, self.batch)])
        weights = kernel_weights(shown, self.kernel_width)
        coefficients, intercept, r_squared = weighted_ridge(shown, on_host(scores.double()), weights, self.ridge)
        return LocalFit(cut, coefficients, intercept, r_squared)

    def _painted(self, fit: LocalFit) -> Tensor:
        values = fit.coefficients.to(fit.supervoxels.device)
        if self.spread == "per-voxel":
            values = values / torch.bincount(fit.supervoxels.flatten())[1:]
        return painted(fit.supervoxels, tuple(range(1, len(values) + 1)), values[None])
