"""Whether finished work is still valid: its receipt holds a key, a digest of inputs, settings and code.

Files are digested once and remembered by path, size and times. Code is digested with all that it imports, as syntax
trees without docstrings (including those after constants and fields), so that comments and layout do not invalidate
finished work. Imports are read from the source, including those inside functions; a module whose names appear only in
annotations is left out. Plumbing (`pipeline.run`: folders, receipts, tables, settings) does not change a result, except
`COMPUTING`. Code that moved, or was written anew, and was shown to give the same bytes keeps the digest of the earlier
code (`SAME_CODE`), so that finished work stays valid.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.documents import known_json, require_regular
from heatlas.pipeline.run.tables import write_json

PLUMBING = "heatlas.pipeline.run."
COMPUTING = frozenset({"heatlas.pipeline.run.work.seeds"})
PACKAGES = ("heatlas",)
"""Packages of the program; everything else is a library, whose version is in the provenance."""
UNREADABLE = "unreadable"
"""In place of the digest of what cannot be read, so that whoever uses it reports why."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
SAME_CODE = Path(__file__).with_name("same_code.tsv")
"""Modules, their digest now, and the digest of the earlier code that gives the same bytes (`make same`). A row whose
digest is not that of its modules any more does nothing; a test asks to remove it."""


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes; raises OSError for what is no file, such as a device, which may be endless."""
    require_regular(path)
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


Code = str | Callable[..., Any]
"""A module, a package (all its modules), or a function, which means its module."""


def code_digest(*code: Code) -> str:
    """Digest of code and of all that it imports, without comments, layout and docstrings."""
    digest = _modules_digest(tuple(sorted({part if isinstance(part, str) else part.__module__ for part in code})))
    return _earlier_digests().get(digest, digest)


@functools.cache
def _earlier_digests() -> Mapping[str, str]:
    rows = [line.split("\t") for line in SAME_CODE.read_text(encoding="utf-8").splitlines()[1:]]
    return {now: earlier for _, now, earlier in rows}


@functools.cache
def _modules_digest(modules: tuple[str, ...]) -> str:
    return text_digest("\n".join(f"{name}\n{_module_code(name)}" for name in sorted(import_closure(modules))))


def _module_code(module: str) -> str:
    return _read_module(module)[0]


@functools.cache
def _read_module(module: str) -> tuple[str, frozenset[str], tuple[ast.Import | ast.ImportFrom, ...]]:
    """The syntax tree of a module as text, names that it uses outside annotations, and its imports, in one pass.

    The text is that of ``ast.dump`` of Python 3.11 without docstrings; a run reads hundreds of modules.
    """
    path = source_of(module)
    if path is None:
        raise ModuleNotFoundError(f"{module}: no source found to digest")
    used, imports = set[str](), list[ast.Import | ast.ImportFrom]()

    def text(value: Any, annotation: bool) -> str:
        if isinstance(value, list):
            return f"[{', '.join([text(one, annotation) for one in value])}]"
        if not isinstance(value, ast.AST):
            return repr(value)
        if isinstance(value, ast.Name) and not annotation:  # annotations are text: ``from __future__``
            used.add(value.id)
        elif isinstance(value, ast.Import | ast.ImportFrom):
            imports.append(value)
        parts = []
        kind = type(value).__name__
        for name, may_lack in _fields_of(kind):
            part = getattr(value, name)
            if part is None and may_lack:
                continue
            if name == "body" and isinstance(part, list):
                part = [statement for statement in part if not _is_text_alone(statement)]
            parts.append(f"{name}={text(part, annotation or name in ('annotation', 'returns'))}")
        return f"{kind}({', '.join(parts)})"

    code = text(ast.parse(path.read_text(encoding="utf-8")), False)
    return code, frozenset(used), tuple(imports)


@functools.cache
def _fields_of(name: str) -> tuple[tuple[str, bool], ...]:
    """Fields of a kind of nodes, and whether it can be without."""
    kind: type[ast.AST] = getattr(ast, name)
    return tuple((field, getattr(kind, field, "") is None) for field in kind._fields)


def _is_text_alone(statement: ast.stmt) -> bool:
    """Whether a statement is only a string, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def import_closure(modules: Iterable[str]) -> frozenset[str]:
    """These modules of the program and all that they import directly or indirectly, without plumbing.

    A package means all its modules; a module without source raises ModuleNotFoundError.
    """
    waiting = [name for module in modules for name in _with_submodules(module)]
    closure: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in closure:
            closure.add(module)
            waiting += imported_modules(module)
    return frozenset(closure)


@functools.cache
def source_of(module: str) -> Path | None:
    """The file of a module, found without importing anything; None without a file."""
    top, *below = module.split(".")
    root = _root_of(top)
    if root is None:
        return None
    return next(iter(_files_of(root.joinpath(*below))), None)


def _files_of(path: Path) -> list[Path]:
    """The file of a module, by its path without a suffix; a package comes before a module of its name."""
    return [file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()][:1]


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
    (_, used, imports), path = _read_module(module), source_of(module)
    ours = {*PACKAGES, module.partition(".")[0]}
    package = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in imports:
        for name, bound in _imports(node, package):
            if name.partition(".")[0] in ours and (bound is None or bound in used):
                names.add(name)
    return tuple(sorted(name for name in names if name in COMPUTING or not f"{name}.".startswith(PLUMBING)))


