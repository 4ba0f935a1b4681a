"""Read a pipeline file: its variables, and its keys with the types of their values, as pydantic models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from lance_namespace.errors import InvalidInputError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from lancehouse import named_catalogs
from lancehouse.connection import Connection
from lancehouse.documents import DocumentError, Loc, Problems, read_yaml, substitute, to_plain
from lancehouse.identifiers import parse_levels, quote_name
from lancehouse.suggestions import find_close, suggest

VARIABLES = "variables"
HERE = "here"
"""Name of the variable that is the folder of the file."""

ENVIRONMENT = "env."
"""Prefix of variables that come from the environment."""
_NAME = re.compile(r"(env\.)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)


class PipelineError(DocumentError):
    """A pipeline cannot run as it is written. Nothing was done."""


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """The values of a file after substitution, and the problems found so far."""

    problems: Problems
    values: dict[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def read_document(path: Path, display_name: str, overrides: Mapping[str, str]) -> PipelineDocument:
    """Read a file and substitute its variables.

    Args:
        path: path of the file.
        display_name: name of the file in errors.
        overrides: variables that override those of the file.

    Raises:
        PipelineError: the file is not valid YAML, or uses undefined variables.
        InvalidInputError: the file cannot be read.
    """
    document = read_yaml(path, display_name, "name, source and sink", PipelineError)
    problems = Problems(display_name, document.lines, PipelineError)
    values = dict(document.values)
    variables = _resolve_variables(problems, values.pop(VARIABLES, None), path, overrides)
    return PipelineDocument(problems, _fill_variables(problems, values, (), variables), variables)


def _resolve_variables(problems: Problems, declared: Any, path: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    variables = {HERE: str(path.absolute().parent)}
    if declared is not None and not isinstance(declared, dict):
        problems.add("variables are names and values", VARIABLES)
        return variables
    values: dict[str, Any] = declared or {}
    for name in overrides:
        if name not in values:
            raise InvalidInputError(
                f"--set {name}: {problems.file} has no such variable; {suggest(name, list(values))}"
            )
    for name, value in values.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in (HERE, ENVIRONMENT[:-1]):
            problems.add(f"{name!r} can be no variable: it has letters, digits and _", VARIABLES, name)
        elif name in overrides:
            variables[name] = overrides[name]
        elif isinstance(value, str):
            variables[name] = str(_fill_variables(problems, value, (VARIABLES, name), variables))
        elif value is None:
            problems.add(f"the variable {name} has no value: give --set {name}=…", VARIABLES, name)
            variables[name] = ""
        else:
            problems.add(f"the variable {name} is no text", VARIABLES, name)
            variables[name] = ""
    return variables


def _fill_variables(problems: Problems, value: Any, loc: Loc, variables: Mapping[str, str]) -> Any:
    return substitute(value, lambda reference, at: _look_up(problems, reference, at, variables), loc)


def _look_up(problems: Problems, reference: str, loc: Loc, variables: Mapping[str, str]) -> str:
    parts = _NAME.fullmatch(reference)
    if parts is None:
        problems.add(
            f"${{{reference}}} names no variable: write ${{name}}, ${{env.NAME}}, or $${{ for ${{ itself", *loc
        )
        return ""
    is_environment, name, otherwise = bool(parts[1]), parts[2], parts[3]
    values = os.environ if is_environment else variables
    if name in values:
        return values[name]
    if otherwise is not None:
        return otherwise
    if is_environment:
        problems.add(f"the environment has no {name}, of which ${{{reference}}} is", *loc)
    elif name in os.environ:
        problems.add(f"there is no variable {name}; that of the environment is ${{env.{name}}}", *loc)
    else:
        problems.add(f"there is no variable {name}; {suggest(name, list(variables))}", *loc)
    return ""


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _to_lists(value: Any) -> Any:
    return [_to_list(key) for key in value] if isinstance(value, list) else [[value]]


def _to_range(value: Any) -> Any:
    return {"min": value, "max": value} if isinstance(value, str) else value


def _parse_options(value: Any) -> Any:
    match str(value).lower():
        case "true":
            return {}
        case "false" | "none":
            return None
    if isinstance(value, dict):
        return to_plain(value)
    raise PydanticCustomError("wrong", "must be true, false or options of a compaction")


def _check_function(value: str) -> str:
    module, _, name = value.partition(":")
    if not _is_function(module, name):
        raise PydanticCustomError("wrong", "must name a function as module:function")
    return value


def _check_table(value: str) -> str:
    try:
        parse_levels(value)
    except InvalidInputError:
        raise PydanticCustomError("wrong", "must be levels joined by dots, one with a dot in `backquotes`") from None
    return value


_TAG = re.compile(r"[\w.-]+", re.ASCII)
"""Characters that Lance allows in a tag; `_check_tag` has its further rules."""


def _check_tag(value: str) -> str:
    if not _TAG.fullmatch(value) or ".." in value or value.startswith(".") or value.endswith((".", ".lock")):
        raise PydanticCustomError("wrong", "must be letters, digits, '.', '-' and '_'")
    return value


Word = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Names = Annotated[tuple[Word, ...], BeforeValidator(_to_list)]
Function = Annotated[Word, AfterValidator(_check_function)]
Table = Annotated[Word, AfterValidator(_check_table)]
Tag = Annotated[Word, AfterValidator(_check_tag)]
Texts = dict[str, str]


class SpecPart(BaseModel):
    """Base class of the parts of a pipeline. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _require_one_of(part: SpecPart, *names: str) -> str:
    present = [name for name in names if name in part.model_fields_set]
    if len(present) != 1:
        names_text = " and ".join(present) if present else "none of them"
        raise PydanticCustomError("wrong", f"needs one of {', '.join(names)}, and has {names_text}")
    return present[0]


