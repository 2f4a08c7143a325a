"""Write docs/reproduction.md and its curves from the ledger: python docs/reproduction.py"""

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pages import budgets
from pages.claims import claim_parts, overview
from pages.common import TITLES, as_table, in_points
from pages.right_angles import right_angles
from pages.short import short
from sosn.reproduce import claims, mini_imagenet, omniglot
from sosn.reproduce.ledger import (  # fmt: skip
    Entry,
    Summary,
    as_it_is_now,
    find_figure,
    gap,
    of_row,
    read_ledger,
    same_recipe,
    summarise,
)
from sosn.reproduce.paper import MISPRINTS, PUBLISHED
from sosn.reproduce.row import HEADLINE_SEEDS, Measure, Row
from sosn.reproduce.table import TABLES

HERE = Path(__file__).parent.parent / "docs"
LEDGER = HERE.parent / "results" / "ledger"
PAGE, CURVES = HERE / "reproduction.md", HERE / "ablations.png"
TOLD_TIES = 0.002
PRINTED = {mini_imagenet.ONE_BUDGET: "val"} | {
    omniglot.group(name): "test" for name in omniglot.DIFFERS
}  # and what it is read on
ABREAST = 3  # curves of ablations in a row
NEEDS = {"224×224": "These need ImageNet's own photos; the images at hand are 84×84."}
OF_SOSN = (
    ", but for augmentation and mean shift of SoSN(⊗), one seed each, in the groups below; rows of the paper's budget differ "
    "in several settings at once"
)
OPEN_MIC = """## Open MIC

Not run: its images are given out by its authors on request, and were not at hand. `sosn reproduce open-mic-1` and
`open-mic-2` run the paper's two tables from them ([data.md](data.md)).
"""
SAID = """Differences are of running statistics, and of batch statistics in a column of their own; the paper's are of test
classes and of batch statistics. What the paper says of Open MIC was not tested. Of every claim that differences between
rows bear on, the least and the most of those differences; they are below in full. Where both rows have several seeds, it
is counted in how many the row that the claim puts first is ahead, or behind, by more than its interval; of one seed, which
another training may well turn round, there is no verdict. *Less*, *more than in the paper*: the paper's difference is outside
our interval; it has one of its own, which the paper does not print.
"""
ABLATED = """Each row changes what its label names, of the base row `{base}`: SoSN(⊗)+SigmE, 5-way 1-shot, on {episodes:,}
episodes, 4 a step, else as the rows of one budget. One seed each: ± is over episodes and does not cover another
training, which may well differ by a point, as neighbouring values of η′ do.
"""
TITLE = "# The paper's tables, and ours\n"
SHORT = """In short: the paper's figures, its model here (SoSN(⊗)+SigmE, rows of one budget, and of the paper's) and our
recipes. Means over seeds ± 95%, over seeds and episodes (added in squares). Batch statistics are the authors' way.
Five-shot columns of the best recipe on Omniglot are of the model that was trained with five shots. *mini*ImageNet's test
images were held back: ours are of the validation classes, on which recipes were chosen. On Omniglot most of the best
recipe's figure is its first stage's, a classifier of second-order matrices, to which the similarity net adds little
([beyond.md](beyond.md)).
"""
INTRO = """\
This page is made from [results/ledger](../results/ledger) by `python docs/reproduction.py`. An entry there is one training
with its figures, or one experiment on a trained model, and a command wrote it (one of another training that stands in a
ledger already stays there):

```
sosn reproduce omniglot --rows sigme-vinyals-5w1s --quick --data DIR   # a few steps, to see that it works; no entry
sosn reproduce omniglot --rows 'sigme-*' --seeds 0 1 2 --ledger results/ledger
sosn reproduce mini-imagenet --list                   # the rows and their recipes; omniglot and claims have them too
sosn reproduce claims --ledger results/ledger         # what the paper says in words; runs the rows that it needs
sosn reproduce mini-imagenet --jobs 5                 # five trainings at a time: one alone does not fill a large GPU
```

Rows are data: [omniglot.py](../src/sosn/reproduce/omniglot.py), [mini_imagenet.py](../src/sosn/reproduce/mini_imagenet.py),
[claims.py](../src/sosn/reproduce/claims.py). The name of a row of the paper's tables ends with the protocol that it was
trained for; Omniglot models trained 20-way are tested on all four. How figures are made: [protocol.md](protocol.md).
Accuracies are in per cent.

- Ours is the mean over seeds ± its 95% interval between seeds (Student's t; none for a single seed); in brackets, the
  interval over episodes, which is what the paper prints, as a mean over seeds. Seeds share their episodes, so an interval
  between seeds says nothing about other episodes. Differences between rows are over seeds that both rows have, and their
  intervals over episodes, in pairs where the answers were kept (not of Omniglot's Prototypical Net), and over seeds too
  where there are several; those of one seed do not cover another training. *Means of all*: the
  difference of both rows' means where one has further seeds, which can change the sign.
- *running*: batch norm as it was trained, so no query helps another; *batch*: the authors' transductive way, of a model
  that was not trained so: in training all images of a step, support and query of all its episodes, are normalised together
  (theirs: one episode, either side by itself). What batch statistics change is in part this.
- Rows of one budget are there to be compared with each other. They are trained with far fewer updates than the paper's
  models and on fewer images (*mini*ImageNet: about half as many; Omniglot, 5-way: 2% of the episodes that the authors'
  script goes up to), so that a figure below the paper's does not refute it. Rivals were given SoSN's budget and settings,
  not their authors'. *The paper's budget*: 200,000 episodes, one a step, images as they are, with the schedule of the
  authors' script; one training each, and the best of its checkpoints. The script prints the best of 100 evaluations of
  600 episodes, which alone is worth about a point; ours are of one.
- Rows have β = 0 unless they say otherwise: the paper shifts features by a share β of their mean and does not tell its β.
  After ReLU no co-occurrence is then negative, and power normalisation works on one side alone. What is said of norms from
  such rows is said of β = 0.
- Weights are chosen on validation classes, with other episodes than those reported. The paper's figures are of test
  classes. Where ours are of val (test images were held back), the settings of our best recipes, and some that rows of one
  budget share, were chosen on the same classes with SoSN, so that figures of test classes may well be lower. The test
  classes of Vinyals' partition of Omniglot chose nothing here, but were read more than once: some rows were measured again
  when answers began to be ranked before the sigmoid, two rows of Relation Net were trained anew, and the best recipe was
  changed three times (copies of images; six blocks, 42² and β = 1; turned copies in place of smaller and larger ones), each
  time by validation classes, so that its first seed was read five times (on the paper's kind of partition twice), besides
  the figures on shipped models' cards and answers to a gallery of all characters. The best recipe on the paper's kind of
  partition was chosen on Vinyals': of the {tests} test classes there, {trained} are classes on which its variants were
  trained, and {chose} classes that chose it. ResNet-12's recipe was changed twice between trainings that are reported,
  several things at a time, with no variants beside them; of the oldest variants on [beyond.md](beyond.md), which stand in
  blocks of text, the seed of the episodes was not written down. What recipes began with (right angles as classes, AdamW
  with a cosine schedule, η′ = 100, flips, shifts and jitter) is a prototype's, which had been read on test classes of both
  datasets before.
- Only entries of rows as they are now are compared. Minutes are wall time, a first stage's included, of trainings of which
  several may have shared a GPU, by several versions of the code (`code` in an entry; the oldest have none), so they compare
  only roughly; seeds of a row may be of several versions too.
- *Ties*: the share of queries for which several classes had the same highest score, in the seed that has most; the first
  counted, and the classes of an episode come in random order. Two pairs have the same score to the bit where the last block
  of the similarity net puts out zeros alone for both.
"""


