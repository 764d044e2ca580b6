"""GPflow's stochastic variational GP on points: PROBLEM.npz ROW.json [--seconds 480] [--inducing 1024].

As its documentation's notebooks on SVGP and natural gradients have it: whitened, minibatches of 1,024, natural gradients at
0.1 for the variational parameters and Adam at 0.01 for kernel, noise, trend and inducing locations, which start at random
data, everything in one compiled step, float64 (GPflow's default).
"""

import argparse

import gpflow
import numpy as np
import tensorflow as tf
from common import Clock, scores, write

parser = argparse.ArgumentParser()
parser.add_argument("problem")
parser.add_argument("row")
parser.add_argument("--seconds", type=float, default=480)
parser.add_argument("--inducing", type=int, default=1024)
args = parser.parse_args()
tf.random.set_seed(0)
rng = np.random.default_rng(0)
file = np.load(args.problem)
low, scale = file["x"].min(0), np.ptp(file["x"], axis=0).max()
centre, spread = file["y"].mean(), file["y"].std()
x, x_test = (file["x"] - low) / scale, (file["x_test"] - low) / scale
y = ((file["y"] - centre) / spread)[:, None]

linear = str(file["trend"]) == "linear"
mean = gpflow.functions.Linear(np.zeros((2, 1)), np.zeros(1)) if linear else gpflow.functions.Constant()
model = gpflow.models.SVGP(
    gpflow.kernels.Matern32(lengthscales=[0.1, 0.1]),
    gpflow.likelihoods.Gaussian(0.5),
    x[rng.permutation(len(x))[: args.inducing]],
    mean_function=mean,
    num_data=len(y),
)
gpflow.set_trainable(model.q_mu, False)
gpflow.set_trainable(model.q_sqrt, False)
batches = iter(tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(len(y)).batch(1024))
natural, adam = gpflow.optimizers.NaturalGradient(gamma=0.1), tf.keras.optimizers.Adam(0.01)
loss = model.training_loss_closure(batches)


@tf.function
def step():
    natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(model.trainable_variables)
        value = loss()
    adam.apply_gradients(
        zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
    )


@tf.function
def predicted(at):
    return model.predict_y(at)


def predict():
    parts = [predicted(tf.convert_to_tensor(p)) for p in np.array_split(x_test, -(-len(x_test) // 4096))]
    found, variance = (np.concatenate([np.asarray(p[i])[:, 0] for p in parts]) for i in (0, 1))
    return found * spread + centre, np.sqrt(variance) * spread


clock = Clock()
steps, due = 0, args.seconds / 20
while clock.so_far() < args.seconds:
    step()
    steps += 1
    if clock.so_far() > due:
        clock.score(file["y_test"], predict)
        due *= 1.5
clock.score(file["y_test"], predict)
found = predict()
clock.stop()
write(
    args.row,
    {
        "system": f"GPflow {gpflow.__version__} SVGP, {args.inducing} inducing points, natural gradients",
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
        **scores(file["y_test"], *found),
        "trace": clock.trace,
        "steps": steps,
        "note": f"float64, Matern 3/2 ARD, {steps * 1024 / len(y):.1f} epochs, stopped at {args.seconds:g} CPU s",
    },
)
