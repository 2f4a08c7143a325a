"""docs/photos.md: shipped models, their confidence, answers to inverted drawings, galleries, and times."""

from typing import Any

from pages.text import accuracy, model_cards, read, table

DRAWN = {"paper": "dark on light", "negatives": "inverted", "a board": "simulated blackboard"}


def figures() -> dict[str, str]:
    cards, drawings, inverted, gallery, latency = (
        model_cards(),
        read("results/drawings.json"),
        read("results/background-omniglot.json"),
        read("results/gallery-omniglot.json"),
        read("results/latency-cpu.json"),
    )
    photos = read("results/photos.json")
    scale, engines = read("results/gallery-100k.json"), read("results/gallery-engines.json")
    count = {key: sum(one[key] for one in inverted["recognised"]) for key in ("drawings", "turned", "negatives_turned")}
    return {
        "models": _models(cards),
        "photos.test": _photos_test(photos["test"]),
        "photos.episodes": str(photos["test_episodes"]),
        "photos.validation": _photos_validation(photos["validation"]),
        "photos.sizes": _photos_sizes(photos["sizes"]),
        "photos.heads": _photos_heads(read("results/photo-heads.json")["accuracy"]),
        "photos.confidence": _photos_confidence(photos["test"]),
        "photos.encode": ", ".join(f"{ms:.0f} ms for Lite{size[-1]}" for size, ms in photos["speed"]["encode_ms"].items()),
        "photos.ms": f"{photos['speed']['ms']:.0f}",
        "confidence": _confidence(cards),
        "drawings": _drawings(drawings["rows"]),
        "drawings.sets": str(drawings["sets"]),
        "inverted": _inverted(inverted["rows"]),
        "inverted.tasks": str(inverted["tasks"]),
        "inverted.drawings": f"{count['drawings']:,}",
        "inverted.mistakes": f"{count['turned']:,}",
        "inverted.found": f"{count['negatives_turned']:,}",
        "gallery": _gallery(gallery["answers"], gallery["times"]),
        "gallery.machine": gallery["times"]["machine"],
        "scale": _scale(scale["rows"]),
        "scale.machine": scale["machine"],
        "engines": _engines(engines["rows"]),
        "engines.found": str(engines["found"]),
        "engines.machine": engines["machine"],
        "latency": _latency(latency["rows"]),
        "latency.machine": f"{latency['machine']}, torch {latency['versions']['torch']}",
    }


