"""The page: a template filled with words and pictures, with the drawing code inside, so that it needs no network."""

import json
import os
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from kernelcg.estimators.model_files import replace_file
from kernelcg.reports.pictures import inputs_of, pictures
from kernelcg.tables.columns import Column, Kind
from kernelcg.tables.dates import times
from kernelcg.tables.model import TableModel
from kernelcg.tables.readable import readable


def write_page(model: TableModel, path: str | os.PathLike[str]) -> None:
    """Write a self-contained HTML page about a model.

    Parameters
    ----------
    model : a model of a table
    path : the file; one that exists is replaced

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from kernelcg.reports import write_page
    >>> from kernelcg.tables import Table, fit_table
    >>> from kernelcg.tables.fitting import prepare
    >>> from kernelcg.tables.houses import houses
    >>> model = fit_table(prepare(Table(houses(60), "houses.csv"), "price")).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(model, Path(folder) / "houses.html")
    ...     (Path(folder) / "houses.html").read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    replace_file(path, page_of(model).encode())


def page_of(model: TableModel) -> str:
    """Return the page about a model as HTML; every word that comes from the data is escaped."""
    import vl_convert

    import kernelcg

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(files("kernelcg.reports").joinpath("page.html").read_text(encoding="utf-8"))
    shown = list(pictures(model))
    specs = [_spec(picture.chart) for picture in shown]
    return template.render(
        title=f"{model.target} from {model.facts.get('source', 'a table')}",
        model=model,
        facts=model.facts,
        plan=model.estimator.plan_.explain(),
        kernel=str(model.estimator.kernel_),
        columns=_columns(model),
        pictures=shown,
        specs=json.dumps(specs).replace("<", "\\u003c"),
        drawing_code=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        version=kernelcg.__version__,
        readable=readable,
    )


def _spec(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container", height=260).to_dict()
    return spec | {"background": "transparent"}


def _columns(model: TableModel) -> list[tuple[str, str, str]]:
    """Return name, use and summary of the target and of every column."""
    X, groups = inputs_of(model), model.encoding.groups()
    rows = [(model.target, "target", str(model.facts.get("target_summary", "")))]
    for column in model.encoding.columns:
        values = X[:, groups[column.name][0]] if column.name in groups else np.empty(0)
        rows.append((column.name, str(column.kind), _details(column, values)))
    return rows


def _details(column: Column, values: NDArray[np.float64]) -> str:
    """Say what a column holds, its first feature being ``values``, and what becomes of it."""
    missing = f"{column.missing:.1%} missing" if column.missing else ""
    match column.kind:
        case Kind.LEFT_OUT:
            return column.note
        case Kind.CATEGORY:
            levels = ", ".join(column.levels[:6]) + (", …" if len(column.levels) > 6 else "")
            return "; ".join(filter(None, [f"{len(column.levels)} categories: {levels}", missing]))
    ends = [_shown(column, float(value)) for value in (values.min(), values.max(), np.median(values))]
    gaps = [f"{missing}, imputed by {_shown(column, column.fill)} and flagged"] if missing else []
    return "; ".join([f"from {ends[0]} to {ends[1]}, median {ends[2]}", *gaps])


def _shown(column: Column, value: float) -> str:
    """Return a number, or the date that it stands for."""
    if column.kind is Kind.DATE:
        return str(times(np.array(value)).astype("datetime64[D]"))
    return readable(value, 4)
