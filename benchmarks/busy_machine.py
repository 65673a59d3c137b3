"""What becomes of products and fits while other programs compute; writes results/busy_machine.csv.

    python benchmarks/busy_machine.py                    # about four minutes on an idle machine of two cores
    python benchmarks/busy_machine.py --rows 2000 --fit-rows 800 --repeats 1

Run it where nothing else runs: it makes the load itself. Every time is by the clock, the median of ``--repeats`` runs,
each in a process of its own that has computed once before the clock starts; runs with and without load take turns.

  product: K V of ``--rows`` rows, 9 features and 8 columns, in float32, with as many threads as ``--threads`` says,
    beside a process that keeps one core busy, against the same on one thread without load. At most 1.3 is wanted.
  fit: `GPRegressor` on ``--fit-rows`` rows with 2 features, beside the same busy process, against the fit alone. At
    most 2 is wanted.
  two fits: the same fit in two processes at once, the later end, against one alone. At most 2.3 is wanted.
"""

import argparse
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier

import numpy as np
from table import Table

SPAWN = multiprocessing.get_context("spawn")
WANTED = {"product": 1.3, "fit": 2.0, "two fits": 2.3}


def product_seconds(rows: int, threads: int) -> float:
    """Return the seconds of one product, the mean of several."""
    import torch

    from kernelcg.backends import Native
    from kernelcg.kernels import RBF

    generator = torch.Generator().manual_seed(0)
    X, V = (torch.randn(rows, k, generator=generator, dtype=torch.float64) for k in (9, 8))
    K = Native(threads=threads).bind(RBF(1.0), X)
    K.product(V, precision=torch.float32)
    began, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - began < 2:
        K.product(V, precision=torch.float32)
        count += 1
    return (time.perf_counter() - began) / count


def fit_seconds(rows: int, threads: int, together: Barrier | None = None) -> float:
    """Return the seconds of a fit; it begins when as many processes as the barrier waits for are ready."""
    from kernelcg import GPRegressor

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, size=(rows, 2))
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.2 * rng.normal(size=rows)
    GPRegressor(random_state=0, n_jobs=threads).fit(X[:300], y[:300])
    if together is not None:
        together.wait()
    began = time.perf_counter()
    GPRegressor(random_state=0, n_jobs=threads).fit(X, y)
    return time.perf_counter() - began


def measured(work: Callable[..., float], *arguments: object, processes: int = 1) -> float:
    """Return the longest of the seconds that so many processes report."""
    answers = SPAWN.SimpleQueue()
    children = [SPAWN.Process(target=report, args=(answers, work, arguments)) for _ in range(processes)]
    for child in children:
        child.start()
    seconds = max(answers.get() for _ in children)
    for child in children:
        child.join()
    return seconds


def report(answers: "multiprocessing.SimpleQueue[float]", work: Callable[..., float], arguments: tuple[object]) -> None:
    answers.put(work(*arguments))


def spin() -> None:
    """Keep a core busy with multiply-adds until the process is ended."""
    M = np.random.default_rng(0).standard_normal((200, 200))
    while True:
        M = np.tanh(M @ M)


@contextmanager
def one_core_busy() -> Iterator[None]:
    """Keep one core busy meanwhile."""
    child = SPAWN.Process(target=spin, daemon=True)
    child.start()
    time.sleep(2)  # it has imported what it needs
    try:
        yield
    finally:
        child.terminate()
        child.join()


def pairs(options: argparse.Namespace) -> dict[str, tuple[Callable[[], float], Callable[[], float]]]:
    """Return, for each case, how the time without and the time with other programs is measured."""
    rows, fit_rows, threads = options.rows, options.fit_rows, options.threads

    def beside_a_busy_process(work: Callable[..., float], size: int) -> float:
        with one_core_busy():
            return measured(work, size, threads)

    def alone() -> float:
        return measured(fit_seconds, fit_rows, threads)

    return {
        "product": (
            lambda: measured(product_seconds, rows, 1),
            lambda: beside_a_busy_process(product_seconds, rows),
        ),
        "fit": (alone, lambda: beside_a_busy_process(fit_seconds, fit_rows)),
        "two fits": (alone, lambda: measured(fit_seconds, fit_rows, threads, SPAWN.Barrier(2), processes=2)),
    }


def main() -> None:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000, help="of the product")
    parser.add_argument("--fit-rows", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    for library in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(library, None)
    table = Table()
    for case, (without, with_load) in pairs(options).items():
        times = [(without(), with_load()) for _ in range(options.repeats)]
        quiet, busy = (statistics.median(column) for column in zip(*times, strict=True))
        table.add(
            {
                "case": case,
                "rows": options.rows if case == "product" else options.fit_rows,
                "threads": options.threads,
                "reference s": round(quiet, 4),
                "with others s": round(busy, 4),
                "ratio": round(busy / quiet, 3),
                "wanted": WANTED[case],
                "repeats": options.repeats,
                "load before": round(os.getloadavg()[0], 1),
            }
        )
    table.save("busy_machine.csv")


if __name__ == "__main__":
    main()
