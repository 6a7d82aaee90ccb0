import signal

import pytest
import torch

from foresee.kernels import tiled


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


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Children are interrupted by tests, but inherit that a background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
