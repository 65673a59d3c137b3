"""Small least-squares problems, to the same bits in every run."""

import torch
from torch import Tensor


def least_squares(A: Tensor, B: Tensor) -> Tensor:
    """Return the X of least norm that minimises ‖A X − B‖, by singular values.

    LAPACK's default routine, gelsy, was seen to give other last bits from run to run, as memory happened to be laid
    out; gelsd was not. A GPU has neither: its routine, gels, takes A for of full rank.
    """
    return torch.linalg.lstsq(A, B, driver="gelsd" if A.device.type == "cpu" else "gels").solution
