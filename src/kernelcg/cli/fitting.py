"""What the commands about models do once their arguments are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from kernelcg.cli import words
from kernelcg.cli.codes import CERTIFIED, INTERRUPTED, NOT_CERTIFIED
from kernelcg.cli.progress import shown
from kernelcg.estimators.training_files import checkpoints
from kernelcg.events import Listener, together
from kernelcg.planning.plan import in_bytes
from kernelcg.tables.fitting import Fitted, Prepared, fit_table
from kernelcg.tables.model import load_table_model
from kernelcg.tables.reading import TableError, read_table

PREDICTIONS = (".csv", ".gz", ".txt", ".parquet", ".pq")
"""Endings of files of predictions."""

HINT = "(Ctrl-C keeps the best so far)"


def run_fit(
    prepared: Prepared,
    console: Console,
    *,
    out: Path | None,
    page: Path | None,
    seed: int,
    hold_out: bool,
    checkpoint: Path | None,
    resume: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Fit a model, say what came out, write it, and return the code to end with."""

    def say(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    say("\n".join(words.of_table(prepared)))
    planned = prepared.estimator.plan(prepared.X, prepared.y)
    say(words.line("plan", words.of_plan(planned)))
    saving: Listener | None = None if checkpoint is None else checkpoints(checkpoint)
    with shown(console, "learning", hint=HINT, quiet=quiet) as progress:
        fitted = fit_table(
            prepared,
            hold_out=hold_out,
            seed=seed,
            callback=together(progress, saving),
            resume=checkpoint if resume else None,
        )
    say("\n".join(words.of_model(fitted.model)))
    for warning in fitted.warnings:
        say(words.line("warning", warning))
    say(words.line("numerics", words.of_numerics(fitted.model.estimator)))
    saved = []
    if out is not None:
        fitted.model.save(out)
        saved.append(f"{out} ({in_bytes(out.stat().st_size)})")
    if page is not None:
        from kernelcg.reports import write_page

        write_page(fitted.model, page)
        saved.append(str(page))
    if saved:
        say(words.line("saved", ", ".join(saved)))
    code = _code(fitted)
    if as_json:
        print(json.dumps(_as_json(fitted, code)))
    return code


def _code(fitted: Fitted) -> int:
    if fitted.interrupted and any("interrupted" in warning for warning in fitted.warnings):
        return INTERRUPTED
    return CERTIFIED if words.is_certified(fitted.model.estimator) else NOT_CERTIFIED


def _as_json(fitted: Fitted, code: int) -> dict[str, Any]:
    model = fitted.model
    return {
        **{name: value for name, value in model.facts.items() if name != "held_out"},
        "target": model.target,
        "task": str(model.task),
        "kernel": str(model.estimator.kernel_),
        "log_marginal_likelihood": model.estimator.log_marginal_likelihood_value_,
        "numerics": words.of_numerics(model.estimator),
        "certified": code == CERTIFIED,
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
) -> int:
    """Predict for every row of a table, write or print the predictions, and return the code to end with."""
    if out is not None and out.suffix.lower() not in PREDICTIONS:
        raise TableError(f"predictions are written as .csv, .csv.gz or .parquet, not as {out.suffix or out.name!r}")
    fitted, table = load_table_model(model), read_table(data, delimiter=delimiter, encoding=encoding)
    console = Console(stderr=True)
    for name, levels in fitted.encoding.unseen(table.frame).items():
        shown_levels = ", ".join(map(repr, levels[:5])) + (", …" if len(levels) > 5 else "")
        note = f"note: {name!r} has categories that the fit has not seen: {shown_levels}"
        console.print(note, highlight=False, markup=False)
    for name, count in fitted.encoding.newly_missing(table.frame).items():
        note = f"note: {name!r} is missing in {count:,} rows, and was in none of the fit: its median stands for it"
        console.print(note, highlight=False, markup=False)
    with shown(console, "predicting", quiet=quiet) as progress:
        found = fitted.predict(table.frame, interval=interval, callback=progress)
    if keep:
        found = table.frame.join(found, rsuffix=" (predicted)")
    if out is None:
        print(found.to_csv(index=False), end="")
    elif out.suffix.lower() in (".parquet", ".pq"):
        found.to_parquet(out, index=False)
    else:
        found.to_csv(out, index=False)
    return CERTIFIED if words.is_certified(fitted.estimator) else NOT_CERTIFIED


def run_info(path: Path, *, as_json: bool) -> None:
    """Say what a model file holds."""
    model = load_table_model(path)
    if as_json:
        known = {name: value for name, value in model.facts.items() if name != "held_out"}
        print(
            json.dumps(
                {**known, "target": model.target, "task": str(model.task), "kernel": str(model.estimator.kernel_)}
            )
        )
        return
    lines = [
        words.line("model", f"{path}, {in_bytes(path.stat().st_size)}, fitted to {model.facts.get('source', '?')}"),
        words.line("target", f"{model.target}: {model.task}, {model.facts.get('rows', 0):,} rows"),
        words.line("columns", words.of_columns(model.encoding)),
        words.line("kernel", str(model.estimator.kernel_)),
        *words.of_model(model),
        words.line("numerics", words.of_numerics(model.estimator)),
    ]
    print("\n".join(lines))


def run_report(path: Path, page: Path) -> None:
    """Write the page about a model."""
    from kernelcg.reports import write_page

    write_page(load_table_model(path), page)
    print(words.line("saved", str(page)))


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
    with out.open("wb") as stream:
        np.save(stream, report.solution.cpu().numpy().reshape(right.shape))
    print(report)
    print(words.line("saved", str(out)))
    return CERTIFIED if report.status is Status.CONVERGED else NOT_CERTIFIED


def _array(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise TableError(f"{path} is no npy file of numbers ({error})") from None
