"""The demo's figures in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._saving import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .study import Study

INK, PALE, PASS, MISS = "#22313f", "#c9d3dc", "#2a9d8f", "#c8553d"
TITLE: dict[str, Any] = {"loc": "left", "color": INK, "fontsize": 11, "fontweight": "bold"}
# How a training is drawn: the first two coincide, so the first is a broad band and the second a thin line on it.
STYLES: dict[str, dict[str, Any]] = {
    "torch AdamW": {"color": "#b8c4d6", "linewidth": 6.0},
    "fused EMA AdamW": {"color": "#1d4e89", "linewidth": 1.6},
    "8-bit AdamW + lazy Adam": {"color": "#f08a24", "linewidth": 1.6},
}


def draw(study: Study, path: Path) -> None:
    """Writes the picture as PNG. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.8), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        6, 2, width_ratios=(1.75, 1), left=0.065, right=0.965, top=0.86, bottom=0.085, hspace=2.6, wspace=0.42
    )
    loss_axes = figure.add_subplot(grid[:4, 0])
    gap_axes = figure.add_subplot(grid[4:, 0], sharex=loss_axes)
    _draw_losses(loss_axes, study.figures)
    _draw_gaps(gap_axes, study.figures)
    _draw_state(figure.add_subplot(grid[:3, 1]), study.figures)
    _draw_checks(figure.add_subplot(grid[3:, 1]), study)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(PALE)
        axes.tick_params(colors=INK, labelsize=9, color=PALE)
    figures = study.figures
    figure.text(0.065, 0.945, "anyfuse demo", fontsize=17, fontweight="bold", color=INK)
    figure.text(
        0.065, 0.912,
        f"a Llama of {figures['parameters'] / 1e6:.1f} M parameters learns Python's manual, {figures['steps']} steps, "
        f"seed {figures['seed']}",
        fontsize=10, color="#5c6b7a",
    )  # fmt: skip
    write_file(path, lambda file: figure.savefig(file, format="png"))


def _draw_losses(axes: Axes, figures: dict[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, run in figures["trainings"].items():
        steps, losses = zip(*run["curves"]["validation_loss"], strict=True)
        axes.plot(steps, losses, label=f"{name}   {losses[-1]:.3f}", solid_capstyle="round", **STYLES[name])
    seen = smooth(figures["trainings"]["fused EMA AdamW"]["curves"]["training_loss"])
    axes.plot(range(1, len(seen) + 1), seen, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), label="on training text")
    ema = figures["trainings"]["fused EMA AdamW"]["ema_validation_loss"]
    axes.plot(
        figures["steps"], ema,
        marker="*", markersize=11, color="#1d4e89", markeredgecolor="white", linestyle="none", clip_on=False, zorder=5,
        label=f"EMA weights   {ema:.3f}",
    )  # fmt: skip
    axes.set_title("Loss on held-out text, nats a token", **TITLE)
    axes.legend(facecolor="white", edgecolor="none", framealpha=1, fontsize=9, labelcolor=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.set_xlim(0, figures["steps"] * 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelbottom=False)


def _draw_gaps(axes: Axes, figures: dict[str, Any]) -> None:
    yardstick, *others = figures["trainings"].items()
    base = [loss for _, loss in yardstick[1]["curves"]["validation_loss"]]
    for name, run in others:
        steps, losses = zip(*run["curves"]["validation_loss"], strict=True)
        gaps = [100 * (loss / other - 1) for loss, other in zip(losses, base, strict=True)]
        axes.plot(steps, gaps, marker="o", markersize=3.5, **STYLES[name])
    axes.axhline(0, color=STYLES[yardstick[0]]["color"], linewidth=3, zorder=0)
    axes.margins(y=0.2)
    axes.set_title("Apart from torch AdamW, %", **TITLE)
    axes.set_xlabel("step", fontsize=9, color=INK)


def _draw_state(axes: Axes, figures: dict[str, Any]) -> None:
    runs = figures["trainings"]
    widths = [run["state_bytes_per_parameter"] for run in runs.values()]
    labels = [name.replace(" + ", "\n+ ") for name in runs]
    bars = axes.barh(labels, widths, color=[STYLES[name]["color"] for name in runs], height=0.62)
    axes.bar_label(bars, fmt="%.1f", padding=4, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(widths) * 1.15)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("Optimizer state, bytes a parameter", **TITLE)


def _draw_checks(axes: Axes, study: Study) -> None:
    """Each figure as a part of its limit."""
    labels = [check.name.replace(" against ", "\nagainst ").replace(" + ", "\n+ ") for check in study.checks]
    shares = [min(check.value / check.limit, 1.0) for check in study.checks]
    axes.barh(labels, [1.0] * len(labels), color="#eef2f5", height=0.5)
    axes.barh(labels, shares, color=[PASS if check.passed else MISS for check in study.checks], height=0.5)
    for row, check in enumerate(study.checks):
        text = f"{check.value:.3%} of {check.limit:.0%}"
        axes.text(0.985, row, text, ha="right", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("Losses apart, and the limit", **TITLE)


def smooth(values: list[float]) -> list[float]:
    """A running mean over about a twentieth of the values."""
    keep = 1 - 1 / max(1.0, len(values) / 20)
    result = [values[0]]
    for value in values[1:]:
        result.append(keep * result[-1] + (1 - keep) * value)
    return result
