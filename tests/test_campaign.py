"""The campaign of results/: its rounds are read, packed and gone on with."""

import tarfile
from dataclasses import replace
from pathlib import Path

import campaign
import pytest

import tiny
from foresee.lab import methods, runner, store


@pytest.fixture
def part(monkeypatch, tmp_path):
    """A campaign of one small part, in a folder of its own."""
    plan = campaign.Plan([replace(tiny.DIGITS, rounds=1)], ["Random", "BALD"], 2)
    monkeypatch.setattr(campaign, "PARTS", {"tiny": (plan,)})
    monkeypatch.setattr(campaign, "HERE", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return plan


def test_what_is_packed_is_gone_on_with(part, tmp_path, capsys):
    runs, place = tmp_path / "runs", runner.Place(tmp_path / "runs" / "tiny")
    first, *others = part.groups()
    assert campaign._run_group(first, place) == []
    campaign.status(["tiny"], runs)
    campaign.pack(["tiny"], runs)
    packed = tmp_path / "results" / "tiny" / "runs.tar.xz"
    before = packed.read_bytes()
    again = tmp_path / "again"
    campaign.unpack(["tiny"], again)
    campaign.pack(["tiny"], again)
    assert packed.read_bytes() == before
    for jobs in others:
        assert campaign._run_group(jobs, replace(place, out=again / "tiny")) == []
    campaign.status(["tiny"], again)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("tiny: 4 of 8 rounds, about 0:0")
    assert said[1] == "tiny: 8 of 8 rounds"
    assert len(store.trials(again / "tiny")) == 4
    campaign.pack(["tiny"], again)
    campaign.report(["tiny"])
    assert (tmp_path / "results" / "tiny" / "report" / "index.html").exists()


def test_committed_rounds_are_those_of_the_plans(tmp_path):
    for name, plans in campaign.PARTS.items():
        if not (Path(campaign.__file__).parent / name / "runs.tar.xz").exists():
            continue
        campaign.unpack([name], tmp_path)
        planned = {experiment for plan in plans for experiment in plan.experiments}
        found = store.trials(tmp_path / name)
        assert found
        assert {trial.experiment for trial in found} <= planned


def test_committed_rounds_of_the_default_are_gone_on_with(tmp_path):
    with tarfile.open(Path(campaign.__file__).parent / "mnist-small" / "runs.tar.xz") as tar:
        some = [m for m in tar.getmembers() if "noshift/Default-" in m.name]
        tar.extractall(tmp_path, some, filter="data")
    trials = [trial for trial in store.trials(tmp_path) if trial.rounds]
    assert trials
    for trial in trials:
        sampler = trial.header["method"]["sampler"]
        pixels = tuple(sampler["mean"]), tuple(sampler["std"])
        method = methods.method("Default", trial.experiment, *pixels, sampler["device"])
        with store.recording(
            tmp_path, trial.experiment, method, trial.seed, trial.header["data"]
        ) as recorder:
            assert recorder.done == trial.rounds


def test_holm_corrects_for_the_number_of_comparisons():
    assert campaign.holm_adjusted([0.01, 0.03, 0.04]) == pytest.approx([0.03, 0.06, 0.06])
    assert campaign.holm_adjusted([0.6, 0.7]) == [1, 1]


def test_the_default_is_compared_over_the_rounds_that_all_have(capsys):
    campaign.compare(["mnist-small"])
    text = capsys.readouterr().out
    readme = (Path(campaign.__file__).parent / "README.md").read_text().replace("−", "-")
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "±" in line]
    assert len(cells) > 9
    for _, _, _, difference, interval, *_ in cells:  # what the page says of them
        assert f"{difference.strip()} ({interval.strip()})" in readme
