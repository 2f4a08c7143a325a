"""How fast this machine trains and evaluates: contenders side by side in one run."""

from sosn.bench.measure import evaluation_ratios, run_bench, written_rate

__all__ = ["evaluation_ratios", "run_bench", "written_rate"]
