"""Makes ``data/neurocombat.json``: what neuroCombat 0.2.12 says, for the tests of ComBat.

neuroCombat needs an old numpy, so this runs in an environment of its own, outside the project:

    python -m venv /tmp/golden && /tmp/golden/bin/pip install numpy==1.26.4 pandas==2.2.3 neuroCombat==0.2.12
    /tmp/golden/bin/python tests/statistics/neurocombat_golden.py

Covariates are whole numbers, because neuroCombat rounds them to float32.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent / "data" / "neurocombat.json"


def cohort() -> dict:
    rng = np.random.default_rng(2018)
    site = ["A"] * 9 + ["B"] * 14 + ["C"] * 7
    number = np.array([ord(name) - ord("A") for name in site])
    age = rng.integers(55, 90, len(site))
    sex = rng.integers(0, 2, len(site))
    n_features = 8
    shift, stretch = rng.normal([[1.0], [-1.0], [0.0]], 1, (3, n_features)), rng.uniform(0.5, 2, (3, n_features))
    noise = rng.normal(size=(len(site), n_features)) * stretch[number]
    values = (
        20 + shift[number] + np.outer(age - 70, rng.normal(0, 0.05, n_features)) + np.outer(sex, np.ones(n_features))
    )
    return dict(site=site, age=age.tolist(), sex=sex.tolist(), values=np.round(values + noise, 6).tolist())


def main() -> None:
    import pandas as pd
    from neuroCombat import neuroCombat as package

    module = __import__("neuroCombat.neuroCombat", fromlist=["it_sol"])
    vars(np)["int"] = int  # its reference-batch path uses the alias that numpy 1.24 removed
    data = cohort()
    values = np.array(data["values"]).T
    covariates = pd.DataFrame({name: data[name] for name in ("site", "age", "sex")})
    cases = dict(eb={}, eb_converged={}, no_eb={"eb": False}, reference={"ref_batch": "B"})
    cases |= dict(reference_no_eb={"ref_batch": "B", "eb": False})
    cases |= dict(no_covariates={"continuous_cols": None, "categorical_cols": None})
    for name, options in cases.items():
        # Its own stopping rule is a change of 1e-4 (and looks at positive locations only): loose, except in "eb".
        module.it_sol.__defaults__ = (1e-4,) if name == "eb" else (1e-14,)
        given = {"batch_col": "site", "continuous_cols": ["age"], "categorical_cols": ["sex"]} | options
        with contextlib.redirect_stdout(io.StringIO()):
            result = package(values.copy(), covariates, **given)
        estimates = result["estimates"]
        data[name] = {
            "harmonised": result["data"].T.tolist(),
            "gamma": np.array(estimates["gamma.star"]).tolist(),
            "delta": np.array(estimates["delta.star"]).tolist(),
            "pooled_variance": estimates["var.pooled"].ravel().tolist(),
        }
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
