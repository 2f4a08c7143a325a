"""Write figures into README.md and the pages on data, rivals, speed, photos and beyond, from files that commands wrote."""

import json
import re
from pathlib import Path
from typing import Any

from scipy import stats

from sosn.bench import evaluation_ratios, written_rate
from sosn.recipe import load_recipe, override
from sosn.reproduce.ledger import gap, interval, of_row, read_entry, read_ledger, same_recipe, summarise
from sosn.reproduce.row import Measure
from sosn.reproduce.table import TABLES

ROOT = Path(__file__).parent.parent
RIVALS = "results/glyphs-rivals.json"
PREPARE = "results/prepare-cpu.json"


def fill(text: str) -> str:
    """The README with its figures as the files have them."""
    demo, norms = _read("results/demo.json"), _read("results/glyphs-power-norm.json")
    text = _put(text, "demo", _accuracy(demo, 1))
    text = _put(text, "demo.pixels", f"{100 * demo['pixels']:.1f}")
    text = _put(text, "demo.seconds", f"{demo['seconds']:.0f}")
    text = _put(text, "power-norm.seeds", str(len(norms["seeds"])))
    sigme = norms["rows"][0]["by_seed"]
    text = _put(text, "fresh", f"{_over_seeds(sigme, 1)}% on average, {100 * min(sigme):.1f} to {100 * max(sigme):.1f}%")
    text = _put(text, "power-norm", _norms(norms))
    text = _put(text, "power-norm-long", _norms(_read("results/glyphs-power-norm-long.json")))
    text = _put(text, "models", _models())
    shown = _accuracy(_read("src/sosn/models/glyphs.json"), 2)
    return re.sub(r"# [\d.]+ ± [\d.]+%: mean and", f"# {shown}%: mean and", text)


