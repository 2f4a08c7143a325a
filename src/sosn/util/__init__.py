"""Helpers for all packages: checks, devices, files, memory, precision, seeds, spelling, typed values, warping."""
