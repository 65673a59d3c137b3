"""Check and time the backends on a GPU; writes results/gpu_DATE.csv with the device and all versions, row by row.

    python benchmarks/gpu.py check          every kernel against float64, as before its first use
    python benchmarks/gpu.py products       products, gradients and blocks of both backends
    python benchmarks/gpu.py fits           fits and predictions of data sets, each in a process of its own
    python benchmarks/gpu.py tune           other tiles; writes a file that the variable KERNELCG_TILES may name

Without a word the first three. A row that is in the file already, of the same device and versions, is not measured
again, so that an interrupted run goes on where it stopped (``--date`` names the file). A fit that takes more than eight
minutes is ended and written down as such. Protein, pol and elevators are fitted by two processes, the first of which
compiles and measures the card anew: ``cold_seconds`` are its, and the remark says whether both gave the same numbers.
``stages`` are the evaluations of learning at each number of rows and their seconds. ``--within 590`` begins nothing
that would not end within so many seconds of the whole run, and leaves the rest to the next. It needs neither pytest nor
an installed kernelcg: ``PYTHONPATH=src python3 benchmarks/gpu.py``. Data sets that are not found are left out.
"""

import argparse
import csv
import datetime
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from gpu_fits import CASES
from torch import Tensor

from kernelcg import backends
from kernelcg.kernels import RBF, Kernel, Matern

RESULTS = Path(__file__).parent / "results"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
KERNELS: dict[str, Callable[[Tensor], Kernel]] = {
    "RBF": RBF,
    "Matern12": lambda lengthscale: Matern(lengthscale, nu=0.5),
    "Matern32": lambda lengthscale: Matern(lengthscale, nu=1.5),
    "Matern52": lambda lengthscale: Matern(lengthscale, nu=2.5),
}
COLUMNS = ["date", "device", "versions", "work", "kernel", "n", "d", "k", "dtype", "backend"]
COLUMNS += ["seconds", "pairs_per_second", "relative_error", "peak_gb", "predict_seconds"]
COLUMNS += ["rows", "features", "rmse", "error", "nlpd", "iterations", "learning_steps", "remark"]
COLUMNS += ["cold_seconds", "numbers", "stages"]
KEY = COLUMNS[1:10]

PRODUCTS = [
    *itertools.product(["RBF"], [100_000, 500_000, 1_000_000], [9], [1, 16], ["float32"], ["triton"]),
    *itertools.product(["Matern32"], [100_000, 1_000_000], [9], [1, 16], ["float32"], ["triton"]),
    *itertools.product(["RBF", "Matern32"], [100_000], [9], [1, 16], ["float64"], ["triton"]),
    *itertools.product(["RBF"], [100_000], [3, 57], [1, 16], ["float32"], ["triton"]),
    *itertools.product(["Matern12", "Matern52"], [100_000], [9], [16], ["float32"], ["triton"]),
    *itertools.product(["RBF"], [100_000], [9], [4, 32, 128], ["float32"], ["triton"]),
    ("Matern32", 50_000, 300, 16, "float32", "triton"),
    *itertools.product(["RBF"], [100_000], [9], [1, 16], ["float32", "float64"], ["tiles"]),
]
GRADIENTS = [
    *itertools.product(["RBF", "Matern32"], [100_000], [9], [16], ["float32", "float64"], ["triton"]),
    ("Matern12", 100_000, 9, 16, "float32", "triton"),
    ("Matern32", 50_000, 57, 16, "float32", "triton"),
    ("Matern32", 50_000, 9, 16, "float32", "tiles"),
]
BLOCKS = [("Matern32", 20_000, 9, 1, dtype, "triton") for dtype in DTYPES]
ROW_SECONDS = 470
"""Seconds that one row of the table, with the reading of its data, may take."""

LEAST_SECONDS = 10
"""Seconds below which no process is begun."""

REPEATED = ("uci_protein", "uci_pol", "uci_elevators")
"""Sets that are fitted twice: by a process that compiles and measures everything, and by one that finds it stored."""


class LaterError(Exception):
    """The row cannot be measured now, and is left to another run."""