def _refuse_without(part: SpecPart, kind: str, *names: str) -> None:
    for name in names:
        if name in part.model_fields_set:
            raise PydanticCustomError("wrong", f"{name} goes with {kind} only")


class CatalogPart(SpecPart):
    """The catalog of a table: a client with its properties, or text, the name of a catalog in `~/.lancehouse.yaml`."""

    impl: Word | None = None
    properties: Texts = Field(default={}, repr=False)
    _name: str | None = PrivateAttr(None)

    @model_validator(mode="wrap")
    @classmethod
    def _take_name(cls, value: Any, parse: ModelWrapValidatorHandler[Self]) -> Self:
        part = parse({} if isinstance(value, str) else value)
        if isinstance(value, str):
            part._name = value
        if not part._name and part.impl is None:
            raise PydanticCustomError("wrong", "needs impl")
        return part

    def connection(self) -> Connection:
        """Return the catalog; its `parent`, if it has a name and one there, stands before every id.

        Raises:
            InvalidInputError: there is no catalog of that name.
        """
        if self._name is not None:
            return named_catalogs.load().catalog(self._name)
        assert self.impl is not None
        return Connection(self.impl, self.properties)


class SparkPart(SpecPart):
    """Settings of the Spark session."""

    master: Word | None = None
    options: Texts = {}


class SourcePart(SpecPart):
    """What is read: files, an Iceberg table or a Lance table."""

    files: Names | None = None
    format: Literal["parquet", "csv", "json", "arrow", "images"] | None = None
    options: dict[str, str | list[str] | Texts] = Field(default={}, repr=False)
    iceberg: Word | None = None
    properties: Texts = Field(default={}, repr=False)
    table: Table | None = None
    catalog: CatalogPart | None = None
    filter: Word | None = None
    version: PositiveInt | None = None
    tag: Word | None = None
    columns: Names | None = None
    blobs: Literal["bytes", "reference"] | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        kind = _require_one_of(self, "files", "iceberg", "table")
        keys = {
            "files": ("format", "options"),
            "iceberg": ("properties",),
            "table": ("catalog", "filter", "version", "tag", "blobs"),
        }
        for other, names in keys.items():
            if other != kind:
                _refuse_without(self, other, *names)
        if self.version is not None and self.tag is not None:
            raise PydanticCustomError("wrong", "needs version or tag, not both")
        if self.blobs == "reference" and self.catalog is not None:
            raise PydanticCustomError(
                "wrong", "takes blobs: reference only of the catalog that the sink is in, which reads the references"
            )
        return self

    @property
    def kind(self) -> str:
        """The kind of source: files, iceberg or table."""
        return "files" if self.files is not None else "iceberg" if self.iceberg is not None else "table"


class EmbedPart(SpecPart):
    """A column that a function computes from others."""

    function: Function
    from_: Names = Field(alias="from", min_length=1)
    into: Word


