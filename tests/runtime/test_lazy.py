"""A value that is computed when it is first asked for."""

import pickle
import threading
import time

from hipgp.runtime.lazy import Lazy


def test_threads_that_ask_at_once_get_one_value():
    made, start = [], threading.Barrier(4)

    def make():
        time.sleep(0.05)  # long enough for the others to ask
        made.append(object())
        return made[-1]

    lazy, found = Lazy(make), []

    def ask():
        start.wait()
        found.append(lazy.get())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and found == made * 4


def test_a_value_that_is_given_is_not_made():
    assert Lazy(dict, None).get() is None  # None is a value too


def test_a_forgotten_value_is_made_again():
    lazy = Lazy(list)
    first = lazy.get()
    assert lazy.is_made
    lazy.forget()
    assert not lazy.is_made and lazy.get() is not first


def test_a_copy_makes_its_own():
    lazy = Lazy(list)
    assert lazy.get() is lazy.get()
    copy = pickle.loads(pickle.dumps(lazy))
    assert copy.get() == [] and copy.get() is not lazy.get()
