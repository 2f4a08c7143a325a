"""Output of the commands: progress on standard error, tables on standard output."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from sosn.cli.process import end_at_once

if TYPE_CHECKING:
    from sosn.cli.demo import DemoResult
    from sosn.data.prepare.check import Finding
    from sosn.evaluation.comparison import Row
    from sosn.evaluation.model import EvaluationSettings
    from sosn.evaluation.protocol import Evaluation

QUIET = 30.0  # seconds between two lines without a terminal
SETTLED = 20.0  # seconds of training after which its speed is known
LONG = 3600.0  # seconds from which a training is long enough to say so
console = Console(stderr=True, highlight=False)


class RichProgress:
    """A progress bar with loss, validation accuracy, episodes per second and time left; plain lines without a terminal."""

    def __init__(self) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"),
            TextColumn("left"), TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.task: TaskID | None = None
        self.loss = self.best = ""
        self.smooth: float | None = None
        self.first = self.total = self.episodes_per_step = 0
        self.began = self.reported = 0.0
        self.estimated = False
        self.evaluation: TaskID | None = None

    def __enter__(self) -> "RichProgress":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def say(self, sentence: str) -> None:
        console.print(sentence)

    def start(self, first_step: int, steps: int, episodes_per_step: int) -> None:
        self.first, self.total, self.episodes_per_step, self.began = (
            first_step,
            steps,
            episodes_per_step,
            time.monotonic(),
        )
        self.reported, self.estimated = self.began, False
        if self.task is not None:  # the next of several runs
            self.bar.remove_task(self.task)
            self.loss, self.best, self.smooth = "", "", None
        self.task = self.bar.add_task("training", total=steps, completed=first_step, status="")

    def step(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
            self.loss = f"loss {self.smooth:.4f}"
        rate = (step - self.first) * self.episodes_per_step / max(time.monotonic() - self.began, 1e-9)
        if self.task is not None:
            self.bar.update(self.task, completed=step, status=f"{self.loss} {self.best} {rate:.1f} episodes/s")
        self._print_line(f"step {step}/{self.total}  {self.loss}  {rate:.1f} episodes/s")
        self._estimate(step)

    def _estimate(self, step: int) -> None:
        """Say once how long the training will take, if that is long. The first steps are slower than others."""
        spent = time.monotonic() - self.began
        if self.estimated or spent < SETTLED or step == self.first:
            return
        self.estimated = True
        left = spent * (self.total - step) / (step - self.first)
        if left > LONG:
            console.print(
                f"this training takes about {duration(left)} at this speed, evaluations not included; a "
                "checkpoint is saved every minute, and a stopped run can be resumed",
                soft_wrap=True,
            )

    def evaluating(self, done: int, total: int) -> None:
        if self.evaluation is None:
            self.evaluation = self.bar.add_task("evaluating", total=total, status="")
        self.bar.update(self.evaluation, completed=done)
        self._print_line(f"evaluating  {done}/{total} episodes")
        if done == total:
            self.bar.remove_task(self.evaluation)
            self.evaluation = None

    def _print_line(self, line: str) -> None:
        """Print a line every QUIET seconds if there is no terminal."""
        if not console.is_terminal and time.monotonic() - self.reported > QUIET:
            self.reported = time.monotonic()
            console.print(line)

    def validation(self, step: int, result: "Evaluation", best: bool) -> None:
        seconds = time.monotonic() - self.began
        if best:
            self.best = f"val {100 * result.accuracy:.2f}%"
            self.step(step, None)
        mark = "  best so far" if best else ""
        console.print(f"step {step}/{self.total}  {self.loss}  validation {result}{mark}  ({seconds:.0f} s)")

    def lost(self) -> None:
        end_at_once("another process of this run has ended")


def duration(seconds: float) -> str:
    """Write a long time in hours or days."""
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar. Yields a function that takes the finished number and the total."""
    reported = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal reported
        bar.update(task, completed=done, total=total)
        if not console.is_terminal and time.monotonic() - reported > QUIET:
            reported = time.monotonic()
            console.print(f"{what}  {done}/{total}")

    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield show


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table with these columns."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")  # paths must not be truncated
    return table