class StepPart(SpecPart):
    """One step that transforms the rows."""

    select: dict[str, str] | None = Field(default=None, min_length=1)
    where: Word | None = None
    arrow: Function | None = None
    embed: EmbedPart | None = None
    sql: Word | None = None
    python: Function | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        _require_one_of(self, "where" if self.select is None else "select", "arrow", "embed", "sql", "python")
        return self

    @property
    def kind(self) -> str:
        """The kind of step: its first key."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)


class SinkPart(SpecPart):
    """The table that rows are written to, and how."""

    table: Table
    mode: Literal["create", "append", "overwrite", "merge"] = "append"
    on: Names = ()
    when_matched: Literal["update", "ignore", "delete"] = "update"
    when_not_matched: Literal["insert", "ignore"] = "insert"
    delete_by_source: bool = False
    latest_by: Names = ()
    vector_columns: dict[str, PositiveInt] = {}
    nullable: bool = True
    schema_mode: Literal["fixed", "evolve"] = "fixed"
    max_rows_per_file: PositiveInt | None = None
    max_bytes_per_file: PositiveInt | None = None
    data_storage_version: Word | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.mode == "merge" and not self.on:
            raise PydanticCustomError("wrong", "needs on, the columns that are the key, with mode merge")
        if self.mode != "merge":
            _refuse_without(
                self, "mode merge", "on", "when_matched", "when_not_matched", "delete_by_source", "latest_by"
            )
        if self.mode not in ("append", "merge"):
            _refuse_without(self, "mode append or merge", "schema_mode")
        return self


class IndexPart(SpecPart):
    """An index to build; other keys are parameters of its kind."""

    model_config = ConfigDict(frozen=True, extra="allow")

    column: Word
    kind: Word
    name: Word | None = None

    @property
    def index_name(self) -> str:
        """Name of the index."""
        return self.name or f"{self.column}_idx"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the index, under pylance's names."""
        params: dict[str, Any] = to_plain(self.model_extra or {})
        return params


class CallsPart(SpecPart):
    """How a function of a column or view is called."""

    batch_rows: PositiveInt | None = None
    retries: NonNegativeInt | None = None
    retry_on: Names = ()
    backoff_s: NonNegativeFloat | None = None
    timeout_s: PositiveFloat | None = None
    max_concurrency: PositiveInt | None = None
    resources: dict[str, PositiveFloat] = {}

    @property
    def fill_arguments(self) -> dict[str, Any]:
        """The arguments that are given, as `TableJobs.backfill` takes them."""
        names = self.model_fields_set.intersection((*CallsPart.model_fields, *_FILLS))
        return {name: getattr(self, name) for name in names}


_FILLS = ("on_error", "checkpoint_rows", "checkpoint_s", "commit_every")


