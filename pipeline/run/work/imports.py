"""Import closure of a computation: the modules that it imports, directly or indirectly.

Imports are read from the source, including those inside functions. A module whose names appear only in annotations is
left out. Plumbing (`pipeline.run`: folders, receipts, tables, settings) does not change a result, except `COMPUTING`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

PLUMBING = "heatlas.pipeline.run."
COMPUTING = frozenset({"heatlas.pipeline.run.work.seeds"})
PACKAGES = ("heatlas",)
"""Packages of the program; everything else is a library, whose version is in the provenance."""


def import_closure(modules: Iterable[str]) -> frozenset[str]:
    """These modules of the program and all that they import directly or indirectly, without plumbing.

    A package means all its modules; a module without source raises ModuleNotFoundError.
    """
    waiting = [name for module in modules for name in _with_submodules(module)]
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imported_modules(module)
    return frozenset(found)


@functools.cache
def source_of(module: str) -> Path | None:
    """The file of a module, found without importing anything; None without a file."""
    top, *below = module.split(".")
    root = _root_of(top)
    if root is None:
        return None
    path = root.joinpath(*below)
    files = path / "__init__.py", path.with_suffix(".py")
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _root_of(package: str) -> Path | None:
    """Folder of a top-level package, or the path of a top-level module without its suffix."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin.with_suffix("")


@functools.cache
def imported_modules(module: str) -> tuple[str, ...]:
    """Modules of the program whose names a module uses outside annotations, without plumbing."""
    path = source_of(module)
    if path is None:
        raise ModuleNotFoundError(f"{module}: no source found to digest")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.id for node in _computed(tree) if isinstance(node, ast.Name)}
    ours = {*PACKAGES, module.partition(".")[0]}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        for name, bound in _imports(node, package):
            if name.partition(".")[0] in ours and (bound is None or bound in used):
                found.add(name)
    return tuple(sorted(name for name in found if name in COMPUTING or not f"{name}.".startswith(PLUMBING)))


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, str | None]]:
    """Modules that a statement imports, with the name that is bound; None if its uses cannot be known."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, None
    elif isinstance(node, ast.ImportFrom):
        base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
        start = ".".join(part for part in (base, node.module) if part)
        for alias in node.names:
            below = f"{start}.{alias.name}"
            name = below if source_of(below) is not None else start
            yield name, None if alias.name == "*" else alias.asname or alias.name


def _computed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except annotations, which are text here (``from __future__ import annotations``)."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _computed(child)


def _with_submodules(module: str) -> list[str]:
    path = source_of(module)
    if path is None or path.name != "__init__.py":
        return [module]
    names = []
    for file in sorted(path.parent.rglob("*.py")):
        parts = file.relative_to(path.parent).with_suffix("").parts
        names.append(".".join([module, *(parts[:-1] if parts[-1] == "__init__" else parts)]))
    return names
