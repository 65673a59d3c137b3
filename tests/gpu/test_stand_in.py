"""The device that stands in for CUDA: it mixes with nothing, refuses what CUDA refuses, and every read is counted."""

import threading

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn, OnDevice, counting

from kernelcg.preconditioners.csr_tensor import csr_product, csr_tensor
from kernelcg.threads import shared


@pytest.fixture
def device():
    with CudaStandIn() as found:
        yield found


@pytest.fixture
def x(device):
    return torch.arange(12.0, dtype=torch.float64).reshape(4, 3).cuda()


def test_torch_has_a_gpu_only_meanwhile():
    plain = torch.zeros(2)
    with CudaStandIn():
        assert torch.cuda.is_available()
        assert plain.to("cuda").device == torch.device("cuda", 0)
    assert plain.to("cpu") is plain
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_what_is_computed_stays_there(x):
    made = [
        *(x + 1, x @ x.T, x[:2], x.T, x.sum(), x.to(torch.float32), torch.cat([x, x]), x * torch.tensor(2.0)),
        *(torch.zeros(3, device=x.device), x.new_ones(2), torch.zeros_like(x), torch.linalg.qr(x).R, x.to("cuda")),
        *(torch.tensor([1.0], device="cuda"), torch.as_tensor(np.ones(3), device="cuda"), torch.where(x > 1, x, 0.0)),
        *(
            torch.arange(3, device=x.device),
            torch.ones(2).to(x),
            torch.eye(3, device="cuda"),
            x.clone().requires_grad_(),
        ),
    ]
    for one in made:
        assert isinstance(one, OnDevice)
        assert one.is_cuda
        assert one.device.type == "cuda"
    for one in (x.cpu(), x.to("cpu"), x.to("cpu", torch.float32), x.new_zeros(3, device="cpu")):
        assert type(one) is torch.Tensor
        assert not one.is_cuda
    assert x.to("cpu", torch.float32).dtype == torch.float32


def test_changes_in_place_reach_the_memory_that_is_shared(x):
    x[1:3, 0].add_(100)
    x[:, 1] = 7.0
    torch.mm(x, x.T, out=(product := x.new_empty(4, 4)))
    expected = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    expected[1:3, 0] += 100
    expected[:, 1] = 7
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(product.cpu(), expected @ expected.T)


MIXED = {
    "sum": lambda x: x + torch.ones(4, 3),
    "sum in place": lambda x: torch.ones(4, 3).add_(x),
    "product": lambda x: x @ torch.ones(3, 1, dtype=torch.float64),
    "rows put together": lambda x: torch.cat([x, torch.ones(1, 3, dtype=torch.float64)]),
    "numbers put together": lambda x: torch.stack([x[0, 0], torch.tensor(1.0, dtype=torch.float64)]),
    "rows of the host at places of the device": lambda x: torch.ones(4)[x[:, 0].long()],
    "an assignment of numbers of the host": lambda x: x.__setitem__(torch.tensor([0]), torch.ones(1, 3).double()),
    "a choice": lambda x: torch.where(x > 1, x, torch.ones(3, dtype=torch.float64)),
    "a triangle": lambda x: torch.linalg.solve_triangular(torch.eye(4, dtype=torch.float64), x, upper=True),
}


@pytest.mark.parametrize("mix", MIXED)
def test_mixing_raises(mix, x):
    with pytest.raises(RuntimeError, match="device"):
        MIXED[mix](x)


def test_what_cuda_has_no_code_for_raises(x):
    generator = torch.Generator()
    for refused in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.ones(3) @ x):
        with pytest.raises(TypeError):
            refused()
    with pytest.raises(RuntimeError, match="not implemented"):
        x.long() @ x.long().T
    for draw in (lambda: x.normal_(generator=generator), lambda: torch.randn(2, device="cuda", generator=generator)):
        with pytest.raises(RuntimeError, match="generator"):
            draw()