def _to_function_or_sql(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    module, _, name = value.strip().partition(":")
    return {"function" if _is_function(module, name) else "sql": value}


def _to_null(value: Any) -> Any:
    return "null" if value is None else value  # YAML's null is nothing


def _is_function(module: str, name: str) -> bool:
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


class ColumnPart(CallsPart):
    """A computed column: its function or SQL, and how it is filled."""

    function: Function | None = None
    sql: Word | None = None
    where: Word | None = None
    on_error: Annotated[Literal["fail", "null", "skip"], BeforeValidator(_to_null)] = "fail"
    checkpoint_rows: PositiveInt | None = None
    checkpoint_s: PositiveFloat | None = None
    commit_every: PositiveInt | None = None
    allow_changed: bool = False

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        _require_one_of(self, "function", "sql")
        return self


Columns = dict[str, Annotated[ColumnPart, BeforeValidator(_to_function_or_sql)]]


def _to_expressions(value: Any) -> Any:
    names = _to_list(value)
    return {name: quote_name(str(name)) for name in names} if isinstance(names, list) else value


class ViewPart(CallsPart):
    """A materialized view: a table whose rows are made of those of another."""

    name: Table
    source: Table | None = None
    function: Function | None = None
    columns: Annotated[Texts, BeforeValidator(_to_expressions)] = {}
    where: Word | None = None
    computed: Columns = {}
    indices: tuple[IndexPart, ...] = ()


class RowsPart(SpecPart):
    """Bounds of the number of rows that is expected."""

    min: int = Field(default=0, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise PydanticCustomError("wrong", "has a max that is less than its min")
        return self


class ExpectPart(SpecPart):
    """Expectations that the table must meet after the write."""

    rows: Annotated[RowsPart | None, BeforeValidator(_to_range)] = None
    not_null: Names = ()
    unique: Annotated[tuple[tuple[Word, ...], ...], BeforeValidator(_to_lists)] = ()
    where: Names = ()
    on_failure: Literal["keep", "restore"] = "keep"


class PublishPart(SpecPart):
    """The tag that is set to a version which meets all expectations."""

    tag: Tag


class PipelineSpec(SpecPart):
    """A whole pipeline, as written in its file."""

    name: Word
    catalog: CatalogPart
    run: Word | None = None
    spark: SparkPart = SparkPart()
    source: SourcePart
    steps: tuple[StepPart, ...] = ()
    sink: SinkPart
    columns: Columns = {}
    views: tuple[ViewPart, ...] = ()
    indices: tuple[IndexPart, ...] = ()
    compact: Annotated[dict[str, Any] | None, BeforeValidator(_parse_options)] = None
    expect: ExpectPart = ExpectPart()
    publish: PublishPart | None = None


def parse_spec(document: PipelineDocument) -> PipelineSpec:
    """Parse a document into a pipeline.

    Raises:
        PipelineError: some keys or values are invalid; the error lists all of them.
    """
    try:
        shape = PipelineSpec.model_validate(document.values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        intended_keys = {_intended_key(problem["loc"]) for problem in errors if problem["type"] == "extra_forbidden"}
        for problem in errors:
            if problem["type"] != "missing" or problem["loc"] not in intended_keys:
                document.problems.add(_format_error(problem), *problem["loc"])
        shape = None
    document.problems.raise_if_any()
    assert shape is not None
    return shape


def _intended_key(loc: Loc) -> Loc:
    """Return the location of the key that an unknown key was probably meant to be."""
    return (*loc[:-1], find_close(str(loc[-1]), _known_keys(loc)) or "")


_KINDS: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "tuple_type": "a list",
    "list_type": "a list",
}


_SINGLE: Mapping[str, str] = {"steps": "this step", "indices": "this index", "views": "this view"}


def _format_error(error: ErrorDetails) -> str:
    """Return the message for an error of pydantic."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    names = [str(step) for step in error["loc"]]
    key = next((name for name in reversed(names) if not name.isdecimal()), "a pipeline")
    key = _SINGLE.get(key, key) if names[-1:] and names[-1].isdecimal() else key
    match kind:
        case "missing":
            above = next((name for name in reversed(names[:-1]) if not name.isdecimal()), "the pipeline")
            return f"{_SINGLE.get(above, above)} needs {key}"
        case "extra_forbidden":
            return f"there is no key {key} here; {suggest(key, _known_keys(error['loc']))}"
        case "literal_error":
            expected = str(context["expected"]).replace("'", "")
            return f"{key} must be {expected}, not {_format_value(value)}"
        case "string_too_short" | "too_short":
            return f"{key} must not be empty"
        case "greater_than" if isinstance(context["gt"], float):
            return f"{key} must be more than {context['gt']:g}, not {value}"
        case "greater_than" | "greater_than_equal":
            least = context["gt"] + 1 if "gt" in context else context["ge"]
            return f"{key} must be {least:g} or more, not {value}"
        case "value_error" | "wrong":
            return f"{key} {error['msg'].removeprefix('Value error, ')}"
    if kind in _KINDS:
        return f"{key} must be {_KINDS[kind]}, not {_format_value(value)}"
    return f"{key}: {error['msg']}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return repr(str(value))
    if value is None:
        return "nothing"
    return "keys and values" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def _known_keys(loc: Sequence[Any]) -> list[str]:
    """Return the keys that are allowed where an unknown one was found."""
    part: Any = PipelineSpec
    is_name = False  # of a column, which stands where other parts have their keys
    for step in loc[:-1]:
        if isinstance(step, str) and not is_name:
            annotation = part.model_fields[step].annotation
            part, is_name = _find_part(annotation), get_origin(annotation) is dict
        else:
            is_name = False
    keys = [field.alias or name for name, field in part.model_fields.items()]
    return [VARIABLES, *keys] if part is PipelineSpec else keys


def _find_part(annotation: Any) -> Any:
    """Return the model that a field holds, by itself or in a list, or None."""
    if isinstance(annotation, type) and issubclass(annotation, SpecPart):
        return annotation
    return next((part for argument in getattr(annotation, "__args__", ()) if (part := _find_part(argument))), None)
