"""A topic into a table, the table into sums, and large orders into a second topic, each exactly once."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

NAMESRV = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
LARGE = 900

dp.create_sink(
    "large_orders_topic",
    "penstock",
    {"nameServer": NAMESRV, "topic": "large-orders", "deliveryGuarantee": "exactly-once"},
)


@dp.table
def orders() -> DataFrame:
    """Every message of the topic."""
    source = {"nameServer": NAMESRV, "subscribe": "orders", "startingOffsets": "earliest"}
    messages = SparkSession.active().readStream.format("penstock").options(**source).load()
    order = f.from_json(f.col("body").cast("string"), "customer string, amount double")
    return messages.select("messageId", "bornTimestamp", order.alias("order")).select(
        "messageId", "bornTimestamp", "order.*"
    )


@dp.materialized_view
def orders_per_customer() -> DataFrame:
    """Number and sum, made anew in each run."""
    table = SparkSession.active().read.table("orders")
    return table.groupBy("customer").agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))


@dp.append_flow(target="large_orders_topic")
def large_orders() -> DataFrame:
    """What has come into the table since the run before."""
    table = SparkSession.active().readStream.table("orders")
    return table.where(f.col("amount") >= LARGE).select(f.to_json(f.struct("customer", "amount")).alias("body"))
