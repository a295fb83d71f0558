"""The producer for transactions, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from penstock.formats.record.properties import TRANSACTION_ID
from penstock.proto.errors import InvalidArgument

from ..arguments import wrong
from ..message import Message, SendReceipt
from ..signatures import taking
from ..transact.transaction import Transaction, TransactionState
from ..transaction_producer import TransactionProducer
from .producer import AsyncProducer
from .turns import Turns, Twin, at_once, in_thread, to_the_end


class AsyncTransaction(Twin):
    """:class:`~penstock.client.Transaction`, awaited: used with ``async with``."""

    _sync: Transaction

    def __init__(self, transaction: Transaction) -> None:
        self._sync = transaction

    @property
    def id(self) -> str:
        """What tells it from every other transaction."""
        return self._sync.id

    @property
    def state(self) -> TransactionState:
        """What was decided, and perhaps not answered yet."""
        return self._sync.state

    leave = at_once(Transaction.leave)
    send = in_thread(Transaction.send)
    produce = in_thread(Transaction.produce)
    produce_many = in_thread(Transaction.produce_many)
    commit = in_thread(Transaction.commit)
    rollback = in_thread(Transaction.rollback)


class AsyncTransactionProducer(AsyncProducer):
    """:class:`~penstock.client.TransactionProducer`, awaited; ``check`` is called in a thread, as there."""

    _sync: TransactionProducer

    @taking(TransactionProducer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = TransactionProducer(*arguments, **settings)
        self._turns = Turns()
        self._outcomes = None

    statistics = at_once(TransactionProducer.statistics)

    @taking(TransactionProducer.transaction)
    def transaction(self, **options: Any) -> AsyncTransaction:
        """A new transaction, for ``async with``."""
        return AsyncTransaction(self._sync.transaction(**options))

    @taking(TransactionProducer.send_in_transaction)
    async def send_in_transaction(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Any = None,
        properties: Any = None,
        sharding_key: str | None = None,
        *,
        execute: Any,
        timeout_s: float | None = None,
        check_after_s: float | None = None,
    ) -> SendReceipt:
        """Store one message, call ``execute(message)``, a function or a coroutine function, and do as it says.

        What is waited for is as in :meth:`~penstock.client.TransactionProducer.send_in_transaction`.
        """
        if not callable(execute):
            raise wrong("execute", execute, "a function of a message", InvalidArgument)
        made = self._sync.transaction(timeout_s=timeout_s, check_after_s=check_after_s)
        try:
            receipt = await asyncio.to_thread(made.send, topic, body, tag, keys, properties, sharding_key)
        except BaseException:
            made.give_up()
            raise
        try:
            own = {**(properties or {}), TRANSACTION_ID: made.id}
            state = execute(Message(topic, body, tag, keys or (), own, sharding_key))
            if inspect.isawaitable(state):
                state = await state
        except BaseException:
            made.leave()
            raise
        await to_the_end(made.conclude, state)
        return receipt
