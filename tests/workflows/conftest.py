"""What the tests of the commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heatlas.pipeline.models.families.registry import is_given
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.workflows import estimates
from heatlas.workflows.estimates import TrainingStep, measured_step


@pytest.fixture(scope="session", autouse=True)
def steps_timed_once() -> Iterator[None]:
    """``heatlas check`` times a step of the network, which takes seconds: each network is timed once in a process."""
    known: dict[str, TrainingStep] = {}

    def once(config: Config) -> TrainingStep:
        if is_given(config):  # code of a file, which a test may change
            return measured_step(config)
        network = repr((configured_input(config), config.model, config.training.threads))
        return known.get(network) or known.setdefault(network, measured_step(config))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "measured_step", once)
        yield
