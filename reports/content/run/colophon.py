"""Texts that end the report or leave it: methods with the works cited, credits, provenance, the model card."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from heatlas.atlases.templates import find_template
from heatlas.pipeline.models.families.foreign import code_without_place
from heatlas.pipeline.models.families.registry import is_foreign, parameter_count
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.plain_text import last_part, plain, without_folders
from heatlas.reports.content.run.methods import PARAGRAPHS, recorded_source, seen_in_words, version_of
from heatlas.reports.frame.material import Material
from heatlas.reports.questions.question import ANY_TASK, Question
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import listing
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import GLOSSARY

WORDS = Words(__file__)


@dataclass(frozen=True)
class CitedWork:
    """One work."""

    key: str  # in citations and in BibTeX
    authors: str  # ``Family IN, Family IN``; may end with ``et al.``
    year: int
    title: str
    venue: str
    volume: str  # empty where there is none
    number: str
    pages: str
    identifier: str  # DOI, or an address

    @property
    def link(self) -> str:
        """Permanent address."""
        return self.identifier if self.identifier.startswith("http") else f"https://doi.org/{self.identifier}"

    @property
    def text(self) -> str:
        """The work as a line of a list of references."""
        issue = self.volume + (f"({self.number})" if self.number else "")
        place = ":".join(filter(None, (issue, self.pages)))
        authors = self.authors.removesuffix(".")
        dot = "." if self.authors.endswith(".") else ""
        return f"{authors}{dot} ({self.year}). {self.title}. {' '.join(filter(None, (self.venue, place)))}."

    @property
    def bibtex(self) -> str:
        """The work as a BibTeX entry.

        Examples
        --------
        >>> print(REFERENCES["adam"].bibtex)
        @inproceedings{adam,
          author = {Kingma, D. P. and Ba, J.},
          title = {{Adam: a method for stochastic optimization}},
          booktitle = {ICLR},
          year = {2015},
          url = {https://arxiv.org/abs/1412.6980}
        }
        """
        article = bool(self.volume)
        identifier = ("url", self.link) if self.identifier.startswith("http") else ("doi", self.identifier)
        fields = [
            ("author", " and ".join(_name(name) for name in self.authors.split(", "))),
            ("title", f"{{{self.title}}}"),
            ("journal" if article else "booktitle", self.venue),
            ("year", str(self.year)),
            ("volume", self.volume),
            ("number", self.number),
            ("pages", self.pages.replace("-", "--")),
            identifier,
        ]
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields if value)
        return f"@{'article' if article else 'inproceedings'}{{{self.key},\n{lines}\n}}"


def _name(name: str) -> str:
    """An author as BibTeX reads names: family, initials.

    Examples
    --------
    >>> _name("Müller K-R"), _name("Babington Smith B"), _name("et al.")
    ('Müller, K.-R.', 'Babington Smith, B.', 'others')
    """
    if name == "et al.":
        return "others"
    family, _, initials = name.rpartition(" ")
    letters = [f"{letter}." for letter in initials if letter != "-"]
    return f"{family}, {'-'.join(letters) if '-' in initials else ' '.join(letters)}"


def _read() -> dict[str, CitedWork]:
    with (Path(__file__).parent / "references.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    known = [{name: "" if value == "n/a" else value for name, value in row.items()} for row in rows]
    return {row["key"]: CitedWork(**{**row, "year": int(row["year"])}) for row in known}  # type: ignore[arg-type]


REFERENCES: Mapping[str, CitedWork] = _read()  # those of ``references.tsv`` by key; one line there adds a work


_CITATION = re.compile(r"\[@(\w+)\]")


def methods_text(run: RunRecord) -> tuple[list[tuple[str, str]], list[CitedWork]]:
    """Paragraphs on the methods of a run, with numbered citations, and the works cited, in order of first mention.

    Citations are written ``[@key]`` in the sources and numbered here.
    """
    written = [(title, text) for title, write in PARAGRAPHS if (text := write(run))]
    keys: list[str] = []
    paragraphs = []
    for title, text in written:
        keys = list(dict.fromkeys([*keys, *_CITATION.findall(text)]))
        paragraphs.append((title, _numbered(text, keys)))
    return paragraphs, [REFERENCES[key] for key in keys]


def _numbered(text: str, keys: Sequence[str]) -> str:
    return _CITATION.sub(lambda found: f"[{keys.index(found[1]) + 1}]", text)


def methods_markdown(run: RunRecord) -> str:
    """The same as Markdown, for ``logs/CITATION.md``."""
    paragraphs, references = methods_text(run)
    parts = ["# Methods", "*Written from the settings and results of this run. Use it freely (CC0).*"]
    parts += [f"**{title}.** {_as_markdown(body)}" for title, body in paragraphs]
    parts += ["## References", "\n".join(f"{i}. {r.text} <{r.link}>" for i, r in enumerate(references, 1))]
    parts += ["## Credits", "\n".join(f"- {_as_markdown(credit)}" for credit in credits(run))]
    return "\n\n".join(parts) + "\n"


def _as_markdown(text: str) -> str:
    r"""A text on one line that holds no HTML, link or picture: names of classes and columns come from the input.

    Examples
    --------
    >>> _as_markdown("p < .05 for <b>AD</b> and ![x](http://x)")
    'p < .05 for &lt;b>AD&lt;/b> and ![x]\\(http://x)'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain(" ".join(text.split()))).replace("](", r"]\(")


