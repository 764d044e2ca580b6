"""GPyTorch's stochastic variational GP on points: PROBLEM.npz ROW.json [--seconds 480] [--optimizer adam|natural].

As its documentation's SVGP and natural-gradient examples have it: minibatches of 1,024, Adam at 0.01 (with natural
gradients at 0.1 for the variational parameters), learned inducing locations that start at random data, float32.
Tried: 40 s each on the UK prices, Adam alone 0.664, natural gradients 0.649; on Heaton natural gradients at 0.1 did not
settle (RMSE 2.15 to 2.71 along the way).
"""

import argparse

import gpytorch
import numpy as np
import torch
from common import Clock, scores, write

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--seconds", type=float, default=480)
parser.add_argument("--optimizer", choices=("adam", "natural"), default="adam")
parser.add_argument("--inducing", type=int, default=1024)
args = parser.parse_args()
torch.manual_seed(0)
file = np.load(args.problem)
low, scale = file["x"].min(0), np.ptp(file["x"], axis=0).max()
centre, spread = file["y"].mean(), file["y"].std()
device = "cuda" if torch.cuda.is_available() else "cpu"
as_tensor = lambda a: torch.tensor(a, dtype=torch.float32, device=device)
x, x_test = as_tensor((file["x"] - low) / scale), as_tensor((file["x_test"] - low) / scale)
y = as_tensor((file["y"] - centre) / spread)


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing):
        kind = gpytorch.variational
        family = (
            kind.CholeskyVariationalDistribution
            if args.optimizer == "adam"
            else kind.NaturalVariationalDistribution
        )
        strategy = kind.VariationalStrategy(
            self, inducing, family(len(inducing)), learn_inducing_locations=True
        )
        super().__init__(strategy)
        linear = str(file["trend"]) == "linear"
        self.mean = gpytorch.means.LinearMean(2) if linear else gpytorch.means.ConstantMean()
        matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2)
        matern.lengthscale = 0.1
        self.kernel = gpytorch.kernels.ScaleKernel(matern)

    def forward(self, at):
        return gpytorch.distributions.MultivariateNormal(self.mean(at), self.kernel(at))


model = SVGP(x[torch.randperm(len(x))[: args.inducing]].clone()).to(device)
likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
if args.optimizer == "adam":
    optimizers = [torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)]
else:
    optimizers = [
        gpytorch.optim.NGD(model.variational_parameters(), num_data=len(y), lr=0.1),
        torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.01),
    ]


def predict():
    model.eval()
    with torch.no_grad():
        found = [likelihood(model(part)) for part in x_test.split(4096)]
    model.train()
    mean = torch.cat([f.mean for f in found]).cpu().numpy() * spread + centre
    return mean, torch.cat([f.stddev for f in found]).cpu().numpy() * spread


clock = Clock()
steps, due = 0, args.seconds / 40
while clock.so_far() < args.seconds:
    for batch in torch.randperm(len(y)).split(1024):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (-bound(model(x[batch]), y[batch])).backward()
        for optimizer in optimizers:
            optimizer.step()
        steps += 1
        if clock.so_far() > due:
            clock.score(file["y_test"], predict)
            due *= 1.3
        if clock.so_far() > args.seconds:
            break
clock.score(file["y_test"], predict)
found = predict()
clock.stop()
write(
    args.row,
    {
        "system": f"GPyTorch {gpytorch.__version__} SVGP, {args.inducing} inducing points, {args.optimizer}",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        **scores(file["y_test"], *found),
        "trace": clock.trace,
        "steps": steps,
        "note": f"float32 on {device}, Matern 3/2 ARD, {steps * 1024 / len(y):.1f} epochs, stopped at {args.seconds:g} CPU s",
        "threads": torch.get_num_threads(),
    },
)
