"""HIPGPClassifier: the probability of one of two classes as a field, in scikit-learn's conventions.

>>> import numpy as np
>>> import hipgp as hg
>>> x = np.random.default_rng(0).uniform(size=(60, 1))
>>> side = np.where(x[:, 0] + 0.1 * np.sin(99 * x[:, 0]) > 0.5, "right", "left")
>>> model = hg.HIPGPClassifier(hg.Matern52(4.0, 0.5), learn=False).fit(x, side)
>>> model.predict([[0.1], [0.9]]).tolist()
['left', 'right']
"""

from typing import Any, Self

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from hipgp.model.counts import Bernoulli
from hipgp.model.estimators import GridEstimator


class HIPGPClassifier(GridEstimator, ClassifierMixin, BaseEstimator):
    """Gaussian-process classification into two classes, for 1 to 4 columns and very many rows.

    The probability of the second class is a logistic function of a Gaussian process. Parameters are those of
    `HIPGPRegressor`; there is no noise. For more classes, `sklearn.multiclass.OneVsRestClassifier(HIPGPClassifier())`.

    Attributes
    ----------
    classes_ : the two labels, sorted.
    regressor_ : the fitted HIPGPRegressor of the probability, with `kernel_`, `grid_`, `gp_` and `posterior_`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the kernel from X, (N, D), and labels y, (N,), and condition on them."""
        from hipgp.estimator import HIPGPRegressor

        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"y: expected labels of two classes, got {len(self.classes_)} class{'es' * (len(self.classes_) > 1)}; for "
                "more than two use sklearn.multiclass.OneVsRestClassifier(HIPGPClassifier()). Only binary classification "
                "is supported."
            )
        model = HIPGPRegressor(link="logistic", likelihood=Bernoulli(), **self.get_params(deep=False))
        self.regressor_ = model.fit(X, number.astype(float))
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N 2"]:
        """The probability of each class at X, over all that is not known of the field."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        second = np.clip(self.regressor_.predict(X), 0.0, 1.0)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The likelier class at X."""
        likelier = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[likelier]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        return tags
