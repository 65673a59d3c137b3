"""What the commands about models do once their arguments are read."""

import gzip
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from kernelcg.cli import words
from kernelcg.cli.codes import CERTIFIED, INTERRUPTED, NOT_CERTIFIED
from kernelcg.cli.options import TableOptions
from kernelcg.cli.progress import shown
from kernelcg.estimators.model_files import replace_file
from kernelcg.estimators.training_files import checkpoints
from kernelcg.events import Listener, together
from kernelcg.planning.plan import in_bytes, in_time
from kernelcg.tables.fitting import Fitted, Prepared, fit_table, prepare
from kernelcg.tables.model import TableModel, load_table_model
from kernelcg.tables.reading import Table, TableError, memory_to_read, read_table
from kernelcg.tables.task import Task, task_named

PREDICTIONS = (".csv", ".gz", ".txt", ".parquet", ".pq")
"""Endings of files of predictions."""

HINT = "(Ctrl-C keeps the best so far)"

LARGE_FILE = 200_000_000
"""Bytes of memory from which on it is said what reading a file takes."""


@dataclass(frozen=True)
class FitRequest:
    """What a fit is to write, and how it is to be shown.

    Attributes
    ----------
    out, page, checkpoint : files to write, or None
    hold_out : whether a tenth of the rows is scored first
    resume : whether to go on from the checkpoint
    """

    out: Path | None
    page: Path | None
    seed: int = 0
    hold_out: bool = True
    checkpoint: Path | None = None
    resume: bool = False
    quiet: bool = False
    as_json: bool = False


def prepared_table(options: TableOptions, *, quiet: bool = False) -> Prepared:
    """Read a table and return what a fit to it needs; say first what reading takes if that is much."""
    table = _read(options.data, options.delimiter, options.encoding, quiet=quiet)
    return prepare(
        table,
        options.target,
        task=task_named(options.task),
        options=options.of_estimator(),
        categorical=tuple(options.categorical or ()),
        left_out=tuple(options.leave_out or ()),
        season=options.season,
    )


def _read(data: str, delimiter: str | None, encoding: str | None, *, quiet: bool) -> Table:
    """Return the table in a file; say first what reading takes if that is much."""
    needed = memory_to_read(data)
    if needed is not None and needed > LARGE_FILE and not quiet:
        words.note(f"reading {data} takes about {in_bytes(needed)} of memory")
    return read_table(data, delimiter=delimiter, encoding=encoding)


def run_fit(prepared: Prepared, request: FitRequest) -> int:
    """Fit a model, say what came out, write it, and return the code to end with."""

    def say(text: str) -> None:
        if not request.as_json:
            words.show(text)

    say("\n".join(words.of_table(prepared)))
    planned = prepared.estimator.plan(prepared.X, prepared.y)
    say(words.line("plan", words.of_plan(planned)))
    limit, last = prepared.estimator.max_seconds, planned.conditioning.seconds
    if limit is not None and planned.seconds - last > limit:
        rest = f"conditioning on all rows then takes about {in_time(last)}"
        say(words.line("note", f"learning ends after {in_time(limit)} with the best so far; {rest}"))
    saving: Listener | None = None if request.checkpoint is None else checkpoints(request.checkpoint)
    with shown(Console(stderr=True), "learning", hint=HINT, quiet=request.quiet) as progress:
        fitted = fit_table(
            prepared,
            hold_out=request.hold_out,
            seed=request.seed,
            callback=together(progress, saving),
            resume=request.checkpoint if request.resume else None,
        )
    say("\n".join(words.of_model(fitted.model)))
    for warning in fitted.warnings:
        say(words.line("warning", warning))
    say(words.line("numerics", words.of_numerics(fitted.model)))
    for written in _saved(fitted.model, request):
        say(words.line("saved", written))
    code = _code(fitted, request.checkpoint)
    if request.as_json:
        words.say(json.dumps(_as_json(fitted)) + "\n")
    return code


