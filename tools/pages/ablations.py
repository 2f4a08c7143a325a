"""docs/reproduction/ablations.md: one setting at a time, ranks of matrices, repeated textures, and power norms on glyphs."""

from collections.abc import Sequence
from typing import Any

from scipy import stats

from pages.ledger import TITLES, current_entries, figure, points, recipe_of, summary, training_episodes
from pages.text import over_seeds, read, table
from sosn.reproduce import omniglot
from sosn.reproduce.claims import Contrast, find
from sosn.reproduce.ledger import Entry, Summary, of_row
from sosn.reproduce.mini_imagenet import ABLATIONS, BASE, TABLE, ablation_id

NORMS = {"sigme-5w1s": "SigmE", "asinhe-5w1s": "AsinhE", "none-5w1s": "none"}


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    long = read("results/glyphs-power-norm-long.json")
    return {
        "episodes": f"{training_episodes(recipe_of(TABLE, BASE)):,}",
        **{family: _family(current, family) for family in ABLATIONS},
        "omniglot-size.episodes": f"{training_episodes(recipe_of(omniglot.TABLE, 'size-28')):,}",
        "omniglot-size": _omniglot_sizes(current),
        "rank": _ranks(current),
        "bursts": _bursts(current),
        "glyphs": _norms(read("results/glyphs-power-norm.json")["rows"]),
        "glyphs-long": _norms(long["rows"]),
        "glyphs.seeds": str(len(long["seeds"])),
    }


def family_values(entries: Sequence[Entry], family: str) -> list[tuple[str, str, Summary]]:
    """The values of an ablation that were run: value, row and accuracy on validation classes."""
    found = []
    for value in ABLATIONS[family][1]:
        row = find(TABLE, ablation_id(family, value))
        if one := summary(entries, row, row.measures[0]):
            found.append((value, row.id, one))
    return found


def _family(entries: Sequence[Entry], family: str) -> str:
    lines = []
    for value, row, _ in family_values(entries, family):
        accuracies = [figure(entries, TABLE, row, "val", "5w1s", statistics) for statistics in ("running", "batch")]
        gap = points(Contrast(TABLE, row, BASE, "5w1s").ours(entries)) if row != BASE else "base row"
        lines.append([value, *accuracies, gap])
    head = (ABLATIONS[family][0], "accuracy, %", "batch statistics, %", "minus the base row, points")
    return table(head, lines) if lines else "\nNot run.\n"


def _omniglot_sizes(entries: Sequence[Entry]) -> str:
    rows = {size: f"size-{size}" for size in omniglot.SIZES}
    lines = [[f"{size}²", one] for size, row in rows.items() if (one := figure(entries, omniglot.TABLE, row, "val", "20w1s"))]
    return table(("image side", "accuracy, %"), lines) if lines else "\nNot run.\n"


def _ranks(entries: Sequence[Entry]) -> str:
    """Matrices of validation images at the size that a model was trained at."""
    lines = []
    for entry in (entry for entry in entries if entry["row"].startswith("rank-")):
        for one in (one for one in entry["results"] if one["trained"]):
            rank = [f"{one['rank']:.1f} of {one['features']}", f"{100 * one['full_rank']:.0f}"]
            effective = [f"{one[key]:.1f}" for key in ("effective_rank", "normalised_effective_rank")]
            where = [TITLES[entry["of"]["table"]], f"`{entry['of']['row']}`", f"{one['size']}²", str(one["vectors"])]
            lines.append([*where, *rank, *effective])
    head = ("dataset", "model", "image", "vectors N", "rank", "full rank, %", "effective rank", "effective rank after SigmE")
    return table(head, lines) if lines else "\nNot run.\n"


def _bursts(entries: Sequence[Entry]) -> str:
    """A line for each change of the queries: how far descriptors move and how many answers change, by power norm."""
    results: dict[str, dict[str, Any]] = {}
    for row in NORMS:
        for entry in of_row(entries, "claims", f"burstiness-{TABLE}-{row}"):
            for one in entry["results"]:
                results.setdefault(one["change"], {})[row] = one
    lines = []
    for change, own in results.items():
        shares = [
            f"{100 * own[row][key]:.0f}" if row in own else "" for key in ("descriptor_share", "answers") for row in NORMS
        ]
        lines.append([change, *shares])
    heads = (f"{what}: {norm}" for what in ("descriptor moves, %", "answers change, %") for norm in NORMS.values())
    return table(("query changed by", *heads), lines) if lines else "\nNot run.\n"


def _norms(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        ahead = row.get("first_minus_this")
        against = [over_seeds(ahead), f"{stats.ttest_1samp(ahead, 0).pvalue:.2f}"] if ahead else ["", ""]
        lines.append([row["norm"], over_seeds(row["by_seed"]), *against])
    return table(("norm", "accuracy, %", "SigmE minus this, points", "p"), lines)
