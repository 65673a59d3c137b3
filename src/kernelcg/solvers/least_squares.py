"""Small least-squares problems, to the same bits in every run."""

import torch
from torch import Tensor


def least_squares(A: Tensor, B: Tensor) -> Tensor:
    """Return the X of least norm that minimises ‖A X − B‖, by singular values.

    The last bits of the result of LAPACK's default routine, gelsy, were seen to change from run to run with the
    addresses of the arrays; those of gelsd were not. A GPU has neither routine: gels, which it has, supposes that A has
    full rank.
    """
    return torch.linalg.lstsq(A, B, driver="gelsd" if A.device.type == "cpu" else "gels").solution
