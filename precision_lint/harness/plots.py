"""Plots of sweeps as SVG that follows the colours of the page around it."""

from __future__ import annotations

import io
import re
from typing import Any

from precision_lint.harness.sweep import BROKEN, DTYPES, Sweep

INK = "#010203"
"""Stands for the colour of the page's text until the SVG is in the page."""
COLORS = {"float16": "#d1495b", "bfloat16": "#d98e04", "float32": "#2a9d8f"}
"""Told apart on white and on black, and by people who confuse red and green."""
MARKERS = {"float16": "o", "bfloat16": "s", "float32": "^"}
FLOOR, TOP = 1e-9, 1e2
"""Errors are drawn between these; what is broken is drawn on a line of its own above."""


def draw(sweep: Sweep, name: str) -> str:
    """One SVG: relative error against magnitude, before the fix on the left, after on the right.

    ``name`` keeps its ids apart from those of other plots of the page.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10, "font.family": "sans-serif",
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
        "legend.frameon": False,
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
        for axis, text in zip(axes, ("before", "after"), strict=True):
            _one(axis, sweep, text)
        axes[0].set_ylabel("relative error")
        axes[1].legend(
            *axes[0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )
        figure.supxlabel(sweep.axis, fontsize=10, color=INK)
        target = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
        pyplot.close(figure)
    return _inline(target.getvalue(), name)


def _one(axis: Any, sweep: Sweep, text: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(FLOOR / 2, TOP * 30)
    axis.set_yticks([1e-9, 1e-6, 1e-3, 1.0, TOP * 6], ["0", "1e-6", "1e-3", "1", "broken"])
    axis.minorticks_off()
    axis.axhline(TOP, color=INK, linewidth=0.5, alpha=0.4)
    axis.grid(axis="y", color=INK, alpha=0.12, linewidth=0.5)
    axis.set_title(f"{text} the fix", fontsize=10, color=INK)
    for place, dtype in enumerate(DTYPES):
        heights = [
            None if error is None
            else TOP * (3.0 + 4.0 * place) if error == BROKEN
            else min(max(float(error), FLOOR), TOP / 2)
            for error in sweep.errors[dtype][text]
        ]  # fmt: skip
        points = [
            (step, height)
            for step, height in zip(sweep.steps, heights, strict=True)
            if height is not None
        ]
        axis.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=COLORS[dtype],
            marker=MARKERS[dtype],
            markersize=3.5,
            linewidth=1.2,
            label=dtype,
        )


def _inline(svg: str, name: str) -> str:
    """An SVG without what only a file of its own needs, its ids prefixed, its ink the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace(INK, "currentColor")
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 role="img"', svg, count=1).replace(
        "<svg ", '<svg class="plot" ', 1
    )
