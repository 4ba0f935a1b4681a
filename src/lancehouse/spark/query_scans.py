"""Find the scans of a query: which tables it reads, which columns of each it needs, and which conditions hold for each.

Nothing here needs a session. What is left out must be certain by the text and the schemas alone: a column is left out
only if its name does not occur in the query where it could mean this column, and no star covers it; a condition is
given to a scan only if it is true of every row of the scan that has a part in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from sqlglot import exp

from lancehouse.spark.conditions import Condition, Constants, Translator, are_comparable_keys, join_conditions
from lancehouse.spark.query_text import QueryText, Replacement, TimeTravel, alias_clause, search_name

Expr = exp.Expr
Columns = tuple[str, ...] | None
"""Names of the columns of a relation; None if they are not known."""

ROW_ID = "_rowid"
AGGREGATES: Mapping[type[Expr], str] = {
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "mean",
    exp.Count: "count",
}


@dataclass(eq=False, slots=True)
class TableMention:
    """A place in a query that names a table which is no CTE."""

    node: exp.Table
    parts: tuple[str, ...]
    start: int
    end: int
    """End of the name, and of the clause that chooses a version."""
    travel: TimeTravel | None
    search: int | None = None
    """Number of the search that stands here instead of a name."""

    @property
    def alias(self) -> str:
        """Name by which the query refers to it."""
        return str(self.node.alias or self.parts[-1])

    @property
    def has_alias(self) -> bool:
        """Whether the query gives it a name."""
        return bool(self.node.alias)

    @property
    def renames_columns(self) -> bool:
        """Whether the query gives its columns other names, as `t AS u(a, b)` does."""
        return bool(self.node.alias_column_names)

    @property
    def is_sampled(self) -> bool:
        """Whether only a sample of its rows is wanted."""
        return self.node.args.get("sample") is not None


@dataclass(slots=True)
class ScanPlan:
    """What a query needs of a table at one place."""

    use: TableMention
    schema: pa.Schema
    columns: tuple[str, ...] | None = None
    """Columns to read, None for all."""
    conditions: list[Condition] = field(default_factory=list)
    not_pushed: dict[str, str] = field(default_factory=dict)
    """Conditions of the query that the scan does not get, and why."""
    limit: int | None = None
    with_row_id: bool = False

    @property
    def filter(self) -> str | None:
        """The condition for Lance."""
        joined = join_conditions(self.conditions)
        return None if joined is None else joined.sql


@dataclass(frozen=True, slots=True)
class KeyLink:
    """Rows of a scan have no part in the result unless their key is that of a row of another scan."""

    scan: ScanPlan
    column: str
    other: ScanPlan
    other_column: str


@dataclass(frozen=True, slots=True)
class WholeAggregate:
    """A query that is nothing but aggregates over one table."""

    scan: ScanPlan
    keys: tuple[str, ...]
    items: tuple[tuple[str, str], ...]
    """For each column of the result the function, or `key`, and the column."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the session that decide what a query means."""

    is_case_sensitive: bool = False
    is_ansi: bool = True
    zone: str | None = None
    is_odd: bool = False
    """Whether texts in double quotes are names, or others give a query another meaning: nothing is left out then."""


def find_tables(query: QueryText) -> list[TableMention]:
    """Return the places of a query that name tables, except for names of CTEs in scope."""
    uses = []
    for node in query.tree.find_all(exp.Table):
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        if not parts or len(parts) != len(node.parts) or _find_cte(node) is not None:
            continue
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        names = tuple(part.this for part in parts)
        if (number := _search_at(query, start, names)) is not None:
            call = query.searches[number]
            uses.append(TableMention(node, (call.function,), start, call.end, None, number))
            continue
        travel = query.travel_after(end)
        uses.append(TableMention(node, names, start, travel.end if travel else end, travel))
    return uses


def _search_at(query: QueryText, start: int, names: tuple[str, ...]) -> int | None:
    for number, call in enumerate(query.searches):
        if call.start == start and names == (search_name(number),):
            return number
    return None


