"""The settings of the cohort statistics: one frozen record per analysis, nested in `StatisticsConfig`.

A record states its defaults, so that no setting needs to be touched, and its own checks: a list of pairs, whether a
value is all right and what must hold. `StatisticsConfig.checks` joins the checks of the nested records, and
`pipeline.run.config` raises the first that fails. In TOML a nested record is a section: ``[statistics.subgroups]``.
"""

from __future__ import annotations

from dataclasses import dataclass

Checks = list[tuple[bool, str]]


@dataclass(frozen=True)
class StatisticsConfig:
    """Inference; the participant is the unit."""

    permutations: int = 10_000
    """Random permutations of a test; where there are no more distinct ones than that, all are used and p is exact."""
    bootstrap_samples: int = 2_000
    confidence: float = 0.95

    def checks(self) -> Checks:
        return [
            (self.permutations >= 1, "statistics.permutations must be 1 or more"),
            (self.bootstrap_samples >= 100, "statistics.bootstrap_samples must be 100 or more"),
            (0.5 < self.confidence < 1, "statistics.confidence must lie between 0.5 and 1"),
        ]
