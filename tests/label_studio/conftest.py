import pytest
import real


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
