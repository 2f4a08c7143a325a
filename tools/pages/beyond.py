"""The page on what the paper does not have."""

from pages.common import ROOT, accuracy, in_points, percent, put, read
from sosn.reproduce.ledger import as_it_is_now, gap, of_row, read_entry, read_ledger, summarise
from sosn.reproduce.row import Measure
from sosn.reproduce.table import TABLES


def fill(text: str) -> str:
    """The page on what the paper does not have, with the tables of what was tried, as they were written."""
    parts = [f"```\n{path.read_text('utf-8')}```\n" for path in sorted((ROOT / "results").glob("variants-*.txt"))]
    parts += ["| recipe | variant | over the recipe | accuracy on val, % |", "|---|---|---|---|"]
    for path in sorted((ROOT / "results").glob("variants-*.json")):
        told = read(f"results/{path.name}")
        for one in told["rows"]:
            measured = one.get("figures", [])
            figures = ", ".join(f"{own['way']}w{own['shot']}s{own['query']}q {accuracy(own, 2)}" for own in measured)
            words = " ".join(word for word in one["words"] if not word.startswith("report_"))
            parts.append(f"| {told['recipe']} | {one['variant']} | `{words}` | {figures or one['error']} |".replace("``", ""))
    text = put(text, "variants", "\n" + "\n".join(parts) + "\n")
    text = put(text, "sixteen", "\n" + _sixteen() + "\n")
    text = put(text, "before", "\n" + _before("best-before") + "\n")
    text = put(text, "scaled", "\n" + _before("best-scales") + "\n")
    text = put(text, "stages", "\n" + _stages() + "\n")
    text = put(text, "affine", "\n" + _copies("results/earlier/copies-*-affine.json") + "\n")
    return put(text, "copies", "\n" + _copies("results/copies-*.json") + "\n")


def _copies(files: str) -> str:
    """What copies of images bring, from files of benchmarks/copies.py."""
    rows = ["| model | episodes | copies | accuracy, % | more than without, points |", "|---|---|---|---|---|"]
    for path in sorted(ROOT.glob(files)):
        told = read(str(path.relative_to(ROOT)))
        for one in told["rows"]:
            gain = percent(one["difference"], one["ci95_difference"], 2) if one["setting"] else ""
            cells = [told["model"], f"{one['episodes']} of {one['way']}-way {one['shot']}-shot"]
            cells.append(f"`{one['setting']}`" if one["setting"] else "neither")
            rows.append(f"| {' | '.join([*cells, accuracy(one, 2), gain])} |")
    return "\n".join(rows)


def _sixteen() -> str:
    """Rows of one budget as they were trained before, 16 episodes a step, beside themselves as they are now."""
    rows = ["| row | 16 a step | 4 a step | gain, points |", "|---|---|---|---|"]
    for path in sorted((ROOT / "results/earlier/sixteen-a-step").glob("*.json")):
        entries = [read_entry(path), read_entry(ROOT / "results/ledger/mini-imagenet" / path.name)]
        before, now = (next(one for one in entry["figures"] if one["statistics"] == "running") for entry in entries)
        gain = f"{100 * (now['accuracy'] - before['accuracy']):+.2f}"
        rows.append(f"| `{entries[0]['row']}` | {accuracy(before, 2)} | {accuracy(now, 2)} | {gain} |")
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
                cells.append(f"{in_points(change)} ({change.seeds})" if change else "")
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _stages() -> str:
    """Second stages minus the first stages that they began with."""
    entries = read_ledger(ROOT / "results/ledger")
    rows = ["| second stage | first stage | protocol | running, points | batch, points | seeds |", "|---|---|---|---|---|---|"]
    for row in (row for table in TABLES.values() for row in table if row.start):
        pair = (row, next(one for one in TABLES[row.table] if one.id == row.start))
        own, first = (as_it_is_now(entries, one) for one in pair)
        for measure in row.measures:
            running, batch = (gap(own, first, measure, statistics) for statistics in ("running", "batch"))
            if running and batch:
                points = (in_points(running), in_points(batch))
                cells = (f"`{row.table}/{row.id}`", f"`{row.start}`", measure.protocol, *points, str(running.seeds))
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
