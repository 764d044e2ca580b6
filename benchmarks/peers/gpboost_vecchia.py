"""GPBoost's Vecchia approximation on points: PROBLEM.npz ROW.json [--shape 1.5] [--neighbours 20].

Its defaults otherwise: Matern (one lengthscale per axis with --ard), parameters and linear trend by maximum likelihood.
"""

import argparse

import gpboost
import numpy as np
from common import Clock, scores, write

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--shape", type=float, default=1.5)
parser.add_argument("--neighbours", type=int, default=20)
parser.add_argument("--ard", action="store_true")
args = parser.parse_args()
file = np.load(args.problem)
low, scale = file["x"].min(0), np.ptp(file["x"], axis=0).max()
x, x_test = (file["x"] - low) / scale, (file["x_test"] - low) / scale
columns = lambda at: np.column_stack(
    [np.ones(len(at)), at] if str(file["trend"]) == "linear" else [np.ones(len(at))]
)

clock = Clock()
model = gpboost.GPModel(
    gp_coords=x,
    cov_function="matern_ard" if args.ard else "matern",
    cov_fct_shape=args.shape,
    gp_approx="vecchia",
    num_neighbors=args.neighbours,
    likelihood="gaussian",
    seed=0,
)
model.fit(y=file["y"], X=columns(x))
learned = clock.so_far()
found = model.predict(gp_coords_pred=x_test, X_pred=columns(x_test), predict_var=True, predict_response=True)
clock.stop()
kind = "Matern" + (" ARD" if args.ard else "")
write(
    args.row,
    {
        "system": f"GPBoost {gpboost.__version__} Vecchia, {kind} {args.shape:g}, {args.neighbours} neighbours",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        "learn_cpu_s": learned,
        **scores(file["y_test"], found["mu"], np.sqrt(found["var"])),
        "parameters": np.asarray(model.get_cov_pars()).ravel().tolist(),
        "note": "float64, all learned",
    },
)
