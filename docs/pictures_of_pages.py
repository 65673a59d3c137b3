"""Draws the pictures of the tutorials: runs the examples of each page and keeps the pictures that they write.

python docs/pictures_of_pages.py [map counts …]    without names: all pages; writes docs/images/
"""

import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"\]\(\.\./images/([^)]+)\)")


def draw(page: Path) -> None:
    """Run the examples of a page in an empty folder, and copy the pictures that the page shows."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile("\n".join(BLOCK.findall(text)), str(page), "exec"), {"__name__": "__main__"})
        for name in SHOWN.findall(text):
            if Path(name).exists():
                shutil.copyfile(name, DOCS / "images" / name)
                print(f"{page.name}: {name}", file=sys.stderr)
        os.chdir(DOCS)


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["savefig.dpi"] = 110
    warnings.simplefilter("ignore")
    pages = [DOCS / "tutorials" / f"{name}.md" for name in sys.argv[1:]]
    for page in pages or sorted((DOCS / "tutorials").glob("*.md")):
        if ".savefig(" in (text := page.read_text(encoding="utf-8")) or "save_picture(" in text:
            draw(page)


if __name__ == "__main__":
    main()
