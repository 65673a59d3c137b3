"""What the command says about tables, plans and models, a line each."""

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from kernelcg.estimators.relevance import INVISIBLE
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.planning import Plan
from kernelcg.planning.plan import in_bytes, in_time
from kernelcg.tables.columns import Column, Encoding, Kind
from kernelcg.tables.fitting import Prepared
from kernelcg.tables.model import TableModel
from kernelcg.tables.readable import readable
from kernelcg.tables.task import Task
from kernelcg.threads import allowed

LABEL = 13
"""Width of the label in front of a line."""


MOST_LISTED = 12
"""Columns that a line names."""


def line(label: str, text: str) -> str:
    """Return a labelled line."""
    return f"{label:<{LABEL - 1}} {text}"


def styled(text: str) -> Text:
    """Return lines as a terminal shows them: labels in bold, verdicts and warnings in colour."""
    found = Text(text)
    found.highlight_regex(rf"(?m)^\S[^\n]{{{LABEL - 2}}} (?=\S)", "bold cyan")
    found.highlight_regex(r"(?m)(?<=^numerics     )certified", "bold green")
    found.highlight_regex(r"(?m)(?<=^numerics     )(?!certified)[^\n:]*", "bold red")
    found.highlight_regex(r"(?m)^warning .*$", "yellow")
    found.highlight_regex(r"(?m)^\$ .*$", "bold")
    return found


def show(text: str) -> None:
    """Print lines: with colours on a terminal, plain elsewhere, never broken."""
    console = Console(highlight=False)
    with console.capture() as kept:
        console.print(styled(text), soft_wrap=True)
    say(kept.get())


def say(text: str) -> None:
    """Write to the standard output; if nobody reads it any more, as after ``| head``, the work goes on unseen."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Write a note in one line to the standard error."""
    print(f"note: {text}", file=sys.stderr)


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return names one after another, only the first of many."""
    rest = f" and {len(names) - most:,} others" if len(names) > most + 1 else ""
    return ", ".join(names[: most if rest else None]) + rest


def of_table(prepared: Prepared) -> list[str]:
    """Say what the table holds and what becomes of its columns."""
    encoding, target = prepared.encoding, prepared.target
    lines = [line(prepared.source, f"{prepared.rows:,} rows; {of_columns(encoding)}")]
    left_out = [f"{one.name} ({one.note})" for one in encoding.columns if one.kind is Kind.LEFT_OUT]
    lines += [line("left out", listed(left_out))] if left_out else []
    lines += [line("note", note) for note in prepared.notes]
    return [*lines, line("target", f"{target.name}: {target.task} ({target.reason})")]


def of_columns(encoding: Encoding) -> str:
    """Say how many columns there are of each kind, and what is missing."""
    counts = Counter(column.kind for column in encoding.columns)
    dates = "date (as a number)" if counts[Kind.DATE] == 1 else "dates (as numbers)"
    words = {Kind.NUMBER: "numeric", Kind.CATEGORY: "categorical (one-hot)", Kind.DATE: dates}
    parts = [f"{counts[kind]} {name}" for kind, name in words.items() if counts[kind]]
    gaps = [column for column in encoding.columns if column.missing > 0 and column.kind is not Kind.LEFT_OUT]
    if len(gaps) == 1:
        parts.append(f"1 with {gaps[0].missing:.0%} missing ({_policy(gaps[0])})")
    elif gaps:
        worst = max(column.missing for column in gaps)
        parts.append(f"{len(gaps)} with up to {worst:.0%} missing (imputed, flagged)")
    return ", ".join(parts)


def _policy(column: Column) -> str:
    return "a category of its own" if column.kind is Kind.CATEGORY else "imputed, flagged"


def of_plan(plan: Plan) -> str:
    """Say how the fit will be done and what it takes."""
    how = "by Cholesky" if plan.method == "direct" else "by PCG"
    threads = plan.threads or allowed()
    count = "1 thread" if threads == 1 else f"{threads} threads"
    where = f"{plan.backend} on {count}" if plan.device == "cpu" else f"{plan.backend} on {plan.device}"
    memory = f"{in_bytes(plan.bytes)} of {in_bytes(plan.budget)}"
    return f"exact {how}, {where}; {memory}; about {in_time(plan.seconds)}"


def of_model(model: TableModel) -> list[str]:
    """Say what was learned, what matters, how good the predictions are and how exact the numbers."""
    facts = model.facts
    lines = [line("learned", of_noise(model))] if model.task is Task.REGRESSION else []
    lines += [line("relevance", of_relevance(facts.get("relevance", {})))]
    if facts.get("scores"):
        lines.append(line("held out 10%", of_scores(model.task, facts["scores"])))
    return lines + [line("note", one) for one in facts.get("advice", [])]


def of_noise(model: TableModel) -> str:
    """Say how large the learned noise is."""
    scale, noise = float(model.estimator.y_scale_[0]), float(model.estimator.noise_)
    return f"noise sd {readable(scale * math.sqrt(noise))} ({noise:.2g} of the variance of {model.target})"


def of_relevance(relevance: Mapping[str, float]) -> str:
    """Say which columns matter, the most important first."""
    ordered = sorted(relevance.items(), key=lambda item: -item[1])
    seen = [
        f"{name} {value:.2f}" if value >= 0.01 else f"{name} {value:.3f}"
        for name, value in ordered
        if value >= INVISIBLE
    ]
    rest = [name for name, value in ordered if value < INVISIBLE]
    less = [f"{len(seen) - MOST_LISTED} others less"] if len(seen) > MOST_LISTED else []
    return " | ".join([*seen[:MOST_LISTED], *less, *([f"no visible effect: {listed(rest)}"] if rest else [])])


def of_scores(task: Task, found: Mapping[str, float]) -> str:
    """Say how good the predictions on the rows held out are."""
    if task is Task.CLASSIFICATION:
        return f"{found['error']:.1%} of {found['rows']:.0f} rows wrong, log loss {found['nlpd']:.3g}"
    words = f"{found['rows']:,.0f} rows: RMSE {readable(found['rmse'])}" + (
        f", R² {found['r2']:.3f}" if "r2" in found else ""
    )
    if "coverage" in found:
        return f"{words}, 95 % intervals cover {found['coverage']:.1%}"
    return f"{words}, mean negative log probability {found['nlpd']:.3g}"


def of_numerics(model: TableModel) -> str:
    """Say in one line how exact the numbers are: the worst of several verdicts."""
    found = model.certificates
    return str(next((one for one in found if one.verdict is not Verdict.CERTIFIED), found[0])).splitlines()[0]
