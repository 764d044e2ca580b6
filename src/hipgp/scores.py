"""Predictions of observations from all the others, and how good they are: scores of leave-one-out and leave-group-out."""

from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float, Int


class LeaveOut(NamedTuple):
    """The observed values, each predicted from the others outside its group, its own noise included; in the data's order.

    `std_error` is the largest relative error of the standard deviations among some groups that were solved exactly; 0.0
    where all are exact. `groups` holds a number for each observation.
    """

    observed: Float[np.ndarray, " N"]
    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]
    groups: Int[np.ndarray, " N"]
    std_error: float

    @property
    def pull(self) -> Float[np.ndarray, " N"]:
        """The errors in units of their standard deviations: of standard normal size where the model is right."""
        return (self.observed - self.mean) / self.std

    def pit(self) -> Float[np.ndarray, " N"]:
        """The probability integral transform of each observation: uniform between 0 and 1 where the model is right."""
        return scipy.special.ndtr(self.pull)

    def log_density(self) -> Float[np.ndarray, " N"]:
        """The logarithm of the predictive density of each observation; larger is better."""
        return -0.5 * self.pull**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)

    def crps(self) -> Float[np.ndarray, " N"]:
        """The continuous ranked probability score of each observation, in units of y; smaller is better."""
        z = self.pull
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return self.std * (z * (2 * scipy.special.ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))

    def coverage(self, level: float = 0.95) -> float:
        """The share of observations within their central prediction interval of probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level!r}")
        return float(np.mean(np.abs(self.pull) <= scipy.special.ndtri(0.5 + level / 2)))

    def scores(self) -> dict[str, float]:
        """Root mean square error, mean CRPS, mean log density, and coverage of 95% intervals."""
        return {
            "rmse": float(np.sqrt(np.mean((self.observed - self.mean) ** 2))),
            "crps": float(np.mean(self.crps())),
            "log_density": float(np.mean(self.log_density())),
            "coverage": self.coverage(),
        }


class Calibration(NamedTuple):
    """Whether error bars are right, and in words how they are off."""

    right: bool
    words: str


UNSEEN, ERRORS = 0.05, 3.0  # deviations of a share that count as none: so much, or so many standard errors


def describe_calibration(pit: Float[np.ndarray, " N"]) -> Calibration:
    """What probability integral transforms say of error bars: a hump in their histogram, a bowl, a slope, or nothing."""
    pit = np.clip(np.ravel(pit), 1e-12, 1 - 1e-12)
    within = lambda share: float(np.mean(np.abs(pit - 0.5) <= share / 2))
    allowed = lambda share: max(
        UNSEEN * 2 * np.sqrt(share * (1 - share)), ERRORS * np.sqrt(share * (1 - share) / len(pit))
    )
    half, most, above = within(0.5), within(0.95), float(np.mean(pit > 0.5))
    held = f"50% intervals hold {100 * half:.0f}% of the true values, 95% intervals {100 * most:.0f}%"
    ratio = float(np.median(np.abs(scipy.special.ndtri(pit)))) / QUARTILE
    if abs(above - 0.5) > allowed(0.5):
        return Calibration(
            False,
            f"The predictions are off to one side (a slope): {100 * above:.0f}% of the true values lie above.",
        )
    if half > 0.5 + allowed(0.5) and most < 0.95 - allowed(0.95):
        return Calibration(
            False, f"Most errors are smaller than stated and a few much larger (outliers): {held}."
        )
    if half > 0.5 + allowed(0.5) or most > 0.95 + allowed(0.95):
        return Calibration(
            False,
            f"The error bars are too wide (a hump): {held}; a typical error is {ratio:.2f} of the one stated.",
        )
    if half < 0.5 - allowed(0.5) or most < 0.95 - allowed(0.95):
        return Calibration(
            False,
            f"The error bars are too narrow (a bowl): {held}; a typical error is {ratio:.2f} of the one stated.",
        )
    return Calibration(True, f"The error bars are right (flat): {held}.")


QUARTILE = float(scipy.special.ndtri(0.75))  # of the absolute value of a standard normal: its median


def group_numbers(groups: Any, count: int) -> Int[np.ndarray, " N"]:
    """A whole number from 0 on for each observation, from one label each; each is a group of its own for None."""
    if groups is None:
        return np.arange(count)
    labels = np.asarray(groups)
    if labels.shape != (count,):
        raise ValueError(
            f"groups: expected one label per observation, shape {(count,)}, got {labels.shape}; observations with "
            "the same label are left out together"
        )
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise ValueError("groups: expected a label for every observation, got some that are NaN or infinite")
    numbers = np.unique(labels, return_inverse=True)[1].reshape(-1)
    if np.max(numbers) == 0:
        raise ValueError(f"groups: expected at least two groups, got one, with all {count} observations")
    return numbers


def members(numbers: Int[np.ndarray, " N"]) -> list[Int[np.ndarray, " n"]]:
    """The observations of each group."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def without_group(
    precision: Float[np.ndarray, "n n"],
    of_trend: Float[np.ndarray, "n n"],
    alpha: Float[np.ndarray, " n"],
    numbers: Int[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Of one group: observed values less their predictions, and the predictions' standard deviations.

    With A the data's covariance and P = A^-1 - A^-1 X (X' A^-1 X)^-1 X' A^-1, the others predict the group with an error
    of (P_II)^-1 (P y)_I and a covariance of (P_II)^-1. Given are the block of A^-1, what the trend takes off it, and P y.
    `numbers` says which observations they are.
    """
    own = precision - of_trend
    chol = np.linalg.cholesky(precision)
    half = np.linalg.solve(
        chol, np.linalg.solve(chol, own).T
    )  # near the identity, unless the group decides on the trend
    if np.linalg.eigvalsh((half + half.T) / 2)[0] < LEFT:
        raise ValueError(
            f"groups: expected groups without which the data still determine the trend, got one of {len(own)} "
            f"observations (first: number {int(np.min(numbers))}) that alone decides on a coefficient; take smaller "
            "groups, or a simpler trend"
        )
    covariance = np.linalg.inv(own)
    return covariance @ alpha, np.sqrt(np.diag(covariance))


LEFT = 1e-9  # of a trend's determination, that a group must leave to the others