def _saved(model: TableModel, request: FitRequest) -> Iterator[str]:
    """Write the model and its page, and say of each when it is there: the page may fail when the model is safe."""
    if request.out is not None:
        model.save(request.out)
        yield f"{request.out} ({in_bytes(request.out.stat().st_size)})"
    if request.page is not None:
        from kernelcg.reports import write_page

        write_page(model, request.page)
        yield f"{request.page} (open it in a browser: it needs no network)"


def _code(fitted: Fitted, checkpoint: Path | None) -> int:
    """Return the code of a fit: interrupted if one can go on from a checkpoint, else whether numbers are certified."""
    if fitted.interrupted and checkpoint is not None:
        return INTERRUPTED
    return CERTIFIED if fitted.model.is_certified else NOT_CERTIFIED


def _as_json(fitted: Fitted) -> dict[str, Any]:
    model = fitted.model
    return {
        **{name: value for name, value in model.facts.items() if name != "held_out"},
        "target": model.target,
        "task": str(model.task),
        "kernel": str(model.estimator.kernel_),
        "log_marginal_likelihood": model.estimator.log_marginal_likelihood_value_,
        "numerics": words.of_numerics(model),
        "certified": model.is_certified,
        "interrupted": fitted.interrupted,
    }


def run_predict(
    model: Path,
    data: str,
    *,
    out: Path | None,
    interval: float,
    keep: bool,
    delimiter: str | None,
    encoding: str | None,
    quiet: bool,
    digits: int = 10,
) -> int:
    """Predict for every row of a table, write or print the predictions, and return the code to end with."""
    if out is not None and out.suffix.lower() not in PREDICTIONS:
        raise TableError(f"predictions are written as .csv, .csv.gz or .parquet, not as {out.suffix or out.name!r}")
    fitted, table = load_table_model(model), _read(data, delimiter, encoding, quiet=quiet)
    frame = table.with_words(fitted.encoding.categories())
    for note in [*table.notes, *_notes(fitted, frame)]:
        words.note(note)
    with shown(Console(stderr=True), "predicting", quiet=quiet) as progress:
        found = fitted.predict(frame, interval=interval, callback=progress)
    if keep:
        found = frame.join(found, rsuffix=" (predicted)")
    if out is None:
        words.say(found.to_csv(index=False, float_format=f"%.{digits}g"))
    else:
        replace_file(out, _encoded(found, out.suffix.lower(), digits))
        words.show(words.line("saved", f"{out} ({len(found):,} rows)"))
    return CERTIFIED if fitted.is_certified else NOT_CERTIFIED


def _notes(model: TableModel, frame: pd.DataFrame) -> list[str]:
    """Say what a table holds that the fit has not seen, and what is not certified."""
    found = []
    for name, levels in model.encoding.unseen(frame).items():
        shown_levels = words.listed([repr(level) for level in levels], 5)
        found.append(f"{name!r} has categories that the fit has not seen: {shown_levels}")
    for name, count in model.encoding.newly_missing(frame).items():
        rows = "1 row" if count == 1 else f"{count:,} rows"
        found.append(f"{name!r} is missing in {rows}, and was in none of the fit: its median stands for it")
    if not model.is_certified:
        found.append(f"the predictions are not certified: {words.of_numerics(model)}")
    return found


def _encoded(predictions: pd.DataFrame, ending: str, digits: int) -> bytes:
    """Return predictions as the content of a file with this ending."""
    if ending in (".parquet", ".pq"):
        stream = io.BytesIO()
        predictions.to_parquet(stream, index=False)
        return stream.getvalue()
    text: bytes = predictions.to_csv(index=False, float_format=f"%.{digits}g").encode()
    return gzip.compress(text) if ending == ".gz" else text


