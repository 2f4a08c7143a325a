"""Shipped models of Omniglot on test classes that are upright, and on the same at right angles besides."""

from pages.common import as_table, percent, read
from sosn.reproduce.omniglot import PROTOCOLS
from sosn.reproduce.paper import SNELL

MODELS = ("omniglot", "omniglot-5shot")
KINDS = {"upright": [], "at four angles": ["all_rotations=true"]}
TEXT = """### Omniglot: test classes at right angles

Test classes of the rows are upright: 423 of them. Prototypical Nets (Snell et al., 2017) and Relation Net (Sung et al.,
2018), whose setup the paper follows, count each of them at four angles as four classes (the paper does not say it of test
classes, and its authors' script turns an episode as a whole, which changes nothing). Fewer look-alikes then meet in an
episode: an easier task. The models that are shipped, of the first seed of the best recipe on Vinyals' partition, with
weights in half precision, on {episodes} episodes of either kind (`sosn eval omniglot all_rotations=true split=test way=20
query=1`), beside what Snell et al. print:
"""


def right_angles() -> str:
    """The section, from the cards of the models."""
    lines, counts = [], set()
    for model in MODELS:
        figures = read(f"src/sosn/models/{model}.json")["figures"]
        for kind, words in KINDS.items():
            cells = []
            for way, shot, query in PROTOCOLS.values():
                sizes = {"split": "test", "words": words, "way": way, "shot": shot, "query": query}
                own = next(one for one in figures if sizes.items() <= one.items())
                counts.add(f"{own['episodes']:,}")
                cells.append(percent(own["accuracy"], own["ci95"], 2))
            lines.append([f"`{model}`", kind, *cells])
    lines.append(["Prototypical Nets, as they print it", "at four angles", *(str(one) for one in SNELL.values())])
    return f"{TEXT.format(episodes=' or '.join(sorted(counts)))}\n{as_table(('model', 'test classes', *PROTOCOLS), lines)}"
