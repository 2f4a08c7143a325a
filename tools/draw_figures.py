"""Draw the figures of the documentation: python tools/draw_figures.py"""

import json
from pathlib import Path

import torch
from matplotlib.figure import Figure

from sosn.data.dataset import open_bank
from sosn.power_norm import maxexp, maxexp_pm, sigme
from sosn.report.bench import save_bench_figure
from sosn.report.sheet import class_rows, contact_sheet

DOCS = Path(__file__).parent.parent / "docs"


def glyphs() -> None:
    """Twelve classes of generated characters, a row each."""
    sheet = contact_sheet(class_rows(open_bank("glyphs", "test"), 12, 20))
    sheet.resize((2 * sheet.width, 2 * sheet.height)).save(DOCS / "glyphs.png", optimize=True)


def power_norms(eta: float = 20.0, softness: float = 200.0) -> None:
    """The paper's Fig. 3: MaxExp, MaxExp(±) and SigmE, and their derivatives."""
    figure = Figure((12, 3.4), layout="constrained")
    values, slopes, soft = figure.subplots(1, 3)
    m = torch.linspace(-1, 1, 2001, dtype=torch.float64, requires_grad=True)
    positive = m[m >= 0]
    curves = {
        "MaxExp(±), ρ = 0.5": (m, maxexp_pm(m, eta)),
        "MaxExp": (positive, maxexp(positive, eta)),
        "SigmE, η′ = 0.75 η": (m, sigme(m, 0.75 * eta)),
    }
    for (label, (x, y)), style in zip(curves.items(), ("-", ":", "--"), strict=True):
        (slope,) = torch.autograd.grad(y.sum(), m, retain_graph=True)
        values.plot(x.detach(), y.detach(), style, label=label)
        slopes.plot(x.detach(), slope[m >= x.min()].detach(), style, label=label)
    for label, alpha in (("hard maximum", None), (f"soft maximum, α = {softness:.0f}", softness)):
        (slope,) = torch.autograd.grad(maxexp_pm(m, eta, 0.3, alpha).sum(), m)
        soft.plot(m.detach(), slope.detach(), label=label)
    values.set(title=f"Power norms, η = {eta:.0f}", xlabel="m")
    slopes.set(title="Derivatives", xlabel="m", xlim=(-0.5, 0.5))
    soft.set(title="Derivative of MaxExp(±), ρ = 0.3", xlabel="m", xlim=(-0.15, 0.15))
    for axes in (values, slopes, soft):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "power-norms.png", dpi=110)


def bench() -> None:
    """Rates on a GPU, from the file that `sosn bench --out` wrote."""
    document = json.loads((DOCS.parent / "results" / "bench-h200.json").read_text("utf-8"))
    save_bench_figure(document, DOCS / "bench-h200.png")


if __name__ == "__main__":
    glyphs()
    power_norms()
    bench()
