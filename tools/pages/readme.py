"""README.md: the demo and the headline results."""

from collections.abc import Sequence

from pages.ledger import current_entries, figure
from pages.text import over_seeds, read, table
from sosn.reproduce.ledger import Entry
from sosn.reproduce.omniglot import PROTOCOLS
from sosn.reproduce.paper import published

MODEL = "SoSN(⊗)+SigmE"  # the paper's own
OMNIGLOT, MINI = "omniglot", "mini-imagenet"
RESULTS = (  # dataset, model, table, split, the row of a protocol; without a row the figure is the paper's
    ("Omniglot, random split", "SoSN, paper", OMNIGLOT, "test", ""),
    ("Omniglot, random split", "SoSN (our run)", OMNIGLOT, "test", "sigme-paper-{protocol}"),
    ("Omniglot, random split", "our best recipe", OMNIGLOT, "test", "best-paper-20w{shot}s"),
    ("Omniglot, split by alphabet", "our best recipe", OMNIGLOT, "test", "best-20w{shot}s"),
    ("*mini*ImageNet, test", "SoSN, paper", MINI, "test", ""),
    ("*mini*ImageNet, validation", "SoSN (our run)", MINI, "val", "long-{protocol}"),
    ("*mini*ImageNet, validation", "our best recipe, Conv-4", MINI, "val", "best-{protocol}"),
    ("*mini*ImageNet, validation", "our recipe for ResNet-12", MINI, "val", "resnet12-{protocol}"),
)


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    demo, norms = read("results/demo.json"), read("results/glyphs-power-norm.json")
    return {
        "demo.seconds": f"{demo['seconds']:.0f}",
        "demo.pixels": f"{100 * demo['pixels']:.0f}",
        "demo.datasets": str(len(norms["seeds"])),
        "demo.accuracy": over_seeds(norms["rows"][0]["by_seed"], 1),
        "results": results(current_entries(entries)),
    }


def results(entries: Sequence[Entry]) -> str:
    """The paper's figures, our runs of its model and our best recipes, a column a protocol."""
    lines = []
    for dataset, model, name, split, row in RESULTS:
        cells = []
        for protocol, (_, shot, _) in PROTOCOLS.items():
            printed = published(name, MODEL, protocol)
            ours = figure(entries, name, row.format(protocol=protocol, shot=shot), split, protocol)
            cells.append(ours if row else f"{printed.accuracy}" if printed else "")
        lines.append([dataset, model, *cells])
    return table(("dataset", "model", *(f"{way}-way {shot}-shot" for way, shot, _ in PROTOCOLS.values())), lines)
