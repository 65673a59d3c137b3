"""Gaussian process regression from data to predictive densities: kernelcg beside scikit-learn and GPyTorch.

    python benchmarks/gp_regression.py --data concrete powerplant --folds 1 2 --methods kernelcg gpytorch --limit 1800

Appends to results/gp_regression.csv a row for every data set, fold and method that has none from this machine with
this number of threads (``--again`` measures anew), then prints means over folds. Every row comes from a process of its
own: its peak memory (ru_maxrss, libraries included) and the threads (OMP_NUM_THREADS) are comparable. ``--limit`` is
for the whole process, imports and loading of the data included; the seconds of fitting and of predicting exclude both.

Data. concrete, powerplant, protein: RBF, verified folds of Cutajar et al. (2016) from ``fold_test_indices.json.gz`` in
the directory ``paper`` beside KERNELCG_DATA. uci_*: Matérn-3/2, split 0 of the standard test masks (fold "0"). All have
one lengthscale per feature; inputs and target are standardised by the training rows (n − 1). RMSE and NLPD, the mean
negative log density of test observations, noise included, are therefore in units of the training sd of y.

Methods. kernelcg, scikit-learn and "gpytorch recommended" start at lengthscales √d, variance 1, noise variance 0.1.
  kernelcg: GPRegressor with its defaults: constant mean, y standardised inside.
  kernelcg zero mean: mean="zero", normalize_y=False: the model of the paper.
  sklearn: GaussianProcessRegressor(ConstantKernel * kernel + WhiteKernel, normalize_y=True), up to ``--sklearn-rows``.
  gpytorch: the loop of its regression tutorial, all settings at their defaults: ExactGP with ConstantMean, ScaleKernel
    and GaussianLikelihood from their own initial values, float32, 50 steps of Adam at 0.1, predictions under
    fast_pred_var (LOVE; docs.gpytorch.ai, "Simple GP Regression"; KeOps_GP_Regression.ipynb has the same loop).
  gpytorch recommended: the same model with
    max_preconditioner_size(100): Wang et al. (2019), arXiv:1903.08114, and Simple_MultiGPU_GP_Regression.ipynb;
    cg_tolerance(0.01), default 1: Maddox, Kapoor & Wilson (2021), arXiv:2112.15246; eval_cg_tolerance(0.001);
    variances by solves to that tolerance, fast_pred_var off as is the library's default: LOVE of the default rank 100
    costs 0.14 nats a test row on Concrete, and the rank of 5000 that Maddox et al. advise saves no time;
    100 steps of Adam at 0.1; float64 up to 10,000 rows, float32 above; kernels of gpytorch.kernels.keops above 20,000
    rows, where K with the graph behind it does not fit into memory (first use compiles, within the clock).
    max_cholesky_size and min_preconditioning_size stay at 800 and 2000.

"log evidence" is as each library reports it, for y as it standardises it: exact in scikit-learn; in kernelcg with the
certificate's standard error where iterative; in GPyTorch minus n times the loss of the last step, an estimate from ten
probes before that step. "hyperparameters" are log variance, log noise variance, log lengthscales.

Then results/paper_folds.csv: on the folds of Concrete and Power plant, the exact log evidence (Cholesky, zero mean,
jitter 1e-6) at the hyperparameters of "kernelcg zero mean" and at the last ones the paper's authors stored for theirs
(CHOL, ARD), the errors at both, and the seconds of both: theirs from ``results.csv.gz``, on their 16 cores.
"""

import argparse
import csv
import gzip
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from table import RESULTS, Table

from kernelcg import datasets  # no torch yet: the parent stays small, since its memory is the least a child reports

Array = NDArray[np.float64]
Row = dict[str, Any]
Predict = Callable[[Array], tuple[Array, Array]]

PAPER_FOLDS = {"concrete": (1, 2, 3, 4, 5), "powerplant": (1, 2, 3, 4, 5), "protein": (1, 2)}
COMPARED_WITH_PAPER = ("concrete", "powerplant")
SETS = (*PAPER_FOLDS, "uci_pol", "uci_elevators", "uci_protein")
FILE = RESULTS / "gp_regression.csv"
KEY = ("data", "fold", "method", "threads", "machine")
COLUMNS = (
    *("data", "fold", "n", "test rows", "d", "kernel", "method", "status", "fit s", "predict s", "RMSE", "NLPD"),
    *("peak MB", "log evidence", "standard error", "relative residual", "mean error", "steps", "reason"),
    *("hyperparameters", "threads", "machine", "versions", "limit s", "date", "note"),
)
START_NOISE, JITTER = 0.1, 1e-6
DOUBLE_UP_TO, KEOPS_ABOVE = 10_000, 20_000
RESULT = "RESULT "
OUT_OF_MEMORY = ("MemoryError", "allocate memory", "bad_alloc", "MemoryBudgetExceeded")


