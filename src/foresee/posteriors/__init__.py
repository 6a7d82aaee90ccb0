"""Posterior draws: one parameter vector for every input, whatever the model."""

from foresee.posteriors.dropout import mc_dropout as mc_dropout
from foresee.posteriors.ensemble import (
    ensemble as ensemble,
    train_ensemble as train_ensemble,
)
from foresee.posteriors.laplace import laplace as laplace
from foresee.posteriors.linear import LinearModel as LinearModel
from foresee.posteriors.point import point as point
from foresee.posteriors.sgmcmc import cyclical_sgmcmc as cyclical_sgmcmc, sgld as sgld
from foresee.posteriors.sklearn import (
    Forest as Forest,
    bootstrap as bootstrap,
    laplace_logistic as laplace_logistic,
    members as members,
)
