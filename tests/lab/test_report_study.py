import math
from dataclasses import replace
from pathlib import Path

import pytest

from foresee.errors import InputError
from foresee.lab import paper
from foresee.lab.experiment import Experiment, Round
from foresee.lab.report import published, views
from foresee.lab.report.caveats import absent, cautions, missing, shortened
from foresee.lab.report.measures import (
    ACCURACY,
    COST,
    GAIN,
    IN_TARGET,
    METRICS,
    SCRAMBLED,
    curve,
    promises,
    seconds_per_round,
)
from foresee.lab.report.palette import INKS, Pen, pens
from foresee.lab.report.statistics import Auc, Tally, mean_std
from foresee.lab.report.study import methods, studies
from foresee.lab.report.tables import auc_table
from foresee.lab.report.words import THIN
from foresee.lab.store import Trial

TOY = Experiment(
    "toy", False, 8, 2, 10, 20, 100, 10, 50, rounds=2, targets=5, candidates=50, draws=4
)
HEADER = {"device": "cpu", "versions": {"foresee": "0.1.0", "torch": "2.13.0"}}


def trial(
    method="MELL",
    seed=0,
    accuracy=(0.5, 0.6, 0.7),
    experiment=TOY,
    finished=True,
    folder=Path("runs"),
    **changes,
):
    """A trial with this accuracy in its rounds; ``changes`` are lists, one value per round."""
    rounds = []
    for k, value in enumerate(accuracy):
        picks = () if finished and k == len(accuracy) - 1 else (2 * k, 2 * k + 1)
        made = Round(
            number=k,
            n_labelled=experiment.n_seed + k * experiment.n_query,
            accuracy=value,
            log_loss=1 - value,
            brier=2 * (1 - value),
            calibration_error=0.1,
            picks=picks,
            labels=tuple(pick % max(1, experiment.classes) for pick in picks),
            seconds=(("train", 2.0), ("test", 0.5), *((("select", 1.0),) if picks else ())),
            train_loss=0.01,
            train_accuracy=1.0,
        )
        rounds.append(replace(made, **{name: values[k] for name, values in changes.items()}))
    path = folder / experiment.name / f"{method}-{seed}.jsonl"
    return Trial(experiment, method, seed, tuple(rounds), HEADER, path)


def study(*trials):
    (found,) = studies(trials)
    return found


def test_experiments_and_methods_stand_in_the_papers_order():
    other = replace(TOY, dataset="Another")
    found = studies(
        [
            trial("mine"),
            trial("BADGE"),
            trial("MELL"),
            trial(experiment=other),
            trial(experiment=replace(TOY, dataset="mnist", shift=True)),
            trial(experiment=replace(TOY, dataset="mnist")),
            trial(experiment=replace(TOY, dataset="CIFAR10", shift=True)),
        ]
    )
    assert [s.title for s in found] == [
        "CIFAR10, shift",
        "mnist, no shift",
        "mnist, shift",
        "Another, no shift",
        "toy, no shift",
    ]
    assert list(found[-1].trials) == methods(found[-1].all) == ["MELL", "BADGE", "mine"]


