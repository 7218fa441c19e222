"""scripts/bench_table.py: ratios, bars, exit status and refusals."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench_table.py"


def line(case, who, value, unit="GFLOP/s"):
    return json.dumps({"case": case, "who": who, "value": value, "unit": unit})


class BenchTable(unittest.TestCase):
    def run_table(self, lines, rules):
        with tempfile.TemporaryDirectory() as folder:
            results, bars = pathlib.Path(folder, "r.jsonl"), pathlib.Path(folder, "b.json")
            results.write_text("".join(text + "\n" for text in lines))
            bars.write_text(json.dumps({"gemm": {"rules": rules}}))
            return subprocess.run([sys.executable, SCRIPT, "gemm", results, bars],
                                  capture_output=True, text=True)

    def test_reached(self):
        got = self.run_table([line("a", "oa", 120), line("a", "x", 100), line("a", "y", 60)],
                             [{"cases": ".", "peers": ["x", "y"], "each": 0.85, "mean": 1.1}])
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout.splitlines()[-1],
                         "gemm: to x/y: geometric mean 1.20 (bar 1.1), lowest 1.20 (bar 0.85); every bar reached")

    def test_missed_cell_and_mean_are_named(self):
        got = self.run_table([line("a", "oa", 80), line("a", "x", 100), line("b", "oa", 100), line("b", "x", 80)],
                             [{"cases": ".", "peers": ["x"], "each": 0.85, "mean": 1.1}])
        self.assertEqual(got.returncode, 1)
        self.assertIn("missed: geometric mean to x 1.00 (bar 1.1), a to x 0.80 (bar 0.85)",
                      got.stdout.splitlines()[-1])

    def test_times_count_the_other_way_round(self):
        got = self.run_table([line("a", "oa", 2, "us"), line("a", "x", 1, "us")],
                             [{"cases": ".", "peers": ["x"], "each": 1.0}])
        self.assertEqual(got.returncode, 1)
        self.assertIn("a to x 0.50 (bar 1)", got.stdout)

    def test_limit(self):
        rule = [{"cases": "^a$", "limit": 1.0}]
        self.assertEqual(self.run_table([line("a", "oa", 0.9, "us")], rule).returncode, 0)
        got = self.run_table([line("a", "oa", 1.1, "us")], rule)
        self.assertEqual(got.returncode, 1)
        self.assertIn("missed: a 1.1 us (bar 1)", got.stdout)

    def test_median_over_rounds(self):
        got = self.run_table([line("a", "oa", v) for v in (1, 50, 3)] + [line("a", "x", 3)],
                             [{"cases": ".", "peers": ["x"], "each": 1.0}])
        self.assertEqual(got.returncode, 0, got.stdout)
        self.assertIn("lowest 1.00", got.stdout)

    def test_absent_measurements_miss(self):
        got = self.run_table([line("a", "oa", 1)], [{"cases": ".", "peers": ["x"], "each": 1.0}])
        self.assertEqual(got.returncode, 1)
        self.assertIn("a: not measured by both OA and x", got.stdout)
        got = self.run_table([line("a", "oa", 1)], [{"cases": "b", "limit": 1.0}])
        self.assertEqual(got.returncode, 1)
        self.assertIn("no case matches 'b'", got.stdout)

    def test_wrong_lines_are_refused(self):
        for bad, text in [("nonsense", "not a result line"),
                          (line("a", "oa", 0), "expected a positive number"),
                          (line("a", "oa", float("inf")), "expected a positive number"),
                          (json.dumps({"case": "a"}), "not a result line"),
                          (line("b", "oa", 1, "ms"), "expected 'GFLOP/s' as before")]:
            got = self.run_table([line("b", "x", 1), bad], [])
            self.assertEqual(got.returncode, 2, bad)
            self.assertIn(text, got.stderr)


if __name__ == "__main__":
    unittest.main()
