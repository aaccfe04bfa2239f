"""Compile the loops of the statistics, which numba keeps beside their modules; else all workers of a first run do."""

import numpy as np

from heatlas.pipeline.statistics.harmonisation import sites
from heatlas.pipeline.statistics.images.voxel_test import enhanced, neighbours_of
from heatlas.pipeline.statistics.linear.permutations import random_orders

orders = random_orders(2, 6, np.random.default_rng(0))
sites._statistics(np.arange(12.0).reshape(6, 2), orders, np.array([0, 0, 0, 1, 1, 1], np.int32))
enhanced(np.arange(27.0), neighbours_of(np.ones((3, 3, 3), bool)))
