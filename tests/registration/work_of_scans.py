from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache


def work_of_scans(layout: RunLayout, root: Path, settings: RegistrationConfig, executor: Executor) -> Work:
    """Work of a run that registers scans, with 43 as its seed."""
    config = Config(registration=replace(settings, seed=43))
    return Work(layout, root, config, (), Split(()), executor, DigestCache(layout.digests))
