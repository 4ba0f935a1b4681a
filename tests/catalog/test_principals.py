from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, UnauthenticatedError

from lancehouse.catalog.callers import Grant, Identity, Role
from lancehouse.catalog.principals import NewPrincipal, Principals, digest
from lancehouse.store import migrate, repository
from lancehouse.store import principals as principal_rows
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.servers.postgres import new_database

READ = Grant(Role.READER, "w")
WRITE = Grant(Role.WRITER, "w", ("a", "b"))


on_both = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    postgres = getattr(request, "param", "sqlite") == "postgres"
    url = new_database(request.getfixturevalue("postgres")) if postgres else f"sqlite:///{tmp_path / 'catalog.db'}"
    opened = Database(url)
    migrate.create_if_empty(opened)
    yield opened
    opened.close()


@pytest.fixture
def principals(database: Database) -> Principals:
    """With a warehouse `w`, which has the namespaces `a`, `a.b` and `c`; `folder` is a backend in the server's file."""

    def work(tx: Tx) -> None:
        warehouse = repository.insert_warehouse(tx, "w", "/w")
        assert warehouse
        for levels in (("a",), ("a", "b"), ("c",)):
            repository.insert_namespace(tx, warehouse.id, levels, {})

    database.write(work)
    return Principals(database, ["folder"])


def test_a_secret_is_shown_once_and_proves_who_it_is(principals: Principals) -> None:
    credential = principals.create("ada", [READ])
    assert credential
    found = principals.authenticate_secret(credential.client_id, credential.client_secret)
    assert found.identity == Identity("ada", (READ,))
    assert credential.client_secret not in repr((credential, found, principals.list()))


@pytest.mark.parametrize(
    ("client_id", "secret"),
    [
        ("{id}", "wrong"),
        ("{id}", ""),
        ("{id}", "{secret}0"),
        ("{id}", "\ud800"),
        ("ada", "{secret}"),
        ("", "{secret}"),
        ("\x00", "{secret}"),
        ("\ud800", "{secret}"),
        ("x" * 10_000, "{secret}"),
        ("{id}' OR 1=1 --", "{secret}"),
        ("{other}", "{secret}"),
    ],
)
def test_a_wrong_credential_is_nobodys(principals: Principals, client_id: str, secret: str) -> None:
    ada, bob = principals.create("ada"), principals.create("bob")
    assert ada
    assert bob
    words = {"id": ada.client_id, "secret": ada.client_secret, "other": bob.client_id}
    with pytest.raises(UnauthenticatedError, match=r"^the client id or the client secret is wrong"):
        principals.authenticate_secret(client_id.format(**words), secret.format(**words))


LONG_TABLE = Grant(Role.READER, "folder", ("n" * 300, "m" * 300), "t" * 300)


@on_both
@pytest.mark.parametrize("grant", [Grant(Role.READER, "folder", ("a",), "t"), LONG_TABLE])
def test_grants_on_tables_are_told_from_those_on_namespaces(principals: Principals, grant: Grant) -> None:
    around = Grant(Role.WRITER, "folder", grant.levels)
    below = Grant(Role.WRITER, "folder", (*grant.levels, str(grant.table)))
    principals.create("ada", [grant, around, below])
    principals.grant("ada", Grant(Role.ADMIN, *grant.scope))
    found = principals.find("ada")
    assert found
    assert set(found.grants) == {Grant(Role.ADMIN, *grant.scope), around, below}
    assert principals.revoke("ada", "folder", grant.levels, table=grant.table).role is Role.ADMIN
    found = principals.find("ada")
    assert found
    assert set(found.grants) == {around, below}


def test_an_external_principal_has_no_secret(principals: Principals) -> None:
    assert principals.create("auth0|5f7c", [READ], external=True) is None
    found = principals.find("auth0|5f7c")
    assert found
    assert found.is_external
    with pytest.raises(InvalidInputError, match="external"):
        principals.rotate_secret("auth0|5f7c")


