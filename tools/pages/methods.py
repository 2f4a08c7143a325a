"""docs/methods.md: all methods at one training budget on glyphs."""

from scipy import stats

from pages.text import over_seeds, read, table

HEAD = ("method", "accuracy, %", "SoSN minus this, points", "p", "parameters", "MFLOPs per episode", "adapts")


def figures() -> dict[str, str]:
    document = read("results/glyphs-rivals.json")
    lines = []
    for row in document["rows"]:
        ahead = row.get("first_minus_this")
        against = [over_seeds(ahead), f"{stats.ttest_1samp(ahead, 0).pvalue:.2g}"] if ahead else ["", ""]
        size = [f"{row['parameters']:,}", f"{row['mflops']:,.0f}", "yes" if row["adapts"] else "no"]
        lines.append([row["name"], over_seeds(row["by_seed"]), *against, *size])
    return {"methods": table(HEAD, lines), "methods.seeds": str(len(document["seeds"])), "methods.machine": document["machine"]}
