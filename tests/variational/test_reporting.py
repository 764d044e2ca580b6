"""What a variational fit says of itself."""

import pytest

from hipgp.variational.reporting import verdict

SHORT = {"pcg_relative_error_max": 0.0, "pcg_unconverged": 0, "mean_gap_nats": 6.1}


@pytest.mark.parametrize("direct", [True, False])
def test_the_closed_form_is_advised_only_to_those_who_have_not_taken_it(direct):
    told = verdict({**SHORT, "direct": direct}, nats=1.0, pcg_error=1e-3)
    assert not told["converged"] and "6.1 nats short" in told["message"]
    assert ("direct=True" in told["message"]) is not direct
    assert ("epochs" in told["message"]) is not direct


def test_a_mean_close_to_the_optimum_is_converged():
    assert verdict({**SHORT, "mean_gap_nats": 0.5, "direct": True}, 1.0, 1e-3) == {
        "converged": True,
        "message": "converged",
    }
