"""``penstock pipeline NAME``: the Spark jobs. Their options are the fields of their configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..options import key_values
from ..output import ProgressLine, note, print_fields, print_json, print_table
from ..signals import interrupts

SHOWN_MAX = 20
_SESSION_OPTIONS = (
    click.Option(["--master"], help="Spark's master, as local[*]. [what Spark's own configuration says]"),
    click.Option(["--remote"], help="A Spark Connect server, as sc://host."),
    click.Option(
        ["--conf"], multiple=True, callback=key_values, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."
    ),
)
_OPTIONS = (
    click.Option(["--report"], type=click.Path(dir_okay=False), help="Write a page (.html) or the document (.json)."),
    click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on standard output."),
)


class _Jobs(click.Group):
    """The commands of :data:`penstock.pipeline.catalogue.JOBS`, and the one that is no job."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from penstock.pipeline.catalogue import JOBS

        return [*sorted(JOBS), *super().list_commands(ctx)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A line for each; imports no job."""
        from penstock.pipeline.catalogue import JOBS

        with formatter.section("Jobs"):
            formatter.write_dl([(name, JOBS[name][1]) for name in sorted(JOBS)])
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str()) for name, command in self.commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a job, made from its configuration."""
        from penstock.pipeline.catalogue import JOBS, load_job
        from penstock.pipeline.requirements import require_spark

        if cmd_name not in JOBS:
            return super().get_command(ctx, cmd_name)
        require_spark()
        job = load_job(cmd_name)
        session_options = _SESSION_OPTIONS if _needs_spark(job) else ()
        return click.Command(
            cmd_name,
            params=[*_options(job.Config), *session_options, *_OPTIONS],
            callback=_callback(cmd_name, job),
            help=(job.__doc__ or JOBS[cmd_name][1]).split("\n\n")[0],
        )


@click.group(cls=_Jobs)
def pipeline() -> None:
    """Spark jobs over stores, lakes and topics; they need the extra penstock-mq[spark] and Java 17.

    Below about 1 GB the other commands answer sooner: Spark takes seconds to start.
    """


@pipeline.command("package")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def package_command(file: Path, as_json: bool) -> None:
    """All that executors need in one archive.

    FILE ends with .tar.gz. It holds Penstock and the packages that its pipelines need, for machines that have only
    Python of the same minor version. What is printed at the end ships it: words for spark-submit, or for the jobs here.
    """
    from penstock.pipeline.requirements import require_spark
    from penstock.pipeline.spark.packaging import package

    require_spark()
    progress = ProgressLine(every_s=10.0)
    try:
        made = package(file, lambda step: progress.show(f"package: {step}"))
    finally:
        progress.clear()
    figures = {"file": str(made.file), "bytes": made.bytes, "packages": made.packages, "python": made.python}
    if as_json:
        print_json(figures | {"settings": made.settings})
        return
    print_fields(figures)
    click.echo(f"spark-submit {made.words} JOB.py")


def _options(config: type[Any]) -> list[click.Parameter]:
    from penstock.pipeline.options import options_of

    made: list[click.Parameter] = []
    for option in options_of(config):
        name = f"--{option.name.replace('_', '-')}"
        if option.kind.of is bool:
            made.append(click.Option([f"{name}/--no-{name[2:]}"], default=option.default, help=option.meaning))
            continue
        default = None if option.is_required or option.several else option.default
        made.append(
            click.Option(
                [name],
                type=str if option.several else option.kind.of,
                required=option.is_required,
                default=default,
                show_default=default is not None,
                help=option.meaning,
            )
        )
    return made


def _needs_spark(job: Any) -> bool:
    return getattr(job, "NEEDS_SPARK", True)


def _callback(name: str, job: Any) -> Callable[..., int]:
    def run(
        report: str | None,
        as_json: bool,
        master: str | None = None,
        remote: str | None = None,
        conf: dict[str, str] | None = None,
        **values: Any,
    ) -> int:
        from penstock.pipeline.jobs.framework.reading import require_stores
        from penstock.pipeline.jobs.framework.report import require_writable
        from penstock.pipeline.options import made
        from penstock.pipeline.spark.own_errors import own_error
        from penstock.pipeline.spark.sessions import require_place

        require_place(master, remote)
        if report is not None:
            require_writable(Path(report))
        config = made(job.Config, {key: value for key, value in values.items() if value is not None}, name)
        require_stores(getattr(config, "store", ()))
        if hasattr(job, "check"):  # what is wrong is told before Spark takes its seconds to start
            job.check(config)
        progress = ProgressLine(every_s=10.0)
        with interrupts():
            spark = _session(name, config, progress, master, remote, conf or {}) if _needs_spark(job) else None
            try:
                progress.show(f"{name}: working")
                outcome = job.run(spark, config)
            except Exception as error:
                ours = own_error(error)
                if ours is None:
                    raise
                raise ours from error
            finally:
                progress.clear()
                if spark is not None:
                    spark.stop()
        if as_json:
            print_json(asdict(outcome))
        else:
            _show(outcome)
        if report is not None:  # behind the rest, which a full disk is not to cost
            outcome.write(Path(report))
        if spark is not None:
            _keep_classes(name, progress)
        return 0 if outcome.ok else 1

    return run


def _session(
    name: str, config: Any, progress: ProgressLine, master: str | None, remote: str | None, conf: dict[str, str]
) -> Any:
    """A session for the job, shorter of start if it has little to read."""
    from penstock.pipeline.jobs.framework.here import load_ahead
    from penstock.pipeline.jobs.framework.reading import reads_little
    from penstock.pipeline.spark.sessions import session

    settings = {"spark.log.level": "ERROR"} | conf
    progress.show(f"{name}: starting Spark")
    is_short = reads_little(config)
    if is_short and not hasattr(config, "lake"):
        load_ahead()
    return session(f"penstock {name}", master=master, remote=remote, conf=settings, is_short=is_short)


def _keep_classes(name: str, progress: ProgressLine) -> None:
    from penstock.pipeline.spark.starting import keep_classes

    with interrupts():
        try:
            keep_classes(lambda text: progress.show(f"{name}: {text}"))
        finally:
            progress.clear()


def _show(outcome: Any) -> None:
    print_fields(outcome.figures | {"seconds": outcome.seconds})
    if outcome.checks:
        verdicts = {None: "not judged", True: "holds", False: "violated"}
        rows = [[c.name, verdicts[c.holds], c.title, c.checked, c.violations, c.note] for c in outcome.checks]
        print_table(["check", "verdict", "what has to hold", "checked", "violations", "remark"], rows, "Checks")
    for table in outcome.tables:
        print_table(table.columns, table.rows[:SHOWN_MAX], table.title)
    for problem in outcome.problems[:SHOWN_MAX]:
        details = ", ".join(f"{key} {value}" for key, value in problem.items() if key != "problem")
        note(f"{problem['problem']} ({details})" if details else problem["problem"])
    if outcome.problem_count > SHOWN_MAX:
        note(f"and {outcome.problem_count - SHOWN_MAX} more problems")
    note(f"{outcome.job}: {outcome.headline}")
