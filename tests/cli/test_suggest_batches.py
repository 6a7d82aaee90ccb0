"""`foresee suggest` for batches: strategies, ids, exclusions, copies, promises, kinds of files."""

import csv
import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from foresee import predictions, promise, scores, suggest
from foresee.cli.app import app
from foresee.errors import InputError
from foresee.seeding import generator
from foresee.shortlist import Shortlist
from foresee.strategies import GreedyConditioning
from foresee.testing import random_draws
from foresee.types import View

N, M, T, C = 60, 7, 5, 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("pool.npy", draws(0, N))
    np.save("val.npy", draws(1, M))
    return tmp_path


def draws(seed, n):
    return random_draws(np.random.default_rng(seed), n, T, C).astype(np.float32)


def run(*args, pool="pool.npy", target="val.npy", k=5):
    target = ["--target", target] if target else []
    return CliRunner().invoke(app, ["suggest", "--pool", pool, *target, "-k", str(k), *args])


def picked(*args, **options):
    result = run(*args, **options)
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def column(rows, name):
    return [row[name] for row in rows]


def index(rows):
    return [int(row["index"]) for row in rows]


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


# Strategies


@pytest.mark.parametrize("name", suggest.STRATEGIES)
def test_a_small_pool_is_shown_whole_to_the_strategy(folder, name):
    chosen = suggest.choice(name)
    target = "val.npy" if chosen.score != "bald" else None
    rows = picked("--strategy", name, target=target)
    pool, val = draws(0, N), draws(1, M)
    view = View(suggest._Given(), None, np.empty(0), pool, val)
    assert index(rows) == chosen.strategy(view, 5, generator(0, "select")).tolist()
    alone = getattr(scores, chosen.score)
    alone = alone(pool) if chosen.score == "bald" else alone(pool, val)
    np.testing.assert_allclose(np.array(column(rows, "score"), float), alone[index(rows)])


def test_a_strategy_and_a_score_exclude_each_other(folder):
    assert_refused(run("--strategy", "greedy", "--score", "mell"), "exclude each other")
    assert_refused(run("--force-ray"), "--force-ray goes with --ray: pass --ray local")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("badge", ["needs embeddings of the inputs", "choose among greedy"]),
        ("Coreset", ["needs embeddings of the inputs"]),
        ("retrainingeer", ["needs the model itself"]),
        ("topk", ["must be one of greedy, mebl++", "got topk"]),
    ],
)
def test_what_predictions_do_not_tell_is_refused(folder, name, words):
    assert_refused(run("--strategy", name), *words)


def test_batchbald_needs_no_target_and_then_promises_nothing(folder):
    assert column(picked("--strategy", "batchbald", target=None), "promise") == [""] * 5
    assert "does not look at --target" in run("--strategy", "batchbald").stderr


# Shortlists


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 9), st.integers(0, 9))
def test_a_shortlist_is_the_best_and_the_lowest_keys_of_the_rest(seed, piece, best, others):
    rng = np.random.default_rng(seed)
    values, keys = rng.integers(0, 8, 40) / 8, rng.random(40)
    short = Shortlist(best, others)
    for start in range(0, 40, piece):
        some = slice(start, start + piece)
        short.add(np.arange(40)[some], values[some], keys[some])
    order = sorted(range(40), key=lambda i: (-values[i], keys[i]))
    rest = sorted(order[best:], key=lambda i: keys[i])[:others]
    expected = sorted(order[:best] + rest, key=lambda i: (-values[i], keys[i]))
    assert short.sorted().positions.tolist() == expected


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 9), st.integers(0, 20))
def test_a_shortlist_of_shortlists_is_the_shortlist(seed, best, others, copies):
    """Of any pieces, in any order, with equal scores and copies whose scores may differ."""
    rng, copies = np.random.default_rng(seed), min(copies, best + others)
    kinds = rng.integers(0, 15, 40).astype(np.uint64)
    values = (rng.integers(0, 4, 15)[kinds] + rng.integers(0, 2, 40) * (seed % 2)) / 8
    keys = rng.random(15)[kinds]
    rank = sorted(range(40), key=lambda i: (-values[i], keys[i], i))
    first = [i for place, i in enumerate(rank) if kinds[i] not in kinds[rank[:place]]]
    rest = sorted(first[best:], key=lambda i: keys[i])[:others]
    last = [i for i in rank if i not in first][: copies if len(first) < copies else 0]
    expected = [i for i in first if i in first[:best] or i in rest] + last
    short = Shortlist(best, others, copies)
    for part in np.array_split(rng.permutation(40), rng.integers(1, 5)):
        one = Shortlist(best, others, copies, short.least, short.last)
        for some in np.array_split(part, rng.integers(1, 5)):
            one.add(some, values[some], keys[some], kinds[some], name=some.astype(str))
        short.add(**one.rows)
    found = short.sorted()
    assert found.positions.tolist() == expected
    assert found.copies.tolist() == [False] * (len(expected) - len(last)) + [True] * len(last)
    assert short.rows["name"].astype(int).tolist() == short.rows["positions"].tolist()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["mell", "mezl", "mebl", "bald"])
