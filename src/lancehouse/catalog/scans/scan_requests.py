"""Parse the requests of scans, with their filters, and encode the tasks of plans."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from uuid import uuid4

import orjson
from lance_namespace.errors import InvalidInputError
from pyiceberg import expressions as ice
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.literals import literal
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType, IcebergType, NestedField, PrimitiveType, TimestamptzType

from lancehouse.catalog.errors import PlanTaskNotFoundError
from lancehouse.catalog.iceberg.json_values import flag, format_value, optional_integer, require_object, texts

MAX_DEPTH = 100
"""Most levels of a filter's JSON, once its chains are balanced. A deeper one could not be serialized in a response."""

PredicateFactory = Callable[..., BooleanExpression]

_UNARY: Mapping[str, PredicateFactory] = {
    "is-null": ice.IsNull,
    "not-null": ice.NotNull,
    "is-nan": ice.IsNaN,
    "not-nan": ice.NotNaN,
}
_LITERAL: Mapping[str, PredicateFactory] = {
    "lt": ice.LessThan,
    "lt-eq": ice.LessThanOrEqual,
    "gt": ice.GreaterThan,
    "gt-eq": ice.GreaterThanOrEqual,
    "eq": ice.EqualTo,
    "not-eq": ice.NotEqualTo,
    "starts-with": ice.StartsWith,
    "not-starts-with": ice.NotStartsWith,
}
_SET: Mapping[str, PredicateFactory] = {"in": ice.In, "not-in": ice.NotIn}
_PAIRS = (
    ("is-null", "not-null"),
    ("is-nan", "not-nan"),
    ("lt", "gt-eq"),
    ("gt", "lt-eq"),
    ("eq", "not-eq"),
    ("starts-with", "not-starts-with"),
    ("in", "not-in"),
    ("and", "or"),
    ("true", "false"),
)
_OPPOSITE: Mapping[str, str] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True)
class Filter:
    """The filter of a scan."""

    residual: Any
    """The JSON that readers apply to rows; None if there is nothing to apply."""
    superset: BooleanExpression
    """An expression without negations, true for every matching row, and for more where pyiceberg cannot tell."""
    is_exact: bool
    """Whether `superset` is equivalent to the filter."""
    fields: frozenset[int]
    """Ids of the fields that it uses."""


NO_FILTER = Filter(None, AlwaysTrue(), True, frozenset())


def balance(json: Any) -> Any:
    """Return an equivalent filter, with long chains of one operator as balanced trees.

    Raises:
        InvalidInputError: it is still deeper than `MAX_DEPTH`.
    """
    tree = _balance_node(json, 0)
    if nesting_depth(tree) > MAX_DEPTH:
        raise _too_deep_error()
    return tree


def nesting_depth(json: Any) -> int:
    """Return the number of nested objects and lists, without recursion."""
    levels, level = -1, [json]
    while level:
        levels += 1
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [part for parts in inner for part in parts]
    return levels


def parse_filter(json: Any, schema: Schema, *, case_sensitive: bool) -> Filter:
    """Parse a balanced filter of a request; null means none.

    Raises:
        InvalidInputError: it is not an expression, or names a column that does not exist.
    """
    if json is None or json is True:
        return NO_FILTER
    parser = _FilterParser(schema, case_sensitive)
    superset = parser.parse_expression(json, negated=False)
    return Filter(parser.to_readable_json(json), superset, parser.is_exact, frozenset(parser.fields))


def find_field(schema: Schema, name: str, *, case_sensitive: bool) -> NestedField | None:
    """Return a field by its full name, such as `a.b` or `list.element`, or None."""
    try:
        return schema.find_field(name, case_sensitive)
    except ValueError:
        return None


