"""Inference: the model, its evidence, learning, prediction, certificates."""