def _imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str | None]]:
    """Modules that a statement imports, with the name that is bound; None if its uses cannot be known."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, None
    else:
        start = _start_of(node, package)
        for alias in node.names:
            below = f"{start}.{alias.name}"
            name = below if source_of(below) is not None else start
            yield name, None if alias.name == "*" else alias.asname or alias.name


def _start_of(node: ast.ImportFrom, package: str) -> str:
    base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
    return ".".join(part for part in (base, node.module) if part)


def own_code_digest(place: str) -> str:
    """Digest of code of the user's own: ``FILE.py`` or a module, and what it imports from its folder or package.

    Of what is installed as a library only the file named counts. "unreadable" where there is no such file.
    """
    alone = place.endswith(".py")
    first = Path(place) if alone else _file_of_module(place)
    if first is None or not first.is_file():
        return UNREADABLE
    package = "" if alone else place if first.name == "__init__.py" else place.rpartition(".")[0]
    folder = first.parents[package.count(".") + bool(package)]
    roots = [folder, folder.parent] if alone else [folder]  # a file may name the package that it lies in
    waiting, found = {first: package}, dict[Path, str]()
    while waiting:
        path, package = waiting.popitem()
        found[path] = file_digest(path)
        for module in _named_in(path, package) if not INSTALLED & set(path.parts) else ():
            for file in (file for root in roots for file in _files_of(root.joinpath(*module.split(".")))):
                if file not in found:
                    waiting[file] = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return text_digest(" ".join(sorted(f"{os.path.relpath(path, folder)} {one}" for path, one in found.items())))


def _file_of_module(place: str) -> Path | None:
    """The file of a module, also of one in a package without ``__init__.py``; nothing is imported."""
    if not place:
        return None
    if file := source_of(place):
        return file
    top, *below = place.split(".")
    spec = importlib.util.find_spec(top)
    folders = map(Path, (spec.submodule_search_locations if spec else None) or ())
    return next((file for folder in folders for file in _files_of(folder.joinpath(*below))), None)


def _named_in(path: Path, package: str) -> set[str]:
    """Modules that a file may import, with the packages that they and the file lie in."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever runs it is told
        return set()
    names = {package}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = _start_of(node, package)
            names |= {start, *(f"{start}.{alias.name}".lstrip(".") for alias in node.names)}
    parts = [name.split(".") for name in names if name]
    return {".".join(one[:end]) for one in parts for end in range(1, len(one) + 1)}


def _with_submodules(module: str) -> list[str]:
    path = source_of(module)
    if path is None or path.name != "__init__.py":
        return [module]
    names = []
    for file in sorted(path.parent.rglob("*.py")):
        parts = file.relative_to(path.parent).with_suffix("").parts
        names.append(".".join([module, *(parts[:-1] if parts[-1] == "__init__" else parts)]))
    return names


Stamp = list[Any]
"""SHA-256 of a file, then its size and times of modification and status, which show whether it has changed."""


def stamp_of(path: Path, before: Any = None) -> Stamp | None:
    """Stamp of a file, which is read again only if its size or times are not those in `before`; None if unreadable.

    An editor may reset the time of modification, but not that of the status.
    """
    try:
        status = path.stat()
        marks = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        if isinstance(before, list) and before[1:] == marks:
            return before
        return [file_digest(path), *marks]
    except (OSError, ValueError):  # no file has such a name
        return None


def same_content(stamp: Stamp | None, before: Any) -> bool:
    return stamp is not None and isinstance(before, list) and before[:1] == stamp[:1]


def log_remade(name: str, stamp: Stamp | None) -> None:
    what = "is missing" if stamp is None else "is not as it was written"
    logging.getLogger("heatlas").warning("  %s %s; it is made again", name, what)


class DigestCache:
    """Digests of files, remembered across runs.

    `path`: JSON file that holds them; read now, written by `save`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Stamp] = dict(known_json(path))  # only a cache
        self._changed = False

    def remembered(self, path: Path) -> Stamp | None:
        """Stamp of a file when it was last read, which may be gone; None if it never was."""
        return self._known.get(text_digest(str(path)))

    def stamp(self, path: Path) -> Stamp | None:
        """Stamp of a file; None where it cannot be read."""
        name = text_digest(str(path))  # paths of scans may hold names and dates
        before = self._known.get(name)
        stamp = stamp_of(path, before)
        if stamp is not None and stamp != before:
            self._known[name] = stamp
            self._changed = True
        return stamp

    def digest(self, path: Path) -> str:
        """SHA-256 of a file; "unreadable" where it cannot be read, so that its job reports why."""
        stamp = self.stamp(path)
        return UNREADABLE if stamp is None else str(stamp[0])

    def joined(self, paths: Iterable[Path]) -> str:
        return " ".join(map(self.digest, paths))

    def save(self) -> None:
        if self._changed:
            write_json(self._path, self._known)
            self._changed = False


def unit_key(inputs: Mapping[str, str], parameters: Any, *code: Code) -> str:
    """Key of a unit of work: digest of its inputs' digests, its parameters and the code that does it."""
    return text_digest(canonical_json([dict(inputs), parameters, code_digest(*code)]))


@dataclass(frozen=True)
class Receipt:
    """Content of a receipt.

    `key`: digest of inputs, parameters and code. `outputs`: by path from the run folder: the stamp of a file
    (`pipeline.run.work.digests.Stamp`), of a step its digest. `result`: what the unit returned. `content`: all of it.
    """

    key: str
    outputs: Mapping[str, Any]
    result: Mapping[str, Any]
    content: Mapping[str, Any]


def read_receipt(path: Path) -> Receipt | None:
    content = known_json(path)
    key, outputs, result = content.get("key"), content.get("outputs"), content.get("result", {})
    if not isinstance(key, str) or not isinstance(outputs, dict) or not isinstance(result, dict):
        return None
    return Receipt(key, outputs, result, content)
