"""Sentences in TOML files against the modules that say them: each is said, and gets the facts that it names."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from heatlas.reports.frame.tables import OF_TEXT
from heatlas.reports.words.sentences import FORMS, filled, one_line

ROOT = Path(__file__).parents[2]
FILES = sorted(path for room in ("reports", "studies/pages") for path in (ROOT / room).rglob("*.toml"))


def facts_of(*texts: str) -> set[str]:
    return {name.split(".")[0].split("[")[0] for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_sentence_is_said_with_the_facts_that_it_names(path: Path) -> None:
    words = one_line(tomllib.loads(path.read_text(encoding="utf-8")))
    wanted = {("say", name): facts_of(text) for name, text in words.get("say", {}).items()}
    wanted |= {
        ("cautions", name): facts_of(*caution.values()) | ({"level"} - set(caution))
        for name, caution in words.get("cautions", {}).items()
    }
    given, computed = {}, []
    for call in ast.walk(ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        facts = {one.arg for one in call.keywords}
        match ast.unparse(call.func), [one.value for one in call.args if isinstance(one, ast.Constant)]:
            case "WORDS.say", [name]:
                assert given.setdefault(("say", name), facts) == facts
            case "WORDS.say", []:  # a name that is computed: any sentence that no call names
                computed.append(facts)
            case "Caution.read", [name]:
                assert given.setdefault(("cautions", name), facts) == facts
            case "Question.read", [name]:
                assert name in words
    others = {name: facts for name, facts in wanted.items() if name not in given}
    assert given == {name: facts for name, facts in wanted.items() if name in given}
    assert not [name for name, named in others.items() if not any(named <= facts for facts in computed)]


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_form_is_known(path: Path) -> None:
    words = tomllib.loads(path.read_text(encoding="utf-8"))
    forms = {form for text in texts_in(words) for _, _, form, _ in Formatter().parse(text) if form}
    columns = [column for table in words.get("columns", {}).values() for column in table.values()]
    forms |= {column.get("form", "number") for column in columns if isinstance(column, dict)} - set(OF_TEXT)
    assert {form.split(" ")[0] for form in forms} <= {*FORMS, "g", ",", ".0f"}


def test_a_region_without_a_name_is_called_region_and_its_number() -> None:
    facts = dict(row={"group": "17"}, region=17)
    assert filled("in {row[group]:the} and {region:mid}", **facts) == "in region 17 and region 17"
    assert filled("in {row[group]:the}", row={"group": "Hippocampus"}) == "in the hippocampus"
    for path in FILES:
        assert not re.search(r"the \{[^}]*:mid\}", path.read_text(encoding="utf-8")), path.name
