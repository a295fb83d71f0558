"""``penstock kv``: the nameservers' key-value configuration."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from ..options import compose, json_option, namesrv_option
from ..output import Answer, print_table

DEFAULT_NAMESPACE = "DEFAULT"
TIMEOUT_S = 3.0


@click.group()
def kv() -> None:
    """The nameservers' key-value configuration. Each nameserver keeps its own file, so writes go to all of them."""


_where = compose(click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True), namesrv_option, json_option)


def _write(method: str, entry: Any, namesrv: str, answer: Answer, document: dict[str, Any]) -> None:
    """Call ``method`` at every nameserver, all of which have to take it, and answer."""
    from penstock.client.cluster import Calls

    with closing(Calls.to(namesrv)) as calls:
        _, errors = calls.at_nameservers(method, entry, TIMEOUT_S)
        for error in errors.values():
            raise error
        asked = calls.connections.addresses
    answer({**document, "nameservers": asked}, f"done at {', '.join(asked)}")


def _read(namesrv: str, method: str, namespace: str, key: str = "") -> Any:
    from penstock.client.cluster import Connections
    from penstock.proto.wire.nameserver_pb2 import KeyQuery

    with closing(Connections(namesrv)) as connections:
        return connections.query_nameserver(method, KeyQuery(namespace=namespace, key=key), TIMEOUT_S)


@kv.command()
@click.argument("key")
@click.argument("value")
@_where
def put(namesrv: str, answer: Answer, **entry: str) -> None:
    """Set KEY to VALUE."""
    from penstock.proto.wire.nameserver_pb2 import KeyValue

    _write("PutKeyValue", KeyValue(**entry), namesrv, answer, entry)


@kv.command()
@click.argument("key")
@_where
def get(key: str, namespace: str, namesrv: str, answer: Answer) -> None:
    """Print the value of KEY."""
    value = _read(namesrv, "GetKeyValue", namespace, key).value
    answer({"namespace": namespace, "key": key, "value": value}, value)


@kv.command(name="list")
@_where
def list_(namespace: str, namesrv: str, answer: Answer) -> None:
    """Every key of the namespace."""
    names = ["namespace", "key", "value"]
    rows = [[getattr(each, name) for name in names] for each in _read(namesrv, "ListKeyValues", namespace).values]
    document = {"values": [dict(zip(names, row, strict=True)) for row in rows]}
    answer(document, lambda: print_table(names, rows))


@kv.command()
@click.argument("key")
@_where
def delete(namesrv: str, answer: Answer, **entry: str) -> None:
    """Remove KEY."""
    from penstock.proto.wire.nameserver_pb2 import KeyQuery

    _write("DeleteKeyValue", KeyQuery(**entry), namesrv, answer, entry)
