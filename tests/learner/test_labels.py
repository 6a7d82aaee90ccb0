"""Labels of any kind: as they are in memory, and as they were after a stay on the disk."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from frames import Frame, Series
from hypothesis import HealthCheck, given, settings, strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from foresee import SKIP, InputError, Learner, lines
from foresee.learner.written import looks, read, written

N = 24
X = np.random.default_rng(0).normal(size=(N, 2))
NAMES = [f"photo {i}" for i in range(N)]


class Animal(Enum):
    CAT = 1
    DOG = 2


class Grade(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Place:
    shelf: int
    colour: str = "red"


class Plain:
    """Equal to itself alone, and without a repr of its own."""


def learner(**options):
    return Learner(LogisticRegression(), X, draws=10, **({"ids": NAMES} | options))


def told(found, pair):
    """Tell half of the pool, by its side."""
    names = NAMES[: N // 2]
    found.tell(names, [pair[int(X[i, 0] > 0)] for i in range(N // 2)])
    return found


PAIRS = [
    ((1, 2), (3, 4)),  # which numpy would make rows of
    ((), ("a", ("b", None))),
    (b"\x00", b"\xff"),
    (frozenset("ab"), frozenset()),
    (date(2026, 1, 2), date(2025, 1, 2)),
    (datetime(2026, 1, 2, 3, 4, 5, 6), datetime(2026, 1, 2)),
    (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    (2**63, -1),  # which numpy would make floats of
    ("a", "a\0"),  # whose end numpy would drop
]
STRANGE = [
    (Animal.CAT, Animal.DOG),
    (Grade.LOW, Grade.HIGH),
    (Place(1), Place(2)),
    (Decimal("1.50"), Decimal(2)),
    (Fraction(1, 3), Fraction(2, 3)),
    (1j, 2j),
    (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
    (datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2026, 1, 1, tzinfo=UTC)),
    ((1, Animal.CAT), (1, Animal.DOG)),
    (frozenset(Animal), frozenset([Animal.CAT])),
    (datetime(2026, 1, 1, fold=1), datetime(2026, 1, 2, fold=1)),
    (int, str),
    (range(3), range(4)),
]
MIXED = ["a", 1, (1, 2), None, Animal.CAT, 2.5, b"a"]


def kind(pair):
    """A name for a test that is the same in every process."""
    return type(pair[0]).__name__


@pytest.mark.parametrize("pair", [*PAIRS, *STRANGE, (Plain(), Plain())], ids=kind)
def test_in_memory_any_hashable_is_a_label(pair):
    found = told(learner(holdout=0.5), pair)
    assert set(found.told.values()) == set(pair)
    answers = found.predict(X)
    assert answers.shape == (N,)
    assert all(any(label is own for own in pair) for label in answers.tolist())
    expected = np.array([found.classes_.index(pair[int(x > 0)]) for x in X[:, 0]])
    assert np.mean(found.predict_proba(X).argmax(1) == expected) > 0.8
    found.tell(NAMES[20], pair[0], key="k")
    found.tell(NAMES[20], pair[0], key="k")
    with pytest.raises(InputError, match="was used for something else"):
        found.tell(NAMES[20], pair[1], key="k")
    assert found.history()[-1].answer == pair[0]
    found.untell(NAMES[20])
    batch = found.ask(6)
    found.tell(batch.held, [pair[int(X[NAMES.index(n), 0] > 0)] for n in batch.held])
    assert found.card().n == len(batch.held) > 0
    assert found.card().accuracy > 0.3
    other = learner(holdout=0.5)
    other.follow(found.events())
    assert other.propose(3) == found.propose(3)
    assert other.predict(X).tolist() == found.predict(X).tolist()
    copy = clone(learner(classes=list(pair)))
    assert copy.classes_ == list(pair)
    # What was answered can be told again.
    copy.tell(NAMES, answers)
    assert list(copy.told.values()) == answers.tolist()


@pytest.mark.parametrize("pair", PAIRS, ids=kind)
def test_kinds_that_a_file_holds(pair, tmp_path):
    with told(learner(path=tmp_path / "state"), pair) as found:
        batch, answers, classes = found.ask(3), found.predict(X).tolist(), found.classes_
    with Learner.load(tmp_path / "state", LogisticRegression(), X, ids=NAMES, draws=10) as again:
        assert again.told == found.told
        assert [repr(label) for label in again.told.values()] == [
            repr(label) for label in found.told.values()
        ] or type(pair[0]) is frozenset
        assert again.classes_ == classes
        assert again.ask(3) == batch
        assert again.predict(X).tolist() == answers
    told(learner(), pair).save(tmp_path / "copy")
    with learner(path=tmp_path / "copy") as copy:
        assert copy.told == found.told


@pytest.mark.parametrize("pair", STRANGE, ids=kind)
def test_other_kinds_are_held_by_their_place_among_the_classes(pair, tmp_path):
    path = tmp_path / "state"
    with pytest.raises(InputError, match=r"cannot be written .*: pass all .* as classes"):
        told(learner(path=path), pair)
    with learner(path=path) as empty:
        assert empty.told == {}
        with pytest.raises(InputError, match="as classes"):
            told(learner(), pair).save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    path.unlink()
    classes = list(pair)
    with told(learner(path=path, classes=classes), pair) as found:
        batch = found.ask(3)
    assert '{"class": 0}' in path.read_text()
    with pytest.raises(InputError, match="holds only how they look: pass them again"):
        Learner.load(path, LogisticRegression(), X, ids=NAMES)
    for other in (classes[::-1], [*classes, "more"], [*classes[:1], "b"]):
        with pytest.raises(InputError, match="was begun with classes"):
            Learner.load(path, LogisticRegression(), X, ids=NAMES, classes=other)
    with Learner.load(path, LogisticRegression(), X, ids=NAMES, classes=classes, draws=10) as again:
        assert again.told == found.told
        assert again.ask(3) == batch


def test_kinds_mix_where_the_classes_are_known(tmp_path):
    for path in (None, tmp_path / "state"):
        with learner(classes=MIXED, path=path) as found:
            found.tell(NAMES, [MIXED[i % len(MIXED)] for i in range(N)])
            answers = found.predict(X).tolist()
            assert all(any(label is known for known in MIXED) for label in answers)
            for label in (True, 1.0, Grade.LOW):  # equal to 1
                with pytest.raises(InputError, match=r"kind: .photo 0. has .*there is 1:"):
                    found.tell(NAMES[0], label)
    with learner(classes=MIXED, path=path) as again:
        assert list(again.told.values()) == list(found.told.values())
        assert list(map(type, again.told.values())) == list(map(type, found.told.values()))
    with pytest.raises(InputError, match="of one kind"):
        learner().tell(NAMES[:2], ["a", ("a",)])


def test_classes_that_a_file_could_not_know_again_are_refused(tmp_path):
    one, two = Plain(), Plain()
    assert told(learner(classes=[one, two]), (one, two)).classes_ == [one, two]
    for classes, words in (
        ([one, two], "looks otherwise in every process"),
        ([(one,), 1], "looks otherwise in every process"),
        ([np.datetime64("2026", "D"), np.datetime64("2026-01-01T00", "h"), 1], "each once"),
    ):
        with pytest.raises(InputError, match=words):
            learner(classes=classes, path=tmp_path / "state")
        assert not (tmp_path / "state").exists()

    class Alike(Plain):
        def __repr__(self):
            return "Alike()"

    with pytest.raises(InputError, match="looks like another"):
        learner(classes=[Alike(), Alike()], path=tmp_path / "state")


def test_a_series_in_another_order_than_the_ids_is_refused():
    learner = Learner(lambda x, y, rng: None, np.eye(4), ids=["a", "b", "c", "d"])
    labels = Series([1, 0, 0], index=["b", "a", "c"])
    with pytest.raises(InputError, match=r"another order, \['b', 'a', 'c'\] .* labels.loc\[list"):
        learner.tell(["a", "b", "c"], labels)
    assert learner.told == {}
    learner.tell(["b", "a", "c"], labels)
    learner.tell(Series(["a", "b", "c"], index=[0, 1, 2]), Series([0, 1, 0], index=[0, 1, 2]))
    learner.tell(["d", "a"], Series([1, 0], index=[0, 1]))  # an index that says nothing
    assert learner.told == {"b": 1, "c": 0, "d": 1, "a": 0}
    with pytest.raises(InputError, match="costs is a series whose index"):
        Learner(lambda x, y, rng: None, np.eye(2), ids=["a", "b"], costs=Series([1, 2], ["b", "a"]))
    rows = Learner(lambda x, y, rng: None, np.eye(4), costs=Series([1] * 4, range(4)))
    rows.tell(Series([2, 0, 1], index=[0, 1, 2]), Series([5, 6, 7], index=[0, 1, 2]))
    assert rows.told == {2: 5, 0: 6, 1: 7}


def test_ids_that_are_a_series_go_by_the_index_of_the_frame_or_not_at_all():
    frame, names = Frame(np.eye(3), index=["a", "b", "c"]), ["x", "y", "z"]
    for index in (["a", "b", "c"], [0, 1, 2]):  # an index that says nothing
        learner = Learner(lambda x, y, rng: None, frame, ids=Series(names, index))
        learner.tell("x", 1)
    ids = Series(names, ["b", "a", "c"])
    with pytest.raises(InputError, match=r"rows of pool in another order.*ids\.loc\[pool\.index\]"):
        Learner(lambda x, y, rng: None, frame, ids=ids)
    with pytest.raises(InputError, match="rows of target in another order"):
        Learner(lambda x, y, rng: None, np.eye(3), target=frame, target_ids=ids)


def test_the_order_of_classes():
    found = learner()
    found.tell(NAMES[:3], [(2,), (1,), (3,)])
    assert found.classes_ == [(1,), (2,), (3,)]
    found = learner()
    found.tell(NAMES[2::-1], [Animal.DOG, Animal.CAT, Animal.DOG])
    assert found.classes_ == [Animal.DOG, Animal.CAT]  # by the pool
    again = learner()
    again.tell(NAMES[:3], [Animal.DOG, Animal.CAT, Animal.DOG])
    assert again.ask(4) == found.ask(4)


def test_labels_that_change_sides_are_predicted_so():
    found = told(learner(), (Animal.CAT, Animal.DOG))
    before = found.predict(X).tolist()
    found.untell(NAMES[: N // 2])
    told(found, (Animal.DOG, Animal.CAT))
    assert [{Animal.CAT, Animal.DOG} - {label} for label in before] == [
        {label} for label in found.predict(X).tolist()
    ]


WRITTEN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(minutes=-90))])).map(
        lambda time: time.replace(fold=0)
    ),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(WRITTEN)
def test_what_is_written_is_read(label):
    line = json.loads(json.dumps(written(label)))
    found = read(line)
    assert found == label
    assert hash(found) == hash(label)
    assert type(found) is type(label)
    assert written(found) == line
    assert looks([label]) == [line]
    if type(label) is not frozenset:
        assert "frozenset" in repr(label) or repr(found) == repr(label)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WRITTEN | st.sampled_from([*Animal, 1j]), min_size=2, max_size=6, unique=True))
def test_mixed_labels_stay_what_they_are(tmp_path_factory, classes):
    classes = [label for label in classes if label not in (np.inf, -np.inf)]
    if len(classes) < 2 or any("inf" in repr(label) for label in classes):
        return
    path = tmp_path_factory.mktemp("labels") / "state"
    labels = [classes[i % len(classes)] for i in range(N)]
    with learner(path=path, classes=classes) as found:
        found.tell(NAMES, [*labels[:-1], SKIP])
    with learner(path=path, classes=classes) as again:
        assert list(again.told.values()) == labels[:-1]
        assert list(map(type, again.told.values())) == list(map(type, labels[:-1]))
        assert again._desk.state == found._desk.state


PROCESS = """
import os, signal, sys
import numpy as np
from enum import Enum
from foresee import Learner
from sklearn.linear_model import LogisticRegression

