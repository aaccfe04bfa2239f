"""Before the work of a run starts: its settings and selection from the options of a command, and whether they can work.

``heatlas check`` and ``heatlas run`` call the same two functions, `require_settings` and `preflight`, so that a run
starts if its check passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid, find_template
from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS, SESSIONS
from heatlas.pipeline.cohort.images.files import leads_in_a_circle
from heatlas.pipeline.cohort.people.balance import SPLIT_BALANCE_TABLE
from heatlas.pipeline.cohort.people.splits import (
    PARTS,
    Split,
    after_inclusion,
    make_split,
    require_labels,
    split_balance,
)
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_filter
from heatlas.pipeline.cohort.segmented.images import segmentation_of
from heatlas.pipeline.cohort.sharing import Manifest, open_disguise
from heatlas.pipeline.models.families.family import NO_BACKBONE
from heatlas.pipeline.models.families.foreign import ForeignConfig
from heatlas.pipeline.models.families.registry import family_of, is_given, is_solved, on_backbone
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.registration.ants_transform import engine_of, require_ants
from heatlas.pipeline.registration.images.brain_extraction import mask_path, require_synthstrip
from heatlas.pipeline.registration.own_labels import require_own_labels
from heatlas.pipeline.registration.settled import COARSEST_MM, NOT_MEASURED, not_measured
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, template_name
from heatlas.pipeline.run.config.settings import AttributionConfig, Config, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, without_home
from heatlas.pipeline.statistics.requested import require_names
from heatlas.workflows.commands import STAGES, Check, ManifestExport, ManifestImport, Run, Settings


def settings_of(options: Settings, backbone: Path | None = None) -> Config:
    """Settings of a command: preset, then file, then single options.

    `backbone`: of the probe that is then trained.
    """
    overrides: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
    cohort: dict[str, Any] = {}
    if options.contrast:
        column, values = _parted(options.contrast)
        classes = values.split(",") if len(values.split(",")) > 2 else values.split(",", 1)
        if not column or len(classes) < 2 or not all(classes):
            raise UsageError(
                f"--contrast {options.contrast}: write COLUMN=CLASS,CLASS, such as diagnosis=CN,AD, or more "
                "classes, such as diagnosis=CN,MCI,AD; the last is the one that is explained. Numbers are compared: "
                '"cdr=0,>=0.5" or "mmse>=27,<24".'
            )
        several = classes if len(classes) > 2 else []
        cohort |= {"contrast_column": column, "negative": classes[0], "positive": classes[-1], "classes": several}
    if options.target:
        if options.contrast:
            raise UsageError("--target predicts a number and --contrast classes; give only one of them.")
        cohort |= {"target": options.target, "classes": []}
    table = None if options.table is None else table_setting(options.table)
    single = {"include": options.include, "start_at": options.start_at, "table": table}
    cohort |= {name: value for name, value in single.items() if value is not None}
    if cohort:
        overrides["cohort"] = cohort
    if options.resolution is not None:
        overrides["registration"] = {"resolution_mm": options.resolution}
    if options.anonymise is not None:
        overrides["privacy"] = {"shift_dates": True}
    if options.pseudonymise:
        names = [name for name in options.pseudonymise.split(",") if name]
        overrides["privacy"] = {**overrides.get("privacy", {}), "pseudonyms": names}
    if backbone is not None:
        overrides["model"] = {"architecture": "probe", "backbone": str(backbone)}
    return with_backbone(load_config(options.preset, options.config, overrides))


def _parted(contrast: str) -> tuple[str, str]:
    """Column and classes of ``--contrast``; the first class may begin with its sign.

    Examples
    --------
    >>> _parted("diagnosis=CN,AD"), _parted("cdr=0,>=0.5"), _parted("mmse>=27,<24"), _parted("mmse=>=27,<24")
    (('diagnosis', 'CN,AD'), ('cdr', '0,>=0.5'), ('mmse', '>=27,<24'), ('mmse', '>=27,<24'))
    """
    column = re.split("[=<>]", contrast, maxsplit=1)[0]
    return column.strip(), contrast[len(column) :].removeprefix("=")


def table_setting(table: Path) -> str:
    """A table of people as a setting that holds from any folder; one that is not here may be in the input folder."""
    return str(table.resolve() if table.is_file() else table)


def with_backbone(config: Config) -> Config:
    """The settings with the backbone of a probe written out, so that what is trained does not need its folder later.

    UsageError or BadInputError if there is no backbone, or it cannot be read.
    """
    return replace(config, model=on_backbone(config.model).placed(config.model))


_CONFIG = "the file of --config"
_ABOVE = 4
"""Folders above the input in which the tables of its people are looked for."""


def places_read(options: Check | ManifestExport | ManifestImport | Run, table: str = "") -> dict[Path, str]:
    """All that a command reads and must not write to, and what each is: resolved files, and folders with all in them.

    `table`: that of the settings.
    """
    root = options.input.resolve()
    above = [folder / name for folder in root.parents[:_ABOVE] for name in (PARTICIPANTS, SESSIONS)]
    config = options.config if isinstance(options.config, Path) else None
    files = {_CONFIG: config, "the filter file": options.bids_filter_file, "the manifest": options.manifest}
    files["the table of people"] = Path(table) if table else None
    linked = dict.fromkeys(_targets_of_links(root), "what a link in the input leads to") if options.follow_links else {}
    return {
        **linked,
        **dict.fromkeys(above, "a table above the input"),
        **{path.resolve(): what for what, path in files.items() if path is not None},
        root: "the input folder",
    }


def _targets_of_links(root: Path) -> Iterator[Path]:
    """Resolved targets, outside of a folder, of all links in it; its ``derivatives`` may be written to."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and Path(folder, name) != root / DERIVATIVES]
        links = [name for name in (*folders, *files) if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118 speed
        targets = {name: Path(os.path.realpath(Path(folder, name))) for name in links}
        yield from (target for target in targets.values() if not target.is_relative_to(root))
        folders[:] = [
            name for name in folders
            if name not in targets or not leads_in_a_circle(root, Path(folder, name).relative_to(root).as_posix())
        ]  # fmt: skip


def require_unread(target: Path, places: Mapping[Path, str], derivatives: bool = False) -> None:
    """Refuse to write to what is read: a path that is one of the places, or lies in one.

    `derivatives`: whether this folder of the input may be written to.
    """
    where = target.resolve()
    for place, what in places.items():
        if where.is_relative_to(place) and not (derivatives and where.is_relative_to(place / DERIVATIVES)):
            raise UsageError(f"{target}: is or lies inside {what}, which is never written to. Choose another place.")


def require_none_in(out: Path, places: Mapping[Path, str]) -> None:
    """Refuse a run folder that holds what is read, but for the configuration, which a run may be continued with."""
    for place, what in places.items():
        if what != _CONFIG and place.is_relative_to(out.resolve()):
            raise UsageError(f"{place}: is {what}, and lies in {out}, which the run writes to. Move it elsewhere.")


def selection_of(
    options: Check | ManifestExport | ManifestImport | Run, config: Config, apart: Sequence[Path]
) -> ScanSelection:
    """Scans that a command selects, and how they are anonymised; the key must not be or lie in one of `apart`."""
    if options.manifest is not None and "ids" in config.privacy.pseudonyms:
        raise UsageError("--pseudonymise ids: a manifest and its comparison contain image ids. Leave one out.")
    return ScanSelection(
        participants=options.participant_label,
        follow_links=options.follow_links,
        template=config.registration.template,
        entities=read_filter(filtered, config.cohort.kind) if (filtered := options.bids_filter_file) else {},
        manifest=None if options.manifest is None else Manifest.read(options.manifest),
        disguise=open_disguise(options.anonymise, config.privacy, apart),
    )


HIPPOCAMPUS = "Hippocampus"
NO_CONTRACT = (
    "model.scaling is empty, so nothing says how the network was fed in training: it gets the grid of the template and "
    "intensities in [0, 1] (docs/howto/feed_a_public_network.md)"
)
DERIVATIVES = "derivatives"


@dataclass(frozen=True)
class Ready:
    """Result of `preflight`."""

    split: Split  # without folds if nothing is trained
    notes: tuple[str, ...] = ()  # settings that will have no effect on some scans
    balance: pd.DataFrame = field(default_factory=SPLIT_BALANCE_TABLE.frame)


def stages_until(last: str) -> tuple[str, ...]:
    return STAGES[: STAGES.index(last) + 1]


def require_settings(config: Config, stages: Sequence[str], elsewhere: bool) -> None:
    """Refuse settings that cannot work with any input.

    `elsewhere` says whether the workers may be on other machines (``--executor``): this one then needs no GPU.
    """
    groups = atlas_groups(config)
    source = config.registration.hippocampus_source
    if source in ("fill", "jacobian") and HIPPOCAMPUS not in groups:
        raise UsageError(
            f'registration.hippocampus_source = "{source}": the atlas {config.regions.atlas} has no group '
            f'{HIPPOCAMPUS}. Set "table", or choose another regions.atlas.'
        )
    unmeasured = not_measured(config.registration)
    if "registration" in stages and source == "jacobian" and unmeasured:
        raise UsageError(
            f'registration.hippocampus_source = "jacobian": {unmeasured.removeprefix(NOT_MEASURED)}. Set "table" '
            f'or "auto", or register with the default transform at {COARSEST_MM:g} mm or finer.'
        )
    if "registration" in stages and config.registration.brain_extraction == "synthstrip":
        require_synthstrip(Path(config.registration.synthstrip_model))
    if "training" in stages:
        require_network(config, elsewhere)
    if "attribution" in stages:
        _require_methods(config)
        if config.attribution.plant:
            from heatlas.pipeline.explaining.planted_in_scan import require_planted  # torch takes a second

            require_planted(config)
        if is_given(config) and not config.training.networks_of and "training" in stages:
            from heatlas.pipeline.explaining.scan_jobs import require_explained  # torch takes a second

            require_explained(config)


def require_network(config: Config, elsewhere: bool) -> None:
    """Refuse a network that does not fit its grid or memory, shifts that move the image out of view, and no GPU.

    `elsewhere`: as of `require_settings`.
    """
    spec = configured_input(config)
    shape = spec.shape
    family_of(config.model).require_fits(shape, config.model)
    family_of(config.model).require_images(spec.channels)
    if is_solved(config.model):
        from heatlas.pipeline.training.exact import require_plain  # torch takes a second

        require_plain(config)
    if is_given(config):
        from heatlas.pipeline.training.given import require_usable  # as above

        require_usable(config)
    if config.training.max_shift_voxels >= shape[0]:
        raise UsageError(
            f"training.max_shift_voxels = {config.training.max_shift_voxels}: the network sees {shape[0]} voxels from "
            "left to right, so nothing would be left. The default is 2."
        )
    if config.training.device == "cuda" and not elsewhere:
        from heatlas.pipeline.models.device import require_device  # as above

        require_device(config.training)


def _require_methods(config: Config) -> None:
    """Refuse unknown methods, or methods not defined for the network; the default methods need no imports."""
    family, settings, usual = family_of(config.model), config.attribution, AttributionConfig()
    for method in settings.methods:
        try:
            family.require_method(method)
        except UsageError as error:
            raise UsageError(
                f"{error}. Take it out of attribution.methods, or choose another model.architecture; `heatlas models` "
                "lists the methods of each."
            ) from error
    if family.batch_norm("auto") == "identity" and settings.batch_norm == "fold":
        raise UsageError(
            f'attribution.batch_norm = "fold": {family.name} has normalisations that do not follow a convolution and '
            'cannot be folded. Set "auto" or "identity".'
        )
    if (settings.methods, settings.settings) != (usual.methods, usual.settings):
        from heatlas.pipeline.explaining.scan_jobs import explanations_of_run

        explanations_of_run(config)
    if settings.start_value == "evidence":
        from heatlas.pipeline.explaining.scan_jobs import require_start  # torch takes a second

        require_start(config)


def atlas_groups(config: Config) -> frozenset[str]:
    """Bilateral groups of the configured atlas; labels given by path must fit their table and the grid."""
    atlas, name = find_atlas(config.regions.atlas), template_name(config.registration.template)
    if atlas.carried and name != DEFAULT_TEMPLATE:
        raise UsageError(
            f"regions.atlas = {atlas.name}: lies in {DEFAULT_TEMPLATE}, and registration.template is {name}. Give the "
            f"path of a label image in {name} (.nii.gz with a .tsv beside it) as regions.atlas."
        )
    if not atlas.carried:
        load_atlas(config.regions.atlas, configured_grid(config.registration))
    return frozenset(atlas.read_table().groups)


def preflight(config: Config, cohort: InputCohort, stages: Sequence[str]) -> Ready:
    """Refuse a cohort that the stages cannot work with, before any work starts."""
    if not cohort.table.kept:
        raise BadInputError(f"{without_home(cohort.root)}: no scan can be used; the reasons are above.")
    notes = []
    if "training" in stages and isinstance(config.model, ForeignConfig):
        notes = [f"the code of model.network = {config.model.network} was run, to make the network and to try it"]
        notes += [NO_CONTRACT] * (not config.model.scaling)
    if "registration" in stages:
        own_labels = "training" in stages and config.objective.own_anatomy
        require_ants(cohort.table.kept, config.registration, config.cohort.kinds, own_labels)
        if engine_of(config.registration.transform) != config.registration.transform:
            notes += ["ANTs is not installed: scans that are not in template space are registered by torch"]
        template = find_template(config.registration.template)  # read before work starts
        notes += [f"template {template.name} from {template.origin}: {template.note}"] * bool(template.note)
        notes += _mask_notes(config.registration, cohort) + _hippocampus_notes(config.registration, cohort)
    if "regions" in stages:
        notes += _own_region_notes(config, cohort)
    if "training" not in stages:  # registration alone needs neither labels nor a split
        return Ready(Split(()), tuple(notes))
    if cohort.problem:
        raise BadInputError(cohort.problem)
    if config.training.networks_of and not cohort.table.labelled:
        return Ready(_folds_of_networks(config, stages), (*notes, *_reference_notes(config)))
    split = _split_with_labels(config, cohort)
    notes += _objective_notes(config, cohort, split)
    starts = config.training.from_run or on_backbone(config.model) is not NO_BACKBONE
    if starts and not config.training.networks_of:
        from heatlas.pipeline.training.objectives.known_networks import require_start

        require_start(config, split)
    if "attribution" in stages:
        _require_methods(config)
        notes += _reference_notes(config)
    if "statistics" in stages:
        require_names(config, cohort.table.labelled, cohort.clinical, atlas_groups(config))
    return Ready(split, tuple(notes), split_balance(split, cohort.table, config.cohort, config.seed))


def _objective_notes(config: Config, cohort: InputCohort, split: Split) -> list[str]:
    """Refuse an objective that cannot be trained; a note on how many have labels of their own, where these guide."""
    if config.objective.kind == "task":
        return []
    from heatlas.pipeline.training.objectives.records import kind_of  # torch takes a second

    kind_of(config).require(config, split)
    own = config.objective.own_anatomy
    table = cohort.table
    return require_own_labels(config, cohort.root, table.labelled, split, table.kept) if own else []


def _split_with_labels(config: Config, cohort: InputCohort) -> Split:
    """The split of a cohort; BadInputError if a part of a fold lacks a class."""
    split = make_split(cohort.table, config.cohort, config.seed)
    for fold in split.folds:
        for part in PARTS[:2]:
            people = set(getattr(fold, part))
            labels = [scan.label for scan in cohort.table.labelled if scan.participant_id in people]
            require_labels(fold.index, part, labels, task_of(config.cohort), after_inclusion(config.cohort))
    return split


def _folds_of_networks(config: Config, stages: Sequence[str]) -> Split:
    """The folds of the run whose networks are applied to people without labels."""
    from heatlas.pipeline.training.given import split_of_networks  # torch takes a second

    if "attribution" in stages:
        _require_methods(config)
    return split_of_networks(config.training.networks_of, config.model)


def _reference_notes(config: Config) -> list[str]:
    """A note where networks of an exported run compare with the mean of their controls."""
    if not config.training.networks_of:
        return []
    from heatlas.pipeline.explaining.controls import note_on_mean  # torch takes a second

    return [note] if (note := note_on_mean(config)) else []


def _hippocampus_notes(settings: RegistrationConfig, cohort: InputCohort) -> list[str]:
    """A note on scans without a volume because it is not measured with these settings."""
    scans, unmeasured = cohort.table.kept, not_measured(settings)
    if cohort.layout == "image":  # a volume is asked for in tests over people only
        return []
    lacking = [scan for scan in scans if scan.hippocampus_mm3 is None]
    wanted = settings.hippocampus_source == "fill" or len(lacking) == len(scans)
    if settings.hippocampus_source == "table" or not lacking or not wanted or unmeasured is None:
        return []
    return [
        f"{counted(len(lacking), 'scan')} of {len(scans)} will have no hippocampal volume: the input gives none, and "
        f"{unmeasured.removeprefix(NOT_MEASURED)}"
    ]


def _own_region_notes(config: Config, cohort: InputCohort) -> list[str]:
    """A note on how many scans have a segmentation of their own, over which maps are summed too."""
    pattern, scans = config.regions.own_labels, cohort.table.kept
    of_scan = {scan.scan_id: segmentation_of(cohort.root, scan, pattern) for scan in scans}
    found = [path for path in of_scan.values() if path is not None]
    if pattern and len(set(found)) < len(found):
        raise BadInputError(
            f"regions.own_labels = '{pattern}': several scans would have the same segmentation. Let the pattern tell "
            "them apart, by {session_id}, {name} or {scan_id}."
        )
    if pattern and not found:
        raise BadInputError(
            f"regions.own_labels = '{pattern}': no scan has a segmentation there, below {without_home(cohort.root)}. "
            "Correct the pattern, or leave it empty."
        )
    if not found or config.attribution.keep_maps != "all":
        return []
    return [f"maps of {len(found)} of {len(scans)} scans are also summed over people's own segmentations"]


def _mask_notes(settings: RegistrationConfig, cohort: InputCohort) -> list[str]:
    """Notes on scans without the requested brain mask, and on a pattern that is not used."""
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
    example = f"no brain mask of {lacking[0].name} at {without_home(where)}"
    if len(lacking) == len(scans):
        raise BadInputError(
            f"registration.mask_pattern = '{settings.mask_pattern}': no scan has a mask; {example}. Put masks there, "
            'correct the pattern, or let registration.brain_extraction be "auto" without a pattern.'
        )
    consequence = "fails" if settings.brain_extraction == "given-mask" else "is extracted without one"
    return [f"{len(lacking)} of {len(scans)} scans have no brain mask, and each {consequence}: {example}"]
