#!/usr/bin/env python3
"""Prints oa/kernel/math_coefficients.h: `scripts/math/generate.py > oa/kernel/math_coefficients.h`.

Every table is a minimax fit of minimax.py (Remez exchange, 160-bit arithmetic, mpmath), rounded to the
format; the comment beside a table tells the largest weighted error in units of 2^-24 or 2^-53.
"""
import sys
from mpmath import mp, mpf
from minimax import fit

mp.prec = 160
LN2 = mp.log(2)
ROOT2 = mp.sqrt(2)


def tail(f, series, power):
    """(f(x) - sum of series[k] x^k) / x^power, for x away from zero."""
    return lambda x: (f(x) - sum(c * x ** k for k, c in series.items())) / x ** power


def strip(ratio):
    """Weight of exp: the last half step before overflow may be `1/ratio` times less exact."""
    return lambda r: 1 if r < LN2 / 2 * mpf("1.01") else ratio


def tables(double):
    """name, comment, f, coefficients (f32, f64), weight, a, b; f is a function of the fitted variable."""
    n = 1 if double else 0
    ease = strip(mpf("0.35"))
    edge = LN2 / 2 * mpf("1.0005")
    z = mp.sqrt
    erf_slope = sum(split(2 / mp.sqrt(mp.pi), [FORMAT[double]] * 2, double))
    erf_end = 6 if double else 4
    quarter = (mp.pi / 4) ** 2 * mpf("1.01")
    s_end = ((ROOT2 - 1) / (ROOT2 + 1)) ** 2
    return [
        ("exp", "2 e^r = 2 + 2r + r^2 P(r), |r| <= ln(2)/2",
         lambda r: 2 * (mp.exp(r) - 1 - r) / r ** 2, (5, 10)[n],
         lambda r: r ** 2 / mp.exp(r) / 2, -edge, edge),
        ("exp2", "2^r = 1 + r P(r), |r| <= 1/2, and to 1 at the overflow edge",
         tail(lambda r: mpf(2) ** r, {0: 1}, 1), (7, 12)[n],
         lambda r: abs(r) / mpf(2) ** r * ease(r * LN2), mpf("-0.5003"), mpf(1)),
        ("expm1", "e^r - 1 = r + r^2 P(r), |r| <= ln(2)/2, and to ln(2) at the overflow edge", tail(mp.exp, {0: 1, 1: 1}, 2), (6, 12)[n],
         lambda r: r ** 2 / abs(mp.expm1(r)) * ease(r), -edge, LN2),
        ("one_minus_exp", "1 - e^-r = r + r^2 P(r), |r| <= ln(2)/2",
         lambda r: (-mp.expm1(-r) - r) / r ** 2, (5, 10)[n],
         lambda r: r ** 2 / abs(mp.expm1(-r)), -edge, edge),
        ("log1p", "log(1 + f) = f + f^2 (-1/2 + f P(f)), sqrt(1/2) <= 1 + f <= sqrt(2)",
         tail(mp.log1p, {1: 1, 2: -mpf(1) / 2}, 3), (8, 20)[n],
         lambda f: abs(f ** 3 / mp.log1p(f)), ROOT2 / 2 - 1, ROOT2 - 1),
        ("log1p_unit", "log(1 + t) = t + t^2 P(t), 0 <= t <= 1", tail(mp.log1p, {1: 1}, 2), (9, 20)[n],
         lambda t: t ** 2 / mp.log1p(t), mpf(0), mpf(1)),
        ("log2_tail", "log2((1 + s) / (1 - s)) = s (K + K s^2/3 + s^4 P(s^2)), K = 2 log2(e), s <= 0.1716",
         lambda q: 2 / LN2 * (mp.atanh(z(q)) / z(q) - 1 - q / 3) / q ** 2, (3, 8)[n],
         lambda q: q ** 2, mpf(0), s_end),
        ("sin", "sin(r) = r + r^3 P(r^2), |r| <= pi/4",
         lambda q: (mp.sin(z(q)) / z(q) - 1) / q, (3, 7)[n],
         lambda q: q * z(q) / mp.sin(z(q)), mpf(0), quarter),
        ("cos", "cos(r) = 1 + r^2 (-1/2 + r^2 P(r^2)), |r| <= pi/4",
         lambda q: (mp.cos(z(q)) - 1 + q / 2) / q ** 2, (3, 7)[n],
         lambda q: q ** 2 / mp.cos(z(q)), mpf(0), quarter),
        ("erf", "-log(erfc(x)) = 2/sqrt(pi) x + x^2 P(x), 0 <= x <= %d" % erf_end,
         lambda x: (-mp.log(mp.erfc(x)) / x - erf_slope) / x, (9, 25)[n],
         lambda x: x ** 2 * mp.erfc(x) / mp.erf(x), mpf(0), mpf(erf_end)),
    ]


