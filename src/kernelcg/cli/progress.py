"""Progress of a fit or a prediction, told from its events: a live line on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kernelcg.events import Event, EventKind, Listener
from kernelcg.planning import Plan
from kernelcg.planning.plan import in_time

PLAIN_SECONDS = 10.0
"""Seconds between lines where there is no terminal."""


class TimeLeft:
    """How long a fit still takes: what its plan expects, corrected by how long the stages so far really took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rows: list[int] = []
        self.stage = 0
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
        if reached > self.stage and self.ends[reached - 1] > 0:
            self.scale = elapsed / self.ends[reached - 1]
        self.stage = max(self.stage, reached)

    def left(self, elapsed: float) -> float:
        """Return the seconds that are left; NaN before there is a plan."""
        if not self.ends:
            return math.nan
        begun = self.scale * self.ends[self.stage - 1] if self.stage else 0.0
        rest_of_stage = max(self.scale * self.ends[self.stage] - max(elapsed, begun), 0.0)
        return rest_of_stage + self.scale * (self.ends[-1] - self.ends[self.stage])

    def share(self, elapsed: float) -> float:
        """Return the share of the work that is done."""
        left = self.left(elapsed)
        return 0.0 if math.isnan(left) else elapsed / (elapsed + left) if elapsed + left > 0 else 0.0


class Narrator:
    """Turns events into one line of words and a share of the work that is done."""

    def __init__(self) -> None:
        self.time, self.words, self.share = TimeLeft(), "", 0.0
        self.step, self.rows, self.value = 0, 0, math.nan

    def listen(self, event: Event) -> None:
        """Take note of an event."""
        payload = event.payload
        match event.kind:
            case EventKind.PLAN:
                self.time.start(payload)
            case EventKind.STAGE:
                self.rows = payload.rows
                self.time.enter(payload.rows, event.seconds)
            case EventKind.STEP:
                self.step, self.value = len(payload.state.steps), payload.step.value
            case EventKind.CHUNK:
                self.share, self.words = payload.done / payload.total, f"{payload.done:,} of {payload.total:,} points"
                return
            case _:
                pass
        self.share = min(self.time.share(event.seconds), 0.99)
        self.words = self._line(event.seconds)

    def _line(self, elapsed: float) -> str:
        parts = [f"{self.rows:,} rows, step {self.step}"] if self.rows else []
        parts += [] if math.isnan(self.value) else [f"evidence {self.value:.1f}"]
        left = self.time.left(elapsed)
        parts += [] if math.isnan(left) or left <= 0 else [f"about {in_time(left)} left"]
        return ", ".join(parts)


@contextmanager
def shown(console: Console, label: str, *, hint: str = "", quiet: bool = False) -> Iterator[Listener]:
    """Give a listener that shows the progress of some work while this lasts."""
    narrator = Narrator()
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description:<12}"), BarColumn(18), TextColumn("{task.fields[words]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=1.0, words="")

            def update(event: Event) -> None:
                narrator.listen(event)
                progress.update(task, completed=narrator.share, words=f"{narrator.words}   {hint}".rstrip())

            yield update
    else:
        last = [time.monotonic()]

        def line(event: Event) -> None:
            narrator.listen(event)
            if time.monotonic() - last[0] >= PLAIN_SECONDS:
                last[0] = time.monotonic()
                console.print(f"{label:<13}{narrator.words}", highlight=False)

        yield line
