"""The plot of ``--plot``: two curves side by side, drawn without a screen."""

from pathlib import Path

from mmcache.cli.bench_curves import Curve

# Colours that are told apart by nearly everybody (Okabe and Ito), in the order of the lines.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73")

_INCHES, _DOTS_PER_INCH = (10, 4), 120


def draw(by_size: Curve, by_hit_rate: Curve, title: str, file: Path) -> None:
    """Write a picture file, of the kind that its name says, with cost by image size and throughput by hit rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, curve, marker in ((left, by_size, "o"), (right, by_hit_rate, "s")):
        for colour, (name, line) in zip(_COLOURS, curve.lines.items(), strict=False):
            axes.plot(curve.at, line, color=colour, marker=marker, label=name)
        axes.grid(alpha=0.3)
        axes.legend()
    left.set(xscale="log", yscale="log", xlabel="megapixels", ylabel="ms per picture", title="cost by image size")
    right.set(xlabel="hit rate", ylabel="pictures per second", ylim=(0, None), title="throughput by hit rate")
    figure.suptitle(title, fontsize="small")
    figure.savefig(file, dpi=_DOTS_PER_INCH)
