import pytest
import real
from PIL import Image
from sklearn.datasets import load_digits


@pytest.fixture(scope="session")
def studio(tmp_path_factory):
    if not real.is_installed():
        pytest.skip("there is no Label Studio in .venv-label-studio: make test-label-studio")
    found = real.Studio(tmp_path_factory.mktemp("label-studio"))
    yield found
    found.stop()


@pytest.fixture
def backends(tmp_path):
    """Starts backends, which end with the test."""
    found = []

    def start(project, *options, **more):
        folder = tmp_path / f"backend-{len(found)}"
        folder.mkdir()
        found.append(real.Backend(project, folder, *options, **more))
        return found[-1]

    yield start
    for backend in found:
        backend.kill()


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """Eighty images, whose names tell what they are."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits().images, load_digits().target
    for i in range(80):
        pixels = (images[i] * 15.9).astype("uint8").repeat(8, 0).repeat(8, 1)
        Image.fromarray(pixels).save(root / f"{i:03d}is{labels[i]}.png")
    return sorted(root.iterdir())


@pytest.fixture
def truth():
    """What the image of a task is."""
    return lambda task: task["data"]["image"].rpartition("is")[2].removesuffix(".png")
