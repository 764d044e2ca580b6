"""linear_operator (GPyTorch's algebra) on a Toeplitz matrix: PROBLEM.npz ROW.json --task solve|whiten.

solve: K^-1 k by its conjugate gradients (public `solve`, to the problem's tolerance, at most 1,000 steps).
whiten: K^-1/2 k by contour-integral quadrature (`sqrt_inv_matmul`), its defaults (15 nodes, MINRES to 1e-4, 1,000
steps). The second run is timed apart; the error is that of k' K^-1 k against the problem's reference. float64.
"""

import argparse
import warnings

import linear_operator
import numpy as np
import torch
from common import Clock, write
from linear_operator import settings
from linear_operator.operators import ToeplitzLinearOperator

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--task", choices=("solve", "whiten"), required=True)
args = parser.parse_args()
warnings.simplefilter("ignore")
torch.manual_seed(0)
file = np.load(args.problem)
column, sides = torch.tensor(file["column"]), torch.tensor(file["sides"].T.copy())
matrix = ToeplitzLinearOperator(column)


def run():
    with (
        torch.no_grad(),
        settings.max_cholesky_size(0),
        settings.cg_tolerance(file["tolerance"].item()),
        settings.max_cg_iterations(1000),
    ):
        return matrix.solve(sides) if args.task == "solve" else matrix.sqrt_inv_matmul(sides)


clocks = []
for _ in range(2):
    clocks.append(Clock())
    found = run()
    clocks[-1].stop()
explained = (found * sides).sum(0) if args.task == "solve" else (found**2).sum(0)
row = {
    "system": {"solve": "Toeplitz CG", "whiten": "CIQ"}[args.task]
    + f", linear_operator {linear_operator.__version__}",
    "wall_s": clocks[0].wall,
    "cpu_s": clocks[0].cpu,
    "again_wall_s": clocks[1].wall,
    "again_cpu_s": clocks[1].cpu,
    "error": float(np.max(np.abs(explained.numpy() / file["explained"] - 1))),
    "note": "float64",
}
if args.task == "solve":
    rest = (matrix @ found - sides).norm(dim=0) / sides.norm(dim=0)
    row["residual"] = float(rest.max())
write(args.row, row)
