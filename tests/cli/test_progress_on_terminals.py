"""Progress on terminals of all kinds: narrow, dumb, wide."""

import io

import pytest
from rich.console import Console

from kernelcg.cli import progress
from kernelcg.cli.progress import shown
from kernelcg.events import Chunk, Event, EventKind


def said(monkeypatch, width, **environment):
    """Return what a terminal of this width gets while 40 of 80 points are done."""
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.0)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, _environ={"TERM": "xterm", **environment})
    with shown(console, "learning", hint="(Ctrl-C keeps the best so far)") as listen:
        listen(Event(EventKind.CHUNK, 1.0, Chunk(40, 80)))
    return stream.getvalue()


def test_a_wide_terminal_shows_label_bar_and_hint(monkeypatch):
    found = said(monkeypatch, 120)
    for words in ("learning", "━", "40 of 80 points", "Ctrl-C keeps the best so far"):
        assert words in found


def test_a_narrow_terminal_shows_what_is_counted_whole(monkeypatch):
    found = said(monkeypatch, 40)
    assert "40 of 80 points" in found
    assert "…" not in found
    assert "━" not in found


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch, term):
    """Nothing moves there: without lines a person would see nothing for hours."""
    lines = []

    def in_lines(label, stream):
        return lambda event: lines.append(label)

    monkeypatch.setattr(progress, "in_lines", in_lines)
    assert said(monkeypatch, 100, TERM=term) == ""
    assert lines == ["learning"]
