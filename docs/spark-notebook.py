# %% [markdown]
# # Topics and stores for analysts
#
# A notebook in percent format: Jupyter (with jupytext), VS Code and PyCharm open it as cells, and it runs as a whole:
#
#     .venv/bin/penstock cluster up --dir /tmp/c --shards 1 --replicas 1 --base-port 9876
#     .venv/bin/python docs/spark-notebook.py 127.0.0.1:9876 /tmp/c/broker-a-0/store
#
# No master is named below: `SPARK_REMOTE=sc://host` runs it on a Connect server, `spark-submit` or
# `spark-defaults.conf` anywhere else, and without either Spark takes this machine.

# %%
import os
import sys
import tempfile

from pyspark.sql import functions as f

from penstock.client import Admin
from penstock.pipeline import session

NAMESRV = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
STORE = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("PENSTOCK_STORE", "")
spark = session("notebook", conf={"spark.sql.shuffle.partitions": "4"})  # 200, the default, is for large data

# %% [markdown]
# ## Rows into a topic
# Every column of the sink is optional but `body`. `shardingKey` keeps the orders of one customer in one queue.

# %%
with Admin(NAMESRV) as admin:
    if "notebook-orders" not in admin.list_topics():
        admin.create_topic("notebook-orders", queues=4)
orders = spark.range(10_000).select(
    f.to_json(f.struct("id", (f.col("id") % 97).alias("customer"), (f.rand(7) * 100).alias("amount"))).alias("body"),
    f.concat(f.lit("customer-"), f.col("id") % 97).alias("shardingKey"),
    f.when(f.col("id") % 3 == 0, "paid").otherwise("open").alias("tags"),
)
sink = {"nameServer": NAMESRV, "topic": "notebook-orders", "deliveryGuarantee": "exactly-once"}
orders.write.format("penstock").options(**sink).mode("append").save()

# %% [markdown]
# ## A topic as a table
# Name only the columns you need: the others are not decoded.

# %%
source = {"nameServer": NAMESRV, "subscribe": "notebook-orders"}
messages = spark.read.schema("body binary, tags string, queueId int").format("penstock").options(**source).load()
messages.createOrReplaceTempView("orders")
spark.sql(
    """
    select tags, count(*) as orders, round(avg(get_json_object(cast(body as string), '$.amount')), 2) as mean
    from orders group by tags order by tags
    """
).show()

# %% [markdown]
# The broker can filter for you: `subExpression` takes tags.

# %%
paid = spark.read.format("penstock").options(**source, subExpression="paid").load()
print("paid orders:", paid.count())

# %% [markdown]
# ## A stream, as far as there is data now
# The checkpoint says what was read, so running the cell again reads only what is new.

# %%
totals = (
    spark.readStream.format("penstock")
    .options(**source, startingOffsets="earliest", maxOffsetsPerTrigger="2500")
    .load()
    .select(f.from_json(f.col("body").cast("string"), "customer long, amount double").alias("order"))
    .groupBy("order.customer")
    .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
)
query = (
    totals.writeStream.format("memory")
    .queryName("totals")
    .outputMode("complete")
    .option("checkpointLocation", tempfile.mkdtemp())
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.table("totals").orderBy(f.desc("amount")).show(5)
print(query.lastProgress.sources[0].endOffset[:120])

# %% [markdown]
# ## A data directory, without asking the broker
# `upTo=end` reads a store in use to the last whole record; the default stops at the last checkpoint's confirm offset.

# %%
if STORE:
    stored = spark.read.format("penstock_store").options(topics="notebook-orders", upTo="end").load(STORE)
    stored.groupBy("queueId").agg(f.count("*").alias("messages"), f.max("queueOffset").alias("last")).show()

# %%
spark.stop()
