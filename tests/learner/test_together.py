"""Several people, threads and processes with one learner."""

import json
import subprocess
import sys
import threading
from dataclasses import asdict

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import foresee
from foresee import SKIP, UNSURE, InputError, Learner
from foresee.learner import Batch, Told

N = 80
X = np.random.default_rng(0).normal(size=(N, 2))


def truth(i):
    return "left" if X[i, 0] < 0 else "right"


def learner(**options):
    return Learner(LogisticRegression(), X, draws=20, **options)


def warm(**options):
    found = learner(**options)
    found.tell(range(8), [truth(i) for i in range(8)])
    return found


def test_no_point_is_in_two_hands():
    found = warm()
    ids = list(found.ask(6).ids)
    assert found.take("ann", 2) == ids[:2]
    assert found.take("bob", 2) == ids[2:4]
    assert found.take("ann", 2) == ids[:2]  # the same until they are answered
    assert found.take("ann", 3) == [*ids[:2], ids[4]]
    found.tell(ids[0], truth(ids[0]), who="ann")
    assert found.take("ann", 3) == [ids[1], ids[4], ids[5]]
    assert found.take("cem", 3) == []
    found.leave("ann", [ids[1]])
    assert found.take("cem", 3) == [ids[1]]
    found.leave("ann")
    assert found.take("bob", 9) == [ids[2], ids[3], ids[4], ids[5]]
    with pytest.raises(InputError, match="is not in the hands of 'bob'"):
        found.leave("bob", [ids[1]])
    for who in (None, ""):
        for act in (found.take, found.leave):
            with pytest.raises(InputError, match="who must be a text"):
                act(who)


def test_hands_do_not_change_what_is_asked_next():
    found = warm()
    batch = found.ask(5)
    found.take("ann")
    assert found.ask(5) == batch


def test_hands_keys_and_undone_answers_are_kept(tmp_path):
    path = tmp_path / "state"
    with warm(path=path) as found:
        ids = found.ask(4).ids
        found.take("ann", 2)
        found.tell(ids[0], "left", who="ann", at=5.0, key="k1")
        found.tell(ids[1], UNSURE, who="ann", at=6.0, key="k2")
        found.untell(ids[1], who="ann", key="k3")
        expected, past = found._desk.state, found.history()
    with learner(path=path) as again:
        assert again._desk.state == expected
        assert again.history() == past
        assert again.take("ann") == [ids[1]]
        again.tell(ids[0], "left", who="ann", at=9.0, key="k1")
        assert again.history() == past


def test_a_key_is_told_once():
    found = warm()
    found.tell([20, 21], ["left", SKIP], key="a")
    found.tell(20, "right", key="b")
    found.tell([20, 21], ["left", SKIP], key="a")  # an answer that came late is sent again
    assert found.told[20] == "right"
    with pytest.raises(InputError, match="key: 'a' was used for something else"):
        found.tell([20, 21], ["right", SKIP], key="a")
    found.untell(20, key="c")
    found.untell(20, key="c")
    assert found.told[20] == "left"
    numbers = learner()
    numbers.tell(20, -1, key="a")
    with pytest.raises(InputError, match="was used for something else"):
        numbers.tell(20, -2, key="a")  # its hash is that of -1


def test_the_answer_before_counts_again():
    found = warm()
    batch = found.ask(3)
    i = batch.ids[0]
    found.tell(i, "left", who="ann")
    found.tell(i, SKIP, who="bob")
    assert i not in found.told
    with pytest.raises(InputError, match="is not by 'ann' but by 'bob'"):
        found.untell(i, who="ann")
    found.untell(i, who="bob")
    assert found.told[i] == "left"
    found.untell([i])
    assert i not in found.told
    assert found._desk.state.out[i] == "ann"  # who still has the question
    assert i in found.out
    with pytest.raises(InputError, match="nothing was told of"):
        found.untell(i)
    assert [(t.answer, t.who, t.undone) for t in found.history() if t.id == i] == [
        ("left", "ann", True),
        (SKIP, "bob", True),
    ]
    assert found.ask(3) != batch


def test_an_undone_label_is_as_if_it_had_never_been():
    one, two = warm(), warm()
    one.tell(30, "left")
    one.untell(30)
    one.release()
    assert one.ask(5) == two.ask(5)
    assert one.predict(X).tolist() == two.predict(X).tolist()


