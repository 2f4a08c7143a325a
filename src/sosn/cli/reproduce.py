"""`sosn reproduce`: run the experiments of the paper and print its figures beside ours."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sosn.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from sosn.reproduce.claims import Claimed
    from sosn.reproduce.ledger import Entry, Summary
    from sosn.reproduce.row import Row
    from sosn.reproduce.table import Options, Reproduction

WIDTH = 120  # of wrapped lines
MOST = 0.75  # share of rows with a word above which it is printed once for all
CLAIMS = "claims"


def reproduce(
    table: Annotated[str, typer.Argument(help="omniglot, mini-imagenet, open-mic-1, open-mic-2 or claims.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for instance device=cuda.")
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN...", help="Rows to run, as shell patterns; default: all.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option(metavar="SEED...", help="Random seeds, one training each; default: 0.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List rows, recipes and commands; run nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run a few steps and episodes, to see that it works.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder to prepare missing datasets from.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs, OUT/TABLE/ROW-seedN; default: runs."),
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Copy the result of every run to LEDGER/TABLE/ROW-seedN.json.")] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time, each in its own process.")] = 1,
    estimate: Annotated[bool, typer.Option(help="Time a few steps first and print how long all will take.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run the experiments of one of the paper's tables and print its figures beside ours. Continues where it stopped."""
    from sosn.errors import UsageError
    from sosn.reproduce.table import TABLES, Options, reproduce_rows
    from sosn.util.spelling import nearest

    overrides, patterns, numbers = _split_words(words or [], rows, seeds)
    if table not in (*TABLES, CLAIMS):
        known = (*TABLES, CLAIMS)
        raise UsageError(f"there is no table {table!r}{nearest(table, known)}: choose one of {', '.join(known)}")
    if listing:
        if overrides or numbers or quick or data or out or ledger or jobs != 1 or not estimate:
            raise UsageError("--list runs nothing: use it only with --rows and --json")
        _list(table, patterns, as_json)
        return
    from sosn.cli.process import keep_freed_memory
    from sosn.cli.show import RichProgress
    from sosn.reproduce.claims import reproduce_claims

    keep_freed_memory()
    wanted = Options(patterns, numbers or [0], overrides, quick, data, ledger, jobs, estimate)
    folder = out or Path("runs/quick" if quick else "runs")
    _check_precision(table, folder, wanted)
    try:
        with RichProgress() as progress:
            if table == CLAIMS:
                claimed = reproduce_claims(folder, wanted, progress)
            else:
                result = reproduce_rows(table, folder, wanted, progress)
    except KeyboardInterrupt:
        typer.echo("run the same command again to continue from the last checkpoints", err=True)
        raise
    if table == CLAIMS:
        print_json(claimed.to_json()) if as_json else _show_claims(claimed, quick)
    else:
        print_json(result.to_json()) if as_json else _show_rows(result, quick)


def _check_precision(table: str, folder: Path, wanted: "Options") -> None:
    """Refuse bf16 trainings on a CPU that cannot do them. Rows that are trained already need no such check."""
    from sosn.cli.process import check_precision
    from sosn.reproduce import claims
    from sosn.reproduce.table import TABLES, plan, select, trained

    rows = claims.needed(select(claims.CLAIMS, wanted.rows)) if table == CLAIMS else select(TABLES[table], wanted.rows)
    waiting = [job.recipe.training for job in plan(rows, folder, wanted) if not trained(job)]
    for precision, device in {(training.precision, training.device) for training in waiting}:
        check_precision(precision, device)


def _split_words(
    words: Sequence[str], rows: list[str] | None, seeds: list[int] | None
) -> tuple[list[str], list[str], list[int]]:
    """Split words into overrides, patterns and seeds: further values of --rows and --seeds arrive among the overrides."""
    from sosn.errors import UsageError

    overrides, patterns, numbers = [], list(rows or []), list(seeds or [])
    for word in words:
        if "=" in word:
            overrides.append(word)
        elif seeds and word.isdigit():
            numbers.append(int(word))
        elif rows:
            patterns.append(word)
        else:
            raise UsageError(f"{word!r} is not key=value: write, for instance, device=cuda, or --rows {word}")
    if any(number < 0 for number in numbers):
        raise UsageError(f"seeds are {', '.join(map(str, numbers))}; they must be integers from 0")
    return overrides, patterns, numbers


def _list(table: str, patterns: list[str], as_json: bool) -> None:
    from sosn.reproduce import claims
    from sosn.reproduce.table import TABLES, row_json, select

    if table == CLAIMS:
        chosen = select(claims.CLAIMS, patterns)
        if as_json:
            print_json([claims.claim_json(claim, []) | {"rows": [r.name for r in claims.needed([claim])]} for claim in chosen])
        for claim in () if as_json else chosen:
            typer.echo(f"{claim.id}  {claim.claim}\n    “{claim.quote}”")
            typer.echo(f"    rows: {' '.join(row.name for row in claims.needed([claim]))}")
        return
    rows = select(TABLES[table], patterns)
    print_json([row_json(row) for row in rows]) if as_json else _show_plan(table, rows)