def _models(cards: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, card in cards.items():
        measured = f"{card['data']} {card['split']}, {card['way']}-way {card['shot']}-shot"
        lines.append([f"`{name}`", accuracy(card), measured, f"{card['parameters']:,}", f"{card['bytes'] / 1000:.0f}"])
    return table(("model", "accuracy, %", "measured on", "parameters", "kB"), lines)


SETS = {"flowers": "Flowers-102", "pets": "Oxford Pets", "grocery": "Grocery Store", "dtd": "DTD textures"}


def _photos_test(test: dict[str, Any]) -> str:
    shots = ("1", "2", "5", "10", "20")
    lines = [[title, *(_plus_minus(test[name][shot]["classifier"]) for shot in shots)] for name, title in SETS.items()]
    return table(("photos", *(f"{shot} shot{'s' * (shot != '1')}" for shot in shots)), lines)


def _plus_minus(figure: list[float] | None) -> str:
    return "" if figure is None else f"{figure[0]:.1f} ± {figure[1]:.1f}"


def _photos_validation(found: dict[str, Any]) -> str:
    """One row for each way to describe a photo; one and five shots of each set."""
    return _by_set(list(found.items()))


def _photos_sizes(found: dict[str, Any]) -> str:
    return _by_set([(f"Lite{size[-1]}, {name.lower()}", row) for size, rows in found.items() for name, row in rows.items()])


def _photos_heads(found: dict[str, Any]) -> str:
    return _by_set([("the shipped model" if name == "frozen" else name, row) for name, row in found.items()])


def _by_set(rows: list[tuple[str, Any]]) -> str:
    lines = [
        [name, *(" / ".join(_plus_minus(row.get(one, {}).get(shot)) for shot in ("1", "5")).strip(" /") for one in SETS)]
        for name, row in rows
    ]
    return table(("", *(f"{title}, 1 / 5 shots" for title in SETS.values())), lines)


def _photos_confidence(test: dict[str, Any]) -> str:
    lines = []
    for name, title in SETS.items():
        for shot in ("1", "5", "20"):
            row = test[name][shot]
            near, far = ("" if key not in row else f"{row[key]:.3f}" for key in ("auroc, same set", "auroc, other sets"))
            shares = ["known rejected", "same set rejected", "other sets rejected"]
            rejected = ["" if key not in row else f"{100 * row[key]:.1f}" for key in shares]
            lines.append([title, shot, f"{row['ece']:.3f}", f"{100 * row['wrong']:.0f}", near, far, *rejected])
    head = (
        "photos",
        "shots",
        "ECE",
        "mean probability of wrong answers, %",
        "AUROC, same set",
        "AUROC, other sets",
        "known rejected, %",
        "same set rejected, %",
        "other sets rejected, %",
    )
    return table(head, lines)


def _confidence(cards: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, card in cards.items():
        for size in card["calibration"]["sizes"]:
            if size["way"] > 1:  # a single class needs no probability
                shares = [f"{100 * size[key]:.1f}" for key in ("accuracy", "refused", "detected")]
                sizes = [str(size["way"]), str(size["shot"])]
                lines.append([f"`{name}`", *sizes, shares[0], f"{size['ece']:.3f}", f"{size['auroc']:.3f}", *shares[1:]])
    head = ("model", "classes", "shots", "right, %", "ECE", "AUROC", "known rejected, %", "unknown rejected, %")
    return table(head, lines)


def _drawings(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        ways = [row[name] for name in ("as_is", "auto")]
        sure = ["–" if one["sure_when_wrong"] is None else f"{100 * one['sure_when_wrong']:.0f}" for one in ways]
        model = "`glyphs`" if row["model"] == "glyphs" else "`auto` (`omniglot`)"
        lines.append(
            [model, row["drawings"], *(f"{100 * one['accuracy']:.1f} ± {100 * one['ci95']:.1f}" for one in ways), *sure]
        )
    return table(("model", "drawings", "`as_is`, %", "`auto`, %", "wrong, `as_is`, %", "wrong, `auto`, %"), lines)


def _inverted(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        shares = [f"{100 * row[name]:.1f}" for name in ("as_is", "auto")]
        lines.append([f"`{row['model']}`", DRAWN[row["shown"]], DRAWN[row["asked"]], *shares])
    return table(("model", "support", "queries", '`polarity="as_is"`, %', '`polarity="auto"`, %'), lines)


def _gallery(answers: dict[str, Any], times: dict[str, Any]) -> str:
    took = {(row["classes"], one["shortlist"]): one["ms_a_query"] for row in times["rows"] for one in row["shortlists"]}
    lines = []
    for row in answers["rows"]:
        for one in row["shortlists"]:
            if one["shortlist"] in (10, 50, None):
                shares = [_share(one, name) for name in ("recall", "accuracy")]
                milliseconds = f"{took[row['classes'], one['shortlist']]:.0f}"
                lines.append([f"{row['classes']:,}", str(one["shortlist"] or "all"), *shares, milliseconds])
    return table(("classes", "shortlist", "recall of the shortlist, %", "right, %", "ms per query"), lines)


def _scale(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        times = [
            f"{row['open_seconds']:.2f}",
            *(f"{row[name]:.0f}" for name in ("add_ms", "remove_ms", "shortlist_ms", "query_ms")),
        ]
        sizes = [f"{row['query_mb'] - row['start_mb']:.0f}", f"{row['bytes'] / 1e6:,.0f}"]
        lines.append(
            [f"{row['classes']:,}", f"{row['build_ms_per_class']:.1f}", *times, *sizes, f"{100 * row['kept_of_exact']:.1f}"]
        )
    head = (
        "classes",
        "build, ms per class",
        "open, s",
        "add, ms",
        "remove, ms",
        "shortlist, ms",
        "query, ms",
        "memory, MB",
        "disk, MB",
        "kept, %",
    )
    return table(head, lines)


def _engines(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        name = "the gallery's scan" if row["engine"] == "scan" else f"{row['engine']} {row.get('version', '')}".strip()
        if "error" in row:
            lines.append([f"{row['classes']:,}", name, "does not run", *[""] * 6])
            continue
        times = [f"{row['build_seconds']:.1f}", f"{row['open_seconds']:.2f}", f"{row['query_ms']:.1f}"]
        changes = [f"{row[name]:.1f}" for name in ("add_ms", "remove_ms")]
        lines.append([f"{row['classes']:,}", name, *times, f"{100 * row['recall']:.1f}", *changes, f"{row['mb']:.0f}"])
    return table(
        ("classes", "engine", "build, s", "open, s", "query, ms", "recall, %", "add, ms", "remove, ms", "memory, MB"), lines
    )


def _share(row: dict[str, Any], name: str) -> str:
    """A share of queries with its 95% interval, in per cent."""
    if name not in row:
        return ""
    low, high = (100 * end for end in row[f"{name}_ci95"])
    return f"{100 * row[name]:.1f} ({low:.1f}–{high:.1f})"


def _latency(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        times = [f"{row['ms']:.0f}", f"{row['onnx_ms']:.0f}", f"{row['cold_seconds']:.1f}"]
        lines.append([f"`{row['model']}`", f"{row['size']}²", *times])
    return table(("model", "image", "PyTorch, ms", "ONNX Runtime, ms", "first answer of a new process, s"), lines)
