"""Fingerprint what a function's results depend on: code, modules, packages, files, environment variables.

Interrupted work is resumed only by the code that began it. Data that a function fetches while it runs, from a service
or from a file whose path is computed, is not covered.
"""

from __future__ import annotations

import ast
import dis
import inspect
import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from importlib.util import find_spec, resolve_name
from pathlib import Path, PurePath
from platform import python_version
from textwrap import dedent
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any
from uuid import uuid4

ENVIRONMENT = "environment variable "
_INSTALLED = ("lancehouse", "pyspark")
"""Packages whose version is enough, although they may lie outside of site-packages."""
_DYNAMIC = frozenset({"import_module", "__import__"})
_READS_ENVIRONMENT = frozenset({"environ", "getenv"})
_SITES = frozenset({"site-packages", "dist-packages"})
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_CODE = (*_PLAIN, tuple, frozenset, FunctionType, ModuleType, type, _lru_cache_wrapper)
"""What counts where the state of objects does not."""
_LONGEST_PATH = 1024
_CACHED_MODULES = 64
_first_digests: dict[str, str] = {}
"""Digests of the sources of modules as this process first saw them.

Processes that it has started since may still use those, also after a reload: what they compute with an edited module is
not the work of the source that is there now.
"""
_NOT_PICKLED = (
    pickle.PicklingError,
    AttributeError,
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
    ImportError,
)
"""What pickle, or methods that it calls, raise for objects that cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a result depends on.

    Args:
        parts: a digest or a version of each thing that it depends on.
        doubts: further dependencies that cannot be compared with an earlier state.
    """

    parts: Mapping[str, str]
    doubts: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest, the same for equal fingerprints, also in other processes; one with doubts is equal to no other."""
        return json_digest([sorted(self.parts.items()), uuid4().hex if self.doubts else ""])

    @property
    def record(self) -> dict[str, str]:
        """The parts as they may be stored: without the values of environment variables, which may be secrets."""
        return {name: "" if name.startswith(ENVIRONMENT) else value for name, value in self.parts.items()}

    def explain_difference(self, before: Mapping[str, str]) -> str:
        """Return, for a message, how this differs from a stored record.

        Args:
            before: the record.
        """
        if self.doubts:
            return f"it cannot be compared with what it was: {', '.join(self.doubts)}"
        now = self.record
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        variables = [name for name in now if name.startswith(ENVIRONMENT)]
        return f"changed since: {', '.join(sorted(changed or variables)) or 'its code'}"


def fingerprint_functions(functions: Mapping[str, Callable[..., Any]]) -> Fingerprint:
    """Fingerprint functions with everything of the user's own that they reach: objects, modules, files, environment.

    Modules are followed through imports, also those inside of functions. All installed packages count with their
    versions, as a package may depend on any other.

    Args:
        functions: by the names of the columns that they compute.
    """
    walk = _CodeWalker()
    for name, function in functions.items():
        walk.parts[f"function of {name}"] = walk.digest_object(function)
    return Fingerprint(
        {**walk.parts, **walk.external_inputs(), **package_versions()}, tuple(dict.fromkeys(walk.doubts))
    )


def digest_code(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, of the code that it refers to, and of the user's own modules it imports.

    Unlike a fingerprint it leaves out packages, files, the environment, and the state of objects: a cache that a
    function fills does not change its code. It is made of the source where there is one, without comments, docstrings
    and layout, so that other versions of Python give the same digest; only of what is typed into a shell that keeps no
    source, it is made of the bytecode, which each version compiles in its own way.
    """
    walk = _CodeWalker(follows_state=False)
    return json_digest([walk.digest_object(function), sorted(walk.parts.items())])


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of all installed packages."""
    all_metadata = (package.metadata for package in distributions())
    packages = {f"package {metadata['Name']}": metadata["Version"] for metadata in all_metadata if metadata is not None}
    return {**packages, "Python": python_version()}


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of the modules that a module imports, at its top or in functions; some may be names in modules
    instead.

    Args:
        tree: the parsed module.
        package: package that relative imports are relative to.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")


def package_levels(name: str) -> Iterator[str]:
    """Yield the packages that a module is in, outermost first, and the module itself."""
    steps = name.split(".")
    yield from (".".join(steps[: place + 1]) for place in range(len(steps)))


class _CodeWalker:
    """Follows what functions refer to, and collects parts and doubts of a fingerprint.

    Args:
        follows_state: whether objects count that functions refer to, besides constants and other functions.
    """

    def __init__(self, *, follows_state: bool = True) -> None:
        self._follows_state = follows_state
        self.parts: dict[str, str] = {}
        self.doubts: list[str] = []
        self._texts: set[tuple[str, str]] = set()
        """String constants of the code, each with the folder of the module that contains it, or ""."""
        self._reads_environment = False
        self._modules: set[str] = set()
        self._digests: dict[int, tuple[Any, bytes]] = {}
        """Digests of functions and classes by their id; the object is kept alive so that its id is not reused."""

    def digest_object(self, value: Any) -> str:
        """Return a digest of an object: of its state, and of the code of all functions and classes in it."""
        hashed = _HashSink()
        try:
            _Pickler(hashed, self.stand_in).dump(value)
        except _NOT_PICKLED as error:
            self.doubts.append(f"it holds an object whose state cannot be read ({error})")
        return hashed.digest.hexdigest()[:32]

    def stand_in(self, value: Any) -> bytes | None:
        """Return the bytes that replace an object in a pickle, or None to let pickle handle it.

        Each result is a new object: pickle writes one that it has seen before as a reference, so that equal texts would
        differ by whether they are the same object.
        """
        match value:
            case str():
                self._texts.add((value, ""))
                return b"text " + value.encode(errors="surrogatepass")
            case bytes():
                return b"bytes " + value
            case PurePath():
                self._texts.add((str(value), ""))
                return b"path " + str(value).encode(errors="surrogatepass")
            case MappingProxyType():
                return b"mapping " + self.digest_object(dict(value)).encode()
            case set() | frozenset():
                return b"set " + b" ".join(sorted(self.digest_object(item).encode() for item in value))
            case ModuleType():
                self.add_module(value.__name__)
                return b"module " + value.__name__.encode()
            case FunctionType() | type():
                return self._code_digest(value)
            case _lru_cache_wrapper():
                return b"cached " + self.digest_object(value.__wrapped__).encode()
        return None

    def _code_digest(self, value: Any) -> bytes:
        if id(value) not in self._digests:
            name = f"{value.__module__}.{value.__qualname__}".encode()
            self._digests[id(value)] = (value, name)  # for recursion: what refers to itself counts by its name
            if _is_user_module(value.__module__):
                parts = self._function_parts(value) if isinstance(value, FunctionType) else self._class_parts(value)
                self._digests[id(value)] = (value, name + b" " + json_digest(parts).encode())
        return bytes(bytearray(self._digests[id(value)][1]))

    def _function_parts(self, function: FunctionType) -> list[Any]:
        # Spark sends functions of modules by their names, so that there the source says what they do. It sends what is
        # defined in a notebook, a script or another function as it is, with the globals that it uses.
        is_sent = not self.add_module(function.__module__) or "<" in function.__qualname__
        names = _code_names(function.__code__)
        used = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
        for value in used.values():
            if isinstance(value, ModuleType):
                self._follow_submodules(value.__name__, names)
        sent = {name: value for name, value in used.items() if is_sent or isinstance(value, _PLAIN)}
        cells = [_cell_value(cell) for cell in function.__closure__ or ()]
        if not self._follows_state:
            sent = {name: value for name, value in sent.items() if isinstance(value, _CODE)}
            cells = [value for value in cells if isinstance(value, _CODE)]
        if is_sent:
            self._follow_imports(function.__code__)
            if any(value is import_module or value is __import__ for value in used.values()):
                self.doubts.append(f"{function.__qualname__} imports modules whose names it computes")
        references = (function.__defaults__, function.__kwdefaults__, cells, sent)
        return [self._code_parts(function, is_sent=is_sent), *map(self.digest_object, references)]

    def _code_parts(self, function: FunctionType, *, is_sent: bool) -> Any:
        if self._follows_state:
            return self._bytecode_parts(function.__code__)
        if not is_sent:
            return None  # its module counts, by its source
        tree = _parse_function(function)
        return self._bytecode_parts(function.__code__) if tree is None else normalize_tree(tree)

    def _class_parts(self, kind: type) -> list[Any]:
        bases = [self._code_digest(base).decode(errors="replace") for base in kind.__mro__[1:]]
        if self.add_module(kind.__module__) and "<" not in kind.__qualname__:
            return bases
        inner = {name: _unwrap(value) for name, value in sorted(vars(kind).items()) if name not in _OF_CLASSES}
        if not self._follows_state:
            fields = getattr(kind, "__dataclass_fields__", None)
            inner = {
                name: value
                for name, value in inner.items()
                if isinstance(value, _CODE) and not (fields is not None and _is_generated(value))
            }
            bases = [*bases, *(fields or ())]
        return [bases, [[name, self.digest_object(value)] for name, value in inner.items()]]

    def _bytecode_parts(self, code: CodeType) -> list[Any]:
        constants = [
            self._bytecode_parts(constant) if isinstance(constant, CodeType) else _constant_repr(constant)
            for constant in code.co_consts
        ]
        self._texts.update((constant, "") for constant in _string_constants(code.co_consts))
        return [code.co_code.hex(), list(code.co_names), constants]

    def _follow_imports(self, code: CodeType) -> None:
        """Follow the imports inside a function; note whether it reads the environment or imports by computed names."""
        self._reads_environment |= bool(_READS_ENVIRONMENT & _code_names(code))
        if _DYNAMIC & _code_names(code):
            self.doubts.append(f"{code.co_name} imports modules whose names it computes")
        module = ""
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                module = str(step.argval)
                self._add_imported(module)
            elif step.opname == "IMPORT_FROM":
                self._add_imported(f"{module}.{step.argval}")
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self._follow_imports(inner)

    def _follow_submodules(self, package: str, names: Iterable[str]) -> None:
        """Follow `package.module`, where the module was imported elsewhere."""
        for name in names:
            if f"{package}.{name}" in sys.modules:
                self.add_module(f"{package}.{name}")

    def _add_imported(self, name: str) -> None:
        for level in package_levels(name):
            self.add_module(level)

    def add_module(self, name: str | None) -> bool:
        """Add a module and all that it imports; return whether Spark sends its functions by name, not by value."""
        if not name or name == "__main__":
            return False
        if not _is_user_module(name):
            return True
        if name in self._modules:
            return f"module {name}" in self.parts
        self._modules.add(name)
        spec = _find_module_spec(name)
        if spec is None:
            # `from package import name`: most names are no modules.
            if self._follows_state and name.rpartition(".")[0] not in self._modules:
                self.parts[f"module {name}"] = "missing"
            return False
        if spec.origin is None and spec.submodule_search_locations is not None:
            return False  # a folder without __init__.py
        text = _read_source(spec)
        self.parts[f"module {name}"] = digest = json_digest(text)
        if _first_digests.setdefault(name, digest) != digest:
            self.doubts.append(
                f"the module {name} was edited in this session, and workers of Spark keep what they have imported; "
                "start a new session"
            )
        if text is None:
            self.doubts.append(f"the module {name} has no source that can be read")
            return True
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        try:
            source = _parse_module(text, package)
        except (SyntaxError, ValueError) as error:
            self.doubts.append(f"the module {name} cannot be parsed ({error})")
            return True
        if not self._follows_state:
            self.parts[f"module {name}"] = _digest_code_of(text)
        self._follow_source(name, package, source, str(Path(spec.origin or "").parent))
        return True

    def _follow_source(self, name: str, package: str, source: _ModuleSource, folder: str) -> None:
        for imported in (package, *source.imports):
            self._add_imported(imported)
        self._texts.update((text, folder) for text in source.texts)
        self._reads_environment |= source.reads_environment
        for dynamic in source.dynamic_imports:
            self._import_dynamically(name, package, dynamic)

    def _import_dynamically(self, name: str, package: str, imported: str | None) -> None:
        if imported is not None:
            with suppress(ImportError):
                self._add_imported(resolve_name(imported, package))
                return
        self.doubts.append(f"the module {name} imports modules whose names it computes")

    def external_inputs(self) -> dict[str, str]:
        """Return the state of files and environment variables whose names appear in the code."""
        inputs: dict[str, str] = {}
        for text, folder in sorted(self._texts):
            if self._reads_environment and text in os.environ:
                inputs[f"{ENVIRONMENT}{text}"] = json_digest(os.environ[text])
            for path in {Path(text), Path(folder, text)} if _is_path(text) else ():
                with suppress(OSError):  # a text that is no name of a file may be too long for one
                    if path.is_file():
                        about = path.stat()
                        inputs[f"file {path}"] = f"{about.st_size} {about.st_mtime_ns}"
        return inputs


class _HashSink(io.RawIOBase):
    """A file that keeps only a digest of what is written, as functions may hold large objects."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = sha256()

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, persistent: Callable[[Any], bytes | None]) -> None:
        super().__init__(file, protocol=4)
        self._persistent = persistent

    def persistent_id(self, obj: Any) -> bytes | None:
        return self._persistent(obj)


