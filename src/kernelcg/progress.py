"""Progress of a fit, a prediction or a comparison, told from its events: a bar in a notebook, lines elsewhere.

Nothing is shown unless `show_progress` is given as the callback.
"""

import html
import math
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from kernelcg.estimators.session import resident_bytes
from kernelcg.events import Event, EventKind, Listener
from kernelcg.planning import Plan
from kernelcg.planning.plan import in_bytes, in_time

__all__ = ["show_progress"]

PLAIN_SECONDS = 10.0
"""Seconds between lines where nothing can be drawn."""

LIVE_SECONDS = 0.1
"""Seconds between two states of a bar that moves."""


SHORTEST = 0.5
"""Seconds left below which nothing is said of them."""


STEADY = 10.0
"""Seconds by which both sides of a comparison of real with expected times are raised: short stages say little."""


class TimeLeft:
    """How long a fit still takes: what its plan expects, corrected by how long the stages so far really took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rows: list[int] = []
        self.stage = 0
        self.entered = 0.0
        self.scale = 1.0

    def start(self, plan: Plan) -> None:
        """Take note of the plan."""
        stages = (*plan.stages, plan.conditioning)
        total, self.ends = 0.0, []
        for stage in stages:
            total += stage.seconds
            self.ends.append(total)
        self.rows = [stage.rows for stage in plan.stages]

    def enter(self, rows: int, elapsed: float) -> None:
        """Take note that learning goes on with so many rows."""
        reached = sum(known < rows for known in self.rows)
        if reached > self.stage:
            self.stage, self.entered = reached, elapsed
            self.scale = (elapsed + STEADY) / (self.ends[reached - 1] + STEADY)

    def left(self, elapsed: float) -> float:
        """Return the seconds that are left; NaN before there is a plan."""
        if not self.ends:
            return math.nan
        expected = self.ends[self.stage] - (self.ends[self.stage - 1] if self.stage else 0.0)
        rest_of_stage = max(self.scale * expected - (elapsed - self.entered), 0.0)
        return rest_of_stage + self.scale * (self.ends[-1] - self.ends[self.stage])

    def share(self, elapsed: float) -> float:
        """Return the share of the work that is done."""
        left = self.left(elapsed)
        return 0.0 if math.isnan(left) else elapsed / (elapsed + left) if elapsed + left > 0 else 0.0


class Narrator:
    """Keeps what the events of some work have said so far, and tells it in words.

    Parameters
    ----------
    runs : number of runs of a comparison, if it is known before the first of them has ended

    Attributes
    ----------
    share : share of the work that is done, from 0 to 1
    """

    def __init__(self, runs: int = 0) -> None:
        self.time, self.share, self._elapsed = TimeLeft(), 0.0, 0.0
        self._ended, self._runs = 0, runs
        self._counted, self._step, self._rows = "", 0, 0
        self._value, self._gain = math.nan, math.nan
        self._iteration, self._residual, self._rate = 0, math.nan, math.nan

    def listen(self, event: Event) -> None:
        """Take note of an event."""
        payload, self._elapsed = event.payload, event.seconds
        match event.kind:
            case EventKind.PLAN:
                self.time = TimeLeft()
                self.time.start(payload)
            case EventKind.STAGE:
                self._rows = payload.rows
                self.time.enter(payload.rows, event.seconds)
            case EventKind.STEP:
                self._step, self._value, self._gain = len(payload.state.steps), payload.step.value, payload.step.gain
            case EventKind.ITERATION:
                self._iteration, self._residual = payload.iteration, float(payload.relative_residuals.max())
                self._rate = payload.iteration / payload.seconds if payload.iteration and payload.seconds else math.nan
            case EventKind.CHUNK:
                self.share, self._counted = (
                    payload.done / payload.total,
                    f"{payload.done:,} of {payload.total:,} points",
                )
            case EventKind.METHOD:
                self._ended, self._runs = payload.number, payload.runs
                self.time, self._counted = TimeLeft(), f"{payload.number} of {payload.runs} runs"
            case _:
                pass
        if event.kind is EventKind.END:
            self.share = 1.0
        elif self._runs:  # each counts alike; how far one of them is nobody knows
            self.share = self._ended / self._runs
        elif self.time.ends and event.kind is not EventKind.CHUNK:
            self.share = min(self.time.share(event.seconds), 0.99)

    def line(self) -> str:
        """Return how far the work is: what is counted, rows and steps of learning, its criterion, time left."""
        left = 0.0 if self.share == 1 or self._runs else self.time.left(self._elapsed)
        parts = {
            self._counted: bool(self._counted),
            f"{self._rows:,} rows, step {self._step}": self._rows > 0,
            f"evidence {self._value:.1f}": not math.isnan(self._value),
            f"predicted gain {self._gain:.2g}": math.isnan(self._value) and not math.isnan(self._gain),
            f"about {in_time(left)} left": left >= SHORTEST,
        }
        return ", ".join(words for words, known in parts.items() if known)

    def details(self) -> str:
        """Return how the linear solve goes, and how much memory the process holds."""
        held = resident_bytes()
        parts = {
            f"iteration {self._iteration}, residual {self._residual:.0e}": self._iteration > 0,
            f"{self._rate:.3g} products a second": not math.isnan(self._rate),
            f"memory {in_bytes(held or 0)}": held is not None,
        }
        return ", ".join(words for words, known in parts.items() if known)


def show_progress(label: str = "progress") -> Listener:
    """Return a callback that shows the progress of a fit, a prediction or a comparison.

    In a notebook it draws a bar that moves, without widgets; elsewhere it writes a line to the standard error every
    ten seconds. Each shows rows, steps, the criterion or the gain that the search still predicts, the residual of the
    linear solve, products a second, memory, and the time left.

    Parameters
    ----------
    label : the word in front

    Returns
    -------
    Listener : for the parameter ``callback`` of ``fit``, ``predict`` and `kernelcg.compare`

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg import GPRegressor
    >>> from kernelcg.progress import show_progress
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = GPRegressor().fit(X, np.sin(X[:, 0]), callback=show_progress("learning"))
    """
    display = _notebook()
    return in_lines(label, sys.stderr) if display is None else in_notebook(label, display)


def every(seconds: float, show: Callable[[Narrator], None], *, at_the_end: bool = True, runs: int = 0) -> Listener:
    """Return a callback that shows what is known at most once in so many seconds, and if wanted at the end."""
    narrator, last = Narrator(runs), [time.monotonic()]

    def listen(event: Event) -> None:
        narrator.listen(event)
        if time.monotonic() - last[0] >= seconds or (at_the_end and narrator.share == 1):
            last[0] = time.monotonic()
            show(narrator)

    return listen


def in_lines(label: str, stream: IO[str], seconds: float = PLAIN_SECONDS) -> Listener:
    """Return a callback that writes a line to a stream every so many seconds."""

    def write(known: Narrator) -> None:
        print(f"{label:<13}{known.line()}; {known.details()}", file=stream, flush=True)

    return every(seconds, write, at_the_end=False)


def in_notebook(label: str, display: Callable[[str], Callable[[str], None]]) -> Listener:
    """Return a callback that draws a bar; ``display`` shows HTML and returns a function that replaces it."""
    replace = display(_bar(label, 0.0, "", ""))
    return every(LIVE_SECONDS, lambda known: replace(_bar(label, known.share, known.line(), known.details())))


def _bar(label: str, share: float, line: str, details: str) -> str:
    """Return a bar with words beside and below it, as HTML."""
    words, small = html.escape(line), html.escape(details)
    bar = f'<progress value="{share:.3f}" max="1" style="width: 18em"></progress>'
    return f"<div>{html.escape(label)} {bar} {words}<br><small>{small}</small></div>"


def _notebook() -> Callable[[str], Callable[[str], None]] | None:
    """Return a function that shows HTML in the notebook in which this runs; None elsewhere."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import HTML, display

    shell: Any = get_ipython()
    if shell is None or "IPKernelApp" not in shell.config:
        return None

    def shown(code: str) -> Callable[[str], None]:
        handle = display(HTML(code), display_id=True)
        return lambda changed: handle.update(HTML(changed))

    return shown
