"""The paper's own areas under the learning curve, kept in paper_auc.csv as they were printed."""

import csv
from functools import cache
from importlib.resources import files

from foresee.lab.experiment import Experiment
from foresee.lab.report.statistics import Auc


@cache
def aucs() -> dict[tuple[str, bool, str], Auc]:
    """Areas in per cent by data set in lower case, shift and method."""
    return {
        (row["dataset"].lower(), row["shift"] == "shift", row["method"]): Auc(
            float(row["mean_auc"]), float(row["std_auc"])
        )
        for row in _rows()
        if row["mean_auc"]  # BADGE did not finish everywhere
    }


def auc(experiment: Experiment, method: str) -> Auc | None:
    """The paper's figure for an experiment; none of settings that it does not have."""
    if experiment.setting == "narrow" or experiment.pool_noise:
        return None
    return aucs().get((experiment.dataset.lower(), experiment.shift, method))


def order(column: str) -> list[str]:
    """The data sets or the methods as the paper lists them."""
    return list(dict.fromkeys(row[column] for row in _rows()))


@cache
def _rows() -> list[dict[str, str]]:
    text = (files("foresee.lab.report") / "paper_auc.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
