"""docs/settings.md, made from the declarations: ``python -m heatlas.pipeline.run.config.documentation`` prints it."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.config.ranges import in_words, split_kind
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.typed_values import kinds_of, options_of, said

_HEAD = """# Settings

Made by `python -m heatlas.pipeline.run.config.documentation > docs/settings.md`; do not edit it by hand.

A file for `--config` holds the settings to change, section by section; all others keep their defaults, or what
`--preset` gives them. `config.toml` in the folder of a run holds all of them. An unknown name or a value that is not
allowed is refused before any work starts, with the nearest name.

```toml
seed = 7
[training.augmentation]
noise_probability = 0.2
```
"""


def documentation() -> str:
    """All settings as Markdown: a table per section of the configuration file."""
    return "\n".join([_HEAD, *_sections(Config, "")])


@cache
def help_texts(record: type) -> Mapping[str, str]:
    """The docstring below each field of a dataclass, those of its bases included; fields without one are left out."""
    found: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        if not is_dataclass(owner):
            continue
        (definition,) = ast.parse(inspect.getsource(owner)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _sections(record: type, path: str) -> Iterator[str]:
    """The section of a record, then those of the records nested in it."""
    kinds = get_type_hints(record)
    nested = [field for field in fields(record) if is_dataclass(kinds[field.name])]
    own = [field for field in fields(record) if field not in nested]
    if own:
        yield _section(record, f"`[{path}]`" if path else "Top of the file", own)
    for field in nested:
        inner = f"{path}.{field.name}" if path else field.name
        if kinds[field.name] is ModelConfig:
            yield from _networks()
        else:
            yield from _sections(kinds[field.name], inner)


def _networks() -> Iterator[str]:
    """The section of the network: what all share, what relatives share, then each architecture."""
    yield f"## `[model]`\n\n{inspect.getdoc(ModelConfig)}\n\n{_table(ModelConfig, fields(ModelConfig))}"
    known = {field.name for field in fields(ModelConfig)}
    bases = dict.fromkeys(base for record in NETWORKS.values() for base in record.__mro__[1:])
    for shared in bases:
        if not issubclass(shared, ModelConfig) or "relatives" not in vars(shared) or shared is ModelConfig:
            continue
        heading, own = f"All {shared.relatives} networks", [one for one in fields(shared) if one.name not in known]
        yield f"### {heading}\n\n{inspect.getdoc(shared)}\n\n{_table(shared, own)}{_usual(shared)}"
    for record in dict.fromkeys(NETWORKS.values()):
        names = ", ".join(f"`{name}`" for name, of in NETWORKS.items() if of is record)
        inherited = {field.name: field.default for base in record.__bases__ for field in fields(base)}
        own = [
            field
            for field in fields(record)
            if field.name != "architecture" and inherited.get(field.name, MISSING) != field.default
        ]
        more = record.relatives
        about = f"{inspect.getdoc(record)}{more and f' It also takes the settings of all {more} networks.'}"
        changed = "" if more else _usual(record)
        yield f"### {names}\n\n{about}\n\n{_table(record, own) if own else ''}{changed}"


def _usual(record: type[ModelConfig]) -> str:
    """Which defaults of other sections change with a network."""
    changed = [
        f"`{section}.{name} = {_written(value)}`"
        for section, values in record(architecture="").usual.items()
        for name, value in values.items()
    ]
    return f"\nChanges these defaults: {', '.join(changed)}.\n" if changed else ""


def _section(record: type, heading: str, own: list[Field[Any]]) -> str:
    about = (inspect.getdoc(record) or "").splitlines()[0].replace("``", "`")
    return f"## {heading}\n\n{about}\n\n{_table(record, own)}"


def _table(record: type, own: Any) -> str:
    kinds, texts = kinds_of(record), help_texts(record)
    rows = [
        f"| `{field.name}` | {_said(kinds[field.name])} | {_default(field)} | {as_cell(texts.get(field.name, ''))} |"
        for field in own
    ]
    return "\n".join(["| setting | may be | default | meaning |", "|---|---|---|---|", *rows, ""])


def _said(kind: Any) -> str:
    """What a setting may be, in words."""
    words = " or ".join(said(option).removeprefix("a ") for option in options_of(kind))
    for of_errors, of_page in (("one of ", ""), ("any of ", ""), ("'", '"')):
        words = words.replace(of_errors, of_page)
    return as_cell(in_words(split_kind(kind)[1], words))


def _default(field: Field[Any]) -> str:
    if field.name == "architecture":
        return f"`{_written(Config().model.architecture)}`"
    return "" if field.default is MISSING else f"`{_written(field.default)}`"


def _written(value: Any) -> str:
    """A value as it is written in TOML."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def as_cell(text: str) -> str:
    """Help as a cell of a Markdown table; names of pages become links.

    Examples
    --------
    >>> as_cell("``a < b``: see docs/lrp.md.")
    '`a &lt; b`: see [lrp.md](lrp.md).'
    """
    plain = " ".join(text.replace("``", "`").split())
    for sign, written in (("|", "\\|"), ("*", "\\*"), ("<", "&lt;")):
        plain = plain.replace(sign, written)
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", plain)


if __name__ == "__main__":
    print(documentation(), end="")
