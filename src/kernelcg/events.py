"""One stream of events from all work that takes long, and the functions that listen to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kernelcg.errors import StopRequested


class EventKind(Enum):
    """What an event is about. The value says what its payload is."""

    PLAN = "the plan, before the work starts"
    STAGE = "a `Stage`: learning goes on with this part of the data"
    EVALUATION = "an `Evaluation` of the criterion and its gradient"
    STEP = "a `StepTaken`: the step of learning that was accepted, and the state to go on from"
    ITERATION = "a `Progress`: one iteration of a linear solve"
    LEARNED = "a `Learned`: the end of learning"
    CHUNK = "a `Chunk`: some more points are predicted"
    METHOD = "a `MethodRun`: one method of a comparison has ended"
    WARNING = "a sentence: something did not go as it should"
    END = "the certificate of a fit, or the result of a comparison"


@dataclass(frozen=True, eq=False)
class Event:
    """Something that has happened: its kind, the seconds since the work began that the caller asked for, a record."""

    kind: EventKind
    seconds: float
    payload: Any


@dataclass(frozen=True)
class Chunk:
    """How many points are predicted, and how many there are."""

    done: int
    total: int


Listener = Callable[[Event], bool | None]
"""Is told of every event. One that returns True, or raises `StopRequested` with a reason, ends the work there."""


def tell(listener: Listener | None, kind: EventKind, payload: Any, began: float) -> None:
    """Tell a listener, if there is one, of something that happens now; what it returns is for `insisting` to judge."""
    if listener is not None:
        listener(Event(kind, time.perf_counter() - began, payload))


def together(*listeners: Listener | None) -> Listener | None:
    """Return one listener for several, called in turn; it returns True if any of them does. None for none."""
    present = [_listening(listener) for listener in listeners if listener is not None]

    def all_of_them(event: Event) -> bool:
        answers = [bool(listener(event)) for listener in present]  # all are told, whatever the first one says
        return any(answers)

    return all_of_them if present else None


def _listening(listener: Listener) -> Listener:
    """Return a listener; raise if it cannot be called."""
    if not callable(listener):
        raise TypeError(f"callback must be a function that takes an event, not {listener!r}")
    return listener


def timed(listener: Listener | None, began: float) -> Listener | None:
    """Return a listener whose events count their seconds from ``began``, a value of ``time.perf_counter``."""
    if listener is None:
        return None
    _listening(listener)
    return lambda event: listener(replace(event, seconds=time.perf_counter() - began))


def insisting(listener: Listener | None) -> Listener | None:
    """Return a listener that raises `StopRequested` where this one returns True: the work ends, however deep it is."""
    if listener is None:
        return None

    def insist(event: Event) -> None:
        if listener(event):
            raise StopRequested("stopped by the callback")

    return insist


def informed(listener: Listener | None) -> Listener | None:
    """Return a listener that is told everything and whose answer does not count."""
    if listener is None:
        return None

    def inform(event: Event) -> None:
        listener(event)

    return inform


def time_limit(seconds: float | None, began: float) -> Listener | None:
    """Return a listener that ends learning at the first event so many seconds after ``began``; None for no limit."""
    if seconds is None:
        return None

    def look_at_the_clock(event: Event) -> None:
        if time.perf_counter() - began >= seconds and event.kind is not EventKind.LEARNED:
            raise StopRequested(f"the time limit of {seconds:g} s was reached")

    return look_at_the_clock