def page(entries: Sequence[Entry]) -> str:
    """The page for a ledger."""
    planned = _as_planned(entries)
    parts = [TITLE, SHORT, short(planned), INTRO.format(**omniglot.OVERLAP), _state(entries)]
    for table, rows in TABLES.items():
        parts.append(f"## {TITLES[table]}\n")
        absent = [label for label in PUBLISHED[table] if label not in {row.label for row in rows}]
        if absent:
            told = (f"{name} ({', '.join(f'{p} {f}' for p, f in PUBLISHED[table][name].items())})" for name in absent)
            parts.append(f"Printed in the paper and not run here: {'; '.join(told)}.\n")
        for group in dict.fromkeys(row.group for row in rows):
            parts += _group([row for row in rows if row.group == group], entries, planned)
        if table == omniglot.TABLE:
            parts.append(right_angles())
    parts.append(OPEN_MIC)
    parts += ["## What the paper says in words\n", SAID, overview(planned)]
    parts += [part for claim in claims.CLAIMS for part in claim_parts(claim, planned)]
    parts += ["## Misprints and contradictions in the paper\n", "\n".join(f"- {sentence}" for sentence in MISPRINTS) + "\n"]
    return "\n".join(parts)


def _as_planned(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that can be compared: of rows as they are now, and of experiments."""
    rows = {(row.table, row.id): row for table in TABLES.values() for row in table}
    planned = []
    for entry in entries:
        of = entry.get("of", entry)  # an experiment is of the row whose model it looked at
        row = rows.get((of["table"], of["row"]))
        if row and ("recipe" not in entry or same_recipe(entry, row)):  # the oldest experiments keep no recipe
            planned.append(entry)
    return planned


def _state(entries: Sequence[Entry]) -> str:
    """How much of the plan has been run."""
    rows = [row for table in TABLES.values() for row in table]
    runs = [of_row(entries, row.table, row.id) for row in rows]
    headline = [len(own) for row, own in zip(rows, runs, strict=True) if row.headline]
    enough = sum(count >= HEADLINE_SEEDS for count in headline)
    sentence = (
        f"So far {sum(map(bool, runs))} of {len(rows)} rows have been run, {sum(map(len, runs))} trainings in all. Headline "
        f"rows (marked ★) need {HEADLINE_SEEDS} seeds: {enough} of {len(headline)} have them."
    )
    machines = sorted({entry["machine"]["device"] for own in runs for entry in own})
    return sentence + (f" Machines: {', '.join(machines)}." if machines else "") + "\n"


def _group(rows: Sequence[Row], entries: Sequence[Entry], planned: Sequence[Entry]) -> list[str]:
    """The tables of a group of rows, what differs from the paper in them, and the rows that were not run.

    planned: the entries that can be compared.
    """
    parts = [f"### {TITLES[rows[0].table]}: {rows[0].group}\n"]
    runs = {row.id: of_row(entries, row.table, row.id) for row in rows}
    if rows[0].group == "ablation":
        parts += _ablations(planned)
    else:
        for protocol in dict.fromkeys(measure.protocol for row in rows for measure in row.measures):
            lines = [line for row in rows for line in _lines(row, protocol, entries)]
            if lines:
                head = ("model", "row", "split", "paper", "running", "batch", "seeds", "parameters", "minutes", "")
                parts += [f"**{_words(protocol)}**\n", as_table(head, lines)]
    notes = dict.fromkeys(row.differs for row in rows if row.differs and runs[row.id])
    remarks = {f"`{row.id}`": row.remark for row in rows if row.remark and runs[row.id]}
    told = (f"{', '.join(name for name in remarks if remarks[name] == one)}: {one}" for one in dict.fromkeys(remarks.values()))
    if notes:
        parts.append("What differs from the paper: " + "; ".join(notes) + ".\n")
    if remarks:
        parts.append("\n".join(f"- {one}." for one in told) + "\n")
    parts += budgets.differences(rows, planned) + budgets.best_and_last(rows, planned)
    if rows[0].group in PRINTED:
        parts.append(_below(rows, planned, PRINTED[rows[0].group]))
    waiting = [f"`{row.id}`" for row in rows if not runs[row.id]]
    if waiting:
        summary = f"<details><summary>{len(waiting)} of {len(rows)} rows not run</summary>"
        told_why = f"\n\n{NEEDS[rows[0].group]}" if rows[0].group in NEEDS else ""
        parts.append(f"{summary}\n\n{', '.join(waiting)}{told_why}\n\n</details>\n")
    return parts


def _below(rows: Sequence[Row], entries: Sequence[Entry], split: str) -> str:
    """Our figures minus the printed ones, the lowest first."""
    gaps = {}
    for row in rows:
        protocol = row.measures[0].protocol
        measure = next(one for one in row.measures if (one.split, one.protocol) == (split, protocol))
        ours, paper = summarise(of_row(entries, row.table, row.id), measure, "running"), row.paper(protocol)
        if ours and paper:
            gaps[row.id] = 100 * ours.mean - paper.accuracy
    told = ", ".join(f"`{name}` {gaps[name]:+.1f}" for name in sorted(gaps, key=gaps.__getitem__))
    classes = {"val": "validation", "test": "test"}[split]
    first = f"Ours, on {classes} classes, minus the printed figure, on test classes, in points: {told}."
    return f"{first} Why was not measured{OF_SOSN if rows[0].group == mini_imagenet.ONE_BUDGET else ''}.\n"


def _first_stage(entry: Entry, entries: Sequence[Entry]) -> float:
    """Seconds of the training that an entry's training started from."""
    first = [one for one in of_row(entries, entry["table"], entry.get("start", "")) if one["seed"] == entry["seed"]]
    return sum(float(one["seconds"]) + _first_stage(one, entries) for one in first)


def _lines(row: Row, protocol: str, entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """A line for each split on which a row was measured under a protocol: as it is now or, if it never was, as it was."""
    lines: list[tuple[str, ...]] = []
    own = of_row(entries, row.table, row.id)
    now = as_it_is_now(entries, row)
    remarks = ["an earlier recipe"] if own and not now else []
    own = now or own
    for measure in row.measures:
        running, batch = (summarise(own, measure, statistics) for statistics in ("running", "batch"))
        if measure.protocol == protocol and running is not None:
            minutes = sum(entry["seconds"] + _first_stage(entry, entries) for entry in own) / len(own) / 60
            count = len(running.seeds)
            seeds = f"{count} of {HEADLINE_SEEDS}" if row.headline and count < HEADLINE_SEEDS else str(count)
            label, paper = f"{row.label} ★" if row.headline else row.label, str(row.paper(protocol) or "")
            figures = [figure for entry in own if (figure := find_figure(entry, measure, "running"))]
            tied, told = max(figure["ties"] for figure in figures), list(remarks)
            told += [f"{100 * tied:.1f}% ties"] * (tied > TOLD_TIES)
            cells = (label, f"`{row.id}`", measure.split, paper, _figure(running), _figure(batch), seeds)
            lines.append((*cells, f"{own[0]['parameters']:,}", f"{minutes:.1f}", "; ".join(told)))
    return lines


def _ablations(entries: Sequence[Entry]) -> list[str]:
    """A table for each family, and the curves."""
    row, base = claims.find(mini_imagenet.TABLE, mini_imagenet.BASE), of_row(entries, mini_imagenet.TABLE, mini_imagenet.BASE)
    measure, recipe = row.measures[0], row.resolve(0)
    budget = recipe.training.steps * recipe.episodes.episodes_per_step
    parts = [ABLATED.format(base=mini_imagenet.BASE, episodes=budget)]
    if _curves(entries):
        parts.append(f"![Ablations, 5-way 1-shot on validation classes]({CURVES.name})\n")
    for what, points in _families(entries, measure):
        lines = []
        for value, own, figure in points:
            ahead = gap(own, base, measure)
            against = in_points(ahead) if own != base else ""
            batch = summarise(own, measure, "batch")
            lines.append((value, _figure(figure), _figure(batch), against, str(len(figure.seeds))))
        if lines:
            parts.append(as_table((what, "running", "batch", "minus the base row, points", "seeds"), lines))
    return parts


def _families(entries: Sequence[Entry], measure: Measure) -> list[tuple[str, list[tuple[str, list[Entry], Summary]]]]:
    """For each ablation what varies, and its measured values with their entries and figures."""
    families = []
    for family, (what, values) in mini_imagenet.ABLATIONS.items():
        points = []
        for value in values:
            own = of_row(entries, mini_imagenet.TABLE, mini_imagenet.ablation_id(family, value))
            if figure := summarise(own, measure, "running"):
                points.append((value, own, figure))
        families.append((what, points))
    return families


def _curves(entries: Sequence[Entry]) -> Figure | None:
    """Accuracy over the values of each ablation that has two or more; None if none has."""
    measure = claims.find(mini_imagenet.TABLE, mini_imagenet.BASE).measures[0]
    drawn = [(what, points) for what, points in _families(entries, measure) if len(points) > 1]
    if not drawn:
        return None
    rows, columns = -(-len(drawn) // ABREAST), min(len(drawn), ABREAST)
    figure = Figure((3.4 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for axes in grid[len(drawn) :]:
        axes.remove()
    for axes, (what, points) in zip(grid, drawn, strict=False):
        heights = [100 * summary.mean for _, _, summary in points]
        halves = [100 * (summary.between or summary.ci95s[0]) for _, _, summary in points]
        ordered = points[0][0][0].isdigit()  # values of a number, not names
        axes.errorbar(range(len(points)), heights, halves, fmt="o-" if ordered else "o", capsize=3)
        turned = {"rotation": 0} if ordered else {"rotation": 40, "ha": "right"}
        axes.set_xticks(range(len(points)), [value for value, _, _ in points], **turned)
        axes.set_title(what)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("accuracy, %")
    return figure


def _words(protocol: str) -> str:
    way, shot = protocol.removesuffix("s").split("w")
    return f"{way}-way {shot}-shot"


def _figure(figure: Summary | None) -> str:
    """Mean ± interval between seeds (interval over episodes)."""
    if figure is None:
        return ""
    between = "" if figure.between is None else f" ± {100 * figure.between:.2f}"
    return f"{100 * figure.mean:.2f}{between} ({100 * sum(figure.ci95s) / len(figure.ci95s):.2f})"


def write(ledger: Path = LEDGER, target: Path = PAGE) -> None:
    """Write the page and, where there is something to draw, its curves."""
    entries = read_ledger(ledger)
    target.write_text(page(entries), "utf-8")
    drawn = {CURVES.name: _curves(_as_planned(entries)), budgets.CURVES: budgets.curves(mini_imagenet.ROWS, entries)}
    for name, figure in drawn.items():
        if figure:
            figure.savefig(target.parent / name, dpi=110)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