@pytest.mark.parametrize(("t", "c", "m"), [(20, 2, 50), (7, 5, 11), (20, 10, 30)])
def test_a_score_is_the_same_to_the_bit_in_any_piece(name, t, c, m):
    pool, val = (
        random_draws(np.random.default_rng(seed), n, t, c).astype(np.float16)
        for seed, n in ((0, 300), (1, m))
    )
    scorer = suggest.Scorer(name, val if suggest.SCORES[name] else None)
    whole = scorer(pool, 0)
    for rows in (1, 2, 7, 64):
        parts = [scorer(pool[start : start + rows], start) for start in range(0, 300, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_piece_without_rows_changes_nothing(folder):
    pool = predictions.read("--pool", "pool.npy")
    alone, among = Shortlist(5, 0), Shortlist(5, 0)
    suggest.score_all(pool, None, "bald", alone, excluded=np.array([3]))
    values = pool.all()
    pieces = SimpleNamespace(row_bytes=1, pieces=lambda rows: (values[:0], values, values[:0]))
    suggest.score_all(pieces, None, "bald", among, excluded=np.array([3]))
    np.testing.assert_array_equal(alone.sorted().positions, among.sorted().positions)


def test_a_strategy_sees_the_best_rows_of_a_large_pool(folder):
    pool, val = draws(2, 500), draws(1, M)
    np.save("pool.npy", pool)
    rows = picked("--shortlist", "40", k=10)
    best = set(np.argsort(-scores.mebl(pool, val))[:20].tolist())
    others = set(index(picked("--shortlist", "40", "--seed", "1", k=40))) - best
    assert len(set(index(rows)) & best) >= 5
    assert len(others) == 20
    assert others != set(index(picked("--shortlist", "40", k=40))) - best


@pytest.mark.parametrize("size", [1, 64, 1 << 24])
def test_picks_do_not_depend_on_the_pieces(folder, monkeypatch, size):
    np.save("pool.npy", draws(2, 120))
    expected = index(picked("--shortlist", "40", k=10))
    monkeypatch.setattr(suggest, "CHUNK", size)
    assert index(picked("--shortlist", "40", k=10)) == expected


def test_bad_shortlists_are_refused(folder):
    assert_refused(run("--shortlist", "4"), "at least k = 5, got 4")
    assert_refused(run("--shortlist", "40", "--score", "mell"), "--score looks at all rows")


# Copies


@pytest.mark.parametrize("jitter", [0, 1e-8])
def test_copies_do_not_fill_a_batch(folder, jitter):
    pool = draws(0, N)
    best = int(scores.mebl(pool, draws(1, M)).argmax())
    copies = np.repeat(pool[best : best + 1], 30, 0) + np.float32(jitter)
    np.save("pool.npy", np.concatenate([copies[:15], pool, copies[15:]]))
    rows = index(picked(k=20))
    places = [*range(15), 15 + best, *range(15 + N, 30 + N)]
    assert len(set(rows) & set(places)) == 1
    assert len(set(index(picked("--score", "mebl", k=20))) & set(places)) == 20


def test_copies_come_last_where_there_is_nothing_else(folder):
    np.save("pool.npy", np.repeat(draws(0, 3), 4, 0))
    result = run(k=8)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {i // 4 for i in index(rows[:3])} == {0, 1, 2}
    assert all(i % 4 == 0 for i in index(rows[:3]))
    assert len(set(index(rows))) == 8
    assert "only 3 rows differ in their predictions: the last 5 picks are copies" in result.stderr


def test_rows_of_the_same_numbers_in_another_order_are_no_copies(folder):
    row = draws(0, 1)
    swaps = [row[..., order] for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 1, 0])]
    turned = [row[:, [*range(i, T), *range(i)]] for i in range(1, T)]
    np.save("pool.npy", np.concatenate(swaps + turned))
    result = run(k=9)
    assert result.exit_code == 0
    assert result.stderr == ""


# Promises


@pytest.mark.parametrize("args", [(), ("--score", "mell")])
def test_promise_is_that_of_all_picks_so_far(folder, args):
    rows = picked(*args, k=12)
    pool, val = draws(0, N), draws(1, M)
    expected = [promise(pool[index(rows[: r + 1])], val) for r in range(12)]
    np.testing.assert_allclose(np.array(column(rows, "promise"), float), expected, rtol=1e-5)


@pytest.mark.parametrize("certain", [False, True])
def test_promises_are_the_promise_of_each_beginning(certain):
    rng = np.random.default_rng(0)
    batch, val = random_draws(rng, 30, 12, 4), random_draws(rng, 20, 12, 4)
    if certain:  # the draw decides the label
        batch = np.eye(4)[batch.argmax(2)]
    found = scores.promises(batch, val)
    expected = [promise(batch[: r + 1], val) for r in range(30)]
    np.testing.assert_allclose(found, expected, rtol=1e-7 if not certain else 1e-4)
    assert (np.diff(found) >= 0).all()


def test_only_the_first_picks_are_told_their_promise(folder, monkeypatch):
    monkeypatch.setattr(suggest, "PROMISED", 2)
    told = column(picked(k=4), "promise")
    assert [bool(text) for text in told] == [True, True, False, False]


# Names, and what is labelled already


def test_rows_are_called_by_their_number_or_by_a_file_of_names(folder):
    Path("ids.txt").write_text("".join(f"image {i}.png\n" for i in range(N)))
    plain, named = picked(), picked("--ids", "ids.txt")
    assert column(plain, "id") == column(plain, "index")
    assert column(named, "id") == [f"image {i}.png" for i in index(plain)]


@pytest.mark.parametrize("kind", ["txt", "npy", "csv", "csv:name", "csv;"])
def test_names_from_any_file(folder, kind):
    names = [f"a,{i}" for i in range(N)]
    file = f"names.{kind}"
    if kind == "txt":
        Path(file).write_text("\n".join(names))
    elif kind == "npy":
        np.save(file, np.array(names))
    else:
        header, file = kind.partition(":")[2] or "id", file.rstrip(";")
        by = ";" if kind.endswith(";") else ","
        lines = [f'{i}{by}"{name}"\n' for i, name in enumerate(names)]
        Path("names.csv").write_text(f"row{by}{header}\n" + "".join(lines))
    rows = picked("--ids", file)
    assert column(rows, "id") == [names[i] for i in index(rows)]


def test_long_names_are_shown_whole(folder, monkeypatch):
    Path("names.txt").write_text("".join(f"{'folder/' * 20}{i:03}.jpg\n" for i in range(N)))
    shown = run("--ids", "names.txt", "--out", "picks.csv").stdout
    assert len(re.findall(r"/\d{3}\.jpg", shown)) == 5
    monkeypatch.setattr("foresee.cli.console._WIDE", 60)  # as in a terminal
    shown = run("--ids", "names.txt", "--out", "picks.csv").stdout
    assert max(map(len, shown.splitlines()[:-1])) == 60
    assert shown.count(".jpg") == 5


def test_what_was_picked_can_be_excluded(folder):
    before = index(picked("--score", "mell"))
    assert run("--out", "picks.csv", "--score", "mell").exit_code == 0
    after = index(picked("--score", "mell", "--exclude", "picks.csv"))
    assert before + after == index(picked("--score", "mell", k=10))
    Path("more.txt").write_text("\n".join(map(str, after)))
    both = index(picked("--exclude", "picks.csv", "--exclude", "more.txt", k=50))
    assert sorted(before + after + both) == list(range(N))


def test_excluded_by_name(folder):
    Path("ids.txt").write_text("".join(f"n{i}\n" for i in range(N)))
    best = index(picked("--score", "mell"))
    Path("done.txt").write_text(f"n{best[0]}\nelsewhere\n\n")
    result = run("--score", "mell", "--ids", "ids.txt", "--exclude", "done.txt")
    assert index(csv.DictReader(io.StringIO(result.stdout)))[:4] == best[1:]
    assert "--exclude: 1 of 2 are not in the pool: elsewhere" in result.stderr


NAMES = {
    "too few": ("ids.txt", "a\nb\n", ["--ids: ids.txt has 2 names and the pool has 60 rows"]),
    "none": ("ids.txt", "", ["--ids: ids.txt has 0 names"]),
    "no such file": ("no.txt", None, ["--ids: there is no file no.txt"]),
    "no column": ("ids.csv", "a,b\n1,2\n", ["no column 'id' but a, b", "ids.csv:a"]),
    "a comma in a name": (
        "ids.csv",
        "file,id\n" + "a,b.png,7\n" * N,
        ["--ids: ids.csv, line 2 has 3 fields, and the first line has 2"],
    ),
    "a name left out": ("ids.csv", "file,id\na.png\n", ["ids.csv, line 2 has 1 fields"]),
    "twice": ("ids.txt", "a\n" * N, ["'a' is the name of row 0 and of row"]),
    "suffix": ("ids.json", "[]", ["must be a .txt, .csv, .npy, .parquet file"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_bad_names_are_refused(folder, case):
    file, content, words = NAMES[case]
    if content is not None:
        Path(file).write_text(content)
    assert_refused(run("--ids", file), *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("60\n", ["1 of 1 are not in the pool: 60", "such as 0"]),
        ("cat\n", ["1 of 1 are not in the pool: cat"]),
        ("007\n", ["1 of 1 are not in the pool: 007"]),
        ("-1\n", ["1 of 1 are not in the pool: -1"]),
        ("\n".join(map(str, range(58))), ["k = 5 is more than the 2 points of the pool that are"]),
    ],
)
def test_bad_exclusions_are_refused(folder, content, words):
    Path("done.txt").write_text(content)
    assert_refused(run("--exclude", "done.txt"), *words)


def test_no_file_of_names_is_overwritten(folder):
    Path("done.txt").write_text("3\n")
    refused = run("--exclude", "done.txt", "--out", "done.txt")
    assert_refused(refused, "--out would overwrite the input done.txt")


# Files of all kinds


def to_table(path, values, classes="xyz", more=()):
    """A column for each draw and class, in any order of draws."""
    n, t, c = values.shape
    header = [f"{d}:{classes[j]}" for d in reversed(range(t)) for j in range(c)]
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(name for name, _ in more), *header])
        for i in range(n):
            cells = [repr(float(values[i, d, j])) for d in reversed(range(t)) for j in range(c)]
            table.writerow([*(column[i] for _, column in more), *cells])


@pytest.mark.parametrize("kind", ["npz", "pt", "pt:pool", "pt:7", "csv", "csv;", "csv, "])
def test_the_same_picks_from_any_kind_of_file(folder, kind):
    pool = draws(0, N)
    file = f"p.{kind}"
    if kind == "npz":
        np.savez(file, pool)
    elif kind == "pt":
        torch.save(torch.from_numpy(pool), file)
    elif kind == "pt:7":
        torch.save({7: torch.from_numpy(pool), 8: torch.zeros(3)}, "p.pt")
    elif kind == "pt:pool":
        torch.save({"pool": torch.from_numpy(pool), "other": torch.zeros(3)}, "p.pt")
    else:
        file, by = file[:5], file[5:] or ","
        to_table(file, pool)
        Path(file).write_text(Path(file).read_text().replace(",", by))
    assert index(picked(pool=file)) == index(picked())


def test_names_may_hold_any_separator_of_lines(folder):
    rows = "".join(f"a\u2028{i}\n" for i in range(N))
    Path("names.csv").write_text(f"id\n{rows}", encoding="utf-8")
    result = run("--ids", "names.csv", "--out", "picks.csv")
    assert result.exit_code == 0, result.exception


def test_suffixes_in_capitals(folder):
    expected = picked()
    Path("pool.npy").rename("POOL.NPY")
    np.savez("val.npz", val=draws(1, M), other=draws(2, M))
    Path("val.npz").rename("VAL.NPZ")
    assert picked(pool="POOL.NPY", target="VAL.NPZ:val") == expected


def test_half_precision_tensors(folder):
    torch.save(torch.from_numpy(draws(0, N)).bfloat16(), "p.pt")
    refused = run(pool="p.pt")  # the rows of bfloat16 do not sum to one, and that is said
    assert_refused(refused, "sums to")
    torch.save(torch.from_numpy(draws(0, N)).half(), "p.pt")
    np.save("p.npy", draws(0, N).astype(np.float16))
    assert picked(pool="p.pt") == picked(pool="p.npy")


def test_a_table_may_hold_the_names_too(folder):
    to_table("p.csv", draws(0, N), more=[("file", [f"{i}.png" for i in range(N)])])
    rows = picked("--ids", "file", pool="p.csv")
    assert column(rows, "id") == [f"{i}.png" for i in index(rows)]


def test_classes_of_tables_must_agree(folder):
    to_table("p.csv", draws(0, N), "xyz")
    to_table("v.csv", draws(1, M), "yxz")
    refused = run(pool="p.csv", target="v.csv")
    assert_refused(refused, "pool has the classes x, y, z and target has y, x, z")


def test_a_class_may_have_a_name_of_two_lines(folder):
    to_table("p.csv", draws(0, N), ["x\ny", "y", "z"])
    assert index(picked(pool="p.csv")) == index(picked())


def test_draws_of_tables_must_agree(folder):
    to_table("p.csv", draws(0, N))
    to_table("v.csv", draws(1, M))
    text = Path("v.csv").read_text()
    for d in reversed(range(T)):  # counted from 1
        text = text.replace(f"{d}:", f"{d + 1}:")
    Path("v.csv").write_text(text)
    refused = run(pool="p.csv", target="v.csv")
    assert_refused(refused, f"pool has the draws 0, 1, …, {T - 1} and target has 1, 2, …, {T}:")
    Path("p-2.csv").write_text(text)
    assert_refused(
        run(pool="p*.csv"), "must have the same draws", f"x, y, z, draws 1, 2, …, {T} and"
    )


TABLES = {
    "no header": ("0.1,0.9\n0.2,0.8\n", ["named draw:class", "got 0.1, 0.9"]),
    "empty": ("", ["got an empty file"]),
    "a class is missing": ("0:a,0:b,1:a\n0.5,0.5,1\n", ["for every draw and class"]),
    "twice": ("0:a,0:b,0:a\n0.5,0.5,1\n", ["each once"]),
    "a word": ("0:a,0:b,1:a,1:b\n.5,.5,.5,.5\n.5,.5,x,.5\n", ["line 3: 1:a", "got 'x'"]),
    "a short line": ("0:a,0:b,1:a,1:b\n.5,.5,.5\n", ["line 2 has 3 fields", "first line has 4"]),
    "no rows": ("0:a,0:b,1:a,1:b\n", ["pool is empty"]),
    "one draw": ("0:a,0:b\n.5,.5\n", ["pool must have shape [n t c], got [1, 2]"]),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables_are_refused(folder, case):
    content, words = TABLES[case]
    Path("p.csv").write_text(content)
    assert_refused(run("--score", "bald", pool="p.csv", target=None, k=1), *words)


def test_a_pickle_is_never_opened(folder):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, ("harm",)

    torch.save({"pool": Harmful()}, "p.pt")
    assert_refused(run(pool="p.pt"), "--pool: p.pt cannot be read")
    assert not Path("harm").exists()


def test_tensors_by_name(folder):
    torch.save({"a": torch.zeros(2), "b": torch.zeros(2)}, "p.pt")
    assert_refused(run(pool="p.pt"), "--pool must be one tensor, but p.pt holds a, b", "p.pt:a")
    assert_refused(run(pool="p.pt:z"), "a tensor 'z', but p.pt holds a, b")
    torch.save([torch.zeros(2)], "p.pt")
    assert_refused(run(pool="p.pt"), "cannot be read")


# Many files


@pytest.fixture
def shards(folder):
    pool = draws(0, N)
    for number, part in enumerate(np.split(pool, [10, 35])):
        np.save(f"shard-{number}.npy", part)


@pytest.mark.parametrize("args", [(), ("--score", "mell")])
def test_a_pattern_stands_for_all_its_files(shards, args):
    one, many = picked(*args, k=30), picked(*args, k=30, pool="shard-*.npy")
    assert index(one) == index(many)
    assert column(one, "promise") == column(many, "promise")
    places = {i: f"shard-{f}.npy:{i - s}" for f, s, e in [(0, 0, 10), (1, 10, 35), (2, 35, N)]
              for i in range(s, e)}  # fmt: skip
    assert column(many, "id") == [places[i] for i in index(many)]


def test_rows_of_many_files_can_be_excluded(shards):
    first = run("--out", "picks.csv", "--score", "mell", pool="shard-*.npy")
    assert first.exit_code == 0
    rest = index(picked("--score", "mell", "--exclude", "picks.csv", pool="shard-*.npy"))
    assert rest == index(picked("--score", "mell", k=10))[5:]
    for wrong in ("7", "shard-0.npy:10", "other.npy:1"):
        Path("done.txt").write_text(wrong)
        refused = run("--exclude", "done.txt", pool="shard-*.npy")
        assert_refused(refused, f"not in the pool: {wrong}", "such as shard-0.npy:0")


def test_no_file_of_a_pattern_is_overwritten(shards):
    Path("done-1.txt").write_text("shard-0.npy:3\n")
    for out in ("shard-1.npy", "done-1.txt"):
        before = Path(out).read_bytes()
        refused = run("--exclude", "done-*.txt", "--out", out, pool="shard-*.npy")
        assert_refused(refused, f"--out would overwrite the input {out}")
        assert Path(out).read_bytes() == before


def test_files_of_one_name_are_told_apart_by_their_folders(folder):
    places = []
    for number, part in enumerate(np.split(draws(0, N), [25])):
        Path(f"d{number}/x").mkdir(parents=True)
        np.save(f"d{number}/x/pool.npy", part)
        places += [f"d{number}/x/pool.npy:{i}" for i in range(len(part))]
    run("--out", "picks.csv", "--score", "mell", pool="d*/x/pool.npy")
    rest = picked("--exclude", "picks.csv", "--score", "mell", pool="d*/x/pool.npy")
    assert index(rest) == index(picked("--score", "mell", k=10))[5:]
    assert column(rest, "id") == [places[i] for i in index(rest)]


def test_names_of_many_files(shards):
    for number, rows in enumerate(np.split(np.arange(N), [10, 35])):
        Path(f"names-{number}.txt").write_text("".join(f"n{i}\n" for i in rows))
    rows = picked("--ids", "names-*.txt", pool="shard-*.npy")
    assert column(rows, "id") == [f"n{i}" for i in index(rows)]


def test_files_that_do_not_fit_each_other_are_refused(shards):
    np.save("shard-1.npy", random_draws(np.random.default_rng(0), 9, T, C + 1))
    refused = run(pool="shard-*.npy")
    assert_refused(refused, "shard-0.npy is float32 [10, 5, 3] and shard-1.npy is float64 [9,")
    assert_refused(run(pool="none-*.npy"), "no file matches none-*.npy")


def test_files_of_several_precisions_are_taken_as_they_are_scored(shards):
    np.save("shard-0.npy", draws(0, 10).astype(np.float16))
    pool = predictions.read("--pool", "shard-*.npy")
    np.testing.assert_array_equal(pool.take(np.arange(10, N)), draws(0, N)[10:])
    np.save("shard-2.npy", np.ones((9, T, C), int))
    refused = run(pool="shard-*.npy")
    assert_refused(refused, "shard-0.npy is float16 [10, 5, 3] and shard-2.npy is int64 [9, 5, 3]")


def test_a_bad_row_of_a_later_file_is_found(shards):
    bad = np.load("shard-2.npy")
    bad[1, 0, 0] = np.nan
    np.save("shard-2.npy", bad)
    assert_refused(run(pool="shard-*.npy"), "pool[36, 0, 0] is nan")


def test_a_file_whose_name_looks_like_a_pattern(folder):
    np.save("pool[0].npy", draws(0, N))
    assert index(picked(pool="pool[0].npy")) == index(picked())


def test_rows_are_taken_in_their_order(shards):
    pool = predictions.read("--pool", "shard-*.npy")
    some = np.array([59, 3, 10, 34, 3])
    np.testing.assert_array_equal(pool.take(some), draws(0, N)[some])
    assert [pool.position(pool.place(i)) for i in range(N)] == list(range(N))


def test_greedy_on_a_large_pool_loses_little(folder):
    pool, val = draws(2, 3000), draws(1, 50)
    np.save("pool.npy", pool)
    np.save("val.npy", val)
    view = View(suggest._Given(), None, np.empty(0), pool, val)
    whole = GreedyConditioning()(view, 20, np.random.default_rng(0))
    short = index(picked("--shortlist", "300", k=20))
    assert promise(pool[short], val) > 0.95 * promise(pool[whole], val)


def test_an_error_in_python_is_an_input_error(folder):
    with pytest.raises(InputError, match=r"there is no file no\.npy"):
        predictions.read("--pool", "no.npy")
