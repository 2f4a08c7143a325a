"""The README."""

import re
from typing import Any

from scipy import stats

from pages.common import ROOT, accuracy, ahead, over_seeds, put, read
from pages.short import short
from sosn.reproduce.ledger import read_ledger


def fill(text: str) -> str:
    """The README with its figures as the files have them."""
    demo, norms = read("results/demo.json"), read("results/glyphs-power-norm.json")
    text = put(text, "demo", accuracy(demo, 1))
    text = put(text, "demo.pixels", f"{100 * demo['pixels']:.1f}")
    text = put(text, "demo.seconds", f"{demo['seconds']:.0f}")
    text = put(text, "power-norm.seeds", str(len(norms["seeds"])))
    sigme = norms["rows"][0]["by_seed"]
    text = put(text, "fresh", f"{over_seeds(sigme, 1)}% on average, {100 * min(sigme):.1f} to {100 * max(sigme):.1f}%")
    text = put(text, "power-norm", _norms(norms))
    text = put(text, "power-norm-long", _norms(read("results/glyphs-power-norm-long.json")))
    text = put(text, "short", "\n" + short(read_ledger(ROOT / "results/ledger")))
    text = put(text, "models", _models())
    shown = accuracy(read("src/sosn/checkpoint/shipped/glyphs.json"), 2)
    text, places = re.subn(r"# [\d.]+ ± [\d.]+%: mean and", f"# {shown}%: mean and", text)
    if places != 1:
        raise SystemExit("there is no place for the example's accuracy: # 0 ± 0%: mean and")
    return text


def _models() -> str:
    """The cards of the models in the package, a row each."""
    rows = ["| `sosn.load(…)` | what it is | accuracy, % | on | kB |", "|---|---|---|---|---|"]
    for path in sorted((ROOT / "src/sosn/checkpoint/shipped").glob("*.json")):
        card = read(f"src/sosn/checkpoint/shipped/{path.name}")
        where = f"{card['data']} {card['split']}, {card['way']}-way {card['shot']}-shot"
        cells = [f"`{path.stem}`", card["title"], accuracy(card, 2), where, f"{card['bytes'] / 1000:.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(rows) + "\n"


def _norms(told: dict[str, Any]) -> str:
    """Power norms against the first of them, over seeds."""
    rows = ["| norm | accuracy, % | SigmE minus this, points | SigmE ahead in | p |", "|---|---|---|---|---|"]
    for row in told["rows"]:
        cells = [row["norm"], over_seeds(row["by_seed"], 2), "", "", ""]
        if "first_minus_this" in row:
            by_seed = row["first_minus_this"]
            cells[2:] = [over_seeds(by_seed, 2), ahead(by_seed), f"{stats.ttest_1samp(by_seed, 0).pvalue:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(rows) + "\n"
