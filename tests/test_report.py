import csv
from pathlib import Path

import numpy as np
import pytest

from foresee.report import area_under_curve, win_tie_loss
from foresee.report.tables import Auc, Tally

DATA = Path(__file__).parent / "data"


def rows(name):
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def test_the_papers_win_tie_loss_table():
    aucs = {}
    for row in rows("auc.csv"):
        if row["mean_auc"]:  # BADGE did not finish everywhere
            experiment = aucs.setdefault((row["dataset"], row["shift"]), {})
            experiment[row["method"]] = Auc(float(row["mean_auc"]), float(row["std_auc"]))
    assert len(aucs) == 14
    published = {
        row["mell_against"]: Tally(int(row["wins"]), int(row["ties"]), int(row["losses"]))
        for row in rows("win_tie_loss.csv")
    }
    assert win_tie_loss(aucs, "MELL") == published


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
