import signal
from functools import partial

import hypothesis
import pytest
import torch

from foresee.kernels import tiled

# The same examples on every machine; others are sought with --hypothesis-profile explore.
hypothesis.settings.register_profile("repeatable", derandomize=True, max_examples=50, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    """Run a test twice: with the compiled loops and with their plain torch counterpart."""
    if request.param == "torch":
        monkeypatch.setattr(tiled, "_compiled", lambda: None)
    else:
        assert tiled._compiled() is not None
    return request.param


@pytest.fixture(scope="module")
def one_thread():
    """Threads cost small networks more than they bring, on a busy machine ten times more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def short_chain(monkeypatch):
    """Two draws in each of two cycles, for methods that draw by a chain of a network's weights."""
    from foresee.lab import methods

    monkeypatch.setattr(
        methods, "CyclicalNetwork", partial(methods.CyclicalNetwork, cycles=2, per_cycle=2)
    )


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Children are interrupted by tests, but inherit that a background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
