"""``heatlas models``: the families of networks, their settings, and which methods explain them."""

from __future__ import annotations

from collections.abc import Iterator

from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.family import Family
from heatlas.pipeline.models.families.registry import FAMILIES, parameter_count
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.plugins import origin
from heatlas.workflows.commands import Models

RESOLUTIONS = (1.0, 2.0)
"""Default resolutions of template space in mm."""


def models_command(options: Models) -> int:
    """Describe every family on the terminal."""
    resolutions = RESOLUTIONS if options.resolution is None else (options.resolution,)
    for family in FAMILIES.values():
        print(family.name)
        for heading, text in described(family, resolutions):
            print(f"  {heading:<17} {text}")
    print('Choose one by architecture = "NAME" under [model] in the file for --config.')
    return EXIT_OK


def described(family: Family, resolutions: tuple[float, ...]) -> Iterator[tuple[str, str]]:
    """Description of a family, as pairs of heading and text."""
    network = family.settings(architecture=family.name)
    if (source := origin("networks", family.name)) != "heatlas":
        yield "added by", source
    for resolution in resolutions:
        config = Config(registration=RegistrationConfig(resolution_mm=resolution), model=network)
        shape = configured_input(config).shape
        grid = f"brain at {resolution:g} mm"
        try:
            yield grid, f"{parameter_count(network, shape):,} parameters; {'x'.join(map(str, shape))} voxels"
        except (BadInputError, UsageError) as error:
            yield grid, str(error)
    yield "smallest grid", f"{family.smallest_side(network)} voxels along each axis"
    yield "settings", ", ".join(f"{name} = {toml_value(value)}" for name, value in network.own.items())
    for method, settings in family.needs.items():
        yield f"with {method}", ", ".join(f"{name} = {toml_value(value)}" for name, value in settings.items())
    yield (
        "explained by",
        f"{len(METHODS) - len(family.refused)} of {len(METHODS)} methods" + ("; not by" if family.refused else ""),
    )
    for method, reason in family.refused.items():
        yield "", f"{method}: {reason}"
