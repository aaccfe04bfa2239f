"""What the stages of a run share, as one record: folder, input, settings, scans, split, workers, digests of files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles, map_names
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE


@dataclass(frozen=True)
class Work:
    """Input of every stage of a run.

    `input_root`: folder that the image paths start from. `scans`: kept ones. `executor`: workers with one thread.
    """

    layout: RunLayout
    input_root: Path
    config: Config
    scans: tuple[Scan, ...]
    split: Split
    executor: Executor
    digests: DigestCache

    @property
    def map_names(self) -> list[str]:
        return map_names(self.config.attribution)

    @property
    def without_labels(self) -> bool:
        """Whether networks of another run are applied to people of whom none has a label."""
        return bool(self.config.training.networks_of) and all(scan.label is None for scan in self.scans)

    def files(self, scan: Scan) -> ScanFiles:
        return self.layout.scan(scan.participant_id, scan.session_id, self.config.registration.resolution_mm)

    def labelled(self, *stages: str) -> list[Scan]:
        """Labelled scans that failed in none of the stages, with what registration dropped and added."""
        return [scan for scan in self._unfailed(*stages) if scan.label is not None]

    def registered(self) -> list[Scan]:
        return self._unfailed("registration")

    def outside(self, *stages: str) -> list[Scan]:
        """Kept scans outside the contrast that are to be predicted and failed in none of the stages."""
        wanted = self.config.cohort.apply_outside_contrast and task_of(self.config.cohort).kind.applies
        return [scan for scan in self._unfailed(*stages) if scan.label is None] if wanted else []

    def located(self, scans: Sequence[Scan]) -> list[Scan]:
        names = {scan.scan_id for scan in scans}
        return [scan for scan in self.scans if scan.scan_id in names]

    def _unfailed(self, *stages: str) -> list[Scan]:
        failures = FAILURES_TABLE.read(self.layout.failures)
        failed = set(failures.loc[failures["stage"].isin(["conversion", *stages]), "unit"])
        return [scan for scan in ScanTable.read(self.layout).kept if scan.name not in failed]