def test_a_new_secret_ends_the_old_one(principals: Principals) -> None:
    old = principals.create("ada")
    before = principals.find("ada")
    new = principals.rotate_secret("ada")
    after = principals.find("ada")
    assert old
    assert before
    assert after
    assert new.client_id == old.client_id
    assert before.generation != after.generation
    assert principals.authenticate_secret(new.client_id, new.client_secret).name == "ada"
    with pytest.raises(UnauthenticatedError):
        principals.authenticate_secret(old.client_id, old.client_secret)


@on_both
def test_a_name_that_is_taken_again_is_somebody_else(principals: Principals) -> None:
    principals.create("ada", [READ])
    token = principals.create_token("ada", "ci")
    before = principals.find("ada")
    principals.delete("ada")
    assert principals.find("ada") is None
    principals.create("ada")
    after = principals.find("ada")
    assert before
    assert after
    assert after.generation != before.generation
    assert after.grants == ()
    with pytest.raises(UnauthenticatedError):
        principals.authenticate_token(token)


@on_both
def test_static_tokens(principals: Principals) -> None:
    principals.create("ada", [WRITE])
    tokens = {label: principals.create_token("ada", label) for label in ("ci", "laptop")}
    assert [each.label for each in principals.list_tokens("ada")] == ["ci", "laptop"]
    for token in tokens.values():
        assert token.startswith("lh_")
        assert principals.authenticate_token(token)[0].identity == Identity("ada", (WRITE,))
    principals.delete_token("ada", "ci")
    assert principals.authenticate_token(tokens["laptop"])[0].name == "ada"
    for token in (tokens["ci"], tokens["laptop"][:-1], digest(tokens["laptop"]), "lh_", "", "\ud800"):
        with pytest.raises(UnauthenticatedError, match="not known") as caught:
            principals.authenticate_token(token)
        assert len(token) < 4 or token not in str(caught.value)


@on_both
def test_a_new_secret_ends_static_tokens_of_this_principal_alone(principals: Principals) -> None:
    for name in ("ada", "bob"):
        principals.create(name)
    ended = [principals.create_token("ada", label) for label in ("ci", "laptop")]
    kept = principals.create_token("bob", "ci")
    principals.rotate_secret("ada")
    for token in ended:
        with pytest.raises(UnauthenticatedError, match="not known"):
            principals.authenticate_token(token)
    assert principals.list_tokens("ada") == []
    assert principals.authenticate_token(kept)[0].name == "bob"
    assert principals.authenticate_token(principals.create_token("ada", "ci"))[0].name == "ada"


@on_both
def test_a_grant_replaces_the_one_at_its_place(principals: Principals) -> None:
    principals.create("ada", [READ])
    principals.grant("ada", WRITE)
    principals.grant("ada", Grant(Role.ADMIN, "w"))
    principals.grant("ada", Grant(Role.ADMIN, "w"))
    principals.grant("ada", Grant(Role.READER))
    assert grants(principals) == {Grant(Role.ADMIN, "w"), WRITE, Grant(Role.READER)}
    assert principals.revoke("ada", "w") == Grant(Role.ADMIN, "w")
    assert principals.revoke("ada", "w", ("a", "b"), Role.WRITER) == WRITE
    assert grants(principals) == {Grant(Role.READER)}
    with pytest.raises(
        InvalidInputError, match="was not made admin of every warehouse; it is reader of every warehouse"
    ):
        principals.revoke("ada", None, (), Role.ADMIN)


def test_a_backend_may_be_granted_with_any_namespace(principals: Principals) -> None:
    within = Grant(Role.READER, "folder", ("x", "y"))
    principals.create("ada", [Grant(Role.WRITER, "folder"), within])
    assert grants(principals) == {Grant(Role.WRITER, "folder"), within}


