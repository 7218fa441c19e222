#!/usr/bin/env python3
"""Joins the JSON lines of benchmark programs into one table and judges it by bench/bars.json.

Usage: scripts/bench_table.py NAME RESULTS.jsonl [BARS.json]

A line is {"case": ..., "who": "oa" or a peer, "value": ..., "unit": ...}; of several lines for one
case and program (rounds) the median counts. In units "/s" more is better, in all others less. A
ratio above 1 means that OA is ahead. Rules of a benchmark, each for the cases that match a regular
expression:
  "peers", "each", "mean"  least ratio to the best of these peers in every case, and in the
                           geometric mean over the cases
  "limit"                  OA's own value may not be worse than this
The last line of the output sums up. Exit status: 0 all bars reached, 1 some missed, 2 wrong input.
"""
import collections
import json
import math
import pathlib
import re
import statistics
import sys


def fail(text):
    print(f"bench_table: {text}", file=sys.stderr)
    sys.exit(2)


def read_results(path):
    """{case: {who: median}}, {case: unit}, programs in the order of their first line."""
    samples = collections.defaultdict(lambda: collections.defaultdict(list))
    units, order = {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            case, who, value, unit = (entry[key] for key in ("case", "who", "value", "unit"))
        except (ValueError, KeyError, TypeError):
            fail(f"{path}:{number}: not a result line, got {line!r}")
        if not isinstance(value, (int, float)) or not value > 0 or math.isinf(value):
            fail(f"{path}:{number}: value of {case!r} by {who!r}, got {value!r}, expected a positive number")
        if units.setdefault(case, unit) != unit:
            fail(f"{path}:{number}: unit of {case!r}, got {unit!r}, expected {units[case]!r} as before")
        samples[case][who].append(value)
        if who not in order:
            order.append(who)
    order.sort(key=lambda who: who != "oa")
    medians = {case: {who: statistics.median(values) for who, values in row.items()}
               for case, row in samples.items()}
    return medians, units, order


def ratio(ours, theirs, unit):
    return ours / theirs if unit.endswith("/s") else theirs / ours


def best_ratio(row, unit, peers):
    """Ratio of OA to the best of the peers that have a value; None without OA or peers."""
    ratios = [ratio(row["oa"], row[peer], unit) for peer in peers if peer in row] if "oa" in row else []
    return min(ratios, default=None)


def judge(rules, medians, units):
    """Texts of what is measured, and of what misses its bar."""
    facts, missed = [], []
    for rule in rules:
        names = [case for case in medians if re.search(rule["cases"], case)]
        if not names:
            missed.append(f"no case matches {rule['cases']!r}")
        if "limit" in rule:
            for case in names:
                value, limit = medians[case].get("oa"), rule["limit"]
                if value is None:
                    missed.append(f"{case}: OA did not measure it")
                elif ratio(value, limit, units[case]) < 1:
                    missed.append(f"{case} {value:.3g} {units[case]} (bar {limit:g})")
            continue
        label = "/".join(rule["peers"])
        ratios = {}
        for case in names:
            ratios[case] = best_ratio(medians[case], units[case], rule["peers"])
            if ratios[case] is None:
                missed.append(f"{case}: not measured by both OA and {label}")
        ratios = {case: value for case, value in ratios.items() if value is not None}
        if not ratios:
            continue
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        lowest = min(ratios.values())
        facts.append(f"to {label}: geometric mean {mean:.2f}"
                     + (f" (bar {rule['mean']:g})" if "mean" in rule else "")
                     + f", lowest {lowest:.2f}" + (f" (bar {rule['each']:g})" if "each" in rule else ""))
        if mean < rule.get("mean", 0):
            missed.append(f"geometric mean to {label} {mean:.2f} (bar {rule['mean']:g})")
        missed += [f"{case} to {label} {value:.2f} (bar {rule['each']:g})"
                   for case, value in ratios.items() if value < rule.get("each", 0)]
    return facts, missed


def number(value):
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def print_table(medians, units, order):
    header = ["case", "unit", *order, "ratio to best"]
    rows = [[case, units[case], *(number(row[who]) if who in row else "-" for who in order)]
            for case, row in medians.items()]
    for row, case in zip(rows, medians):
        value = best_ratio(medians[case], units[case], [who for who in order if who != "oa"])
        row.append("-" if value is None else f"{value:.2f}")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print("| " + " | ".join(cells) + " |")


def main():
    if len(sys.argv) not in (3, 4):
        fail("expected NAME RESULTS.jsonl [BARS.json]")
    name = sys.argv[1]
    default = pathlib.Path(__file__).resolve().parent.parent / "bench" / "bars.json"
    bars = json.loads(pathlib.Path(sys.argv[3] if len(sys.argv) == 4 else default).read_text())
    medians, units, order = read_results(pathlib.Path(sys.argv[2]))
    print_table(medians, units, order)
    facts, missed = judge(bars.get(name, {}).get("rules", []), medians, units)
    print(f"{name}: " + "; ".join([*facts, "missed: " + ", ".join(missed) if missed else "every bar reached"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
