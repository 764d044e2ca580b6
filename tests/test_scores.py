"""The words for calibration agree with how the error bars are off."""

import numpy as np
import pytest
from scipy.stats import norm, t

from hipgp.scores import LeaveOut, describe_calibration

EVEN = (np.arange(1000) + 0.5) / 1000  # probabilities without chance


@pytest.mark.parametrize(
    ("errors", "said", "right"),
    [
        (norm.ppf(EVEN), "right (flat)", True),
        (1.05 * norm.ppf(EVEN), "right (flat)", True),
        (0.5 * norm.ppf(EVEN), "too wide (a hump)", False),
        (2.0 * norm.ppf(EVEN), "too narrow (a bowl)", False),
        (norm.ppf(EVEN) + 0.5, "off to one side", False),
        (0.6 * t.ppf(EVEN, 1.5), "outliers", False),
    ],
)
def test_words_of_calibration(errors, said, right):
    found = describe_calibration(norm.cdf(errors))
    assert found.right is right and said in found.words


def test_predictions_left_out_show_their_scores_in_a_few_lines():
    y = norm.ppf(EVEN)
    shown = repr(LeaveOut(y, np.zeros(1000), np.ones(1000), np.arange(1000) // 10, 0.0))
    assert shown.startswith("LeaveOut: 1,000 observations in 100 groups\n  scores: rmse 0.99")
    assert shown.endswith("right (flat): 50% intervals hold 50% of the values, 95% intervals 95%.")
    assert "in 100" not in repr(LeaveOut(y, np.zeros(1000), np.ones(1000), np.arange(1000), 0.0))


def test_the_size_of_errors_is_told():
    assert (
        "a typical error is 0.50 of the one stated"
        in describe_calibration(norm.cdf(0.5 * norm.ppf(EVEN))).words
    )


def test_few_values_prove_little():
    assert describe_calibration(norm.cdf(1.3 * norm.ppf(EVEN[50::100]))).right
