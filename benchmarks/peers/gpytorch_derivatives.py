"""GPyTorch's RBFKernelGrad on values and slopes: PROBLEM.npz ROW.json. Exact GP, kernel and noise given, float64.

As its documentation's derivative example has it, with a noise per task; its default solver is the dense Cholesky up to
800 data and conjugate gradients past that. The second run, on a new model, is timed apart from the first.
"""

import argparse

import gpytorch
import numpy as np
import torch
from common import timed_twice, write

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--cholesky", action="store_true", help="the dense Cholesky at every size")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
file = np.load(args.problem)
noise, lengthscale = file["noise"].item(), file["lengthscale"].item()
x, test = torch.tensor(file["x"])[:, None], torch.tensor(file["x_test"])[:, None]
y = torch.tensor(np.stack([file["y"], file["slopes"]], axis=1))


class WithSlopes(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMeanGrad()
        self.kernel = gpytorch.kernels.RBFKernelGrad()
        self.kernel.lengthscale = lengthscale

    def forward(self, at):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean(at), self.kernel(at))


def fit():
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2, has_global_noise=False)
    likelihood.task_noises = torch.tensor([noise**2, (noise / lengthscale) ** 2])
    model = WithSlopes(likelihood).eval()
    with torch.no_grad(), gpytorch.settings.max_cholesky_size(10**9 if args.cholesky else 800):
        found = model(test)
        return found.mean[:, 0].numpy(), found.variance[:, 0].clamp_min(1e-12).sqrt().numpy()


solver = "Cholesky" if args.cholesky else "default solver"
name = f"GPyTorch {gpytorch.__version__} RBFKernelGrad, {solver}"
write(args.row, {"system": name, **timed_twice(fit, file["f_test"]), "note": "float64"})