def methods_bibtex(run: RunRecord) -> str:
    """The works cited, for ``logs/CITATION.bib``."""
    version = version_of(run, "heatlas").strip()
    program = (
        "@misc{heatlas,\n  author = {{The Heatlas developers}},\n"
        "  title = {{Heatlas: from brain scans to a region-relevance report}},\n"
        f"  note = {{Software{', version ' * bool(version)}{version}}}\n}}"
    )
    return "\n\n".join([program, *(reference.bibtex for reference in methods_text(run)[1])]) + "\n"


def how_to_cite(run: RunRecord) -> str:
    """What to cite, beside the works that the methods text names."""
    return WORDS.say("how_to_cite", version=version_of(run, "heatlas"), REFERENCES=REFERENCES)


def credits(run: RunRecord) -> list[str]:
    """Acknowledgements and licence notes that go with the results."""
    atlas = recorded_source(run, "atlas")
    lines = [how_to_cite(run)]
    if atlas.get("credit"):
        lines.append(f"Atlas {atlas.get('title', atlas.get('name', ''))}: {atlas['credit']}")
    if run.is_synthetic:
        lines.append(WORDS.say("synthetic"))
    elif run.provenance.get("sources", {}).get("input_layout") == "adni":
        lines.append(WORDS.say("adni"))
    elif run.provenance.get("sources", {}).get("input_layout") == "oasis":
        lines.append(WORDS.say("oasis"))
    lines.append(
        "Template: ICBM 152 nonlinear asymmetric 2009c, McConnell Brain Imaging Centre, McGill University."
        if run.layout.space == DEFAULT_TEMPLATE
        else f"Template {run.layout.space}: {recorded_source(run, 'template').get('credit', 'see its authors')}"
    )
    return lines


def build_glossary(material: Material) -> Mapping[str, Any]:
    """Anchor, name and meaning of every word; guided backpropagation's only where the run has such maps."""
    run = material.run
    said = {"positive": run.positive, "negative": run.negative, "start": run.config.attribution.start_value}
    used = [term for term in GLOSSARY if term.id != "susceptibility" or "gb" in run.map_names]
    return {"terms": [(term.id, term.name, term.meaning.format(**said)) for term in used]}


def build_methods(material: Material) -> Mapping[str, Any]:
    """Paragraphs and references; the same text is in ``logs/CITATION.md``."""
    paragraphs, references = methods_text(material.run)
    return {"paragraphs": paragraphs, "references": references}


