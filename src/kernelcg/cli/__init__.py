"""The command ``kernelcg``; the only layer that prints."""

import io
import sys

from kernelcg.cli.codes import BAD_INPUT, INTERRUPTED

NEEDED = ("typer", "rich", "pandas")


def main() -> None:
    """Run the command, or say what it lacks."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"kernelcg: the command line needs {', '.join(missing)}; install it by: pip install 'kernelcg[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(BAD_INPUT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an encoding without the letters of a column is no reason to end
            stream.reconfigure(errors="backslashreplace")
    try:
        from kernelcg.cli.app import app

        app()
    except KeyboardInterrupt:  # before a command has begun
        print("kernelcg: interrupted; nothing was written", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
