"""The page on rivals."""

from scipy import stats

from pages.common import ROOT, ahead, over_seeds, put, read

RIVALS = "results/glyphs-rivals.json"


def fill(text: str) -> str:
    """The page on rivals with the table of its benchmark, or a sentence where that has not been run but for a rehearsal."""
    if not (ROOT / RIVALS).exists() or read(RIVALS)["rehearsal"]:
        return put(text, "rivals", f"\nNot measured yet: no `{RIVALS}`.\n")
    told = read(RIVALS)
    rows = [
        "| method | accuracy, % | SoSN minus this, points | SoSN ahead in | p | parameters | MFLOPs an episode | adapts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in told["rows"]:
        other = row.get("first_minus_this")
        against = [over_seeds(other, 2), ahead(other), f"{stats.ttest_1samp(other, 0).pvalue:.2g}"] if other else ["", "", ""]
        size = [f"{row['parameters']:,}", f"{row['mflops']:,.0f}", "yes" if row["adapts"] else ""]
        rows.append(f"| {' | '.join([row['name'], over_seeds(row['by_seed'], 2), *against, *size])} |")
    seeds = f"{told['what']}; {len(told['seeds'])} seeds, each with its own alphabets; {told['machine']}."
    return put(text, "rivals", "\n" + "\n".join([seeds, "", *rows]) + "\n")
