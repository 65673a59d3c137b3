"""Triton backend: fused GPU kernels for RBF and Matérn kernels."""

import importlib
import os
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kernelcg.backends.base import Backend, KernelMatrix, Points
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.backends.triton.forms import scaling
from kernelcg.kernels import RBF, Kernel, Matern
from kernelcg.kernels.stationary import per_feature

PROFILES = {0.5: 1, 1.5: 2, 2.5: 3}
"""Numbers of the Matérn correlations in the kernels; 0 is the RBF."""

OLDEST = (3, 4)
"""Version of Triton from which the kernels for float32 compile; those for several columns in float64 need 3.6."""

MOST_FEATURES = 512

MOST_NUMBERS = 2**31 - 2**17
"""Entries of X up to which the kernels can number them."""


@dataclass(frozen=True, eq=False)
class Triton(Backend):
    """Fused GPU kernels for RBF and Matérn kernels; distances by tensor cores in float32, by differences in float64.

    Every output row is summed in a fixed order: the same call gives the same bits. Multiples and sums of these kernels
    are computed part by part, all other kernels by torch tiles. A kernel is compiled and compared with float64 on a
    small problem before its first use; where that fails, tiles serve and a warning is logged.
    """

    @classmethod
    def why_not(cls) -> str | None:
        missing = _missing()
        if missing is not None or is_interpreted():
            return missing
        if not torch.cuda.is_available():
            return "there is no GPU that torch can use"
        return _trial(torch.cuda.current_device())

    @classmethod
    def preference(cls, device: str) -> int | None:
        return 10 if device == "cuda" and torch.cuda.is_available() else None

    def computes(self, kernel: Kernel, X: Tensor) -> bool:
        reachable = X.device.type == "cuda" or (X.device.type == "cpu" and is_interpreted())
        small = 1 <= X.shape[1] <= MOST_FEATURES and X.numel() <= MOST_NUMBERS
        return reachable and small and type(kernel) in (RBF, Matern)

    def matrix(self, kernel: Kernel, points: Points) -> KernelMatrix:
        from kernelcg.backends.triton.matrix import TritonMatrix

        if type(kernel) not in (RBF, Matern) or not isinstance(kernel, RBF | Matern):
            raise TypeError(f"the triton backend does not compute {kernel!r}")
        X = points.X
        per_feature(kernel.lengthscale, X.shape[1], "lengthscale")
        with torch.inference_mode(False), torch.no_grad():
            factors = (scaling(kernel) / kernel.lengthscale.detach().double()).expand(X.shape[1]).contiguous()
        profile = 0 if isinstance(kernel, RBF) else PROFILES[kernel.nu]
        whole, beside = TilesMatrix(kernel, points), factors.to(X.device, non_blocking=True)
        return TritonMatrix(kernel, points, whole, beside, kernel.variance.item(), profile, not is_interpreted())


def is_interpreted() -> bool:
    """Say whether Triton's interpreter runs the kernels on the CPU, as the variable TRITON_INTERPRET asks."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@cache
def _missing() -> str | None:
    """Return why Triton cannot be imported, None if it can."""
    try:
        version = importlib.import_module("triton").__version__
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            return f"Triton {version} is too old; install {'.'.join(map(str, OLDEST))} or newer"
        importlib.import_module("kernelcg.backends.triton.kernels")
    except Exception as error:  # an installation may be broken in any way
        return f"Triton cannot be imported ({error}); install kernelcg[gpu] on Linux"
    return None


@cache
def _trial(device: int) -> str | None:
    """Return why the simplest kernel does not work on a device, None if it does."""
    from kernelcg.backends.triton.shapes import shape_for, why_wrong

    shape = shape_for("product", torch.float32, 0, 2, 1, fixed=True)
    reason = why_wrong(shape, torch.device("cuda", device))
    return None if reason is None else f"Triton does not work on this GPU: {reason}"
