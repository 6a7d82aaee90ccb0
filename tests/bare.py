"""The wheel, in an environment that holds it and what it requires: make dist runs this there.

It holds every file of the package, every module loads or lacks an extra, the README's first example
gives what it says, and the command line tells which extra is missing.
"""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a module may lack, as it belongs to an extra.
EXTRAS = {"anyio", "ray", "skactiveml", "starlette", "triton", "uvicorn"}


def check_files(wheel):
    tree = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "foresee").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("foresee/")}
    assert there == tree, f"the wheel and the tree differ by {sorted(there ^ tree)}"


def check_modules():
    import foresee

    assert Path(sys.prefix) in Path(foresee.__file__).parents, "this is the tree, not the wheel"
    assert version("foresee") == foresee.__version__
    loaded = 0
    for module in pkgutil.walk_packages(foresee.__path__, "foresee.", onerror=lambda name: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            loaded += 1
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in EXTRAS:
                raise
    assert loaded > 50, loaded


def check_readme():
    first = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert first, "the README has no example"
    example = doctest.DocTestParser().get_doctest(first[1], {}, "README.md", "README.md", 0)
    assert doctest.DocTestRunner().run(example).failed == 0
    assert example.examples


def check_commands():
    foresee = str(Path(sys.executable).with_name("foresee"))

    def said(*words):
        return subprocess.run([foresee, *words], capture_output=True, text=True, check=False)

    found = said("doctor")
    assert found.returncode == 0, found.stderr
    for extra in ("label", "ray"):
        assert f'pip install "foresee[{extra}]"' in found.stdout
    refused = said("label", ".")
    assert refused.returncode == 2
    assert "pip install 'foresee[label]'" in refused.stderr


def check_release():
    now = version("foresee")
    assert re.search(rf"^version: {now}$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert re.search(rf"^## {now}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


if __name__ == "__main__":
    check_files(sys.argv[1])
    check_modules()
    check_readme()
    check_commands()
    check_release()
    print(f"{Path(sys.argv[1]).name}: whole, and its example runs")
