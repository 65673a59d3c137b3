"""Run generated problems and tell what came of them.

    python -m fuzz                      2,000 regressions, 500 Laplace, 500 ridges, 200 batches, 300 questions
    python -m fuzz --seed 7 --count 50 --family regression
    python -m fuzz --only regression:123

Every problem becomes a line of JSON in the file of ``--results``; problems that are in it already are not run again.
"""

import argparse
import faulthandler
import importlib
import importlib.util
import json
import multiprocessing
import os
import secrets
import signal
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fuzz.outcomes import Outcome

FAMILIES = {
    "regression": ("fuzz.regression", 2000),
    "laplace": ("fuzz.laplace_problems", 500),
    "ridge": ("fuzz.ridge", 500),
    "batches": ("fuzz.batches", 200),
    "questions": ("fuzz.questions", 300),
}
"""Where the function ``judged(seed, most_rows)`` of each family is, and how many problems are run by default."""

LIMIT = 600
"""Seconds after which a problem counts as a failure."""


def judged(task: tuple[str, int], most: int | None = None) -> Outcome:
    """Return the outcome of one problem of at most so many rows, whatever happens in it."""
    family, seed = task
    started = time.process_time()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT)
    try:
        module, rows = importlib.import_module(FAMILIES[family][0]), () if most is None else (most,)
        outcome: Outcome = module.judged(seed, *rows)
    except Exception as error:  # anything but a refusal is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(family, seed)
        outcome.failures.append(f"crash: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    finally:
        signal.alarm(0)
    outcome.seconds = time.process_time() - started
    return outcome


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT} seconds")


def main() -> int:
    """Run what the command line asks for; the exit status is 1 if a promise was broken."""
    options = _options()
    seed = secrets.randbelow(10**6) * 10**4 if options.seed is None else options.seed
    tasks = _tasks(options, seed)
    print(f"fuzz: first seed {seed} (--seed {seed} makes the same problems), {len(tasks)} problems")
    done = {(one["family"], one["seed"]): one for one in _read(options.results)}
    missing = [task for task in tasks if task not in done]
    os.environ.update(OMP_NUM_THREADS="1", KERNELCG_PROFILE="typical")
    faulthandler.enable()  # where a process dies, say in which call
    for outcome in _outcomes(missing, options.jobs):
        done[outcome.family, outcome.seed] = outcome.record()
        if not outcome.good or options.only:
            _tell(outcome.record())
        if options.results:
            with options.results.open("a") as lines:
                lines.write(json.dumps(outcome.record()) + "\n")
    records = [done[task] for task in tasks]
    _summarise(records)
    return int(any(one["violations"] or one["failures"] for one in records))


def _outcomes(tasks: list[tuple[str, int]], jobs: int) -> Iterator[Outcome]:
    """Yield outcomes as they come; one job is this process itself."""
    if jobs == 1:
        yield from map(judged, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(judged, tasks)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="first seed; a fresh one by default")
    parser.add_argument("--count", type=int, help="problems of each family, instead of the usual numbers")
    parser.add_argument("--family", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--only", nargs="*", metavar="FAMILY:SEED", help="these problems, told in full")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, with one thread each")
    parser.add_argument("--results", type=Path, help="a file of lines of JSON, kept and continued")
    return parser.parse_args()


def _tasks(options: argparse.Namespace, seed: int) -> list[tuple[str, int]]:
    if options.only:
        named = (one.split(":") for one in options.only)
        return [(family, int(number)) for family, number in named]
    present = [family for family in options.family if importlib.util.find_spec(FAMILIES[family][0])]
    counts = {family: options.count or FAMILIES[family][1] for family in present}
    return [(family, seed + k) for family, count in counts.items() for k in range(count)]


def _read(path: Path | None) -> Iterable[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines()) if path and path.exists() else []


def _tell(record: dict[str, Any]) -> None:
    print(f"{record['family']}:{record['seed']}  {record['story']}")
    for kind in ("violations", "failures", "flags", "learning_flags"):
        for text in record[kind]:
            print(f"    {kind}: {text}")
    if record["refused"]:
        print(f"    refused: {record['refused']}")
    print(f"    {record['numbers']}, {record['seconds']:.1f} s", flush=True)


def _summarise(records: list[dict[str, Any]]) -> None:
    """Print one line for each family."""
    print(f"{'family':12} problems refused violations failures flagged (learning)   CPU s")
    for family in FAMILIES:
        own = [one for one in records if one["family"] == family]
        if own:
            counts = [sum(bool(one[kind]) for one in own) for kind in ("refused", "violations", "failures", "flags")]
            learning = sum(bool(one["learning_flags"]) for one in own)
            seconds = sum(one["seconds"] for one in own)
            numbers = (
                f"{len(own):8} {counts[0]:7} {counts[1]:10} {counts[2]:8} {counts[3]:7} {learning:10} {seconds:7.0f}"
            )
            print(f"{family:12} {numbers}")
