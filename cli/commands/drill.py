"""``penstock drill``: failover drills of :mod:`penstock.drill` on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import json_option
from ..output import Answer, ProgressLine, note, print_fields, print_table
from ..signals import deferred_interrupts

if TYPE_CHECKING:
    from penstock.drill.lab.schedule import Shape
    from penstock.drill.result import Document

VERDICTS = {True: "holds", False: "VIOLATED", None: "not judged"}


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…|all|list|judge")
@click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False), help="Each drill makes a folder.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, (1 << 31) - 1), help="Of the first round.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1, 1000), help="Each with the next seed.")
@click.option("--report", metavar="FILE.html", type=click.Path(dir_okay=False), help="A page with timelines.")
@click.option("--steady", default=10.0, show_default=True, metavar="S", help="Seconds of load before the fault.")
@click.option("--fault", default=20.0, show_default=True, metavar="S", help="Seconds that the fault lasts.")
@click.option("--minutes", type=float, metavar="M", help="The same in minutes, for nemesis.")
@click.option("--shards", default=2, show_default=True, type=click.IntRange(1, 8))
@click.option("--replicas", default=3, show_default=True, type=click.IntRange(1, 9), help="Brokers per shard.")
@click.option("--nameservers", default=2, show_default=True, type=click.IntRange(1, 9))
@click.option("--mode", type=click.Choice(("async", "flush", "sync", "durable")), default="durable", show_default=True)
@click.option(
    "--coordinator", type=click.Choice(("file", "etcd")), default="file", show_default=True, help="Who elects masters."
)
@click.option("--rate", default=500.0, show_default=True, metavar="R", help="Messages per second of all producers.")
@click.option("--producers", default=2, show_default=True, metavar="P", type=int, help="Producer processes.")
@click.option("--consumers", default=2, show_default=True, metavar="C", type=int, help="Consumer processes.")
@click.option(
    "--size", default=1024, show_default=True, metavar="B", type=click.IntRange(24, 1 << 20), help="Of a body."
)
@click.option("--drop-stores", is_flag=True, help="Delete the data directories of drills that went well.")
@json_option
def drill(names: tuple[str, ...], directory: str | None, answer: Answer, **options: Any) -> int:
    """Break a cluster under load, and judge what clients, logs and disks say of it.

    NAME is one or more drills, or `all`; `list` tells them, and `judge` judges a drill's folder (--dir) again. Each
    drill starts a cluster of its own under DIR; where DIR holds a cluster that runs, that one is used and left running.
    Exit code 0: every invariant held that could be judged; 1: one did not, or a drill broke off.
    """
    if names == ("list",):
        return _list(answer)
    from penstock.runtime.whole_files import require_writable

    if directory is None:
        raise click.UsageError("give --dir DIR: the folder for clusters, histories and logs")
    if options["report"]:
        require_writable(Path(options["report"]))
    if names == ("judge",):
        return _judge(Path(directory), options["report"], answer)
    return _run(names, Path(directory), answer, options)


def _list(answer: Answer) -> int:
    from penstock.drill.catalogue import DRILLS
    from penstock.drill.lab.schedule import Shape

    found = []
    for each in DRILLS.values():
        why = each.why_skipped(Shape(), elects=True)
        found.append({"name": each.name, "what": each.what, "target_ms": each.target_ms, "skipped": why})
    rows = [[each["name"], each["what"], each["target_ms"], each["skipped"] or "yes"] for each in found]
    heads = ["drill", "breaks", "target ms", "possible here"]
    answer({"drills": found}, lambda: print_table(heads, rows))
    return 0


def _judge(folder: Path, report: str | None, answer: Answer) -> int:
    from penstock.drill.result import judged
    from penstock.judge.conditions import FILE

    if not (folder / FILE).is_file():
        raise click.UsageError(f"--dir {folder}: no drill was recorded there: give a folder such as DIR/master-kill-1")
    try:
        document = judged(folder)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return _tell([document], report, answer)


def _run(names: tuple[str, ...], directory: Path, answer: Answer, options: dict[str, Any]) -> int:
    from penstock.drill.catalogue import DRILLS
    from penstock.drill.lab.schedule import Shape, Timing
    from penstock.drill.runner import run_drill

    from .kernels import warm_up

    known = [*DRILLS, "all"]
    for name in names:
        if name not in known:
            raise click.UsageError(f"no drill {name!r}: {', '.join([*known, 'list', 'judge'])}")
    chosen = list(DRILLS) if "all" in names else list(dict.fromkeys(names))
    try:
        shape = Shape(**{name: options[name] for name in SHAPE})
        fault_s = options["fault"] if options["minutes"] is None else options["minutes"] * 60
        timing = Timing(options["steady"], fault_s, min(max(fault_s / 2, 2.0), 30.0))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    progress = ProgressLine(every_s=5.0)
    running = _running_cluster(directory, shape)
    documents = []
    try:
        warm_up(progress)
        with deferred_interrupts() as check:

            def show(text: str) -> None:
                check()
                progress.show(text)

            def tell(text: str) -> None:
                progress.clear()
                note(text)

            for seed in range(options["seed"], options["seed"] + options["rounds"]):
                for name in chosen:
                    run = partial(run_drill, DRILLS[name], timing=timing, progress=show, tell=tell)
                    documents.append(_one(name, seed, directory, running, running or shape, options, run))
                    progress.clear()
                    if not answer.as_json:
                        note(_line(documents[-1]))
    finally:
        progress.clear()
    return _tell(documents, options["report"], answer)


SHAPE = ("shards", "replicas", "nameservers", "mode", "coordinator", "rate", "producers", "consumers", "size")


def _running_cluster(directory: Path, shape: Shape) -> Shape | None:
    """The shape of the cluster in ``directory``, if there is one and all of it runs."""
    from penstock.deploy import LocalCluster

    made = LocalCluster(directory)
    if not made.is_complete:
        return None
    plan = made.plan
    taken = {name: getattr(plan, name) for name in ("shards", "replicas", "nameservers", "mode", "coordinator")}
    return replace(shape, **taken)


def _one(
    name: str,
    seed: int,
    directory: Path,
    running: Shape | None,
    shape: Shape,
    options: dict[str, Any],
    run: Callable[..., object],
) -> Document:
    """One drill, in the cluster that is ``running`` or in one of its own."""
    from penstock.deploy import DeployError, LocalCluster
    from penstock.drill.catalogue import DRILLS
    from penstock.drill.lab.schedule import DrillFailed
    from penstock.drill.result import failed, judged, skipped
    from penstock.drill.runner import drop_stores, numbered_folder
    from penstock.proto.errors import PenstockError

    existing = directory if running else None
    elects = existing is None or LocalCluster(existing).plan.is_elected
    why = DRILLS[name].why_skipped(shape, elects=elects, own_cluster=existing is None)
    if why:
        return skipped(name, seed, why)
    folder = numbered_folder(directory / "drills" if existing else directory, f"{name}-{seed}")
    command = _command(name, seed, directory, options)
    try:
        run(folder, seed=seed, shape=shape, command=command, existing=existing)
    except (DrillFailed, DeployError, PenstockError) as error:
        return failed(name, seed, f"{error}", folder)
    document = judged(folder)
    if options["drop_stores"] and document["ok"]:
        drop_stores(folder)
    return document


def _command(name: str, seed: int, directory: Path, options: dict[str, Any]) -> str:
    """What repeats this drill; only what differs from the defaults is told."""
    words = ["penstock", "drill", name, "--dir", str(directory), "--seed", str(seed)]
    defaults = {each.name: each.default for each in drill.params}
    for option in ("steady", "fault", "minutes", *SHAPE):
        value = options[option]
        if value is not None and value != defaults[option]:
            words += [f"--{option}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _line(document: Document) -> str:
    name = f"{document['drill']} seed {document['seed']}"
    if "skipped" in document:
        return f"{name}: skipped: {document['skipped']}"
    if "failed" in document:
        return f"{name}: broke off: {document['failed']} (kept in {document['folder']})"
    broken = [each["invariant"] for each in document["verdicts"] if each["holds"] is False]
    counts = document["counts"]
    longest = ", ".join(f"{each['shard']} {each['longest_ms']:,.0f} ms" for each in document["outages"])
    told = f"VIOLATED {', '.join(broken)}" if broken else "all held"
    return f"{name}: {told}; {counts['acknowledged']:,} acknowledged; longest without: {longest}"


def _tell(documents: list[Document], report: str | None, answer: Answer) -> int:
    from penstock.drill.page import render
    from penstock.runtime.whole_files import write_report

    ok = all(each["ok"] for each in documents)

    def people() -> None:
        for each in documents:
            if "verdicts" in each and (len(documents) == 1 or not each["ok"]):
                _show(each)
        if len(documents) > 1:
            _overview(documents)

    answer({"ok": ok, "drills": documents}, people)
    if report:  # behind the rest, which a full disk is not to cost
        write_report(Path(report), render(documents))
        if not answer.as_json:
            print(f"report: {report}")
    return 0 if ok else 1


def _show(document: Document) -> None:
    rows = []
    for each in document["verdicts"]:
        told = each["examples"][0] if each["examples"] else each["note"]
        rows.append(
            [each["invariant"], VERDICTS[each["holds"]], each["title"], each["checked"], each["violations"], told]
        )
    print_table(
        ["", "verdict", "what has to hold", "checked", "violations", "example, or remark"], rows, title=_line(document)
    )
    latency = [[phase, *found.values()] for phase, found in document["latency_ms"].items()]
    print_table(["latency, ms", "sends", "p50", "p99", "max"], latency)
    counts = document["counts"]
    print_fields({"sends": {name: counts[name] for name in ("acknowledged", "refused", "unknown")}})
    print_fields({"deliveries": {name: counts[name] for name in ("received", "duplicates")}})
    for text in document["notes"]:
        note(text)
    print_fields({"records": document["folder"], "repeat": document["command"]})


def _overview(documents: list[Document]) -> None:
    rows: list[list[Any]] = []
    for each in documents:
        if "verdicts" not in each:
            what = "skipped" if "skipped" in each else "broke off"
            rows.append([each["drill"], each["seed"], what, "", "", "", "", each.get("skipped") or each["failed"]])
            continue
        broken = [v["invariant"] for v in each["verdicts"] if v["holds"] is False]
        counts = each["counts"]
        longest = f"{max((o['longest_ms'] for o in each['outages']), default=0):,.0f} ms"
        numbers = [f"{counts[name]:,}" for name in ("acknowledged", "refused", "unknown")]
        verdict = "all held" if each["ok"] else "VIOLATED"
        rows.append([each["drill"], each["seed"], verdict, *numbers, longest, ", ".join(broken)])
    heads = ["drill", "seed", "verdict", "acknowledged", "refused", "unknown", "longest outage", ""]
    print_table(heads, rows)
