"""What a run can know before its work starts, asked by ``heatlas check`` and ``heatlas run`` alike.

Both call the same two functions, so that a check that passes is a run that begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atlases.catalogue import find_atlas
from atlases.labels import load_atlas
from atlases.spaces import template_grid
from pipeline.cohort.people.splits import PARTS, Split, make_split, require_labels
from pipeline.cohort.people.tasks import task_of
from pipeline.cohort.reading import InputCohort
from pipeline.models.geometry import weight_count
from pipeline.models.inputs import configured_input
from pipeline.registration.images.given_masks import mask_path
from pipeline.registration.images.synthstrip import require_synthstrip
from pipeline.run.config.settings import Config, RegistrationConfig
from pipeline.run.errors import BadInputError, UsageError
from pipeline.run.layout.private_paths import without_home
from pipeline.statistics.requested import require_names
from workflows.command_line import STAGES

HIPPOCAMPUS = "Hippocampus"
MOST_WEIGHTS = 1_000_000_000
"""The founding network has 0.7 million. With gradients and Adam's two moments a thousand million take 16 GB."""


@dataclass(frozen=True)
class Ready:
    """A cohort that a run can work on.

    Parameters
    ----------
    split : Split
        Without folds where nothing is to be trained.
    notes : tuple of str
        Settings that will have no effect on some scans.
    """

    split: Split
    notes: tuple[str, ...] = ()


def stages_until(last: str) -> tuple[str, ...]:
    """The stages of a run that stops after one."""
    return STAGES[: STAGES.index(last) + 1]


def require_settings(config: Config, stages: Sequence[str], elsewhere: bool) -> None:
    """Refuse settings that can work on no input.

    Parameters
    ----------
    config : Config
    stages : sequence of str
        Those that are to run.
    elsewhere : bool
        Whether the workers may be on other machines (``--executor``): then this one needs no GPU.

    Raises
    ------
    UsageError
        For an unknown atlas, one without a hippocampus where its volume is asked for, a network that fits no memory, or
        a GPU that is not there.
    BadInputError
        If the labels of the atlas cannot be used, or the grid is too small for the network.
    MissingDataError
        If brain extraction lacks its command or weights.
    """
    groups = atlas_groups(config)
    source = config.registration.hippocampus_source
    if source in ("fill", "jacobian") and HIPPOCAMPUS not in groups:
        raise UsageError(
            f'registration.hippocampus_source = "{source}": the atlas {config.regions.atlas} has no group '
            f'{HIPPOCAMPUS}. Set "table", or choose another regions.atlas.'
        )
    if "registration" in stages and config.registration.brain_extraction == "synthstrip":
        require_synthstrip(Path(config.registration.synthstrip_model))
    if "training" in stages:
        _require_network(config)
        if config.training.device == "cuda" and not elsewhere:
            from pipeline.models.device import require_device  # torch takes a second

            require_device(config.training)


def _require_network(config: Config) -> None:
    """Refuse a network that does not fit its grid or no memory, and shifts that leave nothing to see."""
    model, shape = config.model, configured_input(config).shape
    count = weight_count(shape, model.channels, model.pools, model.hidden_units, len(task_of(config.cohort).outputs))
    if count > MOST_WEIGHTS:
        raise UsageError(
            f"model: these channels, pools and hidden_units make {count:,} weights; at most {MOST_WEIGHTS:,} are "
            "trained here. Lower model.hidden_units or model.channels, or raise model.pools."
        )
    if config.training.max_shift_voxels >= shape[0]:
        raise UsageError(
            f"training.max_shift_voxels = {config.training.max_shift_voxels}: the network sees {shape[0]} voxels from "
            "left to right, so nothing would be left. The default is 2."
        )


def atlas_groups(config: Config) -> frozenset[str]:
    """Bilateral groups of the configured atlas; labels given by path must fit their table and the grid."""
    atlas = find_atlas(config.regions.atlas)
    if not atlas.carried:
        load_atlas(config.regions.atlas, template_grid(config.registration.resolution_mm))
    return frozenset(atlas.read_table().groups)


def preflight(config: Config, cohort: InputCohort, stages: Sequence[str]) -> Ready:
    """Refuse a cohort that the stages cannot work on.

    Parameters
    ----------
    config : Config
    cohort : InputCohort
    stages : sequence of str
        Those that are to run.

    Raises
    ------
    BadInputError
        If no scan is kept, no scan has the brain mask asked for, the classes cannot be told apart or split, or a
        setting of the statistics names what is not there.
    """
    if not cohort.table.kept:
        raise BadInputError(f"{without_home(cohort.root)}: no scan can be used; the reasons are above.")
    notes = _mask_notes(config.registration, cohort) if "registration" in stages else []
    if "training" not in stages:  # registering a few participants needs neither labels nor a split
        return Ready(Split(()), tuple(notes))
    if cohort.problem:
        raise BadInputError(cohort.problem)
    split = make_split(cohort.table, config.cohort, config.seed)
    for fold in split.folds:
        for part in PARTS[:2]:
            people = set(getattr(fold, part))
            labels = [scan.label for scan in cohort.table.labelled if scan.participant_id in people]
            require_labels(fold.index, part, labels, task_of(config.cohort))
    if "statistics" in stages:
        require_names(config, cohort.table.labelled, cohort.clinical, atlas_groups(config))
    return Ready(split, tuple(notes))


def _mask_notes(settings: RegistrationConfig, cohort: InputCohort) -> list[str]:
    """Notes on scans without the brain mask that the settings ask for, and on a pattern that is not used."""
    used = settings.brain_extraction in ("auto", "given-mask", "template-mask")
    if settings.mask_pattern and not used:
        return [
            f'registration.mask_pattern has no effect: registration.brain_extraction = "{settings.brain_extraction}"'
        ]
    if not settings.mask_pattern and settings.brain_extraction != "given-mask":
        return []
    scans = [scan for scan in cohort.table.kept if scan.entry != "brain"]
    lacking = [scan for scan in scans if not mask_path(cohort.root, scan, settings.mask_pattern).is_file()]
    if not lacking:
        return []
    where = mask_path(cohort.root, lacking[0], settings.mask_pattern)
    said = f"no brain mask of {lacking[0].name} at {without_home(where)}"
    if len(lacking) == len(scans):
        raise BadInputError(
            f"registration.mask_pattern = '{settings.mask_pattern}': no scan has a mask; {said}. Put masks there, "
            'correct the pattern, or let registration.brain_extraction be "auto" without a pattern.'
        )
    becomes = "fails" if settings.brain_extraction == "given-mask" else "is extracted without one"
    return [f"{len(lacking)} of {len(scans)} scans have no brain mask, and each {becomes}: {said}"]
