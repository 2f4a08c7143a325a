"""The page on photos."""

from typing import Any

from pages.common import ROOT, put, read

COUNTS = ("drawings", "turned", "negatives_turned")


def fill(text: str) -> str:
    """The page on photos: what cards of shipped models say of their confidence, times, grounds, and answers to a gallery."""
    rows = [
        "| model | classes | shots | episodes | right, % | ECE before | ECE | AUROC | known refused, % | unknown refused, % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "src/sosn/checkpoint/shipped").glob("*.json")):
        for size in read(f"src/sosn/checkpoint/shipped/{path.name}").get("calibration", {"sizes": []})["sizes"]:
            shares = [f"{100 * size[name]:.1f}" for name in ("refused", "detected")]
            episodes = f"{size['episodes']:,}" if size.get("episodes") else ""
            cells = [path.stem, str(size["way"]), str(size["shot"]), episodes, f"{100 * size['accuracy']:.1f}"]
            cells += [f"{size[name]:.3f}" for name in ("ece_before", "ece", "auroc")]
            rows.append(f"| {' | '.join([*cells, *shares])} |")
    text = put(text, "confidence", "\n" + "\n".join(rows) + "\n")
    told = read("results/latency-cpu.json")
    rows = ["| model | image | ms | ms with ONNX Runtime | cold start, s |", "|---|---|---|---|---|"]
    for row in told["rows"]:
        rows.append(f"| {row['model']} | {row['size']}² | {row['ms']:.0f} | {row['onnx_ms']:.1f} | {row['cold_seconds']:.1f} |")
    text = put(text, "latency", "\n" + "\n".join([*rows, "", f"{told['machine']}, torch {told['versions']['torch']}."]) + "\n")
    text = put(text, "ground", "\n" + _ground(read("results/ground-omniglot.json")) + "\n")
    return put(text, "gallery", "\n" + _gallery(read("results/gallery-omniglot.json")) + "\n")


def _ground(told: dict[str, Any]) -> str:
    """Answers to drawings on either ground, and how well grounds were told apart."""
    rows = ["| model | shown on | asked for on | as they are, % | inverted, % |", "|---|---|---|---|---|"]
    for row in told["rows"]:
        shares = [f"{100 * row[name]:.1f}" for name in ("as_is", "auto")]
        rows.append(f"| {' | '.join([row['model'], row['shown'], row['asked'], *shares])} |")
    drawings, by_mistake, found = (sum(one[name] for one in told["recognised"]) for name in COUNTS)
    return "\n".join([
        *rows, "",
        f"Omniglot's validation classes, {told['tasks']} tasks of {told['queries']} queries: few, so compare rows with one "
        f"another; [How sure it is](#how-sure-it-is) has the share of right answers over many. A board is an imitation, light "
        f"strokes on a dark grey ground with some noise (`benchmarks/ground.py`). Of Omniglot's {drawings:,} drawings "
        f"{by_mistake:,} are inverted by mistake, and {found:,} of their negatives are.",
    ])  # fmt: skip


def _gallery(told: dict[str, Any]) -> str:
    """Answers of a gallery beside the times of the same sizes, and what they were measured on."""
    answers, times = told["answers"], told["times"]
    rows = ["| classes | shortlist | queries | its recall, % | right, % | ms a query |", "|---|---|---|---|---|---|"]
    taken = {(row["classes"], one["shortlist"]): one["ms_a_query"] for row in times["rows"] for one in row["shortlists"]}
    for row in answers["rows"]:
        for one in row["shortlists"]:
            shares = [_between(one[name], one[f"{name}_ci95"]) if name in one else "" for name in ("recall", "accuracy")]
            cells = [f"{row['classes']:,}", str(one["shortlist"] or "all"), f"{row['queries']:,}", *shares]
            rows.append(f"| {' | '.join([*cells, format(taken[row['classes'], one['shortlist']], '.1f')])} |")
    most = max(row["queries"] for row in times["rows"])
    sources = f"answers: {answers['machine']}, {answers['index']}; times: median of {most} queries, {times['machine']}, "
    return "\n".join([*rows, "", f"{told['what']}; {sources}{times['index']}. In brackets, 95% intervals."])


def _between(share: float, ends: list[float]) -> str:
    return f"{100 * share:.1f} ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})"
