"""What is planted: which regions change, by how much, and how severity differs between diagnoses.

The magnitudes come from published volumetry and from stated assumptions. They are never adjusted to what a heatmap
shows.

Published figures are differences between the averages of patients and controls. One unit of severity is such a
difference:

- hippocampus -27 %, entorhinal cortex -39 %: Alzheimer's disease against normal cognition in Du et al. (2001),
  doi:10.1136/jnnp.71.4.441;
- amygdala -24 %: Klein-Koerkamp et al. (2014), doi:10.2174/1567205011666140131123653 (as much as the hippocampus; also
  Poulin et al. 2011, doi:10.1016/j.pscychresns.2010.12.014);
- parahippocampal gyrus -27 %: Echavarri et al. (2011), doi:10.1007/s00429-010-0283-8, find it at least as much
  reduced as the hippocampus;
- lateral ventricles, temporal horns included, +40 %: that they widen is from Nestor et al. (2008),
  doi:10.1093/brain/awn146; the figure is an assumption.

The patients of the demo are at a severe stage, about 1.85 units above the controls (`SEVERITY_RANGE`): two dozen people
teach a network only a strong effect within the minutes a demo may take. Tried on seed 43, judged by held-out balanced
accuracy alone and before any heatmap was made: patients 1 unit above the controls, half of the loss in place (the
founding network stayed at chance, a linear model on region averages reached 0.9); 1.45 units, two thirds in place
(0.7 to 0.93 per fold); the present values.

Volumetry gives only the total loss of a grey-matter region. One third of it (on the log scale) is planted as
contraction, two thirds as tissue replaced by cerebrospinal fluid in place: an assumption. Registration to the template
undoes much of the first and none of the second.

Over time, severity grows so that the hippocampus shrinks by 4.66 % a year in Alzheimer's disease and 1.41 % in controls
(meta-analysis of Barnes et al. 2009, doi:10.1016/j.neurobiolaging.2008.01.010); mild cognitive impairment lies halfway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LOSS_IN_PLACE = 2 / 3
"""Share of a tissue loss, on the log scale, that is replaced by fluid in place; the rest is contraction."""


@dataclass(frozen=True)
class PlantedChange:
    """What one unit of severity does to one bilateral group."""

    group: str  # name of the bilateral group in the region table
    short: str  # the same in column names
    volume_change: float  # relative change of the volume of tissue (or of fluid, for a ventricle) per unit of severity
    # True for grey matter, which contracts and is lost in place; False for a fluid space, which only widens
    tissue: bool

    @property
    def log_size(self) -> float:
        """Log of the region's size per unit of severity: what the deformation does."""
        return math.log1p(self.volume_change) * (1 - LOSS_IN_PLACE if self.tissue else 1.0)

    @property
    def loss_rate(self) -> float:
        """-log of the tissue that remains in place after one unit of severity."""
        return -math.log1p(self.volume_change) * LOSS_IN_PLACE if self.tissue else 0.0


CHANGES = (
    PlantedChange("Hippocampus", "hippocampus", -0.27, tissue=True),
    PlantedChange("Amygdala", "amygdala", -0.24, tissue=True),
    PlantedChange("Entorhinal area", "entorhinal", -0.39, tissue=True),
    PlantedChange("Parahippocampal gyrus", "parahippocampal", -0.27, tissue=True),
    PlantedChange("Lateral ventricle", "lateral_ventricle", +0.40, tissue=False),
)
"""All planted changes, in the order of all arrays over groups in this package."""

PLANTED_GROUPS = tuple(change.group for change in CHANGES)

SEVERITY_RANGE = {"CN": (0.0, 0.3), "MCI": (0.5, 1.2), "AD": (1.5, 2.5)}
"""Severity at baseline, uniform within the diagnosis: mild in controls, severe in patients."""

SEVERITY_PER_YEAR_OF_AGE = 0.01
"""Added for each year over 70, whatever the diagnosis (a third of a per cent of the hippocampus; an assumption)."""

SPREAD_BETWEEN_REGIONS = 0.12
"""Standard deviation of log severity between the regions of one person (an assumption)."""

_HIPPOCAMPAL_LOSS_PER_YEAR = {"CN": 0.0141, "MCI": (0.0141 + 0.0466) / 2, "AD": 0.0466}


def severity_per_year(diagnosis: str) -> float:
    """Growth of severity that gives the published yearly loss of hippocampal volume.

    >>> round((1 - 0.27) ** severity_per_year("AD"), 4)  # the hippocampus a year later
    0.9534
    """
    hippocampus = next(change for change in CHANGES if change.group == "Hippocampus")
    return math.log1p(-_HIPPOCAMPAL_LOSS_PER_YEAR[diagnosis]) / math.log1p(hippocampus.volume_change)


@dataclass(frozen=True)
class Course:
    """Course of the disease in one person."""

    baseline: float  # common severity at the first visit, without the effect of age
    per_year: float  # growth of severity
    region_factors: tuple[float, ...]  # individual emphasis per group, in the order of `CHANGES`, around 1

    def mean_severity(self, age: float, years: float) -> float:
        """Severity averaged over the regions: the basis of clinical scores and conversion."""
        return float(np.mean(self.severities(age, years)))

    def severities(self, age: float, years: float) -> tuple[float, ...]:
        """Severity per group, `years` (of which ageing is part of `per_year`) after the first visit at `age`."""
        common = self.baseline + SEVERITY_PER_YEAR_OF_AGE * max(age - 70, 0) + self.per_year * years
        return tuple(common * factor for factor in self.region_factors)


def draw_course(rng: np.random.Generator, diagnosis: str, stratum: tuple[int, int] = (0, 1)) -> Course:
    """Draw the course of one person.

    `stratum` is (number, count) of equal parts of the severity range; each of the few people with MCI has one part.
    The number of draws does not depend on the diagnosis, so that the random stream does not either.
    """
    low, high = SEVERITY_RANGE[diagnosis]
    part, parts = stratum
    baseline = low + (high - low) * (part + rng.random()) / parts
    factors = np.exp(SPREAD_BETWEEN_REGIONS * rng.standard_normal(len(CHANGES)))
    return Course(float(baseline), severity_per_year(diagnosis), tuple(factors.tolist()))
