"""Topics and groups as clients name them, within their namespaces, and as the cluster does.

A name in a namespace is ``namespace%name`` in the cluster; answers have it as the client gave it. Groups may be longer
here than brokers keep: such a one is its beginning and a digest in the cluster.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from penstock.gateway.v2.wire.definition_pb2 import Code, Resource
from penstock.proto.errors import InvalidArgument
from penstock.proto.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from penstock.proto.names import GROUP_LENGTH_MAX as KEPT_LENGTH_MAX
from penstock.proto.requests import parsed

from .status import Refusal

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
RESOURCE_BYTES_MAX: Final = 1024
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_SYSTEM_TOPIC_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
_SYSTEM_TOPICS = frozenset({"BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC"})
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def topic_of(resource: Resource, namespace: str) -> str:
    """The cluster's name of a topic. Raises Refusal: ILLEGAL_TOPIC."""
    return _topic(resource.name, resource.resource_namespace or namespace)


@lru_cache(maxsize=4096)
def _topic(name: str, space: str) -> str:
    prefix = _derived(name)
    longest = len(prefix) + GROUP_LENGTH_MAX if prefix else TOPIC_LENGTH_MAX
    if not name.strip():
        raise Refusal(Code.ILLEGAL_TOPIC, "the topic name cannot be blank")
    full = _within("topic", name, space, Code.ILLEGAL_TOPIC, longest)
    for each in (name, full):
        if is_system_topic(each) or each.startswith(_SYSTEM_TOPIC_PREFIXES) or each in _SYSTEM_TOPICS:
            raise Refusal(Code.ILLEGAL_TOPIC, f"the topic {each} is the system's: use another one")
    return prefix + _kept(full[len(prefix) :]) if prefix else full


def group_of(resource: Resource, namespace: str) -> str:
    """The cluster's name of a consumer group. Raises Refusal: ILLEGAL_CONSUMER_GROUP."""
    return _group(resource.name, resource.resource_namespace or namespace)


@lru_cache(maxsize=4096)
def _group(name: str, space: str) -> str:
    if not name.strip():
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, "the consumer group cannot be blank")
    full = _within("consumer group", name, space, Code.ILLEGAL_CONSUMER_GROUP, GROUP_LENGTH_MAX)
    for each in (name, full):
        if each.startswith(_SYSTEM_GROUP_PREFIX):
            raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, f"the consumer group {each} is the system's: use another one")
    return _kept(full)


def _kept(group: str) -> str:
    """The group as brokers keep it, whose longest name is shorter than clients'."""
    if len(group) <= KEPT_LENGTH_MAX:
        return group
    digest = hashlib.blake2b(group.encode(), digest_size=16).hexdigest()
    return f"{group[: KEPT_LENGTH_MAX - len(digest) - 1]}_{digest}"


def _within(what: str, name: str, space: str, code: Code, longest: int) -> str:
    if len(name) > longest or not _ALLOWED.fullmatch(name):
        raise Refusal(
            code, f"the {what} {name[:64]!r} is illegal: 1..{longest} letters, digits and the signs % | _ - are allowed"
        )
    if not space:
        return name
    if not _ALLOWED.fullmatch(space) or len(space) + 1 + len(name) > longest:
        raise Refusal(code, f"namespace {space[:64]!r} with {name[:64]!r}: together 1..{longest} characters")
    derived = _derived(name)
    return f"{derived}{space}%{name[len(derived) :]}"


def _derived(name: str) -> str:
    """The beginning of the name of a topic that belongs to a group; the group's namespace comes behind it."""
    return next((prefix for prefix in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(prefix)), "")


def resource_in(content: bytes) -> Resource | None:
    """What these bytes of a request name; None: nothing, or more than any name takes."""
    return _resource(content) if len(content) <= RESOURCE_BYTES_MAX else None


@lru_cache(maxsize=4096)
def _resource(content: bytes) -> Resource | None:
    try:
        return parsed(Resource, content)
    except InvalidArgument:
        return None


def resource_of(name: str, namespace: str) -> Resource:
    """A cluster's name as a client of ``namespace`` calls it."""
    derived = _derived(name)
    inner = f"{derived}{namespace}%"
    if namespace and name.startswith(inner):
        return Resource(resource_namespace=namespace, name=derived + name[len(inner) :])
    return Resource(name=name)
