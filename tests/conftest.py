import pytest

from foresee.kernels import tiled


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    """Run a test twice: with the compiled loops and with their plain torch counterpart."""
    if request.param == "torch":
        monkeypatch.setattr(tiled, "_compiled", lambda: None)
    else:
        assert tiled._compiled() is not None
    return request.param
