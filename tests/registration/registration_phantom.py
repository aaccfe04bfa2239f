"""A phantom: the template brain, moved, with unequal sides and a ball that tells left from right."""

from __future__ import annotations

import numpy as np

BALL_MM = np.array([-30.0, -20.0, 20.0])
"""Where the phantom has its bright ball: the left hemisphere of template space."""
BALL_RADIUS_MM = 10.0
TEMPLATE_TO_SCAN = np.array(
    [
        [0.95, -0.06, 0.02, 4.0],
        [0.07, 0.95, 0.04, -6.0],
        [-0.02, -0.05, 0.95, 3.0],
        [0, 0, 0, 1],
    ]
)
"""Affine by which the phantom's head differs from the template."""
