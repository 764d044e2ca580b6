"""GPBoost's Vecchia-Laplace approximation on counts: PROBLEM.npz ROW.json [--shape 1.5] [--neighbours 20] [--cholesky].

Poisson counts of one exposure; parameters and intercept by maximum likelihood, its defaults otherwise. The mode and the
determinants come from its iterative methods, which it recommends for many observations, unless `--cholesky` is given.
Held-out counts are scored by Gauss-Hermite sums over the latent normal distribution that it predicts.
"""

import argparse

import gpboost
import numpy as np
from common import Clock, write
from scipy.special import gammaln, logsumexp

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--shape", type=float, default=1.5)
parser.add_argument("--neighbours", type=int, default=20)
parser.add_argument("--cholesky", action="store_true")
args = parser.parse_args()
file = np.load(args.problem)
ones = lambda at: np.ones((len(at), 1))

clock = Clock()
model = gpboost.GPModel(
    gp_coords=file["x"],
    cov_function="matern",
    cov_fct_shape=args.shape,
    gp_approx="vecchia",
    num_neighbors=args.neighbours,
    likelihood="poisson",
    matrix_inversion_method="cholesky" if args.cholesky else "iterative",
    seed=0,
)
model.fit(y=file["y"].astype(float), X=ones(file["x"]))
learned = clock.so_far()
found = model.predict(
    gp_coords_pred=file["x_test"], X_pred=ones(file["x_test"]), predict_var=True, predict_response=False
)
clock.stop()
mean, std, y = found["mu"], np.sqrt(found["var"]), file["y_test"]
z, share = np.polynomial.hermite_e.hermegauss(32)
log_rate = mean[:, None] + std[:, None] * z
log_density = y[:, None] * log_rate - np.exp(log_rate) - gammaln(y + 1)[:, None]
score = logsumexp(log_density, axis=1, b=share / share.sum())
write(
    args.row,
    {
        "system": f"GPBoost {gpboost.__version__} Vecchia-Laplace, {'Cholesky' if args.cholesky else 'iterative'}",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        "learn_cpu_s": learned,
        "log_score": float(np.mean(score)),
        "log_rate_rmse": float(np.sqrt(np.mean((mean - file["truth"]) ** 2))),
        "parameters": np.asarray(model.get_cov_pars()).ravel().tolist(),
        "note": "float64, all learned",
    },
)
