#!/usr/bin/env python3
"""study_figures.py STUDYFOLDER: every figure of points.csv and losses.csv, which tables and plots are drawn from, is one of the
rows of table.csv (a row a trial, as in trials.jsonl) or their median, least, most or ratio. Exit code 1: one is not."""

import csv
import json
import math
import sys
from pathlib import Path
from statistics import median

folder = Path(sys.argv[1])


def read(name):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


faults = []


def expect(what, got, wanted):
    if got == "" and (wanted is None or math.isnan(wanted)):
        return
    if got == "" or wanted is None or not math.isclose(float(got), wanted, rel_tol=1e-9):
        faults.append(f"{what}: {got}, of the rows {wanted}")


def middle(rows, column):
    values = [float(r[column]) for r in rows if r.get(column, "") != ""]
    return median(values) if values else None


table, points, losses = read("table.csv"), read("points.csv"), read("losses.csv")
# The table is what trials.jsonl says.
lines = {}
for file in folder.glob("trials*.jsonl"):
    for line in file.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # torn by a kill
        if "done" in entry:
            lines[entry["trial"]] = dict(entry["done"])
if {r["trial"] for r in table} != set(lines):
    faults.append("table.csv and trials.jsonl have other trials")
for row in table:
    for column, value in lines.get(row["trial"], {}).items():
        if value is None:
            expect(f"{row['trial']} {column}", row[column], None)
        elif isinstance(value, (int, float)):
            expect(f"{row['trial']} {column}", row[column], value)
        elif row[column] != value:
            faults.append(f"{row['trial']} {column}: {row[column]}, in trials.jsonl {value}")

looked_at = 0
rows_of = {}
for point in points:
    mine = []
    for row in table:
        named = [x["point"] for x in losses if x["trial"] == row["trial"]]
        if row["ranks"] == point["ranks"] and row["strategy"] == point["strategy"] and (not named or named[0] == point["point"]):
            mine.append(row)
    rows_of[point["point"], point["ranks"]] = mine
for point in points:
    rows = rows_of[point["point"], point["ranks"]]
    what = f"{point['point']}, {point['ranks']} ranks"
    if int(point["trials"]) != len(rows):
        continue  # swept values that the point's name alone tells apart
    step = middle(rows, "step_seconds")
    wanted = {"step_seconds": step, "least": min(float(r["step_seconds_least"]) for r in rows),
              "most": max(float(r["step_seconds_most"]) for r in rows),
              "tokens_per_second": middle(rows, "tokens_per_step") / step,
              "exposed_seconds": middle(rows, "exposed_seconds"), "to_target_seconds": middle(rows, "to_target_seconds")}
    if point["speed_up"] != "":
        base = rows_of[point["point"], point["base_ranks"]]
        wanted["speed_up"] = wanted["tokens_per_second"] / (middle(base, "tokens_per_step") / middle(base, "step_seconds"))
        wanted["efficiency"] = wanted["speed_up"] * int(point["base_ranks"]) / int(point["ranks"])
    for column in point:
        kind, _, name = column.partition(":")
        source = {"phase": f"phase_{name}_seconds", "memory": f"memory_{name}", "bytes": f"{name}:bytes",
                  "exposed": f"{name}:" + ("virtual_exposed" if point["clock"] == "virtual" else "exposed_seconds")}.get(kind)
        if name and source:
            wanted[column] = middle(rows, source)
    for column, value in wanted.items():
        expect(f"{what}, {column}", point[column], value)
        looked_at += 1
for line in losses:
    log = folder / "trials" / line["trial"] / "metrics.jsonl"
    steps = {}
    for text in log.read_text().splitlines():
        entry = json.loads(text)
        if "loss" in entry and "event" not in entry:
            steps[entry["step"]] = entry["loss"]
    expect(f"{line['trial']}, loss of step {line['step']}", line["loss"], steps.get(int(line["step"])))
    looked_at += 1
print(f"{looked_at} figures looked at, {len(faults)} that no row has")
for fault in faults[:20]:
    print(fault)
sys.exit(1 if faults or looked_at == 0 else 0)
