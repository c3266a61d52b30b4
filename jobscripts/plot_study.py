#!/usr/bin/env python3
"""plot_study.py FOLDER: the plots of a study, from the tables that `fourfold report FOLDER` wrote there.

FOLDER/plots gets each plot as PNG and SVG: speed-up and efficiency over ranks with the ideal line, phases of a step,
loss over steps and over time, memory of a rank, bytes by axis. Oversubscribed points have no speed-up, and virtual
ones are drawn dashed and say so. Wants matplotlib (Debian: python3-matplotlib).
Exit codes: 0 done, 1 no matplotlib, 2 no such tables.
"""

import csv
import json
import os
import sys
from pathlib import Path

try:
    import matplotlib
except ImportError:
    # The first python3 of the path may be one that knows nothing of the system's packages.
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system, *sys.argv])
    print("plot_study.py: no matplotlib for this python3: apt-get install python3-matplotlib", file=sys.stderr)
    sys.exit(1)

matplotlib.use("Agg")
from matplotlib import lines, pyplot, ticker  # noqa: E402

COLOURS = ["#2f6db5", "#d1662f", "#3a8f5c", "#a04a9b", "#b8901f", "#4aa3b5", "#8a5a44", "#7a7a7a", "#c23b55", "#5b5fc7",
           "#7d9b2f"]
PHASES = ["input", "forward", "backward", "gradient_sum", "norm", "update"]
MEMORY = ["parameters", "gradients", "optimizer", "activations", "buffers"]
MARKS = "osD^vP*X<>h"
STYLES = [":", "--", "-.", "-", (0, (6, 1)), (0, (1, 3))]
SAME = 1e-5  # relative: losses that lie on each other
MOST_CURVES = 8
WALL = {"wall": "", "virtual": " (virtual)", "oversubscribed": " (oversubscribed)"}

matplotlib.rcParams.update({
    "figure.dpi": 120, "savefig.dpi": 160, "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 9,
    "svg.fonttype": "none", "svg.hashsalt": "fourfold", "font.family": "DejaVu Sans"})


def number(text):
    try:
        return float(text)
    except ValueError:
        return float("nan")


def known(value):
    return value == value


def read(name):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def save(figure, name):
    for ending in ("png", "svg"):
        # Dates would make the same study's files differ.
        metadata = {"Date": None} if ending == "svg" else None
        figure.savefig(plots / f"{name}.{ending}", bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)


def scaled(largest, units, base=1000.0):
    """The unit in which the largest value reads best, and what to divide by."""
    factor = 1.0
    for unit in units[:-1]:
        if largest < base * factor:
            return unit, factor
        factor *= base
    return units[-1], factor


def seconds_unit(largest):
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if largest >= factor:
            return unit, factor
    return "ns", 1e-9


def ranks_text(count):
    return f"{count} rank" + ("s" if count != "1" else "")


def shown(point):
    """The name of a point or run in a legend: the strategy `deck` is the deck as it is."""
    name = point["point"]
    return name[6:] if name.startswith("deck, ") else name


def legend_beside(axes, entries, **given):
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=1 if entries <= 16 else 2, **given)


def curves_of(points):
    """Points of one name and clock as curves over ranks, two points or more each."""
    curves = {}
    for point in points:
        if known(number(point["speed_up"])):
            curves.setdefault((shown(point), point["clock"]), []).append(point)
    return {key: sorted(curve, key=lambda p: int(p["ranks"])) for key, curve in curves.items() if len(curve) > 1}


