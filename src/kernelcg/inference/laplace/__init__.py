"""Other likelihoods than Gaussian noise, by Laplace's approximation."""