FORMAT = {False: 24, True: 53}


def split(x, parts, double):
    """x as a sum of values with the given numbers of mantissa bits; the short ones are truncated."""
    out = []
    for bits in parts:
        m, e = mp.frexp(x)
        whole = mp.ldexp(m, bits)
        out.append(mp.ldexp(mp.nint(whole) if bits == FORMAT[double] else mp.floor(whole), int(e) - bits))
        x -= out[-1]
    return out


def literal(x, double):
    """A C++ hexadecimal literal of a rounded value."""
    if x == 0:
        return "0"
    m, e = mp.frexp(x)
    bits = 53 if double else 24
    whole = int(mp.ldexp(abs(m), bits + (4 - (bits - 1) % 4) % 4))  # the first digit is 1
    text = "%x" % whole
    text = "%s0x%s.%sp%d" % ("-" if x < 0 else "", text[0], text[1:].rstrip("0") or "0", int(e) - 1)
    return text if double else text + "f"


def constants(double):
    full = FORMAT[double]
    half = full // 2 - (1 if double else 0)  # 12 or 25: a product of two such parts is exact
    rows = [
        ("ln2", "ln(2); n times the first part is exact", LN2, [16 if not double else 41, full]),
        ("quarter_turn", "pi/2", mp.pi / 2, [full, full]),
        ("log2e", "log2(e)", 1 / LN2, [full, full]),
        ("erf_slope", "2/sqrt(pi)", 2 / mp.sqrt(mp.pi), [full, full]),
        ("two_log2e", "2 log2(e) for exact products", 2 / LN2, [half, full]),
        ("two_log2e_3", "2/3 log2(e) for exact products", 2 / (3 * LN2), [half, full]),
    ]
    # The first three parts of pi/2 end where their products with n < 2^16 (2^36) and all differences still fit.
    cuts, rest = [], mp.pi / 2
    for last in (17, 34, 51) if double else (7, 15, 23):
        cuts.append(mp.floor(mp.ldexp(rest, last)) / mpf(2) ** last)
        rest -= cuts[-1]
    print("  // pi/2; subtracting n times the first three parts is exact for n < 2^%d" % (36 if double else 16))
    print("  static constexpr %s half_pi[] = {%s};" % ("f64" if double else "f32", ", ".join(
        literal(v, double) for v in cuts + split(rest, [full, full], double))))
    for name, comment, x, parts in rows:
        print("  // %s" % comment)
        print("  static constexpr %s %s[] = {%s};" % ("f64" if double else "f32", name, ", ".join(
            literal(v, double) for v in split(x, parts, double))))


def main():
    print("// Polynomial coefficients and split constants of math.cpp. Made by scripts/math/generate.py (minimax")
    print("// fits by Remez exchange in 160-bit arithmetic); do not edit. The number after a comment is the")
    print("// largest relative error of the fit in units of 2^-24 (f32) or 2^-53 (f64).")
    print("#pragma once\n\n#include \"oa/core/types.h\"\n\nnamespace oa::kernel {\n")
    print("template <class T>\nstruct MathTables;")
    for double in (False, True):
        word = "f64" if double else "f32"
        bits = 53 if double else 24
        print("\ntemplate <>\nstruct MathTables<%s> {" % word)
        constants(double)
        for name, comment, f, count, weight, a, b in tables(double):
            if len(sys.argv) > 1 and name not in sys.argv[1:]:
                continue
            c, error = fit(f, list(range(count)), weight, a, b, bits)
            print("  // %s: %s" % (comment, mp.nstr(error * mpf(2) ** bits, 3)))
            print("  static constexpr %s %s[] = {%s};" % (word, name, ", ".join(literal(v, double) for v in c)))
            print(name, word, mp.nstr(error * mpf(2) ** bits, 3), file=sys.stderr)
        print("};")
    print("\n}  // namespace oa::kernel")


if __name__ == "__main__":
    main()
