import numpy as np
import pytest

from foresee import seeding
from foresee.errors import InputError


def test_generators_are_those_of_every_experiment_so_far():
    """Rounds on disk cannot be resumed, nor results be had again, by other numbers than these."""
    rng = seeding.generator(0, 3, "train")
    assert rng.integers(2**63) == 8516035973183667998
    assert [seeding.number(child) for child in rng.spawn(2)] == [289600594, 1907437258]


def test_seeds_for_torch_are_those_that_any_of_its_generators_takes():
    drawn = [seeding.number(np.random.default_rng(i)) for i in range(200)]
    assert max(drawn) < 2**31
    assert max(drawn) > 2**30


@pytest.mark.parametrize("seed", [None, -1, 1.0, True, "0", np.random.default_rng(0)])
def test_what_is_no_seed(seed):
    with pytest.raises(InputError, match="seed must be a whole number, at least 0, got"):
        seeding.generator(seed, "split")
    assert seeding.check_number(np.uint64(2**63)) is None


def test_a_seed_is_no_generator():
    with pytest.raises(InputError, match=r"rng must be a numpy.random.Generator, got 7: pass"):
        seeding.check(7)
