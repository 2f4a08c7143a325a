"""How fast this machine trains and evaluates: contenders side by side in one run."""

from sosn.bench.measure import run_bench

__all__ = ["run_bench"]
