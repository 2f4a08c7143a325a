"""Reproduction of the paper's experiments."""
