"""The documents say what happens: their code and their commands are run as they stand."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpu
import peers
import tiny
from foresee.cli.app import app
from foresee.lab import paper, runner
from foresee.lab.store import trials

pytestmark = pytest.mark.usefixtures("one_thread")
DOCS = Path(__file__).parents[1] / "docs"
README = " ".join((DOCS.parent / "README.md").read_text().split())


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty one, to work in."""
    monkeypatch.chdir(tmp_path)
    runner._prepared.cache_clear()  # its paths are relative to a folder that we leave
    return tmp_path


def foresee(line):
    words = shlex.split(line)
    assert words[0] == "foresee"
    return CliRunner().invoke(app, words[1:])


def test_adding_a_score(folder, monkeypatch):
    monkeypatch.setattr(paper, "OURS", tiny.BOTH)
    score, check = blocks("add-a-score.md", "python")
    run, report = blocks("add-a-score.md", "sh")[0].splitlines()
    Path("covariance.py").write_text(score)
    exec(score + check, {})
    assert "--seeds 3 --jobs 2" in run
    shorter = run.replace("--seeds 3 --jobs 2", "--seeds 1")
    done = foresee(shorter)
    assert done.exit_code == 0, done.stderr
    found = trials(folder / "runs")
    assert [t.method for t in found] == ["MELL", "Random", "covariance"]
    assert all(t.finished for t in found)
    done = foresee(report)
    assert done.exit_code == 0, done.stderr
    assert Path("report/index.html").exists()

    Path("covariance.py").write_text(score + "\n# changed\n")
    refused = foresee(shorter)
    assert refused.exit_code == 1
    assert "another configuration" in refused.stderr


def test_figures_of_a_gpu_are_those_that_were_measured():
    report = json.loads(Path(gpu.__file__).with_suffix(".json").read_text())
    usual = {"score": "MELL", "c": 10, "T": 100, "targets": 100}
    (row,) = (row for row in report["kernels"] if usual.items() <= row.items())
    assert f"{gpu.shown(row['ms'])} ms on one H200" in README
    assert (DOCS / "gpu.md").read_text().endswith(gpu.page(report))


def test_figures_beside_other_libraries_are_those_that_were_measured():
    report = json.loads(Path(peers.__file__).with_suffix(".json").read_text())
    assert {row["task"] for row in report["rows"]} == {*peers.TASKS}
    assert (DOCS / "speed.md").read_text().endswith(peers.page(report))
    times = [theirs / ours for ours, theirs in (row["s"] for row in report["rows"])]
    assert f"is {gpu.shown(min(times))} to {gpu.shown(max(times))} times as fast" in README


def test_suggestions_from_files(folder):
    exec(blocks("suggest.md", "python")[0], {})
    done = [foresee(line) for line in blocks("suggest.md", "sh")[0].splitlines()]
    assert [d.exit_code for d in done] == [0] * 3, [d.stderr for d in done]
    one, other = (Path(name).read_text().splitlines() for name in ("picks.csv", "next.csv"))
    assert one[0] == "index,score,rank,id,promise"
    ids = [line.split(",")[3] for line in one[1:] + other[1:]]
    assert len(set(ids)) == 40
    assert all(name.startswith("photo-") for name in ids)


def test_experiments_on_ones_own_data(folder):
    data, fit = blocks("own-experiments.md", "python")
    exec(data, {})
    commands = blocks("own-experiments.md", "sh")[0]
    for line in commands.replace("--seeds 2", "--seeds 1 --methods mell,random").splitlines():
        done = foresee(line)
        assert done.exit_code == 0, done.stderr
    assert [t.finished for t in trials(folder / "runs")] == [True] * 2
    assert Path("report/index.html").exists()

    Path("fit.py").write_text(fit)
    Path("wine.toml").write_text(blocks("own-experiments.md", "toml")[0])
    done = foresee("foresee run wine.toml --seeds 1 --methods random --out own")
    assert done.exit_code == 0, done.stderr
    (trial,) = trials(folder / "own")
    assert trial.experiment.network == "fit.py:fit"


def test_a_first_comparison(folder):
    run, status, report = blocks("start/researcher.md", "sh")[0].splitlines()
    shorter = run.replace("default,badge,mell,random --seeds 3", "badge,random --seeds 1")
    for line in (f"{shorter} --budget 0.02", status, report):
        done = foresee(line)
        assert done.exit_code == 0, done.stderr
    assert [t.method for t in trials(folder / "runs")] == ["BADGE", "Random"]
    assert Path("report/index.html").exists()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