def test_a_grant_on_a_namespace_that_was_dropped_can_be_revoked(principals: Principals, database: Database) -> None:
    principals.create("ada", [WRITE])

    def drop(tx: Tx) -> None:
        (warehouse,) = repository.list_warehouses(tx)
        namespace = repository.find_namespace(tx, warehouse.id, WRITE.levels)
        assert namespace
        assert repository.delete_namespace(tx, namespace.id)

    database.write(drop)
    with pytest.raises(InvalidInputError, match=r"no namespace a\.b"):
        principals.grant("ada", Grant(Role.READER, "w", WRITE.levels))
    assert principals.revoke("ada", "w", WRITE.levels) == WRITE


def test_nothing_is_known_before_a_server_has_run(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    migrate.create_if_empty(database)
    with pytest.raises(InvalidInputError, match=r"no server has run on this database yet\. Start one first"):
        Principals(database).create("ada", [READ])
    assert not Principals(database).has_any()
    Principals(database, ["w"]).create("ada", [READ])
    database.close()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda p: p.create("ada"), "called 'ada' already"),
        (lambda p: p.create(""), "cannot be a principal's name"),
        (lambda p: p.create(" ada"), "cannot be a principal's name"),
        (lambda p: p.create("--help"), "cannot be a principal's name"),
        (lambda p: p.create("a\nb"), "cannot be a principal's name"),
        (lambda p: p.create("a\x00b"), "cannot be a principal's name"),
        (lambda p: p.create("\ud800"), "cannot be a principal's name"),
        (lambda p: p.create("x" * 256), "cannot be a principal's name"),
        (lambda p: p.create("anonymous"), "cannot be a principal's name"),
        (lambda p: p.create("bob", [Grant(Role.READER, None, ("a",))]), "names its warehouse"),
        (lambda p: p.grant("ada", Grant(Role.READER, "")), "empty warehouse"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("a",), "t")), "there is no table a.t of warehouse w"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", (), "t")), "there is no table t of warehouse w"),
        (lambda p: p.grant("ada", Grant(Role.READER, table="t")), "names its warehouse too"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("",))), "empty warehouse, level or table"),
        (lambda p: p.grant("ada", Grant(Role.READER, "v")), "no warehouse or backend 'v'; there is folder, w"),
        (lambda p: p.create("bob", [READ, Grant(Role.ADMIN, "W")]), "no warehouse or backend 'W'"),
        (
            lambda p: p.grant("ada", Grant(Role.READER, "w", ("x",))),
            "no namespace x of .* in warehouse w there is a, c",
        ),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("a", "x"))), "in namespace a of warehouse w there is b"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("a", "b", "x"))), "there is nothing.* Create it first"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("a.b",))), "in warehouse w there is a, c"),
        (lambda p: p.grant("ada", Grant(Role.READER, "w", ("x\x1fy",))), "separator"),
        (lambda p: p.grant("bob", READ), "no principal or group called 'bob'"),
        (lambda p: p.revoke("bob", "w"), "no principal or group called 'bob'"),
        (lambda p: p.revoke("ada", "w", ("a",)), "was not made anything of namespace a of warehouse w; it is nothing"),
        (lambda p: p.rotate_secret("bob"), "no principal called 'bob'"),
        (lambda p: p.delete("bob"), "no principal called 'bob'"),
        (lambda p: p.delete("\x00"), "no principal called"),
        (lambda p: p.create_token("bob", "ci"), "no principal called 'bob'"),
        (lambda p: p.create_token("ada", ""), "a label has"),
        (lambda p: p.create_token("ada", "taken"), "labelled 'taken' already"),
        (lambda p: p.list_tokens("bob"), "no principal called 'bob'"),
        (lambda p: p.delete_token("ada", "ci"), "no token labelled 'ci'"),
    ],
)
def test_mistakes_are_named_and_change_nothing(
    principals: Principals, mistake: Callable[[Principals], object], words: str
) -> None:
    principals.create("ada")
    principals.create_token("ada", "taken")
    before = principals.list()
    with pytest.raises(InvalidInputError, match=words):
        mistake(principals)
    assert principals.list() == before


