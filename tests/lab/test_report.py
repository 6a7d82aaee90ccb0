import csv
import math
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.stats import ttest_rel

from foresee.lab.report import published
from foresee.lab.report.statistics import (
    Auc,
    Paired,
    Tally,
    area_under_curve,
    effective_classes,
    labels_needed,
    mean_std,
    paired,
    pairs,
    tally,
    win_tie_loss,
)

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared" / "paper" / "auc.csv"


def paired_tally(areas, one, other):
    tests = (pairs(row).get((one, other)) for row in areas.values())
    return tally(test.verdict for test in tests if test)


def test_the_papers_win_tie_loss_table():
    aucs = {}
    for (dataset, shift, method), auc in published.aucs().items():
        aucs.setdefault((dataset, shift), {})[method] = auc
    assert len(aucs) == 14
    with open(DATA / "win_tie_loss.csv", newline="") as file:
        printed = {
            row["mell_against"]: Tally(int(row["wins"]), int(row["ties"]), int(row["losses"]))
            for row in csv.DictReader(file)
        }
    assert win_tie_loss(aucs, "MELL") == printed


@pytest.mark.parametrize(("gap", "wins"), [(2.0, 0), (2.001, 1)])
def test_a_win_needs_more_than_the_two_deviations(gap, wins):
    aucs = {"any": {"ours": Auc(80 + gap, 1.0), "theirs": Auc(80.0, 1.0)}}
    assert win_tie_loss(aucs, "ours")["theirs"] == Tally(wins, 1 - wins, 0)
    assert win_tie_loss(aucs, "theirs")["ours"] == Tally(0, 1 - wins, wins)


def test_area_of_a_cubic_is_exact():
    n = np.arange(100, 1000, 100)  # 9 points: Simpson's rule integrates cubics exactly
    curve = 0.3 + 1e-9 * (n - 100.0) ** 3
    assert area_under_curve(n, curve) == pytest.approx(0.3 + 1e-9 * 800**3 / 4, rel=1e-12)


def test_area_of_a_flat_curve_is_its_height():
    assert area_under_curve([200, 280, 360, 440], [0.9] * 4) == pytest.approx(0.9)


def test_a_curve_that_ends_in_a_shorter_step_is_as_high_as_its_parts():
    """Where the pool ran out; Simpson's rule for uneven steps gives 0.59 for the first of these."""
    mean = (90 * (0.65 + 0.775) + 10 * (0.775 + 0.9)) / 2 / 100
    assert area_under_curve([10, 100, 110], [0.65, 0.775, 0.9]) == pytest.approx(mean)
    n, curve = [10, 100, 190, 200], [0.5, 0.7, 0.8, 0.9]
    assert area_under_curve(n, curve) == pytest.approx((180 * 4.1 / 6 + 10 * 0.85) / 190)
    assert area_under_curve([10, 100], [0.5, 0.7]) == pytest.approx(0.6)
    n, curve = [10, 30, 40, 50], [0.5, 0.8, 0.9, 0.92]  # a round is left out, and no pool ran out
    assert area_under_curve(n, curve) == pytest.approx(simpson(curve, x=n) / 40)


def test_the_published_figures_are_the_papers():
    assert len(published.aucs()) == 14 * 8 - 5  # BADGE did not finish everywhere
    assert published.aucs()["mnist", True, "Entropy"] == Auc(84.06, 3.54)
    assert published.order("method")[:3] == ["MELL", "MEZL", "Random"]


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="no shared folder beside the repository")
def test_the_published_figures_are_those_of_the_shared_folder():
    assert (files("foresee.lab.report") / "paper_auc.csv").read_bytes() == SHARED.read_bytes()


def test_differences_of_a_ten_thousandth_are_tested_too():
    ours, theirs = [0.9001, 0.9003, 0.9002], [0.9, 0.9, 0.9]
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found.p == pytest.approx(ttest_rel(ours, theirs).pvalue)


def test_one_seed_has_no_deviation_and_wins_nothing():
    assert mean_std([0.5]).mean == 0.5
    assert math.isnan(mean_std([0.5]).std)
    aucs = {"any": {"ours": Auc(90.0, math.nan), "theirs": Auc(10.0, 0.1)}}
    assert win_tie_loss(aucs, "ours")["theirs"] == Tally(0, 0, 0)


def test_the_paired_test_of_a_worked_example():
    # Differences 1, 2, 3, 2: mean 2, sd √(2/3), t = 2 / (√(2/3) / 2) = 2√6 with 3 degrees.
    result = paired({0: 2.0, 1: 4.0, 2: 6.0, 3: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0, 3: 3.0, 9: 0.0})
    assert result.seeds == 4
    assert result.difference == pytest.approx(2.0)
    assert result.p == pytest.approx(0.016277, abs=1e-6)


