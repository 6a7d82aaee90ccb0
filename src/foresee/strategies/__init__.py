"""Ways to choose a batch: a strategy takes (view, size, rng) and returns positions in the pool."""

from foresee.strategies.badge import Badge as Badge
from foresee.strategies.coreset import Coreset as Coreset
from foresee.strategies.retraining import RetrainingEER as RetrainingEER
from foresee.strategies.topk import Random as Random
from foresee.strategies.topk import TopK as TopK