_OF_CLASSES = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__firstlineno__",
        "__static_attributes__",
    }
)
"""Attributes of classes that do not affect what they do."""


@dataclass(frozen=True)
class _ModuleSource:
    """What the text of a module says, whatever else is loaded."""

    imports: tuple[str, ...]
    """Names of what it imports, as `imported_names` returns them."""
    texts: frozenset[str]
    """String constants."""
    reads_environment: bool
    dynamic_imports: tuple[str | None, ...]
    """Names that it passes to `import_module` and the like; None for those that it computes."""


# Each function of a module is fingerprinted by itself, and so are all functions that import it: without the caches, a
# file of a thousand lines would be parsed and walked again for each of them, which takes a third of a second.
@lru_cache(_CACHED_MODULES)
def _parse_module(text: str, package: str) -> _ModuleSource:
    """Parse the text of a module.

    Args:
        text: of the module.
        package: package that relative imports are relative to.
    """
    tree = ast.parse(text)
    texts, dynamic_imports = set[str](), list[str | None]()
    reads_environment = False
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(constant)):
                texts.add(constant)
            case ast.Name(id=used) | ast.Attribute(attr=used) | ast.alias(name=used) if used in _READS_ENVIRONMENT:
                reads_environment = True
            case ast.alias(name=used, asname=str()) if used in _DYNAMIC:
                dynamic_imports.append(None)
            case ast.Call(func=ast.Name(id=used) | ast.Attribute(attr=used), args=arguments) if used in _DYNAMIC:
                match arguments:
                    case [ast.Constant(value=str(imported)), *_]:
                        dynamic_imports.append(imported)
                    case _:
                        dynamic_imports.append(None)
    imports = tuple(dict.fromkeys(imported_names(tree, package)))
    return _ModuleSource(imports, frozenset(texts), reads_environment, tuple(dynamic_imports))


