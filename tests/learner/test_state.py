"""What is on the disk: nothing that was told is lost, whatever happens to the process."""

import json
import os
import subprocess
import sys
from datetime import date
from hashlib import sha256

import numpy as np
import pytest
import torch
from frames import Frame, Table
from PIL import Image
from sklearn.linear_model import LogisticRegression

import learner_kills
from foresee import SKIP, UNSURE, InputError, Learner, lines, read
from foresee.learner.pool import brief, distinct

X = np.random.default_rng(0).normal(size=(40, 2))
Y = ["left" if x < 0 else "right" for x in X[:, 0]]
NAMES = [f"photo {i}" for i in range(40)]


def learner(path, **options):
    return Learner(LogisticRegression(), X, draws=10, path=path, **options)


def rounds(path, number, **options):
    """Ask and tell so often, in a learner of its own each time where ``path`` is given."""
    with learner(path, **options) as found:
        for _ in range(number):
            batch = found.ask(3)
            found.tell(batch.ids, [Y[i] for i in batch.ids])
        return found.ask(3), found.told


def as_before(path, **more):
    """Leave a record as versions wrote it that kept the rows of no target."""
    header, *events = lines.parse(path, path.read_bytes()).values
    header = {key: header[key] for key in header if not key.startswith("target_")}
    content, above = b"", 0
    for each in (header | more, *events):
        line, above = lines.encode(each, above)
        content += line
    path.write_bytes(content)


@pytest.fixture
def state(tmp_path):
    path = tmp_path / "state"
    with learner(path) as found:
        found.tell(range(4), Y[:4])
        batch = found.ask(3)
        found.tell(batch.ids, [Y[batch.ids[0]], SKIP, UNSURE])
        found.ask(2)
        found.release()
    return path


def test_taken_up_again_it_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = rounds(tmp_path / "whole", 5, holdout=0.2)
    for number in (1, 1, 2, 1):
        parts = rounds(tmp_path / "parts", number, holdout=0.2)
    assert parts == whole
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    assert rounds(None, 5, holdout=0.2) == whole


def test_every_answer_is_kept(state):
    with learner(state) as found, learner(None) as fresh:
        assert len(found.told) == 5
        assert len(found._desk.state.aside) == 2
        assert found.out == []
        for event in found._desk.events:
            fresh._desk.happen(**event)
        assert fresh._desk.state == found._desk.state


def test_a_cut_anywhere_loses_at_most_the_line_that_was_being_written(state):
    data = state.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    near = {end + step for end in [0, *ends] for step in (-1, 0, 1, 40)}
    for size in sorted(size for size in near if 0 <= size <= len(data)):
        state.write_bytes(data[:size])
        with learner(state) as found:
            assert len(found._desk.events) == max(0, sum(end <= size for end in ends) - 1)
        assert state.read_bytes() == data[: max([ends[0], *(e for e in ends if e <= size)])]


def test_damage_is_refused(state):
    data = state.read_bytes()
    for place in range(60, len(data) - 120, 23):
        state.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(InputError, match=r"is damaged in line|is no record|has format"):
            learner(state)
    state.write_bytes(data)
    learner(state).close()


def test_what_is_not_ours_is_left_alone(tmp_path):
    for content in (b"precious", b'{"kind": "header"}\n', b"\x80\x04pickle"):
        (tmp_path / "file").write_bytes(content)
        for act in (learner, learner(None).save):
            with pytest.raises(InputError, match="is no record of a learner"):
                act(tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content


def test_a_later_format_is_refused(state):
    header = lines.parse(state, state.read_bytes()).values[0]
    line, above = lines.encode({**header, "format": 4})
    state.write_bytes(line)
    with pytest.raises(InputError, match="has format 4, and this version of foresee reads 3"):
        learner(state)
    line, above = lines.encode(header)
    event, _ = lines.encode({"kind": "dance"}, above)
    state.write_bytes(line + event)
    with pytest.raises(InputError, match=r"line 2: an event of kind 'dance'"):
        learner(state)


def test_it_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    order = []
    sync = os.fsync
    with learner(tmp_path / "state") as found:
        monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), sync(fd))[1])
        apply = found._desk.state.apply
        found._desk.state.apply = lambda event: (order.append("count"), apply(event))
        found.tell([0], ["left"])
        assert order == ["sync", "count"]

        def full(fd):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"No space left.*make room"):
            found.tell([1], ["left"])
        monkeypatch.setattr(os, "fsync", sync)
        assert found.told == {0: "left"}
        found.tell([2], ["right"])
    with learner(tmp_path / "state") as again:
        assert again.told == {0: "left", 2: "right"}


