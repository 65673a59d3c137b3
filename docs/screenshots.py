"""Draws the pictures of the documentation: the terminal during ``kernelcg demo`` and the page that it writes.

python docs/screenshots.py    needs Chromium; writes docs/images/terminal.svg, report.png and report_phone.png
"""

import contextlib
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=10000"
)
COLUMNS = 130
MOVED = re.compile(r"(?:\r?\x1b\[[0-9;?]*[AKhl])+")
"""What a terminal is told between two states of the lines that move."""


def watched(command: list[str], folder: str) -> str:
    """Return all that a command writes to a terminal, the lines that it moves included."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    running = subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while more := os.read(ours, 65536):
            said += more
    if running.wait():
        raise SystemExit(said.decode())
    return said.decode()


def draw_terminal(said: str) -> None:
    """Write what the demonstration shows as a picture of a terminal, in the middle of its learning and at its end."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    states = MOVED.split(said)
    moving = [state for state in states if "learning" in state and "evidence" in state]
    final = "".join(state for state in states if "learning" not in state)
    before, after = final.split("\x1b[1;36mlearned ", 1)
    for text in (before, moving[len(moving) // 3], f"\x1b[1;36mlearned {after}"):
        console.print(Text.from_ansi("\n".join(line.rstrip() for line in text.rstrip().splitlines())))
    svg = console.export_svg(title="kernelcg")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts of the reader: nothing is loaded
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    (IMAGES / "terminal.svg").write_text(svg, encoding="utf-8")


def draw_page(page: Path, size: str, name: str, folder: Path) -> None:
    """Write a picture of the page as a window of this size shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is needed")
    shot = [f"--window-size={size}", f"--user-data-dir={folder / 'profile'}", f"--screenshot={IMAGES / name}"]
    subprocess.run([browser, *FLAGS.split(), *shot, page.as_uri()], check=True, capture_output=True, timeout=120)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-c", "from kernelcg.cli import main; main()", "demo"]
        draw_terminal(watched(command, name))
        page = Path(name) / "demo" / "houses.html"
        draw_page(page, "1240,1500", "report.png", Path(name))
        draw_page(page, "500,1100", "report_phone.png", Path(name))


if __name__ == "__main__":
    main()
