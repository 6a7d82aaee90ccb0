"""`foresee doctor`: what it finds, with which command it mends it, and when it says broken."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from typer.testing import CliRunner

import foresee
from foresee.cli.app import app
from foresee.kernels import tiled

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
ASKED = ["rich>=13", "label-server>=2; extra == 'label'", "foresee[label]; extra == 'dev'"]
ASKED += ["linter>=1; extra == 'dev'", "msvc>=9; platform_system == 'Windows' and extra == 'dev'"]


@pytest.fixture
def installed(monkeypatch):
    """Versions of packages, None: not there; what is not in it is as on this machine."""
    versions = {"rich": "15.0.0", "label-server": "2.1", "linter": "1.0"}
    about = SimpleNamespace(
        get_all={"Requires-Dist": ASKED, "Provides-Extra": ["dev", "label"]}.get
    )

    real = metadata.version

    def version(name):
        if name in versions and versions[name] is None:
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    monkeypatch.setattr(metadata, "version", version)
    return versions


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *words])


def facts():
    done = doctor("--json")
    return done.exit_code, json.loads(done.stdout)


def test_this_installation_is_whole():
    code, found = facts()
    assert (code, found["broken"]) == (0, [])
    assert found["foresee"] == foresee.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    versions = {p["name"]: p["version"] for p in found["required"]}
    assert versions["torch"] == metadata.version("torch")
    assert all(p["fits"] for p in found["required"])
    assert found["devices"]["threads"] == torch.get_num_threads()


def test_every_extra_is_told():
    _, found = facts()
    if set(found["extras"]) != set(PROJECT["optional-dependencies"]):
        pytest.skip("the installation is older than pyproject.toml: run make")
    names = {Requirement(line).name for line in PROJECT["optional-dependencies"]["label"]}
    assert {p["name"] for p in found["extras"]["label"]["packages"]} == names


def test_what_is_missing_comes_with_its_command(installed):
    assert facts()[1]["extras"] == {
        "dev": {
            "packages": [
                {"name": "label-server", "asked": ">=2", "version": "2.1", "fits": True},
                {"name": "linter", "asked": ">=1", "version": "1.0", "fits": True},
            ],
            "command": None,
        },
        "label": {
            "packages": [{"name": "label-server", "asked": ">=2", "version": "2.1", "fits": True}],
            "command": None,
        },
    }
    installed["label-server"] = None
    done = doctor()
    assert done.exit_code == 0
    assert "label-server missing" in done.stdout
    for extra in ("dev", "label"):
        assert f'pip install "foresee[{extra}]"' in done.stdout

    installed["label-server"] = "1.9"
    assert "label-server 1.9 (not >=2)" in doctor().stdout
    assert facts()[1]["extras"]["label"]["command"] == 'pip install "foresee[label]"'


@pytest.mark.parametrize(("version", "said"), [(None, "rich is missing"), ("12.0", "rich 12.0")])
def test_a_required_package_that_is_missing_or_too_old_is_broken(installed, version, said):
    installed["rich"] = version
    done = doctor()
    assert done.exit_code == 1
    assert done.stderr == f'broken: {said}: pip install "rich>=13"\n'
    code, found = facts()
    assert (code, len(found["broken"])) == (1, 1)


def test_a_package_that_was_never_installed_is_broken(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", nothing)
    done = doctor()
    assert done.exit_code == 1
    assert "foresee is not installed" in done.stderr
    assert "pip install ." in done.stderr


def test_a_torch_that_does_not_load_is_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, found = facts()
    assert (code, found["devices"]) == (1, None)
    assert "foresee.kernels does not load" in found["broken"][0]
    assert "torch" in found["broken"][0]
    assert doctor().exit_code == 1


def test_gpus_and_whether_the_fused_kernels_run_on_them(monkeypatch, installed):
    class Properties:
        name, total_memory, major, minor = "NVIDIA H200", 139 << 30, 9, 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties)
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(tiled, "_triton", lambda: tiled)  # any module
    installed["triton"] = "3.9.0"
    assert facts()[1]["devices"]["gpus"] == [
        {"name": "NVIDIA H200", "gib": 139.0, "capability": "9.0", "fused": True}
    ]
    assert "cuda:0" in doctor().stdout
    assert "fused kernels by triton 3.9.0" in doctor().stdout

    capability = (8, 0)
    assert "no fused kernels: they need capability 9.0" in doctor().stdout
    capability = (9, 0)
    monkeypatch.setattr(tiled, "_triton", lambda: None)
    installed["triton"] = None
    assert "no fused kernels: pip install triton" in doctor().stdout


def test_what_torch_warns_of_is_shown(monkeypatch):
    def is_available():
        import warnings

        warnings.warn("the driver is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    done = doctor()
    assert done.exit_code == 0
    assert "the driver is too old" in done.stdout
    assert "no GPU that torch sees" in done.stdout


def test_folders_that_numba_takes_in_its_order(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.chdir(tmp_path)
    first, *_, last = facts()[1]["folders"]
    assert first == {
        "purpose": "compiled kernels",
        "path": str(tmp_path / "new"),
        "writable": True,
    }
    assert last["path"] == str(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, found = facts()
    assert code == 1
    assert "NUMBA_CACHE_DIR" in found["broken"][0]
    assert [f["purpose"] for f in found["folders"]].count("compiled kernels") == 3


def test_nobody_has_a_home(monkeypatch, tmp_path):
    """As in a container that runs as a user whom nothing knows."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: str(path) == str(tmp_path))
    code, found = facts()
    assert (code, found["broken"]) == (0, [])


def test_versions_are_read_without_importing_packages():
    code = (
        "import sys; from foresee.cli import doctor; doctor._devices = lambda: None; "
        "doctor.examine(); print([m for m in ('torch', 'numpy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
