"""Threads for chunks of NumPy work."""

import os

from hipgp.runtime.threads import thread_count


def test_as_many_threads_as_cores_that_may_be_used(monkeypatch):
    """Sixteen threads on two cores of a machine of sixteen take turns, and their chunks each other's place in the cache."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 7}, raising=False)
    assert thread_count() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert thread_count() == 16