def build_provenance(material: Material) -> Mapping[str, Any]:
    """Command, versions, machine, digests, and the settings in full."""
    run = material.run
    provenance = run.provenance
    machine = provenance.get("machine", {})
    facts = [
        ("Command", " ".join(map(str, provenance.get("command", [])))),
        ("Input", run.source.input.name),
        ("Preset", run.source.preset),
        ("Seed", str(run.config.seed)),
        ("Run at", provenance.get("time")),
        ("Code", provenance.get("code_commit")),
        ("Machine", ", ".join(f"{key} {value}" for key, value in machine.items())),
    ]
    for name, source in provenance.get("sources", {}).items():
        if isinstance(source, dict) and "sha256" in source:
            facts.append((f"{name.capitalize()} (SHA-256)", f"{source.get('name', '')}: {source['sha256']}"))
    settings = run.layout.config.read_text(encoding="utf-8")
    packages = " · ".join(f"{name} {version}" for name, version in provenance.get("packages", {}).items())
    return {
        "facts": [(name, value or "not recorded") for name, value in facts],
        "packages": packages or "not recorded",
        "config": without_folders(re.sub('"(/[^"]*)"', lambda found: f'"{last_part(found[1])}"', settings)),
    }


def build_credits(material: Material) -> Mapping[str, Any]:
    """Acknowledgements and licences, and the files with the works to cite."""
    layout = material.run.layout
    files = [path.relative_to(layout.root).as_posix() for path in (layout.methods_text, layout.bibliography)]
    return {"credits": credits(material.run), "files": files}


METHODS = Question.read(WORDS, "methods", draw=build_methods, tasks=ANY_TASK)
GLOSSARY_PAGE = Question.read(WORDS, "glossary", draw=build_glossary, tasks=ANY_TASK)
PROVENANCE = Question.read(WORDS, "provenance", draw=build_provenance, tasks=ANY_TASK)
CREDITS = Question.read(WORDS, "credits", draw=build_credits, tasks=ANY_TASK)


NOT_COMPUTED = "Not computed: the run stopped before its statistics."
_SHOWN = {
    "balanced_accuracy", "sensitivity", "specificity", "auc", "auc_within_folds", "accuracy", "mae", "mae_of_mean",
    "r", "r2",
}  # fmt: skip
_LIMITS = (
    "Not for a diagnosis, for screening, or for any decision about a person. Not for ages other than those above, "
    "another kind of image (T2, FLAIR, after a contrast agent), or brains with tumours, strokes or operations, unless "
    "the cohort above has such people.",
    "Trained on the people above, on their scanners and with their way of registration; elsewhere it may be wrong, "
    "which `heatlas apply` on a cohort of your own with labels will show.",
    "Probabilities are not calibrated for other proportions of the classes.",
    "A map says what the network used, not where disease is.",
    "Maps relative to controls compare with one mean image, without the spread of single controls.",
    "People are listed as salted digests, so that they are recognised and left out. Whoever knows an identifier can "
    "ask whether it is among them, and identifiers of few digits can all be tried.",
    "For research; not a medical device.",
)


def model_card(run: RunRecord, controls: int, terms: Mapping[str, Any] | None = None, weights: str = "") -> str:
    """The card, filled from the tables of a run; what the run does not have is said to be missing.

    `controls`: in the mean image. `terms`: of the data, as their ``dataset_description.json`` states them. `weights`:
    how they are stored, as a sentence.
    """
    config, task = run.config, run.task
    shape = configured_input(config).shape
    parameters, foreign = parameter_count(config.model, shape, len(task.outputs)), is_foreign(config.model)
    told = listing(list(task.outputs))
    return "\n".join([
        f"# {told} from {config.cohort.kind.images}",
        "",
        WORDS.say(
            "card_foreign" if foreign else "card_networks", networks=len(run.models), run=run, config=config,
            parameters=parameters, version=version("heatlas"), shape=" × ".join(map(str, shape)),
            seen=seen_in_words(run), code=code_without_place(getattr(config.model, "network", "")),
        ),
        "",
        f"    heatlas apply THIS_FOLDER NEW OUT{' --code FILE.py:NAME' * foreign}",
        "",
        *([weights, ""] if weights else []),
        *(["The people of this run are **synthetic** (demo cohort).", ""] if run.is_synthetic else []),
        "## Cohort",
        "",
        *_cohort(run),
        "",
        f"The reference image is the mean of {controls} training controls.",
        "",
        "## Performance",
        "",
        run.predicted if foreign else "Out of fold: each scan by the network that was not trained with its person.",
        "",
        *_performance(run),
        "",
        "## Beside baselines, on the same folds",
        "",
        *_baselines(run),
        "",
        "## Methods",
        "",
        *_verdicts(run),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _LIMITS),
        "",
        "## Licences and credit",
        "",
        *_credit(run, terms or {}),
        "",
    ])  # fmt: skip


