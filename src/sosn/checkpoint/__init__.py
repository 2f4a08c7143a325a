"""Weights on disk: saving and loading, the shipped models, weights from elsewhere, the classes a model was trained on."""
