"""Studies: families of networks, methods and questions that plug into the program by entry points (docs/plugins.md)."""

import heatlas.pipeline  # noqa: F401  # its registries load the studies: a study that is imported first is whole then
