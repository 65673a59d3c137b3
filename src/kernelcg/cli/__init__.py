"""The command ``kernelcg``; the only layer that prints."""

import sys

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
        raise SystemExit(2)
    from kernelcg.cli.app import app

    app()
