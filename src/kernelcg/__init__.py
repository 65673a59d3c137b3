"""Exact Gaussian processes and kernel machines by preconditioned conjugate gradients."""
