"""The commands; each reads files, calls the library, prints lines, and ends with a code that means something.

0: done, and the numbers are certified; 2: the input cannot be used; 3: done, but the numbers are not certified;
130: interrupted, with a checkpoint to go on from or before there was anything to keep. A fit that is interrupted
without a checkpoint writes the best model so far and ends with 0 or 3.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kernelcg.cli.codes import BAD_INPUT, INTERRUPTED, NOT_CERTIFIED
from kernelcg.cli.options import (
    AsJson,
    Data,
    Delimiter,
    Encoding,
    Force,
    Quiet,
    Seed,
    TableOptions,
    Target,
    TaskName,
    of_a_table,
)

app = typer.Typer(
    name="kernelcg",
    help="Exact Gaussian processes for tables: fit, predict, report. Exact, or it tells you.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Start with [bold]kernelcg demo[/], or [bold]kernelcg fit data.csv --target price --out model.kcg[/].",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import kernelcg

        print(f"kernelcg {kernelcg.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact Gaussian processes for tables: fit, predict, report. Exact, or it tells you."""


@contextmanager
def _explained(checkpoint: Path | None = None) -> Iterator[None]:
    """Turn errors that a user can mend, and interruptions, into one line and a code."""
    from kernelcg.cli.interrupts import ended_by_the_second
    from kernelcg.errors import ModelFileError, SolveFailed

    try:
        with ended_by_the_second():
            yield
    except (ValueError, TypeError, MemoryError) as error:
        kind = "model file" if isinstance(error, ModelFileError) else "error"
        _fail(f"{kind}: {error}")
    except OSError as error:
        _fail(f"error: {_reason(error)}")
    except SolveFailed as error:
        print(f"kernelcg: {error}", file=sys.stderr)
        raise typer.Exit(NOT_CERTIFIED) from None
    except KeyboardInterrupt:
        kept = f"{checkpoint} keeps the state: the same command with --resume goes on" if checkpoint else ""
        known = kept if checkpoint is not None and checkpoint.exists() else "nothing was written"
        print(f"kernelcg: interrupted; {known}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _reason(error: OSError) -> str:
    """Say in words what went wrong with a file."""
    match error:
        case FileNotFoundError() if error.filename:
            return f"there is no file {error.filename}"
        case PermissionError() if error.filename:
            return f"you have no permission to read or to write {error.filename}"
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"


def _fail(message: str) -> None:
    print(f"kernelcg: {message}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT) from None


def _require_new(path: Path | None, force: bool, remedy: str = "use --force to replace it, or another name") -> None:
    """Refuse to replace a file, or to write where nothing can be written, before the work starts."""
    if path is None:
        return
    if path.exists() and not force:
        _fail(f"error: {path} exists; {remedy}")
    if path.is_dir():
        _fail(f"error: {path} is a directory; give the name of a file")
    if not path.resolve().parent.is_dir():
        _fail(f"error: there is no directory {path.resolve().parent}; create it")
    if not os.access(path.resolve().parent, os.W_OK):
        _fail(f"error: you have no permission to write into {path.resolve().parent}")


def _require_different(files: dict[str, Path | None]) -> None:
    """Refuse to write two files to the same place, or one over what is read."""
    seen = dict[Path, str]()
    for role, path in files.items():
        first = role if path is None else seen.setdefault(path.resolve(), role)
        if first != role:
            _fail(f"error: {first} and {role} are the same file, {path}; give them different names")


@app.command(
    epilog="Example: kernelcg fit houses.csv --target price --out houses.kcg --checkpoint run.kcg; after an "
    "interruption the same with --resume goes on to the same numbers."
)
@of_a_table
def fit(
    table: TableOptions,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write the model.")] = None,
    held_out: Annotated[bool, typer.Option(help="Learn on 90 % of the rows and score the rest first.")] = True,
    checkpoint: Annotated[Path | None, typer.Option(help="File that keeps the state of learning.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    report: Annotated[bool, typer.Option(help="Write a page beside the model.")] = True,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model to a table, score it on rows held out, and write it to a file."""
    with _explained(checkpoint):
        from kernelcg.cli.fitting import FitRequest, prepared_table, run_fit
        from kernelcg.tables.reading import TableError

        if resume and (checkpoint is None or not checkpoint.exists()):
            raise TableError(
                f"there is no checkpoint {checkpoint} to go on from" if checkpoint else "--resume needs --checkpoint"
            )
        _require_new(out, force)
        page = out.with_suffix(".html") if out is not None and report else None
        _require_new(page, force)
        _require_new(checkpoint, force or resume, "use --resume to go on from it, or --force to begin again")
        _require_different({"--out": out, "the page": page, "--checkpoint": checkpoint, "the data": Path(table.data)})
        request = FitRequest(out, page, table.seed, held_out, checkpoint, resume, quiet or as_json, as_json)
        code = run_fit(prepared_table(table, quiet=quiet), request)
    raise typer.Exit(code)


@app.command(epilog="Example: kernelcg plan houses.csv --target price --memory 2GB")
@of_a_table
def plan(table: TableOptions, as_json: AsJson = False) -> None:
    """Say what a fit would do, how long it would take and how much memory, without doing it."""
    with _explained():
        from kernelcg.cli import words
        from kernelcg.cli.fitting import prepared_table

        prepared = prepared_table(table)
        made = prepared.estimator.plan(prepared.X, prepared.y)
        if as_json:
            found = {"rows": made.rows, "features": made.features, "method": str(made.method), "backend": made.backend}
            found |= {"seconds": made.seconds, "bytes": made.bytes, "memory": made.budget, "reason": made.reason}
            words.say(json.dumps(found) + "\n")
        else:
            words.show("\n".join([*words.of_table(prepared), words.line("plan", words.of_plan(made)), made.explain()]))


@app.command(epilog="Example: kernelcg predict houses.kcg new_houses.csv --out prices.csv --interval 90")
def predict(
    model: Annotated[Path, typer.Argument(help="A model that kernelcg fit has written.")],
    data: Data,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV or Parquet file; else CSV is printed.")] = None,
    interval: Annotated[float, typer.Option(help="Per cent of new observations that the interval should cover.")] = 95,
    keep: Annotated[bool, typer.Option("--keep", help="Write the columns of the data as well.")] = False,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict the target for every row of a table."""
    with _explained():
        from kernelcg.cli.fitting import run_predict
        from kernelcg.tables.reading import TableError

        if not 0 < interval < 100:
            raise TableError(f"--interval must lie between 0 and 100 per cent, not {interval:g}")
        _require_new(out, force)
        _require_different({"the model": model, "--out": out, "the data": Path(data)})
        code = run_predict(
            model,
            data,
            out=out,
            interval=interval / 100,
            keep=keep,
            delimiter=delimiter,
            encoding=encoding,
            quiet=quiet,
        )
    raise typer.Exit(code)


@app.command(epilog="Example: kernelcg info houses.kcg")
def info(model: Annotated[Path, typer.Argument(help="A model file.")], as_json: AsJson = False) -> None:
    """Say what a model file holds: target, columns, kernel, scores, certificate."""
    with _explained():
        from kernelcg.cli.fitting import run_info

        run_info(model, as_json=as_json)


@app.command(epilog="Example: kernelcg compare houses.csv --target price --budget 20 --out comparison.png")
def compare(
    data: Data,
    target: Target,
    budget: Annotated[float, typer.Option(help="Seconds of training for each method.")] = 30.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to draw the picture (.png, .svg).")] = None,
    task: TaskName = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare kernelcg with Cholesky, CG, the paper's PCG, FITC, PITC and VAR on a table."""
    with _explained():
        from kernelcg.cli.fitting import run_compare

        _require_new(out, force)
        table = TableOptions(data, target, task=task, seed=seed, delimiter=delimiter, encoding=encoding)
        run_compare(table, budget=budget, out=out, quiet=quiet or as_json, as_json=as_json)


@app.command(epilog="Example: kernelcg solve X.npy b.npy --kernel rbf --lengthscale 0.5 --noise 0.1 --out a.npy")
def solve(
    X: Annotated[Path, typer.Argument(help="Data, npy of shape (n, d).")],
    b: Annotated[Path, typer.Argument(help="Right-hand sides, npy of shape (n,) or (n, k).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the solution, npy.")],
    kernel: Annotated[str, typer.Option(help="rbf, matern12, matern32 or matern52.")] = "matern32",
    lengthscale: Annotated[float, typer.Option(help="One lengthscale for all features.")] = 1.0,
    variance: Annotated[float, typer.Option(help="Variance of the kernel.")] = 1.0,
    noise: Annotated[float, typer.Option(help="What is added to the diagonal.")] = 0.1,
    rtol: Annotated[float, typer.Option(help="Relative residual of every column.")] = 1e-8,
    preconditioner: Annotated[str, typer.Option(help="auto, or the name of a recipe.")] = "auto",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Solve (K + noise I) x = b for a kernel matrix K that is never stored."""
    with _explained():
        from kernelcg.cli.fitting import run_solve

        _require_new(out, force)
        code = run_solve(X, b, out, kernel, lengthscale, variance, noise, rtol, preconditioner, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def bench(rows: Annotated[int, typer.Option(help="Rows of the test product.")] = 10_000) -> None:
    """Measure this machine: what products and factorisations cost, and what fits of many rows would take."""
    with _explained():
        from kernelcg.cli.machine import run_bench

        run_bench(rows)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where the demonstration writes its files.")] = Path(
        "demo"
    ),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit a table of houses that comes with kernelcg, predict, and write a report: about a minute."""
    with _explained():
        from kernelcg.cli.machine import DEMO_FILES, run_demo

        if folder.exists():
            for name in DEMO_FILES:
                _require_new(folder / name, force)
        code = run_demo(folder, quiet=quiet)
    raise typer.Exit(code)


@app.command(name="report", epilog="Example: kernelcg report houses.kcg --out houses.html")
def write_report(
    model: Annotated[Path, typer.Argument(help="A model that kernelcg fit has written.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page; MODEL.html unless given.")] = None,
    force: Force = False,
) -> None:
    """Write a page about a model that opens offline: data, learning, calibration, relevance, certificate."""
    with _explained():
        from kernelcg.cli.fitting import run_report

        page = out or model.with_suffix(".html")
        _require_different({"the model": model, "the page": page})
        _require_new(page, force)
        run_report(model, page)