class Animal(Enum):
    CAT = 1
    DOG = 2

X = np.random.default_rng(0).normal(size=(24, 2))
classes = [frozenset(["a", "b", "c"]), (1, Animal.CAT), frozenset(Animal), "a"]
learner = Learner(LogisticRegression(), X, classes=classes, draws=10, path=sys.argv[1])
if sys.argv[2] == "first":
    learner.tell(range(12), [classes[i % 4] for i in range(12)])
    learner.tell(12, classes[2])
    print(learner.ask(4).ids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
assert [classes.index(label) for label in learner.told.values()] == [i % 4 for i in range(12)] + [2]
print(learner.ask(4).ids)
"""


def test_another_process_reads_the_same_labels(tmp_path):
    """Sets come in another order in each, as the hashes of texts do."""

    def run(turn, seed):
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "state"), turn]
        env = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    first = run("first", "1")
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = run("second", "2")
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout


OLD = """\
{"kind": "learner", "format": 2, "foresee": "0.1.0", "seed": 0, "holdout": 0.0, \
"classes": [1, 0], "rows": null, "look": null, "pool": null, "target": null, \
"checksums": "crc32", "sum": "90280474"}
{"kind": "tell", "ids": ["a", "b"], "labels": [1, 0], "skip": ["c"], "unsure": [], \
"sum": "0a9c2b91"}
{"kind": "ask", "size": 2, "ids": ["f", "d"], \
"scores": [0.008555740118026733, 0.017712075263261795], "promise": 0.023436044888167286, \
"held": [], "seen": 1, "sum": "7fdaac7f"}
{"kind": "tell", "ids": ["f"], "labels": [0], "skip": [], "unsure": [], "who": "ann", \
"at": 1.0, "key": "k", "sum": "d9f83351"}
"""


def test_records_of_the_format_before_are_read(tmp_path):
    (tmp_path / "state").write_text(OLD)
    options = {"ids": list("abcdef"), "draws": 10}
    with Learner.load(tmp_path / "state", LogisticRegression(), np.eye(6), **options) as found:
        assert found.told == {"a": 1, "b": 0, "f": 0}
        assert found.classes_ == [1, 0]
        found.tell("f", 0, who="ann", at=1.0, key="k")
        batch = found.ask(2)
    assert batch.ids == ("e",)
    np.testing.assert_allclose(batch.scores, [0.0586046], rtol=1e-3)


def test_a_line_that_means_nothing_is_refused(tmp_path):
    with told(learner(path=tmp_path / "state"), ((1, 2), (3, 4))):
        pass
    whole = lines.parse(tmp_path / "state", (tmp_path / "state").read_bytes()).values
    odd = [{"dance": 1}, {"bytes": "x"}, {}, {"tuple": [1], "bytes": ""}, [1]]
    for value in (*odd, {"class": 0}, {"class": -1}):
        content, above = b"", 0
        for each in (whole[0], {**whole[1], "labels": [value] * len(whole[1]["ids"])}):
            line, above = lines.encode(each, above)
            content += line
        (tmp_path / "state").write_bytes(content)
        with pytest.raises(InputError, match="can read \\(line 2"):
            learner(path=tmp_path / "state")
