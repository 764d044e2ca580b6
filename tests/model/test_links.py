"""Links: increasing functions with their slopes and inverses."""

import jax.numpy as jnp
import numpy as np
import pytest

import hipgp as hg
from hipgp.model.links import LINKS, as_link

F = np.linspace(-4.0, 4.0, 33)


@pytest.mark.parametrize("link", [*LINKS.values(), hg.Link(lambda f: f + jnp.exp(f))], ids=lambda k: k.name)
def test_slope_and_inverse_belong_to_the_function(link):
    h = 1e-6
    slope = (np.asarray(link(F + h)) - np.asarray(link(F - h))) / (2 * h)
    np.testing.assert_allclose(link.slope(jnp.asarray(F)), slope, rtol=1e-6)
    np.testing.assert_allclose(link.inverse(link(F)), F, rtol=1e-8, atol=1e-8)


def test_a_name_and_the_link_itself_are_the_same():
    assert as_link("exp") is LINKS["exp"] and as_link(LINKS["exp"]) is LINKS["exp"]
    assert as_link(None).identity


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("log", "link: expected one of .*\"exp\".*got 'log'"),
        (3, "link: expected one of"),
    ],
)
def test_an_unknown_link_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        hg.GP(hg.Matern32(), hg.Grid.cover(0.0, 1.0, shape=8), link=given)


@pytest.mark.parametrize(
    ("g", "message"),
    [
        (lambda f: f**2, "expected an increasing function"),
        (lambda f: -f, "expected an increasing function"),
        (jnp.log, "expected an increasing function, finite"),
        (lambda f: jnp.sum(f), r"expected one value for each element, shape \(49,\), got \(\)"),
        (lambda f: np.exp(np.asarray(f)), "made of jax.numpy"),
    ],
)
def test_a_function_that_is_no_link_is_refused(g, message):
    with pytest.raises(ValueError, match=message):
        hg.Link(g)
