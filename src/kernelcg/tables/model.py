"""A fitted model of a table: an estimator, the encoding of the columns, and what was found out about it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import pandas as pd

from kernelcg.errors import ModelFileError
from kernelcg.estimators import load
from kernelcg.estimators.model_files import read
from kernelcg.estimators.saving import save
from kernelcg.events import Listener
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.tables.columns import Encoding
from kernelcg.tables.task import Task

LAYOUT = 1
"""The layout of what is attached to a model file."""


@dataclass(frozen=True, eq=False)
class TableModel:
    """A model that predicts one column of a table from others.

    Attributes
    ----------
    estimator : fitted to the encoded columns
    facts : plain values: the source, notes, scores on rows held out, relevance of the columns, warnings
    encoding : how columns become features
    target : the column that is predicted
    task : regression, classification or counts
    """

    estimator: Any
    encoding: Encoding
    target: str
    task: Task
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def certificates(self) -> tuple[Any, ...]:
        """Return the certificates of the estimator; one for each class if it tells them apart one against the rest."""
        found = self.estimator.certificate_
        return found if isinstance(found, tuple) else (found,)

    @property
    def is_certified(self) -> bool:
        """Say whether every certificate is met and its bound says something."""
        return all(one.verdict is Verdict.CERTIFIED for one in self.certificates)

    def predict(self, frame: pd.DataFrame, *, interval: float = 0.95, callback: Listener | None = None) -> pd.DataFrame:
        """Return predictions, a row for each row of the table, in the units of the target.

        The prediction has the name of the target, with "(predicted)" added where another column has that name. Numbers
        and counts come with the standard deviation of a new observation and an interval that should cover it
        with probability ``interval``; classes with the probability of each.

        Raises
        ------
        TableError : if a column that the model needs is missing or cannot be read
        """
        X = self.encoding.features(frame)
        match self.task:
            case Task.REGRESSION:
                mean, std = self.estimator.predict(X, return_std=True, callback=callback)
                half = NormalDist().inv_cdf(0.5 + interval / 2) * std
                lower, upper = mean - half, mean + half
            case Task.COUNTS:
                mean, std = self.estimator.predict(X, return_std=True, callback=callback)
                lower, upper = self.estimator.predict(X, quantiles=[0.5 - interval / 2, 0.5 + interval / 2]).T
            case Task.CLASSIFICATION:
                P = self.estimator.predict_proba(X, callback=callback)
                best = self.estimator.classes_[P.argmax(axis=1)]
                return self._beside(best, {f"P({label})": P[:, i] for i, label in enumerate(self.estimator.classes_)})
        return self._beside(mean, {"std": std, "lower": lower, "upper": upper})

    def _beside(self, predicted: Any, others: dict[str, Any]) -> pd.DataFrame:
        """Return the predictions as the first column, under a name that no other column has."""
        name = f"{self.target} (predicted)" if self.target in others else self.target
        return pd.DataFrame({name: predicted, **others})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `load_table_model` reads, and `kernelcg.load` without its columns."""
        attached = {
            "layout": LAYOUT,
            "target": self.target,
            "task": str(self.task),
            "columns": self.encoding.to_json(),
            "facts": dict(self.facts),
        }
        save(self.estimator, path, attached=attached)


def load_table_model(path: str | os.PathLike[str]) -> TableModel:
    """Return the model in a file that `TableModel.save` has written. Nothing in the file is run.

    Parameters
    ----------
    path : the file

    Raises
    ------
    ModelFileError : if the file is not one of kernelcg, is damaged, or holds no columns

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from kernelcg.tables import Table, fit_table, load_table_model
    >>> from kernelcg.tables.fitting import prepare
    >>> from kernelcg.tables.houses import houses
    >>> model = fit_table(prepare(Table(houses(60), "houses.csv"), "price"), hold_out=False).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "houses.kcg")
    ...     again = load_table_model(Path(folder) / "houses.kcg")
    >>> again.predict(houses(3)).columns.tolist()
    ['price', 'std', 'lower', 'upper']
    """
    attached = read(path).header.get("attached")
    name = os.fspath(path)
    if not isinstance(attached, dict):
        raise ModelFileError(f"{name} holds a model without columns; kernelcg.load reads it in Python")
    if attached.get("layout") != LAYOUT:
        raise ModelFileError(f"{name} comes from a newer version of kernelcg; upgrade kernelcg")
    try:
        encoding = Encoding.from_json(attached["columns"])
        task, target, facts = Task(attached["task"]), str(attached["target"]), dict(attached["facts"])
    except (LookupError, TypeError, ValueError) as error:
        raise ModelFileError(f"{name} is malformed: its columns cannot be read ({error!r})") from error
    estimator = load(path)
    if estimator.n_features_in_ != len(encoding.feature_names()):
        raise ModelFileError(f"{name} is malformed: its columns do not fit its model")
    return TableModel(estimator, encoding, target, task, facts)
