"""Conversion from MCI to AD: who converted when, and relevance and prediction against that time, by Cox models.

*Conversion*: one row per participant, from their first scan with MCI; the networks were trained without them. Time runs
to the visit with the first diagnosis of AD (an event), or to the last visit (censored). Participants with a withdrawn
AD diagnosis have neither and are left out (`pipeline.cohort.people.diagnosis`). A dementia of another cause is a
competing event and censors follow-up, so hazards are cause-specific, and not a risk by a certain time. Deaths are
unknown.

*One Cox model per predictor*, alone and adjusted for the covariates of the settings. A model with fewer conversions per
variable than the settings require is not fitted; one with fewer than twice as many has a note, as has one whose hazards
are not proportional. Hazard ratios are per standard deviation and describe the participants they were fitted on. Where
participants were seen by different networks, relevance and the model's output are centred within participants with the
same networks, brought to one spread, and permuted among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data import members as people
from heatlas.pipeline.statistics.data.features import CovariateColumns
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.linear.fold_effect import centred_within
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, add_false_discovery_rate, two_sided_p
from heatlas.pipeline.statistics.progression import hazards
from heatlas.pipeline.statistics.requested import SHORT_NAMES

MODEL = "model"
COMPARATORS = ("hippocampus/tiv", "mmse", "age")
"""Predictors that the network is compared with, used without fitting."""
AT_ANY_TIME = "AD at any visit after the scan"
"""Definition of an event in analyses over time, which includes conversions after the horizon of pMCI and sMCI."""
SOONER_WHEN_LOWER = frozenset({"hippocampus/tiv", "mmse"})


@dataclass(frozen=True, eq=False)
class Conversions:
    """First MCI scans and follow-up, one row per participant; relevance (participants, maps, groups) holds sums.

    `frame` has the facts of the scan, ``time`` (months), ``event``, and ``competing`` (NaN where unknown). `left_out`
    counts participants without a time, by reason.
    """

    frame: pd.DataFrame
    relevance: Floats
    maps: tuple[str, ...]
    groups: tuple[str, ...]
    left_out: Mapping[str, int]

    @property
    def time(self) -> Floats:
        return self.frame["time"].to_numpy(float)

    @property
    def event(self) -> Flags:
        return self.frame["event"].to_numpy(bool)

    @property
    def competing(self) -> Floats:
        return self.frame["competing"].to_numpy(float)

    def scalar(self, predictor: str) -> Floats:
        """Value of the model's log odds or of a comparator; NaN where unknown or infinite."""
        if predictor == MODEL:
            values = people.log_odds(self.frame)
        elif predictor == "hippocampus/tiv":
            values = (self.frame["hippocampus_mm3"] / self.frame["tiv_mm3"]).to_numpy(float)
        else:
            values = self.frame[predictor].to_numpy(float)
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def network(self) -> Indices:
        """Integer code of the set of networks applied to each participant."""
        return pd.factorize(people.networks_of(self.frame))[0].astype(np.intp)

    @property
    def note(self) -> str | None:
        return joined(*(f"{counted(n, 'participant')} left out: {why}" for why, n in self.left_out.items() if n))


def conversions(applied: AppliedScans | None) -> Conversions:
    """First MCI scan of each participant, with the months from it.

    BadInputError if the networks were not applied to a scan with MCI, or the clinical table has no times.
    """
    if applied is None:
        raise BadInputError(
            "predictions_applied.tsv: missing, so the networks were not applied to anyone with MCI. Add scans "
            "with the diagnosis MCI to the input, and leave cohort.apply_outside_contrast on."
        )
    frame = applied.frame.assign(_row=np.arange(len(applied.frame)))
    mci = frame[frame["diagnosis"] == "MCI"]
    if mci.empty:
        raise BadInputError("scans.tsv: column diagnosis: no scan that the networks were applied to has MCI.")
    missing = [name for name in (people.CONVERTED, people.FOLLOWED) if name not in frame.columns]
    if missing:
        raise BadInputError(
            f"clinical.tsv: column {', '.join(missing)} is missing, so conversion is unknown. It comes from the "
            "input's visits table (ADNIMERGE, DXSUM), or sessions.tsv in a BIDS dataset."
        )
    first = people.first_visits(mci)
    later = [people.TO_CONVERSION, people.OTHER_DEMENTIA]  # missing if no one converted, or from some inputs
    first = first.reindex(columns=first.columns.union(later, sort=False))
    event = first[people.CONVERTED].astype(float) == 1
    time = first[people.TO_CONVERSION].astype(float).where(event, first[people.FOLLOWED].astype(float))
    time = time.where(first[people.CONVERTED].notna())
    unknown, late = time.isna(), time <= 0
    usable = ~(unknown | late)
    competing = first[people.OTHER_DEMENTIA].astype(float)
    kept = first.assign(time=time, event=event, competing=competing)[usable]
    left_out = {
        "neither conversion nor follow-up known": int(unknown.sum()),
        "no time between scan and last visit, or converted at or before the scan": int(late.sum()),
    }
    rows = kept["_row"].to_numpy(int)
    values = applied.values
    return Conversions(kept.drop(columns="_row"), values.sums[rows], values.maps, values.groups, left_out)


