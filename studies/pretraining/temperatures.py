"""Temperatures, and the momentum of the copy, that change while a network learns without labels.

A low temperature tells scans from one another, a high one finds groups; passing from one to the other again and again
helps rare groups (Kukleva, Böhle, Schiele, Kuehne & Rupprecht 2023).
"""

from __future__ import annotations

import math

from heatlas.pipeline.run.config.networks import PretrainingConfig, Schedule
from heatlas.pipeline.run.work.seeds import generator

PERIODS = 4.7
"""Usual periods of a schedule from the first epoch to the last: it ends where it is best, at 0.7 of a period."""


def temperature_at(schedule: Schedule, lowest: float, highest: float, phase: float) -> float:
    """Temperature at a phase of the period: 0 and 1 are its ends.

    ``cosine``: ``(τ+ - τ-) (1 + cos 2π t/T) / 2 + τ-``; ``linear``: down to τ- in the middle, and up again; ``step``:
    τ+ in the first half, τ- in the second.

    Examples
    --------
    >>> [round(temperature_at("cosine", 0.1, 1.0, t), 3) for t in (0, 0.25, 0.5, 0.7, 1)]
    [1.0, 0.55, 0.1, 0.411, 1.0]
    """
    if schedule == "cosine":
        height = (1 + math.cos(2 * math.pi * phase)) / 2
    elif schedule == "linear":
        height = abs(1 - 2 * (phase % 1))
    else:
        height = float(phase % 1 < 0.5)
    return (highest - lowest) * height + lowest


def temperature_of(settings: PretrainingConfig, epoch: int, epochs: int, seed: int) -> float:
    """Temperature of an epoch, counted from 1; the same throughout it.

    `epoch`, `epochs`: the epoch, and how many there are; without a period the first has the highest temperature, and
    the last, also an only one, that of phase 0.7. `seed`: for ``random``: even between the bounds. Returns NaN for
    ``by-class``, where an epoch has two.
    """
    lowest, highest = settings.temperature, settings.highest_temperature
    if settings.schedule == "by-class":
        return math.nan
    if settings.schedule == "fixed":
        return lowest
    if settings.schedule == "random":
        return float(generator(seed, "temperature", epoch).uniform(lowest, highest))
    if settings.period_epochs:
        phase = (epoch - 1) / settings.period_epochs
    else:
        phase = PERIODS * (epoch - 1) / (epochs - 1) if epochs > 1 else PERIODS
    return temperature_at(settings.schedule, lowest, highest, phase)


def momentum_of(settings: PretrainingConfig, epoch: int, epochs: int) -> float:
    """Momentum of the moving copy in an epoch: ``1 - (1 - m) (1 + cos(π (epoch - 1) / epochs)) / 2``, a cosine up to 1.

    The published schedule changes with each step (Grill et al. 2020; Caron et al. 2021).

    Examples
    --------
    >>> settings = PretrainingConfig(momentum=0.9, momentum_schedule="cosine")
    >>> [round(momentum_of(settings, epoch, 4), 4) for epoch in (1, 3, 4)]
    [0.9, 0.95, 0.9854]
    """
    return 1 - (1 - settings.momentum) * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
