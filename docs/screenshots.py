"""Draws the pictures of the documentation: the terminal during ``kernelcg demo`` and the page that it writes.

python docs/screenshots.py    needs Chromium; writes docs/images/terminal.svg, report.png and report_phone.png
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kernelcg.cli.words import styled

IMAGES = Path(__file__).parent / "images"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=10000"
)
PROGRESS = "learning     {bar}  1,350 rows, step 24, evidence 381.4, about 1 s left   (Ctrl-C keeps the best so far)"


def draw_terminal(said: str) -> None:
    """Write what the demonstration prints as a picture of a terminal, with the line that moves while it learns."""
    console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True, highlight=False)
    before, after = said.split("learned  ", 1)
    console.print(styled(before.rstrip()))
    done, left = "━" * 12, "━" * 6
    moving = Text(PROGRESS.format(bar=done + left))
    moving.stylize("bold cyan", 0, 12)
    moving.stylize("rgb(249,38,114)", 13, 13 + len(done))
    moving.stylize("grey35", 13 + len(done), 13 + len(done) + len(left))
    console.print(moving)
    console.print(styled("learned  " + after.rstrip()))
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
        command = [sys.executable, "-c", "from kernelcg.cli import main; main()", "demo", "--quiet"]
        done = subprocess.run(command, cwd=name, check=True, capture_output=True, text=True)
        draw_terminal(done.stdout)
        page = Path(name) / "demo" / "houses.html"
        draw_page(page, "1240,1500", "report.png", Path(name))
        draw_page(page, "500,1100", "report_phone.png", Path(name))


if __name__ == "__main__":
    main()
