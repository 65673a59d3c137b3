"""Sums over groups of rows that are added in the same order each time, also on a GPU.

There an addition to an entry of a tensor is atomic and the order of such additions is another one in each run, so that
the last digits of their sum are others, too.
"""

import torch
from torch import Tensor


def sums_of_groups(values: Tensor, group: Tensor, count: int) -> Tensor:
    """Return (count, k) the sums of the rows of values (n, k) of each group, from 0 to count − 1, in their order."""
    if not values.is_cuda:
        return values.new_zeros(count, values.shape[1]).index_add(0, group, values)
    order = group.argsort(stable=True)
    starts = torch.searchsorted(group[order], torch.arange(count + 1, device=group.device))
    return sums_of_runs(values[order], starts)


def sums_of_runs(values: Tensor, starts: Tensor) -> Tensor:
    """Return (m, k) the sums of the rows of values (n, k) from each of the m + 1 starts up to the next."""
    return torch.segment_reduce(values.contiguous(), "sum", offsets=starts, axis=0, unsafe=True)


def running_shares(weights: Tensor) -> Tensor:
    """Return the running sums of weights (n,) ≥ 0 as whole numbers, the last of them below 2⁶².

    Whole numbers have the same sum in whatever order a GPU adds them. The largest weight is rounded to a part of
    n 2⁻⁶¹ of itself.
    """
    unit = 2.0 ** (61 - len(weights).bit_length())
    shares = weights / weights.max().clamp_min(torch.finfo(weights.dtype).tiny)
    return (unit * shares).long().cumsum(0)
