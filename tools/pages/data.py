"""The page on datasets."""

from pages.common import ROOT, put, read

PREPARE = "results/prepare-cpu.json"


def fill(text: str) -> str:
    """The page on datasets with the times of preparing and opening those that were measured."""
    if not (ROOT / PREPARE).exists():
        return put(text, "prepare", f"\nNot measured yet: no `{PREPARE}`.\n")
    rows = [
        "| data | images | source, MB | bank, MB | prepared in, s | split | opened in, s | with all imports, s | machine |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in read(PREPARE)["rows"]:
        split, told = next(iter(row["open"].items()))
        sizes = [f"{row['images']:,} at {row['size']}²", *(f"{row[name] / 1e6:.1f}" for name in ("source_bytes", "bank_bytes"))]
        times = [f"{row['prepare_seconds']:.0f}", split, f"{told['seconds']:.2f}", f"{told['process_seconds']:.1f}"]
        rows.append(f"| {' | '.join([row['data'], *sizes, *times, row['machine']])} |")
    return put(text, "prepare", "\n" + "\n".join(rows) + "\n")