def plot_scaling(points, title):
    curves = curves_of(points)
    if not curves:
        return
    names = list(dict.fromkeys(name for name, _ in curves))
    for column, name, label in (("speed_up", "1_speed_up", "speed-up"), ("efficiency", "2_efficiency", "efficiency")):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
        every = sorted({int(p["ranks"]) for curve in curves.values() for p in curve})
        bases = {int(p["base_ranks"]) for curve in curves.values() for p in curve}
        for base in sorted(bases):
            ranks = [r for r in every if r >= base]
            ideal = [r / base for r in ranks] if column == "speed_up" else [100.0] * len(ranks)
            axes.plot(ranks, ideal, color="#555555", linestyle=":", linewidth=1.4,
                      label="ideal" if base == min(bases) else None)
        for (curve_name, clock), curve in curves.items():
            index = names.index(curve_name)
            values = [number(p[column]) * (1 if column == "speed_up" else 100) for p in curve]
            axes.plot([int(p["ranks"]) for p in curve], values, color=COLOURS[index % len(COLOURS)],
                      marker=MARKS[index % len(MARKS)], markersize=5.5, linewidth=1.7,
                      linestyle="--" if clock == "virtual" else "-",
                      markerfacecolor="white" if clock == "virtual" else None, label=curve_name + WALL[clock],
                      clip_on=column == "speed_up", zorder=3)  # efficiencies near 0 lie on the axis
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(ticker.FixedLocator(every))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel("ranks")
        if column == "speed_up":
            axes.set_yscale("log", base=2)
            drawn = [number(p[column]) for curve in curves.values() for p in curve] + [max(every) / min(bases)]
            if max(drawn) < 4 * min(drawn):  # powers of two alone would be two ticks
                axes.yaxis.set_major_locator(ticker.LogLocator(base=2, subs=(1.0, 1.25, 1.5, 1.75)))
            axes.yaxis.set_minor_locator(ticker.NullLocator())
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:.3g}"))
            axes.set_ylabel(f"speed-up against {' or '.join(map(ranks_text, map(str, sorted(bases))))}")
        else:
            axes.set_ylim(0, max(105.0, 1.05 * max(number(p[column]) * 100 for c in curves.values() for p in c)))
            axes.set_ylabel("efficiency [%]")
        axes.set_title(f"{title}: {label}")
        legend_beside(axes, len(curves) + 1)
        save(figure, name)


def visible(parts):
    """Parts with something in them; what nobody could see is drawn together. nan: nothing."""
    parts = {label: [v if known(v) else 0.0 for v in values] for label, values in parts.items()}
    parts = {label: values for label, values in parts.items() if any(values)}
    longest = max((sum(values) for values in zip(*parts.values())), default=0.0)
    thin = [label for label, values in parts.items() if max(values) < 0.004 * longest]
    if len(thin) > 1:
        together = [sum(values) for values in zip(*(parts[label] for label in thin))]
        parts = {label: values for label, values in parts.items() if label not in thin}
        parts["the rest:\n" + ",\n".join(label.removeprefix("waiting: ") for label in thin)] = together
    return parts


def axis_colour(points, axis):
    """The same in every plot of a report; the first is left to computing."""
    axes = sorted({column.split(":", 1)[1] for column in points[0] if column.startswith(("bytes:", "exposed:"))})
    return COLOURS[1 + axes.index(axis) % (len(COLOURS) - 1)]


