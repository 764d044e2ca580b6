"""EFGP (Greengard et al.) in a few lines on finufft: PROBLEM.npz ROW.json [--epsilon 1e-4].

f(x) = sum_j a_j b_j exp(2 pi i h j.x) with b white and a_j^2 = h^2 S(h j), S the kernel's spectrum: the posterior mean of b
solves (D T D / noise^2 + 1) b = D F* y / noise^2, T = F* F Toeplitz, applied by an FFT of twice the size. The spacing h
lets the periodic kernel's first image fall below epsilon, the number of modes its spectral tail. No preconditioner, as
published; conjugate gradients to a relative residual of epsilon / 10. The first run plans, the second is timed apart.
"""

import argparse

import finufft
import numpy as np
from common import Clock, write
from scipy.fft import fftn, ifftn, next_fast_len
from scipy.optimize import brentq

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--epsilon", type=float, default=1e-4)
args = parser.parse_args()
file = np.load(args.problem)
lengthscale, variance, noise, kind = (file[k].item() for k in ("lengthscale", "variance", "noise", "kernel"))
x, y, x_test = file["x"], file["y"], file["x_test"]


def correlation(r):
    if kind == "SquaredExponential":
        return np.exp(-0.5 * (r / lengthscale) ** 2)
    return (1 + np.sqrt(3) * r / lengthscale) * np.exp(-np.sqrt(3) * r / lengthscale)


def spectrum(squared):
    """S at squared frequency, in 2-D: its integral over the plane is the variance."""
    if kind == "SquaredExponential":
        return variance * 2 * np.pi * lengthscale**2 * np.exp(-2 * np.pi**2 * lengthscale**2 * squared)
    a = 3 / lengthscale**2
    return variance * 6 * np.pi * a**1.5 * (a + 4 * np.pi**2 * squared) ** -2.5


def cutoff():
    """The frequency beyond which epsilon of the variance lies."""
    if kind == "SquaredExponential":
        return np.sqrt(-np.log(args.epsilon) / (2 * np.pi**2 * lengthscale**2))
    return np.sqrt(3 * (args.epsilon ** (-2 / 3) - 1)) / (2 * np.pi * lengthscale)


def fit():
    period = 1 + brentq(lambda r: correlation(r) - args.epsilon, 0, 100 * lengthscale)  # x in the unit square
    m = int(np.ceil(cutoff() * period))
    n = 2 * m + 1
    j = np.arange(-m, m + 1)
    scale = np.sqrt(spectrum((j[:, None] ** 2 + j**2) / period**2)) / period
    angle = lambda at: tuple(np.ascontiguousarray(2 * np.pi * at[:, d] / period) for d in range(2))
    tight = args.epsilon / 100
    ones = np.ones(len(y), complex)
    lags = finufft.nufft2d1(*angle(x), ones, (2 * n - 1, 2 * n - 1), eps=tight, isign=-1)
    padded = np.zeros((next_fast_len(2 * n - 1),) * 2, complex)
    padded[: 2 * n - 1, : 2 * n - 1] = lags  # lag 0 is at 2m: rolled to the front
    toeplitz = fftn(np.roll(padded, (-2 * m, -2 * m), axis=(0, 1)), workers=-1)
    right = scale * finufft.nufft2d1(*angle(x), y.astype(complex), (n, n), eps=tight, isign=-1) / noise**2

    def apply(b):
        product = ifftn(toeplitz * fftn(scale * b, toeplitz.shape, workers=-1), workers=-1)[:n, :n]
        return scale * product / noise**2 + b

    b, r = np.zeros_like(right), right.copy()
    p, gamma, steps = r.copy(), np.vdot(r, r).real, 0
    enough = (args.epsilon / 10) ** 2 * gamma
    while gamma > enough and steps < 5000:
        q = apply(p)
        alpha = gamma / np.vdot(p, q).real
        b, r = b + alpha * p, r - alpha * q
        new = np.vdot(r, r).real
        p, gamma, steps = r + new / gamma * p, new, steps + 1
    mean = finufft.nufft2d2(*angle(x_test), scale * b, eps=tight, isign=1).real
    return mean, n, steps


clocks = []
for _ in range(2):
    clocks.append(Clock())
    mean, modes, steps = fit()
    clocks[-1].stop()
first, again = clocks
write(
    args.row,
    {
        "system": f"EFGP, finufft {finufft.__version__}, epsilon {args.epsilon:g}",
        "wall_s": first.wall,
        "cpu_s": first.cpu,
        "again_wall_s": again.wall,
        "again_cpu_s": again.cpu,
        "rmse": float(np.sqrt(np.mean((mean - file["f_test"]) ** 2))),
        "rms_from_hipgp": float(np.sqrt(np.mean((mean - file["hipgp"]) ** 2))),
        "rms_from_dense": float(np.sqrt(np.mean((mean - file["dense"]) ** 2))) if "dense" in file else None,
        "steps": steps,
        "note": f"float64, {modes} x {modes} modes, {steps} steps; no std",
    },
)