READS = {
    "number": lambda x: float(x[0, 0]),
    "whole number": lambda x: int(x[0, 0]),
    "truth": lambda x: bool((x > 0).all()),
    "item": lambda x: x[1, 1].item(),
    "list": lambda x: x.tolist(),
    "copy": lambda x: x.cpu(),
    "to the host": lambda x: x.to("cpu"),
    "array": lambda x: x.numpy(force=True),
    "into the host": lambda x: torch.zeros(4, 3).copy_(x),
    "mask": lambda x: x[x > 1],
    "places": lambda x: (x > 1).nonzero(),
    "checked factor": lambda x: torch.linalg.cholesky(torch.eye(3, device="cuda")),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_is_counted_with_its_line(read, device, x):
    before = len(device.reads)
    READS[read](x)
    [(line, _)] = device.reads[before:]
    assert "test_stand_in.py" in line


def test_other_work_reads_nothing(device, x):
    torch.linalg.cholesky_ex(x @ x.T)
    x[torch.tensor([0, 2])] * x.amax()
    torch.where(x > 1, x, 0.0).index_add_(0, torch.tensor([0], device="cuda"), x[:1])
    assert device.reads == []


def test_reads_of_other_threads_count_too(x):
    with counting() as reads:
        shared(lambda rows: float(x[rows].sum()), 4, 1)
        other = threading.Thread(target=lambda: x.tolist())
        other.start()
        other.join()
    assert len(reads) == 5


def test_slopes_come_back_to_where_the_numbers_are(x):
    """Those of numbers on the host that are multiplied with tensors of the device, and of tensors that were sent."""
    number, sent = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, [1.0, 2.0, 3.0]))
    y = x.clone().requires_grad_()
    total = (number * y * sent.to(x.device)).square().sum()
    slopes = torch.autograd.grad(total, [number, sent, y], create_graph=True)
    assert [type(slope) for slope in slopes] == [torch.Tensor, torch.Tensor, OnDevice]
    host = x.cpu().requires_grad_()
    truth = torch.autograd.grad((number * host * sent).square().sum(), [number, sent, host], create_graph=True)
    for found, expected in zip(slopes, truth, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-14, atol=0)
    again, expected = (torch.autograd.grad(one[0], sent)[0] for one in (slopes, truth))
    torch.testing.assert_close(again, expected, rtol=1e-14, atol=0)


def test_sparse_matrices_multiply(x):
    parts = (torch.tensor(values).cuda() for values in ([0, 1, 2], [2, 0], [5.0, 7.0]))
    G = csr_tensor(*parts, (2, 4))
    assert csr_product(G, x.float()).cpu().tolist() == [[30.0, 35.0, 40.0], [0.0, 7.0, 14.0]]


UNORDERED = {
    "running sum": lambda v, i, G: v.cumsum(0),
    "additions to a row": lambda v, i, G: v.index_add(0, i, v),
    "scattered additions": lambda v, i, G: v.scatter_add(0, i, v),
    "scattered means": lambda v, i, G: v.scatter_reduce(0, i, v, "mean"),
    "weighted counts": lambda v, i, G: i.bincount(v),
    "place of a median": lambda v, i, G: v.median(0),
    "sparse product": lambda v, i, G: G @ v[:, None],
}


@pytest.mark.parametrize("name", UNORDERED)
def test_what_has_another_order_in_each_run_is_refused(device, name):
    v, i = torch.ones(3, dtype=torch.float64).cuda(), torch.tensor([0, 1, 1]).cuda()
    G = csr_tensor(torch.arange(4).cuda(), i, v, (3, 3))
    with pytest.raises(RuntimeError, match="same order"):
        UNORDERED[name](v, i, G)


def test_what_has_one_order_is_not_refused(device):
    v, i = torch.ones(3, dtype=torch.float64).cuda(), torch.tensor([0, 2, 1]).cuda()
    assert v.index_add(0, i, v).cpu().tolist() == [2.0, 2.0, 2.0]
    assert v.scatter_reduce(0, i * 0, 2 * v, "amax").cpu().tolist() == [2.0, 1.0, 1.0]
    assert i.cumsum(0).cpu().tolist() == [0, 2, 3]
    assert i.bincount().cpu().tolist() == [1, 1, 1]
    assert float(v.median()) == 1.0
