"""What the tables of the paper's experiments say of how a posterior was found, and means over splits."""

import numpy as np
import pytest

import hipgp as hg
from hipgp.apps.cli import reproducing

reproducing.package()
from hipgp.experiments import systems  # noqa: E402


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ("best", "closed form"),
        ("natural gradients", "natural gradients"),
        ("natural gradients, kernel learned", "natural gradients, kernel learned"),
        ("dual ascent", "dual ascent"),
    ],
)
def test_what_is_said_is_what_was_done(fit, said):
    """From the settings and diagnostics of the posterior, not from the label that was asked for."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (20, 1))
    data = hg.observe(hg.Points(x), np.sin(6 * x[:, 0]), noise=0.1)
    method = systems.variational("HIP-GP", fit, family="mean-field", batch_size=10, epochs=1)
    post = hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover(0.0, 1.0, shape=30)).condition(
        data, method, progress=False
    )
    assert systems.fitted_by(post) == said
    assert post.diagnostics["direct"] is (fit == "best")
    assert ("learning_trace" in post.diagnostics) is fit.endswith("learned")


def test_means_over_splits_have_standard_errors():
    found = systems.averaged(
        [{"RMSE": v, "steps": 3, "how": "x", "seconds": v} for v in (1.0, 2.0, 4.5)], ("RMSE",)
    )
    assert found["RMSE"] == pytest.approx(2.5) and found["steps"] == 3 and found["how"] == "x"
    assert found["RMSE_error"] == pytest.approx(np.std([1.0, 2.0, 4.5], ddof=1) / np.sqrt(3))
    assert found["seconds"] == pytest.approx(2.5) and "seconds_error" not in found