def draw_stack(axes, count, parts, xlabel, colours=None):
    """Horizontal bars, a bar a point, the first on top; `parts`: label -> its values, one a point; `colours`: of some labels."""
    left = [0.0] * count
    for index, (label, values) in enumerate(parts.items()):
        colour = (colours or {}).get(label, COLOURS[index % len(COLOURS)])
        axes.barh(list(range(count))[::-1], values, left=left, height=0.72, color=colour, label=label, edgecolor="white", linewidth=0.6)
        left = [a + b for a, b in zip(left, values)]
    axes.set_xlim(0, max(left) * 1.04 or 1.0)
    axes.set_ylim(-0.6, count - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(xlabel)


def name_bars(axes, points, clocks=False):
    axes.set_yticks(list(range(len(points)))[::-1])
    axes.set_yticklabels([f"{shown(p)}, {ranks_text(p['ranks'])}{WALL[p['clock']] if clocks else ''}" for p in points])


def plot_stack(points, parts, name, title, xlabel, clocks=False, colours=None):
    """`clocks`: the values are times."""
    parts = visible(parts)
    if not points or not parts:
        return
    figure, axes = pyplot.subplots(figsize=(7.2, 1.5 + 0.31 * len(points)))
    draw_stack(axes, len(points), parts, xlabel, colours)
    name_bars(axes, points, clocks)
    axes.set_title(title)
    legend_beside(axes, len(parts))
    save(figure, name)


def plot_phases(points, title):
    real = [p for p in points if p["clock"] != "virtual"]
    if real:
        unit, factor = seconds_unit(max(number(p["step_seconds"]) for p in real))
        parts = {phase.replace("_", " "): [number(p["phase:" + phase]) / factor for p in real] for phase in PHASES}
        note = "\noversubscribed: ranks shared cores, no measure of scaling" if any(
            p["clock"] == "oversubscribed" for p in real) else ""
        plot_stack(real, parts, "3_phases", f"{title}: phases of a step", f"time of a step, a rank's mean [{unit}]{note}",
                   clocks=True)
    emulated = [p for p in points if p["clock"] == "virtual"]
    if emulated:
        unit, factor = seconds_unit(max(number(p["step_seconds"]) for p in emulated))
        axes = [column[8:] for column in emulated[0] if column.startswith("exposed:")]
        waits = {axis: [number(p["exposed:" + axis]) / factor for p in emulated] for axis in axes}
        waited = [sum(v[i] for v in waits.values() if known(v[i])) for i in range(len(emulated))]
        parts = {"computing": [number(p["step_seconds"]) / factor - w for p, w in zip(emulated, waited)]}
        parts.update({f"waiting: {axis}": values for axis, values in waits.items()})
        plot_stack(emulated, parts, "3_phases_virtual", f"{title}: a step on the virtual clock",
                   f"virtual time of a step, a rank's mean [{unit}]\nof the machine file, not of this machine",
                   colours={f"waiting: {axis}": axis_colour(points, axis) for axis in axes})


def plot_memory(points, title):
    """What a step holds, and beside it the buffers, whose peak may be a save's and then has nothing to do with the layout."""
    figure, (step, beside) = pyplot.subplots(1, 2, figsize=(9.6, 1.7 + 0.31 * len(points)), sharey=True,
                                             gridspec_kw={"width_ratios": [2.2, 1], "wspace": 0.08})
    colours = dict(zip(MEMORY, COLOURS))
    for axes, tags, label in ((step, MEMORY[:-1], "what a step holds"), (beside, MEMORY[-1:], "buffers")):
        values = {tag: [number(p["memory:" + tag]) for p in points] for tag in tags}
        values = {tag: [v if known(v) else 0.0 for v in each] for tag, each in values.items()}
        unit, factor = scaled(max(sum(each) for each in zip(*values.values())), ["B", "KiB", "MiB", "GiB", "TiB"], 1024.0)
        draw_stack(axes, len(points), {tag: [v / factor for v in each] for tag, each in values.items()}, f"{label} [{unit}]", colours)
    name_bars(step, points)
    beside.tick_params(axis="y", length=0)
    step.set_title(f"{title}: memory of a rank, peaks of each kind, of the rank with the most", loc="left")
    handles = step.get_legend_handles_labels()[0] + beside.get_legend_handles_labels()[0]
    legend_beside(beside, len(MEMORY), handles=handles)
    save(figure, "5_memory")


def plot_bytes(points, title):
    axes = [column[6:] for column in points[0] if column.startswith("bytes:")]
    moved = [p for p in points if any(number(p["bytes:" + axis]) > 0 for axis in axes)]
    if not moved:
        return
    most = max(sum(v for v in (number(p["bytes:" + axis]) for axis in axes) if known(v)) for p in moved)
    unit, factor = scaled(most, ["B", "kB", "MB", "GB", "TB"])
    plot_stack(moved, {axis: [number(p["bytes:" + axis]) / factor for p in moved] for axis in axes}, "6_bytes",
               f"{title}: communication by axis", f"bytes of a step, all ranks together [{unit}]",
               colours={axis: axis_colour(points, axis) for axis in axes})


def difference(curve, other):
    """The largest relative difference of two runs' losses; infinite where they made other steps."""
    if curve["steps"] != other["steps"]:
        return float("inf")
    return max((abs(a - b) / max(abs(b), 1e-300) for a, b in zip(curve["losses"], other["losses"])), default=0.0)


def plot_losses(losses, title):
    runs = {}
    for line in losses:
        runs.setdefault(line["trial"], []).append(line)
    curves = [{"name": shown(run[0]), "ranks": run[0]["ranks"], "clock": run[0]["clock"], "seed": run[0]["seed"],
               "steps": [int(x["step"]) for x in run], "losses": [number(x["loss"]) for x in run],
               "times": [number(x["time"]) for x in run]} for run in runs.values()]
    if not curves:
        return
    # Runs with the same losses, or nearly so, lie on each other: one line, and how many there are.
    seeds = {curve["seed"] for curve in curves}
    lines_drawn = []  # (curve, how many others, the largest relative difference of one of them)
    for curve in curves:
        for drawn in lines_drawn:
            apart = difference(curve, drawn[0])
            if apart <= SAME:
                drawn[1] += 1
                drawn[2] = max(drawn[2], apart)
                break
        else:
            lines_drawn.append([curve, 0, 0.0])
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
    for index, (curve, others, apart) in enumerate(lines_drawn):
        label = f"{curve['name']}, {ranks_text(curve['ranks'])}" + (f", seed {curve['seed']}" if len(seeds) > 1 else "")
        if others:
            label += f"\nand {others} other{'s' if others > 1 else ''}, " + (f"within {apart:.0e}" if apart else "equal to the bit")
        axes.plot(curve["steps"], curve["losses"], color=COLOURS[index % len(COLOURS)], label=label,
                  linestyle="-" if index < len(COLOURS) else "--", marker="." if len(curve["steps"]) <= 30 else None,
                  linewidth=1.5)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set_ylabel("training loss")
    axes.set_title(f"{title}: loss over steps")
    legend_beside(axes, len(lines_drawn))
    save(figure, "4_loss_steps")
    for kind, name, xlabel in (("wall", "4_loss_time", "time of steps"),
                               ("virtual", "4_loss_time_virtual", "virtual time of steps")):
        chosen = [curve for curve in curves if curve["clock"] == kind]
        if not chosen:
            continue
        unit, factor = seconds_unit(max(curve["times"][-1] for curve in chosen))
        names = list(dict.fromkeys(curve["name"] for curve in chosen))
        counts = sorted({curve["ranks"] for curve in chosen}, key=int)
        if len(chosen) > MOST_CURVES and len(counts) > 1:  # too many to tell apart
            counts = counts[-1:]
            chosen = [curve for curve in chosen if curve["ranks"] == counts[0]]
        figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
        for curve in chosen:
            axes.plot([t / factor for t in curve["times"]], curve["losses"], linewidth=1.5,
                      color=COLOURS[names.index(curve["name"]) % len(COLOURS)],
                      linestyle=STYLES[counts.index(curve["ranks"]) % len(STYLES)] if len(counts) > 1 else "-")
        handles = [lines.Line2D([], [], color=COLOURS[i % len(COLOURS)], label=n) for i, n in enumerate(names)]
        if len(counts) > 1:
            handles += [lines.Line2D([], [], color="#555555", linestyle=STYLES[i % len(STYLES)], label=ranks_text(c))
                        for i, c in enumerate(counts)]
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{xlabel} [{unit}]")
        axes.set_ylabel("training loss")
        where = f", {ranks_text(counts[0])}" if len(counts) == 1 else ""
        axes.set_title(f"{title}: loss over {xlabel}{where}")
        legend_beside(axes, len(handles), handles=handles, title=f"{len(seeds)} seeds of each" if len(seeds) > 1 else None)
        save(figure, name)


if len(sys.argv) != 2:
    print(__doc__.splitlines()[0], file=sys.stderr)
    sys.exit(2)
folder = Path(sys.argv[1])
try:
    study = json.loads((folder / "study.json").read_text())
    all_points, all_losses = read("points.csv"), read("losses.csv")
except OSError as error:
    print(f"plot_study.py: {error}; write it with: fourfold report {folder}", file=sys.stderr)
    sys.exit(2)
plots = folder / "plots"
plots.mkdir(exist_ok=True)
if all_points:
    heading = study["name"]
    if study["kind"] == "scaling" and study["scaling"] not in heading:
        heading += f", {study['scaling']} scaling"
    plot_scaling(all_points, heading)
    plot_phases(all_points, heading)
    plot_losses(all_losses, heading)
    plot_memory(all_points, heading)
    plot_bytes(all_points, heading)
