"""Makes src/ops/special_tables.h: Chebyshev coefficients of the special functions that no StableHLO operation gives.

Needs mpmath. Every table is computed from the function's definition with 40 digits and cut where the rest is below 1e-17 (1e-15 where said).
"""

import mpmath as mp

mp.mp.dps = 40
TABLES = []


def fit(name, text, f, n=64, cut=mp.mpf("1e-17")):
    """Coefficients of f on t in [-1, 1], from its values at the Chebyshev points."""
    m = 2 * n
    values = [f(mp.cos(mp.pi * (k + mp.mpf(1) / 2) / m)) for k in range(m)]
    coef = []
    for j in range(n):
        s = mp.fsum(v * mp.cos(mp.pi * j * (k + mp.mpf(1) / 2) / m) for k, v in enumerate(values))
        coef.append((1 if j == 0 else 2) * s / m)
    size = max(abs(c) for c in coef)
    while len(coef) > 1 and abs(coef[-1]) < cut * size:
        coef.pop()
    if len(coef) == n:
        raise SystemExit(f"{name}: {n} coefficients are not enough, the last is {mp.nstr(coef[-1], 3)}")
    # evaluation in double precision against the function itself
    worst = mp.mpf(0)
    for k in range(101):
        t = mp.mpf(-1) + mp.mpf(2) * k / 100
        t = min(max(t, mp.mpf("-0.9999999")), mp.mpf("0.9999999"))
        got = mp.fsum(mp.mpf(float(c)) * mp.chebyt(i, t) for i, c in enumerate(coef))
        worst = max(worst, abs(got - f(t)) / size)
    print(f"{name}: {len(coef)} coefficients, error {mp.nstr(worst, 2)}")
    if worst > 1e-14:
        raise SystemExit(f"{name}: the fit is off")
    TABLES.append((name, text, [float(c) for c in coef]))


def near(hi):
    """t -> x in [0, hi], x = hi (t + 1) / 2"""
    return lambda t: hi * (t + 1) / 2


def far(lo):
    """t -> x in [lo, inf), lo / x = (t + 1) / 2"""
    return lambda t: 2 * lo / (t + 1)


def square(hi):
    """t -> x in [0, hi], (x / hi)^2 = (t + 1) / 2"""
    return lambda t: hi * mp.sqrt((t + 1) / 2)


def far_square(lo):
    """t -> x in [lo, inf), (lo / x)^2 = (t + 1) / 2"""
    return lambda t: lo / mp.sqrt((t + 1) / 2)


x8, xi8 = near(mp.mpf(8)), far(mp.mpf(8))
fit("I0E_NEAR", "exp(-x) I0(x), x = 4 (t + 1)", lambda t: mp.exp(-x8(t)) * mp.besseli(0, x8(t)))
fit("I0E_FAR", "sqrt(x) exp(-x) I0(x), 8 / x = (t + 1) / 2", lambda t: mp.sqrt(xi8(t)) * mp.exp(-xi8(t)) * mp.besseli(0, xi8(t)))
fit("I1E_NEAR", "exp(-x) I1(x) / x, x = 4 (t + 1)", lambda t: mp.exp(-x8(t)) * mp.besseli(1, x8(t)) / x8(t))
fit("I1E_FAR", "sqrt(x) exp(-x) I1(x), 8 / x = (t + 1) / 2", lambda t: mp.sqrt(xi8(t)) * mp.exp(-xi8(t)) * mp.besseli(1, xi8(t)))

s2, xi2 = square(mp.mpf(2)), far(mp.mpf(2))
fit(
    "K0_NEAR",
    "K0(x) + log(x / 2) I0(x), (x / 2)^2 = (t + 1) / 2",
    lambda t: mp.besselk(0, s2(t)) + mp.log(s2(t) / 2) * mp.besseli(0, s2(t)),
)
fit("I0_SMALL", "I0(x), (x / 2)^2 = (t + 1) / 2", lambda t: mp.besseli(0, s2(t)))
fit("K0_FAR", "sqrt(x) exp(x) K0(x), 2 / x = (t + 1) / 2", lambda t: mp.sqrt(xi2(t)) * mp.exp(xi2(t)) * mp.besselk(0, xi2(t)))
fit(
    "K1_NEAR",
    "(K1(x) - log(x / 2) I1(x)) x, (x / 2)^2 = (t + 1) / 2",
    lambda t: (mp.besselk(1, s2(t)) - mp.log(s2(t) / 2) * mp.besseli(1, s2(t))) * s2(t),
)
fit("I1_SMALL", "I1(x) / x, (x / 2)^2 = (t + 1) / 2", lambda t: mp.besseli(1, s2(t)) / s2(t))
fit("K1_FAR", "sqrt(x) exp(x) K1(x), 2 / x = (t + 1) / 2", lambda t: mp.sqrt(xi2(t)) * mp.exp(xi2(t)) * mp.besselk(1, xi2(t)))

s8, f8 = square(mp.mpf(8)), far_square(mp.mpf(8))


def hankel(order, x):
    """P and Q with J = sqrt(2 / (pi x)) (P cos(w) - Q sin(w)), Y = ... (P sin(w) + Q cos(w)), w = x - (order / 2 + 1 / 4) pi"""
    w = x - (mp.mpf(order) / 2 + mp.mpf(1) / 4) * mp.pi
    r = mp.sqrt(mp.pi * x / 2)
    j, y = mp.besselj(order, x) * r, mp.bessely(order, x) * r
    return j * mp.cos(w) + y * mp.sin(w), y * mp.cos(w) - j * mp.sin(w)