def _find_cte(table: exp.Table) -> exp.CTE | None:
    """Return the CTE that a table name means by Spark's rules of scope, if there is one."""
    if len(table.parts) != 1 or not isinstance(table.this, exp.Identifier):
        return None
    child: Expr = table
    while (parent := child.parent) is not None:
        with_ = parent.args.get("with_")
        if isinstance(with_, exp.With):
            for cte in _visible_ctes(with_, child):
                if cte.alias.lower() == table.name.lower():
                    return cte
        child = parent
        if isinstance(child, exp.With):  # a definition sees those before it, and in a recursive WITH itself
            ctes: list[exp.CTE] = child.expressions
            inside = next((n for n, cte in enumerate(ctes) if _contains(cte, table)), len(ctes))
            for cte in reversed(ctes[: inside + bool(child.args.get("recursive"))]):
                if cte.alias.lower() == table.name.lower():
                    return cte
            child = child.parent or child
    return None


def _visible_ctes(with_: exp.With, child: Expr) -> Iterator[exp.CTE]:
    if child is not with_:
        yield from reversed(with_.expressions)


def _contains(ancestor: Expr, node: Expr) -> bool:
    current: Expr | None = node
    while current is not None and current is not ancestor:
        current = current.parent
    return current is ancestor


@dataclass(frozen=True, slots=True)
class _Source:
    """A relation in FROM."""

    name: str
    columns: Columns
    scan: ScanPlan | None = None
    parts: tuple[str, ...] = ()
    """Parts of the table's name if it has no alias: columns may be qualified by all of them."""


class _Select:
    """The relations of one SELECT, and which conditions may go to which of them."""

    def __init__(self, planner: Planner, node: exp.Select) -> None:
        self.node, self._planner = node, planner
        first = node.args.get("from_")
        self._joins = _joins(node)
        relations = [] if first is None else [first.this, *(join.this for join in self._joins)]
        self.sources = [planner.source(relation) for relation in relations]
        self.views = [planner.lateral(view) for view in node.args.get("laterals") or []]

    def push(self) -> None:
        """Give each scan the conditions that are true of its rows alone."""
        if not self.sources:
            return
        where = self.node.args.get("where")
        if where is not None:
            visible = [place for place in range(len(self.sources)) if not self._is_hidden(place)]
            kept = {place for place in visible if not self._may_be_null(place, len(self._joins))}
            self._push(where.this, visible, kept, "the outer join keeps rows without it", self.views)
        for place, join in enumerate(self._joins, 1):
            condition = join.args.get("on")
            if condition is None or isinstance(condition, exp.Boolean):
                continue
            before = [earlier for earlier in range(self._segment(place), place) if not self._is_hidden(earlier)]
            visible = [*before, place]
            self._push(condition, visible, self._sides_of(place, visible), "the join keeps rows without it")

    def _push(
        self, condition: Expr, visible: Sequence[int], allowed: set[int], otherwise: str, views: Sequence[_Source] = ()
    ) -> None:
        sources = [self.sources[place] for place in visible]
        for conjunct in list_conjuncts(condition):
            found = False
            for place in visible:
                scan = self.sources[place].scan
                if scan is None:
                    continue
                reason = self._planner.push(
                    scan, conjunct, [*sources, *views], may=place in allowed, otherwise=otherwise
                )
                found = found or reason is None
            targets = [scan for place in allowed if (scan := self.sources[place].scan) is not None]
            found = self._planner.link(conjunct, [*sources, *views], targets) or found
            if not found:
                self._planner.note(conjunct, [*sources, *views])

    def _segment(self, place: int) -> int:
        """Return the first relation that the ON of a join can name: those before a comma are out of its sight."""
        for earlier in range(place - 1, 0, -1):
            join = self._joins[earlier - 1]
            if join.args.get("on") is None and not join.args.get("using"):
                return earlier
        return 0

    def _kind(self, place: int) -> str:
        join = self._joins[place - 1]
        return f"{join.side} {join.kind}".strip().upper()

    def _is_hidden(self, place: int) -> bool:
        return place > 0 and ("SEMI" in self._kind(place) or "ANTI" in self._kind(place))

    def _may_be_null(self, place: int, upto: int) -> bool:
        """Return whether one of the first joins may make the columns of a relation null."""
        joined = 0 < place <= upto and not self._is_hidden(place)
        own = joined and self._kind(place).startswith(("LEFT", "FULL"))
        later = any(self._kind(number).startswith(("RIGHT", "FULL")) for number in range(place + 1, upto + 1))
        return own or later or any(not self._is_known(number) for number in range(1, upto + 1))

    def _is_known(self, place: int) -> bool:
        kind = self._kind(place)
        joined = self._joins[place - 1]
        return joined.args.get("method") in (None, "", "NATURAL") and kind in _JOINS

    def _sides_of(self, place: int, visible: Sequence[int]) -> set[int]:
        """Return the relations whose rows the ON of a join may drop before it."""
        if any(not self._is_known(number) for number in range(1, len(self._joins) + 1)):
            return set()
        kind = self._kind(place)
        left = {earlier for earlier in visible if earlier < place and not self._may_be_null(earlier, place - 1)}
        if kind.startswith("FULL"):
            return set()
        if "ANTI" in kind:
            return {place}
        if "SEMI" in kind:
            return {place, *left}
        if kind.startswith("LEFT"):
            return {place}
        return left if kind.startswith("RIGHT") else {place, *left}


