"""scikit-learn's exact GP on a random subset of the points: PROBLEM.npz ROW.json [--subset 3000].

Matern 3/2 with a lengthscale per axis and white noise, learned by its L-BFGS from one start; a linear trend, where the
problem has one, is removed by least squares first.
"""

import argparse
import warnings

import numpy as np
import sklearn
from common import Clock, scores, write
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--subset", type=int, default=3000)
args = parser.parse_args()
warnings.simplefilter("ignore")
file = np.load(args.problem)
chosen = np.random.default_rng(0).permutation(len(file["y"]))[: args.subset]
low, scale = file["x"].min(0), np.ptp(file["x"], axis=0).max()
x, x_test = (file["x"][chosen] - low) / scale, (file["x_test"] - low) / scale
columns = lambda at: np.column_stack(
    [np.ones(len(at)), at] if str(file["trend"]) == "linear" else [np.ones(len(at))]
)

clock = Clock()
trend = np.linalg.lstsq(columns(x), file["y"][chosen])[0]
kernel = ConstantKernel(1.0) * Matern((0.1, 0.1), nu=1.5) + WhiteKernel(0.1)
gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
gp.fit(x, file["y"][chosen] - columns(x) @ trend)
learned = clock.so_far()
parts = [gp.predict(part, return_std=True) for part in np.array_split(x_test, len(x_test) // 4096 + 1)]
mean, std = (np.concatenate(values) for values in zip(*parts, strict=True))  # std has the white noise in it
clock.stop()
write(
    args.row,
    {
        "system": f"scikit-learn {sklearn.__version__}, exact on {args.subset} points",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        "learn_cpu_s": learned,
        **scores(file["y_test"], mean + columns(x_test) @ trend, std),
        "kernel": str(gp.kernel_),
        "note": "float64, Matern 3/2 ARD",
    },
)