for order in (0, 1):
    div = (lambda x: 1) if order == 0 else (lambda x: x)
    tail = "" if order == 0 else " / x"
    fit(f"J{order}_NEAR", f"J{order}(x){tail}, (x / 8)^2 = (t + 1) / 2", lambda t: mp.besselj(order, s8(t)) / div(s8(t)))
    fit(f"BESSEL{order}_P", f"P of order {order}, (8 / x)^2 = (t + 1) / 2", lambda t: hankel(order, f8(t))[0])
    fit(f"BESSEL{order}_Q", f"Q x of order {order}, (8 / x)^2 = (t + 1) / 2", lambda t: hankel(order, f8(t))[1] * f8(t))
fit(
    "Y0_NEAR",
    "Y0(x) - 2 / pi log(x) J0(x), (x / 8)^2 = (t + 1) / 2",
    lambda t: mp.bessely(0, s8(t)) - 2 / mp.pi * mp.log(s8(t)) * mp.besselj(0, s8(t)),
)
fit(
    "Y1_NEAR",
    "(Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x, (x / 8)^2 = (t + 1) / 2",
    lambda t: (mp.bessely(1, s8(t)) - 2 / mp.pi * (mp.log(s8(t)) * mp.besselj(1, s8(t)) - 1 / s8(t))) / s8(t),
)

C = mp.mpf("3.75")


def erfcx(x):
    return (
        mp.exp(x * x) * mp.erfc(x)
        if x < 60
        else sum((-1) ** k * mp.fac2(2 * k - 1) / (2 * x * x) ** k for k in range(20)) / (x * mp.sqrt(mp.pi))
    )


fit(
    "ERFCX",
    "(1 + 2 x) exp(x^2) erfc(x), x = 3.75 (1 + t) / (1 - t)",
    lambda t: (1 + 2 * C * (1 + t) / (1 - t)) * erfcx(C * (1 + t) / (1 - t)),
    n=80,
)


def ndtri_tail(s):
    """-ndtri(p) - s where p = exp(-s^2 / 2)"""
    target = -s * s / 2
    x = s - (mp.log(s) + mp.log(2 * mp.pi) / 2) / s
    for _ in range(60):  # Newton on log of the upper tail
        tail = mp.erfc(x / mp.sqrt(2)) / 2
        step = (mp.log(tail) - target) * tail / (mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi))
        x += step
        if abs(step) < mp.mpf("1e-35"):
            break
    return x - s


LO, HI = 1 / mp.mpf(40), 1 / mp.mpf(2)
fit(
    "NDTRI_TAIL",
    "-ndtri(exp(-s^2 / 2)) - s, 1 / s = 0.2625 + 0.2375 t",
    lambda t: ndtri_tail(1 / ((LO + HI) / 2 + (HI - LO) / 2 * t)),
    cut=mp.mpf("1e-15"),
)

# Airy: zeta = 2/3 |x|^(3/2)
Z = mp.mpf(2) / 3 * mp.mpf(2) ** mp.mpf("1.5")


def airy_far(t):
    z = 2 * Z / (t + 1)
    x = (z * 3 / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * mp.exp(z) * x ** (mp.mpf(1) / 4)


def airy_phase(t, part):
    """F, G of Ai(-x) = x^(-1/4) (F sin(z + pi/4) - G cos(z + pi/4)), Bi(-x) = x^(-1/4) (F cos + G sin)"""
    z = W / mp.sqrt((t + 1) / 2)
    x = (z * 3 / 2) ** (mp.mpf(2) / 3)
    a, b, w = mp.airyai(-x) * x ** (mp.mpf(1) / 4), mp.airybi(-x) * x ** (mp.mpf(1) / 4), z + mp.pi / 4
    return a * mp.sin(w) + b * mp.cos(w) if part == 0 else (b * mp.sin(w) - a * mp.cos(w)) * z


W = mp.mpf(2) / 3 * mp.mpf(4) ** mp.mpf("1.5")
fit("AIRY_FAR", "x^(1/4) exp(z) Ai(x), x >= 2, z = 2/3 x^(3/2), 2/3 2^(3/2) / z = (t + 1) / 2", airy_far)
fit("AIRY_NEAR", "Ai(x), x = 3 t - 1", lambda t: mp.airyai(3 * t - 1))
fit("AIRY_F", "F of Ai(-x), x >= 4, z = 2/3 x^(3/2), (16/3 / z)^2 = (t + 1) / 2", lambda t: airy_phase(t, 0))
fit("AIRY_G", "G z of Ai(-x), as above", lambda t: airy_phase(t, 1))

with open("src/ops/special_tables.h", "w") as out:
    out.write(
        "/* special_tables.h - made by tools/fit_special.py. Chebyshev coefficients: f(t) = sum of c[k] T_k(t), |t| <= 1. */\n"
        "#ifndef TPU_OPS_SPECIAL_TABLES_H\n#define TPU_OPS_SPECIAL_TABLES_H\n"
    )
    for name, text, coef in TABLES:
        out.write(f"\n/* {text} */\nstatic const double {name}[] = {{\n")
        for i in range(0, len(coef), 5):
            out.write("    " + ", ".join(repr(c) for c in coef[i : i + 5]) + ",\n")
        out.write("};\n")
    out.write("#endif\n")
