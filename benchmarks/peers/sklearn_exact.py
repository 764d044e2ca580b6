"""scikit-learn's exact GP on all points, kernel and noise given: PROBLEM.npz ROW.json. The mean alone, timed twice."""

import sys

import numpy as np
import sklearn
from common import Clock, write
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

file = np.load(sys.argv[1])
lengthscale, variance, noise = (file[k].item() for k in ("lengthscale", "variance", "noise"))
clocks = []
for _ in range(2):
    clocks.append(Clock())
    kernel = ConstantKernel(variance) * Matern(lengthscale, nu=1.5)
    gp = GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None).fit(file["x"], file["y"])
    mean = gp.predict(file["x_test"])
    clocks[-1].stop()
write(
    sys.argv[2],
    {
        "system": f"scikit-learn {sklearn.__version__}, exact",
        "wall_s": clocks[0].wall,
        "again_wall_s": clocks[1].wall,
        "rmse": float(np.sqrt(np.mean((mean - file["f_test"]) ** 2))),
    },
)
