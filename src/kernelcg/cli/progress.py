"""Progress on a terminal: a line that moves, or plain lines where the output goes elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kernelcg.events import Event, Listener
from kernelcg.progress import LIVE_SECONDS, Narrator, every, in_lines


@contextmanager
def shown(console: Console, label: str, *, hint: str = "", quiet: bool = False, runs: int = 0) -> Iterator[Listener]:
    """Give a listener that shows the progress of some work, or of so many runs, while this lasts."""
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        columns = (TextColumn("[bold cyan]{task.description:<12}"), BarColumn(18), TextColumn("{task.fields[words]}"))
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(label, total=1.0, words="")

            def update(known: Narrator) -> None:
                words = f"{known.line()}   {hint}\n[dim]{known.details()}"
                progress.update(task, completed=known.share, words=words)

            yield every(LIVE_SECONDS, update, runs=runs)
    else:
        lines = in_lines(label, console.file)

        def listen(event: Event) -> None:
            with suppress(BrokenPipeError):  # nobody reads the lines any more
                lines(event)

        yield listen
