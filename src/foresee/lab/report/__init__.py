"""From learning curves to the paper's tables, and to a page to read them on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.lab.report.folder import write as write
    from foresee.lab.report.statistics import area_under_curve as area_under_curve
    from foresee.lab.report.statistics import win_tie_loss as win_tie_loss
    from foresee.lab.report.tables import Grid as Grid
    from foresee.lab.report.tables import auc_table as auc_table

_HOMES = {
    "write": "folder",
    "area_under_curve": "statistics",
    "win_tie_loss": "statistics",
    "Grid": "tables",
    "auc_table": "tables",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"foresee.lab.report.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'foresee.lab.report' has no attribute {name!r}")
