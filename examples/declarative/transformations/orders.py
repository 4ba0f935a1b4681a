"""Read orders from a Lance table, as a stream, and write the large ones to another table, each of them once."""
# mypy: disable-error-code=untyped-decorator

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
CATALOG = {"impl": "dir", "root": spark.conf.get("spark.example.root")}

dp.create_sink("large_orders", "lance", {**CATALOG, "table": "large_orders"})


@dp.temporary_view
def orders() -> DataFrame:
    """Return the orders that were added since the last run."""
    return spark.readStream.format("lance").options(**CATALOG, table="orders").load()


@dp.append_flow(target="large_orders")
def large_orders() -> DataFrame:
    """Return the orders that somebody should check."""
    countries = spark.read.format("lance").options(**CATALOG, table="countries", columns="country,name").load()
    return spark.readStream.table("orders").where("amount >= 100").join(countries, "country")
