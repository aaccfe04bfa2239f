"""Random streams: each consumer derives one from the seed of the run and its name."""

from __future__ import annotations

import hashlib

import numpy as np


def derived_seed(seed: int, *names: str | int) -> int:
    """A 31-bit seed for one consumer, e.g. ``derived_seed(43, "training", 2)``.

    Streams with different names are independent, so adding a consumer does not change others.
    """
    text = ":".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derived_seed(seed, *names))