def test_two_learners_on_one_state_are_told_so(tmp_path):
    path = tmp_path / "state"
    first = learner(path)
    with pytest.raises(InputError, match=r"is in use by this process on .*: close that learner"):
        learner(path)
    code = f"""
import numpy as np
from foresee import InputError, Learner
from sklearn.linear_model import LogisticRegression
try:
    Learner(LogisticRegression(), np.zeros((40, 2)), path={str(path)!r})
except InputError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"is in use by process {os.getpid()} on" in said.stdout
    first.close()
    learner(path).close()


def test_another_pool_or_seed_is_refused(state):
    for options, words in (
        ({"seed": 1}, r"begun with seed = 0, and this learner has 1"),
        ({"holdout": 0.1}, "begun with holdout"),
        ({"classes": ["left", "right"]}, "begun with classes"),
        ({"ids": NAMES}, "a pool of 40 numbered rows, and this learner has one of rows with ids"),
    ):
        with pytest.raises(InputError, match=words):
            learner(state, **options)
    for pool, words in ((X[:39], "a pool of 40 numbered"), (X + 1, "other rows in the pool")):
        with pytest.raises(InputError, match=f"begun with {words}"):
            Learner(LogisticRegression(), pool, path=state)
    learner(state).close()  # and nobody holds the lock


def test_a_pool_with_names_may_grow_and_change_its_order(tmp_path):
    path = tmp_path / "state"
    with learner(path, ids=NAMES) as found:
        found.tell(NAMES[:6], Y[:6])
        before = found.predict(X).tolist()
    turned = Learner(LogisticRegression(), X[::-1], ids=NAMES[::-1], path=path)
    assert turned.predict(X).tolist() == before
    turned.close()
    with pytest.raises(InputError, match="knows 'photo 0', which is not in the pool"):
        Learner(LogisticRegression(), X[1:], ids=NAMES[1:], path=path)


def test_a_target_whose_rows_are_held_out_must_stay(tmp_path):
    path, names = tmp_path / "state", [f"t{i}" for i in range(40)]

    def held(target, **more):
        return learner(path, target=target, **({"holdout": 0.5} | more))

    with held(X) as found:
        found.ask(6)
    for target, words in ((X[:39], "a target of 40"), (X[::-1], "other rows in the target")):
        with pytest.raises(InputError, match=f"begun with {words}"):
            held(target)
    as_before(path)
    held(X[::-1]).close()
    for more in ({"target_ids": names}, {"holdout": 0.0}):
        path.unlink()
        held(X, **more).close()
        held(X[::-1], **more).close()


def test_a_frame_without_ids_of_its_own_must_stay(tmp_path):
    path, grown = tmp_path / "state", np.concatenate([X[:3] + 9, X])

    def taken_up(pool, **more):
        with Learner(LogisticRegression(), pool, path=path, **more) as found:
            return found.told

    with Learner(LogisticRegression(), Frame(X), path=path) as found:
        found.tell(range(4), Y[:4])
    assert taken_up(Frame(X)) == found.told
    as_before(path)
    for rows, words in ((grown, "a pool of 40"), (X[::-1], "other rows in the pool")):
        with pytest.raises(InputError, match=f"begun with {words}"):
            taken_up(Frame(rows))
    as_before(path, rows=None, look=None)
    assert taken_up(Frame(grown)) == found.told  # nobody kept what they were
    with pytest.raises(InputError, match="begun with a pool of rows with ids"):
        taken_up(X)
    path.unlink()
    taken_up(X, ids=list(range(40)))
    with pytest.raises(InputError, match="begun with a pool of rows with ids"):
        taken_up(Frame(X))
    path.unlink()
    for _ in range(2):
        taken_up(X.astype("M8[s]"))  # whose memory cannot be looked at


PIXELS = np.random.default_rng(2).integers(256, size=(12, 8, 8), dtype=np.uint8)


class Opaque:
    def __init__(self, *held):
        self.held = held


@pytest.mark.parametrize(
    "row",
    [
        lambda i: np.array([float(X[i, 0]), f"a long text {i}", date(2026, 1, 1 + i)], object),
        lambda i: Image.fromarray(PIXELS[i]),
        lambda i: (Image.fromarray(PIXELS[i]), None),
        lambda i: ((torch.from_numpy(X[i]), None), b"at 0x", date(2026, 1, 1 + i)),
        lambda i: (b" at 0x1", i),
        lambda i: [Opaque(X[i], "b")],
        lambda i: ("ab"[: i % 2 + 1], "abc"[i % 2 + 1 :], i // 2),
    ],
)
def test_equal_rows_are_known_again_and_others_told_apart(row, tmp_path):
    class Rows(list):
        def __getitem__(self, i):
            return row(i)  # made anew each time, often where the last one lay

    assert distinct(Rows(range(12))).tolist() == list(range(12))
    assert distinct([row(i % 3) for i in range(12)]).tolist() == [0, 1, 2]
    path = tmp_path / "state"
    Learner(LogisticRegression(), [row(i) for i in range(12)], path=path).close()
    Learner(LogisticRegression(), Rows(range(12)), path=path).close()
    with pytest.raises(InputError, match="begun with other rows in the pool"):
        Learner(LogisticRegression(), [row(11 - i) for i in range(12)], path=path)


def test_records_hold_digests_of_rows():
    assert brief(X[0]) == brief(torch.from_numpy(X[0])) == sha256(X[0].tobytes()).digest()
    assert brief("a at 0x1") == sha256(b"'a at 0x1'").digest()
    parts = X[0], "at 0x1 at 0x2", b"at 0x1 at 0x2"
    assert brief(parts) == sha256(b"".join(map(brief, parts))).digest()
    assert brief({0, 8}) == brief({8, 0})
    assert brief(Opaque(1)) == brief([(Opaque,), {"held": (1,)}, None, None])


def test_rows_that_cannot_be_looked_into_are_known_while_they_live():
    circle, function = Opaque(), lambda: None
    circle.held = circle
    assert distinct([circle, function, circle, function]).tolist() == [0, 1]


def test_save_and_load(tmp_path, state):
    with learner(state) as found:
        found.save(tmp_path / "copy")
        found.save(state)
        found.tell([30], ["left"])
        expected = found.told
    again = Learner.load(state, LogisticRegression(), X, draws=10)
    assert again.told == expected
    copied = Learner.load(tmp_path / "copy", LogisticRegression(), X, draws=10)
    assert len(copied.told) == len(expected) - 1
    copied.tell([30], ["left"])
    assert copied.ask(4) == again.ask(4)
    with pytest.raises(InputError, match="in use by another learner"):
        learner(None).save(state)
    with pytest.raises(InputError, match="pool is not kept in"):
        Learner.load(tmp_path / "copy", LogisticRegression())
    with pytest.raises(InputError, match="there is no learner in"):
        Learner.load(tmp_path / "nothing", LogisticRegression(), X)


def test_what_was_read_from_a_file_is_read_again(tmp_path):
    path = tmp_path / "points.csv"
    rows = [f"{name},{x},{y}" for name, (x, y) in zip(NAMES, X, strict=True)]
    path.write_text("\n".join(["name,x,y", *rows]))
    with Learner(LogisticRegression(), read(path, ids="name"), path=tmp_path / "state") as found:
        found.tell(NAMES[:6], Y[:6])
        batch = found.ask(3)
    with Learner.load(tmp_path / "state", LogisticRegression()) as again:
        assert again.ask(3) == batch


def test_columns_of_a_target_are_told_apart_by_their_names(tmp_path):
    pool, target = tmp_path / "pool.csv", tmp_path / "target.csv"
    pool.write_text("\n".join(["x,y", *(f"{x},{y}" for x, y in X)]))
    target.write_text("\n".join(["y,more,x", *(f"{y},0,{x}" for x, y in X)]))
    options = {"draws": 10, "holdout": 0.5}
    found = Learner(LogisticRegression(), pool, target, path=tmp_path / "state", **options)
    alike = Learner(LogisticRegression(), X, X, **options)
    told = Learner(LogisticRegression(), read(pool), target, **options)
    for one in (found, alike, told):
        one.tell(range(6), Y[:6])
        held = one.ask(8).held
        one.tell(held, [Y[int(name.removeprefix("target/"))] for name in held])
    assert found.card() == alike.card() == told.card()
    framed = Learner(LogisticRegression(), Table(X, ["x", "y"]), target, **options)
    framed.follow(found.events())
    answers = alike.predict(X).tolist()
    turned = Table(X[:, ::-1], ["y", "x"])
    for one in (found, told, framed):
        for inputs in (X, target, str(target), read(pool)):
            assert one.predict(inputs).tolist() == answers
        assert list(one._point(one._fitted(), turned).argmax(1)) == [a == "right" for a in answers]
        with pytest.raises(InputError, match=r"inputs has the columns of pool in another order"):
            one.predict(read(target, inputs=["y", "x"]))
    found.close()
    other = read(target, inputs=["y", "x"])
    with pytest.raises(
        InputError, match=r"in another order, y, x: read it with inputs=\['x', 'y'\]"
    ):
        Learner(LogisticRegression(), read(pool), other)
    Learner(LogisticRegression(), read(target, inputs=["y", "x"]), other)
    with Learner.load(tmp_path / "state", LogisticRegression(), draws=10) as again:
        assert again.card() == found.card()


def test_the_file_is_plain_json(state):
    found = [json.loads(line) for line in state.read_text().splitlines()]
    assert [line["kind"] for line in found] == ["learner", "tell", "ask", "tell", "ask", "release"]
    assert found[0]["format"] == 3
    assert found[2]["ids"]


def test_a_closed_learner_keeps_nothing(tmp_path):
    found = learner(tmp_path / "state")
    found.close()
    with pytest.raises(InputError, match="was closed: make the learner anew"):
        found.tell([0], ["left"])
    assert found.told == {}


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write in"):
        learner(tmp_path / "file" / "state")


def test_kills():
    command = [sys.executable, learner_kills.__file__, "--kills", "8", "--labels", "80"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "8 kills" in said.stdout