def test_disagreements_are_in_the_history():
    found = warm()
    found.tell(40, "left", who="ann", at=1)
    found.tell(40, "right", who="bob", at=2)
    assert [t for t in found.history() if t.id == 40] == [
        Told(40, "left", "ann", 1),
        Told(40, "right", "bob", 2),
    ]


@pytest.mark.parametrize(
    "more", [{"who": 1}, {"key": 2}, {"at": "now"}, {"at": float("nan")}, {"at": True}]
)
def test_bad_particulars(more):
    with pytest.raises(InputError, match=f"{next(iter(more))} must be"):
        warm().tell(20, "left", **more)


def test_why_is_the_score_by_target():
    target = X[::3] + 0.1
    found = warm(target=target)
    batch = found.ask(4)
    all_of_it = found.why(batch.ids, len(target))
    means = [sum(gain for _, gain in all_of_it[i]) / len(target) for i in batch.ids]
    np.testing.assert_allclose(means, batch.scores, rtol=1e-4)
    some = found.why(batch.ids[0], 3)
    assert list(some) == [batch.ids[0]]
    assert some[batch.ids[0]] == all_of_it[batch.ids[0]][:3]
    gains = [gain for _, gain in all_of_it[batch.ids[0]]]
    assert gains == sorted(gains, reverse=True)
    assert all(name.startswith("target/") for name, _ in some[batch.ids[0]])


def test_worth_is_the_score_alone_whatever_was_asked():
    found = warm(target=X[::3] + 0.1)
    batch = found.ask(4)
    np.testing.assert_allclose(found.worth(batch.ids), batch.scores, rtol=1e-4)
    everything = list(range(len(X)))
    assert found.worth(everything).shape == (len(X),)
    np.testing.assert_allclose(found.worth(everything)[7], found.worth([7])[0], rtol=1e-6)
    with pytest.raises(InputError, match="there is no 99 in the pool"):
        found.worth([99])
    with pytest.raises(InputError, match="labels of two classes"):
        learner().worth([0])


def test_probabilities_by_ids_are_those_by_inputs():
    found = warm()
    ids = [9, 3, 30]
    np.testing.assert_allclose(found.proba_of(ids), found.predict_proba(X[ids]), rtol=1e-6)


def test_why_names_others_and_refuses_strangers():
    found = warm()
    told = found.why([50, 51], 5)
    assert all(name != i and len(told[i]) == 5 for i in told for name, _ in told[i])
    with pytest.raises(InputError, match="there is no 99 in the pool"):
        found.why(99)
    with pytest.raises(InputError, match="labels of two classes"):
        learner().why(0)
    with pytest.raises(InputError, match="size must be at least 1"):
        found.why(50, 0)


def test_why_by_brute_force():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(3), 7), rng.dirichlet(np.ones(3), (4, 7))
    p[:, 2] = 0
    p /= p.sum(1, keepdims=True)
    expected = np.zeros(4)
    for j in range(4):
        before = 1 - (q[j].mean(0) ** 2).sum()
        for label in range(2):
            weight = p[:, label] / p[:, label].sum()
            after = 1 - ((weight @ q[j]) ** 2).sum()
            expected[j] += p[:, label].mean() * (before - after)
    np.testing.assert_allclose(foresee.learner.why.gains(p, q), expected, atol=1e-12)


def slow(started, end):
    def sampler(inputs, labels, rng):
        from foresee.posteriors import bootstrap

        started.set()
        assert end.wait(60)
        return bootstrap(LogisticRegression(), inputs, labels, 5, rng=rng)

    return sampler


def test_nobody_waits_for_a_fit(tmp_path):
    started, end = threading.Event(), threading.Event()
    found = Learner(slow(started, end), X, path=tmp_path / "state")
    out = found.ask(9).ids
    found.tell(range(8), [truth(i) for i in range(8)])
    asking = threading.Thread(target=found.ask, args=(5,))
    asking.start()
    started.wait()
    for i in out:
        assert found.take("ann")
        found.tell(i, truth(i), who="ann", key=str(i))
    found.untell(out[0])
    assert asking.is_alive()
    assert found.told.keys() >= set(out[1:])
    end.set()
    asking.join()
    # What was told while it was chosen is not handed out, and counts for the next batch.
    assert not set(found._desk.state.last.ids) & set(out)
    assert found._desk.state.moved
    found.close()


