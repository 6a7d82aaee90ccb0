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
