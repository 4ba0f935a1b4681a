"""What is measured on Spark: the same work for each side, in its own words, and how to see that it was done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cache
from itertools import count
from math import isclose
from pathlib import Path
from typing import Any

import lance
from pyspark.sql.types import StructType

from bench.spark_data import DIMENSION, KEY, MERGED, RANGE, Contents, Data, contents
from lancehouse.schema.spark import to_spark
from lancehouse.spark.sql import CATALOG

OURS, PARQUET, LANCE_SPARK, PYLANCE, BARE = (
    *("ours", "Spark, Parquet", "lance-spark", "plain pylance", "bare mapInArrow"),
)
PEERS = (PARQUET, LANCE_SPARK, PYLANCE, BARE)

AGGREGATE, INGEST, READ = "aggregate", "ingest", "read"
MARKS: Mapping[str, Mapping[str, float]] = {
    INGEST: {PARQUET: 2.5, LANCE_SPARK: 1.4},
    AGGREGATE: {PYLANCE: 1 / 1.5},
    "count": {PYLANCE: 1 / 1.5},
    READ: {BARE: 0.95},
}
"""How many times as fast as others we have to be, by what our way is called; below 1 we may be slower."""
JOB_S = 0.3
"""What a job of Spark may cost before a task sees a row. It is not counted beside pylance, which starts none."""

Question = dict[str, Any]
_numbers = count()


@dataclass(frozen=True, slots=True)
class SideJob:
    """What one side does in one round; only `question` is timed."""

    question: Question
    found: Callable[[Any], Any]
    """What came of it, which has to be the same for all sides."""
    before: Sequence[Question] = ()


Prepare = Callable[[Path], SideJob]
"""Make ready, in an empty folder that is removed afterwards."""


@dataclass(frozen=True, slots=True)
class SparkCase:
    """One piece of work."""

    name: str
    ours: str
    """What our way to do it is called."""
    sides: Mapping[str, Prepare]
    times: Mapping[str, int] = field(default_factory=dict)
    """How often in one round, where once takes no time."""
    is_warmed: bool = True
    """Whether it is worth while to get warm with fewer rows."""

    @property
    def marks(self) -> Mapping[str, float]:
        """What is expected of us, by side."""
        return {side: mark for side, mark in MARKS.get(self.ours, {}).items() if side in self.sides}


def cases(data: Data) -> list[SparkCase]:
    """All of them, on these rows."""
    return [*_scans(data), *_counts(data), *_vectors(data), *_writes(data), *_changes(data)]


def same(one: Any, other: Any) -> bool:
    """Whether two sides have found the same; sums of floating point numbers depend on their order."""
    match one, other:
        case Contents(), Contents():
            return same(list(astuple(one)), list(astuple(other)))
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
        case float(), _:
            return isclose(one, float(other), rel_tol=1e-6)
    return bool(one == other)


# Reading


def _scans(data: Data) -> list[SparkCase]:
    few = f"id < {RANGE // 100}"
    schema = "id long, value double, text string, time timestamp"
    everything = {"sum": ["id", "value"], "max": ["time"], "count": ["text"]}
    return [
        *_scan(data, "scan 4 columns and aggregate", schema, everything),
        *_scan(data, "1 of 4 columns", "value double", {"sum": ["value"], "max": [], "count": []}),
        *_scan(data, "filter to 1 %, random", schema, everything, few),
    ]


def _scan(
    data: Data, name: str, schema: str, measures: Mapping[str, list[str]], filter: str | None = None
) -> list[SparkCase]:
    then = [f"sum({column})" for column in measures["sum"]]
    then += [f"unix_micros(max({column}))" for column in measures["max"]]
    then += [f"count({column})" for column in measures["count"]]
    columns = [column.split()[0] for column in schema.split(", ")]
    sql = f"SELECT {', '.join(then)} FROM {{}}{f' WHERE {filter}' if filter else ''}"
    peers = {PARQUET: _sql(sql, _parquet(data, "four")), LANCE_SPARK: _in_lance_spark(data, sql, "four")}
    path, root = str(data.table("four")), str(data.lance)
    return [
        SparkCase(
            name,
            AGGREGATE,
            {
                OURS: _call("aggregate", root=root, table="four", filter=filter, **measures),
                **peers,
                PYLANCE: _call("aggregate", root=root, table="four", filter=filter, **measures),
            },
        ),
        SparkCase(
            name,
            READ,
            {
                OURS: _call("read", root=root, table="four", columns=columns, then=then, filter=filter),
                BARE: _call("map_in_arrow", path=path, schema=schema, columns=columns, then=then, filter=filter),
            },
        ),
    ]


def _counts(data: Data) -> list[SparkCase]:
    made = []
    for name, where in (("count(*)", None), ("count of 1 %", f"id < {RANGE // 100}")):
        sql = f"SELECT count(*) FROM {{}}{f' WHERE {where}' if where else ''}"
        sides = {
            OURS: _call("count", root=str(data.lance), table="four", filter=where),
            PARQUET: _sql(sql, _parquet(data, "four")),
            LANCE_SPARK: _in_lance_spark(data, sql, "four"),
            PYLANCE: _call("count", root=str(data.lance), table="four", filter=where),
        }
        made.append(SparkCase(name, "count", sides, {} if where else {OURS: 20, PYLANCE: 20}))
    return made


def _vectors(data: Data) -> list[SparkCase]:
    then, sql = ["sum(vector[0])"], "SELECT sum(vector[0]) FROM {}"
    sides = {
        OURS: _call("read", root=str(data.lance), table="vectors", columns=["vector"], then=then),
        PARQUET: _sql(sql, _parquet(data, "vectors")),
        LANCE_SPARK: _in_lance_spark(data, sql, "vectors"),
        PYLANCE: _call("first_of_vectors", root=str(data.lance), table="vectors", column="vector"),
        BARE: _call(
            "map_in_arrow",
            path=str(data.table("vectors")),
            schema="vector array<float>",
            columns=["vector"],
            then=then,
        ),
    }
    return [SparkCase(f"vectors, scan ({DIMENSION} × float32)", READ, sides)]


# Writing


def _writes(data: Data) -> list[SparkCase]:
    return [
        *_write(data, "write 4 columns", "four", "id"),
        *_write(data, "write vectors", "vectors", "id", {"vector": DIMENSION}),
        *_write(data, "TPC-H lineitem", "lineitem", "l_orderkey")[:1],
    ]


def _write(
    data: Data, name: str, source: str, column: str, vectors: Mapping[str, int] | None = None
) -> list[SparkCase]:
    files = str(data.files(source))

    def ours(how: str, **more: Any) -> Prepare:
        return lambda folder: SideJob(
            _question(how, root=str(folder), table="t", source=files, **more),
            lambda _: contents(folder / "t.lance", column),
        )

    def pylance(folder: Path) -> SideJob:
        made = folder / "t.lance"
        return SideJob(_question("write", path=str(made), source=files), lambda _: contents(made, column))

    def in_lance_spark(folder: Path) -> SideJob:
        catalog, settings = name_catalog(folder)
        sizes = ", ".join(f"'{each}.arrow.fixed-size-list.size' = '{size}'" for each, size in (vectors or {}).items())
        properties = f" TBLPROPERTIES ({sizes})" if sizes else ""
        return SideJob(
            {"sql": f"INSERT INTO {catalog}.t SELECT * FROM parquet.`{files}`"},
            lambda _: contents(folder / "t.lance", column),
            [*settings, {"sql": f"CREATE TABLE {catalog}.t ({_columns(data, source)}) USING lance{properties}"}],
        )

    return [
        SparkCase(
            name,
            INGEST,
            {
                OURS: ours("ingest"),
                PARQUET: _rewritten(f"SELECT * FROM parquet.`{files}`", column),
                LANCE_SPARK: in_lance_spark,
                PYLANCE: pylance,
            },
        ),
        SparkCase(name, "create", {OURS: ours("create", vectors=vectors or {})}),
    ]


def _columns(data: Data, table: str) -> str:
    """The columns of a table in Spark's words."""
    struct = StructType.fromJson(to_spark(lance.dataset(str(data.table(table))).schema))
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in struct)


