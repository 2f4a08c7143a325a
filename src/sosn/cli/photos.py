"""`sosn classify`, `sosn tune` and `sosn export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sosn.cli.common import AsJson, fail_with, print_json
from sosn.errors import UsageError

if TYPE_CHECKING:
    from sosn.classify.background import Inverting
    from sosn.classify.batch import Classified
    from sosn.classify.classifier import FewShotClassifier
    from sosn.classify.labelled_evaluation import LabelledEvaluation
    from sosn.classify.support import Label

Polarity = Annotated[
    str, typer.Option(help="auto: invert light-on-dark drawings for models trained on dark-on-light; as_is: invert nothing.")
]
EXAMPLES = "Folder with one subfolder of images per class, or a CSV with the columns path and label."
Model = Annotated[str, typer.Option(help="Shipped model or run folder; auto: choose for drawings or photos.")]


def classify(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="Images to classify.")],
    support: Annotated[Path | None, typer.Option(help=EXAMPLES)] = None,
    classifier: Annotated[Path | None, typer.Option(help="Use a saved classifier instead of --support.")] = None,
    model: Model = "auto",
    encoder: Annotated[str | None, typer.Option(help="Use a frozen backbone instead of a model: timm:NAME.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights of the backbone; default: timm's.")] = None,
    reject: Annotated[
        float | None, typer.Option(help="Allow 'none of these'; the share of known images that may be rejected.")
    ] = None,
    labelled: Annotated[
        bool, typer.Option("--labelled", help="IMAGE is a folder or CSV with classes, as --support: print the accuracy.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Save the classifier to this folder.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with thumbnails to this file.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    polarity: Polarity = "auto",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify images from a few examples of each class. Exits with 1 if an image could not be read."""
    from sosn.classify.batch import classify_files, expectation, judge_files
    from sosn.classify.classifier import FewShotClassifier
    from sosn.classify.saving import check_folder
    from sosn.cli.show import console, progress_bar
    from sosn.evaluation.calibration import check_reject

    if as_csv and as_json:
        raise UsageError("--csv and --json cannot be combined: choose one")
    changed = {"--model": model != "auto", "--encoder": encoder, "--checkpoint": checkpoint, "--polarity": polarity != "auto"}
    _check_source(support, classifier, [name for name, given in changed.items() if given])
    if reject is not None:
        check_reject(reject)
    if html is not None:
        from sosn.report.answers import check_page, write_answers

        check_page(html)
    if save is not None:
        check_folder(save)
    files, labels = _queries(images, labelled)
    if classifier is not None:
        fitted = FewShotClassifier.load(classifier, device)
    else:
        fitted = FewShotClassifier(model, encoder, checkpoint, device, cast("Inverting", polarity))
        fitted.fit(cast(Path, support), errors="skip")
    if save is not None:
        fitted.save(save)
    expected = expectation(fitted)
    console.print(expected, soft_wrap=True, markup=False)
    with progress_bar("classifying") as bar:
        results, evaluation = classify_files(fitted, files, reject, html is not None or as_json, bar), None
    if labels is not None:
        results, evaluation = judge_files(fitted, results, labels, reject)
    if html is not None:
        page = write_answers(html, fitted.sources_, results, expected, evaluation)
        console.print(f"page: {page}", soft_wrap=True, markup=False)
    _print_answers(fitted, results, reject, evaluation, "csv" if as_csv else "json" if as_json else "table")
    fail_with([one.error for one in results if one.error])


def _check_source(support: Path | None, classifier: Path | None, model_options: list[str]) -> None:
    if (support is None) == (classifier is None):
        raise UsageError("give either --support, a folder with one subfolder of images per class, or --classifier, a saved one")
    if classifier is not None and model_options:
        raise UsageError(f"a saved classifier has its own model: remove {model_options[0]}, or use --support")


def _queries(images: list[str], labelled: bool) -> "tuple[list[Path], list[Label] | None]":
    """Return the files to classify and, if they are labelled, their classes."""
    from sosn.classify.batch import find_images
    from sosn.data.listing import list_classes

    if not labelled:
        return find_images(images), None
    if len(images) > 1:
        raise UsageError("--labelled takes one folder with one subfolder of images per class, or one CSV (path, label)")
    files, labels = list_classes(images[0])
    return files, list(labels)


def _print_answers(
    classifier: "FewShotClassifier",
    results: "list[Classified]",
    reject: float | None,
    evaluation: "LabelledEvaluation | None",
    form: str,
) -> None:
    from sosn.cli.answers import answers_csv, answers_json, show_answers, show_evaluation
    from sosn.cli.show import console

    if evaluation and evaluation.unknown and reject is None:
        console.print(
            f"note: {evaluation.unknown} images are of classes without examples and count as mistakes: --reject allows "
            "'none of these'",
            soft_wrap=True,
        )
    if form == "json":
        print_json(answers_json(classifier, results, reject, evaluation))
    elif form == "csv":
        typer.echo(answers_csv(results, evaluation is not None), nl=False)
        if evaluation:
            console.print(str(evaluation), soft_wrap=True)
    elif evaluation:
        show_evaluation(evaluation)
    else:
        show_answers(results)


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
