"""The rule of verdicts under its former name, until asked.py imports it from the product."""

from heatlas.pipeline.evaluation.claims.rule import *  # noqa: F403
