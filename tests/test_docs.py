"""The documentation shows the figures of results/, and its links and promises hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import write_docs
from pages import ablations, claims, mini_imagenet, omniglot, reproduction, speed, what_was_tried
from pages.text import fill
from sosn.method import METHODS
from sosn.reproduce.claims import CLAIMS, find
from sosn.reproduce.ledger import Entry, ledger_file
from sosn.reproduce.table import TABLES

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PLACES = re.compile(r"<!-- /([\w.-]+) -->")


@pytest.mark.slow
@pytest.mark.parametrize("page", write_docs.PAGES)
def test_a_page_shows_the_figures_of_the_results(page: str) -> None:
    assert write_docs.written(page) == (ROOT / page).read_text("utf-8"), "run python tools/write_docs.py"


def test_every_page_with_places_for_figures_is_written() -> None:
    with_places = {
        str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *DOCS) if PLACES.search(path.read_text("utf-8"))
    }
    assert with_places == write_docs.PAGES.keys()


def test_no_line_of_prose_begins_with_a_comment() -> None:
    """Markdown would end the paragraph there."""
    for page in (ROOT / "README.md", *DOCS):
        assert not re.search(r"^\s*([-*] )?<!-- [\w.-]+ -->.", page.read_text("utf-8"), re.MULTILINE), page.name


def test_figures_and_places_must_have_the_same_names() -> None:
    assert fill("a <!-- n -->1<!-- /n --> b", {"n": "2"}) == "a <!-- n -->2<!-- /n --> b"
    with pytest.raises(SystemExit, match=re.escape("no place for ['m'], no figure for ['n']")):
        fill("<!-- n --><!-- /n -->", {"m": "2"})


def test_the_readme_fits_on_a_hundred_lines_and_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    assert "\nmake demo " in text
    assert "\nmake test " in text
    results = text.split("<!-- results -->")[1].split("<!-- /results -->")[0]
    assert len(results.strip().splitlines()) <= 2 + 8


def test_linked_files_and_headings_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "results/ledger/README.md", *DOCS):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
            name, _, heading = link.partition("#")
            if "://" in link:
                continue
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name} links to {link}"
            if heading:
                assert heading in headings(target), f"{page.name} links to {link}"


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_on_methods_lists_what_each_method_declares() -> None:
    text = (ROOT / "docs/methods.md").read_text("utf-8")
    for name, method in METHODS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2] == f"`{method.own_loss}`"
        assert cells[3] == ("yes" if method.transductive else "no")
        assert cells[4].split(";")[0] == ("yes" if method.adapts else "no")


def test_the_demo_is_as_accurate_and_as_fast_as_promised() -> None:
    demo = json.loads((ROOT / "results/demo.json").read_text("utf-8"))
    assert demo["accuracy"] >= 0.9
    assert demo["episodes"] >= 150
    assert demo["seconds"] <= 240
    assert demo["pixels"] < demo["accuracy"] - 0.3


def test_the_ledger_holds_rows_that_exist_and_no_paths() -> None:
    rows = {row.name for table in TABLES.values() for row in table}
    for file in (ROOT / "results/ledger").rglob("*.json"):
        entry = json.loads(file.read_text("utf-8"))
        assert file == ledger_file(ROOT / "results/ledger", entry)
        assert (entry["quick"], entry["changed"]) == (False, [])
        trained = entry.get("of", entry)
        assert f"{trained['table']}/{trained['row']}" in rows
        assert not re.search(r'"/\w', json.dumps(entry))


def trained(row: str, seed: int, accuracy: float) -> Entry:
    """A made-up entry of a row of miniImageNet: 5-way episodes with an interval of 0.8 points."""
    planned = find("mini-imagenet", row)
    figures = [
        {"split": one.split, "protocol": one.protocol, "way": one.way, "shot": one.shot, "query": one.query,
         "statistics": statistics, "accuracy": accuracy + more, "ci95": 0.008, "episodes": 600, "fingerprint": "f",
         "ties": 0.01}
        for one in planned.measures if one.split == "val" for statistics, more in (("running", 0.0), ("batch", -0.02))
    ]  # fmt: skip
    return {
        "table": "mini-imagenet", "row": row, "seed": seed, "quick": False, "changed": [], "label": planned.label,
        "recipe": planned.resolve(seed).to_table(), "machine": {"device": "a GPU"}, "parameters": 227_665, "seconds": 90.0,
        "figures": figures, "missing": {},
    }  # fmt: skip


def lines(figures: dict[str, str], name: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in figures[name].strip().splitlines()[2:]]


def of(figures: dict[str, str], name: str, first: str) -> list[str]:
    """The cells of the line of a table that begins with this."""
    return next(cells for cells in lines(figures, name) if first in cells[:2])[1:]


def test_a_figure_has_the_interval_over_seeds_and_episodes() -> None:
    entries = [trained("sigme-5w1s", seed, 0.52 + seed / 100) for seed in range(3)] + [trained("none-5w1s", 0, 0.51)]
    figures = mini_imagenet.figures(entries)
    several = of(figures, "compared.5w1s", "`sigme-5w1s`")  # √(2.48² + 0.80²); 2.48 is Student's t of three seeds
    assert several == ["`sigme-5w1s`", "52.96 ± 0.83", "53.00 ± 2.61", "51.00 ± 2.61", "3", "227,665", "2"]
    assert of(figures, "compared.5w1s", "`none-5w1s`")[2:5] == ["51.00 ± 0.80", "49.00 ± 0.80", "1"]
    assert "`asinhe-5w1s`" in figures["not-run"]


def test_a_claim_holds_does_not_hold_or_is_open() -> None:
    def verdict(sigme: float, none: float, seeds: int) -> list[str]:
        pairs = (("sigme-5w1s", sigme), ("none-5w1s", none))
        entries = [trained(row, seed, accuracy) for seed in range(seeds) for row, accuracy in pairs]
        return of(reproduction.figures(entries), "claims", "SigmE beats no power normalisation, 1-shot")

    assert verdict(0.53, 0.51, 2) == ["+2.08", "+2.00 ± 1.13", "2", "holds"]  # √(0.80² + 0.80²)
    assert verdict(0.51, 0.51, 2) == ["+2.08", "+0.00 ± 1.13", "2", "does not hold"]  # the paper's +2.08 is outside
    assert verdict(0.52, 0.51, 2) == ["+2.08", "+1.00 ± 1.13", "2", "open"]
    assert verdict(0.49, 0.51, 2) == ["+2.08", "-2.00 ± 1.13", "2", "does not hold"]
    assert verdict(0.59, 0.51, 1) == ["+2.08", "+8.00 ± 1.13", "1", "open"]
    assert of(reproduction.figures([]), "claims", "SigmE beats AsinhE, 1-shot") == ["+0.86", "", "0", "not run"]


def test_the_claims_on_the_first_screen_are_comparisons_that_the_command_runs() -> None:
    compared = {one for claim in CLAIMS for one in claim.contrasts}
    assert {line.contrast for line in reproduction.LINES} <= compared


def test_runs_of_an_earlier_recipe_are_not_shown() -> None:
    rank = {"size": 84, "trained": True, "vectors": 361, "features": 64, "rank": 63.5, "full_rank": 0.9,
            "effective_rank": 20.0, "normalised_rank": 64.0, "normalised_effective_rank": 30.0}  # fmt: skip
    entry, earlier = trained("ablation-base", 0, 0.5), trained("ablation-base", 0, 0.5)
    earlier["recipe"]["training"]["steps"] = 7
    trained_row = {"table": "mini-imagenet", "row": "ablation-base"}
    experiment = {"table": "claims", "row": "rank-mini-imagenet-ablation-base", "seed": 0, "of": trained_row, "results": [rank]}
    shown = ablations.figures([entry, experiment | {"recipe": entry["recipe"]}])
    assert lines(shown, "eta") == [["100", "50.00 ± 0.80", "48.00 ± 0.80", "base row"]]
    assert lines(shown, "rank")[0][1:6] == ["`ablation-base`", "84²", "361", "63.5 of 64", "90"]
    hidden = ablations.figures([earlier, experiment | {"recipe": earlier["recipe"]}])
    assert (hidden["eta"], hidden["rank"]) == ("\nNot run.\n", "\nNot run.\n")


def test_long_trainings_are_shown_with_their_best_and_last_validation() -> None:
    entries = [trained("long-5w1s", 0, 0.52), trained("unchanged-5w1s", 0, 0.53)]
    entries[0]["validation"] = {"steps": [5000, 90_000, 200_000], "accuracy": [0.4, 0.55, 0.5]}
    figures = mini_imagenet.figures(entries)
    assert lines(figures, "validation") == [["`long-5w1s`", "55.0", "90,000", "50.0", "200,000"]]
    assert lines(figures, "differences") == [["`long-5w1s`", "`unchanged-5w1s`", "-1.00 ± 1.13", "1"]]


@pytest.mark.parametrize("page", [ablations, claims, mini_imagenet, omniglot, reproduction, what_was_tried])
def test_a_page_can_be_written_from_an_empty_ledger(page: Any) -> None:
    (name,) = (name for name, figures in write_docs.PAGES.items() if figures == page.figures)
    assert fill((ROOT / name).read_text("utf-8"), page.figures([]))


def test_the_best_of_many_evaluations_is_above_their_mean() -> None:
    assert reproduction.best_of(1, 0.0196) == pytest.approx(0.0, abs=1e-6)
    assert reproduction.best_of(2, 0.0196) == pytest.approx(0.5642, abs=1e-4)  # 1/√π standard errors, of 1 point each


def test_the_engine_is_compared_by_recipe_and_machine_over_seeds() -> None:
    def row(seed: int, engine: float, plain: float, machine: str = "a GPU", words: tuple[str, ...] = ()) -> dict[str, Any]:
        accuracies = {"engine": {"accuracy": engine}, "plain": {"accuracy": plain}, "difference": engine - plain}
        return {"recipe": "glyphs-5w1s", "words": list(words), "seed": seed, "machine": machine, **accuracies}

    gpu = [row(0, 0.92, 0.91), row(1, 0.93, 0.94), row(2, 0.94, 0.93)]
    rows = [*gpu, row(0, 0.9, 0.92, "a CPU"), row(0, 0.8, 0.7, words=("precision=bf16",))]
    assert lines({"table": speed.accuracy_table(rows)}, "table") == [  # Student's t of two degrees of freedom: 4.303 · s / √3
        ["`glyphs-5w1s`", "fp32", "a GPU", "3", "93.00 ± 2.48", "92.67 ± 3.79", "0.33 ± 2.87"],
        ["`glyphs-5w1s`", "fp32", "a CPU", "1", "90.00", "92.00", "-2.00"],
        ["`glyphs-5w1s precision=bf16`", "bf16", "a GPU", "1", "80.00", "70.00", "10.00"],
    ]
