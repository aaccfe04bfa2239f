"""Truth about one scan: whether answer and map follow when a tenth of a region is taken out of it.

The loss is that of ``heatlas evaluate --plant`` (`pipeline.explaining.planted_loss`). All networks are asked again, and
the leading map is made again. So that "follows" says something, the same volume is also taken out of other regions of
about the same size, of which the answers alone are asked. The rule was written down before a scan was tried:

- The answer follows if the interval of its mean change over networks leaves out 0, and no more than one in ten of the
  other places changes it as much.
- The map follows if the sum over the region changes more than that over any other region, or than all but one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, stats

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.regions import Region, RegionTable
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import span_of
from heatlas.pipeline.attribution.gradient.paths import together
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.attribution.titles import maps_to_lead
from heatlas.pipeline.cohort.demo.people import PlantedChange
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.explained_scan import Explanation, ScanToExplain, explained_scan
from heatlas.pipeline.explaining.planted_loss import planted_copy, planting_site, read_registered
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import as_channels, read_channels, scale_volume
from heatlas.pipeline.regions.region_sums import REST, device_labels, device_region_sums
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.jobs import Job, run_step
from heatlas.pipeline.training.prediction import logits_of_members

TAKEN = 0.1
"""Share of a region's volume that is taken out."""
USUAL = "Hippocampus"
PLACES = 10
"""Other regions out of which the same volume is taken."""
AS_LARGE = 0.1
"""Share of them that may change the answer as much."""
FOREMOST = 2
"""Place by size of change, among all regions, to which a map that follows must put the region."""
LEVEL = 0.95
NEAR_MM = 4.0
"""Voxels this far from a region are its immediate neighbourhood."""
_COARSE_MM = 4.0
_FLUID = ("CSF", "vessel")
PLANTED_IN_SCAN_TABLE = declared(
    "planted_in_scan", TAKEN=TAKEN, PLACES=PLACES, LEVEL=LEVEL, NEAR_MM=NEAR_MM, AS_LARGE=AS_LARGE, FOREMOST=FOREMOST
)


@dataclass(frozen=True)
class Followed:
    """What followed when a part of a region was taken out of a scan.

    `change`, `sd`, `ci_low`, `ci_high`: of the explained value, over networks; nan where there is one network alone.
    `as_large`: of the other places, `places`, those that changed it at least as much. `map_change`, `region_change`: of
    the sum of the map, over everything and over the region. `place`: of the region among all, `n_regions`, by size of
    that change; equal ones count as larger.
    """

    change: float
    sd: float
    ci_low: float
    ci_high: float
    n_networks: int
    as_large: int
    places: int
    map_change: float
    region_change: float
    place: int
    n_regions: int

    @property
    def answer_followed(self) -> bool:
        steady = self.ci_low > 0 or self.ci_high < 0 if self.n_networks > 1 else self.change != 0
        return steady and self.places > 0 and self.as_large <= AS_LARGE * self.places

    @property
    def map_followed(self) -> bool:
        return self.place <= FOREMOST


def what_followed(
    changes: NDArray[np.float64], others: NDArray[np.float64], parts: Mapping[int, float], region: int
) -> Followed:
    """What followed, from the changes of answers and of a map.

    `changes`: of the explained value, one per network. `others`: its mean change for each other place. `parts`: change
    of the sum of the map by region, `REST` for the unlabelled rest.

    Examples
    --------
    >>> found = what_followed(np.array([-0.3, -0.2, -0.25]), np.array([0.1, -0.02]), {0: 0.0, 47: -0.05, 48: -0.2}, 48)
    >>> found.as_large, found.place, round(found.map_change, 2), found.answer_followed, found.map_followed
    (0, 1, -0.25, True, True)
    """
    count, mean = len(changes), float(changes.mean())
    sd = float(changes.std(ddof=1)) if count > 1 else float("nan")
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * sd / count**0.5 if count > 1 else float("nan")
    sizes = {number: abs(part) for number, part in parts.items() if number != REST}
    return Followed(
        change=mean,
        sd=sd,
        ci_low=mean - half,
        ci_high=mean + half,
        n_networks=count,
        as_large=int((np.abs(others) >= abs(mean)).sum()),
        places=len(others),
        map_change=sum(parts.values()),
        region_change=parts[region],
        place=sum(size >= sizes[region] for size in sizes.values()),
        n_regions=len(sizes),
    )


def share_near(change: NDArray[np.floating], near: NDArray[np.bool_]) -> float:
    """Share of the size of a change, voxel by voxel, that lies in a mask; nan where nothing changes.

    >>> share_near(np.array([3.0, -1.0, 0.0]), np.array([True, False, False]))
    0.75
    """
    total = float(np.abs(change).sum(dtype=np.float64))
    return float(np.abs(change[near]).sum(dtype=np.float64)) / total if total else float("nan")


