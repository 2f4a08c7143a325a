"""`sosn classify`, `sosn tune` and `sosn export`."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sosn.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from sosn.classify.background import Inverting
    from sosn.classify.batch import Classified
    from sosn.classify.classifier import FewShotClassifier

Polarity = Annotated[
    str, typer.Option(help="auto: invert light-on-dark drawings for models trained on dark-on-light; as_is: invert nothing.")
]
Support = Annotated[Path, typer.Option(help="Folder with one subfolder of images per class.")]
Model = Annotated[str, typer.Option(help="Shipped model or run folder; auto: choose for drawings or photos.")]


def classify(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="Images to classify.")],
    support: Support,
    model: Model = "auto",
    encoder: Annotated[str | None, typer.Option(help="Use a frozen backbone instead of a model: timm:NAME.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights of the backbone; default: timm's.")] = None,
    reject: Annotated[
        float | None, typer.Option(help="Allow 'none of these'; the share of known images that may be rejected.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with thumbnails to this file.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    polarity: Polarity = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify images from a few examples of each class. Exits with 1 if an image could not be read."""
    from sosn.classify.batch import classify_files, expectation, find_images
    from sosn.classify.classifier import FewShotClassifier
    from sosn.cli.show import console, progress_bar
    from sosn.errors import UsageError

    if as_csv and as_json:
        raise UsageError("--csv and --json cannot be combined: choose one")
    if html is not None:
        from sosn.report.answers import check_page, write_answers

        check_page(html)
    files = find_images(images)
    classifier = FewShotClassifier(model, encoder, checkpoint, device, cast("Inverting", polarity)).fit(support)
    expected = expectation(classifier)
    console.print(expected, soft_wrap=True, markup=False)
    with progress_bar("classifying") as bar:
        results = classify_files(classifier, files, reject, html is not None, bar)
    if html is not None:
        console.print(f"page: {write_answers(html, support, results, expected)}", soft_wrap=True, markup=False)
    _print_answers(classifier, results, reject, as_csv, as_json)
    failed = [one.error for one in results if one.error]
    for error in failed:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _print_answers(
    classifier: "FewShotClassifier", results: "list[Classified]", reject: float | None, as_csv: bool, as_json: bool
) -> None:
    if as_csv:
        typer.echo(_csv(results), nl=False)
    elif as_json:
        document: dict[str, Any] = {
            "model": classifier.model_,
            "image_type": classifier.image_type_,
            "calibrated": classifier.calibration_ is not None,
            "classes": dict(zip(classifier.classes_.tolist(), classifier.shots_, strict=True)),
            "reject": reject,
            "answers": [one.to_json() for one in results if one.answer],
            "failed": [one.to_json() for one in results if one.error],
        }
        print_json(document)
    else:
        from sosn.cli.show import show_answers

        show_answers(results)


def _csv(results: "list[Classified]") -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["image", "answer", "likeliest", "probability", "error"])  # an empty answer: none of these
    for one in results:
        answer = one.answer
        cells = ("", "", "") if answer is None else (answer.answer, answer.likeliest, f"{answer.probability:.4f}")
        writer.writerow([one.image, *cells, one.error])
    return lines.getvalue()


def export(
    model: Annotated[str, typer.Argument(help="Run folder, weights file, or shipped model.")],
    out: Annotated[Path, typer.Argument(help="Folder for describe.onnx, similarity.onnx and model.json.")],
    as_json: AsJson = False,
) -> None:
    r"""Export a model to ONNX and check it against PyTorch. Needs the extra sosn\[onnx]."""
    from sosn.checkpoint.registry import load
    from sosn.classify.onnx import export_onnx
    from sosn.evaluation.calibration import calibration_of

    about = export_onnx(load(model), out, model, calibration_of(model))
    if as_json:
        print_json({"folder": str(out), **{name: value for name, value in about.items() if name != "calibration"}})
    else:
        sizes = ", ".join(f"{file} ({size:,} bytes)" for file, size in about["bytes"].items())
        typer.echo(f"{out}: {sizes}; ONNX Runtime and PyTorch differ by {about['largest_difference']:.1e} at most")


def tune(
    support: Annotated[Path, typer.Option(help="Folder with one subfolder of images per class, 6 or more in each.")],
    model: Model = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the tuned model, for --model of `sosn classify`.")] = Path("tuned"),
    steps: Annotated[int, typer.Option(help="Training steps of each of the four tunings.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Random seed of the episodes.")] = 0,
    polarity: Polarity = "auto",
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on your classes; keep it only if cross-validation on your images shows a gain."""
    from sosn.classify.tuning import tune_model
    from sosn.cli.show import progress_bar

    with progress_bar("tuning") as bar:
        name, result = tune_model(support, model, out, steps, seed, bar, cast("Inverting", polarity))
    if as_json:
        print_json({"model": name, "folder": str(out) if result.method else None, **result.to_json()})
        return
    before, after = (f"{100 * right / result.pictures:.1f}%" for right in (result.before, result.after))
    figures = f"accuracy on {result.pictures} held-out images: {before} before tuning {name!r}, {after} after"
    options = f"--model {out}" + (" --polarity as_is" if polarity == "as_is" else "")
    verdict = f"saved to {out}; use it with {options}" if result.method else "no clear gain, so nothing was saved"
    typer.echo(f"{figures}; {verdict}")