# data


class Split(NamedTuple):
    """Standardised training and test rows."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    kernel: str


def load(name: str, fold: int) -> Split:
    data = datasets.load(name)
    test = paper_fold(data, fold) if name in PAPER_FOLDS else data.test_mask[:, fold]
    values = np.c_[data.X, data.y]
    spread = values[~test].std(0, ddof=1)
    values = (values - values[~test].mean(0)) / np.where(spread > 0, spread, 1.0)
    parts = values[~test, :-1], values[~test, -1], values[test, :-1], values[test, -1]
    return Split(*map(np.ascontiguousarray, parts), "RBF" if name in PAPER_FOLDS else "Matern-3/2")


def paper_file(name: str) -> Path:
    return Path(os.environ.get(datasets.DIRECTORY_VARIABLE, "")).expanduser().resolve().parent / "paper" / name


def paper_fold(data: datasets.Dataset, fold: int) -> NDArray[np.bool_]:
    """Return the mask of the fold's test rows, after comparing their targets with the sum that came with them."""
    known = json.loads(gzip.decompress(paper_file("fold_test_indices.json.gz").read_bytes()))[data.name]
    if fold not in known["verified_folds"]:
        raise ValueError(f"fold {fold} of {data.name} is not one of the verified {known['verified_folds']}")
    test = np.zeros(len(data.y), dtype=bool)
    test[known["test_rows"][str(fold)]] = True
    if not math.isclose(data.y[test].sum(), known["target_sum_of_fold"][str(fold)], rel_tol=1e-9):
        raise ValueError(f"the targets of fold {fold} of {data.name} do not have the stored sum")
    return test


# methods: each takes (X, y, kernel) and returns what it learned and how to predict


def words(log_parameters: Any) -> str:
    return " ".join(f"{float(value):.15g}" for value in log_parameters)


def kernelcg_fit(X: Array, y: Array, kernel: str, **options: Any) -> tuple[Row, Predict]:
    from kernelcg.estimators import GPRegressor
    from kernelcg.kernels import RBF, Matern

    lengthscales = [math.sqrt(X.shape[1])] * X.shape[1]
    start = RBF(lengthscales) if kernel == "RBF" else Matern(lengthscales, nu=1.5)
    model = GPRegressor(start, noise=START_NOISE, **options).fit(X, y)
    certificate, learned = model.certificate_, model.kernel_
    facts = {
        "log evidence": model.log_marginal_likelihood_value_,
        "standard error": certificate.standard_error,
        "relative residual": float(certificate.relative_residuals.max()),
        "mean error": certificate.mean_error,
        "steps": model.n_iter_,
        "reason": f"{model.learning_.reason}; {model.plan_.method}, {certificate.status.name}",
        "hyperparameters": words(
            [learned.variance.log(), math.log(model.noise_), *learned.lengthscale.expand(X.shape[1]).log()]
        ),
    }
    return facts, lambda points: model.predict(points, return_std=True)


def kernelcg_zero_mean_fit(X: Array, y: Array, kernel: str) -> tuple[Row, Predict]:
    return kernelcg_fit(X, y, kernel, mean="zero", normalize_y=False)


def sklearn_fit(X: Array, y: Array, kernel: str) -> tuple[Row, Predict]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    d = X.shape[1]
    lengthscales = np.full(d, math.sqrt(d))
    correlation = RBF(lengthscales) if kernel == "RBF" else Matern(lengthscales, nu=1.5)
    start = ConstantKernel(1.0) * correlation + WhiteKernel(START_NOISE)
    model = GaussianProcessRegressor(start, normalize_y=True, n_restarts_optimizer=0, random_state=0).fit(X, y)
    variance, *logs, noise = model.kernel_.theta
    facts = {
        "log evidence": model.log_marginal_likelihood_value_,
        "reason": "L-BFGS-B ended",
        "hyperparameters": words([variance, noise, *logs]),
    }
    return facts, lambda points: model.predict(points, return_std=True)


def what_sklearn_needs(n: int, d: int) -> str:
    size, memory = 8 * n * n * (d + 2), physical_memory()
    return (
        f"its gradient is an (n, n, {d + 2}) array of {size} bytes, twice in memory while it is put together: "
        f"{2 * size / 1e9:.3g} GB on a machine with {memory / 1e9:.3g} GB"
    )


