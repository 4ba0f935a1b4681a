"""pyiceberg's predicates, of whose arguments mypy has another opinion than pyiceberg."""

from __future__ import annotations

from typing import Any

from pyiceberg import expressions

_UNTYPED: Any = expressions

And, Or, Not = _UNTYPED.And, _UNTYPED.Or, _UNTYPED.Not
EqualTo, NotEqualTo = _UNTYPED.EqualTo, _UNTYPED.NotEqualTo
LessThan, LessThanOrEqual = _UNTYPED.LessThan, _UNTYPED.LessThanOrEqual
GreaterThan, GreaterThanOrEqual = _UNTYPED.GreaterThan, _UNTYPED.GreaterThanOrEqual
In, NotIn = _UNTYPED.In, _UNTYPED.NotIn
IsNull, NotNull, IsNaN = _UNTYPED.IsNull, _UNTYPED.NotNull, _UNTYPED.IsNaN
StartsWith, NotStartsWith = _UNTYPED.StartsWith, _UNTYPED.NotStartsWith
