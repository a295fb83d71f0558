from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.produce.accumulator import MORE, Accumulator, Drained

Message = tuple[bytes, bytes | None, str | None]

MESSAGES = st.lists(
    st.tuples(
        st.binary(min_size=2, max_size=4), st.sampled_from([None, b"p", b"qq"]), st.sampled_from([None, "k"])
    ).map(
        lambda each: (each[0], each[1] or (b"s" if each[2] else None), each[2])  # a key is among the properties too
    ),
    max_size=12,
)


def add(accumulator: Accumulator, message: Message) -> None:
    body, properties, key = message
    if properties is None:
        accumulator.append(body)
    else:
        accumulator.extend((MORE, body, properties, key))


def messages_of(drained: Drained) -> list[Message]:
    count = len(drained.bodies)
    nothing = [None] * count
    assert drained.bodies.lengths.tolist() == [len(body) for body in drained.bodies]
    return list(zip(drained.bodies, drained.properties or nothing, drained.keys or nothing, strict=True))


@given(st.lists(MESSAGES, max_size=3))
def test_what_is_drained_is_what_was_added(rounds: list[list[Message]]) -> None:
    accumulator = Accumulator(1 << 20)
    for messages in rounds:
        for message in messages:
            add(accumulator, message)
        assert bool(accumulator) == bool(messages)
        assert len(accumulator) == len(messages)
        drained = accumulator.drain()
        assert messages_of(drained) == messages
        assert (drained.properties is None) == all(properties is None for _, properties, _ in messages)
        assert (drained.keys is None) == all(key is None for _, _, key in messages)
        assert not accumulator


@given(MESSAGES, st.data())
def test_a_message_that_is_taken_back_is_this_very_one(messages: list[Message], data: st.DataObject) -> None:
    accumulator = Accumulator(1 << 20)
    kept = [(bytes(bytearray(body)), properties, key) for body, properties, key in messages]  # objects of their own
    for message in kept:
        add(accumulator, message)
    for _ in range(data.draw(st.integers(0, len(kept)))):
        sought = kept.pop(data.draw(st.integers(0, len(kept) - 1)))
        assert accumulator.withdraw(*sought)
        if not any(all(map(_is, sought, other)) for other in kept):
            assert not accumulator.withdraw(*sought)
        assert not accumulator.withdraw(bytes(bytearray(b"none")), *sought[1:])
    assert messages_of(accumulator.drain()) == kept


def test_a_body_is_not_taken_back_out_of_another_message_that_has_the_same_one() -> None:
    accumulator, body = Accumulator(1 << 20), b"body"
    others: list[Message] = [(body, b"p", None), (b"alone", None, None), (body, b"p", "k")]
    for message in others:
        add(accumulator, message)
    assert not accumulator.withdraw(body, None, None)
    add(accumulator, (body, None, None))
    assert accumulator.withdraw(body, None, None)
    assert messages_of(accumulator.drain()) == others


def _is(one: object, other: object) -> bool:
    return one is other


def test_threads_that_append_while_another_drains_lose_and_double_nothing() -> None:
    accumulator = Accumulator(1 << 20)

    def message(thread: int, number: int) -> Message:
        body = b"%d-%d" % (thread, number)
        return (body, None, None) if number % (thread + 2) else (body, b"of " + body, f"key of {thread}-{number}")

    def run(thread: int) -> None:
        for number in range(20_000):
            add(accumulator, message(thread, number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    drained: list[Message] = []
    while any(thread.is_alive() for thread in threads):
        drained += messages_of(accumulator.drain())
    drained += messages_of(accumulator.drain())
    for thread in range(4):
        mine = [each for each in drained if each[0].startswith(b"%d-" % thread)]
        assert mine == [message(thread, number) for number in range(20_000)]
