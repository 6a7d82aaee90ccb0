"""The paper's own areas under the learning curve, kept in paper_auc.csv as they were printed."""

import csv
from functools import cache
from importlib.resources import files

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


def order(column: str) -> list[str]:
    """The data sets or the methods as the paper lists them."""
    return list(dict.fromkeys(row[column] for row in _rows()))


@cache
def _rows() -> list[dict[str, str]]:
    text = (files("foresee.lab.report") / "paper_auc.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
