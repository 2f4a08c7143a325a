"""What `sosn classify` prints: tables on a terminal, tab-separated lines in a pipe, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from sosn.classify.batch import Classified
from sosn.classify.classifier import FewShotClassifier
from sosn.classify.gallery_files import Found
from sosn.classify.labelled_evaluation import LabelledEvaluation
from sosn.cli.show import new_table

WORST = 10  # mistakes in a table
WIDEST = 8  # answers in a confusion matrix; with more, only the most frequent confusions are listed
Rows = Sequence[Sequence[str]]


def show_answers(results: list[Classified]) -> None:
    """Print one row per image: image, answer, probability, next best."""
    rows = []
    for one in results:
        if one.answer is None:
            rows.append((one.image, "could not be read", "", ""))
            continue
        likely = sorted(one.answer.probabilities.items(), key=lambda pair: -pair[1])
        shares = [f"{label} {100 * share:.0f}%" for label, share in likely[:2]]
        if one.answer.answer is None:
            nearest = shares[0] if len(shares) > 1 else str(likely[0][0])  # a single class always has 100%
            rows.append((one.image, "none of these", "", f"likeliest is {nearest}"))
        else:
            next_best = "; ".join([*shares[1:], *(["unlike all classes"] if one.answer.far else [])])
            rows.append((one.image, str(one.answer.answer), f"{100 * likely[0][1]:.0f}%", next_best))
    _print_rows("", ("image", "answer", "probability", "next best"), rows)


def show_matches(results: list[Found]) -> None:
    """Print one row per image: image, best class, its probability or similarity, the next best."""
    calibrated = any(match.probability is not None for one in results for match in one.matches)
    rows = []
    for one in results:
        if not one.matches:
            rows.append((one.image, "could not be read" if one.error else "none of these", "", ""))
            continue
        shares = [match.similarity if match.probability is None else match.probability for match in one.matches]
        words = [f"{match.label} {100 * share:.0f}%" for match, share in zip(one.matches, shares, strict=True)]
        rows.append((one.image, one.matches[0].label, f"{100 * shares[0]:.0f}%", ", ".join(words[1:])))
    _print_rows("", ("image", "best", "probability" if calibrated else "similarity", "next"), rows)


def show_evaluation(found: LabelledEvaluation) -> None:
    """Print the accuracy, the scores of every class, what was taken for what, and the worst mistakes."""
    scores = [
        (
            "unknown" if one.label is None else str(one.label),
            str(one.images),
            *("" if share is None else f"{100 * share:.0f}%" for share in shares),
        )
        for one in found.per_class
        for shares in [(one.recall, one.precision)]
    ]
    _print_rows("Classes", ("class", "images", "found (recall)", "right when named (precision)"), scores)
    if len(found.columns) <= WIDEST:
        rows = [
            (str(label), *(str(found.confusion[label].get(answer, 0)) for answer in found.columns)) for label in found.labels
        ]
        _print_rows("True class (rows) and answer (columns)", ("", *map(_name, found.columns)), rows)
    else:
        known = set(found.classes)
        wrong = [
            (count, str(label), _name(answer))
            for label, counts in found.confusion.items()
            for answer, count in counts.items()
            if answer != (label if label in known else None)
        ]
        often = [(label, answer, str(count)) for count, label, answer in sorted(wrong, reverse=True)[:WORST]]
        _print_rows("Most frequent confusions", ("true class", "answer", "images"), often)
    worst = [
        (one.answer.image or "", str(one.label), _name(one.answer.answer), f"{100 * one.answer.probability:.0f}%")
        for one in found.mistakes[:WORST]
    ]
    if worst:
        _print_rows("Most confident mistakes", ("image", "true class", "answer", "probability"), worst)
    typer.echo(str(found))


def answers_json(
    classifier: FewShotClassifier, results: list[Classified], reject: float | None, evaluation: LabelledEvaluation | None
) -> dict[str, Any]:
    """Return the document that --json prints."""
    document: dict[str, Any] = {
        "model": classifier.model_,
        "image_type": classifier.image_type_,
        "calibrated": classifier.confidence_.source != "none",
        "calibrated_on": classifier.confidence_.source,
        "leave_one_out_accuracy": classifier.accuracy_,
        "classes": dict(zip(classifier.classes_.tolist(), classifier.shots_, strict=True)),
        "reject": reject,
        "answers": [one.to_json() for one in results if one.answer],
        "failed": [one.to_json() for one in results if one.error],
    }
    return document if evaluation is None else document | {"evaluation": evaluation.to_json()}


def answers_csv(results: list[Classified], labelled: bool) -> str:
    """Return one line per image; an empty answer means none of these. labelled: add the true class, and if it is right."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["image", "answer", "likeliest", "probability", "far", "error", *(["label", "right"] if labelled else [])])
    for one in results:
        answer = one.answer
        cells: tuple[Any, ...] = ("",) * 4
        if answer is not None:
            cells = (answer.answer, answer.likeliest, f"{answer.probability:.4f}", str(answer.far).lower())
        right = "" if one.right is None else str(one.right).lower()
        writer.writerow([one.image, *cells, one.error, *([one.label, right] if labelled else [])])
    return lines.getvalue()


def _name(answer: object) -> str:
    return "none of these" if answer is None else str(answer)


def _print_rows(title: str, columns: Sequence[str], rows: Rows) -> None:
    """Print a table on a terminal; elsewhere tab-separated lines, with a title and column names if there is a title."""
    out = Console(highlight=False)
    shown = [[cell.encode(errors="replace").decode() for cell in row] for row in rows]  # file names need not be valid UTF-8
    if out.is_terminal:
        table = new_table(title, *(escape(column) for column in columns))
        for row in shown:
            table.add_row(*map(escape, row))
        out.print(table)
        return
    for cells in [*([[title], columns] if title else []), *shown]:
        typer.echo("\t".join(" ".join(cell.split()) if "\t" in cell or "\n" in cell else cell for cell in cells))
    if title:
        typer.echo()
