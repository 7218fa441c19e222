"""What the Python peers share: options, timing and results, as bench/harness.h has them for C++."""
import argparse
import json
import statistics
import sys
import time


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.1, help="measuring time of one case")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--round", type=int, default=0, help="which round of scripts/bench this is")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_args()


def seconds_per_call(call, budget, synchronize=lambda: None):
    """Median seconds of one call; see bench::seconds_per_call."""
    def sample(calls):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return (time.perf_counter() - start) / calls

    sample(1)
    calls = min(max(int(budget / 25 / max(sample(1), 1e-8)), 1), 1000)
    sample(calls)
    samples = []
    begin = time.perf_counter()
    while len(samples) < 5 or time.perf_counter() - begin < budget:
        samples.append(sample(calls))
    return statistics.median(samples)


def report(case, who, value, unit):
    print(json.dumps({"case": case, "who": who, "value": value, "unit": unit}), flush=True)


def note(text):
    print(text, file=sys.stderr, flush=True)