def _show_plan(table: str, rows: "Sequence[Row]") -> None:
    """Print each row, its training episodes, the paper's figures, and the commands that train it by hand.

    Words that most rows share are printed once, as a shell array (bash or zsh) that the commands use.
    """
    from sosn.cli.show import batches
    from sosn.reproduce.row import FIRST_STAGE

    common = _common(rows)
    if common:
        typer.echo(textwrap.fill(f"COMMON=({' '.join(common)})", WIDTH, break_on_hyphens=False, subsequent_indent="  "))
    printed: set[str] = set()
    for row in rows:
        recipe = row.resolve(0)
        episodes = f"{recipe.training.steps * recipe.episodes.episodes_per_step:,} episodes"
        trained = batches(recipe.to_table()) if row.group == FIRST_STAGE else episodes
        protocols = dict.fromkeys(measure.protocol for measure in row.measures)
        paper = ", ".join(f"{protocol} {figure}" for protocol in protocols if (figure := row.paper(protocol)))
        typer.echo(f"{row.id}  {row.label}  {trained}{f'  paper: {paper}' if paper else ''}")
        for command in _commands(row, common):
            if command not in printed:  # several rows may start from the same model
                typer.echo(_broken(command))
            printed.add(command)
    typer.echo(f"{len(rows)} rows; `sosn reproduce {table} --rows PATTERN --seeds 0 1 2` runs some of them")


def _broken(command: str) -> str:
    """Wrap a command over several lines with backslashes."""
    lines = textwrap.wrap(command, WIDTH - 8, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent(" \\\n    ".join(lines), "    ")


def _common(rows: "Sequence[Row]") -> list[str]:
    """Return the words that most rows share; none for a single row."""
    counts = Counter(word for row in rows for word in row.words)
    return [word for word, count in counts.items() if count > MOST * len(rows)] if len(rows) > 1 else []


def _commands(row: "Row", common: Sequence[str] = ()) -> list[str]:
    """Return the commands that train a row by hand. The rows that it starts from come first.

    If a row has all common words, "${COMMON[@]}" stands for them. It comes first, because the last word for a key counts.
    """
    from sosn.reproduce.table import started_from

    commands: list[str] = []
    start: list[str] = []
    for one in (*started_from(row), row):
        has_all = bool(common) and set(common) <= set(one.words)
        rest = [word for word in one.words if not (has_all and word in common)]
        shared = ['"${COMMON[@]}"'] if has_all else []
        commands.append(" ".join(("sosn train", one.recipe, *shared, *rest, *start, f"--out runs/{one.name}")))
        start = [f"start=runs/{one.name}"]
    return commands


def _show_rows(result: "Reproduction", quick: bool) -> None:
    """Print the paper's figures beside ours, one line for each figure of each row."""
    from sosn.cli.show import new_table, wide_console
    from sosn.reproduce.ledger import summarise
    from sosn.reproduce.open_mic import TABLES as OPEN_MIC
    from sosn.reproduce.open_mic import averages

    note = ": --quick, not a result" if quick else ""
    table = new_table(f"{result.table}, %{note}", "row", "", "split", "paper", "running", "batch", "seeds")
    for row in result.rows:
        entries = [entry for entry in result.entries if entry["row"] == row.id]
        for measure in row.measures:
            running, batch = (summarise(entries, measure, statistics) for statistics in ("running", "batch"))
            if running is not None:
                paper = row.paper(measure.protocol)
                cells = (measure.protocol, measure.split, str(paper or ""), _percent(running), _percent(batch))
                table.add_row(row.id, *cells, str(len(running.seeds)))
    wide_console().print(table)
    typer.echo("ours ±: 95% interval over episodes, and also over seeds if there are several")
    for label, way, printed, ours in averages(result.table, result.entries) if result.table in OPEN_MIC else ():
        if ours is not None:
            typer.echo(f"average {label}, {way}-way: {100 * ours:.2f}" + (f" (paper {100 * printed:.2f})" if printed else ""))
    _show_reasons(result.entries, result.skipped)


def _show_reasons(entries: "list[Entry]", skipped: dict[str, str]) -> None:
    missing = {split: reason for entry in entries for split, reason in entry.get("missing", {}).items()}
    for name, reason in (missing | skipped).items():
        typer.echo(f"– {name}: {reason}")


def _show_claims(result: "Claimed", quick: bool) -> None:
    """Print each claim, the paper's differences beside ours, and the results of the experiments."""
    from rich.markup import escape

    from sosn.cli.show import new_table, wide_console

    out = wide_console()
    if quick:
        out.print("--quick: not a result")
    for claim in result.claims:
        out.print(f"\n[bold]{escape(claim.claim)}[/bold]\n“{escape(claim.quote)}”", soft_wrap=True)
        if claim.contrasts:
            table = new_table("", "row", "minus", "", "split", "paper, points", "ours, points", "seeds")
            for one in claim.contrasts:
                ours = one.ours(result.entries)
                points = f"{100 * ours.mean:+.2f} ± {100 * ours.ci95:.2f}" if ours else "–"
                paper = "" if one.paper is None else f"{one.paper:+.2f}"
                table.add_row(one.first, one.second, one.protocol, one.split, paper, points, str(ours.seeds if ours else 0))
            out.print(table)
            out.print("ours ±: 95% interval over episodes, and also over seeds if there are several")
        for entry in result.entries:
            if entry["row"] in {one.id for one in claim.experiments}:
                keys = [key for key in entry["results"][0] if not key.endswith("_ci95")]
                table = new_table(f"{entry['row']}, seed {entry['seed']}", *keys)
                for row in entry["results"]:
                    table.add_row(*(f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key]) for key in keys))
                out.print(table)
    _show_reasons(result.entries, result.skipped)


def _percent(figure: "Summary | None") -> str:
    """Format the mean over seeds and its interval over seeds, or for one seed, over episodes."""
    if figure is None:
        return "–"
    half = figure.half
    return f"{100 * figure.mean:.2f} ± {100 * half:.2f}"