def test_the_paired_test_is_scipys():
    rng = np.random.default_rng(0)
    for n in (2, 3, 10):
        ours, theirs = rng.normal(size=(2, n))
        result = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
        assert result.p == pytest.approx(ttest_rel(ours, theirs).pvalue)
        assert result.difference == pytest.approx((ours - theirs).mean())


def test_the_paired_test_without_spread():
    ours = {0: 0.5, 1: 0.6, 2: 0.7}
    assert paired(ours, ours).p == 1.0
    assert paired(ours, {seed: area - 0.1 for seed, area in ours.items()}).p == 0.0
    assert paired(ours, {0: 0.1}) is None
    assert paired(ours, {}) is None


def test_a_paired_win_needs_significance_and_counts_each_experiment_once():
    seeds = range(6)
    base = {seed: 0.8 + 0.05 * seed for seed in seeds}  # seeds differ more than methods do
    better = {seed: area + 0.01 + 0.001 * (seed % 2) for seed, area in base.items()}
    same = {seed: area + 0.01 * (-1) ** seed for seed, area in base.items()}
    areas = {
        "one": {"ours": better, "theirs": base},
        "two": {"ours": same, "theirs": base},
        "three": {"ours": base, "theirs": better},
        "four": {"ours": better},
        "five": {"ours": better, "theirs": {0: 0.1}},
    }
    assert paired_tally(areas, "ours", "theirs") == Tally(1, 1, 1)
    means = {name: {m: mean_std(a.values()) for m, a in row.items()} for name, row in areas.items()}
    assert win_tie_loss(means, "ours") == {"theirs": Tally(0, 3, 0)}, "the paper's rule sees none"


@pytest.mark.parametrize(("gaps", "wins"), [((1.0, 2.0, 3.0), 0), ((1.0, 2.0, 3.0, 2.0), 1)])
def test_a_paired_win_is_below_one_in_twenty(gaps, wins):  # p = 0.074 and p = 0.016
    areas = {"any": {"ours": dict(enumerate(gaps)), "theirs": dict.fromkeys(range(4), 0.0)}}
    assert paired_tally(areas, "ours", "theirs") == Tally(wins, 1 - wins, 0)


def test_significance_begins_below_one_in_twenty():
    results = [Paired(3, difference, p) for p in (0.0499, 0.05, 0.0501) for difference in (1, -1)]
    assert [result.verdict for result in results] == [1, -1, 0, 0, 0, 0]


def test_wins_and_losses_mirror_by_both_rules():
    rng = np.random.default_rng(1)
    areas = {
        f"experiment {e}": {
            m: dict(enumerate(rng.normal(0.8 + 0.01 * i, 0.01, 5))) for i, m in enumerate("abc")
        }
        for e in range(20)
    }
    means = {name: {m: mean_std(a.values()) for m, a in row.items()} for name, row in areas.items()}

    def by_the_paper(one, other):
        return win_tie_loss(means, one)[other]

    def by_the_test(one, other):
        return paired_tally(areas, one, other)

    for rule in (by_the_paper, by_the_test):
        for one, other in ("ab", "bc", "ca"):
            forth, back = rule(one, other), rule(other, one)
            assert forth == Tally(back.losses, back.ties, back.wins)
            assert sum(forth) == 20
            assert forth.wins + forth.losses > 0


@pytest.mark.parametrize(
    ("goal", "labels"), [(0.5, 100), (0.4, 100), (0.6, 150), (0.8, 300), (0.75, 250), (0.81, None)]
)
def test_labels_needed(goal, labels):
    found = labels_needed([100, 200, 300], [0.5, 0.7, 0.8], goal)
    assert math.isnan(found) if labels is None else found == pytest.approx(labels)


def test_labels_needed_is_the_first_crossing_of_a_dense_curve():
    rng = np.random.default_rng(2)
    sizes = np.arange(0, 1100, 100)
    dense = np.arange(0, 1000.05, 0.1)
    for _ in range(20):
        curve = np.cumsum(rng.normal(0.05, 0.1, len(sizes)))
        goal = rng.uniform(curve[0], curve.max())
        first = dense[np.argmax(np.interp(dense, sizes, curve) >= goal)]
        assert labels_needed(sizes, curve, goal) == pytest.approx(first, abs=0.11)


def test_labels_needed_steps_over_what_is_not_known():
    assert labels_needed([100, 200, 300], [0.4, math.nan, 0.6], 0.5) == pytest.approx(200)
    assert math.isnan(labels_needed([100], [math.nan], 0.5))


def test_effective_classes():
    assert effective_classes([7] * 10) == pytest.approx(10)
    assert effective_classes([5, 0, 0]) == pytest.approx(1)
    shares = np.array([0.5, 0.25, 0.25])
    assert effective_classes(shares) == pytest.approx(2**1.5)
