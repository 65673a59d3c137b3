"""Progress on a terminal: a line that moves, or plain lines where the output goes elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kernelcg.events import Event, Listener
from kernelcg.progress import LIVE_SECONDS, Narrator, every, in_lines

NARROW = 80
"""Columns of a terminal below which the label, the bar and the hint leave no room for what is counted."""


@contextmanager
def shown(console: Console, label: str, *, hint: str = "", quiet: bool = False, runs: int = 0) -> Iterator[Listener]:
    """Give a listener that shows the progress of some work, or of so many runs, while this lasts."""
    if quiet:
        yield lambda event: None
    elif console.is_terminal and not console.is_dumb_terminal:
        is_narrow = console.width < NARROW
        words = TextColumn("{task.fields[words]}")
        columns = (words,) if is_narrow else (TextColumn("[bold cyan]{task.description:<12}"), BarColumn(18), words)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=1.0, words="")

            def update(known: Narrator) -> None:
                said = known.line() if is_narrow else f"{known.line()}   {hint}"
                progress.update(task, completed=known.share, words=f"{said}\n[dim]{known.details()}")

            yield every(LIVE_SECONDS, update, runs=runs)
    else:
        lines = in_lines(label, console.file)

        def listen(event: Event) -> None:
            with suppress(BrokenPipeError):  # nobody reads the lines any more
                lines(event)

        yield listen