def regions_named(regions: RegionTable, atlas: str, names: Iterable[str]) -> tuple[Region, ...]:
    """Regions by their names or those of their bilateral groups, each once; UsageError for others, and for fluid."""
    found: dict[int, Region] = {}
    for name in names:
        same = [one for one in regions.regions if name.casefold() in (one.name.casefold(), one.group.casefold())]
        if not same:
            known = [*regions.groups, *(one.name for one in regions.regions)]
            raise UsageError(
                f"--plant {name}: the atlas {atlas} has no such region.{did_you_mean(nearest(name, known))} Names of "
                "regions and of bilateral groups are those of the table of regions in the report."
            )
        if all(one.tissue in _FLUID for one in same):
            raise UsageError(f"--plant {name}: is no tissue, and loss is planted in tissue alone. Name another region.")
        found |= {one.number: one for one in same if one.tissue not in _FLUID}
    return tuple(found.values())


def require_planted(config: Config) -> None:
    """Refuse unknown regions of ``attribution.plant``, and what it cannot be done with."""
    atlas = find_atlas(config.regions.atlas)
    regions_named(atlas.read_table(), atlas.name, config.attribution.plant)
    if not _shows_loss(config):
        raise UsageError("--plant: fluid takes the place of tissue as in a T1w image, and these networks see others.")
    if config.attribution.keep_maps == "group":
        raise UsageError('--plant: explains scans one by one, and attribution.keep_maps = "group" folds whole.')


def _shows_loss(config: Config) -> bool:
    return [kind.suffix for kind in config.cohort.kinds] == ["T1w"]


def within(mask: NDArray[np.bool_], voxel_sizes_mm: Sequence[float], distance_mm: float) -> NDArray[np.bool_]:
    """Voxels of a mask, which is not empty, and those whose centre is no farther from one of them than a distance."""
    near: NDArray[np.bool_] = ndimage.distance_transform_edt(~mask, sampling=voxel_sizes_mm) <= distance_mm
    return near


def other_places(atlas: Atlas, volumes: Mapping[int, float], region: Region) -> tuple[Region, ...]:
    """The regions of tissue nearest in volume to a region, `PLACES` at most, that are not of its group.

    None is in the neighbourhood of the region or of another; none has less than half its volume.
    """
    sizes, known = atlas.grid.voxel_sizes_mm, {number for number in np.unique(atlas.labels).tolist() if number != REST}
    able = [
        one for one in atlas.regions.regions
        if one.number in known and one.group != region.group and one.tissue not in _FLUID
        and volumes[one.number] >= volumes[region.number] / 2
    ]  # fmt: skip
    able.sort(key=lambda one: (abs(np.log(volumes[one.number] / volumes[region.number])), one.number))
    taken, found = within(atlas.labels == region.number, sizes, NEAR_MM), list[Region]()
    for one in able:
        own = atlas.labels == one.number
        if len(found) < PLACES and not (own & taken).any():
            taken |= within(own, sizes, NEAR_MM)
            found.append(one)
    return tuple(found)


def leading_explanation(explanations: Sequence[Explanation]) -> tuple[Explanation, str]:
    """The explanation that makes the map that leads where nothing was evaluated, and the name of the map."""
    maps = {name: asked for asked in explanations for name in asked.names}
    evidence = [name for name, asked in maps.items() if asked.entry.needs_reference and asked.start == "evidence"]
    name = maps_to_lead(list(maps), evidence)[0]
    return maps[name], name


@dataclass(frozen=True, eq=False)
class Planting:
    """A region, the other places, and the volume (mm3) that is taken out of each; `near`: on the template grid."""

    region: Region
    others: tuple[Region, ...]
    changes: tuple[PlantedChange, ...]
    volume_mm3: float
    near: NDArray[np.bool_]


def planting_of(region: Region, config: Config) -> Planting:
    """What is taken out, and from where; the same for all scans. BadInputError for a region that the grid misses."""
    span, name = span_of(config.registration.template), config.regions.atlas
    fine, coarse = load_atlas(name, template_grid(1.0, span)), load_atlas(name, template_grid(_COARSE_MM, span))
    own = load_atlas(name, template_grid(config.registration.resolution_mm, span))
    if not all((atlas.labels == region.number).any() for atlas in (coarse, own)):
        raise BadInputError(f"{region.name}: has no voxel at {own.grid.voxel_sizes_mm[0]:g} mm. Name a larger region.")
    counts = np.bincount(fine.labels.ravel(), minlength=max(fine.regions.numbers) + 1)
    volumes = {number: float(counts[number]) for number in fine.regions.numbers}
    others = other_places(coarse, volumes, region)
    volume = TAKEN * volumes[region.number]
    changes = [PlantedChange(one.name, "", -volume / volumes[one.number], tissue=True) for one in (region, *others)]
    near = within(own.labels == region.number, own.grid.voxel_sizes_mm, NEAR_MM)
    return Planting(region, others, tuple(changes), volume, near)


