"""From input images to tables; importing it makes the settings of every family of networks known."""

import heatlas.pipeline.models.families.registry  # noqa: F401
