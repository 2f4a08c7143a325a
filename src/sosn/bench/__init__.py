"""Benchmark of training and evaluation speed on this machine."""

from sosn.bench.measure import evaluation_ratios, run_bench, written_rate

__all__ = ["evaluation_ratios", "run_bench", "written_rate"]
