"""One fit as its listeners see it: who is told of it, and what may end its learning early."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from kernelcg.errors import Interrupted, StateMismatch
from kernelcg.estimators.settings import logger
from kernelcg.events import Chunk, Event, EventKind, Listener, informed, insisting, tell, time_limit, timed, together
from kernelcg.inference.learning.learn import Learned
from kernelcg.inference.learning.origin import data_digest
from kernelcg.inference.learning.state import Step, TrainingState
from kernelcg.planning import Plan

Resumable = TrainingState | str | os.PathLike[str] | None
"""What a fit can go on from: a state that came with an event of an earlier one, or the path of its file."""


class Interrupts:
    """What Ctrl-C does while hyperparameters are learned.

    The first SIGINT ends learning at the next event, the second raises `KeyboardInterrupt` at once. Before and after
    learning there is nothing to end early, and SIGINT does what it did before.
    """

    def __init__(self) -> None:
        self.requested = False

    def listen(self, event: Event) -> None:
        """End learning if that was asked for."""
        if self.requested:
            raise Interrupted("interrupted")

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take SIGINT while this lasts: in the main thread alone, and not where it is ignored."""
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(previous):
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@dataclass(frozen=True, eq=False)
class Session:
    """A fit or an update under way.

    Attributes
    ----------
    began : time, by ``time.perf_counter``, from which the seconds of events and the time limit are counted
    callback : told of everything: the log, and the listener of the user
    resume : the state of learning to go on from, if any
    """

    began: float
    callback: Listener | None
    interrupts: Interrupts
    max_seconds: float | None = None
    resume: TrainingState | None = None
    resident: int | None = None
    """Bytes that the process held when it began, where the system says."""

    @classmethod
    def of(
        cls,
        callback: Listener | None,
        max_seconds: float | None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> "Session":
        """Return what begins now, from a state or the file of one if that is given, and keeps its own in a file."""
        began, saving = time.perf_counter(), None
        _require_path(checkpoint, "checkpoint", "the path of a file or None")
        if not isinstance(resume, TrainingState):
            _require_path(resume, "resume", "a TrainingState, the path of a file or None")
        if checkpoint is not None:
            from kernelcg.estimators.training_files import checkpoints

            resume, saving = _state_in(checkpoint, resume), checkpoints(checkpoint)
        if resume is not None and not isinstance(resume, TrainingState):
            from kernelcg.estimators.training_files import load_state

            resume = load_state(resume)
        heard = timed(together(log_event, saving, callback), began)
        return cls(began, heard, Interrupts(), max_seconds, resume, resident_bytes())

    def about(self, problem: Any) -> "Session":
        """Return the session of one of several models, which goes on from the state if that is of its data."""
        fits = self.resume is not None and self.resume.origin.data == data_digest(problem)
        return self if fits else replace(self, resume=None)

    def about_each(self, problems: list[Any]) -> "list[Session]":
        """Return the session of each of several models; raise `StateMismatch` if the state is of none of them."""
        sessions = [self.about(problem) for problem in problems]
        if self.resume is not None and all(one.resume is None for one in sessions):
            raise StateMismatch(
                "the state is of other data: of none of the models that are learned one after the other"
            )
        return sessions

    @property
    def earlier(self) -> Plan | None:
        """Return the plan of the fit that this one goes on from, if it does."""
        return None if self.resume is None else self.resume.origin.plan

    @property
    def onlooker(self) -> Listener | None:
        """Return the listener for work that a model cannot do without: it ends this only by raising an exception."""
        return informed(self.callback)

    def tell(self, kind: EventKind, payload: Any) -> None:
        """Tell of something that happens now."""
        tell(self.callback, kind, payload, self.began)

    def outcome(self, plan: Plan, done: Plan, learned: Learned) -> Plan:
        """Return the plan with what happened beside it; ``done`` is what learning made of it."""
        peak = peak_bytes()
        grown = None if self.resident is None or peak is None else max(peak - self.resident, 0)
        return plan.after(done, time.perf_counter() - self.began, learned.evaluations, grown)

    @contextmanager
    def learning(self) -> Iterator[Listener | None]:
        """Give the listener for learning, which the user may interrupt while this lasts and which the time may end."""
        limit = time_limit(self.max_seconds, self.began)
        with self.interrupts.heard():
            yield together(self.callback, self.interrupts.listen, limit)


def _require_path(value: Any, name: str, expected: str) -> None:
    if not (value is None or isinstance(value, str | os.PathLike)):
        raise TypeError(f"{name} must be {expected}, not {value!r}")


def _state_in(checkpoint: str | os.PathLike[str], resume: Resumable) -> Resumable:
    """Return what a fit with this checkpoint goes on from: the file, if there is one already."""
    if resume is not None:
        raise ValueError("give checkpoint or resume, not both: a checkpoint that exists is gone on from")
    path = Path(checkpoint)
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no directory {path.resolve().parent}; create it")
    return path if path.exists() else None


def resident_bytes() -> int | None:
    """Return the memory that this process holds, where the system says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def peak_bytes() -> int | None:
    """Return the most memory that this process ever held, where the system says."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, ValueError, StopIteration):
        return None


def predicting(callback: Listener | None) -> Listener | None:
    """Return the listener for a prediction that begins now: where it wants to end it, there is nothing to keep."""
    return insisting(timed(callback, time.perf_counter()))


def tell_of_all(callback: Listener | None, points: Tensor) -> None:
    """Tell of a prediction that was made in one piece."""
    tell(callback, EventKind.CHUNK, Chunk(len(points), len(points)), time.perf_counter())


def log_event(event: Event) -> None:
    """Write to the log of the library what a reader wants to know, and with DEBUG more of it."""
    payload = event.payload
    match event.kind:
        case EventKind.PLAN:
            logger.info("plan: %s", payload)
        case EventKind.STEP:
            logger.info("step %d: %s", len(payload.state.steps), _words(payload.step))
        case EventKind.LEARNED:
            logger.info("learned in %.1f s: %s", payload.seconds, "; ".join([payload.reason, *payload.findings]))
            logger.info("learned: %s", payload.gp)
        case EventKind.END:
            logger.info("%s", payload)
        case EventKind.STAGE | EventKind.EVALUATION | EventKind.WARNING if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s: %s", event.kind.name.lower(), payload)


def _words(step: Step) -> str:
    predicted = "" if math.isnan(step.gain) else f", predicted gain {step.gain:.3g}"
    known = predicted if math.isnan(step.value) else f", criterion {step.value:.6g}"
    return f"{step.rows} rows, {step.method}{known}, {step.seconds:.1f} s"
