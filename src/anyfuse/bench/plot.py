"""A picture of a results file: one small chart a case, a bar for each side, a line where the memory ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._saving import write_file


def draw(report: dict[str, Any], path: Path) -> None:
    """Writes the plot of a report; the suffix chooses the format. ValueError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'anyfuse[bench]'") from error
    results = report["results"]
    heights = [1.0 + 0.28 * (1 + sum(peer["times"] is not None for peer in result["peers"])) for result in results]
    figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(len(results), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, result in zip(grid[:, 0], results, strict=True):
        _bars(axes, result)
    machine = report["machine"]
    figure.suptitle(
        f"{machine['cpu']}, {report['settings']['threads']} threads, {machine['target']}, {report['date'][:10]}",
        fontsize=9,
    )
    path = path if path.suffix else path.with_suffix(".png")
    write_file(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=120))


def _bars(axes: Any, result: dict[str, Any]) -> None:
    measured = [peer for peer in result["peers"] if peer["times"] is not None]
    names = ["anyfuse", *(peer["name"] for peer in measured)]
    times = [result["ours"]["ns_per_unit"], *(peer["times"]["ns_per_unit"] for peer in measured)]
    ratios = [1.0, *(peer["ratio"]["median"] for peer in measured)]
    noisy = [name in result["noisy"] for name in names]
    colors = ["#2a6f97" if i == 0 else "#a9a9a9" for i in range(len(names))]
    bars = axes.barh(names, times, color=colors, hatch=["//" if mark else "" for mark in noisy], edgecolor="white")
    axes.bar_label(
        bars, [f" {time:.3g} ns   {ratio:.2f}×" for time, ratio in zip(times, ratios, strict=True)], fontsize=7
    )
    if result["stream"] is not None:
        axes.axvline(
            result["stream"]["ns_per_unit"], color="#c1121f", linestyle="--", linewidth=1, label="memory roofline"
        )
        axes.legend(fontsize=7, loc="lower right", frameon=False)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    mark = "" if result["conclusive"] else "   (hatched: too noisy to conclude)"
    axes.set_title(f"{result['operator']}: {result['case']}, ns a {result['unit']}{mark}", fontsize=8, loc="left")