def wide_console() -> Console:
    """Return standard output as wide as the terminal, or 200 columns wide without a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def show_models(cards: dict[str, dict[str, Any]]) -> None:
    table = new_table("Shipped models", "name", "what it is", "accuracy", "measured on")
    table.columns[0].no_wrap = True  # so that it can be copied
    for name, card in cards.items():
        accuracy = f"{100 * card['accuracy']:.2f} ± {100 * card['ci95']:.2f}%"
        table.add_row(name, card["title"], accuracy, f"{card['data']} {card['split']}, {card['way']}-way {card['shot']}-shot")
    Console().print(table)


def show_card(name: str, card: dict[str, Any]) -> None:
    out = Console(highlight=False)
    out.print(f"[bold]{name}[/bold]: {card['title']}", soft_wrap=True)
    for figure in (card, *card.get("figures", [])):
        words = "".join(f", {word}" for word in figure.get("words", []))
        out.print(
            f"{100 * figure['accuracy']:.2f} ± {100 * figure['ci95']:.2f}% on {card['data']} {figure['split']} classes{words}, "
            f"{figure['way']}-way {figure['shot']}-shot, {figure['episodes']} episodes of {figure['query']} "
            f"quer{'y' if figure['query'] == 1 else 'ies'} a class, "
            f"{figure['statistics']} statistics{', seed ' + str(figure['seed']) if 'seed' in figure else ''}",
            soft_wrap=True,
        )
    out.print(f"{_trained(card)}; {card['parameters']:,} parameters, {card['bytes']:,} bytes", soft_wrap=True)
    out.print(f"limits: {card['limits']}\nterms: {card['terms']}", soft_wrap=True)
    out.print(f"all figures and the recipe, if it has one: sosn models {name} --json", soft_wrap=True)


def _trained(card: dict[str, Any]) -> str:
    """Describe how a model was trained, or where the weights of its encoder come from."""
    if "recipe" not in card:
        return f"encoder from a package (EfficientNet-{card['packaged'].title()}), not trained further"
    recipe = card["recipe"]
    first = batches(card["first_stage"]) + ", then " if "first_stage" in card else ""
    return f"trained on {first}{recipe['training']['steps'] * recipe['episodes']['episodes_per_step']:,} episodes"


def batches(recipe: dict[str, Any]) -> str:
    """Describe the training of a first stage, which learns from single images."""
    sizes = recipe["episodes"]
    images = sizes["episodes_per_step"] * sizes["way"] * (sizes["shot"] + sizes["query"])
    return f"{recipe['training']['steps']:,} batches of {images:,} images"


def protocol(of: "Evaluation | EvaluationSettings") -> str:
    """Describe a protocol, for instance: 5-way 1-shot, 15 queries a class, running statistics."""
    queries = "1 query" if of.query == 1 else f"{of.query} queries"
    return f"{of.way}-way {of.shot}-shot, {queries} a class, {of.statistics} statistics"


def show_comparison(rows: "list[Row]", settings: "EvaluationSettings") -> None:
    right = new_table(f"{protocol(settings)}, {settings}", "model", "method", "accuracy", "minus the first", "p")
    cost = new_table("", "model", "parameters", "MFLOPs an episode", "episodes/s", "remarks")
    for row in rows:
        other = row.against_first
        difference = "" if other is None else f"{100 * other.difference:+.2f} ± {100 * other.ci95:.2f}"
        marks = [word for word, holds in (("transductive", row.transductive), ("adapts", row.adapts)) if holds]
        p_value = "" if other is None else f"{other.p_value:.2g}"
        right.add_row(escape(row.model), row.method, str(row.evaluation), difference, p_value)
        figures = (f"{row.parameters:,}", f"{row.mflops:,.0f}", f"{row.episodes_per_second:.1f}")
        cost.add_row(escape(row.model), *figures, ", ".join(marks))
    out = wide_console()
    out.print(right)
    out.print(cost)


def show_datasets(found: list[dict[str, Any]], forms: dict[str, str]) -> None:
    out = Console(highlight=False)
    table = new_table("Ready", "name", "size", "classes", "images", "where")
    table.add_row("glyphs", "any", "any", "any", "generated; needs no files")
    table.add_row(
        "folder:PATH", "any", "", "", "your images: one subfolder per class, or train/, val/ and test/ folders of them"
    )
    for one in found:
        table.add_row(one["name"], str(one["size"]), str(one["classes"]), str(one["images"]), escape(one["folder"]))
    out.print(table)
    missing = sorted(set(forms) - {one["name"] for one in found})
    if missing:
        table = new_table("Not prepared", "name", "what it is prepared from")
        for name in missing:
            table.add_row(name, escape(forms[name]))
        out.print(table)
    out.print("`sosn data prepare NAME --from PATH` prepares one, also at another --size", soft_wrap=True)


def show_findings(findings: "list[Finding]", images: int) -> None:
    out = Console(highlight=False)
    if findings:
        table = new_table("", "what", "where", "")
        for finding in findings:
            table.add_row(finding.kind, "\n".join(finding.where), finding.detail)
        out.print(table)
    counts = Counter(finding.kind for finding in findings)
    summary = ", ".join(f"{count} × {name}" for name, count in counts.items()) or "nothing is wrong"
    out.print(f"{images} images: {summary}", soft_wrap=True)


def show_recipes(titles: dict[str, str]) -> None:
    table = new_table("Shipped recipes: `sosn train NAME`", "name", "what it trains")
    for name, title in titles.items():
        table.add_row(name, title)
    Console().print(table)


def show_demo(result: "DemoResult") -> None:
    out = Console(highlight=False)
    test, pixels = result.test, result.pixels
    out.print(f"\n[bold]{test}[/bold] on {test.way}-way {test.shot}-shot episodes of new classes ({test.episodes} episodes)")
    out.print(f"{pixels} by comparing pixels, {100 / test.way:.0f}% by guessing")
    table = new_table("\nA few drawings, one example of each class given", "drawing of", "answer", "similarity", "")
    for answer in result.answers:
        table.add_row(answer.truth, answer.answer, f"{answer.similarity:.2f}", "right" if answer.right else "wrong")
    out.print(table)
    out.print(f"report: {result.report}  ({result.seconds:.0f} s in all)", soft_wrap=True)


def show_bench(document: dict[str, Any]) -> None:
    from sosn.bench import evaluation_ratios, written_rate

    out = Console(highlight=False)
    out.print(f"{document['machine']}; {document['peak_tflops']:.3g} TFLOP/s in a large matrix product", soft_wrap=True)
    heads = ("episode", "contender", "engine is\nfaster by", "episodes\na second", "pairs\na second", "of the\nfloor", "GiB")
    table = new_table("Training", *heads)
    table.box, table.pad_edge = box.SIMPLE_HEAD, False  # fits seven columns into a narrow terminal
    for row in document["training"]:
        for name, rate in row["episodes_per_second"].items():
            ratio, memory = row["ratios"].get(f"engine / {name}"), row["peak_gib"][name]
            share = row["share_of_floor"].get(name)
            table.add_row(
                row["shape"], name, f"{ratio:.1f}×" if ratio else "", written_rate(rate),
                f"{row['pairs_per_second'][name]:,.0f}", f"{100 * share:.1f}%" if share else "",
                f"{memory:.2f}" if memory else "",
            )  # fmt: skip
    out.print(table)
    table = new_table("Evaluation", "episode", "contender", "engine is faster by", "ms an episode")
    for row in document["evaluation"]:
        ratios = evaluation_ratios(row["seconds_per_episode"])
        for name, seconds in row["seconds_per_episode"].items():
            ratio = ratios.get(name)
            table.add_row(row["shape"], name, f"{ratio:.2f}×" if ratio else "", f"{1e3 * seconds:.1f}")
    out.print(table)
    for name, rows in document["growth"].items():
        cells = ", ".join(f"{row['shape']}: {row['ms_per_episode']:.1f} ms" for row in rows)
        out.print(f"growth with {name}: {cells}", soft_wrap=True)
    if not document["easyfsl"]:
        out.print("easyfsl is not installed: run pip install easyfsl to compare with it", soft_wrap=True)
