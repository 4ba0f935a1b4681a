"""How the columns of a table change so that new rows fit: new columns and fields, and wider types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.schema.walk import EXTENSION, check_types, relax_nullability

WIDER = "wider integers and floats, decimals with more digits, and large strings and binaries"
"""What a type may become, for error messages."""


def is_widening(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether every value of one type is a value of the other, and Lance can rewrite a column so."""
    if before == after:
        return True
    match before, after:
        case pa.FixedSizeListType(), pa.FixedSizeListType():
            return before.list_size == after.list_size and is_widening(before.value_type, after.value_type)
        case pa.ListType(), pa.ListType():
            return is_widening(before.value_type, after.value_type)
    if pa.types.is_integer(before) and pa.types.is_integer(after):
        return _is_wider_integer(before, after)
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return _is_wider_decimal(before, after)
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return after.bit_width > before.bit_width
    return (before, after) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def _may_fail(values: pa.DataType, column: pa.DataType) -> bool:
    """Return whether only the values of one type tell if they can be cast to another."""
    if pa.types.is_integer(column):
        return any(kind(values) for kind in (*_TEXTS, pa.types.is_floating, pa.types.is_decimal))
    is_plain = pa.types.is_floating(column) or pa.types.is_boolean(column) or pa.types.is_temporal(column)
    return is_plain and any(kind(values) for kind in _TEXTS)


_TEXTS = (pa.types.is_string, pa.types.is_large_string)


def _is_wider_integer(before: Any, after: Any) -> bool:
    if pa.types.is_signed_integer(before) and not pa.types.is_signed_integer(after):
        return False
    return bool(after.bit_width > before.bit_width)


def _is_wider_decimal(before: Any, after: Any) -> bool:
    digits = before.precision - before.scale
    return bool(type(before) is type(after) and after.scale >= before.scale and after.precision - after.scale >= digits)


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """What changes in the columns of a table."""

    target: pa.Schema
    """The columns afterwards."""
    new: pa.Schema
    """New columns; and structs that exist, with their new fields only, as Lance adds them."""
    wider: dict[str, pa.DataType]
    """Columns and fields of structs that get a wider type, by path. Their values are written again."""

    def __bool__(self) -> bool:
        return bool(self.new.names or self.wider)


def plan_evolution(schema: pa.Schema, incoming: pa.Schema, fixed: Iterable[str] = ()) -> SchemaEvolution:
    """Return how columns have to change for rows with other columns.

    Types that cannot be widened stay, and so do vectors, whose values are floats for a purpose: whether the rows fit
    them is for the caller to check, against the target.

    Args:
        schema: columns of the table.
        incoming: columns of the rows; those that the table has not are added, as nullable ones.
        fixed: columns of the table that keep their types.

    Raises:
        TableSchemaValidationError: a new column has no type, a name that only differs by case, or lies where Lance can
            neither add nor widen it; the message names all of them.
    """
    planner = _Planner(frozenset(fixed))
    target, new = planner.merge((), schema, relax_nullability(incoming))
    if planner.problems:
        raise TableSchemaValidationError(f"the columns cannot evolve: {'; '.join(planner.problems)}")
    check_types(pa.schema(new))
    metadata: Any = schema.metadata
    return SchemaEvolution(pa.schema(target, metadata), pa.schema(new), planner.wider)


Path = tuple[str, ...]
Fields = list["pa.Field[Any]"]


@dataclass(frozen=True, slots=True)
class _Planner:
    fixed: frozenset[str]
    wider: dict[str, pa.DataType] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def merge(
        self, path: Path, before: Iterable[pa.Field[Any]], after: Iterable[pa.Field[Any]], *, in_list: bool = False
    ) -> tuple[Fields, Fields]:
        """Return the fields of a table or struct afterwards, and what is new of them."""
        fields = {each.name: each for each in before}
        new: Fields = []
        for each in after:
            known = fields.get(each.name)
            if known is None:
                alike = [name for name in fields if name.casefold() == each.name.casefold()]
                if alike:
                    self._refuse((*path, each.name), f"differs from {alike[0]} by case alone")
                fields[each.name] = each
                new.append(each)
            elif path or each.name not in self.fixed:
                fields[each.name], added = self._evolve((*path, each.name), known, each, in_list=in_list)
                new += added
        return list(fields.values()), new

    def _evolve(
        self, path: Path, before: pa.Field[Any], after: pa.Field[Any], *, in_list: bool
    ) -> tuple[pa.Field[Any], Fields]:
        have, want = before.type, after.type
        if isinstance(have, pa.FixedSizeListType):
            return before, []
        if have == want or EXTENSION.encode() in (before.metadata or {}) or isinstance(have, pa.BaseExtensionType):
            return before, []
        match have, want:
            case pa.StructType(), pa.StructType():
                merged, new = self.merge(path, have, want, in_list=in_list)
                return before.with_type(pa.struct(merged)), [after.with_type(pa.struct(new))] if new else []
            case pa.ListType(), pa.ListType() if isinstance(have.value_type, pa.StructType):
                return self._evolve_list(path, before, after)
        if not is_widening(have, want):
            if _may_fail(want, have):
                self._refuse(path, f"is {have} and cannot hold {want}")
            return before, []
        if in_list:
            self._refuse(path, f"is {have} in a list of structs, and cannot become {want} there")
        self.wider[".".join(path)] = want
        return before.with_type(want), []

    def _evolve_list(self, path: Path, before: pa.Field[Any], after: pa.Field[Any]) -> tuple[pa.Field[Any], Fields]:
        """Evolve the structs in a list, to which Lance can add fields, and cannot widen them."""
        have: Any = before.type
        want: Any = after.type
        item, new = self._evolve((*path, "element"), have.value_field, want.value_field, in_list=True)
        added = [after.with_type(pa.list_(each.with_name("item"))) for each in new]
        return before.with_type(pa.list_(item)), added

    def _refuse(self, path: Path, problem: str) -> None:
        self.problems.append(f"column {'.'.join(path)} {problem}")
