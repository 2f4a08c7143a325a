"""`sosn classify`, `tune` and `export`: for people with a few photos."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sosn.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from sosn.classify.background import Inverting

Polarity = Annotated[
    str,
    typer.Option(help="auto: invert drawings on the other ground than the model knows; as_is: leave all images as they are."),
]


def classify(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="What to classify.")],
    support: Annotated[Path, typer.Option(help="A folder that holds a folder of images for each class.")],
    model: Annotated[str, typer.Option(help="A shipped model, a run folder, or auto: by what the images are.")] = "auto",
    encoder: Annotated[str | None, typer.Option(help="In place of a model, a frozen backbone: timm:NAME.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights of that backbone, if not timm's own.")] = None,
    reject: Annotated[
        float | None, typer.Option(help="Answer 'none of these' where apt; the share of known images that may be refused.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with thumbnails.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    polarity: Polarity = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print lines of CSV on standard output.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what is on images from a few examples of each class. Exit 1 if an image could not be read."""
    from sosn.classify.batch import classify_files, expectation, find_images
    from sosn.classify.classifier import FewShotClassifier
    from sosn.cli.show import console, progress_bar, show_answers
    from sosn.errors import UsageError

    if as_csv and as_json:
        raise UsageError("--csv and --json are both given: choose one")
    if html is not None:
        from sosn.report.answers import check_page, write_answers

        check_page(html)
    files = find_images(images)
    classifier = FewShotClassifier(model, encoder, checkpoint, device, cast("Inverting", polarity)).fit(support)
    expected = expectation(classifier)
    console.print(expected, soft_wrap=True, markup=False)
    with progress_bar("classifying") as bar:
        told = classify_files(classifier, files, reject, html is not None, bar)
    if html is not None:
        console.print(f"page: {write_answers(html, support, told, expected)}", soft_wrap=True, markup=False)
    if as_json:
        document = {
            "model": classifier.model_, "image_type": classifier.image_type_, "calibrated": classifier.calibration_ is not None,
            "classes": dict(zip(classifier.classes_.tolist(), classifier.shots_, strict=True)), "reject": reject,
            "answers": [one.to_json() for one in told if one.answer], "failed": [one.to_json() for one in told if one.error],
        }  # fmt: skip
        print_json(document)
    elif as_csv:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["image", "answer", "likeliest", "probability", "error"])  # no answer: none of these
        for one in told:
            own = (
                ("", "", "")
                if one.answer is None
                else (one.answer.answer, one.answer.likeliest, f"{one.answer.probability:.4f}")
            )
            writer.writerow([one.image, *own, one.error])
        typer.echo(lines.getvalue(), nl=False)
    else:
        show_answers(told)
    failed = [one.error for one in told if one.error]
    for error in failed:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def export(
    model: Annotated[str, typer.Argument(help="A run folder, a weights file, or a shipped model.")],
    out: Annotated[Path, typer.Argument(help="Folder for describe.onnx, similarity.onnx and model.json.")],
    as_json: AsJson = False,
) -> None:
    r"""Write a model as ONNX, checked against PyTorch, for ONNX Runtime and others. Needs the extra sosn\[onnx]."""
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
    support: Annotated[Path, typer.Option(help="A folder that holds a folder of images for each class, 6 or more in each.")],
    model: Annotated[str, typer.Option(help="A shipped model, a run folder, or auto: by what the images are.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the tuned model, for --model of `sosn classify`.")] = Path("tuned"),
    steps: Annotated[int, typer.Option(help="Steps of each of the four tunings.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of the episodes.")] = 0,
    polarity: Polarity = "auto",
    as_json: AsJson = False,
) -> None:
    """Adapt a model to your classes; it is kept only if cross-validation on your own images says that it answers better."""
    from sosn.classify.tuning import tune_model
    from sosn.cli.show import progress_bar

    with progress_bar("tuning") as bar:
        name, result = tune_model(support, model, out, steps, seed, bar, cast("Inverting", polarity))
    if as_json:
        print_json({"model": name, "folder": str(out) if result.method else None, **result.to_json()})
        return
    shares = [f"{100 * right / result.pictures:.1f}%" for right in (result.before, result.after)]
    judged = f"{shares[0]} of {result.pictures} held-out images right before tuning {name!r}, {shares[1]} after"
    options = f"--model {out}" + (" --polarity as_is" if polarity == "as_is" else "")
    verdict = f"tuned model: {out}; use it with {options}" if result.method else "that is no clear gain: nothing is kept"
    typer.echo(f"{judged}; {verdict}")
