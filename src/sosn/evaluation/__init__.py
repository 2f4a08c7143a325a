"""How good a model is: seeded episodes, confidence intervals, paired comparison, calibration."""
