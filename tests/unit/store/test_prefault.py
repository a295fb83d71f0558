"""The thread that touches pages ahead."""

from __future__ import annotations

import os
import threading

import numpy as np

from penstock.broker.store.log.prefault import NICER_BY, Prefaulter


def test_pages_are_touched_by_a_thread_that_gives_way_to_the_event_loop() -> None:
    prefaulter = Prefaulter()
    prefaulter.advance(np.zeros(1 << 20, np.uint8), 0)
    (thread,) = prefaulter._worker._threads
    number = thread.native_id
    assert number is not None
    prefaulter._worker.submit(lambda: None).result()  # it has begun
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert os.getpriority(os.PRIO_PROCESS, number) == min(own + NICER_BY, 19)
    prefaulter.close()
