from __future__ import annotations

from collections.abc import Callable

import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.catalog.callers import ANYBODY, Grant, Identity, Role

READER, WRITER, ADMIN = Role

EVERYWHERE: tuple[str | None, tuple[str, ...]] = (None, ())
WAREHOUSE: tuple[str | None, tuple[str, ...]] = ("w", ())
NAMESPACE: tuple[str | None, tuple[str, ...]] = ("w", ("a", "b"))


@pytest.mark.parametrize(
    ("where", "warehouse", "levels", "covered"),
    [
        (EVERYWHERE, "w", (), True),
        (EVERYWHERE, "other", ("a",), True),
        (WAREHOUSE, "w", (), True),
        (WAREHOUSE, "w", ("a", "b", "c"), True),
        (WAREHOUSE, "W", (), False),
        (WAREHOUSE, "other", ("a",), False),
        (NAMESPACE, "w", ("a", "b"), True),
        (NAMESPACE, "w", ("a", "b", "c"), True),
        (NAMESPACE, "w", ("a",), False),
        (NAMESPACE, "w", (), False),
        (NAMESPACE, "w", ("a", "bc"), False),
        (NAMESPACE, "w", ("a.b",), False),
        (NAMESPACE, "w", ("b", "a"), False),
        (NAMESPACE, "other", ("a", "b"), False),
    ],
)
@pytest.mark.parametrize("granted", Role)
@pytest.mark.parametrize("asked", Role)
def test_a_grant_holds_there_and_below(
    where: tuple[str | None, tuple[str, ...]],
    warehouse: str,
    levels: tuple[str, ...],
    covered: bool,
    granted: Role,
    asked: Role,
) -> None:
    identity = Identity("ada", (Grant(granted, *where),))
    allowed = covered and granted >= asked
    assert identity.has_role(asked, warehouse, levels) == allowed
    assert is_denied(lambda: identity.require_role(asked, warehouse, levels)) != allowed


@pytest.mark.parametrize(
    ("warehouse", "levels", "seen"),
    [
        ("w", (), True),
        ("w", ("a",), True),
        ("w", ("a", "b"), True),
        ("w", ("a", "b", "c"), True),
        ("w", ("x",), False),
        ("w", ("a", "x"), False),
        ("other", (), False),
    ],
)
def test_what_lies_on_the_way_is_seen(warehouse: str, levels: tuple[str, ...], seen: bool) -> None:
    assert Identity("ada", (Grant(READER, *NAMESPACE),)).can_see(warehouse, levels) == seen


TABLE = Grant(READER, "w", ("a", "b"), "t")


@pytest.mark.parametrize(
    ("warehouse", "levels", "table", "read"),
    [
        ("w", ("a", "b"), "t", True),
        ("w", ("a", "b"), "u", False),
        ("w", ("a", "b"), None, False),
        ("w", ("a", "b", "t"), None, False),
        ("w", ("a", "b", "t"), "t", False),
        ("w", ("a",), "t", False),
        ("v", ("a", "b"), "t", False),
    ],
)
def test_a_grant_on_a_table_holds_there_alone(
    warehouse: str, levels: tuple[str, ...], table: str | None, read: bool
) -> None:
    assert Identity("ada", (TABLE,)).has_role(READER, warehouse, levels, table) == read


def test_what_a_grant_on_a_table_shows() -> None:
    ada = Identity("ada", (TABLE, Grant(WRITER, "w", ("a", "b"), "s")))
    seen = [ada.can_see("w", levels) for levels in ((), ("a",), ("a", "b"), ("a", "b", "t"), ("b",))]
    assert seen == [True, True, True, False, False]
    assert ada.readable_tables("w", ("a", "b")) == ["s", "t"]
    assert is_denied(lambda: ada.readable_tables("w", ("a",)))
    assert ada.writable_namespaces("w") == []
    assert is_denied(lambda: ada.require_drop("w", ("a", "b"), "s"))
    for grant in (Grant(WRITER, "w", ("a",)), Grant(ADMIN, "w", ("a", "b"), "s")):
        Identity("bob", (grant,)).require_drop("w", ("a", "b"), "s")
    assert Identity("bob", (Grant(READER, "w"), TABLE)).readable_tables("w", ("a", "b")) is None


@pytest.mark.parametrize(
    ("grant", "levels", "allowed"),
    [
        (Grant(WRITER, "w"), ("a",), True),
        (Grant(READER, "w"), ("a",), False),
        (Grant(WRITER, "w", ("a",)), ("a", "b"), True),
        (Grant(WRITER, "w", ("a",)), ("a", "b", "c"), True),
        (Grant(WRITER, "w", ("a",)), ("a",), False),
        (Grant(READER, "w", ("a",)), ("a", "b"), False),
        (Grant(ADMIN, "w", ("a",)), ("a",), True),
        (Grant(ADMIN, "w", ("a",)), ("b",), False),
        (Grant(ADMIN, "w", ("a", "b")), ("a",), False),
    ],
)
def test_who_may_change_a_namespace_itself(grant: Grant, levels: tuple[str, ...], allowed: bool) -> None:
    identity = Identity("ada", (grant,))
    assert is_denied(lambda: identity.require_alter_namespace("w", levels)) != allowed


def test_any_of_several_grants_is_enough() -> None:
    identity = Identity("ada", (Grant(READER, "w"), Grant(ADMIN, "w", ("a",)), Grant(WRITER, "v")))
    assert identity.has_role(ADMIN, "w", ("a", "b"))
    assert identity.has_role(WRITER, "v")
    assert not identity.has_role(WRITER, "w", ("b",))


def test_a_refusal_says_what_is_missing_and_where() -> None:
    nobody = Identity("ada", ())
    with pytest.raises(PermissionDeniedError, match=r"^ada is no writer of namespace a\.b of warehouse w$"):
        nobody.require_role(WRITER, "w", ("a", "b"))
    with pytest.raises(PermissionDeniedError, match=r"^ada is no reader of warehouse w$"):
        nobody.require_role(READER, "w")
    with pytest.raises(
        PermissionDeniedError, match=r"^ada is neither admin of namespace a .* nor writer of warehouse w$"
    ):
        nobody.require_alter_namespace("w", ("a",))


def test_anybody_may_do_everything() -> None:
    assert ANYBODY.has_role(ADMIN, "w", ("a",))


def is_denied(call: Callable[[], object]) -> bool:
    try:
        call()
    except PermissionDeniedError:
        return True
    return False
