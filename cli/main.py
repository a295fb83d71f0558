"""The entry: the table of commands, and the edge at which every error becomes one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence

import click

from penstock.proto.distribution import DISTRIBUTION

from .lazy import LazyGroup
from .output import print_error
from .signals import Terminated
from .streams import drop_unwritten, prepare

DONE, FAILED, BAD_USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

NO_NAMESERVER = (
    " (of a local cluster, `penstock cluster status --dir DIR` says what runs, and `penstock cluster restart "
    "nameserver-0 --dir DIR` starts one again)"
)

_HERE = "penstock.cli.commands"
COMMANDS = {
    "nameserver": (f"{_HERE}.processes", "nameserver", "Run one nameserver in the foreground."),
    "broker": (f"{_HERE}.processes", "broker", "Run one broker in the foreground."),
    "gateway": (f"{_HERE}.processes", "gateway", "Run one gateway for RocketMQ 5's clients in the foreground."),
    "cluster": (f"{_HERE}.cluster", "cluster", "A local cluster in the background: up, status, down, logs, faults."),
    "topic": (f"{_HERE}.topics", "topic", "Create, update, delete, list and show topics."),
    "group": (f"{_HERE}.groups", "group", "Create, list, show and delete consumer groups."),
    "offset": (f"{_HERE}.groups", "offset", "Move a group's position: reset, clone."),
    "dlq": (f"{_HERE}.dlq", "dlq", "Dead letters of consumer groups: list, show, resend."),
    "send": (f"{_HERE}.messages", "send", "Send one message, or each line of standard input."),
    "tail": (f"{_HERE}.messages", "tail", "Print messages as they arrive."),
    "message": (f"{_HERE}.messages", "message", "Look messages up by id, offset or key; who consumed one."),
    "trace": (f"{_HERE}.trace", "trace", "The story of one message: sent, stored, each consumption."),
    "kv": (f"{_HERE}.key_values", "kv", "The nameservers' key-value configuration."),
    "load": (f"{_HERE}.load", "load", "Load test: produce, consume or both."),
    "drill": (f"{_HERE}.drill", "drill", "Failover drills: break a cluster under load, and judge what is left."),
    "store": (f"{_HERE}.store", "store", "Look into data directories: inspect, dump, verify, rebuild, query."),
    "pipeline": (f"{_HERE}.pipeline", "pipeline", "Spark jobs over stores, lakes and topics."),
    "bench": (f"{_HERE}.bench", "bench", "Run the benchmarks."),
    "demo": ("penstock.demo.cluster", "demo", "A sharded cluster, real data, two deaths, and the numbers agree."),
    "version": (f"{_HERE}.processes", "version", "Print the version."),
}


@click.command(cls=LazyGroup, commands_in=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name="penstock")
def cli() -> None:
    """Penstock: a message broker cluster with RocketMQ's architecture and files.

    Commands that talk to a cluster take --namesrv (or PENSTOCK_NAMESRV); those that print take --json.

    A cluster with TLS and users: the files are named by PENSTOCK_TLS_CA_FILE, PENSTOCK_TLS_CERT_FILE,
    PENSTOCK_TLS_KEY_FILE, PENSTOCK_TLS_SERVER_NAME (a name) and PENSTOCK_CREDENTIALS_FILE.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Nothing but ``error: …`` is left of what went wrong."""
    prepare()
    # gRPC's own lines (goaway, handshakes with a peer that died) tell users nothing that an error does not; it reads
    # this when it is loaded, and the processes that commands start inherit it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Clients log what they heal by themselves as warnings; a command's user is told by its result and exit code.
    wanted = logging.getLevelNamesMapping().get(os.environ.get("PENSTOCK_LOG", "").upper(), logging.ERROR)
    logging.basicConfig(level=wanted, stream=sys.stderr)
    try:
        result = cli.main(args=list(argv) if argv is not None else None, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return BAD_USAGE
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        print_error(_told(error) + where)
        return BAD_USAGE
    except click.ClickException as error:
        print_error(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:  # click's Abort names what it stands for as its cause
        return TERMINATED if isinstance(error.__cause__ or error, Terminated) else INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return FAILED
    except Exception as error:  # noqa: BLE001  the edge of the program: told to the user in one line
        return _failed(error)
    finally:
        drop_unwritten()
    return result if isinstance(result, int) else DONE


def _told(error: click.UsageError) -> str:
    """What is wrong; of a misspelt command with the nearest one, which not every release of click says."""
    from penstock.runtime.nearest import hint

    message = error.format_message()
    found = re.match(r"No such command '([^']*)'", message)
    if found is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return message.rstrip(".")
    return found[0] + hint(found[1], error.ctx.command.list_commands(error.ctx))


def _failed(error: Exception) -> int:
    from penstock.deploy import DeployError
    from penstock.proto.errors import ConfigError, InvalidArgument, InvalidName, NameserverUnavailable, PenstockError

    if os.environ.get("PENSTOCK_TRACE"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, PenstockError):
        print_error(str(error) + (NO_NAMESERVER if isinstance(error, NameserverUnavailable) else ""))
        return BAD_USAGE if isinstance(error, (ConfigError, InvalidArgument, InvalidName)) else FAILED
    if isinstance(error, DeployError):
        print_error(str(error))
        return error.exit_code
    if isinstance(error, OSError):
        print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return FAILED
    print_error(f"{type(error).__name__}: {error} (this is a defect: PENSTOCK_TRACE=1 shows where)")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