def _rewritten(sql: str, column: str, filter: str | None = None) -> Prepare:
    """Parquet, of which nothing can be changed in its place."""
    return lambda folder: SideJob(
        {"sql": f"INSERT OVERWRITE DIRECTORY '{folder}/out' USING parquet {sql}"},
        lambda _: contents(folder / "out", column, filter),
    )


# Changing


def _changes(data: Data) -> list[SparkCase]:
    return [_merge(data), _add_column(data), _compaction(data), _index(data)]


def _merge(data: Data) -> SparkCase:
    rows, files, new = str(data.files("merged")), data.files("lineitem"), f"l_comment = '{MERGED}'"
    on = " AND ".join(f"t.{key} = s.{key}" for key in KEY)
    return SparkCase(
        "merge of 1 % of lineitem",
        "merge",
        _change_copy(
            data,
            "lineitem",
            lambda place: contents(place, "l_orderkey", new),
            _rewritten(
                f"SELECT t.* FROM parquet.`{files}` t LEFT ANTI JOIN parquet.`{rows}` s ON {on} "
                f"UNION ALL SELECT * FROM parquet.`{rows}`",
                "l_orderkey",
                new,
            ),
            f"MERGE INTO {{0}} t USING (SELECT * FROM parquet.`{rows}`) s ON {on} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            "merge",
            source=rows,
            on=KEY,
        ),
    )


