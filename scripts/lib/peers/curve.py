"""The picture of the curve, from JSON on stdin to an SVG: batch over what fits plainly against throughput. Run by the alternatives' own Python, which has matplotlib."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "koila", "svg.fonttype": "none", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402

STYLES = {"checkpointing": ("#999999", "s:"), "by_hand": ("#555555", "^--"), "koila01": ("#d95f02", "o-"), "koila": ("#1b6ca8", "o-")}


def draw(data, path):
    figure, axes = plt.subplots(1, len(data["curve"]), figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, (title, ways) in zip(axes, data["curve"].items()):
        for way, points in ways.items():
            colour, style = STYLES[way]
            known = [(float(factor), value) for factor, value in points.items() if value]
            axis.plot(*zip(*known), style, color=colour, label=data["titles"][way], markersize=4, linewidth=1.4)
        for name, factor, throughput in data["published"][title]:
            if throughput is None:
                axis.axvline(factor, color="#bbbbbb", linewidth=0.8, zorder=0)
                axis.annotate(name, (factor, 0.03), rotation=90, xytext=(2, 0), textcoords="offset points", fontsize=7, color="#777777")
            else:
                axis.plot([factor], [throughput], "*", color="#7b3294", markersize=10)
                axis.annotate(name, (factor, throughput), xytext=(6, -10), textcoords="offset points", fontsize=7, color="#7b3294")
        axis.axhline(1, color="black", linewidth=0.6)
        axis.set(title=title, xlabel="batch over the largest that fits plainly", xscale="log", ylim=(0, 1.4), xlim=(0.95, 18))
        axis.set_xticks([1, 2, 3, 4, 6, 8, 12, 16], labels=["1", "2", "3", "4", "6", "8", "12", "16"], minor=False)
        axis.minorticks_off()
    axes[0].set_ylabel("throughput over plain's")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=len(STYLES), fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])