def plant_in_scan(task: ScanToExplain, plantings: Sequence[Planting], atlas: str) -> list[dict[str, Any]]:
    """Rows of `PLANTED_IN_SCAN_TABLE` of one scan, which loses each region in turn."""
    device, files = chosen_device(task.training), task.files
    spec = task.networks[0].load(device).input
    asked, name = leading_explanation(task.explanations)
    alone = replace(task, explanations=(asked,))
    volume, brain = read_registered(files, spec.template_grid)
    volume = scale_volume(volume, brain, spec)  # once: percentiles of a copy would change all of it a little
    seen = read_channels(files, spec)

    def map_of(image: NDArray[np.float32]) -> torch.Tensor:
        return explained_scan(alone, image).maps[name]

    before, labels = map_of(seen), device_labels(task.atlas.labels, spec.box, device)
    identity = {"participant_id": task.scan.participant_id, "session_id": task.scan.session_id,
                "scan_id": task.scan.scan_id, "map": name}  # fmt: skip
    rows = []
    for planting in plantings:
        site = planting_site(atlas, planting.changes, files.resolution_mm, files.template)
        once = np.eye(len(planting.changes))
        changed = [planted_copy(volume, brain, site, row) for row in once]
        copies = [as_channels(one if spec.box is None else spec.box.crop(one), spec) for one in changed]
        answers = _answers(task, asked, np.stack([seen, *copies]))
        changes = answers[:, 1:] - answers[:, :1]
        change = map_of(copies[0]) - before
        sums = on_host(device_region_sums(change[None], labels))[0].tolist()
        there = np.asarray(labels.n_voxels) > 0
        parts = {n: part for n, part, known in zip(labels.numbers, sums, there, strict=True) if known or n == REST}
        found = what_followed(changes[:, 0], changes[:, 1:].mean(0), parts, planting.region.number)
        near = planting.near if spec.box is None else spec.box.crop(planting.near)
        of_region = {
            **vars(found),
            "share": share_near(on_host(change).numpy(), near),
            "image_share": share_near(copies[0][0] - seen[0], near),
            "answer_followed": str(found.answer_followed).lower(),
            "map_followed": str(found.map_followed).lower(),
        }
        common = {**identity, "planted": planting.region.name, "volume_mm3": planting.volume_mm3}
        rows.append({**common, "name": planting.region.name, **of_region})
        for place, of_place in zip(planting.others, changes[:, 1:].T, strict=True):
            sd = float(of_place.std(ddof=1)) if len(of_place) > 1 else float("nan")
            rows.append({**common, "name": place.name, "change": float(of_place.mean()), "sd": sd})
    return rows


def _answers(task: ScanToExplain, asked: Explanation, volumes: NDArray[np.float32]) -> NDArray[np.float64]:
    """The explained value of volumes (B, C, D, H, W) by each network, members of ensembles alone; (networks, B)."""
    device, found = chosen_device(task.training), []
    parts = torch.split(torch.from_numpy(volumes), together(volumes.shape[2:]))
    for network in task.networks:
        loaded = network.load(device)
        target = loaded.classes.index(asked.target)
        logits = torch.cat([logits_of_members(loaded, part.to(device)) for part in parts], dim=1)
        found += [start_values(one.double(), target, asked.start).numpy() for one in logits]
    return np.stack(found)


def write_planted(work: Work, jobs: Sequence[Job]) -> bool:
    """Write ``planted_in_scan.tsv`` of explained scans; True if it was made.

    `jobs`: of explained scans; those of `explain_scan` hold all that is asked. A single scan that networks of another
    run are applied to loses a tenth of one hippocampus, if the atlas has it, and all scans lose the regions of
    ``attribution.plant``.
    """
    layout, config, names = work.layout, work.config, work.config.attribution.plant
    atlas = find_atlas(config.regions.atlas)
    regions = atlas.read_table()
    one = bool(config.training.networks_of) and len(work.scans) == 1 and _shows_loss(config)
    usual = [region.name for region in regions.regions if region.group == USUAL][:one]  # both sides take twice as long
    wanted = regions_named(regions, atlas.name, [*usual, *names])
    jobs = [job for job in jobs if isinstance(job.arguments[0], ScanToExplain)]
    if not wanted or not jobs:
        PLANTED_IN_SCAN_TABLE.remove(layout)
        return False

    def write() -> Iterable[Path]:
        plantings = [planting_of(region, config) for region in wanted]
        rows = [row for job in jobs for row in plant_in_scan(job.arguments[0], plantings, config.regions.atlas)]
        return [PLANTED_IN_SCAN_TABLE.write(layout, rows)]

    settings = [[region.number for region in wanted], [job.key for job in jobs]]
    return run_step(layout, "planted-in-scan", [], settings, [plant_in_scan], write, work.digests)
