"""Options of the commands: those that several of them share, and options of estimators as users type them."""

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

Data = Annotated[str, typer.Argument(help="CSV, TSV, Parquet, Feather, npy or npz, also .gz; - reads CSV from a pipe.")]
Target = Annotated[str, typer.Option("--target", "-t", help="The column to predict.")]
TaskName = Annotated[
    str | None, typer.Option("--task", help="regression, classification or counts; told from the target unless given.")
]
Seed = Annotated[int, typer.Option(help="Seed of everything random: the same seed gives the same numbers.")]
Delimiter = Annotated[str | None, typer.Option(help="Delimiter of a text file; told from the text unless given.")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of a text file, such as latin-1.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines for people.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@dataclass(frozen=True)
class TableOptions:
    """What a command says about a table and the model to be fitted to it."""

    data: Data
    target: Target
    task: TaskName = None
    kernel: Annotated[
        str | None, typer.Option(help="rbf, matern12, matern32 (default), matern52, rational_quadratic, …")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="Any option of the estimator as NAME=VALUE, such as -s method=direct -s mean=linear. May be repeated.",
        ),
    ] = None
    categorical: Annotated[
        list[str] | None, typer.Option("--categorical", help="A column whose numbers are names. May be repeated.")
    ] = None
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", help="A column not to use. May be repeated.")
    ] = None
    season: Annotated[bool, typer.Option("--season", help="Let dates also give the time of the year.")] = False
    memory: Annotated[str | None, typer.Option(help="Memory above what the process holds, such as 4GB.")] = None
    max_seconds: Annotated[
        float | None, typer.Option(help="Seconds after which learning ends with the best so far.")
    ] = None
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Threads; all unless given.")] = None
    seed: Seed = 0
    delimiter: Delimiter = None
    encoding: Encoding = None

    def of_estimator(self) -> dict[str, Any]:
        """Return the options of the estimator by name."""
        named = {"kernel": self.kernel, "memory": self.memory, "max_seconds": self.max_seconds, "n_jobs": self.jobs}
        given = {name: value for name, value in named.items() if value is not None}
        return {**given, "random_state": self.seed, **parsed_options(self.settings or [])}


def of_a_table(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameter ``table`` is typed by users as the options of `TableOptions`, one by one."""
    hints = get_type_hints(TableOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(TableOptions)
    ]
    names = {one.name for one in shared}

    @functools.wraps(command)
    def typed(**given: Any) -> None:
        table = TableOptions(**{name: value for name, value in given.items() if name in names})
        command(table=table, **{name: value for name, value in given.items() if name not in names})

    own = [one for one in inspect.signature(command).parameters.values() if one.name != "table"]
    parameters = [*shared, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {one.name: one.annotation for one in parameters}
    return typed


def parsed_options(settings: list[str]) -> dict[str, Any]:
    """Return options by name: numbers, True, False, None and lists as Python has them, everything else as words."""
    found = {}
    for one in settings:
        name, sign, value = one.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"--set takes NAME=VALUE, such as method=direct, not {one!r}")
        found[name.strip().replace("-", "_")] = _parsed(value.strip())
    return found


def _parsed(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
