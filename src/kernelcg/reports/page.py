"""The page: a template filled with words and pictures, with the drawing code inside, so that it needs no network."""

import json
import os
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from kernelcg.estimators.model_files import replace_file
from kernelcg.reports.pictures import pictures
from kernelcg.tables.columns import Column, Kind
from kernelcg.tables.model import TableModel


def write_page(model: TableModel, path: str | os.PathLike[str]) -> None:
    """Write a self-contained HTML page about a model."""
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
        columns=[(column.name, str(column.kind), _details(column)) for column in model.encoding.columns],
        pictures=shown,
        specs=json.dumps(specs).replace("<", "\\u003c"),
        drawing_code=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        version=kernelcg.__version__,
    )


def _spec(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container", height=260).to_dict()
    return spec | {"background": "transparent"}


def _details(column: Column) -> str:
    """Say what becomes of a column."""
    missing = f"{column.missing:.1%} missing" if column.missing else ""
    match column.kind:
        case Kind.LEFT_OUT:
            return column.note
        case Kind.CATEGORY:
            levels = ", ".join(column.levels[:6]) + (", …" if len(column.levels) > 6 else "")
            return "; ".join(filter(None, [f"{len(column.levels)} categories: {levels}", missing]))
    return f"{missing}, imputed by {column.fill:g} and flagged" if missing else ""
