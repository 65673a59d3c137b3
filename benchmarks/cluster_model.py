"""What a product costs on 2 to 1,024 workers: a simulation of the tasks of the Dask backend, with a picture.

    python benchmarks/cluster_model.py            # seconds; writes results/cluster_model.csv and a picture for the docs

The model. K has B (B + 1) / 2 tiles of blocks of b rows, where B and b are those of `kernelcg.backends.Dask` for n
rows. A tile takes b² times the seconds of a pair for both of its sides, half of that on the diagonal, divided by the
speed of a worker. Tiles are given to workers as they become free, in the order of the backend. In one product

- the driver sends V once, 8 n k bytes, and receives Y, as many;
- every worker receives the rows of V that its tiles need, at most 8 n k bytes;
- the sums of B rows of tiles move both sides of every tile to one worker: 2 · 8 n k B bytes, divided by the workers;
- the scheduler spends a time on each task, one after the other.

So arithmetic is n² / workers, and what a worker receives n k (1 + 2 B / workers): with B = √n / 29 the second is small
beside the first unless there are very many workers. Sending and computing are supposed not to overlap, which is
pessimistic, and networks to carry all transfers of a stage at once, which is optimistic.
"""

import argparse
import heapq
import math
from dataclasses import dataclass
from pathlib import Path

from table import Table

from kernelcg.backends.dask import number_of_blocks
from kernelcg.planning.workers import TASK

FEATURES, COLUMNS = 8, 16

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "cluster_model.png"

PAIR = 1.1e-9
"""Seconds of a thread for one pair with 8 features and 16 columns, both sides, in float64: 0.0277 s of processor time
for a tile of 5,000 × 5,000 rows with the Matérn-3/2 kernel, measured on one core of a server."""


@dataclass(frozen=True)
class Workers:
    """A kind of worker: how many times faster than one thread it is, and bytes a second that it receives."""

    name: str
    speed: float
    bandwidth: float


KINDS = (
    Workers("16 threads, 10 Gbit/s", 16.0, 1.25e9),
    Workers("16 threads, 100 Gbit/s", 16.0, 1.25e10),
    Workers("as fast as 500 threads, 100 Gbit/s", 500.0, 1.25e10),
)
"""Assumed, not measured: the last one stands for a GPU."""


def simulated(n: int, workers: int, kind: Workers) -> dict[str, float]:
    """Return the seconds of the parts of one product."""
    B = number_of_blocks(n)
    tile = (n / B) ** 2 * PAIR / kind.speed
    free = [(0.0, worker, frozenset[int]()) for worker in range(workers)]
    needed = [0] * workers
    pairs = sorted(((i, j) for i in range(B) for j in range(i, B)), key=lambda pair: pair[0] == pair[1])
    for i, j in pairs:
        time, worker, blocks = heapq.heappop(free)
        blocks |= {i, j}
        needed[worker] = len(blocks)
        heapq.heappush(free, (time + (tile if i != j else tile / 2), worker, blocks))
    block_bytes, V_bytes = 8 * n / B * COLUMNS, 8 * n * COLUMNS
    return {
        "arithmetic": max(time for time, _, _ in free),
        "V and Y": (2 * V_bytes + max(needed) * block_bytes) / kind.bandwidth,
        "sums": 2 * V_bytes * math.ceil(B / workers) / kind.bandwidth,
        "scheduler": TASK * (len(pairs) + B),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    table = Table()
    for n in (10**5, 10**6, 10**7):
        for kind in KINDS:
            for workers in (2**power for power in range(1, 11)):
                parts = simulated(n, workers, kind)
                total = sum(parts.values())
                ideal = n**2 / 2 * PAIR / kind.speed / workers
                row = {"n": n, "kind": kind.name, "workers": workers, "product s": f"{total:.4g}"}
                row |= {f"{name} s": f"{value:.3g}" for name, value in parts.items()}
                table.add(row | {"efficiency": round(ideal / total, 3)})
    table.save("cluster_model.csv")
    draw(table)


def draw(table: Table) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(KINDS), figsize=(12, 4), sharey=True, layout="constrained")
    for axes, kind in zip(panels, KINDS, strict=True):
        for n in (10**5, 10**6, 10**7):
            rows = [row for row in table.rows if row["n"] == n and row["kind"] == kind.name]
            count = [int(str(row["workers"])) for row in rows]
            (line,) = axes.loglog(count, [float(str(row["product s"])) for row in rows], "o-", label=f"n = {n:,}")
            ideal = [n**2 / 2 * PAIR / kind.speed / workers for workers in count]
            axes.loglog(count, ideal, ":", color=line.get_color())
        axes.set_title(kind.name, fontsize=10)
        axes.set_xlabel("workers")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("seconds of a product with 16 columns")
    panels[0].legend(frameon=False)
    figure.suptitle("Simulated products on a cluster; dotted: the arithmetic alone, shared equally", fontsize=11)
    figure.savefig(PICTURE, dpi=120)
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
