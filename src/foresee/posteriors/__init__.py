"""Posterior draws: one parameter vector for every input."""

from foresee.posteriors.sklearn import Forest as Forest