def _add_column(data: Data) -> SparkCase:
    value = "cast(l_extendedprice AS double) * (1 - cast(l_discount AS double))"
    return SparkCase(
        "add a column to lineitem",
        "add_columns",
        _change_copy(
            data,
            "lineitem",
            lambda place: contents(place, "price"),
            _rewritten(f"SELECT *, {value} AS price FROM parquet.`{data.files('lineitem')}`", "price"),
            "ALTER TABLE {0} ADD COLUMNS price FROM {1}_price",
            "add_columns",
            f"CREATE TEMPORARY VIEW {{1}}_price AS SELECT _rowaddr, _fragid, {value} AS price FROM {{0}}",
            columns={"price": value},
        ),
    )


def _compaction(data: Data) -> SparkCase:
    return SparkCase(
        "compaction of 64 pieces",
        "compact",
        _change_copy(
            data,
            "pieces",
            lambda place: contents(place, "id"),
            _rewritten(f"SELECT /*+ COALESCE(4) */ * FROM parquet.`{data.files('pieces')}`", "id"),
            "OPTIMIZE {0}",
            "compact",
        ),
    )


def _index(data: Data) -> SparkCase:
    partitions = max(1, min(256, data.amount.vectors // 4096))
    params = {"num_partitions": partitions, "num_sub_vectors": DIMENSION // 8}

    def list_indices(place: Path) -> list[Any]:
        table = lance.dataset(str(place))
        return [(each.name, each.num_rows_indexed) for each in table.describe_indices()]

    made = _change_copy(
        data, "vectors", list_indices, None, None, "create_index", column="vector", kind="IVF_PQ", params=params
    )
    return SparkCase("vector index, IVF_PQ", "create_index", made, is_warmed=False)


def _change_copy(
    data: Data,
    table: str,
    found: Callable[[Path], Any],
    parquet: Prepare | None,
    sql: str | None,
    call: str,
    *before: str,
    **of: Any,
) -> dict[str, Prepare]:
    """A table that is changed in its place, in a copy that shares its files.

    Args:
        data: has the table.
        table: its name.
        found: what came of it.
        parquet: the same with Parquet files.
        sql: of lance-spark; `{0}` is the table, `{1}` the catalog.
        call: of ours and of pylance.
        before: further SQL of lance-spark that is not timed.
        of: arguments of the call.
    """

    def ours(folder: Path) -> SideJob:
        made = link_copy(data.table(table), folder)
        return SideJob(_question(call, root=str(folder), table="t", **of), lambda _: found(made))

    def pylance(folder: Path) -> SideJob:
        made = link_copy(data.table(table), folder)
        return SideJob(_question(call, path=str(made), **of), lambda _: found(made))

    def in_lance_spark(folder: Path) -> SideJob:
        assert sql
        made = link_copy(data.table(table), folder)
        catalog, settings = name_catalog(folder)
        texts = [text.format(f"{catalog}.t", catalog) for text in (*before, sql)]
        return SideJob({"sql": texts[-1]}, lambda _: found(made), [*settings, *({"sql": text} for text in texts[:-1])])

    sides = {OURS: ours, PARQUET: parquet, LANCE_SPARK: in_lance_spark if sql else None, PYLANCE: pylance}
    return {side: prepare for side, prepare in sides.items() if prepare}


def link_copy(table: Path, folder: Path) -> Path:
    """A copy of a table, `t` in a folder; its files, which never change, are linked."""
    made = folder / "t.lance"
    shutil.copytree(table, made, copy_function=os.link)
    return made


# Questions


def _question(name: str, **of: Any) -> Question:
    return {"call": name, "of": of}


def _call(name: str, **of: Any) -> Prepare:
    return lambda _: SideJob(_question(name, **of), lambda found: found)


def _sql(text: str, table: str) -> Prepare:
    return lambda _: SideJob({"sql": text.format(table)}, _first)


def _parquet(data: Data, name: str) -> str:
    return f"parquet.`{data.files(name)}`"


def _in_lance_spark(data: Data, text: str, table: str) -> Prepare:
    def prepare(_: Path) -> SideJob:
        catalog, settings = name_catalog(data.lance)
        return SideJob({"sql": text.format(f"{catalog}.{table}")}, _first, settings)

    return prepare


def _first(rows: Any) -> Any:
    return rows[0]


@cache
def name_catalog(root: Path) -> tuple[str, list[Question]]:
    """A name for the catalog of lance-spark that has the tables of a folder, and what makes it known."""
    name = f"lance{next(_numbers)}"
    settings = {"": CATALOG, ".impl": "dir", ".root": str(root)}
    return name, [{"sql": f"SET spark.sql.catalog.{name}{key}={value}"} for key, value in settings.items()]
