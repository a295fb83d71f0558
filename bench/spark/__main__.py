"""``python -m penstock.bench.spark``: run the cases, each kept as soon as it is measured."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.pipeline.spark.sessions import session

from . import audits, stores, topics
from .measuring import Case, Peer, keep, measure

CONF = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
ALL = (*stores.NAMES, *topics.NAMES, *audits.NAMES)


@click.command()
@click.option("--gib", default=0.5, show_default=True, help="Size of each generated store and topic.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--warm-ups", default=3, show_default=True, help="Turns before them: Java compiles what is run often.")
@click.option("--master", default="local[2]", show_default=True)
@click.option("--body", "bodies", multiple=True, type=int, default=(1024, 100), show_default=True)
@click.option("--case", "wanted", multiple=True, type=click.Choice([*ALL, stores.LARGE]), help="Only these.")
@click.option("--out", type=click.Path(file_okay=False), default="bench", show_default=True)
@click.option("--scratch", type=click.Path(exists=True, file_okay=False), help="Where the data lie meanwhile.")
def main(
    gib: float,
    repeats: int,
    warm_ups: int,
    master: str,
    bodies: tuple[int, ...],
    wanted: tuple[str, ...],
    out: str,
    scratch: str | None,
) -> None:
    """Time each case after warm-ups; the large store is scanned once, and only when it is asked for."""
    began = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - began:6.0f} s  {text}", err=True)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-spark-", dir=scratch) as folder:
        spark = session("penstock bench", master=master, conf=CONF)
        spark.sparkContext.setLogLevel("OFF")
        try:
            for case, peer in _cases(spark, Path(folder), gib, bodies, wanted or ALL, say):
                once = case.name == stores.LARGE
                turns = {"repeats": 1, "warm_ups": 0} if once else {"repeats": repeats, "warm_ups": warm_ups}
                result = measure(case, **turns, say=say, peer=peer)
                keep(result, Path(out), master)
                target = f", target {case.target:,.0f}" if case.target else ""
                if peer is not None:
                    target += f", Parquet beside it {result['peer']:,.0f} rows/s"
                click.echo(f"{case.name}, {case.body_bytes} B: {result['figure']:,.0f} {case.unit}{target}")
        finally:
            spark.stop()


def _cases(
    spark: Any, folder: Path, gib: float, bodies: tuple[int, ...], wanted: tuple[str, ...], say: Any
) -> Iterator[tuple[Case, Peer | None]]:
    for body in bodies:
        with contextlib.ExitStack() as stack:
            peer = None
            for module in (stores, topics):
                chosen = tuple(name for name in wanted if name in (*module.NAMES, getattr(module, "LARGE", "")))
                if chosen:
                    say(f"making the data: {gib:g} GiB of messages of {body} B")
                    if peer is None and chosen != (stores.LARGE,):
                        peer = stack.enter_context(stores.parquet(spark, folder, body, gib))
                    for case in module.cases(spark, folder, body, gib, chosen):
                        yield case, None if case.name == stores.LARGE else peer
    if audits.NAMES[0] in wanted:
        for case in audits.cases(spark, folder, int(gib * (1 << 21))):
            yield case, None


if __name__ == "__main__":
    main()
