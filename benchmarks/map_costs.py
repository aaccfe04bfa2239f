"""What the maps cost, as ratios to one forward and backward pass measured in the same run.

    python benchmarks/map_costs.py            # the grid of the demo: 80 x 98 x 80 voxels, 12 controls
    python benchmarks/map_costs.py --grid 160 196 160 --repeats 3

One thread of the CPU, in turn with the passes they are compared with; process CPU time, medians of the ratios. Memory
is kept between calls as in a run (`pipeline.run.work.host`). The bounds of the design are 15 for expected gradients
and 2 for DeepLIFT.
"""

from __future__ import annotations

import numpy as np
import torch
from lrp_engines import brain_volume, seeded_network
from sections import arguments_of, line, table
from timed import cpu_seconds
from torch import Tensor

from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradients,
    IntegratedGradientsFromMean,
)
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.run.work.host import kept_memory

CONTROLS = 12


def controls(volume: Tensor) -> Reference:
    """People like the volume: its voxels times numbers around 1, air kept."""
    draw = torch.Generator().manual_seed(3)
    noise = torch.randn(CONTROLS, *volume.shape[1:], generator=draw)
    return Reference(volume * (1 + 0.1 * noise), tuple(f"sub-{number}" for number in range(CONTROLS)))


def main() -> None:
    """Print one row per method."""
    grid = ("--grid", {"type": int, "nargs": 3, "default": (80, 98, 80)})
    options = arguments_of(__doc__, grid, "--repeats", repeats=7)
    torch.set_num_threads(1)
    volume = brain_volume(tuple(options.grid))
    model, reference = seeded_network(volume, seed=1), controls(volume)
    with torch.no_grad():
        known = Reference(reference.volumes, reference.people, model(reference.volumes))
    methods = {
        "expected gradients, 12 controls": (ExpectedGradients(known), "evidence"),
        "integrated gradients from the mean, 14 points": (IntegratedGradientsFromMean(known), "evidence"),
        "DeepLIFT from the mean": (DeepLift(known), "evidence"),
        "integrated gradients from air, 50 points": (IntegratedGradients(tolerance=np.inf), "logit"),
    }

    def passes() -> None:
        leaf = volume.clone().requires_grad_()
        score = model(leaf)
        torch.autograd.grad(score[0, 1] - score[0, 0], leaf)

    print(*table(["map", "forward and backward passes (least to most)"]), sep="\n")
    with kept_memory():
        passes()
        for name, (method, start) in methods.items():
            ratios = []
            for _ in range(options.repeats):
                cost = cpu_seconds(lambda: attribute_all(model, volume, 1, method, 0, start))  # noqa: B023
                ratios.append(cost / np.median([cpu_seconds(passes) for _ in range(3)]))
            print(line(name, f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"), flush=True)
        once = np.median([cpu_seconds(passes) for _ in range(9)])
    print(f"\nOne forward and backward pass: {1000 * once:.0f} ms of one core.")


if __name__ == "__main__":
    main()
