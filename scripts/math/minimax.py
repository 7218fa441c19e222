"""Weighted minimax fits (Remez exchange) with coefficients rounded to a machine format.

fit(f, powers, weight, a, b, bits) finds c so that sum c[k] * x**powers[k] is close to f on [a, b]:
the largest |weight(x) * (sum - f(x))| is the smallest possible. Coefficients are then rounded to
`bits` of mantissa one after the other, and the remaining ones are fitted again after each rounding.
"""
from mpmath import mp, mpf


def round_bits(x, bits):
    """x to `bits` mantissa bits, to nearest even."""
    if x == 0:
        return mpf(0)
    m, e = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(m, bits)), int(e) - bits)


def _remez(points, target, weight, powers, rounds=30):
    """Best coefficients on a grid; target and weight are values at the points."""
    n, m = len(powers), len(points)
    if n == 0:
        return [], max(abs(w * t) for w, t in zip(weight, target))
    # The grid is spread like Chebyshev nodes, so equal steps of the index are good first references.
    ref = [round(i * (m - 1) / mpf(n)) for i in range(n + 1)]
    ref = [int(i) for i in ref]
    coefficients, best = None, None
    table = [[x ** p for p in powers] for x in points]
    for _ in range(rounds):
        a = mp.matrix(n + 1, n + 1)
        b = mp.matrix(n + 1, 1)
        for row, i in enumerate(ref):
            for col in range(n):
                a[row, col] = weight[i] * table[i][col]
            a[row, n] = (-1) ** row
            b[row] = weight[i] * target[i]
        solution = mp.lu_solve(a, b)
        c = [solution[k] for k in range(n)]
        level = abs(solution[n])
        error = [w * (mp.fdot(c, t) - f) for w, t, f in zip(weight, table, target)]
        worst = max(abs(e) for e in error)
        if best is None or worst < best:
            coefficients, best = c, worst
        if worst <= level * mpf("1.001"):
            break
        # One extremum per run of equal sign; too many: the smallest go, in pairs inside, alone at an end.
        runs = []
        for i, e in enumerate(error):
            if runs and (e >= 0) == (error[runs[-1]] >= 0):
                if abs(e) > abs(error[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n + 1:
            k = min(range(len(runs)), key=lambda j: abs(error[runs[j]]))
            if 0 < k < len(runs) - 1:
                if len(runs) == n + 2:
                    k = 0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else len(runs) - 1
                else:
                    k = k if abs(error[runs[k + 1]]) < abs(error[runs[k - 1]]) else k - 1
                    del runs[k + 1]
            del runs[k]
        if len(runs) < n + 1:
            break
        ref = runs
    return coefficients, best


def grid(a, b, count):
    """Chebyshev-spread points strictly inside (a, b)."""
    a, b = mpf(a), mpf(b)
    return [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]


def fit(f, powers, weight, a, b, bits, fixed=None):
    """Returns (coefficients in the order of `powers`, largest weighted error).

    `fixed` maps a power to a coefficient that is given. `bits` may be a function of the power.
    """
    fixed = dict(fixed or {})
    points = [x for x in grid(a, b, 30 * len(powers) + 60) if x != 0]
    target = [f(x) for x in points]
    w = [weight(x) for x in points]
    free = [p for p in powers if p not in fixed]
    while free:
        # Divided by the lowest free power, so that the rest stays a polynomial with a constant term.
        low = free[0]
        rest = [(t - sum(c * x ** p for p, c in fixed.items())) / x ** low for x, t in zip(points, target)]
        c, _ = _remez(points, rest, [u * abs(x) ** low for x, u in zip(points, w)], [p - low for p in free])
        power = free.pop(0)
        fixed[power] = round_bits(c[0], bits(power) if callable(bits) else bits)
    error = max(abs(u * (sum(c * x ** p for p, c in fixed.items()) - t))
                for x, t, u in zip(points, target, w))
    return [fixed[p] for p in powers], error
