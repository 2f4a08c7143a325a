"""Weights on disk: save and load them, shipped models, import of published weights, training classes of a model."""
