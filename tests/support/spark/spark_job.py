"""One of everything with Spark, wherever its tasks run: ``python -m tests.support.spark.spark_job WHERE …``.

``WHERE`` is a master, or ``connect:`` and the master that a Connect server is started on. Then: nameservers, a topic to
read, one to write to, a store's directory, a directory for checkpoints. Prints a JSON line of what it found.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from penstock.pipeline import session
from penstock.pipeline.jobs import mirror, query, replay, stats
from penstock.pipeline.jobs.archive import job as archive

CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "768m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def main(where: str, nameservers: str, source: str, target: str, store: str, checkpoint: str) -> dict[str, Any]:
    """Read a store and a topic, write a topic as batch and as stream, run jobs."""
    connect = where.removeprefix("connect:") if where.startswith("connect:") else None
    spark = session("somewhere", remote=connect, master=None if connect else where, conf=CONF)
    topic = {"nameServer": nameservers, "subscribe": source}
    sink = {"nameServer": nameservers, "topic": target}
    found: dict[str, Any] = {"session": type(spark).__module__}
    records = spark.read.format("penstock_store").load(store)
    found["records"] = records.count()
    found["topics"] = sorted(row["topic"] for row in records.select("topic").distinct().collect())
    found["messages"] = sorted(row["body"].decode() for row in _read(spark, topic).select("body").collect())
    written = spark.range(40).selectExpr("concat('batch ', id) as body").repartition(4)
    written.write.format("penstock").options(**sink, deliveryGuarantee="exactly-once").mode("append").save()
    stream = spark.readStream.format("penstock").options(**topic, startingOffsets="earliest").load()
    running = (
        stream.selectExpr("concat('stream ', cast(body as string)) as body")
        .writeStream.format("penstock")
        .options(**sink, deliveryGuarantee="exactly-once", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    arrived = _read(spark, {**topic, "subscribe": target}).select("body").collect()
    found["arrived"] = sorted(row["body"].decode() for row in arrived)
    found["stats"] = stats.run(spark, stats.Config(store=(store,))).ok
    lake = f"{checkpoint}-lake"
    found["archived"] = archive.run(spark, archive.Config(store=(store,), lake=lake, tail=True)).figures["rows"]
    found["checked"] = archive.run(spark, archive.Config(store=(store,), lake=lake, check=True)).ok
    found["in_lake"] = query.run(spark, query.Config(lake=lake)).figures["messages"]
    again = replay.run(spark, replay.Config(lake=lake, namesrv=nameservers, to_topic=target, topic="Keys"))
    found["replayed"] = again.figures["written"]
    copied = mirror.Config(
        namesrv=nameservers,
        topic=source,
        to_namesrv=nameservers,
        to_topic=target,
        checkpoint=f"{checkpoint}-mirror",
        batch=30,
    )
    found["mirrored"] = mirror.run(spark, copied).figures["messages"]
    spark.stop()
    return found


def _read(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("penstock").options(**options).load()


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps(main(*sys.argv[1:])), flush=True)