def gpytorch_fit(X: Array, y: Array, kernel: str) -> tuple[Row, Predict]:
    import torch

    model = exact_gp(X, y, kernel, torch.float32, keops=False)
    return trained(model, steps=50, fast_variances=True)


def gpytorch_recommended_fit(X: Array, y: Array, kernel: str) -> tuple[Row, Predict]:
    import torch
    from gpytorch import settings

    n, d = X.shape
    model = exact_gp(X, y, kernel, torch.float64 if n <= DOUBLE_UP_TO else torch.float32, keops=n > KEOPS_ABOVE)
    model.covar_module.base_kernel.lengthscale = math.sqrt(d)
    model.covar_module.outputscale = 1.0
    model.likelihood.noise = START_NOISE
    rest_of_process = ExitStack()
    for setting in (
        settings.max_preconditioner_size(100),
        settings.cg_tolerance(0.01),
        settings.eval_cg_tolerance(0.001),
    ):
        rest_of_process.enter_context(setting)
    return trained(model, steps=100, fast_variances=False)


def exact_gp(X: Array, y: Array, kernel: str, dtype: Any, keops: bool) -> Any:
    """Return the model of GPyTorch's tutorials with one lengthscale per feature."""
    import gpytorch
    import torch

    class ExactGPModel(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(inputs, targets, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(correlation)

        def forward(self, points: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

    inputs, targets = torch.from_numpy(X).to(dtype), torch.from_numpy(y).to(dtype)
    family = gpytorch.kernels.keops if keops else gpytorch.kernels
    options = {"ard_num_dims": X.shape[1]}
    correlation = family.RBFKernel(**options) if kernel == "RBF" else family.MaternKernel(nu=1.5, **options)
    torch.manual_seed(0)
    return ExactGPModel().to(dtype)


def trained(model: Any, steps: int, fast_variances: bool) -> tuple[Row, Predict]:
    """Run the training loop of GPyTorch's tutorials."""
    import gpytorch
    import torch

    (inputs,), targets = model.train_inputs, model.train_targets
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -evidence(model(inputs), targets)
        loss.backward()
        optimizer.step()
    model.eval()

    def predict(points: Array) -> tuple[Array, Array]:
        with torch.no_grad(), gpytorch.settings.fast_pred_var(fast_variances):
            found = model.likelihood(model(torch.from_numpy(points).to(inputs)))
            return found.mean.double().numpy(), found.stddev.double().numpy()

    covariance = model.covar_module
    with torch.no_grad():
        learned = [covariance.outputscale, model.likelihood.noise[0], *covariance.base_kernel.lengthscale[0]]
    facts = {
        "log evidence": -loss.item() * len(targets),
        "steps": steps,
        "reason": f"{steps} steps of Adam, {str(inputs.dtype).removeprefix('torch.')}",
        "hyperparameters": words(torch.stack(learned).double().log()),
    }
    return facts, predict


class Method(NamedTuple):
    fit: Callable[[Array, Array, str], tuple[Row, Predict]]
    module: str
    """Imported before the clock starts."""
    packages: tuple[str, ...]


METHODS = {
    "kernelcg": Method(kernelcg_fit, "kernelcg.estimators", ("torch",)),
    "kernelcg zero mean": Method(kernelcg_zero_mean_fit, "kernelcg.estimators", ("torch",)),
    "sklearn": Method(sklearn_fit, "sklearn.gaussian_process", ("scikit-learn", "scipy")),
    "gpytorch": Method(gpytorch_fit, "gpytorch", ("gpytorch", "linear_operator", "torch")),
    "gpytorch recommended": Method(gpytorch_recommended_fit, "gpytorch", ("gpytorch", "linear_operator", "torch")),
}


# the child: one measurement, or two exact evaluations; results go to stdout as soon as they are known


def report(**facts: Any) -> None:
    print(RESULT + json.dumps(facts), flush=True)


def measure(data: str, fold: int, method: str, sklearn_rows: int) -> None:
    split, how = load(data, fold), METHODS[method]
    n, d = split.X.shape
    report(**{"n": n, "d": d, "test rows": len(split.y_test), "kernel": split.kernel, "versions": versions(how)})
    if method == "sklearn" and n > sklearn_rows:
        report(status="left out", note=what_sklearn_needs(n, d))
        return
    import_module(how.module)
    began = time.perf_counter()
    facts, predict = how.fit(split.X, split.y, split.kernel)
    report(**facts, **{"fit s": time.perf_counter() - began})
    began = time.perf_counter()
    mean, std = predict(split.X_test)
    seconds = time.perf_counter() - began
    errors = (split.y_test - mean) / std
    density = 0.5 * (errors**2 + np.log(2 * math.pi * std**2))
    rmse = math.sqrt(np.mean((split.y_test - mean) ** 2))
    report(**{"predict s": seconds, "RMSE": rmse, "NLPD": density.mean(), "status": "done"})


def evaluate(data: str, fold: int, log_parameters: dict[str, str]) -> None:
    """Report the exact log evidence of the paper's model at each of these hyperparameters."""
    import torch

    from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate
    from kernelcg.inference.gaussian.model import GaussianProcess, Regression
    from kernelcg.kernels import RBF

    split = load(data, fold)
    X, Y = torch.from_numpy(split.X), torch.from_numpy(split.y)[:, None]
    problem = Regression(X, Y, torch.full((len(X),), JITTER, dtype=X.dtype), "zero")
    for label, numbers in log_parameters.items():
        variance, noise, *lengthscales = np.exp(np.array(numbers.split(), dtype=float)).tolist()
        estimate = direct_estimate(problem, GaussianProcess(RBF(lengthscales, variance), noise))
        report(**{label: estimate.value})


def versions(how: Method) -> str:
    found = [f"{package} {version(package)}" for package in how.packages]
    if how.module.startswith("kernelcg"):
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        found.insert(0, f"kernelcg {subprocess.run(git, capture_output=True, text=True).stdout.strip() or 'unknown'}")
    return ", ".join(found)


# the parent


def physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def in_child(job: Row, options: argparse.Namespace) -> Row:
    """Return what a process with this job reported, its peak memory, and how it ended."""
    count = {name: str(threads()) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, __file__, "--memory", str(options.memory), "--job", json.dumps(job)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env={**os.environ, **count}, stdout=out, stderr=err)
        timer = threading.Timer(options.limit, process.kill)
        began = time.perf_counter()
        timer.start()
        try:
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        finally:
            timer.cancel()
            if process.returncode is None:
                process.kill()
        late = time.perf_counter() - began >= options.limit
        out.seek(0)
        err.seek(0)
        found: Row = {"peak MB": usage.ru_maxrss / 1024}
        for line in out:
            if line.startswith(RESULT):
                found |= json.loads(line.removeprefix(RESULT))
        finished = process.returncode == 0 or "status" in found
        return found if finished else found | ending(err.read().strip(), process.returncode, late)


def ending(complaint: str, code: int, late: bool) -> Row:
    """Return in words why a process did not end well."""
    last = complaint.splitlines()[-1] if complaint else ""
    if late and code < 0:
        return {"status": "over the limit"}
    if code == -9 or any(sign in complaint for sign in OUT_OF_MEMORY):
        return {"status": "out of memory", "note": last[:300]}
    return {"status": "failed", "note": f"exit status {code}: {last[:300]}"}


def stored() -> list[Row]:
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: list[Row], mode: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    new = mode == "w" or not FILE.exists()
    with FILE.open(mode, newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[column]) for column in KEY)


def jobs(options: argparse.Namespace) -> Iterator[Row]:
    """Yield what is asked for and can be done here; say what cannot."""
    methods = [name for name in options.methods if find_spec(METHODS[name].module.split(".")[0])]
    for name in set(options.methods) - set(methods):
        print(f"{name} left out: it is not installed")
    folds_file = paper_file("fold_test_indices.json.gz")
    for name in options.data:
        if name in PAPER_FOLDS and not folds_file.exists():
            print(f"{name} left out: its folds are not here, {folds_file} does not exist")
            continue
        folds = [fold for fold in PAPER_FOLDS.get(name, (0,)) if name not in PAPER_FOLDS or fold in options.folds]
        for fold in folds:
            for method in methods:
                yield {"data": name, "fold": fold, "method": method, "threads": threads(), "machine": machine()}


def measure_what_is_missing(options: argparse.Namespace) -> None:
    wanted = list(jobs(options))
    if options.again:
        write([row for row in stored() if key(row) not in set(map(key, wanted))], "w")
    known, table = set(map(key, stored())), Table()
    for job in wanted:
        if key(job) in known:
            continue
        what = {name: job[name] for name in ("data", "fold", "method")}
        found = in_child(what | {"sklearn_rows": options.sklearn_rows}, options)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = job | {"limit s": options.limit, "date": now} | {name: rounded(value) for name, value in found.items()}
        write([row], "a")
        shown = ("data", "fold", "method", "fit s", "predict s", "RMSE", "NLPD", "peak MB", "log evidence", "status")
        table.add({column: shortened(row.get(column, "")) for column in shown})


def rounded(value: object) -> object:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def shortened(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def print_means() -> None:
    """Print means over the folds that were finished, for every data set, method and machine."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in stored():
        groups.setdefault((row["data"], row["method"], row["threads"], row["machine"]), []).append(row)
    table = Table()
    for (name, method, count, where), rows in groups.items():
        done = [row for row in rows if row["status"] == "done"]
        line: Row = {"data": name, "n": rows[0]["n"], "method": method, "folds": f"{len(done)} of {len(rows)}"}
        for column in ("fit s", "predict s", "RMSE", "NLPD", "peak MB", "log evidence"):
            numbers = [float(row[column]) for row in done if row[column]]
            line[column] = f"{np.mean(numbers):.4g}" if numbers else ""
        others = {f"{row['status']}: {row['note']}".rstrip(": ") for row in rows if row not in done}
        table.add(line | {"threads": count, "machine": where, "else": "; ".join(sorted(others))})


# the paper's folds


def last_stored(name: str, fold: int) -> Row:
    """Return the last hyperparameters of the authors' exact method (CHOL, ARD), in our order, with its results."""
    wanted = {"dataset": name, "kernel": "ARD", "method": "CHOL", "fold": str(fold)}

    def rows(file: str) -> list[Row]:
        with gzip.open(paper_file(file), "rt", newline="") as stream:
            return [row for row in csv.DictReader(stream) if wanted.items() <= row.items()]

    last = max(rows("hyperparameters.csv.gz"), key=lambda row: int(row["row"]))
    log_lengthscales = [-0.5 * (float(tau) + math.log(2)) for tau in last["log_tau"].split()]
    found = {row["metric"]: row for row in rows("results.csv.gz") if row["step"] == last["step"]}
    return {
        "hyperparameters": words([last["log_sigma2"], last["log_lambda"], *log_lengthscales]),
        "RMSE": float(found["RMSE"]["value"]) if "RMSE" in found else "",
        "NEG_LLIK": float(found["NEG_LLIK"]["value"]) if "NEG_LLIK" in found else "",
        "seconds": float(found["RMSE"]["seconds"]) if "RMSE" in found else "",
    }


def compare_with_paper(options: argparse.Namespace) -> None:
    """Write paper_folds.csv; lines whose measurement has not changed since are kept."""
    file, table = RESULTS / "paper_folds.csv", Table()
    known = list(csv.DictReader(file.open(newline=""))) if file.exists() else []
    kept = {(row["data"], row["fold"], row["measured"]): row for row in known}
    ours = {}
    for row in sorted(stored(), key=lambda row: row["date"]):
        if row["method"] == "kernelcg zero mean" and row["status"] == "done" and row["data"] in COMPARED_WITH_PAPER:
            ours[row["data"], row["fold"]] = row
    if not ours or not paper_file("hyperparameters.csv.gz").exists():
        print("no comparison with the paper: " + ("its files are not here" if ours else "nothing was measured"))
        return
    print("\nexact log evidence at our hyperparameters and at the last ones stored by the authors")
    for place in sorted(ours):
        row = ours[place]
        table.add(kept.get((*place, row["date"])) or compared(row, options))
    table.save(file.name)


def compared(row: Row, options: argparse.Namespace) -> Row:
    theirs = last_stored(row["data"], int(row["fold"]))
    points = {"ours": row["hyperparameters"], "stored": theirs["hyperparameters"]}
    exact = in_child({"data": row["data"], "fold": int(row["fold"]), "log_parameters": points}, options)
    return {
        "data": row["data"],
        "fold": row["fold"],
        "n": row["n"],
        "log evidence": rounded(exact.get("ours", exact.get("status", ""))),
        "stored log evidence": rounded(exact.get("stored", exact.get("status", ""))),
        "RMSE": rounded(float(row["RMSE"])),
        "stored RMSE": rounded(theirs["RMSE"]),
        "NEG_LLIK": rounded(float(row["NLPD"]) * int(row["test rows"])),
        "stored NEG_LLIK": rounded(theirs["NEG_LLIK"]),
        "seconds": round(float(row["fit s"]), 2),
        "stored seconds": theirs["seconds"],
        "threads": row["threads"],
        "measured": row["date"],
    }


def main() -> None:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folds", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="of the paper's sets")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each process")
    parser.add_argument("--memory", type=float, default=0.8 * physical_memory() / 1e9, help="GB for each process")
    parser.add_argument("--sklearn-rows", type=int, default=5000, help="largest n for scikit-learn")
    parser.add_argument("--again", action="store_true", help="replace the rows that exist")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        allowed = int(1e9 * options.memory)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
        (measure if "method" in options.job else evaluate)(**options.job)
        return
    measure_what_is_missing(options)
    print_means()
    compare_with_paper(options)


if __name__ == "__main__":
    main()