class Rows:
    """The rows of a CSV file, each written as it comes."""

    def __init__(self, date: str) -> None:
        self.path = RESULTS / f"gpu_{date}.csv"
        self.date, self.device, self.versions = date, torch.cuda.get_device_name(), versions()
        self.done: set[tuple[str, ...]] = set()
        RESULTS.mkdir(exist_ok=True)
        if self.path.exists():
            with self.path.open(newline="") as file:
                found = list(csv.DictReader(file))
            self.done = {tuple(row[name] for name in KEY) for row in found}
            if found and list(found[0]) != COLUMNS:  # written before there were all of these columns
                self._write(found, anew=True)

    def add(self, work: str, case: tuple[object, ...], measure: Callable[[], dict[str, object]]) -> None:
        """Measure a row unless it is there; what fails is written down with the reason."""
        known = dict(zip(COLUMNS, [self.date, self.device, self.versions, work, *case], strict=False))
        if tuple(str(known[name]) for name in KEY) in self.done:
            return
        try:
            found = measure()
        except LaterError as why:
            print(work, why, flush=True)
            return
        except Exception as error:  # one case that fails must not stop the others
            found = {"remark": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        row = {**known, **found}
        self._write([row], anew=not self.path.exists())
        print(*(f"{name}={row[name]}" for name in COLUMNS[3:] if row.get(name) not in (None, "")), flush=True)

    def _write(self, rows: list[dict[str, object]], *, anew: bool) -> None:
        with self.path.open("w" if anew else "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if anew:
                writer.writeheader()
            writer.writerows(rows)


def versions() -> str:
    """Return the versions that a time depends on."""
    try:
        import triton

        found = triton.__version__
    except Exception as error:
        found = type(error).__name__
    return f"torch {torch.__version__}, triton {found}, CUDA {torch.version.cuda}, Python {platform.python_version()}"


def normal(n: int, k: int, seed: int) -> Tensor:
    return torch.randn(n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).cuda()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the median time of several calls after one that does not count, about one second of them."""
    work()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 1 and len(times) < 25):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def measured(n: int, work: Callable[[], object], error: Callable[[], float]) -> dict[str, object]:
    torch.cuda.reset_peak_memory_stats()
    seconds = seconds_of(work)
    peak = torch.cuda.max_memory_allocated() / 1e9
    return {
        "seconds": f"{seconds:.4g}",
        "pairs_per_second": f"{n * n / seconds:.3g}",
        "relative_error": f"{error():.2g}",
        "peak_gb": f"{peak:.3g}",
    }


def problem(case: tuple[str, int, int, int, str, str]) -> tuple[backends.KernelMatrix, Tensor, torch.dtype]:
    """Return K with one lengthscale for each feature, columns, and the precision."""
    name, n, d, k, dtype, backend = case
    lengthscale = torch.linspace(0.8, 1.25, d, dtype=torch.float64) * math.sqrt(max(d / 9, 1))
    return backends.named(backend).bind(KERNELS[name](lengthscale), normal(n, d, 0)), normal(n, k, 1), DTYPES[dtype]


def product(case: tuple[str, int, int, int, str, str]) -> dict[str, object]:
    K, V, dtype = problem(case)

    def error() -> float:
        exact = backends.Tiles().bind(K.kernel, K.X).cross(K.X[:64], V)
        return float((K.product(V, precision=dtype)[:64] - exact).norm() / exact.norm())

    return measured(len(K), lambda: K.product(V, precision=dtype), error)


def gradient(case: tuple[str, int, int, int, str, str]) -> dict[str, object]:
    K, V, dtype = problem(case)

    def error() -> float:
        few, some = V[:3000], K.at(slice(0, 3000))
        exact = backends.Tiles().bind(K.kernel, some.X).gradient(few, few)
        return float((some.gradient(few, few, precision=dtype) - exact).norm() / exact.norm())

    return measured(len(K), lambda: K.gradient(V, V, precision=dtype), error)


def block(case: tuple[str, int, int, int, str, str]) -> dict[str, object]:
    K, _, dtype = problem(case)

    def error() -> float:
        exact = backends.Tiles().bind(K.kernel, K.X).block(slice(0, 200))
        return float((K.block(slice(0, 200), precision=dtype).double() - exact).abs().max())

    return measured(len(K), lambda: K.block(precision=dtype), error)


def fit(name: str, ends: float) -> dict[str, object]:
    """Fit a data set and predict in a new process, or in two, which are ended when the time of the row is over."""
    row_ends = time.monotonic() + ROW_SECONDS
    if name not in REPEATED:
        return in_a_process(name, row_ends, ends, {})
    with tempfile.TemporaryDirectory() as folder:
        stored = {"TRITON_CACHE_DIR": f"{folder}/triton", "KERNELCG_CACHE": f"{folder}/kernelcg"}
        cold = in_a_process(name, row_ends, ends, stored)
        return cold if "seconds" not in cold else compared(cold, in_a_process(name, row_ends, ends, stored))


def compared(cold: dict[str, object], warm: dict[str, object]) -> dict[str, object]:
    """Return the row of the second of two processes, with the seconds of the first and whether they agree."""
    if "seconds" not in warm:
        remark = f"{cold.get('remark', '')}; the second process: {warm['remark']}"
        return {**cold, "cold_seconds": cold["seconds"], "remark": remark}
    differ = f"OTHER NUMBERS in two processes ({cold.get('learning_steps')} and {warm.get('learning_steps')} steps)"
    words = "the same numbers in two processes" if cold.get("numbers") == warm.get("numbers") else differ
    return {**warm, "cold_seconds": cold["seconds"], "remark": f"{warm.get('remark', '')}; {words}"}


def in_a_process(name: str, row_ends: float, ends: float, variables: dict[str, str]) -> dict[str, object]:
    """Return what `gpu_fits.py` prints, as long as neither the row nor the whole run has to end before."""
    allowed = min(row_ends, ends) - time.monotonic()
    later, over = LaterError("is left to the next run"), {"remark": f"not within {ROW_SECONDS} s"}
    if allowed < LEAST_SECONDS:
        if ends < row_ends:
            raise later
        return over
    command = [sys.executable, str(Path(__file__).with_name("gpu_fits.py")), name]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **variables}
    try:
        done = subprocess.run(command, timeout=allowed, capture_output=True, text=True, env=environment)
    except subprocess.TimeoutExpired:
        if ends < row_ends:
            raise later from None
        return over
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        if "DatasetNotFound" in done.stderr:
            raise LaterError("was not found; KERNELCG_DATA names a directory with data sets")
        return {"remark": reason}
    return json.loads(done.stdout.strip().splitlines()[-1])


def shapes() -> Iterator[tuple[tuple[object, ...], object]]:
    """Yield every kind of kernel with several numbers of features and columns."""
    from kernelcg.backends.triton.shapes import shape_for

    names = {0: "RBF", 1: "Matern12", 2: "Matern32", 3: "Matern52"}
    works = ("product", "moments", "gradient", "gradient with weights", "block")
    for work, profile, d, k in itertools.product(works, names, (1, 3, 9, 13, 57, 130, 508), (1, 16, 128)):
        for dtype, fixed in (("float32", True), ("float32", False), ("float64", False)):
            useless = fixed != (work == "moments") and work != "product"
            usual = (d == 9 and (k == 16 or profile in (0, 2))) or (k == 16 and profile == 2)
            if useless or (fixed and profile == 1) or (work == "block" and k > 1) or not usual:
                continue
            count = min(k, 32) if dtype == "float64" else k
            shape = shape_for(work, DTYPES[dtype], profile, d, count, fixed=fixed)
            yield (names[profile], 1100, d, count, dtype, "triton fixed" if fixed else "triton"), shape


def check(rows: Rows) -> None:
    """Compare every kind of kernel with float64."""
    from kernelcg.backends.triton.shapes import TOLERANCE, trial_error

    reason = backends.available()["triton"]
    print("triton:", reason.usable, reason.reason, flush=True)

    def found(shape: object) -> dict[str, object]:
        began = time.perf_counter()
        error = trial_error(shape, torch.device("cuda", torch.cuda.current_device()))
        remark = "" if error <= TOLERANCE[shape.dtype] else "WRONG"
        return {"seconds": f"{time.perf_counter() - began:.3g}", "relative_error": f"{error:.2g}", "remark": remark}

    for case, shape in shapes():
        rows.add(f"check {shape.work}", case, lambda shape=shape: found(shape))


def tune(rows: Rows) -> None:
    """Time several tiles for the most frequent kinds of work and keep the fastest in a file."""
    from kernelcg.backends.triton import tuning
    from kernelcg.backends.triton.shapes import shape_for

    device, best = torch.device("cuda", torch.cuda.current_device()), []
    cases = [*itertools.product(["product"], ["float32"], [9, 50], [1, 16, 32, 128], [True])]
    cases += [("moments", "float32", d, 16, True) for d in (9, 50)]
    cases += [("product", "float64", 9, k, False) for k in (1, 16, 32)]
    cases += [("gradient", dtype, 9, 16, False) for dtype in DTYPES]
    for work, dtype, d, k, fixed in cases:
        shape = shape_for(work, DTYPES[dtype], 2, d, k, fixed=fixed)
        times = tuning.fastest(shape, device, seconds_of)
        best.append((shape, tuning.chosen(shape, times)))
        for tile, seconds in times.items():
            label = f"{tile.rows}x{tile.columns}, {tile.warps} warps, {tile.stages} stages"
            found = {"seconds": f"{seconds:.4g}", "pairs_per_second": f"{tuning.ROWS**2 / seconds:.3g}"}
            rows.add(f"tune {work}", ("Matern32", tuning.ROWS, d, k, dtype, label), lambda found=found: found)
        tuning.write(RESULTS / f"gpu_tiles_{rows.date}.json", best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["check", "products", "fits", "tune", []], default=[])
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    parser.add_argument("--within", type=float, default=math.inf, help="end after so many seconds")
    parser.add_argument("--only", nargs="*", choices=[*CASES, []], default=[], help="fits of these data sets alone")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out cases with more rows than this")
    options = parser.parse_args()
    ends = time.monotonic() + options.within
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use")
    rows, what = Rows(options.date), options.what or ["check", "products", "fits"]
    if "check" in what:
        check(rows)
    if "tune" in what:
        tune(rows)
    timed = [("product", PRODUCTS, product), ("gradient", GRADIENTS, gradient), ("block", BLOCKS, block)]
    for name, cases, measure in timed if "products" in what else []:
        for case in cases:
            if case[1] <= options.largest:
                rows.add(name, case, lambda measure=measure, case=case: measure(case))
    if "fits" in what:
        torch.cuda.empty_cache()
        for name in options.only or CASES:
            rows.add(f"fit {name}", ("default", "", "", "", "auto", "default"), lambda name=name: fit(name, ends))
    print(f"wrote {rows.path}")


if __name__ == "__main__":
    main()