class _FilterParser:
    def __init__(self, schema: Schema, case_sensitive: bool) -> None:
        self._schema = schema
        self._case_sensitive = case_sensitive
        self._unreadable: dict[int, Any] = {}
        self.is_exact = True
        self.fields: set[int] = set()

    def to_readable_json(self, json: Any) -> Any:
        """Return the filter in a form that clients can read: pyiceberg writes infinity as null, but cannot read that.

        Such a predicate is replaced by one that is always true.
        """
        if id(json) in self._unreadable:
            term = json["term"]
            return {
                "type": "or",
                "left": {"type": "is-null", "term": term},
                "right": {"type": "not-null", "term": term},
            }
        if not self._unreadable or not isinstance(json, dict):
            return json
        return {key: self.to_readable_json(value) if isinstance(value, dict) else value for key, value in json.items()}

    def parse_expression(self, json: Any, *, negated: bool) -> BooleanExpression:
        if isinstance(json, bool):
            return AlwaysTrue() if json != negated else AlwaysFalse()
        node = require_object(json, "filter")
        kind = _operator(node)
        if kind == "not":
            return self.parse_expression(node.get("child"), negated=not negated)
        if kind == "literal":
            return self.parse_expression(bool(node.get("value")), negated=negated)
        operation = _OPPOSITE.get(kind, "") if negated else kind
        if operation in ("true", "false"):
            return AlwaysTrue() if operation == "true" else AlwaysFalse()
        if kind in ("and", "or"):
            parts = [self.parse_expression(part, negated=negated) for part in _flatten_chain(node, kind)]
            return ice.And(*parts) if operation == "and" else ice.Or(*parts)
        if operation not in {**_UNARY, **_LITERAL, **_SET}:
            raise InvalidInputError(f"filter: {format_value(node.get('type'))} is no operation that this server knows")
        return self._parse_predicate(operation, node)

    def _parse_predicate(self, operation: str, node: dict[str, Any]) -> BooleanExpression:
        name, is_plain = _parse_term(node.get("term"))
        field = find_field(self._schema, name, case_sensitive=self._case_sensitive)
        if field is None:
            raise unknown_column_error("filter", name, self._schema)
        self.fields.add(field.field_id)
        predicate = self._build_predicate(operation, name, field.field_type, node) if is_plain else None
        if predicate is None:
            self.is_exact = False
        return AlwaysTrue() if predicate is None else predicate

    def _build_predicate(
        self, operation: str, name: str, dtype: IcebergType, node: dict[str, Any]
    ) -> BooleanExpression | None:
        """Return pyiceberg's predicate, or None if pyiceberg cannot evaluate it on this column."""
        predicate: BooleanExpression | None
        if operation in _UNARY:
            predicate = _UNARY[operation](name)
        elif operation in _LITERAL:
            value = self._parse_value(node, node.get("value"), dtype)
            predicate = None if value is None else _LITERAL[operation](name, value)
        else:
            raw_values = node.get("values")
            if not isinstance(raw_values, list):
                raise InvalidInputError(f"filter: {operation} needs a list of values")
            values = [self._parse_value(node, value, dtype) for value in raw_values]
            predicate = None if None in values else _SET[operation](name, values)
        return predicate if predicate is not None and self._is_bindable(predicate) else None

    def _parse_value(self, node: dict[str, Any], value: Any, dtype: IcebergType) -> Any:
        if isinstance(value, dict) and value.get("type") == "literal":
            value = value.get("value")
        if isinstance(value, (dict, list)):
            raise InvalidInputError(f"filter: a value must be a number, a text or a boolean, got {format_value(value)}")
        if value is None:
            self._unreadable[id(node)] = node
            return None
        if isinstance(dtype, (BinaryType, FixedType)) or not isinstance(dtype, PrimitiveType):
            return None
        if isinstance(dtype, TimestamptzType) and isinstance(value, str) and not _ZONE.search(value):
            # pyiceberg omits the time zone, which is always UTC.
            value += "+00:00"
        try:
            return literal(value).to(dtype)
        except (ValueError, TypeError, ArithmeticError):
            return None

    def _is_bindable(self, predicate: BooleanExpression) -> bool:
        if isinstance(predicate, ice.UnboundPredicate):
            try:
                predicate.bind(self._schema, self._case_sensitive)
            except (ValueError, TypeError, ArithmeticError):
                return False
        return True


def unknown_column_error(where: str, name: str, schema: Schema) -> InvalidInputError:
    """Build the error about a column that does not exist."""
    names = ", ".join(field.name for field in schema.fields[:20])
    more = ", …" if len(schema.fields) > 20 else ""
    return InvalidInputError(f"{where}: the table has no column {format_value(name)}; it has {names}{more}")


def _operator(node: dict[str, Any]) -> str:
    return str(node.get("type")).lower().replace("_", "-")