OTHER = replace(TOY, budget=0.5)
BAD = {
    "another configuration": (trial(seed=9, experiment=OTHER), "another configuration than most"),
    "a seed twice": (trial(seed=1), r"same trial \(toy-noshift, MELL, seed 1"),
    "labels that do not grow": (trial(seed=9, n_labelled=(10, 10, 10)), "does not grow"),
    "no size": (trial(seed=9, n_labelled=(10, 20, 10**400)), "beyond all bounds"),
    "no accuracy": (trial(seed=9, accuracy=(0.1, 2.0, 0.5)), "between 0 and 1"),
    "less than nothing": (trial(seed=9, accuracy=(0.1, -0.2, 0.5)), "between 0 and 1"),
    "a class that is none": (trial(seed=9, labels=((0, 2), (1, 1), ())), "bought a class"),
    "no class": (trial(seed=9, experiment=replace(TOY, dataset="n", classes=0)), "has 0 classes"),
    "classes without end": (
        trial(seed=9, experiment=replace(TOY, dataset="n", classes=10**9)),
        "has 1000000000 classes",
    ),
    "a pool without end": (
        trial(seed=9, experiment=replace(TOY, dataset="n", n_pool=10**400)),
        "beyond all bounds",
    ),
    "half a character": (trial("\ud800", seed=9), "cannot be printed"),
    "a name of two lines": (
        trial(seed=9, experiment=replace(TOY, dataset="a\nb")),
        "cannot be printed",
    ),
    "no share": (trial(seed=9, in_target=(0.5, 1.5, None)), "a share is not between 0 and 1"),
    "more than the pool": (
        replace(trial(seed=9), header={**HEADER, "pool": {"scrambled": 101}}),
        "more of its pool is noted than there is",
    ),
    "time without end": (trial(seed=9, seconds=((("train", math.inf),),) * 3), "its seconds are"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=BAD)
def test_one_bad_trial_is_named_and_the_others_stay(bad, reason):
    good = [trial(seed=0), trial(seed=1), trial("BALD")]
    with pytest.raises(InputError, match=reason):
        studies([*good, bad])
    heard = []
    (found,) = studies([*good, bad], heard.append)
    assert {method: [t.seed for t in some] for method, some in found.trials.items()} == {
        "MELL": [0, 1],
        "BALD": [0],
    }
    assert found.experiment == TOY
    (problem,) = heard
    assert str(bad.path) in str(problem)


def test_only_trials_on_the_same_sets_are_paired():
    def on(rows, method, seed):
        return replace(trial(method, seed), header={**HEADER, "data": rows})

    heard = []
    some = [on("a", "MELL", 0), on("a", "BALD", 0), on("b", "Random", 0), on("b", "Random", 1)]
    (found,) = studies(some, heard.append)
    seeds = {method: [t.seed for t in trials] for method, trials in found.trials.items()}
    assert seeds == {"MELL": [0], "Random": [1], "BALD": [0]}
    (problem,) = heard
    assert "Random-0.jsonl has other sets than most trials" in str(problem)


def test_trials_of_another_model_or_of_a_changed_method_are_left_out():
    def by(seed, device="cpu", draws=5, candidates=9, method="MELL"):
        sampler = {"type": "forest", "draws": draws, "device": device}
        what = {"name": method, "sampler": sampler, "strategy": {"candidates": candidates}}
        header = {**HEADER, "experiment": {"own": {"kind": "npz"}}, "method": what}
        return replace(trial(method, seed), header=header)

    heard = []
    changed, other = by(2, candidates=8), by(0, draws=6, method="BALD")
    (found,) = studies([by(0), by(1, device="cuda"), changed, other], heard.append)
    assert {method: len(trials) for method, trials in found.trials.items()} == {"MELL": 2}
    assert "BALD-0.jsonl has another model than most trials of toy-noshift, and" in str(heard[1])
    assert "MELL-2.jsonl has another method than most trials of toy-noshift that" in str(heard[0])


def test_first_networks_that_differ_are_told():
    def on(device, method, seed, first, **sampler):
        header = {**HEADER, "method": {"sampler": {"type": "dropout", "device": device, **sampler}}}
        return replace(trial(method, seed, (first, 0.6, 0.7)), header=header)

    chain = on("cpu", "MELL_MCMC", 1, 0.2, type="chain")
    found = study(
        *(on("cpu", m, s, 0.5) for m in ("MELL", "BALD") for s in range(2)),
        *(on("cuda", "Random", s, 0.5 + 0.01 * s) for s in range(2)),
        chain,
    )
    assert found.parted == [1]
    (said,) = (c.text for c in cautions([found], ["MELL"]) if "began from" in c.text)
    assert said.startswith("toy, no shift: the methods of seed 1 began from networks that differ")
    assert study(chain, trial()).parted == []


def test_most_trials_decide_the_configuration():
    heard = []
    some = [trial(seed=0), trial(seed=1, experiment=OTHER), trial(seed=2, experiment=OTHER)]
    (found,) = studies(some, heard.append)
    assert (found.experiment, found.seeds, len(heard)) == (OTHER, [1, 2], 1)


def test_no_trial_is_no_report():
    with pytest.raises(InputError, match="foresee run"):
        studies([])
    heard = []
    with pytest.raises(InputError, match="foresee run"):
        studies([trial(accuracy=(2.0,))], heard.append)
    assert len(heard) == 1


def test_experiments_whose_files_would_have_one_name_keep_apart():
    made = [trial(experiment=replace(TOY, dataset=name)) for name in ("a b", "a_b", "a/b")]
    found = studies(made)
    assert [s.experiment.dataset for s in found] == ["a b", "a/b", "a_b"]
    assert [s.name for s in found] == ["a_b-noshift", "a_b-noshift_", "a_b-noshift__"]


def test_picks_are_counted_and_let_go():
    (kept,) = study(trial()).all
    assert kept.bought == {0: 2, 1: 2}
    assert [(len(r.picks), r.labels) for r in kept.rounds] == [(1, ()), (1, ()), (0, ())]
    assert kept.finished


def test_a_curve_is_the_mean_over_the_seeds_that_came_so_far():
    found = curve(
        [trial(seed=0), trial(seed=1, accuracy=(0.7, 0.8), finished=False)],
        ACCURACY,
    )
    assert found.n_labelled == (10, 20, 30)
    assert found.seeds == (2, 2, 1)
    assert found.mean == pytest.approx((0.6, 0.7, 0.7))
    assert found.std[:2] == pytest.approx([0.02**0.5] * 2)
    assert math.isnan(found.std[2])


def test_a_curve_of_what_nobody_measured_is_none():
    assert curve([trial()], COST) is None
    assert curve([], ACCURACY) is None
    assert curve([trial(accuracy=())], ACCURACY) is None
    partly = curve([trial(cost=(None, 2.0, 1.0))], COST)
    assert (partly.n_labelled, partly.mean) == ((20, 30), (2.0, 1.0))


def test_a_gain_is_over_random_with_the_same_seed():
    found = study(
        trial("MELL", 0, (0.5, 0.7, 0.9)),
        trial("MELL", 1, (0.3, 0.5), finished=False),
        trial("Random", 0, (0.5, 0.6, 0.7)),
        trial("Random", 1, (0.3, 0.2, 0.4)),
    )
    above = found.curves[GAIN]["MELL"]
    assert above.seeds == (2, 2, 1)
    assert above.mean == pytest.approx((0, 0.2, 0.2))
    assert above.std[:2] == pytest.approx((0, 0.02**0.5))
    assert found.curves[GAIN]["Random"].mean == (0, 0, 0)
    assert study(trial("MELL")).curves[GAIN] == {}


def test_areas_are_of_finished_trials_only():
    found = study(
        trial(seed=0),
        trial(seed=1, accuracy=(0.6, 0.7, 0.8)),
        trial(seed=2, accuracy=(0.9, 0.9), finished=False),
        trial("BALD", accuracy=(0.9,)),
        trial("Random", accuracy=(0.5, math.nan, 0.5)),
    )
    assert found.areas == {"MELL": {0: pytest.approx(0.6), 1: pytest.approx(0.7)}}
    assert found.mean_areas == {"MELL": (pytest.approx(0.65), pytest.approx(0.005**0.5))}
    assert found.costs == found.mean_costs == {}


def test_two_rounds_have_an_area_and_nothing_is_a_value():
    found = study(trial(accuracy=(0.0, 0.5)))
    assert found.areas == {"MELL": {0: pytest.approx(0.25)}}
    assert found.curves[ACCURACY]["MELL"].mean == (0.0, 0.5)


def test_rounds_stand_in_the_order_of_their_labels():
    late, early = trial(seed=0, n_labelled=(30, 40, 50)), trial(seed=1, n_labelled=(10, 20, 30))
    assert study(late, early).curves[ACCURACY]["MELL"].n_labelled == (10, 20, 30, 40, 50)


def test_cost_has_an_area_where_it_was_counted():
    found = study(trial(cost=(3.0, 2.0, 1.0)))
    assert found.mean_costs["MELL"].mean == pytest.approx(2.0)


def test_the_table_for_the_terminal():
    made = [trial(seed=0), trial(seed=1, accuracy=(0.6, 0.7, 0.8)), trial("BALD")]
    table = auc_table(studies(made))
    assert table.columns == ("Experiment", "MELL", "BALD")
    assert table.rows == [("toy, no shift", "65.00 ± 7.07", "60.00")]
    unfinished_only = auc_table(studies([trial(finished=False)]))
    assert unfinished_only.rows == [("toy, no shift", "–")]


def test_saturation_is_measured_against_the_best_of_any_method():
    found = study(
        trial("MELL", accuracy=(0.5, 0.9, 1.0)),
        trial("Random", accuracy=(0.5, 0.7, 0.9)),
        trial("BALD", accuracy=(0.95, 0.95, 0.95)),
    )
    ninety, ninety_five, ninety_nine = found.saturation
    assert (ninety.part, ninety.goal) == (0.9, pytest.approx(0.9))
    assert ninety.labels == {"MELL": pytest.approx(20), "Random": pytest.approx(30), "BALD": 10}
    assert ninety_five.labels["MELL"] == pytest.approx(25)
    assert math.isnan(ninety_five.labels["Random"])
    assert ninety_nine.labels["MELL"] == pytest.approx(29)


def test_seconds_are_of_the_rounds_that_chose():
    assert seconds_per_round([trial(), trial(seed=1)]) == {"train": 2, "test": 0.5, "select": 1}
    assert seconds_per_round([trial(accuracy=(0.5,))]) == {"train": 2, "test": 0.5}
    assert seconds_per_round([trial(accuracy=())]) == {}


def test_picks_are_counted_by_class():
    made = trial(labels=((0, 0), (0, 1), ()), experiment=replace(TOY, classes=3))
    assert study(made, replace(made, seed=1)).picked == {"MELL": [6, 2, 0]}


def test_promises_meet_the_fall_of_a_round_later():
    made = [
        trial(seed=0, accuracy=(0.5, 0.6, 0.7), promise=(0.1, 0.3, None)),
        trial(seed=1, accuracy=(0.5, 0.7, 0.7), promise=(0.3, None, None)),
    ]
    (first, second) = promises(made)
    assert first == (10, pytest.approx(0.2), pytest.approx((0.2 + 0.4) / 2))
    assert second == (20, pytest.approx(0.3), pytest.approx(0.2))
    assert promises([trial()]) == []


def test_sizes_are_written_as_people_read_them():
    large = study(noted("MELL", 0, (1.0, 0.5, None), n_labelled=(9990, 10000, 10010)))
    assert views.batches(large, IN_TARGET) == {9990: "9990", 10000: f"10{THIN}000"}


def test_what_is_missing():
    found = study(
        trial("MELL", 0), trial("MELL", 1, finished=False), trial("MELL", 2), trial("BALD", 0)
    )
    assert [(t.method, t.seed) for t in found.unfinished] == [("MELL", 1)]
    assert absent(found, ["MELL", "BALD", "Random"]) == {"BALD": [1, 2], "Random": [0, 1, 2]}
    assert missing(found, ["MELL", "Margin", "BALD", "Random"], []) == [
        "MELL seed 1 is at 3 of 3 rounds",
        "BALD seeds 1–2 absent",
        "Margin, Random absent",
    ]
    planned = study(trial("MELL", 0), *(trial("MELL", s, (), finished=False) for s in (1, 2, 5)))
    damage = InputError(f"{trial('MELL', 2).path} is damaged")
    assert missing(planned, ["MELL"], [damage]) == [
        "MELL seed 2 left out",
        "MELL seeds 1, 5 not begun",
    ]
    text = " ".join(c.text for c in cautions([found], ["MELL", "BALD", "Random"], left_out=2))
    assert "2 files were left out" in text
    assert "1 trial is unfinished: in the curves" in text
    assert "5 trials are absent" in text
    assert "fewer than 5 seeds (2)" in text


def test_shortened_training_is_said_plainly():
    short = study(trial(experiment=replace(TOY, dataset="MNIST", budget=0.05)))
    ours = study(trial(experiment=replace(TOY, budget=0.5)))
    said = [c.text for c in cautions([short, ours], ["MELL"])]
    assert said[0] == "Networks were trained for 5 % of the paper’s iterations in MNIST, no shift."
    assert said[1] == "Networks were trained for 50 % of the full iterations in toy, no shift."
    full = study(*(trial(seed=seed) for seed in range(5)))
    assert cautions([full], ["MELL"]) == []


NARROW = replace(TOY, dataset="MNIST", target=("1",), pool_noise=0.2, network="small_cnn")


def noted(method, seed, inside, noise=(0.0, 0.5, None), sizes=(2, 2, 0), of_pool=25, **more):
    """A trial of a narrow target with batches of these sizes, so much of each inside."""
    picks = tuple(tuple(range(10 * k, 10 * k + size)) for k, size in enumerate(sizes))
    made = trial(method, seed, experiment=NARROW, in_target=inside, scrambled=noise, picks=picks,
                 labels=tuple((0,) * size for size in sizes), **more)  # fmt: skip
    return replace(made, header={**HEADER, "pool": {"in_target": of_pool, "scrambled": 20}})


def test_shares_in_the_target_are_of_all_labels_and_of_each_batch():
    one = noted("MELL", 0, (1.0, 0.5, None), sizes=(2, 6, 0))
    found = study(one, noted("MELL", 1, (0.5, 0.5, None)), noted("Random", 0, (0.0, 0.5, None)))
    assert found.noted[IN_TARGET]["MELL"] == mean_std([5 / 8, 0.5])
    assert found.noted[SCRAMBLED]["Random"].mean == 0.25
    assert found.curves[IN_TARGET]["MELL"].mean == (0.75, 0.5)
    assert found.curves[IN_TARGET]["MELL"].n_labelled == (10, 20)
    assert (found.of_pool(IN_TARGET), found.of_pool(SCRAMBLED)) == (0.25, 0.2)
    assert found.title == "MNIST, narrow, 20 % noise"
    plain = study(trial())
    assert plain.noted == {}
    assert math.isnan(plain.of_pool(IN_TARGET))


def test_the_share_of_the_pool_is_a_mean_over_seeds():
    found = study(noted("MELL", 0, (1.0, 0.5, None)), noted("MELL", 1, (1, 0, None), of_pool=35))
    assert found.of_pool(IN_TARGET) == 0.3


@pytest.mark.parametrize(
    ("std", "leading"), [(0.0, {"a"}), (0.1, {"a", "b"}), (math.nan, {"a", "b"})]
)
def test_leaders_are_all_that_the_best_does_not_beat(std, leading):
    assert views.leaders({"a": Auc(0.9, 0.0), "b": Auc(0.8, std)}) == leading


def test_who_bought_most_and_least_of_the_target_and_of_noise_is_said():
    found = study(
        noted("Random", 0, (0.0, 0.5, None)),
        noted("MELL", 0, (1.0, 0.5, None), (0.0, 0.0, None)),
    )
    assert views.noted(found, IN_TARGET) == (
        "25.0 % of the pool is in the target; so is 75.0 % of what MELL bought, 25.0 % of what "
        "Random bought. Each point is one batch."
    )
    assert views.noted(found, SCRAMBLED) == (
        "20.0 % of the pool is scrambled and teaches nothing; so is 0.0 % of what MELL bought, "
        "25.0 % of what Random bought. Each point is one batch."
    )
    alone = views.noted(study(noted("MELL", 0, (1.0, 0.5, None))), IN_TARGET)
    assert alone.endswith("so is 75.0 % of what MELL bought. Each point is one batch.")


def test_the_paper_has_no_figure_for_a_narrow_target_or_noise():
    narrow = study(noted("MELL", 0, (1.0, 0.5, None)))
    assert published.auc(narrow.experiment, "MELL") is None
    wide = replace(NARROW, target=(), pool_noise=0.0)
    assert published.auc(wide, "MELL") is not None
    assert published.auc(replace(wide, pool_noise=0.5), "MELL") is None
    said = [caution.text for caution in cautions([narrow, study(trial())], ["MELL"])]
    assert said[0] == (
        "Scrambled images are 20 % of the pool in MNIST, narrow, 20 % noise; they teach nothing."
    )
    assert not any("network is" in text for text in said)


def test_a_line_about_a_study_names_its_target():
    assert " · target: 1 · " in views.about(study(noted("MELL", 0, (1.0, 0.5, None))))
    many = study(trial(experiment=replace(TOY, target=tuple("abcdefghij"))))
    assert "target: a, b, c, d, e, f and 4 more" in views.about(many)


def test_a_small_budget_is_not_rounded_to_another():
    short = study(trial(experiment=replace(TOY, dataset="MNIST", budget=0.015)))
    assert shortened(short) == "1.5 % of the paper’s iterations"
    (said, *_) = cautions([short], ["MELL"])
    assert said.text == "Networks were trained for 1.5 % of the paper’s iterations."


def test_another_network_than_the_papers_is_said():
    small = study(trial(experiment=replace(TOY, dataset="mnist", network="small_cnn")))
    (said, *_) = cautions([small], ["MELL"])
    assert said.text == (
        "The network is small_cnn, while the paper’s figures stand for vgg16: levels differ."
    )
    paper = study(trial(experiment=replace(TOY, dataset="MNIST", shift=True)))
    ours = study(trial(experiment=replace(TOY, network="mlp")))
    assert not any("network is" in c.text for c in cautions([paper, ours], ["MELL"]))
    (among, *_) = cautions([small, paper], ["MELL"])
    assert "stand for vgg16 in mnist, no shift: levels differ." in among.text


def test_sizes_other_than_the_papers_are_said():
    whole = paper.experiment("svhn", budget=0.05)
    fewer = replace(whole, n_seed=2000, n_query=1000, n_pool=20_000, rounds=8)
    (ours,) = studies([trial(experiment=fewer)])
    told = [c.text for c in cautions([ours], ["MELL"]) if c.text.startswith("Sizes")]
    assert [text.replace(THIN, " ") for text in told] == [
        "Sizes are 2000 + 8 × 1000 labels of 22 000 images, and 5000 + 20 × 2500 labels of 55 000 "
        "images in the paper: levels differ."
    ]
    (theirs,) = studies([trial(experiment=whole)])
    assert not any("Sizes" in c.text for c in cautions([theirs], ["MELL"]))
    (noisy,) = studies([trial(experiment=replace(fewer, pool_noise=0.2))])  # the paper has none
    assert not any("Sizes" in c.text for c in cautions([noisy], ["MELL"]))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train_loss": math.nan}, "not finite"),
        ({"log_loss": math.inf}, "not finite"),
        ({"accuracy": math.nan}, "not finite"),
        ({"train_loss": 0.69, "train_accuracy": 0.5}, "plateau"),
        ({"stuck": True}, "plateau"),
        ({"train_accuracy": 0.89}, "11 points behind"),
        ({"train_accuracy": 0.91}, None),
        ({"train_accuracy": None, "train_loss": None}, None),
        ({"train_loss": 0.6}, None),
    ],
)
def test_a_badly_trained_round_is_found(changes, problem):
    good = [trial(seed=seed) for seed in range(3)]
    bad = trial("BALD")
    bad = replace(bad, rounds=(bad.rounds[0], replace(bad.rounds[1], **changes), bad.rounds[2]))
    unhealthy = study(*good, bad).unhealthy
    found = [(u.trial.method, u.round.number, u.problem) for u in unhealthy]
    assert found == ([("BALD", 1, problem)] if problem else [])


