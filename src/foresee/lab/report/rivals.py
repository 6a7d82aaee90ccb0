"""Who wins against whom, over all experiments."""

from collections.abc import Sequence
from typing import TypeAlias

from foresee.lab.report.statistics import Tally, tally, win_tie_loss
from foresee.lab.report.study import Study, methods

# Wins, ties and losses by rule ("paper" or "paired"), method and other method.
Tallies: TypeAlias = dict[str, dict[str, dict[str, Tally]]]


def rivals(found: Sequence[Study]) -> Tallies:
    """Compare every method with every other by the paper's rule and by the paired t-test."""
    known = {method for study in found for method in study.areas}
    names = [name for name in methods(t for s in found for t in s.all) if name in known]
    means = {study.name: study.mean_areas for study in found}
    return {
        "paper": {one: win_tie_loss(means, one) for one in names},
        "paired": {
            one: {
                other: tally(test.verdict for s in found if (test := s.paired.get((one, other))))
                for other in sorted(known - {one})
            }
            for one in names
        },
    }