def _models() -> str:
    """The cards of the models in the package, a row each."""
    rows = ["| `sosn.load(…)` | what it is | accuracy, % | on | kB |", "|---|---|---|---|---|"]
    for path in sorted((ROOT / "src/sosn/models").glob("*.json")):
        card = _read(f"src/sosn/models/{path.name}")
        where = f"{card['data']} {card['split']}, {card['way']}-way {card['shot']}-shot"
        cells = [f"`{path.stem}`", card["title"], _accuracy(card, 2), where, f"{card['bytes'] / 1000:.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(rows) + "\n"


def _norms(told: dict[str, Any]) -> str:
    """Power norms against the first of them, over seeds."""
    rows = ["| norm | accuracy, % | SigmE minus this, points | SigmE ahead in | p |", "|---|---|---|---|---|"]
    for row in told["rows"]:
        cells = [row["norm"], _over_seeds(row["by_seed"], 2), "", "", ""]
        if "first_minus_this" in row:
            by_seed = row["first_minus_this"]
            cells[2:] = [_over_seeds(by_seed, 2), _ahead(by_seed), f"{stats.ttest_1samp(by_seed, 0).pvalue:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(rows) + "\n"


def fill_rivals(text: str) -> str:
    """The page on rivals with the table of its benchmark, or a sentence where that has not been run but for a rehearsal."""
    if not (ROOT / RIVALS).exists() or _read(RIVALS)["rehearsal"]:
        return _put(text, "rivals", f"\nNot measured yet: no `{RIVALS}`.\n")
    told = _read(RIVALS)
    rows = [
        "| method | accuracy, % | SoSN minus this, points | SoSN ahead in | p | parameters | MFLOPs an episode | adapts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in told["rows"]:
        other = row.get("first_minus_this")
        against = [_over_seeds(other, 2), _ahead(other), f"{stats.ttest_1samp(other, 0).pvalue:.2g}"] if other else ["", "", ""]
        size = [f"{row['parameters']:,}", f"{row['mflops']:,.0f}", "yes" if row["adapts"] else ""]
        rows.append(f"| {' | '.join([row['name'], _over_seeds(row['by_seed'], 2), *against, *size])} |")
    seeds = f"{told['what']}; {len(told['seeds'])} seeds, each with its own alphabets; {told['machine']}."
    return _put(text, "rivals", "\n" + "\n".join([seeds, "", *rows]) + "\n")


def fill_data(text: str) -> str:
    """The page on datasets with the times of preparing and opening those that were measured."""
    if not (ROOT / PREPARE).exists():
        return _put(text, "prepare", f"\nNot measured yet: no `{PREPARE}`.\n")
    rows = [
        "| data | images | source, MB | bank, MB | prepared in, s | split | opened in, s | with all imports, s | machine |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in _read(PREPARE)["rows"]:
        split, told = next(iter(row["open"].items()))
        sizes = [f"{row['images']:,} at {row['size']}²", *(f"{row[name] / 1e6:.1f}" for name in ("source_bytes", "bank_bytes"))]
        times = [f"{row['prepare_seconds']:.0f}", split, f"{told['seconds']:.2f}", f"{told['process_seconds']:.1f}"]
        rows.append(f"| {' | '.join([row['data'], *sizes, *times, row['machine']])} |")
    return _put(text, "prepare", "\n" + "\n".join(rows) + "\n")


def fill_speed(text: str) -> str:
    """The page on speed with the tables of every benchmark that was kept."""
    kept = {path.name: _read(f"results/{path.name}") for path in sorted((ROOT / "results").glob("bench-*.json"))}
    text = _put(text, "bench", "\n" + "\n".join(bench_tables(file, told) for file, told in kept.items()))
    text = _put(text, "hosts", _hosts([*_earlier("bench-h200"), kept["bench-h200.json"]]))
    text = _put(text, "again", _again([*_earlier("bench-cpu"), kept["bench-cpu.json"]]))
    profiles = [_read(f"results/{path.name}") for path in sorted((ROOT / "results").glob("profile-*.json"))]
    text = _put(text, "profiles", "\n" + "\n".join(profile_table(told) for told in profiles))
    path = "results/engine-accuracy.json"
    told = _read(path) if (ROOT / path).exists() else {"rows": []}
    return _put(text, "engine-accuracy", "\n" + engine_accuracy(told) + "\n")


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
    return [_read(f"results/earlier/{path.name}") for path in sorted((ROOT / "results/earlier").glob(f"{name}-*.json"))]


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
    return f"{', '.join(words[:-1])} and {words[-1]}"


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
        figures = [_over_seeds([row[name]["accuracy"] for row in own], 2) for name in ("engine", "plain")]
        differences = [row["difference"] for row in own]
        spread = f"{100 * min(differences):+.2f} to {100 * max(differences):+.2f}"
        mean = 100 * sum(differences) / len(own)
        half = interval(differences)
        gap = f"{mean:+.2f}" if half is None else f"{mean:+.2f} ± {100 * half:.2f}"
        p = f"{stats.ttest_1samp(differences, 0).pvalue:.2f}" if len(own) > 1 else ""
        rows.append(f"| {' | '.join([recipe, precision, machine, str(len(own)), *figures, gap, spread, p])} |")
    return "\n".join(rows)


PART = 0.02  # of the time, below which an operator is not named
COUNTS = ("drawings", "turned", "negatives_turned")


def fill_photos(text: str) -> str:
    """The page on photos: what cards of shipped models say of their confidence, times, grounds, and answers to a gallery."""
    rows = [
        "| model | classes | shots | episodes | right, % | ECE before | ECE | AUROC | known refused, % | unknown refused, % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "src/sosn/models").glob("*.json")):
        for size in _read(f"src/sosn/models/{path.name}").get("calibration", {"sizes": []})["sizes"]:
            shares = [f"{100 * size[name]:.1f}" for name in ("refused", "detected")]
            episodes = f"{size['episodes']:,}" if size.get("episodes") else ""
            cells = [path.stem, str(size["way"]), str(size["shot"]), episodes, f"{100 * size['accuracy']:.1f}"]
            cells += [f"{size[name]:.3f}" for name in ("ece_before", "ece", "auroc")]
            rows.append(f"| {' | '.join([*cells, *shares])} |")
    text = _put(text, "confidence", "\n" + "\n".join(rows) + "\n")
    told = _read("results/latency-cpu.json")
    rows = ["| model | image | ms | ms with ONNX Runtime | cold start, s |", "|---|---|---|---|---|"]
    for row in told["rows"]:
        rows.append(f"| {row['model']} | {row['size']}² | {row['ms']:.0f} | {row['onnx_ms']:.1f} | {row['cold_seconds']:.1f} |")
    text = _put(text, "latency", "\n" + "\n".join([*rows, "", f"{told['machine']}, torch {told['versions']['torch']}."]) + "\n")
    text = _put(text, "ground", "\n" + _ground(_read("results/ground-omniglot.json")) + "\n")
    return _put(text, "gallery", "\n" + _gallery(_read("results/gallery-omniglot.json")) + "\n")


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


def fill_beyond(text: str) -> str:
    """The page on what the paper does not have, with the tables of what was tried, as they were written."""
    parts = [f"```\n{path.read_text('utf-8')}```\n" for path in sorted((ROOT / "results").glob("variants-*.txt"))]
    parts += ["| recipe | variant | over the recipe | accuracy on val, % |", "|---|---|---|---|"]
    for path in sorted((ROOT / "results").glob("variants-*.json")):
        told = _read(f"results/{path.name}")
        for one in told["rows"]:
            figures = ", ".join(f"{own['way']}w{own['shot']}s{own['query']}q {_accuracy(own, 2)}" for own in one["figures"])
            words = " ".join(word for word in one["words"] if not word.startswith("report_"))
            parts.append(f"| {told['recipe']} | {one['variant']} | `{words}` | {figures} |".replace("``", ""))
    text = _put(text, "variants", "\n" + "\n".join(parts) + "\n")
    text = _put(text, "sixteen", "\n" + _sixteen() + "\n")
    text = _put(text, "before", "\n" + _before("best-before") + "\n")
    text = _put(text, "scaled", "\n" + _before("best-scales") + "\n")
    text = _put(text, "stages", "\n" + _stages() + "\n")
    rows = ["| model | episodes | copies | accuracy, % | more than without, points |", "|---|---|---|---|---|"]
    for path in sorted((ROOT / "results").glob("copies-*.json")):
        told = _read(f"results/{path.name}")
        for one in told["rows"]:
            gain = _percent(one["difference"], one["ci95_difference"], 2) if one["setting"] else ""
            cells = [told["model"], f"{one['episodes']} of {one['way']}-way {one['shot']}-shot"]
            cells.append(f"`{one['setting']}`" if one["setting"] else "neither")
            rows.append(f"| {' | '.join([*cells, _accuracy(one, 2), gain])} |")
    return _put(text, "copies", "\n" + "\n".join(rows) + "\n")


def _sixteen() -> str:
    """Rows of one budget as they were trained before, 16 episodes a step, beside themselves as they are now."""
    rows = ["| row | 16 a step | 4 a step | gain, points |", "|---|---|---|---|"]
    for path in sorted((ROOT / "results/earlier/sixteen-a-step").glob("*.json")):
        entries = [read_entry(path), read_entry(ROOT / "results/ledger/mini-imagenet" / path.name)]
        before, now = (next(one for one in entry["figures"] if one["statistics"] == "running") for entry in entries)
        gain = f"{100 * (now['accuracy'] - before['accuracy']):+.2f}"
        rows.append(f"| `{entries[0]['row']}` | {_accuracy(before, 2)} | {_accuracy(now, 2)} | {gain} |")
    return "\n".join(rows)


def _before(folder: str) -> str:
    """The best recipes as they were when a folder of earlier results was filled, beside themselves as they are now."""
    entries = [read_entry(path) for path in sorted((ROOT / "results/earlier" / folder).glob("*.json"))]
    rows = [
        "| row | split | before, % | seeds | now, % | seeds | now, of seeds with both, points |",
        "|---|---|---|---|---|---|---|",
    ]
    for table, row in dict.fromkeys((entry["table"], entry["row"]) for entry in entries):
        before = of_row(entries, table, row)
        now = [read_entry(path) for path in sorted((ROOT / "results/ledger" / table).glob(f"{row}-seed*.json"))]
        for figure in before[0]["figures"]:
            if figure["statistics"] == "running":
                measure = Measure(figure["split"], figure["way"], figure["shot"], figure["query"])
                cells = [f"`{table}/{row}`", f"{measure.split} {measure.protocol}"]
                for own in (before, now):
                    summary = summarise(own, measure, "running")
                    assert summary is not None
                    spread = "" if summary.between is None else f" ± {100 * summary.between:.2f}"
                    cells += [f"{100 * summary.mean:.2f}{spread}", str(len(summary.seeds))]
                change = gap(now, before, measure)
                cells.append(f"{100 * change.mean:+.2f} ± {100 * change.ci95:.2f}" if change else "")
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _stages() -> str:
    """Second stages minus the first stages that they began with."""
    entries = read_ledger(ROOT / "results/ledger")
    rows = ["| second stage | first stage | protocol | running, points | batch, points | seeds |", "|---|---|---|---|---|---|"]
    for row in (row for table in TABLES.values() for row in table if row.start):
        pair = (row, next(one for one in TABLES[row.table] if one.id == row.start))
        own, first = ([e for e in of_row(entries, one.table, one.id) if same_recipe(e, one)] for one in pair)
        for measure in row.measures:
            running, batch = (gap(own, first, measure, statistics) for statistics in ("running", "batch"))
            if running and batch:
                points = [f"{100 * one.mean:+.2f} ± {100 * one.ci95:.2f}" for one in (running, batch)]
                cells = (f"`{row.table}/{row.id}`", f"`{row.start}`", measure.protocol, *points, str(running.seeds))
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _ahead(by_seed: list[float]) -> str:
    return f"{sum(difference > 0 for difference in by_seed)} of {len(by_seed)}"


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / name).read_text("utf-8"))
    return document


def _accuracy(figures: dict[str, Any], digits: int) -> str:
    return _percent(figures["accuracy"], figures["ci95"], digits)


def _over_seeds(values: list[float], digits: int) -> str:
    """Mean and 95% confidence interval over a few seeds (Student's t; none of a single one), in percent."""
    mean, half = sum(values) / len(values), interval(values)
    return f"{100 * mean:.{digits}f}" if half is None else _percent(mean, half, digits)


def _percent(mean: float, half: float, digits: int) -> str:
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def _put(text: str, name: str, value: str) -> str:
    """Replace what stands between <!-- name --> and <!-- /name -->."""
    pattern = rf"(<!-- {re.escape(name)} -->).*?(<!-- /{re.escape(name)} -->)"
    changed, places = re.subn(pattern, lambda match: match[1] + value + match[2], text, flags=re.DOTALL)
    if not places:
        raise SystemExit(f"there is no place for {name}: <!-- {name} --><!-- /{name} -->")
    return changed


if __name__ == "__main__":
    pages = {
        "README.md": fill, "docs/data.md": fill_data, "docs/rivals.md": fill_rivals, "docs/speed.md": fill_speed,
        "docs/photos.md": fill_photos, "docs/beyond.md": fill_beyond,
    }  # fmt: skip
    for page, write in pages.items():
        (ROOT / page).write_text(write((ROOT / page).read_text("utf-8")), "utf-8")
