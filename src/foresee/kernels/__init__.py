"""Reductions over the pairwise joint of labels: the specification, the tiles, the inner loops."""
