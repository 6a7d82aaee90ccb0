"""Ways to choose a batch: a strategy takes (view, size, rng) and returns positions in the pool."""

from foresee.strategies.badge import Badge as Badge, RelevantBadge as RelevantBadge
from foresee.strategies.bait import Bait as Bait
from foresee.strategies.batch import BatchBALD as BatchBALD, BatchMell as BatchMell
from foresee.strategies.bounds import Best as Best, TopMell as TopMell, mell_top_k as mell_top_k
from foresee.strategies.coreset import Coreset as Coreset
from foresee.strategies.default import Default as Default, default_strategy as default_strategy
from foresee.strategies.diverse import MeblPlusPlus as MeblPlusPlus, PowerMell as PowerMell
from foresee.strategies.greedy import GreedyConditioning as GreedyConditioning
from foresee.strategies.herding import (
    MaxHerding as MaxHerding,
    UncertaintyHerding as UncertaintyHerding,
    herd as herd,
)
from foresee.strategies.retraining import RetrainingEER as RetrainingEER
from foresee.strategies.topk import Random as Random, TopK as TopK
from foresee.strategies.typiclust import TypiClust as TypiClust
