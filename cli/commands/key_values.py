"""``penstock kv``: the nameservers' key-value configuration."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from ..options import compose, json_option, namesrv_option
from ..output import note, print_json, print_table

DEFAULT_NAMESPACE = "DEFAULT"
TIMEOUT_S = 3.0


@click.group()
def kv() -> None:
    """The nameservers' key-value configuration. Each nameserver keeps its own file, so writes go to all of them."""


_where = compose(click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True), namesrv_option, json_option)


def _everywhere(namesrv: str, method: str, request: Any) -> list[str]:
    """Call ``method`` at every nameserver; all have to take it."""
    from penstock.client.cluster import Calls

    with closing(Calls.to(namesrv)) as calls:
        _, errors = calls.at_nameservers(method, request, TIMEOUT_S)
        for error in errors.values():
            raise error
        return calls.connections.addresses


def _ask(namesrv: str, method: str, request: Any) -> Any:
    from penstock.client.cluster import Connections

    with closing(Connections(namesrv)) as connections:
        return connections.query_nameserver(method, request, TIMEOUT_S)


@kv.command()
@click.argument("key")
@click.argument("value")
@_where
def put(key: str, value: str, namespace: str, namesrv: str, as_json: bool) -> None:
    """Set KEY to VALUE."""
    from penstock.proto.wire.nameserver_pb2 import KeyValue

    asked = _everywhere(namesrv, "PutKeyValue", KeyValue(namespace=namespace, key=key, value=value))
    _done({"namespace": namespace, "key": key, "value": value, "nameservers": asked}, as_json)


@kv.command()
@click.argument("key")
@_where
def get(key: str, namespace: str, namesrv: str, as_json: bool) -> None:
    """Print the value of KEY."""
    from penstock.proto.wire.nameserver_pb2 import KeyQuery

    found = _ask(namesrv, "GetKeyValue", KeyQuery(namespace=namespace, key=key))
    if as_json:
        print_json({"namespace": namespace, "key": key, "value": found.value})
    else:
        print(found.value)


@kv.command(name="list")
@_where
def list_(namespace: str, namesrv: str, as_json: bool) -> None:
    """Every key of the namespace."""
    from penstock.proto.wire.nameserver_pb2 import KeyQuery

    found = _ask(namesrv, "ListKeyValues", KeyQuery(namespace=namespace)).values
    if as_json:
        print_json({"values": [{"namespace": v.namespace, "key": v.key, "value": v.value} for v in found]})
    else:
        print_table(["namespace", "key", "value"], [[v.namespace, v.key, v.value] for v in found])


@kv.command()
@click.argument("key")
@_where
def delete(key: str, namespace: str, namesrv: str, as_json: bool) -> None:
    """Remove KEY."""
    from penstock.proto.wire.nameserver_pb2 import KeyQuery

    asked = _everywhere(namesrv, "DeleteKeyValue", KeyQuery(namespace=namespace, key=key))
    _done({"namespace": namespace, "key": key, "nameservers": asked}, as_json)


def _done(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        note(f"done at {', '.join(document['nameservers'])}")