def run_info(path: Path, *, as_json: bool) -> None:
    """Say what a model file holds."""
    model = load_table_model(path)
    if as_json:
        known = {name: value for name, value in model.facts.items() if name != "held_out"}
        known |= {"target": model.target, "task": str(model.task), "kernel": str(model.estimator.kernel_)}
        words.say(json.dumps(known) + "\n")
        return
    lines = [
        words.line("model", f"{path}, {in_bytes(path.stat().st_size)}, fitted to {model.facts.get('source', '?')}"),
        words.line("target", f"{model.target}: {model.task}, {model.facts.get('rows', 0):,} rows"),
        words.line("columns", words.of_columns(model.encoding)),
        words.line("kernel", str(model.estimator.kernel_)),
        *words.of_model(model),
        words.line("numerics", words.of_numerics(model)),
    ]
    words.show("\n".join(lines))


def run_report(path: Path, page: Path) -> None:
    """Write the page about a model."""
    from kernelcg.reports import write_page

    write_page(load_table_model(path), page)
    words.show(words.line("saved", str(page)))


def run_compare(options: TableOptions, *, budget: float, out: Path | None, quiet: bool, as_json: bool) -> None:
    """Compare methods on a table, say how they did, and draw it."""
    from kernelcg.comparison import compare
    from kernelcg.comparison.compare_methods import DEFAULT

    prepared = prepared_table(options, quiet=quiet)
    kind = "classification" if prepared.target.task is Task.CLASSIFICATION else "regression"
    with shown(Console(stderr=True), "comparing", quiet=quiet, runs=len(DEFAULT)) as progress:
        found = compare(prepared.X, prepared.y, task=kind, budget=budget, seed=options.seed, callback=progress)
    words.say(f"{json.dumps(_plain(found.table())) if as_json else found}\n")
    if out is not None:
        found.plot(out)
        if not as_json:
            words.show(words.line("drawn", str(out)))


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in which numbers that are not known are null, since JSON has no NaN."""
    return [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in rows
    ]


def run_solve(
    X: Path,
    b: Path,
    out: Path,
    kernel: str,
    lengthscale: float,
    variance: float,
    noise: float,
    rtol: float,
    recipe: str,
    *,
    as_json: bool = False,
) -> int:
    """Solve a kernel system from files, say how it went, and return the code to end with."""
    from kernelcg import kernels, planning
    from kernelcg.arguments import positive
    from kernelcg.backends import bind
    from kernelcg.operators import KernelPlusDiagonal
    from kernelcg.solvers import Status, Stopping

    known = {"rbf": None, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
    if kernel not in known:
        raise TableError(f"--kernel must be one of {', '.join(known)}, not {kernel!r}")
    nu = known[kernel]
    sizes = positive(lengthscale, "--lengthscale"), positive(variance, "--variance")
    chosen = kernels.RBF(*sizes) if nu is None else kernels.Matern(*sizes, nu=nu)
    points, right = _array(X), _array(b)
    A = KernelPlusDiagonal(bind(chosen, points), positive(noise, "--noise"))
    report = planning.solve(A, right.reshape(len(right), -1), preconditioner=recipe, stopping=Stopping(rtol=rtol))
    stream = io.BytesIO()
    np.save(stream, report.solution.cpu().numpy().reshape(right.shape))
    replace_file(out, stream.getvalue())
    if as_json:
        residual, steps = float(report.relative_residuals.max()), int(report.iterations.max())
        found = {"status": report.status.name, "relative_residual": residual, "iterations": steps}
        words.say(json.dumps(found) + "\n")
    else:
        words.show(f"{report}\n{words.line('saved', str(out))}")
    return CERTIFIED if report.status is Status.CONVERGED else NOT_CERTIFIED


def _array(path: Path) -> Any:
    """Return the matrix or vector of numbers in an npy file."""
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise TableError(f"{path} is no npy file of numbers ({error})") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise TableError(f"{path} holds several arrays ({', '.join(found.files)}); solve takes npy files of one array")
    if found.dtype.kind not in "biuf" or found.ndim not in (1, 2):
        raise TableError(f"{path} must hold a matrix or a vector of numbers, not {found.dtype} of shape {found.shape}")
    return found.astype(np.float64)
