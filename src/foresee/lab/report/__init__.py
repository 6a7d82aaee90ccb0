"""From learning curves to the paper's tables, and to a page to read them on."""

from foresee.lab.report.folder import write as write
from foresee.lab.report.statistics import area_under_curve as area_under_curve
from foresee.lab.report.statistics import win_tie_loss as win_tie_loss
from foresee.lab.report.tables import Grid as Grid
from foresee.lab.report.tables import auc_table as auc_table