def _table(rows: pd.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Some columns of a table in Markdown, under other headings; n/a where nothing is known."""
    lines = [f"| {' | '.join(columns.values())} |", f"|{'---|' * len(columns)}"]
    for row in rows[list(columns)].to_dict("records"):
        lines.append(f"| {' | '.join(_cell(value) for value in row.values())} |")
    return lines


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "n/a"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _cohort(run: RunRecord) -> Iterator[str]:
    scans = run.tables["scans"]
    kept = scans[scans["kept"].astype(bool) & scans["label"].notna()]
    people = kept.drop_duplicates("participant_id")
    groups = [*people.groupby("label", sort=True)] if run.task.classes else [("all", people)]
    rows = [
        {
            "class": name, "people": len(group),
            "scans": int(kept["participant_id"].isin(group["participant_id"]).sum()),
            "age": f"{group['age'].mean():.1f} ± {group['age'].std():.1f}" if group["age"].notna().sum() > 1 else "n/a",
            "women": int((group["sex"] == "F").sum()), "men": int((group["sex"] == "M").sum()),
        }
        for name, group in groups
    ]  # fmt: skip
    heads = ("class", "people", "scans", "age", "women", "men")
    yield from _table(pd.DataFrame(rows), {**{name: name for name in heads}, "age": "age (mean ± SD)"})


def _performance(run: RunRecord) -> list[str]:
    name = next((one for one in run.tables if one in ("performance", "performance_number", "performance_classes")), "")
    if not name:
        return [NOT_COMPUTED]
    rows = run.tables[name]
    rows = rows[(rows["fold"].astype(str) == "all") & rows["metric"].isin(_SHOWN)]
    level = f"{run.config.statistics.confidence:.0%} interval"
    return _table(
        rows.assign(interval=rows["ci_low"].map(_cell) + " to " + rows["ci_high"].map(_cell)),
        {"metric": "metric", "estimate": "estimate", "interval": level, "n_participants": "people"},
    )


def _baselines(run: RunRecord) -> list[str]:
    if not run.has("baselines"):
        return ["Not computed."]
    columns = ("baseline", "metric", "estimate", "network", "difference", "verdict")
    return _table(run.tables["baselines"], {name: name for name in columns})


def _verdicts(run: RunRecord) -> list[str]:
    if not run.has("verdicts"):
        why = run.unreadable.get("verdicts", "Not evaluated.")
        return [f"{why} `heatlas evaluate RUN`, then export again, says here which maps can be trusted."]
    columns = ("cohort", "map", "passed", "verdict")
    return _table(run.tables["verdicts"], {name: name for name in columns})


def _credit(run: RunRecord, terms: Mapping[str, Any]) -> Iterator[str]:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    yield f"- Atlas {atlas.get('title', run.config.regions.atlas)}: {atlas.get('credit', 'see its authors')}"
    yield f"- Template {run.layout.space}: {find_template(run.config.registration.template).credit}"
    yield "- The networks: under the terms of the data that they were trained on; ask whoever gave you this folder."
    names = {"License": "Licence of the data", "HowToAcknowledge": "Acknowledge", "ReferencesAndLinks": "Cite"}
    for name, title in names.items():
        if said := terms.get(name):
            text = said if isinstance(said, str) else ", ".join(map(str, said))
            yield f"- {title}: {_as_markdown(text)}"
