"""GPyTorch's KISS-GP (structured kernel interpolation) on points: PROBLEM.npz ROW.json [--seconds 480] [--grid 100].

As its documentation's KISS-GP example has it: exact marginal likelihood by conjugate gradients, Adam at 0.1, float32,
variances by LOVE (fast_pred_var). Its kernel on a grid is a product of one-dimensional Materns, not a Matern in 2-D.
Its default preconditioner (pivoted Cholesky of rank 15) is off: with it not one step on 94,339 points was done in 100 s
(two busy cores), without it one took 12 s. No trace: one prediction takes longer than several steps.
"""

import argparse
import sys

import gpytorch
import numpy as np
import torch
from common import Clock, scores, write

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--seconds", type=float, default=480)
parser.add_argument("--grid", type=int, default=100)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--preconditioner", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(0)
gpytorch.settings.max_preconditioner_size._set_value(args.preconditioner)
file = np.load(args.problem)
low, scale = file["x"].min(0), np.ptp(file["x"], axis=0).max()
centre, spread = file["y"].mean(), file["y"].std()
device = "cuda" if torch.cuda.is_available() else "cpu"
as_tensor = lambda a: torch.tensor(a, dtype=torch.float32, device=device)
x, x_test = as_tensor((file["x"] - low) / scale), as_tensor((file["x_test"] - low) / scale)
y = as_tensor((file["y"] - centre) / spread)
both = torch.cat([x, x_test])
bounds = [(float(both[:, d].min()) - 0.02, float(both[:, d].max()) + 0.02) for d in range(2)]


class KissGP(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        linear = str(file["trend"]) == "linear"
        self.mean = gpytorch.means.LinearMean(2) if linear else gpytorch.means.ConstantMean()
        matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2)
        matern.lengthscale = 0.1
        on_grid = gpytorch.kernels.GridInterpolationKernel(
            matern, grid_size=args.grid, num_dims=2, grid_bounds=bounds
        )
        self.kernel = gpytorch.kernels.ScaleKernel(on_grid)

    def forward(self, at):
        return gpytorch.distributions.MultivariateNormal(self.mean(at), self.kernel(at))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
model = KissGP(likelihood).to(device)
evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)


def predict():
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = [likelihood(model(part)) for part in x_test.split(4096)]
        out = [(f.mean, f.variance.clamp_min(1e-8).sqrt()) for f in found]
    model.train()
    likelihood.train()
    mean, std = (torch.cat(parts).cpu().numpy() * spread for parts in zip(*out, strict=True))
    return mean + centre, std


clock = Clock()
steps = 0
while clock.so_far() < args.seconds and steps < args.steps:
    optimizer.zero_grad()
    (-evidence(model(x), y)).backward()
    optimizer.step()
    steps += 1
    print("step", steps, clock.so_far(), file=sys.stderr, flush=True)
learned = clock.so_far()
found = predict()
clock.stop()
write(
    args.row,
    {
        "system": f"GPyTorch {gpytorch.__version__} KISS-GP, {args.grid} x {args.grid}",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        **scores(file["y_test"], *found),
        "learn_cpu_s": learned,
        "steps": steps,
        "note": f"float32 on {device}, product of two 1-D Materns 3/2, {steps} steps"
        + (f", stopped at {args.seconds:g} CPU s" if steps < args.steps else ""),
        "threads": torch.get_num_threads(),
    },
)
