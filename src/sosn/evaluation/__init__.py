"""Evaluation: seeded episodes, confidence intervals, paired comparison, calibration."""
