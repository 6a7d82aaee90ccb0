"""From learning curves to the paper's tables."""

from foresee.report.tables import area_under_curve as area_under_curve
from foresee.report.tables import win_tie_loss as win_tie_loss
