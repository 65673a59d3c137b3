"""The system of a Newton step on a few rows, solved with the structure that the classes have."""

import torch
from torch import Tensor

from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion


def local_weights(expansion: Expansion, rows: Tensor, K: Tensor, k: Tensor) -> Tensor | None:
    r"""Return (j, C, g, C) Y = (K ⊗ I + W⁻¹)⁻¹ (k ⊗ e_c) on the rows J, for the columns of k (j, g) and all classes c.

    K (j, j) is the kernel matrix of these rows. With π_b the probabilities of class b,
    :math:`E_b = \sqrt{\pi_b} (I + \sqrt{\pi_b} K \sqrt{\pi_b})^{-1} \sqrt{\pi_b}` and :math:`M = \sum_b E_b`,

    .. math:: Y_{bc} = \delta_{bc} E_c k - E_b M^{-1} E_c k .

    For one latent value a point Y = S (I + S K S)⁻¹ S k. Costs O(C j³ + C² j² g). None if rounding makes a matrix
    indefinite.

    References
    ----------
    Rasmussen & Williams (2006), equations 3.46 and 3.47.
    """
    if not isinstance(expansion, ClassExpansion):
        E = _embedded_inverse(K, expansion.trace()[rows].sqrt()[None])
        return None if E is None else (E[0] @ k)[:, None, :, None]
    (j, g), C = k.shape, expansion.pi.shape[1]
    E = _embedded_inverse(K, expansion.pi[rows].T.sqrt())
    if E is None:
        return None
    L, failed = torch.linalg.cholesky_ex(E.sum(0))
    if bool(failed):
        return None
    Ek = E @ k  # (C, j, g)
    Z = torch.cholesky_solve(Ek.permute(1, 2, 0).reshape(j, g * C), L)
    Y = -(E @ Z).reshape(C, j, g, C)
    own = torch.arange(C, device=k.device)
    Y[own, :, :, own] += Ek
    return Y.transpose(0, 1).contiguous()


def _embedded_inverse(K: Tensor, root: Tensor) -> Tensor | None:
    """Return (C, j, j) S (I + S K S)⁻¹ S for the rows S of ``root`` (C, j)."""
    A = root[:, :, None] * K * root[:, None, :]
    A.diagonal(dim1=1, dim2=2).add_(1.0)
    L, failed = torch.linalg.cholesky_ex(A)
    if bool(failed.any()):
        return None
    return root[:, :, None] * torch.cholesky_inverse(L) * root[:, None, :]
