"""The paper's claims, and the rows or experiments that test them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sosn.checkpoint.registry import load
from sosn.method.base import Statistics
from sosn.reproduce import mini_imagenet, omniglot
from sosn.reproduce.burstiness import burstiness
from sosn.reproduce.ledger import Entry, Gap, gap, of_row, read_entry, write_entry
from sosn.reproduce.ranks import ranks
from sosn.reproduce.row import Measure, Row, changes
from sosn.reproduce.table import TABLES, Job, Options, into_ledger, plan, run_jobs, select
from sosn.training import Progress, Silent
from sosn.training.run import Run, circumstances
from sosn.training.setup import open_split
from sosn.util.device import resolve_device
from sosn.util.files import file_digest

TABLE = "claims"
MINI, OMNIGLOT = "mini-imagenet", "omniglot"
IMAGES = 512  # of the rank experiment
EPISODES = 200  # of the burstiness experiment
SIZES = {MINI: (28, 42, 56, 84, 112), OMNIGLOT: (20, 28, 42, 56)}


def find(table: str, row: str) -> Row:
    """Return a row by its id."""
    return next(one for one in TABLES[table] if one.id == row)


@dataclass(frozen=True)
class Contrast:
    """The difference of two rows of a table. The measure is that of the first row for the protocol."""

    table: str
    first: str
    second: str
    protocol: str
    split: str = "val"

    @property
    def measure(self) -> Measure:
        measures = find(self.table, self.first).measures
        return next(one for one in measures if (one.protocol, one.split) == (self.protocol, self.split))

    @property
    def paper(self) -> float | None:
        """The difference of the rows in the paper, in points."""
        first, second = (find(self.table, row).paper(self.protocol) for row in (self.first, self.second))
        return round(first.accuracy - second.accuracy, 2) if first and second else None

    def ours(self, entries: Sequence[Entry], statistics: Statistics = "running") -> Gap | None:
        first, second = (of_row(entries, self.table, row) for row in (self.first, self.second))
        return gap(first, second, self.measure, statistics)


@dataclass(frozen=True)
class Experiment:
    """A measurement on the model that a row trained."""

    name: Literal["rank", "burstiness"]
    table: str
    row: str

    @property
    def id(self) -> str:
        return f"{self.name}-{self.table}-{self.row}"

    @property
    def file(self) -> str:
        """The file of its entry, in the run folder of the model."""
        return f"{self.name}.json"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the measurements that test it."""

    id: str
    claim: str
    quote: str
    contrasts: tuple[Contrast, ...] = ()
    experiments: tuple[Experiment, ...] = ()


def _mini(first: str, second: str, protocols: str = "5w1s 5w5s") -> tuple[Contrast, ...]:
    return tuple(Contrast(MINI, f"{first}-{p}", f"{second}-{p}", p) for p in protocols.split())


def _omniglot(first: str, second: str) -> tuple[Contrast, ...]:
    """Return contrasts on test classes for both partitions and all protocols, each with a separate model."""
    return tuple(
        Contrast(OMNIGLOT, f"{first}-{partition}-{protocol}", f"{second}-{partition}-{protocol}", protocol, "test")
        for partition in omniglot.PARTITIONS
        for protocol in omniglot.PROTOCOLS
    )


def _ablation(first: str, second: str = mini_imagenet.BASE) -> Contrast:
    return Contrast(MINI, first, second, "5w1s")


