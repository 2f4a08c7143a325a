"""Figures in the documentation are those of the files that commands wrote."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from sosn.method import METHODS
from sosn.reproduce.claims import find
from sosn.reproduce.ledger import ledger_file, read_ledger, write_entry
from sosn.reproduce.table import TABLES

ROOT = Path(__file__).parent.parent


PAGES = {"README.md", *(f"docs/{name}.md" for name in ("beyond", "data", "photos", "rivals", "speed"))}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_shows_the_measured_figures(page: str) -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "figures_in_docs.py"))["PAGES"]
    assert pages.keys() == PAGES
    fill = pages[page]
    text = (ROOT / page).read_text("utf-8")
    assert fill(text) == text, "run python tools/figures_in_docs.py"
    with pytest.raises(SystemExit, match="there is no place for"):
        fill(text.replace("<!-- ", "<!--"))


def test_the_engine_beside_the_layers_is_told_by_recipe_and_machine_over_seeds() -> None:
    def row(seed: int, engine: float, plain: float, machine: str = "a GPU", words: tuple[str, ...] = ()) -> dict[str, Any]:
        figures = {"engine": {"accuracy": engine}, "plain": {"accuracy": plain}}
        return {
            "recipe": "glyphs-5w1s",
            "words": list(words),
            "seed": seed,
            "machine": machine,
            "difference": engine - plain,
            **figures,
        }

    rows = [
        row(0, 0.92, 0.91),
        row(1, 0.93, 0.94),
        row(2, 0.94, 0.93),
        row(0, 0.9, 0.92, "a CPU"),
        row(0, 0.8, 0.7, words=("precision=bf16",)),
    ]
    lines = runpy.run_path(str(ROOT / "tools" / "pages" / "speed.py"))["engine_accuracy"]({"rows": rows}).splitlines()
    assert lines[-3:] == [  # Student's t of two degrees of freedom: 4.303 · s / √3
        "| glyphs-5w1s | fp32 | a GPU | 3 | 93.00 ± 2.48 | 92.67 ± 3.79 | +0.33 ± 2.87 | -1.00 to +1.00 | 0.67 |",
        "| glyphs-5w1s | fp32 | a CPU | 1 | 90.00 | 92.00 | -2.00 | -2.00 to -2.00 |  |",
        "| glyphs-5w1s precision=bf16 | bf16 | a GPU | 1 | 80.00 | 70.00 | +10.00 | +10.00 to +10.00 |  |",
    ]


def test_the_page_on_the_reproduction_shows_the_ledger() -> None:
    maker = runpy.run_path(str(ROOT / "tools" / "reproduction_page.py"))
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert maker["page"](read_ledger(ROOT / "results" / "ledger")) == text, "run python tools/reproduction_page.py"


def test_the_ledger_holds_results_of_rows_that_exist_and_no_paths() -> None:
    rows = {row.name for table in TABLES.values() for row in table}
    for file in (ROOT / "results" / "ledger").rglob("*.json"):
        entry = json.loads(file.read_text("utf-8"))
        assert file == ledger_file(ROOT / "results" / "ledger", entry)
        assert (entry["quick"], entry["changed"]) == (False, [])
        of = entry.get("of", entry)
        assert f"{of['table']}/{of['row']}" in rows
        assert not re.search(r'"/\w', json.dumps(entry))


def made_up(row: str, seed: int, accuracy: float) -> dict[str, Any]:
    planned = find("mini-imagenet", row)
    figures = [
        {"split": one.split, "protocol": one.protocol, "way": one.way, "shot": one.shot, "query": one.query,
         "statistics": statistics, "accuracy": accuracy + more, "ci95": 0.008, "episodes": 600, "fingerprint": "f",
         "ties": 0.0}
        for one in planned.measures if one.split == "val" for statistics, more in (("running", 0.0), ("batch", -0.02))
    ]  # fmt: skip
    return {
        "table": "mini-imagenet", "row": row, "seed": seed, "quick": False, "changed": [], "label": planned.label,
        "recipe": planned.resolve(seed).to_table(), "machine": {"device": "a GPU"}, "parameters": 227_665, "seconds": 90.0,
        "figures": figures, "missing": {},
    }  # fmt: skip


def test_the_page_on_the_reproduction_is_made_from_any_ledger(tmp_path: Path) -> None:
    maker = runpy.run_path(str(ROOT / "tools" / "reproduction_page.py"))
    entries = [made_up("sigme-5w1s", seed, 0.52 + seed / 100) for seed in range(3)]
    entries += [made_up("none-5w1s", seed, 0.51) for seed in range(3)] + [made_up("asinhe-5w1s", 0, 0.4)]
    entries += [made_up(row, 0, accuracy) for row, accuracy in (("ablation-base", 0.5), ("eta-1", 0.45), ("eta-N", 0.51))]
    entries[-1]["recipe"]["training"]["steps"] = 7
    entries[6]["recipe"]["training"]["steps"] = 7
    entries[3]["figures"][0]["ties"] = 0.0314
    rank = {"size": 84, "trained": True, "vectors": 361, "features": 64, "rank": 63.5, "full_rank": 0.9}
    rank |= {"effective_rank": 20.04, "normalised_rank": 64.0, "normalised_effective_rank": 30.0}
    of = {"table": "mini-imagenet", "row": "ablation-base"}
    entries.append({"table": "claims", "row": "rank-mini-imagenet-ablation-base", "seed": 0, "of": of, "results": [rank]})
    for one in entries:
        write_entry(ledger_file(tmp_path / "ledger", one), one)
    maker["write"](tmp_path / "ledger", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "| SoSN(⊗)+SigmE ★ | `sigme-5w1s` | val | 52.96 ± 0.83 | 53.00 ± 2.48 (0.80) | 51.00 ± 2.48 (0.80) | 3 |" in text
    assert "| 40.00 (0.80) | 38.00 (0.80) | 1 | 227,665 | 1.5 | an earlier recipe |" in text
    assert "| 51.00 ± 0.00 (0.80) | 49.00 ± 0.00 (0.80) | 3 | 227,665 | 1.5 | 3.1% ties |" in text
    assert "`asinhe-5w1s` | miniImageNet" not in text  # rows that changed since are not compared
    assert "| N | 51.00" not in text
    assert "| *mini*ImageNet, 84²: the paper | test | batch | 52.96 | 68.63 |  |  |" in text
    assert "| its model here | val | batch | 51.00 ± 2.61 |  |  |  |" in text  # √(2.48² + 0.80²)
    assert "| its model here | val | running | 53.00 ± 2.61 |  |  |  |" in text
    assert "| our best recipe, Conv-4 | val | running |  |  |  |  |" in text
    assert "Of full rank at the size that a model was trained at: miniImageNet 84²: 90%." in text
    none = "| SigmE is better than no power normalisation by 1.2 to 4.5 points | miniImageNet |"
    assert f"{none} +2.08 | +2.00 to +5.00 | +2.00 to +5.00 | 2 of 5 | 1 not told apart, 1 – (one seed) |" in text
    assert "So far 6 of" in text
    assert "need 3 seeds: 1 of" in text
    assert "| `none-5w1s` | miniImageNet | 5w1s | val | +2.08 | +2.00 ± 2.73 | +2.00 ± 2.73 | 3 |  | not told apart |" in text
    assert "| 1 | 45.00 (0.80) | 43.00 (0.80) | -5.00 ± 1.13 | 1 |" in text
    assert "| miniImageNet | `ablation-base` | 0 | **84** | 361 | 63.5 of 64 | 90 | 20.0 | 64.0 | 30.0 |" in text
    assert (tmp_path / "ablations.png").stat().st_size > 1000
    assert "rows not run" in text
    assert "rows not run" in maker["page"]([])
    fewer = maker["page"](entries[:5] + entries[6:])  # a seed that one row alone has
    assert "+2.08 | +1.50 ± 6.45 | +1.50 ± 6.45 | 2 | +2.00 | not told apart |" in fewer
    clear = maker["page"]([made_up("sigme-5w5s", 0, 0.7), made_up("none-5w5s", 0, 0.6), *entries[1:3], *entries[4:6]])
    assert f"{none} +1.92 to +2.08 | +2.50 to +10.00 | +2.50 to +10.00 | 2 of 5 | 1 not told apart, 1 – (one seed) |" in clear
    assert "| its model here | val | running | 53.50 ± 6.40 (2 of 3 seeds) | 70.00 ± 0.80 (1 of 3 seeds) |  |  |" in clear
    apart = [made_up(row, seed, accuracy) for seed in (0, 1) for row, accuracy in (("sigme-5w5s", 0.6), ("none-5w5s", 0.7))]
    assert f"{none} +1.92 | -10.00 | -10.00 | 1 of 5 | 1 behind (less than in the paper) |" in maker["page"](apart)
    for one in apart:
        one["figures"][0]["accuracy"] *= -1
    assert f"{none} +1.92 | +10.00 | +10.00 | 1 of 5 | 1 ahead (more than in the paper) |" in maker["page"](apart)


def test_rows_of_other_settings_and_of_the_papers_budget_are_held_against_their_own(tmp_path: Path) -> None:
    maker = runpy.run_path(str(ROOT / "tools" / "reproduction_page.py"))
    figures = {"sigme-5w1s": 0.5, "unchanged-5w1s": 0.53, "long-5w1s": 0.52, "long-centred-5w1s": 0.51, "none-5w5s": 0.6}
    entries = {row: made_up(row, 0, accuracy) for row, accuracy in figures.items()}
    entries["long-5w1s"]["validation"] = {"steps": [5000, 90_000, 200_000], "accuracy": [0.4, 0.55, 0.5]}
    for one in (*entries.values(), made_up("sigme-5w1s", 1, 0.48)):
        write_entry(ledger_file(tmp_path / "ledger", one), one)
    maker["write"](tmp_path / "ledger", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    differences = "Differences of the same seeds, points ± 95%, of one seed over episodes:"  # √(0.80² + 0.80²)
    assert f"{differences} `unchanged-5w1s` − `sigme-5w1s` +3.00 ± 1.13 (means of all seeds +4.00).\n" in text
    longer = "`long-5w1s` − `sigme-5w1s` +2.00 ± 1.13 (means of all seeds +3.00), `long-5w1s` − `unchanged-5w1s` -1.00 ± 1.13"
    assert f"{differences} {longer}, `long-centred-5w1s` − `long-5w1s` -1.00 ± 1.13.\n" in text
    assert "training episodes: `long-5w1s` 55.0% after 90,000 and 50.0% after 200,000. Figures" in text
    assert text.count("](long.png)") == 1
    assert (tmp_path / "long.png").stat().st_size > 1000
    running = (
        "| its model here, best of 40 checkpoints in 200,000 episodes | val | running | 52.00 ± 0.80 (one training) |  |  |  |"
    )
    assert running in text
    assert "long.png" not in maker["page"]([entries["long-centred-5w1s"]])  # an entry from before validation was kept


def test_experiments_on_models_of_an_earlier_recipe_are_not_shown() -> None:
    maker = runpy.run_path(str(ROOT / "tools" / "reproduction_page.py"))
    results = [{"size": 84, "trained": True, "vectors": 361, "features": 64, "rank": 63.5, "full_rank": 0.9,
                "effective_rank": 20.0, "normalised_rank": 64.0, "normalised_effective_rank": 30.0}]  # fmt: skip
    trained = made_up("ablation-base", 0, 0.5)
    of = {"table": "mini-imagenet", "row": "ablation-base"}
    name = {"table": "claims", "row": "rank-mini-imagenet-ablation-base"}
    experiment = {**name, "seed": 0, "of": of, "results": results, "recipe": trained["recipe"]}
    assert "miniImageNet 84²: 90%" in maker["page"]([trained, experiment])
    earlier = {**trained["recipe"], "training": trained["recipe"]["training"] | {"steps": 7}}
    assert "miniImageNet 84²: 90%" not in maker["page"]([trained, experiment | {"recipe": earlier}])


def test_the_page_on_rivals_names_every_method_and_says_what_it_declares() -> None:
    text = (ROOT / "docs" / "rivals.md").read_text("utf-8")
    for name, method in METHODS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2] == f"`{method.own_loss}`"
        assert cells[3] == ("yes" if method.transductive else "no")
        assert cells[4].split(";")[0] == ("yes" if method.adapts else "no")


def test_files_that_the_documentation_links_to_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_measured_demo_keeps_its_promise() -> None:
    demo = json.loads((ROOT / "results" / "demo.json").read_text("utf-8"))
    assert demo["accuracy"] >= 0.9
    assert demo["episodes"] >= 150
    assert demo["seconds"] <= 240
    assert demo["pixels"] < demo["accuracy"] - 0.3
