"""Who chooses from a random subset of the pool? In the paper MELL and MEZL do, of MNIST 800 points.

The others are said to take the highest scores of the whole pool. Here they choose from such a
subset too, and MELL from the whole pool: is it the score that decides, or the subset?
"""

from foresee.scores import bald, entropy, entropy_mc, mell
from foresee.strategies import TopK

MELL_whole = TopK(mell, targets=100)
BALD_subset = TopK(bald, candidates=800, targets=0)
Entropy_MC_subset = TopK(entropy_mc, candidates=800, targets=0)
Entropy_subset = TopK(entropy, candidates=800, point=True)