_JOINS = frozenset(
    {"", "INNER", "CROSS", "LEFT", "LEFT OUTER", "RIGHT", "RIGHT OUTER", "FULL", "FULL OUTER"}
    | {"LEFT SEMI", "SEMI", "LEFT ANTI", "ANTI"}
)


class Planner:
    """Plans the scans of a query.

    Args:
        query: the query.
        schemas: for each place that names one of our tables, its schema.
        columns_of: returns the columns of another table or view, None if unknown.
        settings: of the session.
        arguments: values of the query's named parameters.
    """

    def __init__(
        self,
        query: QueryText,
        schemas: Mapping[TableMention, pa.Schema],
        columns_of: Callable[[tuple[str, ...]], Columns] = lambda _: None,
        settings: Settings | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._query, self._columns_of, self._settings = query, columns_of, settings or Settings()
        self._constants = Constants(query.plain_strings(), arguments or {}, self._settings.zone)
        self.scans = [ScanPlan(use, schema) for use, schema in schemas.items()]
        self._by_node = {id(scan.use.node): scan for scan in self.scans}
        self.links: list[KeyLink] = []
        self._outputs: dict[int, Columns] = {}
        self._is_plain = query.is_plain and not self._settings.is_odd
        self.selects = [_Select(self, node) for node in query.tree.find_all(exp.Select)]
        self._plan()

    def _plan(self) -> None:
        if not self._is_plain:
            for scan in self.scans:
                scan.not_pushed["all conditions"] = "the query has syntax that only Spark can read"
            return
        for select in self.selects:
            select.push()
        self._prune()
        self._limit()

    # Relations

    def source(self, node: Expr) -> _Source:
        """Return a relation in FROM as the SELECT around it sees it."""
        alias, renamed = str(node.alias or ""), tuple(getattr(node, "alias_column_names", ()))
        match node:
            case exp.Table() if isinstance(node.this, exp.Identifier | exp.Dot) and not node.args.get("joins"):
                return self._table(node, alias, renamed)
            case exp.Lateral():
                inner = node.this
                columns = self.outputs(inner.this) if isinstance(inner, exp.Subquery) else None
                return _Source(alias, renamed or columns)
            case exp.Subquery() if isinstance(node.this, exp.Query):
                return _Source(alias, renamed or self.outputs(node))
        return _Source(alias, renamed or None)

    def _table(self, node: exp.Table, alias: str, renamed: tuple[str, ...]) -> _Source:
        scan = self._by_node.get(id(node))
        if scan is not None:
            names = tuple(scan.schema.names)
            can_push = not renamed and not scan.use.is_sampled
            parts = () if scan.use.has_alias else scan.use.parts
            return _Source(scan.use.alias, renamed or names, scan if can_push else None, parts)
        name = alias or node.name
        if (cte := _find_cte(node)) is not None:
            return _Source(name, renamed or tuple(cte.alias_column_names) or self.outputs(cte.this))
        parts = tuple(part.name for part in node.parts)
        return _Source(name, renamed or self._columns_of(parts), parts=parts)

    def lateral(self, node: exp.Lateral) -> _Source:
        """Return what a LATERAL VIEW adds."""
        return _Source(str(node.alias or ""), tuple(node.alias_column_names) or None)

    def outputs(self, node: Expr) -> Columns:
        """Return the names of the columns of a query; None unless all are certain."""
        if id(node) not in self._outputs:
            self._outputs[id(node)] = None  # for queries that name themselves
            self._outputs[id(node)] = self._find_outputs(node)
        return self._outputs[id(node)]

    def _find_outputs(self, node: Expr) -> Columns:
        if isinstance(node, exp.SetOperation):
            return None if node.args.get("by_name") else self.outputs(node.this)
        if isinstance(node, exp.Subquery):
            return None if node.args.get("joins") else self.outputs(node.this)
        if not isinstance(node, exp.Select) or any(join.args.get("using") for join in _joins(node)):
            return None
        names: list[str] = []
        for item in node.expressions:
            if isinstance(item, exp.Star) and not any(item.args.values()):
                columns = self._star(node)
                if columns is None:
                    return None
                names += columns
            elif isinstance(item, exp.Alias):
                names.append(item.alias)
            elif isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
                names.append(item.name)
            else:
                return None
        return tuple(names)

    def _star(self, node: exp.Select) -> Columns:
        first, joins = node.args.get("from_"), _joins(node)
        is_odd = any("SEMI" in join.kind or "ANTI" in join.kind or join.method for join in joins)
        if first is None or node.args.get("laterals") or is_odd:
            return None
        columns = [self.source(relation).columns for relation in (first.this, *(join.this for join in joins))]
        return None if None in columns else tuple(name for names in columns for name in names or ())

    # Conditions

    def push(
        self, scan: ScanPlan, conjunct: Expr, sources: Sequence[_Source], *, may: bool, otherwise: str
    ) -> str | None:
        """Give a scan what a condition says of it; return why not, or None."""

        def resolve(column: exp.Column) -> str | None:
            owner = self._owner(column, sources)
            if owner is None or owner.scan is not scan:
                return None
            return self._column(scan.schema.names, column.name)

        condition = Translator(scan.schema, resolve, self._constants).translate(conjunct)
        if condition is None:
            return "it is no condition on this table alone that means the same to Lance"
        if not may:
            scan.not_pushed[_text(conjunct)] = otherwise
            return None
        scan.conditions.append(condition)
        if not condition.is_exact:
            scan.not_pushed[_text(conjunct)] = "in part: Spark decides the rest"
        return None

    def link(self, conjunct: Expr, sources: Sequence[_Source], targets: Sequence[ScanPlan]) -> bool:
        """Remember that a condition joins two scans by equal keys; `targets` are scans whose rows it may drop."""
        if not isinstance(conjunct, exp.EQ):
            return False
        sides = []
        for node in (conjunct.left.unnest(), conjunct.right.unnest()):
            owner = self._owner(node, sources) if isinstance(node, exp.Column) else None
            name = self._column(owner.scan.schema.names, node.name) if owner is not None and owner.scan else None
            if owner is None or owner.scan is None or name is None:
                return False
            sides.append((owner.scan, name))
        (left, left_name), (right, right_name) = sides
        types = left.schema.field(left_name).type, right.schema.field(right_name).type
        if left is right or not are_comparable_keys(*types):
            return False
        if any(left is scan for scan in targets):
            self.links.append(KeyLink(left, left_name, right, right_name))
        if any(right is scan for scan in targets):
            self.links.append(KeyLink(right, right_name, left, left_name))
        return True

    def note(self, conjunct: Expr, sources: Sequence[_Source]) -> None:
        """Remember a condition on one scan alone that it has not got."""
        owners = [self._owner(column, sources) for column in conjunct.find_all(exp.Column)]
        scan = owners[0].scan if owners and owners[0] is not None else None
        if scan is not None and conjunct.find(exp.Query) is None and all(owner is owners[0] for owner in owners):
            scan.not_pushed[_text(conjunct)] = "it may mean something else to Lance"

    def _owner(self, column: exp.Column, sources: Sequence[_Source]) -> _Source | None:
        qualifier = tuple(part.name for part in column.parts[:-1])
        if qualifier:
            matches = [source for source in sources if self._is_named(source, qualifier)]
            return matches[0] if len(matches) == 1 else None
        if any(source.columns is None for source in sources):
            return None
        matches = [source for source in sources if self._count(source.columns or (), column.name)]
        return matches[0] if len(matches) == 1 else None

    def _is_named(self, source: _Source, qualifier: tuple[str, ...]) -> bool:
        if len(qualifier) == 1:
            return self._key(source.name) == self._key(qualifier[0])
        tail = source.parts[-len(qualifier) :]
        return [*map(self._key, tail)] == [*map(self._key, qualifier)]

    def _key(self, name: str) -> str:
        return name if self._settings.is_case_sensitive else name.lower()

    def _count(self, names: Sequence[str], name: str) -> int:
        return sum(self._key(other) == self._key(name) for other in names)

    def _column(self, names: Sequence[str], name: str) -> str | None:
        matches = [other for other in names if self._key(other) == self._key(name)]
        return matches[0] if len(matches) == 1 else None

    # Columns

    def _prune(self) -> None:
        occurrences = self._query.occurrences()
        aliases = {name.lower() for name in self._relation_names()}
        covered = self._find_covered()
        for scan in self.scans:
            if id(scan) in covered or scan.use.renames_columns or not self._is_direct(scan):
                continue
            own = {scan.use.alias.lower()}
            needed = [name for name in scan.schema.names if _occurs(name, occurrences, self._query.text, aliases - own)]
            scan.with_row_id = ROW_ID in occurrences and ROW_ID not in scan.schema.names
            scan.columns = tuple(needed) or (() if scan.with_row_id else _cheapest(scan.schema))

    def _relation_names(self) -> Iterator[str]:
        """Yield all names by which a column may be qualified, except for tables without alias in odd places."""
        for select in self.selects:
            yield from (source.name for source in (*select.sources, *select.views) if source.name)

    def _is_direct(self, scan: ScanPlan) -> bool:
        """Return whether a scan stands in FROM or JOIN by itself, so that only its own alias names it."""
        above = scan.use.node.parent
        is_first = isinstance(above, exp.From | exp.Join) and isinstance(above.parent, exp.Select)
        return is_first and not scan.use.node.args.get("joins")

    def _find_covered(self) -> set[int]:
        """Return the scans of which a star, or a join of all common columns, needs every column."""
        covered: set[int] = set()
        for select in self.selects:
            node = select.node
            scans = self._scans_below(node)
            if any(join.method.upper() == "NATURAL" for join in _joins(node)):
                covered |= {id(scan) for scan in scans}
            for star in node.find_all(exp.Star):
                if star.find_ancestor(exp.Select) is node and not _counts_rows(star) and not _is_tested(star, node):
                    qualifier = star.parent.table.lower() if isinstance(star.parent, exp.Column) else ""
                    named = [scan for scan in scans if scan.use.alias.lower() == qualifier]
                    others = qualifier in {source.name.lower() for source in select.sources if source.name}
                    covered |= {id(scan) for scan in (named if qualifier and (named or others) else scans)}
        return covered

    def _scans_below(self, node: exp.Select) -> list[ScanPlan]:
        """Return the scans in the FROM of a SELECT, but not those of its subqueries."""
        return [scan for scan in self.scans if scan.use.node.find_ancestor(exp.Select) is node]

    # Whole queries

    def _limit(self) -> None:
        node = self._query.tree
        if not isinstance(node, exp.Select) or len(self.scans) != 1 or not self._is_direct(self.scans[0]):
            return
        limit = node.args.get("limit")
        count = self._constants.value(limit.expression) if isinstance(limit, exp.Limit) else None
        is_plain = _says_only(node, "expressions", "from_", "limit") and not self.scans[0].use.is_sampled
        if is_plain and isinstance(count, int) and 0 < count < 1 << 31 and all(map(_is_plain_item, node.expressions)):
            self.scans[0].limit = count

    def whole_aggregate(self) -> WholeAggregate | None:
        """Return the aggregates that a query consists of, if they are all that it does, over one table."""
        node = self._query.tree
        if not isinstance(node, exp.Select) or len(self.scans) != 1 or not self._is_plain:
            return None
        [scan], [select] = self.scans, self.selects if len(self.selects) == 1 else [None]
        if select is None or not _says_only(node, "expressions", "from_", "where", "group") or len(select.sources) != 1:
            return None
        if not self._is_direct(scan) or scan.use.is_sampled or scan.use.renames_columns or select.views:
            return None
        conjuncts = list_conjuncts(node.args["where"].this) if node.args.get("where") else []
        if len(scan.conditions) != len(conjuncts) or not all(condition.is_exact for condition in scan.conditions):
            return None
        group = node.args.get("group")
        if group is not None and not _says_only(group, "expressions"):
            return None
        keys = [self._own_column(scan, select, key) for key in (group.expressions if group is not None else [])]
        items = [self._item(scan, select, item) for item in node.expressions]
        if None in keys or None in items or len(set(keys)) != len(keys):
            return None
        known = [item for item in items if item is not None]
        if not any(function != "key" for function, _ in known) or any(f == "key" and c not in keys for f, c in known):
            return None
        return WholeAggregate(scan, tuple(key for key in keys if key is not None), tuple(known))

    def _own_column(self, scan: ScanPlan, select: _Select, node: Any) -> str | None:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None
        owner = self._owner(node, select.sources)
        return self._column(scan.schema.names, node.name) if owner is not None and owner.scan is scan else None

    def _item(self, scan: ScanPlan, select: _Select, node: Expr) -> tuple[str, str] | None:
        inner = node.this if isinstance(node, exp.Alias) else node
        if isinstance(inner, exp.Column):
            column = self._own_column(scan, select, inner)
            return None if column is None else ("key", column)
        function = AGGREGATES.get(type(inner))
        if function is None or not _says_only(inner, "this", "big_int"):
            return None
        if function == "count" and (isinstance(inner.this, exp.Star) or self._constants.value(inner.this) == 1):
            return "count", "*"
        column = self._own_column(scan, select, inner.this)
        return None if column is None else (function, column)


def replacements(query: QueryText, use: TableMention, placeholder: str) -> Iterator[Replacement]:
    """Yield what Spark's text has instead of the name of a table: a DataFrame, under the name that the query uses."""
    if use.has_alias:
        yield Replacement(use.start, use.end, f"{{{placeholder}}}")
        return
    sample = query.end_of_sample(use.end)
    if sample is None:
        yield Replacement(use.start, use.end, f"{{{placeholder}}}{alias_clause(use.parts[-1])}")
    else:
        yield Replacement(use.start, use.end, f"{{{placeholder}}}")
        yield Replacement(sample, sample, alias_clause(use.parts[-1]))


def qualifier_replacements(query: QueryText, uses: Sequence[TableMention]) -> Iterator[Replacement]:
    """Yield the qualifiers of columns that name a table by several levels, shortened to the name that Spark knows.

    Raises:
        InvalidInputError: another table of the query has that name too, so that Spark could not tell them apart.
    """
    own = [use.parts[-1].lower() for use in {use.parts: use for use in uses if not use.has_alias}.values()]
    known = {
        tuple(part.lower() for part in use.parts[first:])
        for use in uses
        if not use.has_alias
        for first in range(len(use.parts) - 1)
    }
    for column in query.tree.find_all(exp.Column):
        names = [part for part in column.parts if isinstance(part, exp.Identifier)]
        outer = column.parent
        while isinstance(outer, exp.Dot) and isinstance(outer.expression, exp.Identifier):
            names.append(outer.expression)
            outer = outer.parent
        for count in range(len(names), 1, -1):
            if tuple(name.this.lower() for name in names[:count]) in known:
                if own.count(names[count - 1].this.lower()) > 1:
                    raise InvalidInputError(
                        f"two tables of the query are called {names[count - 1].this}: give them aliases, and name "
                        "columns by these"
                    )
                yield Replacement(names[0].meta["start"], names[count - 1].meta["start"], "")
                break


def _occurs(name: str, occurrences: Mapping[str, set[str | None]], text: str, others: set[str]) -> bool:
    """Return whether a name may stand for a column of a relation in the query.

    Args:
        name: the column.
        occurrences: all words of the query, with their qualifiers.
        text: the query.
        others: names of other relations only.
    """
    if not name.isascii():
        return True  # how Spark compares such names is not for us to guess
    if not name.isidentifier():
        return name.lower() in text.lower()
    qualifiers = occurrences.get(name.lower(), set())
    return any(qualifier is None or qualifier not in others for qualifier in qualifiers)


def _cheapest(schema: pa.Schema) -> tuple[str, ...]:
    """Return the column that is read fastest, for queries that only count rows; none if all are long."""
    narrow = [column for column in schema if pa.types.is_primitive(column.type)]
    return (min(narrow, key=lambda column: column.type.bit_width).name,) if narrow else ()


def _joins(node: exp.Select) -> list[exp.Join]:
    return node.args.get("joins") or []


def list_conjuncts(node: Expr) -> list[Expr]:
    """Return the conditions that are all true exactly if a condition is."""
    node = node.unnest()
    if not isinstance(node, exp.And):
        return [node]
    return [conjunct for term in node.flatten() for conjunct in list_conjuncts(term)]


def _counts_rows(star: exp.Star) -> bool:
    return isinstance(star.parent, exp.Count) and not star.parent.args.get("distinct")


def _is_tested(star: exp.Star, node: exp.Select) -> bool:
    """Return whether a star stands in an EXISTS, which only asks whether there is a row."""
    return star.parent is node and isinstance(node.parent, exp.Exists)


def _says_only(node: Expr, *names: str) -> bool:
    return all(name in names for name, value in node.args.items() if value)


def _is_plain_item(node: Expr) -> bool:
    inner = node.this if isinstance(node, exp.Alias) else node
    return isinstance(inner, exp.Star | exp.Column)


def _text(node: Expr) -> str:
    return node.sql(dialect="spark")