CLAIMS = (
    Claim(
        "sigme-asinhe", "SigmE is better than AsinhE by about 0.9 points.",
        "Table [of miniImageNet] shows that SigmE performs ∼0.9% better than AsinhE.",
        (*_mini("sigme", "asinhe"), *_mini("centred", "centred-asinhe"), *_omniglot("sigme", "asinhe")),
    ),
    Claim(
        "sigme-none", "SigmE is better than no power normalisation by 1.2 to 4.5 points.",
        "Tables [of miniImageNet and Open MIC] show 1.2–4.5% benefit of SigmE in SoSN(⊗)+SigmE over SoSN(⊗) without it.",
        (*_mini("sigme", "none"), *_mini("centred", "centred-none"), _ablation(mini_imagenet.BASE, "eta-1")),
    ),
    Claim(
        "permutations", "Three permutations add 1.8 points, with a similarity net for each 2.06.",
        "using 3 permutations fed to single and multiple similarity networks yields improvements by 1.8 and 2.06% for 84×84 "
        "images SoSN with no permutation",
        (*_mini("permutations", "sigme"), *_mini("streams", "sigme")),
    ),
    Claim(
        "average", "Averaging shots (⊗) is better than ⊗+F and ⊗+R.",
        "SoSN(⊗) outperforms Full Auto-correlation SoSN(⊗+F), Auto-correlation+concat. without average over Z support feature "
        "vectors denoted as SoSN(⊗+R), and other variants.",
        (*_mini("sigme", "full"), *_mini("sigme", "full-32"), *_mini("sigme", "ranked", "5w5s")),
    ),
    Claim(
        "rivals", "SoSN is better than Relation Net by 2.5 points at one shot and than Prototypical Net by 0.43 at five.",
        "For image size of 84×84 and 5-way 1-shot experiment, our SoSN model achieved 2.5% higher accuracy than Relation Net. "
        "Our SoSN also outperforms Prototypical Net by 0.43% accuracy on the 5-way 5-shot protocol.",
        (*_mini("sigme", "relation-net", "5w1s"), *_mini("sigme", "prototypical", "5w5s")),
    ),
    Claim(
        "all-rivals", "SoSN is better than all rivals, on both protocols of miniImageNet and all four of Omniglot.",
        "Table [of miniImageNet] demonstrates that our method outperforms other approaches on both evaluation protocols. […] "
        "despite the performance on the Omniglot dataset is saturated, our network can still outperform other few-shot "
        "learning methods on all evaluation protocols.",
        (
            *(one for rival in ("relation-net", "prototypical", "matching", "matching-plain", "maml", "meta-lstm")
              for one in _mini("sigme", rival)),
            *(one for rival in ("relation-net", "prototypical") for one in _omniglot("sigme", rival)),
        ),
    ),
    Claim(
        "larger-images", "Larger images give matrices of higher rank and better answers, with the similarity net unchanged.",
        "When we use 224×224 images to train SoSN, the accuracies on both protocols increase by ∼5% and ∼4%, respectively, "
        "which illustrates that SoSN benefits from larger image sizes as its second-order matrices […] become full-rank while "
        "the similarity net. needs no modifications.",
        (
            *(_ablation(mini_imagenet.BASE, f"size-{size}") for size in (28, 42, 56)),
            *(Contrast(OMNIGLOT, "size-56", f"size-{size}", "20w1s") for size in (20, 28, 42)),
            *_mini("sigme-224", "sigme"),
        ),
        (
            *(Experiment("rank", MINI, row) for row in (mini_imagenet.BASE, "size-28", "size-42", "size-56")),
            *(Experiment("rank", OMNIGLOT, f"size-{size}") for size in (20, 28, 42, 56)),
        ),
    ),
    Claim(
        "burstiness", "Power normalisation discards how often a texture repeats.",
        "Power Normalization […] can detect co-occurring responses of CNN filters and discards quantities of such responses "
        "which correlate with repeatable visual stimuli (e.g. variable areas of textures) which otherwise would introduce "
        "nuisance variability into representations.",
        (),
        tuple(Experiment("burstiness", MINI, row) for row in ("sigme-5w1s", "asinhe-5w1s", "none-5w1s")),
    ),
    Claim(
        "right-angles", "Training images are turned by right angles, on every dataset.",
        "We use images augmented by random rotations of 90, 180 and 270 degrees.",
        (
            _ablation("augmentation-right-angles-alone", "augmentation-none"),
            *(_ablation(f"augmentation-right-angles{how}") for how in ("", "-image", "-classes")),
        ),
    ),
)  # fmt: skip


