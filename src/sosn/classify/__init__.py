"""Classify images from a few examples of each class."""
