"""docs/data.md: how long datasets take to prepare and to open."""

from pages.text import read, table


def figures() -> dict[str, str]:
    lines = []
    for row in read("results/prepare-cpu.json")["rows"]:
        split, opened = next(iter(row["open"].items()))
        sizes = [f"{row['images']:,} at {row['size']}²", *(f"{row[name] / 1e6:.0f}" for name in ("source_bytes", "bank_bytes"))]
        times = [f"{row['prepare_seconds']:.0f}", f"{opened['seconds']:.2f} ({split})"]
        lines.append([f"`{row['data']}`", *sizes, *times, row["machine"]])
    return {"prepare": table(("dataset", "images", "source, MB", "prepared, MB", "prepare, s", "open, s", "machine"), lines)}