def test_an_area_is_marked_for_bad_rounds_of_its_own_trials_alone():
    stuck = {"stuck": (False, True)}
    assert study(trial(), trial(seed=1, accuracy=(0.5, 0.6), **stuck)).bad_rounds["MELL"] == 1
    begun = trial(seed=1, accuracy=(0.5, 0.6), finished=False, **stuck)
    assert study(trial(), begun).bad_rounds["MELL"] == 0


def test_networks_that_all_fit_badly_are_one_caution_not_many():
    found = study(*(trial(seed=seed, train_accuracy=(0.7, 0.6, 0.5)) for seed in range(5)))
    assert found.unhealthy == []
    assert found.fit == 0.6
    (caution,) = cautions([found], ["MELL"])
    assert "networks fit only 60 % of their training sets" in caution.text
    assert study(trial(train_accuracy=(None, None, None))).fit is None


def test_ties_weaken_the_colour_of_a_win():
    assert views.tilt(Tally(2, 5, 1)) == 1 / 8
    assert views.tilt(Tally(0, 0, 0)) == 0


def test_every_method_keeps_its_own_pen():
    everyone = [*methods([trial(m) for m in ("MELL", "Random", "BADGE")]), *map(str, range(20))]
    given = pens(everyone)
    assert given["MELL"] == Pen(0)
    assert given["BADGE"] == Pen(7)
    assert len(set(given.values())) == len(everyone)
    assert all(pen.ink < len(INKS) for pen in given.values())
    assert len(pens([str(i) for i in range(100)])) == 100


def test_metrics_are_fields_of_a_round():
    (first, *_) = trial().rounds
    assert all(hasattr(first, metric.key) for metric in METRICS)
