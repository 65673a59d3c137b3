"""Gaussian process regression: the model, its evidence, conditioning, prediction, sampling."""
