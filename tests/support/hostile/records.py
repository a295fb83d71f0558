"""Attacks by record bytes: headers changed bit by bit, and sound records inside of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.client import PullConsumer
from penstock.proto import frames
from penstock.proto.errors import PenstockError
from penstock.proto.wire import broker_pb2
from tests.support.broker.requests import BORN
from tests.support.broker.running_broker import Caller, calling
from tests.support.record.encoding import encode_messages

from .attacks import Findings, Scale
from .target import Target

HEADER_BYTES = 88
"""Up to the body."""
BODY = b"a body of some length"


async def changed_headers(target: Target, scale: Scale) -> Findings:
    """Each byte of a record's header changed: refused by name, or what is stored can be read like anything else."""
    topic = "changed-headers"
    bits = [1 << bit for bit in range(8)] if scale.many > 100 else [1, 0x80]
    record = encode_messages(topic, [BODY], born_host=BORN)
    found: Findings = []
    stored = 0
    async with calling(target.master.address) as caller:
        await caller.create_topic(topic)
        for position in range(HEADER_BYTES):
            for bit in bits:
                damaged = bytearray(record)
                damaged[position] ^= bit
                said = await _append(caller, topic, bytes(damaged))
                stored += said == ""
                if "internal error" in said:
                    found.append(f"header byte {position} ^ {bit}: {said}")
    return found + await asyncio.to_thread(_read_back, target, topic, stored)


async def forged_records(target: Target, scale: Scale) -> Findings:
    """A body that is a sound record of its own place, as one can guess it: the outer one is the message."""
    topic, other = "forged", "changed-headers"
    found: Findings = []
    stored = 0
    async with calling(target.master.address) as caller:
        await caller.create_topic(topic)
        for _ in range(scale.many):
            end = (await caller.status()).max_offset
            for shift in (0, 8):  # where the body will lie, unless somebody else comes first
                inner = bytearray(encode_messages(other, [b"forged"], born_host=BORN))
                place = end + HEADER_BYTES + shift
                inner[28:36] = place.to_bytes(8, "big")
                outer = encode_messages(topic, [bytes(shift) + bytes(inner)], born_host=BORN)
                said = await _append(caller, topic, outer)
                stored += said == ""
                view = broker_pb2.ViewMessageRequest(physical_offset=place)
                try:
                    await caller.call("ViewMessage", view)
                    found.append(f"ViewMessage has shown a forged record at {place}")
                except PenstockError as error:
                    if "internal error" in error.message:
                        found.append(f"ViewMessage of a forged record: {error.message}")
    return found + await asyncio.to_thread(_read_back, target, topic, stored)


async def _append(caller: Caller, topic: str, records: bytes) -> str:
    """What the broker says against it; empty: it is stored."""
    header = broker_pb2.AppendHeader(topic=topic, count=1)
    try:
        await caller.append_bytes(frames.pack(header, records))
    except PenstockError as error:
        return error.message or "refused"
    return ""


def _read_back(target: Target, topic: str, stored: int) -> Findings:
    """Each stored message is where its queue says, with a body that was sent."""
    found: list[Any] = []
    with PullConsumer(target.cluster.nameservers, group=f"reads-{topic}", consume_from="first") as puller:
        puller.subscribe(topic)
        while fresh := list(puller.poll(timeout_s=2, max_messages=1000)):
            found += fresh
    places = {(message.queue_id, message.queue_offset) for message in found}
    if len(found) != stored or len(places) != stored:
        return [f"{topic}: {stored} stored, {len(found)} read, of {len(places)} places"]
    return []