@lru_cache(_CACHED_MODULES)
def _digest_code_of(text: str) -> str:
    """Return a digest of the code of a module, without comments, docstrings and layout."""
    return json_digest(normalize_tree(ast.parse(text)))


_NO_CODE = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of nodes of a syntax tree that say nothing of what the code does."""
_WITH_DOCSTRING = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def normalize_tree(node: Any) -> Any:
    """Return a syntax tree in a form that JSON can hold and that all versions of Python give, without docstrings.

    Fields that are empty are left out: versions add some, such as the parameters of generic functions. Python 3.12 and
    later split the texts of f-strings in other places, so that texts in a row become one.
    """
    match node:
        case ast.Constant():
            return ["Constant", type(node.value).__name__, repr(node.value)]
        case ast.JoinedStr():
            return ["JoinedStr", _join_texts(map(normalize_tree, node.values))]
        case ast.AST():
            fields = {name: value for name, value in ast.iter_fields(node) if name not in _NO_CODE}
            if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
                fields["body"] = node.body[1:]
            parts = {name: normalize_tree(value) for name, value in sorted(fields.items()) if value not in (None, [])}
            return [type(node).__name__, parts]
        case list():
            return list(map(normalize_tree, node))
    return repr(node)


def _join_texts(parts: Iterable[Any]) -> list[Any]:
    joined: list[Any] = []
    for part in parts:
        match part, joined:
            case ["Constant", "str", "''"], _:
                continue
            case ["Constant", "str", text], [*_, ["Constant", "str", before]]:
                joined[-1] = ["Constant", "str", repr(ast.literal_eval(before) + ast.literal_eval(text))]
            case _:
                joined.append(part)
    return joined


def _parse_function(function: FunctionType) -> ast.Module | None:
    """Return the syntax tree of a function, or of the statement that a lambda is in; None if its source is not known.

    What is found may be of another function if the file was edited since; its name tells.
    """
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    name = function.__code__.co_name
    is_same = name == "<lambda>" or getattr(tree.body[0], "name", None) == name if tree.body else False
    return tree if is_same else None


def _is_generated(value: Any) -> bool:
    """Return whether code was made by `dataclass`, which differs from version to version of Python."""
    if not isinstance(value, FunctionType):
        return False
    inner = inspect.unwrap(value)  # `__repr__` is wrapped
    return inner.__code__.co_filename == "<string>" or not _is_user_module(inner.__module__)


def _is_path(text: str) -> bool:
    return len(text) <= _LONGEST_PATH and not {"\0", "\n"} & set(text) and ("." in text or "/" in text)


def _unwrap(value: Any) -> Any:
    match value:
        case staticmethod() | classmethod():
            return value.__func__
        case property():
            return [value.fget, value.fset, value.fdel]

    # A slot is a descriptor implemented in C: the name of its type stands for it.
    return repr(type(value)) if hasattr(value, "__objclass__") else value


def _cell_value(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _string_constants(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _string_constants(constant)


def _constant_repr(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _code_names(code: CodeType) -> set[str]:
    inner = (_code_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _find_module_spec(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    try:
        return find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _read_source(spec: ModuleSpec) -> str | None:
    """Return the source of a module; None if it has none, such as one in C."""
    if spec.origin is not None and spec.origin.endswith(".py"):
        try:
            return Path(spec.origin).read_text("utf-8", "surrogateescape")
        except OSError:
            pass  # it may lie in an archive, which its loader can read
    try:
        text: str | None = getattr(spec.loader, "get_source", lambda _: None)(spec.name)
    except (ImportError, OSError):
        return None
    return text


def _is_user_module(name: str | None) -> bool:
    """Return whether a module is the user's own, not part of Python or of an installed package."""
    top = (name or "__main__").partition(".")[0]
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top in _INSTALLED:
        return False
    spec = _find_module_spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    return not any(place and not _SITES.isdisjoint(Path(place).parts) for place in places)


def json_digest(value: Any) -> str:
    """Return a short digest of a value that JSON can hold."""
    return sha256(json.dumps(value, sort_keys=True).encode(errors="surrogatepass")).hexdigest()[:32]
