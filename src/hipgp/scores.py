"""Leave-one-out and leave-group-out predictions of the observations, and their scores."""

from typing import Any, NamedTuple

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float, Int


class LeaveOut(NamedTuple):
    """Predictions of each observation, noise included, from the observations outside its group, in the data's order.

    `groups` holds the number of each observation's group. `std_error` is the largest relative error of the standard
    deviations over a few groups that were also solved exactly; it is 0.0 if all are exact.
    """

    observed: Float[np.ndarray, " N"]
    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]
    groups: Int[np.ndarray, " N"]
    std_error: float

    def __repr__(self) -> str:
        count, groups = len(self.observed), len(np.unique(self.groups))
        together = "" if groups == count else f" in {groups:,} groups"
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores().items())
        words = describe_calibration(self.pit()).words
        return f"LeaveOut: {count:,} observations{together}\n  scores: {scores}\n  in words: {words}"

    def in_unit(self, power: int) -> "LeaveOut":
        """The predictions in a unit of y that is 2^power times smaller."""
        if power == 0:
            return self
        observed, mean, std = (np.ldexp(a, power) for a in (self.observed, self.mean, self.std))
        return self._replace(observed=observed, mean=mean, std=std)

    @property
    def pull(self) -> Float[np.ndarray, " N"]:
        """The errors divided by their standard deviations: standard normal if the model is right."""
        return (self.observed - self.mean) / self.std

    def pit(self) -> Float[np.ndarray, " N"]:
        """The probability integral transform of each observation: uniform between 0 and 1 if the model is right."""
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
    """A judgement of error bars by the histogram of probability integral transforms: a hump, a bowl, a slope, or flat."""
    pit = np.clip(np.ravel(pit), 1e-12, 1 - 1e-12)
    within = lambda share: float(np.mean(np.abs(pit - 0.5) <= share / 2))
    allowed = lambda share: max(
        UNSEEN * 2 * np.sqrt(share * (1 - share)), ERRORS * np.sqrt(share * (1 - share) / len(pit))
    )
    half, most, above = within(0.5), within(0.95), float(np.mean(pit > 0.5))
    shares = f"50% intervals hold {100 * half:.0f}% of the values, 95% intervals {100 * most:.0f}%"
    ratio = float(np.median(np.abs(scipy.special.ndtri(pit)))) / QUARTILE
    if abs(above - 0.5) > allowed(0.5):
        return Calibration(
            False,
            f"The predictions are off to one side (a slope): {100 * above:.0f}% of the values lie above.",
        )
    if half > 0.5 + allowed(0.5) and most < 0.95 - allowed(0.95):
        return Calibration(
            False, f"Most errors are smaller than stated and a few much larger (outliers): {shares}."
        )
    if half > 0.5 + allowed(0.5) or most > 0.95 + allowed(0.95):
        return Calibration(
            False,
            f"The error bars are too wide (a hump): {shares}; a typical error is {ratio:.2f} of the one stated.",
        )
    if half < 0.5 - allowed(0.5) or most < 0.95 - allowed(0.95):
        return Calibration(
            False,
            f"The error bars are too narrow (a bowl): {shares}; a typical error is {ratio:.2f} of the one stated.",
        )
    return Calibration(True, f"The error bars are right (flat): {shares}.")


QUARTILE = 0.6744897501960817  # of the absolute value of a standard normal: its median


def group_numbers(groups: Any, count: int) -> Int[np.ndarray, " N"]:
    """The number of each observation's group, counted from 0, from its label; with None every observation is a group."""
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
    """The indices of the observations in each group."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def without_group(
    precision: Float[np.ndarray, "n n"],
    of_trend: Float[np.ndarray, "n n"],
    alpha: Float[np.ndarray, " n"],
    numbers: Int[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The leave-out errors of one group I (observed minus predicted), and the standard deviations of its predictions.

    With A the data's covariance and P = A^-1 - A^-1 X (X' A^-1 X)^-1 X' A^-1, the errors are (P_II)^-1 (P y)_I and their
    covariance is (P_II)^-1. `precision` is the block (A^-1)_II, `of_trend` the block of the trend's part that P subtracts
    from it, `alpha` is (P y)_I, and `numbers` are the indices I.
    """
    projected = precision - of_trend
    chol = np.linalg.cholesky(precision)
    half = np.linalg.solve(
        chol, np.linalg.solve(chol, projected).T
    )  # near the identity, unless the group alone determines a coefficient of the trend
    if np.linalg.eigvalsh((half + half.T) / 2)[0] < LEAST_TREND_INFORMATION:
        raise ValueError(
            f"groups: expected groups without which the data still determine the trend, got one of {len(projected)} "
            f"observations (first: number {int(np.min(numbers))}) that alone determines a coefficient; take smaller "
            "groups, or a simpler trend"
        )
    covariance = np.linalg.inv(projected)
    return covariance @ alpha, np.sqrt(np.diag(covariance))


LEAST_TREND_INFORMATION = 1e-9  # fraction of the information on the trend that must remain without a group