RELEVANCE = "relevance"
ALONE, ADJUSTED = "alone", "adjusted"
NOT_PROPORTIONAL = 0.05
CHANGES = "hazards are not proportional (p_proportional): the ratio changes with time, and this one is an average"
ALONE_WITH_NETWORK = "no two participants have the same networks, so none can change places"
PARTIAL_FAMILY = "p_fwe covers only the regions and maps known for the same participants"
WELL_POWERED = 2
"""Factor on the required events per variable below which a note warns; 10 in all, the rule of Peduzzi et al. (1995)."""

COX_TABLE = declared("cox", __file__)


@dataclass(frozen=True, eq=False)
class Predictor:
    """One predictor of all participants, NaN where unknown; ``network``: groups within which it is compared."""

    name: str
    map: str | None
    group: str | None
    values: Floats
    network: Indices | None = None


def predictors(cohort: Conversions, hold: bool = False) -> Iterator[Predictor]:
    """The model, its comparators, then every region of every map (with `hold`, what networks made within networks)."""
    network = cohort.network if hold and len(np.unique(cohort.network)) > 1 else None
    relevance = np.where(np.isfinite(cohort.relevance), cohort.relevance, np.nan)
    for name in (MODEL, *COMPARATORS):
        yield Predictor(name, None, None, cohort.scalar(name), network if name == MODEL else None)
    for m, map_name in enumerate(cohort.maps):
        for g, group in enumerate(cohort.groups):
            yield Predictor(RELEVANCE, map_name, group, relevance[:, m, g], network)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Predictors known for the same participants, with the covariates of one model."""

    members: Sequence[Predictor]
    complete: Flags
    network: Indices | None
    covariates: Sequence[str]
    columns: Floats
    notes: Sequence[str]
    family: str | None = None

    def known(self, predictor: Predictor) -> Floats:
        """The predictor in the participants of the model; about the mean and in the spread of their networks."""
        values = predictor.values[self.complete]
        if self.network is None:
            return values
        alike = Exchangeability.free(len(values)).in_blocks(self.network.tolist()).even(values[:, None])[:, 0]
        return centred_within(alike, self.network)


def cox_table(cohort: Conversions, settings: StatisticsConfig, seed: int) -> pd.DataFrame:
    everything = list(predictors(cohort, settings.fold_effect))
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for model, formula in ((ALONE, ""), (ADJUSTED, adjusted_formula(settings))):
        for together in _with_family_notes(_with_shared_models(everything, formula, cohort.frame)):
            for predictor, row in zip(together.members, _rows(cohort, together, settings, seed), strict=True):
                rows[everything.index(predictor), model] = row | {"model": model}
    table = pd.DataFrame([rows[key] for key in sorted(rows, key=lambda key: (key[0], key[1] == ADJUSTED))])
    table = table.astype({"n_permutations": "Int64", "n_competing": "Int64"})
    kinds = np.where(table["predictor"] == RELEVANCE, "regions and maps", "model and comparators")
    return add_false_discovery_rate(table.assign(_kind=kinds), ["_kind", "model"], "tests")[list(COX_TABLE.meanings)]


def adjusted_formula(settings: StatisticsConfig) -> str:
    """Covariates of the adjusted models."""
    parts = (settings.covariates.strip(), settings.progression.further_covariates.strip())
    return " + ".join(part for part in parts if part not in ("", "1"))


def _with_shared_models(everything: Sequence[Predictor], formula: str, frame: pd.DataFrame) -> Iterator[_Fitted]:
    """Group predictors with the same participants and covariates, which share one model of the covariates."""
    sharing: dict[tuple[bytes, tuple[str, ...], bool], list[Predictor]] = {}
    for predictor in everything:
        column = predictor.name.split("/")[0]
        itself: tuple[str, ...] = () if predictor.name == RELEVANCE else (SHORT_NAMES.get(column, column),)
        key = (~np.isnan(predictor.values)).tobytes(), itself, predictor.network is None
        sharing.setdefault(key, []).append(predictor)
    together: dict[tuple[Any, ...], _Fitted] = {}
    for (mask, itself, pooled), members in sharing.items():
        has_values = np.frombuffer(mask, bool)
        covariates = CovariateColumns.of(formula, frame[has_values], itself)
        columns, reasons = covariates.matrix(frame[has_values])
        used = np.array([reason is None for reason in reasons], bool)
        complete = has_values.copy()
        complete[has_values] = used
        notes = [f"{name}: {reason}" for name, reason in covariates.dropped.items()]
        network = members[0].network
        notes += ["compared within participants with the same networks"] if network is not None else []
        names = tuple(name for name in covariates.variables if name not in covariates.dropped)
        shared = complete.tobytes(), covariates.names, tuple(notes), pooled
        fitted = _Fitted(members, complete, None if network is None else network[complete], names, columns[used], notes)
        together[shared] = (
            replace(fitted, members=[*together[shared].members, *members]) if shared in together else fitted
        )
    yield from together.values()


def _with_family_notes(families: Iterator[_Fitted]) -> list[_Fitted]:
    """Families of regions and maps, each with a note if there are several."""
    listed = list(families)
    known = [family for family in listed if family.complete.any()]
    several = sum(any(member.name == RELEVANCE for member in family.members) for family in known) > 1
    return [replace(family, family=PARTIAL_FAMILY if several else None) for family in listed]


def _rows(cohort: Conversions, together: _Fitted, settings: StatisticsConfig, seed: int) -> list[dict[str, Any]]:
    time, event = cohort.time[together.complete], cohort.event[together.complete]
    pairs = hazards.comparable_pairs(time, event)
    competing, n = cohort.competing[together.complete], len(time)
    base: dict[str, Any] = {"covariates": " + ".join(together.covariates) or None, "event": AT_ANY_TIME}
    base |= {"n_participants": n, "n_scans": n, "n_missing": int((~together.complete).sum())}
    base |= {"n_events": int(event.sum()), "n_censored": int((~event).sum())}
    base["n_competing"] = None if np.isnan(competing).all() else int(np.nansum(competing))
    columns, (tests, refused) = together.columns, _tests(time, event, together, settings, seed)
    variables, few_events = 1 + columns.shape[1], None
    if not refused and event.sum() < WELL_POWERED * settings.progression.min_events_per_variable * variables:
        few_events = f"few events: {event.sum() / variables:.3g} per variable"
    rows = []
    for place, predictor in enumerate(together.members):
        x = together.known(predictor)
        hazard = (
            hazards.Hazard.none(refused)
            if refused
            else hazards.hazard_per_sd(time, event, x, columns, settings.confidence)
        )
        changes = CHANGES if hazard.p_proportional < NOT_PROPORTIONAL else None
        notes = [hazard.note, changes, few_events, *together.notes, cohort.note]
        notes += [together.family] if predictor.name == RELEVANCE else []
        row: dict[str, Any] = {"predictor": predictor.name, "map": predictor.map, "group": predictor.group}
        row |= {"hazard_ratio": hazard.ratio, "ci_low": hazard.low, "ci_high": hazard.high}
        row |= {"p_wald": hazard.p_wald, "p_proportional": hazard.p_proportional}
        row["concordance"] = float(hazards.concordance(x, pairs)[0]) if len(x) and np.ptp(x) > 0 else np.nan
        row["note"] = "; ".join(filter(None, notes)) or None
        rows.append(base | {name: values[place] for name, values in tests.items()} | row)
    return rows


def _tests(
    time: Floats, event: Flags, together: _Fitted, settings: StatisticsConfig, seed: int
) -> tuple[dict[str, Sequence[Any]], str | None]:
    """P values of all members; or why there are none."""
    count, variables = len(together.members), 1 + together.columns.shape[1]
    nothing: dict[str, Sequence[Any]] = dict.fromkeys(("p", "p_fwe"), [np.nan] * count)
    nothing |= dict.fromkeys(("n_permutations", "exact"), [None] * count)
    needed = settings.progression.min_events_per_variable * variables
    if event.sum() < needed:
        required = f"{needed} {'is' if needed == 1 else 'are'} needed for {counted(variables, 'variable')}"
        return nothing, f"{counted(event.sum(), 'conversion')}; {required}"
    try:
        residuals = hazards.martingale_residuals(time, event, together.columns)
    except (np.linalg.LinAlgError, ValueError):
        return nothing, hazards.SINGULAR
    rng = generator(seed, "statistics", "cox", variables)
    network = None if together.network is None else together.network.tolist()
    order = Exchangeability.free(len(time)).in_blocks(network).permutations(settings.permutations, rng)
    if len(order) < 2:
        return nothing, ALONE_WITH_NETWORK
    x = np.column_stack([together.known(member) for member in together.members])
    observed, null = hazards.score_statistics(residuals, x, together.columns, order.rows)
    regions = np.array([member.name == RELEVANCE for member in together.members]) & ~np.isnan(observed)
    p = two_sided_p(observed, null, order.exact)
    p_fwe = np.full(count, np.nan)
    if regions.any():
        largest = np.abs(null[:, regions]).max(axis=1)
        p_fwe[regions] = two_sided_p(observed[regions], largest[:, None], order.exact)
    drawn = {"n_permutations": [len(order)] * count, "exact": [order.exact] * count}
    return {"p": p.tolist(), "p_fwe": p_fwe.tolist(), **drawn}, None
