"""docs/speed.md: what `sosn bench` measured, and whether the engine trains the same model."""

from typing import Any

from pages.text import over_seeds, read, table
from sosn.bench import written_rate
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override

CONTENDERS = ("loop", "vectorised", "engine", "engine, in sosn train", "easyfsl")


def figures() -> dict[str, str]:
    gpu, cpu = (read(f"results/bench-{machine}.json") for machine in ("h200", "cpu"))
    first = gpu["training"][0]
    profile = {row["what"]: row for row in read("results/profile-h200.json")["rows"]}["evaluation with encoding, engine"]
    return {
        "machine.gpu": f"{gpu['machine']}, torch {gpu['versions']['torch']}",
        "machine.cpu": f"{cpu['machine']}, torch {cpu['versions']['torch']}",
        "shape": first["shape"],
        "faster": f"{first['ratios']['engine / vectorised']:.0f}",
        "share": f"{100 * first['share_of_floor']['engine']:.0f}",
        "busy": f"{profile['gpu_ms']:.1f} of {profile['ms']:.1f} ms",
        "training.gpu": _training(gpu),
        "training.cpu": _training(cpu),
        "evaluation": _evaluation([gpu, cpu]),
        "accuracy": accuracy_table(read("results/engine-accuracy.json")["rows"]),
    }


def _training(document: dict[str, Any]) -> str:
    lines = []
    for row in document["training"]:
        rates, memory = row["episodes_per_second"], row["peak_gib"]
        cells = [written_rate(rates[name]) if name in rates else "" for name in CONTENDERS]
        gib = [f"{memory[name]:.1f}" if memory.get(name) else "" for name in ("vectorised", "engine")]
        lines.append([row["shape"], *cells, *gib])
    head = ("episodes per second", "loop", "PyTorch", "engine", "`sosn train`", "easyfsl", "GiB, PyTorch", "GiB, engine")
    return table(head, lines)


def _evaluation(documents: list[dict[str, Any]]) -> str:
    lines = []
    for document in documents:
        for row in document["evaluation"]:
            took = [1e3 * row["seconds_per_episode"][f"{name}, whole evaluation"] for name in ("plain", "engine")]
            lines.append([document["machine"], row["shape"], *(f"{one:.1f}" for one in took), f"{took[0] / took[1]:.1f}×"])
    return table(("machine", "episode", "PyTorch, ms", "engine, ms", "faster"), lines)


def accuracy_table(rows: list[dict[str, Any]]) -> str:
    """Models trained with the engine beside models trained with PyTorch's layers, over seeds, by recipe and machine."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((" ".join((row["recipe"], *row["words"])), row["machine"]), []).append(row)
    lines = []
    for (recipe, machine), own in groups.items():
        precision = override(load_recipe(own[0]["recipe"]), own[0]["words"]).training.precision
        accuracies = [over_seeds([row[name]["accuracy"] for row in own]) for name in ("engine", "plain")]
        difference = over_seeds([row["difference"] for row in own])
        lines.append([f"`{recipe}`", precision, machine, str(len(own)), *accuracies, difference])
    return table(("recipe", "precision", "machine", "seeds", "engine, %", "PyTorch, %", "difference, points"), lines)
