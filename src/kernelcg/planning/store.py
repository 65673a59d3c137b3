"""What is measured once on each machine, and stored in the cache directory of the user."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Measured = TypeVar("Measured")

CACHE = "KERNELCG_CACHE"
"""Environment variable: the directory where measurements are stored; empty means that none is."""


def stored(
    kind: str,
    label: str,
    read: Callable[[str], Measured],
    measure: Callable[[], Measured],
    write: Callable[[Measured], str],
) -> Measured:
    """Return what was stored of this kind under a label, or measure it now and store it.

    ``read`` raises `ValueError` for a text that is damaged; it is then measured again.
    """
    path = _path(kind, label)
    if path is not None and path.exists():
        try:
            return read(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            pass
    found = measure()
    if path is not None:
        _write(path, write(found))
    return found


def _path(kind: str, label: str) -> Path | None:
    """Return where a measurement is stored; None where nothing is to be stored."""
    folder = os.environ.get(CACHE)
    if folder == "":
        return None
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
        folder = str((Path(base) if base else Path.home() / ".cache") / "kernelcg")
    return Path(folder) / f"{kind}-{hashlib.blake2b(label.encode(), digest_size=8).hexdigest()}.json"


def _write(path: Path, text: str) -> None:
    """Store a text whole or not at all; a directory that cannot be written to is no reason to fail."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as stream:
            stream.write(text)
        os.replace(stream.name, path)
    except OSError:
        pass
