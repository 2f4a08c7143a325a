"""The page on speed."""

from typing import Any

from scipy import stats

from pages.common import ROOT, over_seeds, put, read
from sosn.bench import evaluation_ratios, written_rate
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.reproduce.ledger import interval

PART = 0.02  # of the time, below which an operator is not named


def fill(text: str) -> str:
    """The page on speed with the tables of every benchmark that was kept."""
    kept = {path.name: read(f"results/{path.name}") for path in sorted((ROOT / "results").glob("bench-*.json"))}
    text = put(text, "bench", "\n" + "\n".join(bench_tables(file, told) for file, told in kept.items()))
    text = put(text, "hosts", _hosts([*_earlier("bench-h200"), kept["bench-h200.json"]]))
    text = put(text, "again", _again([*_earlier("bench-cpu"), kept["bench-cpu.json"]]))
    profiles = [read(f"results/{path.name}") for path in sorted((ROOT / "results").glob("profile-*.json"))]
    text = put(text, "profiles", "\n" + "\n".join(profile_table(told) for told in profiles))
    path = "results/engine-accuracy.json"
    told = read(path) if (ROOT / path).exists() else {"rows": []}
    return put(text, "engine-accuracy", "\n" + engine_accuracy(told) + "\n")


def bench_tables(file: str, told: dict[str, Any]) -> str:
    """What a benchmark measured, as tables."""
    parts = [
        f"### {told['machine']}", "",
        f"`{file}`: sosn {told['versions']['sosn']}, torch {told['versions']['torch']}; a large matrix product "
        f"runs at {told['peak_tflops']:.3g} TFLOP/s.{_missing(told)}", "",
        "| training, an episode | contender | engine is faster by | episodes/s | pairs/s | of the floor | peak GiB |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in told["training"]:
        for name, rate in row["episodes_per_second"].items():
            share, memory = row["share_of_floor"].get(name), row["peak_gib"][name]
            ratio = row["ratios"].get(f"engine / {name}")
            cells = [row["shape"], name, f"{ratio:.1f}×" if ratio else "", written_rate(rate)]
            cells += [f"{row['pairs_per_second'][name]:,.0f}", f"{100 * share:.1f}%" if share else ""]
            parts.append(f"| {' | '.join([*cells, f'{memory:.2f}' if memory else ''])} |")
    parts += ["", "| evaluation, an episode | contender | engine is faster by | ms |", "|---|---|---|---|"]
    for row in told["evaluation"]:
        ratios = evaluation_ratios(row["seconds_per_episode"])
        for name, seconds in row["seconds_per_episode"].items():
            shown = f"{ratios[name]:.2f}×" if name in ratios else ""
            parts.append(f"| {row['shape']} | {name} | {shown} | {1e3 * seconds:.1f} |")
    parts += ["", "| growth with | ms to train an episode |", "|---|---|"]
    for name, rows in told["growth"].items():
        costs = ", ".join(f"{one['shape']}: {one['ms_per_episode']:.1f}" for one in rows)
        parts.append(f"| {name} | {costs} |")
    parts.append("")
    return "\n".join(parts)


def _missing(told: dict[str, Any]) -> str:
    """A sentence where a file is from before whole steps and whole evaluations were measured."""
    rates = (row["episodes_per_second"] for row in told["training"])
    if any("engine, in sosn train" in names for names in rates):
        return ""
    return " Measured before *in sosn train* and *whole evaluation* were, and before easyfsl's encoder ran on plain layers."


def _earlier(name: str) -> list[dict[str, Any]]:
    """Benchmarks of the same kind of machine that were kept when another took their place, the oldest first."""
    return [read(f"results/earlier/{path.name}") for path in sorted((ROOT / "results/earlier").glob(f"{name}-*.json"))]


def _hosts(benchmarks: list[dict[str, Any]]) -> str:
    """What the first shape gave in several runs on one kind of machine."""
    rows = [told["training"][0] for told in benchmarks]
    rates = {name: [written_rate(row["episodes_per_second"][name]) for row in rows] for name in ("engine", "loop", "easyfsl")}
    told = "; ".join(f"{name} {_listed(own)}" for name, own in rates.items())
    ratios = _listed([f"{row['ratios']['engine / loop']:.0f}" for row in rows])
    products = _listed([f"{told['peak_tflops']:.0f}" for told in benchmarks])
    old = sum(bool(_missing(told)) for told in benchmarks)
    return (
        f"{rows[0]['shape']} in {len(rows)} runs on an {benchmarks[0]['machine']}, episodes/s: {told}; {ratios} times the "
        f"loop; a large matrix product {products} TFLOP/s. The last run is in the table; in the first {old} easyfsl's encoder "
        "ran on the engine."
    )


def kernel_kind(name: str) -> str:
    """What an operator or a kernel of a GPU does, as far as its name tells; our own kernels keep their names."""
    known = {
        "_fprop_": "convolution", "_dgrad_": "convolution, gradient of input", "_wgrad_": "convolution, gradient of weights",
        "bn_fw_inf": "batch norm", "max_pool_forward": "max-pooling", "elementwise_kernel": "elementwise",
        "gemm": "matrix product", "nchwToNhwc": "change of layout",
    }  # fmt: skip
    kind = next((kind for part, kind in known.items() if part in name), None)
    return kind or (f"`{name}`" if name.startswith("_") else name.removeprefix("aten::"))


def profile_table(told: dict[str, Any]) -> str:
    """Where the time goes on a machine."""
    rows = [
        f"{told['machine']}, {told['shape']}:",
        "",
        "| call | ms | operators that took most | operators |",
        "|---|---|---|---|",
    ]
    for row in told["rows"]:
        *parts, others = row["parts"]
        kinds: dict[str, float] = {}
        for one in parts:
            kinds[kernel_kind(one["name"])] = kinds.get(kernel_kind(one["name"]), 0.0) + one["share"]
        named = sorted(((share, kind) for kind, share in kinds.items() if share > PART), reverse=True)
        shares = "; ".join(f"{kind} {100 * share:.0f}%" for share, kind in named)
        busy = f", the GPU at work for {row['gpu_ms']:.2f}" if "gpu_ms" in row else ""
        calls = sum(one["calls"] for one in (*parts, others))
        rows.append(f"| {row['what']} | {row['ms']:.2f}{busy} | {shares} | {calls:.0f} |")
    return "\n".join([*rows, ""])


def _listed(words: list[str]) -> str:
    """One after the other, as in a sentence."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _again(benchmarks: list[dict[str, Any]]) -> str:
    """What evaluation of the first shape took on one machine at several times."""
    rows = [told["evaluation"][0]["seconds_per_episode"] for told in benchmarks]
    told = []
    for kind in ("features known", "with encoding", "whole evaluation"):
        times = _listed([f"{1e3 * row['engine, ' + kind]:.0f}" for row in rows])
        told.append(f"{kind} {times} ms")
    shape = benchmarks[0]["evaluation"][0]["shape"]
    return f"{shape} on the engine at {len(rows)} times on this CPU, an episode: {'; '.join(told)}."


def engine_accuracy(told: dict[str, Any]) -> str:
    """Models trained with the engine beside models trained layer by layer, means over seeds; nothing where none was."""
    if not told["rows"]:
        return ""
    rows = [
        "## The same model",
        "",
        "Models of one recipe and seed, trained either way and judged on the same validation episodes with the plain layers "
        "(`benchmarks/engine_accuracy.py`). Sums in another order make other roundings, so two trainings part as two seeds "
        "do: what counts is the mean over seeds, with its 95% interval.",
        "",
        "| recipe | precision | machine | seeds | engine, % | layers singly, % | difference, points | by seed | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in told["rows"]:
        groups.setdefault((" ".join((row["recipe"], *row["words"])), row["machine"]), []).append(row)
    for (recipe, machine), own in groups.items():
        precision = override(load_recipe(own[0]["recipe"]), own[0]["words"]).training.precision
        figures = [over_seeds([row[name]["accuracy"] for row in own], 2) for name in ("engine", "plain")]
        differences = [row["difference"] for row in own]
        spread = f"{100 * min(differences):+.2f} to {100 * max(differences):+.2f}"
        mean = 100 * sum(differences) / len(own)
        half = interval(differences)
        gap = f"{mean:+.2f}" if half is None else f"{mean:+.2f} ± {100 * half:.2f}"
        p = f"{stats.ttest_1samp(differences, 0).pvalue:.2f}" if len(own) > 1 else ""
        rows.append(f"| {' | '.join([recipe, precision, machine, str(len(own)), *figures, gap, spread, p])} |")
    return "\n".join(rows)
