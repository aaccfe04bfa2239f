"""What `pip install heatlas` leaves to the extra ``study``: asked for before work begins, and said in one line."""

from __future__ import annotations

from importlib.util import find_spec

from heatlas.pipeline.run.errors import MissingDataError
from heatlas.pipeline.run.plain_text import listed

STUDY = (
    "dcm2niix", "formulaic", "jinja2", "matplotlib", "monai", "nilearn", "pathspec", "pydicom", "python_calamine",
    "skimage", "sklearn", "statsmodels",
)  # fmt: skip
"""Top-level modules of the packages of the extra (pyproject.toml); a test holds both equal."""


def require_study(what: str, *modules: str) -> None:
    """Raise MissingDataError if one of `modules`, by default of all of `STUDY`, is not installed.

    `what`: that needs them. They are looked for, not imported.
    """
    absent = [name for name in modules or STUDY if find_spec(name) is None]
    if absent:
        raise MissingDataError(
            f"{what} needs packages that are not installed ({listed(absent)}): pip install 'heatlas[study]'."
        )