@dataclass
class Claimed:
    """Claims, the entries of their rows and experiments, and the reasons why some were skipped."""

    claims: tuple[Claim, ...]
    entries: list[Entry] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"table": TABLE, "claims": [claim_json(claim, self.entries) for claim in self.claims], "skipped": self.skipped}


def claim_json(claim: Claim, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return a claim as JSON, with the paper's differences and ours, as fractions, and its experiments."""
    contrasts = []
    for one in claim.contrasts:
        ours, paper = one.ours(entries), one.paper
        contrast = {
            "table": one.table, "first": one.first, "second": one.second, "protocol": one.protocol, "split": one.split,
            "paper": None if paper is None else round(paper / 100, 4),
        }  # fmt: skip
        contrasts.append(contrast | ({"ours": ours.mean, "ci95": ours.ci95, "seeds": ours.seeds} if ours else {"ours": None}))
    wanted = {one.id for one in claim.experiments}
    experiments = [entry for entry in entries if entry["table"] == TABLE and entry["row"] in wanted]
    return {
        "claim": claim.id,
        "says": claim.claim,
        "quote": claim.quote,
        "contrasts": contrasts,
        "experiments": experiments,
    }


def needed(claims: Sequence[Claim]) -> list[Row]:
    """Return the rows that claims need, each once."""
    pairs = [(one.table, row) for claim in claims for one in claim.contrasts for row in (one.first, one.second)]
    pairs += [(one.table, one.row) for claim in claims for one in claim.experiments]
    return [find(*pair) for pair in dict.fromkeys(pairs)]


def reproduce_claims(out: Path, wanted: Options, progress: Progress | None = None) -> Claimed:
    """Run the unfinished rows that claims need, in run folders under `out`, then the experiments on their models."""
    progress = progress or Silent()
    claims = select(CLAIMS, wanted.rows)
    jobs = plan(needed(claims), out, wanted)
    entries, skipped = run_jobs(jobs, wanted, progress)
    for claim in claims:
        for experiment in claim.experiments:
            trained = [job for job in jobs if (job.row.table, job.row.id) == (experiment.table, experiment.row)]
            for job in trained:
                if job.entry_file.exists():  # otherwise it was skipped
                    entries.append(_experiment(experiment, job, wanted, progress))
                    into_ledger(wanted.ledger, entries[-1], job.folder / experiment.file, progress)
    return Claimed(claims, entries, skipped)


def _experiment(experiment: Experiment, job: Job, wanted: Options, progress: Progress) -> Entry:
    """Return the entry of an experiment on the model of a finished job. Measures it on validation images if needed."""
    file, trained = job.folder / experiment.file, read_entry(job.entry_file)
    if file.exists():
        return read_entry(file)
    progress.say(f"{experiment.id}, seed {job.recipe.seed}")
    device = resolve_device(job.recipe.training.device)
    method, bank = load(job.folder).to(device), open_split(job.recipe, "val").to(device)
    seed = job.recipe.validation.report_seed
    settings: dict[str, Any]
    if experiment.name == "rank":
        settings = {"sizes": SIZES[experiment.table], "images": 8 if wanted.quick else IMAGES}
        results = ranks(method, bank, settings["sizes"], settings["images"], seed)
    else:
        way, shot = job.recipe.val_way, job.recipe.val_shot
        settings = {"way": way, "shot": shot, "query": job.recipe.validation.val_query}
        settings["episodes"] = 4 if wanted.quick else EPISODES
        results = burstiness(method, bank, **settings, seed=seed)
    entry = {
        "table": TABLE, "row": experiment.id, "label": job.row.label, "of": {"table": job.row.table, "row": job.row.id},
        "seed": job.recipe.seed, "quick": wanted.quick, "changed": changes(wanted.overrides), "split": "val",
        **circumstances(), "recipe": trained["recipe"], "weights": file_digest(Run(job.folder).weights),
        "settings": settings | {"seed": seed}, "results": results,
    }  # fmt: skip
    write_entry(file, entry)
    return entry
