"""What temperature, penalty, rank and bound change in a CoDA network, on patterns in noise; and what they cost.

    python benchmarks/coda_sweeps.py --seeds 0 1 2              # ten minutes of one core

The problem and the measures are those of tests/training/pattern_scenes.py: accuracy, the cosine of W(x) with the
pattern, and the share of positive contributions in the right one of four scenes side by side (a quarter by chance).
Depth is that of a frozen conventional stem below the CoDA layers: maps are then exact from its features on. Memory is
what a forward pass keeps for the backward pass.
"""

from __future__ import annotations

import pandas as pd
import torch
from harness import arguments_of
from torch import Tensor, nn

from heatlas.studies.coda.network import Layers, SumPool, stack
from heatlas.studies.dynamic import InputEncoding
from tests.training.pattern_scenes import CLASSES, RANK, alignment, scenes, trained_coda

USUAL = {"temperature": 1.0, "rank": RANK, "bound": "sq", "penalty": 0.0, "depth": 0}
SWEEPS = {"temperature": (0.3, 1.0, 3.0, 10.0), "penalty": (0.0, 1.0, 10.0), "rank": (2, 4, 8, 16)}
SWEEPS |= {"bound": ("sq", "l2", "wb"), "depth": (0, 1, 2, 3)}


def kept_bytes(bound: str, rank: int) -> int:
    """Bytes that the forward pass of one volume of 16³ voxels keeps for the backward pass."""
    layers = Layers(units=(10, 14), ranks=(rank,) * 3, kernels=(3, 3, 1), strides=(1, 2, 1))
    model = nn.Sequential(InputEncoding(), *stack(layers, 2, CLASSES, bound), SumPool())  # type: ignore[arg-type]
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        answer = model(torch.rand(1, 1, 16, 16, 16))
    del answer
    return sum(kept.values())


def main() -> None:
    arguments = arguments_of(__doc__, "--seeds", seeds=[0, 1, 2], steps=300)
    rows = []
    for name, values in SWEEPS.items():
        for value in values:
            settings = {**USUAL, name: value}
            found = []
            for seed in arguments.seeds:
                model = trained_coda(seed=seed, steps=arguments.steps, **settings)  # type: ignore[arg-type]
                found.append(alignment(model))
            accuracy, cosine, share = (f"{min(column):.2f} to {max(column):.2f}" for column in zip(*found, strict=True))
            row = {"varied": f"{name} {value}", "accuracy": accuracy, "cosine": cosine, "right scene": share}
            row["parameters"] = sum(weight.numel() for weight in model.parameters())
            row["kept, MB"] = round(kept_bytes(str(settings["bound"]), int(settings["rank"])) / 1e6, 1)
            rows.append(row)
            print(pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1), flush=True)
    scene = scenes(1, torch.Generator().manual_seed(0))[0]
    print(f"Scenes of {tuple(scene.shape[2:])} voxels, {CLASSES} patterns, {arguments.steps} steps of 32 scenes.")


if __name__ == "__main__":
    main()