@on_both
def test_they_are_listed_by_name(principals: Principals) -> None:
    assert not principals.has_any()
    for name in ("b", "a", "C", "ä"):
        principals.create(name)
    assert principals.has_any()
    assert [each.name for each in principals.list()] == ["C", "a", "b", "ä"]


@on_both
def test_all_who_need_the_key_first_get_the_same(database: Database) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(Principals(database).get_signing_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert len(bytes.fromhex(keys[0])) == 32


def grants(principals: Principals) -> set[Grant]:
    found = principals.find("ada")
    assert found
    assert len(found.grants) == len(set(found.grants))
    return set(found.grants)


@on_both
def test_members_have_the_grants_of_their_groups(principals: Principals) -> None:
    principals.create("ada", [WRITE])
    principals.create("bob")
    principals.create_group("team", [READ])
    principals.create_group("other", [Grant(Role.ADMIN)])
    principals.change_members("team", add=["ada", "bob"])
    principals.change_members("team", add=["ada"])
    ada, bob = principals.find("ada"), principals.find("bob")
    assert ada
    assert bob
    assert (ada.grants, ada.identity.grants) == ((WRITE,), (WRITE, READ))
    assert bob.identity == Identity("bob", (READ,))
    assert principals.describe_group("team").members == ("ada", "bob")
    assert [(each.name, each.groups) for each in principals.list()] == [("ada", ("team",)), ("bob", ("team",))]
    assert [(each.name, each.grants) for each in principals.list_groups()] == [
        ("other", (Grant(Role.ADMIN),)),
        ("team", (READ,)),
    ]
    token = principals.create_token("bob", "ci")
    assert principals.authenticate_token(token)[0].identity.grants == (READ,)
    principals.grant("team", Grant(Role.WRITER, "w"))
    assert principals.authenticate_token(token)[0].identity.grants == (Grant(Role.WRITER, "w"),)
    principals.change_members("team", remove=["bob"])
    assert principals.authenticate_token(token)[0].identity.grants == ()
    principals.delete_group("team")
    ada = principals.find("ada")
    assert ada
    assert ada.identity.grants == (WRITE,)


@on_both
def test_nobody_can_act_as_a_group(principals: Principals) -> None:
    principals.create("ada")
    principals.create_group("team", [Grant(Role.ADMIN)])
    principals.create_group("inner")
    assert principals.find("team") is None
    assert principals.find_external("team", []) == (None, None)
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: principals.create_token("team", "ci"), "no principal called 'team'"),
        (lambda: principals.rotate_secret("team"), "no principal called 'team'"),
        (lambda: principals.delete("team"), "no principal called 'team'"),
        (lambda: principals.create("team", external=True), "principal or group called 'team' already"),
        (lambda: principals.create_group("ada"), "principal or group called 'ada' already"),
        (lambda: principals.change_members("team", add=["inner"]), "groups are not nested"),
        (lambda: principals.change_members("team", add=["ada", "nobody"]), "no principal called 'nobody'"),
        (lambda: principals.change_members("ada", add=["ada"]), "no group called 'ada'"),
        (lambda: principals.change_members("team", remove=["ada"]), "ada is not in group team"),
        (lambda: principals.create_group("anonymous"), "cannot be a group's name"),
    ]
    for mistake, words in mistakes:
        with pytest.raises(InvalidInputError, match=words):
            mistake()
    assert principals.describe_group("team").members == ()


@on_both
def test_groups_that_an_issuer_names(principals: Principals) -> None:
    principals.create("eve", [WRITE], external=True)
    principals.create_group("team", [READ])
    principals.create_group("empty")
    others = [f"group {number}" for number in range(120)]
    assert principals.find_external("eve", [*others, "team"])[1] == Identity("eve", (WRITE, READ))
    principal, identity = principals.find_external("mallory", ["team", "team", "", "\x00"])
    assert (principal, identity) == (None, Identity("mallory", (READ,)))
    assert principals.find_external("mallory", ["empty"])[1] == Identity("mallory", ())
    for name, groups in {"mallory": others, "anonymous": ["team"], "\x00": ["team"], "x" * 300: ["team"]}.items():
        assert principals.find_external(name, groups) == (None, None)


