"""The primary outcome, and where the classes differ by region.

The primary outcome is the one test that the configuration names in advance, which needs no correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.tables import footnote
from heatlas.reports.questions.predictions import GUESSING, NO_FINDING, networks_guess
from heatlas.reports.questions.question import (
    CLASSES,
    CLEAR,
    NAMED,
    Answer,
    Caution,
    Headline,
    Question,
    Verdict,
    by_ranks,
    classes_compared,
    difference_in_words,
    folds_held,
    g_in_words,
    survivors,
)
from heatlas.reports.questions.views import CI, G
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    interval,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    sentence_case,
    shortened,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import biomarker_in_words, covariates_in_words, worded

WORDS = Words(__file__)


@dataclass(frozen=True)
class ClassesCompared:
    """The classes, region by region."""

    tested: pd.DataFrame  # the leading map, by evidence (the density times the voxels) or else by share of the map
    densities: pd.DataFrame  # all maps
    leading_map: str
    main_maps: tuple[str, ...]
    by_evidence: bool
    positive: str
    negative: str
    start_value: str
    has_places: bool  # whether the table knows between which places a region lies


def facts_of_comparisons(run: RunRecord) -> ClassesCompared | None:
    if not run.has("group_comparisons"):
        return None
    metric = "density" if run.leads_with_evidence else "share"
    return ClassesCompared(
        classes_compared(run, map=run.leading_map, metric=metric, known="p_fwe"),
        classes_compared(run, metric="density"), run.leading_map, run.main_maps, run.leads_with_evidence,
        run.positive, run.negative, run.config.attribution.start_value,
        "place_low" in run.tables["group_comparisons"],
    )  # fmt: skip


def _answer_of_comparisons(compared: ClassesCompared) -> Verdict | None:
    """Where the classes differ in their share of the leading map, and by density, which follows the prediction."""
    tested, positive, negative = compared.tested, compared.positive, compared.negative
    if tested.empty:
        return None
    clear = tested[tested["p_fwe"] < CLEAR].assign(size=-tested["hedges_g"].abs())
    clear = clear.sort_values(["p_fwe", "size"], kind="stable")
    what = " evidence" if compared.by_evidence else ""
    phrases = [
        f"{word}{what} in "
        + listing(
            [f"{mid_sentence(row['group'])} (g {g_in_words(row)})" for row in rows.head(NAMED).to_dict("records")]
        )
        for word, rows in (("more", clear[clear["difference"] > 0]), ("less", clear[clear["difference"] < 0]))
        if len(rows)
    ]
    start = f"Scans of {positive} have" if compared.by_evidence else f"Of the map of {positive},"
    measure = "evidence" if compared.by_evidence else "share of the map"
    none = f"In none of {count(len(tested), 'region')} does the {measure} differ after correction."
    answer = f"{start} {'; '.join(phrases)}." if phrases else none
    first = tested.iloc[0]
    grounds = WORDS.say(
        "comparisons_grounds",
        quantity="Evidence" if compared.by_evidence else "Share of the map",
        compared=compared,
        first=first,
        positive=positive,
        negative=negative,
        survivors=survivors(tested, "p_fwe"),
        by_ranks=by_ranks(positive, negative, tested),
    )
    if compared.by_evidence:
        grounds += " Regions add up to the difference in logits, so this says which regions carry the prediction."
        return Verdict(answer, grounds)
    densities = compared.densities
    densities = densities[densities["map"] == compared.leading_map] if len(densities) else densities
    if len(densities):
        clear_densities = int((densities["p_fwe"] < CLEAR).sum())
        grounds += WORDS.say(
            "density_too",
            clear_densities=clear_densities,
            densities=int(densities["p_fwe"].notna().sum()),
            compared=compared,
            positive=positive,
        )
    return Verdict(answer, grounds)


def _methods_of_comparisons(compared: ClassesCompared) -> str:
    text = WORDS.say("methods")
    if compared.has_places:
        text += WORDS.say("methods_places")
    return text


MOST = 0.5  # share of regions above which a count says no more than the prediction


def _effects(compared: ClassesCompared) -> Verdict | None:
    """How many regions tell the classes apart by density, map by map, and how this was tested."""
    table, phrases = compared.densities, []
    if table.empty:
        return None
    for name in compared.main_maps:
        rows = table[(table["map"] == name) & table["t"].notna()]
        if len(rows):
            clear = int((rows["p_fwe"] < CLEAR).sum())
            phrases.append(f"{map_title(name)}: {number(clear)} of {count(len(rows), 'region')}")
    first = table.iloc[0]
    within = f" within test folds.{difference_in_words(table)}" if folds_held(table) else "."
    grounds = WORDS.say("effects_grounds", first=first, compared=compared, within=within)
    if not phrases:
        return Verdict("No difference could be tested.", grounds)
    most = any(
        (rows["p_fwe"] < CLEAR).mean() > MOST
        for name, rows in table[table["t"].notna()].groupby("map")
        if name in compared.main_maps
    )
    means = WORDS.say("repeats_the_prediction") * most
    return Verdict(f"Regions with a family-wise p below 0.05: {'; '.join(phrases)}.{means}", grounds)


def scaled_by_probability(run: RunRecord) -> Caution | None:
    """Maps that are larger everywhere if the prediction is larger; pages of regions repeat this caution."""
    if not run.has("relevance_bilateral") or run.config.attribution.start_value != "probability":
        return None
    if run.leads_with_evidence:
        scaled = listing([map_title(name) for name in run.main_maps if name not in run.evidence_maps])
        if not scaled:
            return None
        return Caution.read(WORDS, "some-scaled", scaled=scaled, run=run)
    return Caution.read(WORDS, "scaled-everywhere", run=run)


_COLUMNS = (
    "comparison", "map", "group", "mean_first", "mean_second", "difference", *CI, *G, "p_fwe",
    "p_fwe_adjusted", "n_first", "n_second", "note",
)  # fmt: skip

COMPARISONS = Question.read(
    WORDS, "comparisons", facts=facts_of_comparisons, answer=_answer_of_comparisons, methods=_methods_of_comparisons
)

EFFECTS = Question.read(WORDS, "effects", facts=facts_of_comparisons, answer=_effects)

REGION_MEANS = Question.read(WORDS, "region-means")


_QUANTITIES = {"sum": "relevance", "density": "density", "gain": "gain", "share": "share of the map"}


@dataclass(frozen=True)
class Outcome:
    """The primary outcome."""

    row: pd.Series
    quantity: str  # what is correlated
    asked: str  # the outcome as the run named it, with what it is adjusted for
    whom: str  # the people it is taken over
    confidence: float

    @property
    def is_known(self) -> bool:
        return not is_missing(self.row["p"])

    @property
    def note(self) -> str:
        """The note as a sentence; empty without one."""
        said = footnote(self.row["note"]).removesuffix(".")
        return f" {sentence_case(said)}." if said else ""

    @property
    def span(self) -> str:
        return interval(self.row["ci_low"], self.row["ci_high"], 2, self.confidence)


def facts_of_primary(run: RunRecord) -> Outcome | None:
    """The primary outcome of a run with classes."""
    if not run.has("primary") or not run.task.classes:
        return None
    row = run.tables["primary"].iloc[0]
    quantity = "evidence" if row["metric"] == "sum" and row["map"] in run.evidence_maps else _QUANTITIES[row["metric"]]
    of_map = "" if is_missing(row["map"]) else f" ({map_title(row['map'])})"
    together = f"{listing(list(reversed(run.task.outputs)))} together"
    whom = together if row["scan_group"] == "all" else shortened(row["scan_group"])
    held = "" if is_missing(row["covariates"]) else f", adjusted for {covariates_in_words(row['covariates'])}"
    asked = WORDS.say(
        "primary_asked",
        quantity=quantity,
        of_map=of_map,
        row=row,
        biomarker_in_words=biomarker_in_words(run, row["biomarker"]),
        whom=whom,
        held=held,
    )
    return Outcome(row, quantity, asked, whom, run.config.statistics.confidence)


def _answer_of_primary(outcome: Outcome) -> Verdict:
    """The answer to the primary question, and what it rests on."""
    row, named = outcome.row, f"Primary outcome (named before any result: {outcome.asked})."
    if not outcome.is_known:
        return Verdict("Not known.", f"{named}{outcome.note}")
    return Verdict(
        "A correlation." if row["p"] < CLEAR else "No clear correlation.",
        WORDS.say("primary_grounds", named=named, row=row, outcome=outcome),
    )


def _headline(run: RunRecord) -> Answer | None:
    """The answer at the top of the report; None for a run without a primary outcome."""
    outcome = facts_of_primary(run)
    if outcome is None:
        return None
    said, row = _answer_of_primary(outcome), outcome.row
    if not outcome.is_known:
        return Answer(f"{said.answer} {said.grounds}")
    held = ", with the class held constant" if "label" in str(row["covariates"]) else ""
    text = WORDS.say("primary_short", outcome=outcome, row=row, biomarker=worded(row["biomarker"]), held=held)
    r, tested = f"r = {fixed(row['r'])}", f"{outcome.span}, {p_value(row['p'])}, n = {number(row['n_participants'])}"
    if networks_guess(run):
        return Answer(f"{GUESSING} {text}", NO_FINDING, f"{r}; {tested}", said.grounds)
    if row["p"] < CLEAR:
        return Answer(text, r, tested, said.grounds)
    return Answer(text, said.answer.rstrip("."), f"{r}; {tested}", said.grounds)


def in_a_sentence(run: RunRecord) -> str:
    """The correlation in a sentence; empty where it is not known."""
    outcome = facts_of_primary(run)
    if outcome is None or not outcome.is_known:
        return ""
    row = outcome.row
    shown = "correlates with" if row["p"] < CLEAR else "shows no clear correlation with"
    return WORDS.say("in_a_sentence", outcome=outcome, row=row, shown=shown, biomarker=worded(row["biomarker"]))


def _methods_of_primary(outcome: Outcome) -> str:
    how = f", tested by permutation of {outcome.row['exchanged']} [@freedman_lane]" if outcome.is_known else ""
    return WORDS.say("methods_primary", outcome=outcome, how=how)


PRIMARY = Question.read(
    WORDS,
    "primary",
    facts=facts_of_primary,
    answer=_answer_of_primary,
    methods=_methods_of_primary,
    tasks=CLASSES,
    headline=Headline(("primary",), _headline),
)
