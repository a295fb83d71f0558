"""The demo's stream: flights of one topic, delay per carrier and hour, exactly once into another topic.

``python -m penstock.demo.spark_job NAMESERVERS SOURCE TARGET CHECKPOINT BATCH`` reads what is there in
batches of BATCH flights and ends; started again after a death it goes on where its checkpoint is.
"""

from __future__ import annotations

import sys
from typing import Any

END = b'{"n":-1,"date":"2015-01-01","hour":0,"carrier":"--","arr_delay":null}'
"""Flies long after everybody else."""
FLIGHT = "n long, date string, hour int, carrier string, arr_delay int"


def count_flights(frame: Any) -> tuple[int, int]:
    """Flights and minutes of delay in the messages of ``frame``; the count is negative when a flight is there twice."""
    from pyspark.sql import functions as f

    flights = frame.select(f.from_json(f.col("body").cast("string"), "n long, arr_delay int").alias("flight"))
    flights = flights.where("flight.n >= 0")
    delay = f.coalesce(f.sum("flight.arr_delay"), f.lit(0))
    row = flights.agg(f.count("*"), f.count_distinct("flight.n"), delay).first()
    return (int(row[0]) if row[0] == row[1] else -int(row[0])), int(row[2])


def count_sums(frame: Any) -> tuple[int, int, int]:
    """Flights, minutes of delay and carrier-hours in the sums that the stream wrote; one written twice counts twice."""
    from pyspark.sql import functions as f

    sums = frame.select(f.from_json(f.col("body").cast("string"), "flights long, delay long").alias("sum"))
    row = sums.agg(f.sum("sum.flights"), f.coalesce(f.sum("sum.delay"), f.lit(0)), f.count("*")).first()
    return int(row[0] or 0), int(row[1]), int(row[2])


def main() -> int:
    """Run the stream until what is there now is read."""
    name_server, source, target, checkpoint, batch = sys.argv[1:]
    from pyspark.sql import functions as f

    from penstock.pipeline import session

    spark = session("penstock-demo", master="local[2,4]", conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    flights = (
        spark.readStream.format("penstock")
        .schema("body binary")
        .option("nameServer", name_server)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .select(f.from_json(f.col("body").cast("string"), FLIGHT).alias("flight"))
        .select("flight.*")
        .withColumn("left", f.expr("to_timestamp(date) + make_dt_interval(0, hour)"))
    )
    # Queues run apart by some days at most; a flight later than the watermark would be missing in the totals. An hour
    # is written when the watermark has passed it, so END comes behind the last flight.
    delays = (
        flights.withWatermark("left", "60 days")
        .groupBy("carrier", f.window("left", "1 hour").alias("hour"))
        .agg(f.count("*").alias("flights"), f.count("arr_delay").alias("arrived"), f.sum("arr_delay").alias("delay"))
        .select(
            f.to_json(f.struct("carrier", f.col("hour.start").alias("hour"), "flights", "arrived", "delay")).alias(
                "body"
            ),
            f.concat_ws("|", "carrier", "hour.start").alias("shardingKey"),
            f.col("carrier").alias("tags"),
        )
    )
    query = (
        delays.writeStream.format("penstock")
        .outputMode("append")
        .option("nameServer", name_server)
        .option("topic", target)
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For a laptop: one process, small."""

if __name__ == "__main__":
    sys.exit(main())
