"""Units of work of this room: one scan and what is asked about it, by networks that have not seen its participant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import require_defined
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.controls import ReferencePool
from heatlas.pipeline.explaining.explained_scan import Explanation, ScanToExplain, explain_scan
from heatlas.pipeline.explaining.networks import Control, Network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job


@dataclass(frozen=True)
class JobMaker:
    """What the jobs of one call have in common."""

    layout: RunLayout
    stage: str
    atlas: PackedAtlas
    config: Config
    digests: DigestCache
    controls: ReferencePool

    def files(self, scan: Scan) -> ScanFiles:
        return self.layout.scan(scan.participant_id, scan.session_id, self.config.registration.resolution_mm)

    def job(
        self,
        unit: str,
        scan: Scan,
        folds: Sequence[int],
        explanations: tuple[Explanation, ...],
        outputs: Mapping[str, Path],
    ) -> Job:
        """A job that explains a scan; its key holds the code of the methods asked for, and of no other method.

        Raises BadInputError if something that is asked compares with controls, and a network was trained without any.
        """
        files = self.files(scan)
        inputs = {"seen": self.digests.joined(files.seen)}
        networks = []
        for fold in folds:
            model = self.layout.fold(fold)
            controls = self._controls(fold, scan, explanations)
            networks.append(Network(fold, model, self.digests.digest(model.weights), controls))
            inputs |= {f"reference-{fold}-{place}": one.digest for place, one in enumerate(controls)}
            inputs[f"weights-{fold}"] = networks[-1].weights_digest
            inputs[f"description-{fold}"] = self.digests.digest(model.description)
        identity = [scan.participant_id, scan.session_id, scan.scan_id]
        asked = [explanation.version for explanation in explanations]
        modules = sorted({explanation.module for explanation in explanations})
        key = unit_key(
            inputs, [identity, asked, list(folds), files.resolution_mm, self.atlas.version], explain_scan, *modules
        )
        task = ScanToExplain(scan, files, tuple(networks), explanations, self.config.training, self.atlas)
        return Job(self.stage, unit, key, outputs, explain_scan, (task,), on_gpu=True)

    def _controls(self, fold: int, scan: Scan, explanations: Sequence[Explanation]) -> tuple[Control, ...]:
        if not any(asked.entry.needs_reference for asked in explanations):
            return ()
        return self.controls.references(fold, scan, self.layout, self.config.registration.resolution_mm, self.digests)


def require_all_defined(
    model: nn.Module, spec: NetworkInput, atlas: PackedAtlas, explanations: Sequence[Explanation]
) -> None:
    """Refuse methods that are not defined for a network, before any scan is read; its weights do not matter.

    Raises UsageError as the method raises it.
    """
    for asked in explanations:
        method, stage = asked.build(RunContext(atlas, spec.box)), asked.stage_in(model)
        require_defined(model, spec.shape, method, stage, asked.start, spec.channels)
