"""Fitting a model to a table: learn on nine tenths of the rows, score the rest, then condition on all rows."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from kernelcg.estimators import GPClassifier, GPGeneralizedRegressor, GPRegressor
from kernelcg.estimators.relevance import relevances
from kernelcg.events import Listener
from kernelcg.tables import advice
from kernelcg.tables.columns import Encoding
from kernelcg.tables.diagnostics import convergence, surprises, unforeseen
from kernelcg.tables.model import TableModel
from kernelcg.tables.readable import readable
from kernelcg.tables.reading import Table, TableError
from kernelcg.tables.scores import HeldOut
from kernelcg.tables.task import Target, Task, target_of

FEWEST_ROWS = 20
"""Rows below which none is held out."""

HELD_OUT = 0.1
"""Share of the rows that is held out."""

MOST_LABELS = 6
"""Classes whose frequency is said."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table ready for a fit: features and target of the rows in which the target is present."""

    source: str
    encoding: Encoding
    target: Target
    X: NDArray[np.float64]
    y: Any
    estimator: Any
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model of a table, and how it was fitted.

    Attributes
    ----------
    model : the model, conditioned on all rows
    prepared : the rows that it was fitted to
    held_out : numbers of the rows that were held out while it was learned
    warnings : what was warned of
    interrupted : whether the user ended learning by Ctrl-C
    """

    model: TableModel
    prepared: Prepared
    held_out: NDArray[np.int64]
    warnings: tuple[str, ...]
    interrupted: bool


def prepare(
    table: Table,
    target: str,
    *,
    task: Task | None = None,
    options: Mapping[str, Any] | None = None,
    categorical: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    season: bool = False,
) -> Prepared:
    """Return what a fit to a table needs; nothing is learned yet.

    Parameters
    ----------
    options : parameters of the estimator: `GPRegressor` for a regression, `GPClassifier` for classes,
        `GPGeneralizedRegressor` with a negative binomial likelihood for counts
    categorical, left_out, season : as in `Encoding.of`
    """
    found = target_of(table.frame, target, task)
    if len(found.values) < 2:
        raise TableError(f"{table.name} has one row with {target!r}; a model needs at least two")
    frame = table.with_words(categorical).drop(columns=target)[found.present]
    encoding = Encoding.of(frame, categorical=categorical, left_out=left_out, season=season)
    dropped = int((~found.present).sum())
    notes = [*table.notes, *([f"{dropped:,} rows without {target!r} were left out"] if dropped else [])]
    notes += advice.of_columns(frame, encoding, found)
    estimator = _estimator(found.task, dict(options or {}))
    return Prepared(table.name, encoding, found, encoding.features(frame), found.values, estimator, tuple(notes))


def _estimator(task: Task, options: dict[str, Any]) -> Any:
    """Return the estimator of a task."""
    cls = {Task.REGRESSION: GPRegressor, Task.CLASSIFICATION: GPClassifier, Task.COUNTS: GPGeneralizedRegressor}[task]
    if task is Task.COUNTS:
        options = {"likelihood": "negative_binomial", **options}
    known = cls().get_params(deep=False)
    wrong = [name for name in options if name not in known]
    if wrong:
        raise TableError(f"{cls.__name__} has no option {wrong[0]!r}; it has {', '.join(known)}")
    return cls(**options)


def fit_table(
    prepared: Prepared,
    *,
    hold_out: bool = True,
    seed: int = 0,
    callback: Listener | None = None,
    resume: Any = None,
) -> Fitted:
    """Learn the hyperparameters, score them on rows held out, and condition the model on all rows.

    Parameters
    ----------
    prepared : what `kernelcg.tables.fitting.prepare` made of a table
    seed : by which rows are held out
    hold_out : whether a tenth of the rows is kept from learning; a model that was learned from the other rows is
        scored on them, and then conditioned on all rows with the same hyperparameters
    callback, resume : as in `GPRegressor.fit`

    Returns
    -------
    Fitted : the model, and which rows were held out

    Examples
    --------
    >>> from kernelcg.tables import Table, fit_table
    >>> from kernelcg.tables.fitting import prepare
    >>> from kernelcg.tables.houses import houses
    >>> fitted = fit_table(prepare(Table(houses(60), "houses.csv"), "price"))
    >>> fitted.model.facts["scores"]["r2"] > 0.8
    True
    """
    X, y, task = prepared.X, prepared.y, prepared.target.task
    held = _held_out(y, task, seed) if hold_out and len(X) >= FEWEST_ROWS else np.zeros(len(X), dtype=bool)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = clone(prepared.estimator).fit(X[~held], y[~held], callback=callback, resume=resume)
        learning = model.learning_
        interrupted = any(one.interrupted for one in (learning if isinstance(learning, tuple) else (learning,)))
        kept: dict[str, Any] = {"scores": {}, "solve": convergence(model.report_)}
        if held.any():
            kept |= _of_held_out(prepared, model, held)
            model = model.update(X[held], y[held], callback=callback)  # the same hyperparameters, all rows
        if task is Task.REGRESSION:
            order = np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)])  # as the model was given them
            numbers = np.flatnonzero(prepared.target.present)[order] + 1
            kept["surprises"] = surprises(model, y[order], numbers)
        relevance = relevances(model, X, prepared.encoding.groups(), seed)
    words = tuple(dict.fromkeys(str(one.message) for one in caught))
    facts = {
        "source": prepared.source,
        "rows": len(X),
        "notes": list(prepared.notes),
        "reason": prepared.target.reason,
        "target_summary": _summary(y, task),
        **kept,
        "relevance": relevance,
        "warnings": list(words),
    }
    whole = TableModel(model, prepared.encoding, prepared.target.name, task, facts)
    return Fitted(whole, prepared, np.flatnonzero(held), words, interrupted)


def _of_held_out(prepared: Prepared, model: Any, held: NDArray[np.bool_]) -> dict[str, Any]:
    """Return what is kept of the rows held out: scores, predictions, what is wrong with them, rows to look at."""
    unseen = HeldOut.of(prepared.target.task, model, prepared.X[held], prepared.y[held])
    kept: dict[str, Any] = {
        "scores": unseen.scores(),
        "held_out": unseen.to_json(),
        "advice": advice.of_predictions(unseen),
    }
    if prepared.target.task is Task.REGRESSION:
        return kept
    return kept | {"unforeseen": unforeseen(unseen, np.flatnonzero(prepared.target.present)[held] + 1)}


def _summary(y: Any, task: Task) -> str:
    """Say what a target holds: its range, or how frequent its classes are."""
    if task is not Task.CLASSIFICATION:
        low, middle, high = (readable(float(value), 4) for value in np.quantile(y, [0, 0.5, 1]))
        return f"from {low} to {high}, median {middle}"
    labels, counts = np.unique(y, return_counts=True)
    order = np.argsort(-counts)[:MOST_LABELS]
    shown = ", ".join(f"{labels[i]} {counts[i] / len(y):.1%}" for i in order)
    return shown + (", …" if len(labels) > MOST_LABELS else "")


def _held_out(y: Any, task: Task, seed: int) -> NDArray[np.bool_]:
    """Return which rows are held out: a tenth, drawn at random, of classes in proportion; a class keeps a row."""
    order = np.random.default_rng(seed).permutation(len(y))
    held = np.zeros(len(y), dtype=bool)
    if task is not Task.CLASSIFICATION:
        held[order[: round(HELD_OUT * len(y))]] = True
        return held
    for label in np.unique(y):
        rows = order[y[order] == label]
        held[rows[: min(round(HELD_OUT * len(rows)), len(rows) - 1)]] = True
    return held
