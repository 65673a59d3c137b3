"""Threads of the library's own: torch works on one, and large pieces of work are shared among several.

Threads of OpenMP, which torch has, meet at a barrier after every operation and spin there. Where others use the cores,
each barrier waits for a thread that is not running: a fit of a thousand rows then takes ten times as long as on one
thread. Here a piece of work is cut at places that do not depend on the number of threads, the parts are taken by
whoever is free, and each is computed by one thread: any number of threads gives the same bits.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache, wraps
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class _OfThisThread(threading.local):
    allowed: int | None = None


_here = _OfThisThread()


class _Entered:
    """Threads of Python that work at present, and how many threads torch had before the first of them began."""

    lock = threading.Lock()
    count = 0
    of_torch = 1


def allowed() -> int:
    """Return how many threads work in this thread of Python may take: by default as many as torch would."""
    return _here.allowed or torch.get_num_threads()


@contextmanager
def working(threads: int | None = None) -> Iterator[None]:
    """Let work take so many threads while this lasts, and torch's own operations one.

    None means as many as torch would take. Only this thread of Python is concerned.
    """
    before = _here.allowed
    found = _enter() if before is None else before
    _here.allowed = threads or found
    try:
        yield
    finally:
        _here.allowed = before
        if before is None:
            _leave()


def taking(threads: Callable[[Any], int | None]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of methods, which then are `working` with as many threads as ``threads(self)`` says."""

    def decorated(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with working(threads(args[0])):
                return method(*args, **kwargs)

        return inside

    return decorated


def _enter() -> int:
    """Let torch take one thread in this thread of Python, and return how many it had.

    A thread of Python that torch has not seen takes what another one set last when torch is first asked or works: here
    that is over before the number is set, and while others work it is theirs.
    """
    with _Entered.lock:
        found = torch.get_num_threads()
        if not _Entered.count:
            _Entered.of_torch = found
        _Entered.count += 1
        torch.set_num_threads(1)
        return _Entered.of_torch


def _leave() -> None:
    with _Entered.lock:
        _Entered.count -= 1
        torch.set_num_threads(_Entered.of_torch)


def shared(work: Callable[[slice], object], count: int, block: int) -> None:
    """Call ``work`` for all parts of ``range(count)``, slices of ``block`` numbers, by as many threads as are allowed.

    The parts are independent of one another, and so is what they compute of the number of threads.
    """
    parts: SimpleQueue[slice] = SimpleQueue()
    starts = range(0, count, block)
    for start in starts:
        parts.put(slice(start, min(start + block, count)))

    def take() -> None:
        while True:
            try:
                part = parts.get_nowait()
            except Empty:
                return
            work(part)

    with working():
        helpers = min(allowed(), len(starts)) - 1
        helping = [_pool(helpers).submit(take) for _ in range(helpers)]
        try:
            take()
        finally:
            with suppress(Empty):
                while True:  # after an error nobody begins with what is left
                    parts.get_nowait()
            wait(helping)
    for one in helping:
        one.result()


@cache
def _pool(helpers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers, "kernelcg", _begin)


def _begin() -> None:
    """Prepare a thread of the pool, which computes on its own."""
    _here.allowed = 1
    torch.get_num_threads()  # from now on torch leaves the number of this thread alone
    torch.set_num_threads(1)


def _begin_anew() -> None:
    """Prepare a child process, which has none of the other threads and perhaps a lock that one of them held."""
    _pool.cache_clear()
    _Entered.lock, _Entered.count = threading.Lock(), int(_here.allowed is not None)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
