"""What a step of guidance costs, as a ratio to a plain step measured in turn in the same process.

    python benchmarks/guided_step.py --output docs/benchmarks/guided_step.md

The founding network of the demo on its grid at 2 mm, batches of four, one thread: process CPU time of forward and
backward pass, medians of the ratios; memory is the peak above what the process held before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from harness import arguments_of, show_page, table
from timed import added_peak, in_turns

from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.studies.objectives.distillation import Distillation, distilled
from heatlas.studies.objectives.guidance import Guidance, guided
from heatlas.studies.objectives.readable_gradients import readable

TASK = classification(torch.ones(2))
SCANS = 4


def steps() -> dict[str, Callable[[], None]]:
    """One training step of each kind on the same network and batch, without the optimiser."""
    config = load_config("demo")
    shape = configured_input(config).shape
    torch.manual_seed(0)
    model = build_network(config.model, shape, 2).train().to(memory_format=torch.channels_last_3d)
    teacher = build_network(config.model, shape, 2).eval().requires_grad_(False)
    batch = Batch(torch.rand(SCANS, 1, *shape), torch.tensor([0, 1] * (SCANS // 2)), torch.arange(SCANS))
    context = Context(teacher=teacher, masks=(torch.rand(1, *shape) > 0.9).float())
    kinds = {
        "plain": TASK,
        "guided, map at the input": guided(TASK, Guidance(stage=0)),
        "guided, after stage 1": guided(TASK, Guidance(stage=1)),
        "guided, after stage 2": guided(TASK, Guidance(stage=2)),
        "guided, after the last stage": guided(TASK, Guidance(stage=-1)),
        "distilled, answers": distilled(TASK, Distillation(weight=0)),
        "distilled, answers and Grad-CAM": distilled(TASK, Distillation()),
        "readable gradients": readable(TASK, "cosine", 1.0),
    }

    def step_of(objective):
        def step() -> None:
            objective.loss(model, batch, context)[0].backward()
            model.zero_grad()

        return step

    return {name: step_of(objective) for name, objective in kinds.items()}


def main() -> None:
    arguments = arguments_of(__doc__, "--repeats --output", repeats=5)
    torch.set_num_threads(1)
    every, rows = steps(), []
    in_turns(every, 1)
    times = in_turns(every, arguments.repeats)
    for name, step in every.items():
        ratio = statistics.median(own / plain for own, plain in zip(times[name], times["plain"], strict=True))
        seconds, peak = statistics.median(times[name]), added_peak(step) / 2**20
        rows.append([name, f"{seconds:.2f}", f"{ratio:.2f}", f"{peak:.0f}"])
    text = table(["step", "s of one core", "ratio", "memory, MiB"], rows)
    show_page("\n".join(text), arguments.output, "What a step with explanations costs")


if __name__ == "__main__":
    main()
