"""Ask and tell on one's own data: which examples to label next, and a model of what was told."""

from foresee.learner.learner import Card as Card, Learner as Learner
from foresee.learner.models import Frozen as Frozen
from foresee.learner.record import (
    SKIP as SKIP,
    UNSURE as UNSURE,
    Batch as Batch,
    Told as Told,
)
