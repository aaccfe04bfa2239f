"""Digests: what makes two inputs, two settings or two versions of the code the same.

Input files are digested once and remembered by path, size and modification time. Code is digested as its syntax
tree without docstrings (also those below constants and fields), so that a comment or a moved line does not make
finished work stale.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.run.tables import write_json


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """One text per value: records, mappings, sequences, numbers and text; keys sorted."""

    def plain(item: Any) -> Any:
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"no canonical text for {type(item).__name__}")

    return json.dumps(value, default=plain, sort_keys=True, ensure_ascii=False, allow_nan=False)


@functools.cache
def code_digest(*packages: str) -> str:
    """Digest of the Python code of packages or modules, blind to comments, layout and docstrings."""
    parts = []
    for package in sorted(packages):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{package}: no source found to digest")
        origin = Path(spec.origin)
        files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
        parts += [f"{package}/{path.name}\n{_code_without_docstrings(path)}" for path in files]
    return text_digest("\n".join(parts))


def _code_without_docstrings(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_text_alone(statement)]
    return ast.dump(tree)


def _is_text_alone(statement: ast.stmt) -> bool:
    """Whether a statement is nothing but a string, which Python evaluates and drops."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class DigestCache:
    """Digests of files, remembered across runs by path, size and modification time.

    Parameters
    ----------
    path : Path
        JSON file that holds them; read now, written by `save`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}  # only a cache: digested again
        if isinstance(known, dict):
            self._known = {name: one for name, one in known.items() if isinstance(one, list) and len(one) == 3}

    def digest(self, path: Path) -> str:
        """SHA-256 of a file; "unreadable" where it cannot be read, so that its own job can say why."""
        try:
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns]
            name = text_digest(str(path))  # paths of scans may hold names and dates
            known = self._known.get(name)
            if known is None or known[:2] != stamp:
                known = [*stamp, file_digest(path)]
                self._known[name] = known
                self._changed = True
        except OSError:
            return "unreadable"
        return str(known[2])

    def save(self) -> None:
        if self._changed:
            write_json(self._path, self._known)
            self._changed = False


def unit_key(inputs: Mapping[str, str], parameters: Any, *packages: str) -> str:
    """Key of a unit of work: digest of its inputs' digests, its parameters and the code that does it."""
    return text_digest(canonical_json([dict(inputs), parameters, code_digest(*packages)]))
