"""Ctrl-C while compiled code runs: Python hears of it only afterwards, which may be in an hour."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kernelcg.cli.codes import INTERRUPTED

PATIENCE = 3.0
"""Seconds that the command has to end in order after the second Ctrl-C."""


@contextmanager
def ended_by_the_second(patience: float = PATIENCE) -> Iterator[None]:
    """End the process at the second Ctrl-C, even in the middle of a product of matrices.

    The first one is left to what is under way: a fit keeps the best hyperparameters so far. All files are written in
    one step, so that nothing is lost or half written when the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(reading, done, patience), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        watcher.join()
        os.close(reading)


def _watch(reading: int, done: threading.Event, patience: float) -> None:
    """Count the interrupts that the system reports, and end the process at the second."""
    heard = 0
    while signals := os.read(reading, 64):
        heard += signals.count(signal.SIGINT)
        if heard == 1:
            _say("this ends at the next step; Ctrl-C again ends it at once")
        elif heard > 1 and not done.wait(patience):
            _say("interrupted; a checkpoint keeps what it had")
            os._exit(INTERRUPTED)


def _say(words: str) -> None:
    """Write a line to the standard error, if anybody still reads it."""
    with suppress(OSError):
        print(f"kernelcg: {words}", file=sys.stderr, flush=True)