@on_both
def test_tokens_expire(principals: Principals, monkeypatch: pytest.MonkeyPatch) -> None:
    principals.create("ada")
    now = time.time()
    token = principals.create_token("ada", "ci", int(now * 1000) + 60_000)
    principal, ends_at = principals.authenticate_token(token)
    assert (principal.name, round(ends_at - now)) == ("ada", 60)
    assert [each.expires_ms for each in principals.list_tokens("ada")] == [int(now * 1000) + 60_000]
    monkeypatch.setattr("lancehouse.catalog.principals.now_ms", lambda: int(now * 1000) + 60_000)
    with pytest.raises(UnauthenticatedError, match="the bearer token has expired at 20"):
        principals.authenticate_token(token)
    for wrong in (int(now * 1000) - 1, 2**60):
        with pytest.raises(InvalidInputError, match="in the future"):
            principals.create_token("ada", "other", wrong)


@on_both
def test_who_can_use_a_table(principals: Principals, database: Database) -> None:
    principals.create("root", [Grant(Role.ADMIN)])
    principals.create("ada", [Grant(Role.WRITER, "w", ("a",)), Grant(Role.ADMIN, "w", ("c",))])
    principals.create("bob")
    principals.create_group("team", [Grant(Role.READER, "w", ("a", "b"))])
    principals.create_group("of issuer", [Grant(Role.READER, "w")])
    principals.change_members("team", add=["bob", "ada"])
    found = [
        (each.principal, each.grant.role, each.group, each.grant.levels) for each in principals.who_can("w", ("a", "b"))
    ]
    assert found == [
        (None, Role.READER, "of issuer", ()),
        ("ada", Role.WRITER, None, ("a",)),
        ("ada", Role.READER, "team", ("a", "b")),
        ("bob", Role.READER, "team", ("a", "b")),
        ("root", Role.ADMIN, None, ()),
    ]
    principals.grant("bob", Grant(Role.WRITER, "folder", ("x",), "t"))
    by_name = {each.principal: each.grant.table for each in principals.who_can("folder", ("x",), "t")}
    assert by_name == {"bob": "t", "root": None}
    assert [each.principal for each in principals.who_can("folder", ("x",), "u")] == ["root"]
    with pytest.raises(InvalidInputError, match=r"there is no table a\.t"):
        principals.who_can("w", ("a",), "t")
    database.close()


def test_many_are_created_at_once_or_none(principals: Principals) -> None:
    made = principals.create_many([NewPrincipal("a", [READ]), NewPrincipal("b", external=True)])
    assert [(each.name, each.credential is not None, each.is_new) for each in made] == [
        ("a", True, True),
        ("b", False, True),
    ]
    assert made[0].credential
    assert principals.authenticate_secret(made[0].credential.client_id, made[0].credential.client_secret).name == "a"
    with pytest.raises(InvalidInputError, match="'a' already"):
        principals.create_many([NewPrincipal("c"), NewPrincipal("a")])
    assert principals.find("c") is None
    again = principals.create_many([NewPrincipal("c"), NewPrincipal("a")], exist_ok=True)
    assert [each.is_new for each in again] == [True, False]
    assert [each.name for each in principals.list("a", 1)] == ["b"]


def test_one_that_is_deleted_while_it_is_created_again(principals: Principals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not come back without a secret, as an external one, whose name an issuer may vouch for."""
    principals.create("a")
    find_holder = principal_rows.find_holder
    answers = iter([True, False])

    def find(tx: Tx, name: str, kind: principal_rows.Kind) -> object:
        return find_holder(tx, name, kind) if next(answers) else None

    monkeypatch.setattr(principal_rows, "find_holder", find)
    with pytest.raises(ConcurrentModificationError, match="try again"):
        principals.create_many([NewPrincipal("a")], exist_ok=True)