def _balance_node(json: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _too_deep_error()
    kind = _operator(json) if isinstance(json, dict) else None
    if kind in ("and", "or"):
        return _build_tree(json["type"], [_balance_node(part, depth + 1) for part in _flatten_chain(json, kind)])
    if kind == "not":
        return {"type": json["type"], "child": _balance_node(json.get("child"), depth + 1)}
    return json


def _build_tree(operator: str, parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    return {
        "type": operator,
        "left": _build_tree(operator, parts[:middle]),
        "right": _build_tree(operator, parts[middle:]),
    }


def _too_deep_error() -> InvalidInputError:
    return InvalidInputError(f"the filter is nested more than {MAX_DEPTH} levels deep: simplify it")


def _flatten_chain(node: Any, kind: str) -> Iterator[Any]:
    """Yield the operands of a chain of one operator, however it is nested."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, dict) and _operator(part) == kind:
            pending += [part.get("right"), part.get("left")]
        else:
            yield part


def _parse_term(term: Any) -> tuple[str, bool]:
    """Return the name of a column, and whether the term is the column itself rather than a transform of it."""
    match term:
        case str():
            return term, True
        case {"type": "reference", "term": str(name)}:
            return name, True
        case {"type": "transform", "term": inner}:
            return _parse_term(inner)[0], False
    raise InvalidInputError(f"filter: a term must name a column, got {format_value(term)}")


Json = dict[str, Any]

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Columns that Iceberg's readers compute themselves."""

TOKEN_BYTES = 16 << 20
"""Most bytes of a decompressed plan task; ours are far smaller."""

_WHERE = "scan"
_KEYS = (
    *("snapshot-id", "start-snapshot-id", "end-snapshot-id", "select", "stats-fields", "filter"),
    *("case-sensitive", "use-snapshot-schema", "min-rows-requested"),
)


@dataclass(frozen=True)
class ScanRequest:
    """A PlanTableScan request, checked as far as possible without the table."""

    json: Json
    """The known keys of the request, with the filter rebalanced so that it can be serialized again."""
    snapshot_id: int | None
    start_id: int | None
    end_id: int | None
    select: Sequence[str] | None
    stats_fields: Sequence[str]
    case_sensitive: bool
    use_snapshot_schema: bool

    @classmethod
    def from_json(cls, json: Any) -> Self:
        """Parse a request.

        Raises:
            InvalidInputError: a value has the wrong type, snapshots are given in two ways, or the filter is too deep.
        """
        body = require_object(json, _WHERE)
        fields = {key: body[key] for key in _KEYS if key in body}
        if "filter" in fields:
            fields["filter"] = balance(fields["filter"])
        request = cls(
            fields,
            optional_integer(fields, "snapshot-id", _WHERE, bits=64),
            optional_integer(fields, "start-snapshot-id", _WHERE, bits=64),
            optional_integer(fields, "end-snapshot-id", _WHERE, bits=64),
            None if fields.get("select") is None else texts(fields, "select", _WHERE),
            [] if fields.get("stats-fields") is None else texts(fields, "stats-fields", _WHERE),
            True if fields.get("case-sensitive") is None else flag(fields, "case-sensitive", _WHERE),
            False if fields.get("use-snapshot-schema") is None else flag(fields, "use-snapshot-schema", _WHERE),
        )
        optional_integer(fields, "min-rows-requested", _WHERE, bits=64)
        if request.snapshot_id is not None and request.is_incremental:
            raise InvalidInputError("scan: 'snapshot-id' goes with neither 'start-snapshot-id' nor 'end-snapshot-id'")
        if (request.start_id is None) != (request.end_id is None):
            raise InvalidInputError("scan: an incremental scan needs both 'start-snapshot-id' and 'end-snapshot-id'")
        return request

    @cached_property
    def is_incremental(self) -> bool:
        """Whether only rows are requested that were appended between two snapshots."""
        return self.start_id is not None or self.end_id is not None

    def parse_filter(self, schema: Schema) -> Filter:
        """Return the filter, whose names refer to `schema`.

        Raises:
            InvalidInputError: it is not a filter, or names a column that does not exist.
        """
        return parse_filter(self.json.get("filter"), schema, case_sensitive=self.case_sensitive)

    def selected_ids(self, *schemas: Schema) -> set[int] | None:
        """Return the ids of the selected fields, each looked up in the first schema that has it; None for all.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return None if self.select is None else set(self._field_ids("select", self.select, schemas))

    def stats_field_ids(self, *schemas: Schema) -> set[int]:
        """Return the ids of fields whose statistics are requested.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return set(self._field_ids("stats-fields", self.stats_fields, schemas))

    def _field_ids(self, where: str, names: Sequence[str], schemas: Sequence[Schema]) -> list[int]:
        ids = []
        for name in names:
            matches = (find_field(schema, name, case_sensitive=self.case_sensitive) for schema in schemas)
            field = next((field for field in matches if field is not None), None)
            if field is not None:
                ids.append(field.field_id)
            elif name.split(".")[0] not in METADATA_COLUMNS and name != "*":
                raise unknown_column_error(where, name, schemas[0])
        return ids


def completed_plan(tasks: Json) -> Json:
    """Return a completed plan. Its id has no meaning, but the specification requires one."""
    return {"status": "completed", "plan-id": str(uuid4()), **tasks}


def scan_tasks(files: Sequence[Json] = (), deletes: Sequence[Json] = (), plan_tasks: Sequence[str] = ()) -> Json:
    """Return the JSON of scan tasks, all or a part of a plan's."""
    tasks: Json = {"file-scan-tasks": list(files), "plan-tasks": list(plan_tasks)}
    return tasks | ({"delete-files": list(deletes)} if deletes else {})


def encode_task(content: Json) -> str:
    """Return a plan task that holds all that is needed to resolve it, so that any server can.

    It is not signed: it is checked against the table when it comes back, so a forged one gains nothing.
    """
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(content))).decode()


def decode_task(text: object) -> Json:
    """Return the content of a plan task.

    Raises:
        PlanTaskNotFoundError: it is not a plan task of this server.
    """
    if not isinstance(text, str):
        raise task_not_found()
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.urlsafe_b64decode(text.encode("ascii")), TOKEN_BYTES)
        content = orjson.loads(raw)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise task_not_found() from error
    if not isinstance(content, dict) or nesting_depth(content) > MAX_DEPTH + 2:
        raise task_not_found()
    return content


def task_not_found() -> PlanTaskNotFoundError:
    """Build the error for a plan task that is not from a plan of the table."""
    return PlanTaskNotFoundError("Plan task does not exist: plan the scan again")
