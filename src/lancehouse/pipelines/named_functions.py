"""Load functions that a pipeline names as `module:function`, from installed modules or the pipeline's folder.

Modules of the folder are sent to executors as source text, with whatever they import from there, and become modules
there: one for each worker, so that what a module loads once is kept for all tasks.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from lance_namespace.errors import InvalidInputError
from pyspark import cloudpickle

from lancehouse.jobs.column_functions import FOREIGN, FunctionReference
from lancehouse.jobs.fingerprints import fingerprint_functions, imported_names, package_levels

_MARK = "__lancehouse_pipeline__"
"""Attribute of modules that were loaded from text; it holds the digest of their sources."""
_LOCK = RLock()


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """The source text of a module."""

    name: str
    file: str
    text: str = field(repr=False)
    is_package: bool


@dataclass(frozen=True, slots=True)
class NamedFunction(FunctionReference):
    """A function by its name, `module:function`; can be sent to executors."""

    name: str
    sources: tuple[ModuleSource, ...] = field(default=(), repr=False)
    """Sources of its module and of what that imports, if the module is not installed."""
    digest: str = ""
    """Digest of the source text."""
    code: str = field(default="", compare=False)
    """Fingerprint of all that its results depend on, as far as that can be known; see `jobs.fingerprints`."""

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.load()(*arguments)

    def load(self) -> Callable[..., Any]:
        """Return the function of this process, importing its module first if needed."""
        return _load(self)


def get_function(name: str, folder: Path) -> NamedFunction:
    """Find a function, in the folder first, and import it to check that this works.

    Raises:
        InvalidInputError: there is no such module or function, or the module cannot be imported.
    """
    module = name.partition(":")[0]
    sources = tuple(sorted(_collect_sources(folder, module).values(), key=lambda source: source.name))
    if sources:
        digest = _digest([source.name + source.text for source in sources])
    else:
        origin = _module_origin(name, module, folder)
        digest = _digest([name, Path(origin).read_text("utf-8", "replace") if origin else ""])
    reference = NamedFunction(name, sources, digest)
    function = reference.load()
    if not callable(function):
        raise InvalidInputError(f"{name} is no function, but {type(function).__name__}")
    return replace(reference, code=fingerprint_functions({name: function}).digest)


def pickle_by_value(functions: Sequence[NamedFunction]) -> None:
    """Make Spark send what these modules define by value: executors do not have the modules."""
    for name in {source.name for function in functions for source in function.sources}:
        if name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])


def _module_origin(name: str, module: str, folder: Path) -> str | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InvalidInputError(f"there is no module {module} for {name}: it is neither installed nor in {folder}")
    return spec.origin if spec.has_location else None


@lru_cache(256)
def _load(reference: NamedFunction) -> Callable[..., Any]:
    module, _, path = reference.name.partition(":")
    try:
        resolved: Any = _import_module(module, reference)
    except FOREIGN as error:
        raise InvalidInputError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    for step in path.split("."):
        if not hasattr(resolved, step):
            functions = [name for name, value in vars(resolved).items() if callable(value) and not name.startswith("_")]
            raise InvalidInputError(f"{module} has no {path}; it has {', '.join(sorted(functions)) or 'no functions'}")
        resolved = getattr(resolved, step)
    function: Callable[..., Any] = resolved
    return function


def _import_module(module: str, reference: NamedFunction) -> ModuleType:
    if not reference.sources:
        return importlib.import_module(module)
    with _LOCK:
        # A process may run several pipelines, or one after an edit: modules loaded from other sources are imported
        # again. A module of the same name that came from elsewhere is never replaced.
        for source in reference.sources:
            if (loaded := sys.modules.get(source.name)) is None:
                continue
            if hasattr(loaded, _MARK):
                if getattr(loaded, _MARK) != reference.digest:
                    del sys.modules[source.name]
            elif getattr(loaded, "__file__", None) not in (source.file, None):
                raise ImportError(
                    f"there is another module {source.name}, of {loaded.__file__}; rename that of {source.file}"
                )
        for finder in [finder for finder in sys.meta_path if isinstance(finder, _Finder)]:
            sys.meta_path.remove(finder)
        sys.meta_path.insert(0, _Finder(reference))
        return importlib.import_module(module)


class _Finder(MetaPathFinder):
    """Finds modules that are available as text. It stays installed, as functions may import when they are called."""

    def __init__(self, reference: NamedFunction) -> None:
        self._sources = {source.name: source for source in reference.sources}
        self._digest = reference.digest

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if (source := self._sources.get(fullname)) is None:
            return None
        return spec_from_loader(
            fullname, _Loader(source, self._digest), origin=source.file, is_package=source.is_package
        )


class _Loader(Loader):
    def __init__(self, source: ModuleSource, digest: str) -> None:
        self._source = source
        self._digest = digest

    def get_source(self, _: str) -> str:
        """Return the source text, as other loaders do."""
        return self._source.text

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({"__file__": self._source.file, _MARK: self._digest})
        exec(compile(self._source.text, self._source.file, "exec"), vars(module))  # noqa: S102 - it is the user's own code


# The modules of a folder


def _collect_sources(folder: Path, module: str) -> dict[str, ModuleSource]:
    """Return a module with all that it imports from the same folder, at its top or in functions."""
    sources: dict[str, ModuleSource] = {}
    todo = list(package_levels(module))
    while todo:
        name = todo.pop()
        if name in sources or (source := _find_source(folder, name)) is None:
            continue
        sources[name] = source
        todo += [level for imported in _imported_modules(source) for level in package_levels(imported)]
    return sources if module in sources else {}


def _find_source(folder: Path, name: str) -> ModuleSource | None:
    base = folder.joinpath(*name.split("."))
    for file, is_package in ((base / "__init__.py", True), (base.with_name(f"{base.name}.py"), False)):
        if file.is_file():
            try:
                return ModuleSource(name, str(file), file.read_text("utf-8"), is_package)
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInputError(f"{file} cannot be read: {error}") from error
    # A folder without __init__.py is a namespace package, without code of its own.
    return ModuleSource(name, str(base), "", True) if base.is_dir() and any(base.glob("*.py")) else None


def _imported_modules(source: ModuleSource) -> Iterator[str]:
    try:
        tree = ast.parse(source.text)
    except SyntaxError as error:
        raise InvalidInputError(f"{source.file}:{error.lineno}: {error.msg}") from error
    return imported_names(tree, source.name if source.is_package else source.name.rpartition(".")[0])


def _digest(texts: Sequence[str]) -> str:
    return sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:32]