def test_threads_lose_nothing_and_do_nothing_twice(tmp_path):
    with warm(path=tmp_path / "state", holdout=0.1) as found:
        errors = []

        def label(who):
            try:
                for _ in range(40):
                    if not (ids := found.take(who)):
                        found.ask(4)
                        continue
                    found.tell(ids, [truth(i) for i in ids], who=who, key=f"{who}-{ids[0]}")
                    found.predict(X[:3])
                    found.card()
            except BaseException as error:  # shown by the test
                errors.append(error)

        threads = [threading.Thread(target=label, args=(f"p{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        told = [each for each in found.history() if each.who is not None]
        assert len({each.id for each in told}) == len(told) > 50
        assert found.told == {**{i: truth(i) for i in range(8)}, **{t.id: t.answer for t in told}}
        expected = found._desk.state
    with learner(path=tmp_path / "state", holdout=0.1) as again:
        assert again._desk.state == expected


WORKER = """
import json, sys
from dataclasses import asdict
import numpy as np
from sklearn.linear_model import LogisticRegression
from foresee import Learner

found = Learner(LogisticRegression(), np.random.default_rng(0).normal(size=(80, 2)), draws=20)
for line in sys.stdin:
    found.follow(json.loads(line))
    batch = found.propose(5)
    print(json.dumps({"batch": asdict(batch), "why": list(found.why(batch.ids).values())}))
    sys.stdout.flush()
"""


def test_another_process_fits_and_proposes(tmp_path):
    alone = warm()
    with (
        subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as worker,
        warm(path=tmp_path / "state") as found,
    ):
        sent = 0
        for _ in range(3):
            worker.stdin.write(json.dumps(found.events(sent)) + "\n")
            worker.stdin.flush()
            sent = len(found.events())
            answer = json.loads(worker.stdout.readline())
            batch = found.hand_out(Batch(**answer["batch"]))
            expected = alone.ask(5)
            assert batch.ids == expected.ids
            # How many threads a process has decides the last digit.
            np.testing.assert_allclose(batch.scores, expected.scores, rtol=1e-5)
            assert found._last.posterior is None  # it was never fitted here
            for each in (found, alone):
                each.tell(batch.ids, [truth(i) for i in batch.ids])
        worker.stdin.close()


def test_what_was_answered_meanwhile_is_not_handed_out():
    found = warm()
    proposed = found.propose(6)
    assert found.out == []
    assert asdict(proposed)["seen"] == 1
    found.tell(proposed.ids[0], "left")
    found.tell(proposed.ids[1], SKIP)
    found.tell(proposed.ids[2], UNSURE)
    batch = found.hand_out(proposed)
    assert batch.ids == proposed.ids[3:]
    assert batch.scores == proposed.scores[3:]
    assert found.hand_out(proposed).ids == ()  # it is out already
    assert found.ask(6).ids != batch.ids  # something was told since it was chosen
    for batch, words in (
        (Batch(("x",), (None,)), "there is no 'x' in the pool"),
        (Batch((50, 50), (None, None)), "each id once"),
        (Batch((50, 51)), "with a score or None"),
        ([50], "what propose returned, got list"),
    ):
        with pytest.raises(InputError, match=words):
            found.hand_out(batch)


def test_unsure_points_are_proposed_and_handed_out_when_nothing_else_is_left():
    found = learner()
    found.tell(range(N), [truth(i) for i in range(N - 1)] + [UNSURE])
    assert found.ask(3).ids == (N - 1,)


def test_following_is_checked(tmp_path):
    found, other = warm(), learner()
    other.follow(found.events())
    assert other.ask(5) == found.ask(5)
    for events in ([{"kind": "untell", "ids": [70]}], [{"kind": "release", "ids": [99]}], ["x"]):
        with pytest.raises(InputError, match="cannot have happened here"):
            other.follow(events)
    with pytest.raises(InputError, match="must be a list of events"):
        other.follow(None)
    with (
        learner(path=tmp_path / "state") as kept,
        pytest.raises(InputError, match="with a path cannot follow"),
    ):
        kept.follow(found.events())
