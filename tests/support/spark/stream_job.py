"""A stream of a topic into Parquet files: ``python -m tests.support.spark.stream_job NAMESERVERS TOPIC DIRECTORY``.

Small batches, so that a death falls into any moment of one; ends when it has read what was there at its start.
"""

from __future__ import annotations

import sys

from penstock.pipeline import session
from tests.support.spark.spark import SETTINGS


def main() -> None:
    name_server, topic, directory = sys.argv[1:]
    spark = session("stream-job", master="local[2]", conf=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.readStream.format("penstock").option("nameServer", name_server).option("subscribe", topic)
    frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200").load()
    writer = frame.selectExpr("brokerName", "queueId", "queueOffset", "body").writeStream.format("parquet")
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    query.start(f"{directory}/rows").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
