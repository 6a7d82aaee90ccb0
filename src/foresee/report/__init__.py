"""From learning curves to the paper's tables, and to a page to read them on."""

from foresee.report.folder import write as write
from foresee.report.grids import Grid as Grid
from foresee.report.grids import auc_table as auc_table
from foresee.report.tables import area_under_curve as area_under_curve
from foresee.report.tables import win_tie_loss as win_tie_loss
