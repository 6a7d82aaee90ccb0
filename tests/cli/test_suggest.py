"""`foresee suggest` from files to files: what it picks, what it refuses, what it leaves behind."""

import contextlib
import csv
import errno
import gzip
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee import files, predictions, scores, suggest
from foresee.cli.app import app
from foresee.cli.suggest import ScoreName
from foresee.errors import InputError
from foresee.reading import archives, kept
from foresee.shortlist import Shortlist

N, M, T, C = 60, 7, 5, 3
SCORES = {
    "mell": scores.mell,
    "mezl": scores.mezl,
    "mebl": scores.mebl,
    "bald": scores.bald,
    "entropy_mc": scores.entropy_mc,
    "entropy": lambda pool, val: scores.entropy(pool),
}


@pytest.fixture(scope="session")
def pool():
    return probabilities(0, N)


@pytest.fixture(scope="session")
def val():
    return probabilities(1, M)


@pytest.fixture
def folder(tmp_path, monkeypatch, pool, val):
    """A working folder with pool.npy and val.npy in it."""
    np.save(tmp_path / "pool.npy", pool)
    np.save(tmp_path / "val.npy", val)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def probabilities(seed, n, dtype=np.float32):
    draws = np.random.default_rng(seed).dirichlet(np.ones(C), size=(n, T))
    return draws.astype(dtype)


def run(*args, pool="pool.npy", target="val.npy", k="5"):
    options = {"--pool": pool, "--target": target, "-k": k}
    named = [part for name, value in options.items() if value for part in (name, value)]
    return CliRunner().invoke(app, ["suggest", *named, *args])


def target_for(score):
    return "val.npy" if suggest.SCORES[score] else None


def parse(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    return [int(row["index"]) for row in rows], [float(row["score"]) for row in rows]


def assert_refused(result, *words):
    """One line on stderr, that says what the words say; nothing anywhere else."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


# What it picks


@pytest.mark.parametrize("name", SCORES)
def test_picks_are_the_best_of_the_whole_pool(folder, monkeypatch, pool, val, name):
    monkeypatch.setattr(suggest, "CHUNK", 1)  # chunks of the size of the target, or of one row
    if name == "entropy":
        pool = pool[:, 0]
        np.save("pool.npy", pool)
    result = run("--score", name, target=target_for(name), k=str(N))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    whole = SCORES[name](pool, val)
    index, values = parse(result.stdout)
    assert sorted(index) == list(range(N))
    np.testing.assert_allclose(values, whole[index], rtol=1e-4, atol=1e-7)
    if name != "mezl":  # many labels change no prediction: ties
        assert index == np.argsort(-whole, kind="stable").tolist()


def test_default_is_greedy_and_out_gets_the_same_csv(folder):
    printed = run().stdout
    result = run("--out", "picks.csv")
    assert result.exit_code == 0, result.output
    assert Path("picks.csv").read_text() == printed == run("--strategy", "Greedy").stdout
    assert printed != run("--score", "mebl").stdout
    assert sorted(os.listdir()) == ["picks.csv", "pool.npy", "val.npy"]


def test_with_out_stdout_is_a_table_and_a_summary(folder):
    result = run("--out", "picks.csv", k="20")
    *table, summary = result.stdout.splitlines()
    index, _ = parse(Path("picks.csv").read_text())
    shown = [line.split() for line in table if line.split() and line.split()[0].isdigit()]
    assert [int(line[0]) for line in shown] == index[:10]
    assert "first 10 of 20 picks" in result.stdout
    assert summary.startswith(f"{N} inputs scored in ")
    assert "Brier loss; 20 picks in picks.csv" in summary


@pytest.mark.parametrize(
    ("name", "unit"), [("mell", "log loss, in nats"), ("mezl", "error rate"), ("bald", "nats")]
)
def test_summary_names_the_unit(folder, name, unit):
    assert unit in run("--score", name, "--out", "picks.csv").stdout.splitlines()[-1]


def test_help_and_code_know_the_same_scores():
    assert {*ScoreName} - {"eer"} == set(SCORES)


COSTS = "0,1,1\n9,0,1\n9,1,0\n"


def test_a_loss_matrix_changes_what_is_picked(folder, pool, val):
    Path("costs.csv").write_text(COSTS)
    result = run("--score", "eer", "--loss", "costs.csv")
    picks = [int(line.split(",")[0]) for line in result.stdout.splitlines()[1:]]
    costs = np.array([[0, 1, 1], [9, 0, 1], [9, 1, 0]])
    expected = (-scores.eer(pool, val, loss=costs)).argsort(kind="stable")[:5]
    assert set(picks) == set(expected)
    assert set(picks) != set((-scores.mezl(pool, val)).argsort(kind="stable")[:5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,0\n", r"c = 3 rows"),
        (COSTS + "1,1,1\n", r"c = 3 rows.*got \[4, 3\]"),
        ("a,b,c\n0,1,1\n1,0,1\n", r"must hold numbers separated by commas"),
        ("0,1,nan\n1,0,1\n1,1,0\n", r"loss must be finite"),
        ("", r"^error: --loss: costs.csv is empty: write a row of costs for each class\n$"),
        (None, r"there is no file costs.csv"),
    ],
)
def test_a_bad_loss_matrix_is_refused(folder, text, message):
    if text is not None:
        Path("costs.csv").write_text(text)
    result = run("--score", "eer", "--loss", "costs.csv")
    assert result.exit_code == 2
    assert re.search(message, result.stderr)


@pytest.mark.parametrize("args", [("--score", "eer"), ("--loss", "costs.csv")])
def test_a_loss_matrix_and_its_score_belong_together(folder, args):
    result = run(*args)
    assert result.exit_code == 2
    assert "--loss and --score eer belong together" in result.stderr


def test_score_without_target_says_that_it_ignores_one(folder):
    result = run("--score", "bald", target="nowhere.npy")
    assert result.exit_code == 0
    assert result.stderr == "note: --score bald does not look at --target\n"
    assert len(parse(result.stdout)[0]) == 5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(folder, pool, val, save):
    save("one.npz", pool)
    save("two.npz", val=val, pool=pool)
    expected = run().stdout
    assert run(pool="one.npz").stdout == expected
    assert run(pool="two.npz:pool", target="two.npz:val").stdout == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: pool.astype(np.float64),
        lambda pool: pool.astype(np.longdouble),
        lambda pool: pool.astype(">f4"),
        np.asfortranarray,
    ],
    ids=["float64", "longdouble", "big-endian", "fortran"],
)
def test_any_layout_of_floats(folder, pool, change):
    expected, _ = parse(run().stdout)
    np.save("pool.npy", change(pool))
    assert parse(run().stdout)[0] == expected


def test_half_precision(folder, val):
    half = probabilities(0, N, np.float16)
    np.save("pool.npy", half)
    index, values = parse(run("--score", "mell", k=str(N)).stdout)
    np.testing.assert_allclose(values, scores.mell(half, val)[index], rtol=1e-4)


def test_ties_fall_to_the_seed(folder):
    np.save("pool.npy", np.full((N, T, C), 1 / 3, dtype=np.float32))
    seeds = ("0", "1")
    picks = {seed: parse(run("--score", "mell", "--seed", seed).stdout)[0] for seed in seeds}
    assert picks["0"] == parse(run("--score", "mell").stdout)[0]
    assert picks["0"] != picks["1"]
    assert all(len(set(index)) == 5 for index in picks.values())


# How it reads


def test_pool_is_mapped_and_read_in_chunks_as_large_as_the_target(folder, monkeypatch, val):
    monkeypatch.setattr(suggest, "CHUNK", 1)
    seen, done, mell = [], [], scores.mell

    def spy(chunk, target, *, scratch):
        seen.append(len(chunk))
        return mell(chunk, target, scratch=scratch)

    monkeypatch.setattr(scores, "mell", spy)
    pool = predictions.read("--pool", "pool.npy")
    assert isinstance(pool._only.mapped, np.memmap)
    suggest.score_all(pool, val, "mell", Shortlist(1, 0), advance=done.append)
    assert seen == [M] * (N // M) + [N % M]
    assert done == np.cumsum(seen).tolist()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
def test_what_was_read_of_the_pool_is_given_back(folder, pool):
    np.save("pool.npy", np.tile(pool, (1000, 1, 1)))
    mapped = predictions.read("--pool", "pool.npy")
    suggest.best_by_score(mapped, None, "bald", N, scratch=1 << 20)
    mapped.take(np.arange(0, len(mapped), 50))
    entry = Path("/proc/self/smaps").read_text().split(f"{folder}/pool.npy")[1]
    size = len(mapped) * mapped.row_bytes
    assert int(re.search(r"Rss: +(\d+) kB", entry)[1]) < size / 1024 / 4


def test_memory_bounds_the_chunk(folder, pool):
    done, scratch = [], 4 * 10 * pool[0].nbytes
    source, short = predictions.read("--pool", "pool.npy"), Shortlist(1, 0)
    suggest.score_all(source, None, "bald", short, scratch=scratch, advance=done.append)
    assert done == list(range(10, N + 1, 10))


@pytest.mark.parametrize("name", ["mell", "bald", "entropy"])
def test_bad_row_is_counted_from_the_start_of_the_file(folder, monkeypatch, pool, name):
    monkeypatch.setattr(suggest, "CHUNK", 1)
    bad = pool.copy()
    bad[41, 0, 1] = np.nan
    np.save("pool.npy", bad[:, 0] if name == "entropy" else bad)
    where = "pool[41, 1] is nan" if name == "entropy" else "pool[41, 0, 1] is nan"
    result = run("--score", name, "--out", "picks.csv", target=target_for(name))
    assert_refused(result, where, "must be finite")
    assert sorted(os.listdir()) == ["pool.npy", "val.npy"]


# What it refuses


def spoil(path, change):
    np.save(path, change(np.load(path)))


def cut(path, keep):
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:keep])


def flip(path, position):
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 0xFF
    Path(path).write_bytes(content)


def archive(**arrays):
    np.savez("a.npz", **arrays)
    return {"pool": "a.npz"}


def broken_archive(break_it):
    np.savez_compressed("a.npz", probabilities(0, N))
    break_it("a.npz")
    return {"pool": "a.npz"}


REFUSALS = {
    "missing": (lambda: {"pool": "no.npy"}, ["--pool", "no file no.npy", "check the path"]),
    "missing target": (lambda: {"target": "no.npy"}, ["--target", "no file no.npy"]),
    "folder": (lambda: {"pool": "."}, ["--pool", "is a folder", "name a file"]),
    "suffix": (
        lambda: Path("p.json").touch() or {"pool": "p.json"},
        ["--pool must be a .npy, .npz, .pt, .csv, .parquet file, got p.json", "numpy.save"],
    ),
    "empty file": (lambda: cut("pool.npy", 0), ["--pool: pool.npy cannot be read", "numpy.save"]),
    "cut in the header": (lambda: cut("pool.npy", 40), ["pool.npy cannot be read", "damaged"]),
    "cut in the data": (lambda: cut("pool.npy", 200), ["pool.npy cannot be read", "damaged"]),
    "cut target": (lambda: cut("val.npy", 200), ["--target: val.npy cannot be read"]),
    "not an array": (lambda: Path("pool.npy").write_text("0.2, 0.8") and None, ["cannot be read"]),
    "broken header": (lambda: flip("pool.npy", 20), ["pool.npy cannot be read"]),
    "objects": (
        lambda: np.save("pool.npy", np.array([{}, []], dtype=object)),
        ["pool.npy cannot be read", "objects", "no plain array"],
    ),
    "objects in archive": (
        lambda: archive(p=np.array([{}], dtype=object)),
        ["a.npz cannot be read", "allow_pickle=False"],
    ),
    "empty archive": (lambda: broken_archive(lambda p: cut(p, 0)), ["a.npz cannot be read"]),
    "cut archive": (lambda: broken_archive(lambda p: cut(p, 300)), ["a.npz cannot be read"]),
    "flipped archive": (lambda: broken_archive(lambda p: flip(p, 300)), ["a.npz cannot be read"]),
    "several arrays": (
        lambda: archive(a=np.zeros(2), b=np.zeros(2)),
        ["--pool must be one array, but a.npz holds a, b", "a.npz:a"],
    ),
    "no such array": (
        lambda: archive(a=np.zeros(2)) and {"pool": "a.npz:z"},
        ["an array 'z'", "a.npz holds a"],
    ),
    "no arrays": (lambda: archive(), ["a.npz holds none"]),
    "k too large": (lambda: {"k": "61"}, ["k = 61", "60 points of the pool", "ask for fewer"]),
    "k zero": (lambda: {"k": "0"}, ["k must be at least 1, got 0"]),
    "k negative": (lambda: {"k": "-3"}, ["k must be at least 1, got -3"]),
    "no target": (
        lambda: {"target": None},
        ["--target is needed by --strategy greedy", "data you care about"],
    ),
    "integers": (
        lambda: spoil("pool.npy", lambda p: (p * 9).astype(int)),
        ["pool must hold probabilities as floats, got int64"],
    ),
    "logits": (lambda: spoil("pool.npy", lambda p: 9 * p - 3), ["pool", "logits", "softmax"]),
    "logs": (lambda: spoil("pool.npy", np.log), ["pool holds log-probabilities", "exp()"]),
    "NaN in target": (
        lambda: spoil("val.npy", lambda p: np.where(np.arange(M)[:, None, None] == 3, np.nan, p)),
        ["target[3, 0, 0] is nan"],
    ),
    "logits in target": (lambda: spoil("val.npy", lambda p: 9 * p - 3), ["target", "softmax"]),
    "no rows": (lambda: spoil("pool.npy", lambda p: p[:0]), ["pool is empty"]),
    "no draws": (lambda: spoil("pool.npy", lambda p: p[:, 0]), ["pool must have shape [n t c]"]),
    "no draws in target": (
        lambda: spoil("val.npy", lambda p: p[:, 0]),
        ["target must have shape [n t c], got [7, 3]", "stack"],
    ),
    "one draw": (lambda: spoil("pool.npy", lambda p: p[:, :1]), ["pool has one draw"]),
    "other draws": (
        lambda: spoil("val.npy", lambda p: p[:, 1:]),
        ["share draws t", "pool is [60, 5, 3], target is [7, 4, 3]", "same draws"],
    ),
    "other classes": (
        lambda: spoil("val.npy", lambda p: p[..., 1:]),
        ["classes c", "target is [7, 5, 2]"],
    ),
}


@pytest.mark.parametrize("option", ["pool", "target", "loss"])
def test_a_pipe_is_refused_at_once(folder, option):
    os.mkfifo("pipe.npy")
    score = ["--score", "eer", "--loss", "pipe.npy"] if option == "loss" else []
    result = run(*score, **({} if score else {option: "pipe.npy"}))
    assert_refused(result, f"--{option}: pipe.npy is not a regular file", "write what it delivers")


@pytest.fixture
def peak():
    """How many bytes Python and NumPy have held at most since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def header(shape):
    file = io.BytesIO()
    content = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, content)
    return file.getvalue()


def test_an_archive_bomb_is_refused_before_it_is_unpacked(folder, monkeypatch, peak):
    assert archives.UNPACKED == 1 << 30
    monkeypatch.setattr(archives, "UNPACKED", 20 << 20)
    zeros = bytes(1 << 20)
    with zipfile.ZipFile("a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("bomb.npy", "w") as member:
            member.write(header((21, 1 << 13, 32)))
            for _ in range(21):
                member.write(zeros)
        archive.writestr("pool.npy", header((2, 2, 2)) + np.full(8, 0.5, np.float32).tobytes())
    result = run(pool="a.npz:bomb", k="1")
    assert_refused(result, "bomb in a.npz unpacks to 22,020,224 bytes, and no more than")
    assert_refused(result, "20,971,520 are loaded: write it with numpy.save to a .npy file")
    assert peak() < 8 << 20
    assert run("--score", "bald", pool="a.npz:pool", k="1").exit_code == 0


def test_the_limit_is_the_last_size_that_is_loaded(folder, pool, monkeypatch):
    np.savez_compressed("a.npz", pool)
    size = zipfile.ZipFile("a.npz").infolist()[0].file_size
    monkeypatch.setattr(archives, "UNPACKED", size)
    assert run(pool="a.npz").exit_code == 0
    monkeypatch.setattr(archives, "UNPACKED", size - 1)
    assert_refused(run(pool="a.npz"), f"{size:,} bytes, and no more than {size - 1:,}")


@pytest.mark.parametrize("shape", [(10**6, 10**6, 10**3), (9, 3, 2), (-1, 3, 2), (2**62, 4, 4)])
@pytest.mark.parametrize("name", ["pool.npy", "a.npz"])
def test_a_header_that_lies_is_refused(folder, shape, name):
    if name == "a.npz":
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("pool.npy", header(shape) + bytes(24))
    else:
        Path(name).write_bytes(header(shape) + bytes(24))
    assert_refused(run(pool=name, k="1"), f"--pool: {name} cannot be read", "numpy.save")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_that_unpack_without_bounds_are_refused(folder, method):
    with zipfile.ZipFile("a.npz", "w", method) as archive:
        archive.write("pool.npy")
    assert_refused(run(pool="a.npz"), "a.npz cannot be read", "another way than numpy does")


@pytest.mark.parametrize("name", ["pool.npy", "a.npz", "costs.csv"])
def test_damage_is_one_line_whatever_it_is(folder, pool, name):
    np.savez_compressed("a.npz", pool)
    Path("costs.csv").write_text(COSTS)
    rng, path = np.random.default_rng(2), Path(name)
    content = path.read_bytes()

    def damages():
        for _ in range(60):
            yield content[: rng.integers(0, len(content))]
            changed = np.frombuffer(content, np.uint8).copy()
            places = rng.integers(0, min(len(content), 300), 2)
            changed[places] = rng.integers(0, 256, 2)
            yield changed.tobytes()
            yield rng.bytes(100)
            yield content[:8] + rng.bytes(100)

    for damaged in damages():
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):
            if name == "costs.csv":
                suggest.read_loss(path, C)
            else:
                rows = predictions.read("--pool", name)
                suggest.check(rows, None, "bald", 1)
                suggest.best_by_score(rows, None, "bald", 1)


def test_costs_are_plain_text_with_or_without_a_mark_in_front(folder):
    Path("costs.csv").write_bytes(b"\xef\xbb\xbf" + COSTS.encode())  # as Excel writes it
    assert run("--score", "eer", "--loss", "costs.csv").exit_code == 0
    Path("costs.csv.gz").write_bytes(gzip.compress(COSTS.encode()))
    refused = run("--score", "eer", "--loss", "costs.csv.gz")
    assert_refused(refused, "--loss: costs.csv.gz must hold numbers separated by commas")


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_one_line_and_leaves_nothing(folder, case):
    prepare, words = REFUSALS[case]
    files = prepare() or {}
    before = sorted(os.listdir())
    assert_refused(run("--out", "picks.csv", **files), *words)
    assert sorted(os.listdir()) == before


def test_entropy_of_draws_names_the_score_that_takes_them(folder):
    assert_refused(run("--score", "entropy", target=None), "[60, 5, 3]", "--score entropy_mc")


def test_unknown_score_lists_the_choices(folder):
    result = run("--score", "bold")
    assert result.exit_code == 2
    assert all(f"'{name}'" in result.stderr for name in SCORES)


def test_unreadable_file_is_one_line(folder, monkeypatch):
    def deny(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "pool.npy")

    monkeypatch.setattr(kept, "open_array", deny)
    assert_refused(run(), "pool.npy", "Permission denied")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("no/picks.csv", ["--out: there is no folder no", "create it"]),
        (".", ["--out must be a file", "is a folder"]),
        ("pool.npy", ["--out would overwrite the input pool.npy"]),
        ("link", ["--out would overwrite the input link"]),
        ("val.npy", ["--out would overwrite the input val.npy"]),
        ("/dev/null", ["/dev/null is not a regular file", "redirect stdout"]),
    ],
)
def test_bad_out_is_refused_before_any_work(folder, monkeypatch, out, words):
    monkeypatch.setattr(suggest, "score_all", lambda *_, **__: pytest.fail("scored in vain"))
    Path("link").symlink_to("pool.npy")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert_refused(run("--out", out), *words)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_out_over_an_input_archive_is_refused(folder, pool):
    np.savez("a.npz", pool=pool)
    assert_refused(run("--out", "a.npz", pool="a.npz:pool"), "would overwrite the input a.npz")


@pytest.mark.parametrize("how", ["itself", "another name", "link", "hard link"])
@pytest.mark.parametrize("which", ["val.npy", "pool.npy", "costs.csv"])
def test_no_input_is_overwritten_by_any_name_whether_it_is_read_or_not(folder, which, how):
    Path("costs.csv").write_text(COSTS)
    Path("sub").mkdir()
    out = {"itself": which, "another name": f"sub/../{which}"}.get(how, "other")
    if how == "link":
        Path(out).symlink_to(which)
    if how == "hard link":
        os.link(which, out)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    score = ["eer", "--loss", "costs.csv"] if which == "costs.csv" else ["bald"]
    assert_refused(run("--score", *score, "--out", out), f"--out would overwrite the input {out}")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_out_may_replace_what_is_no_input(folder):
    Path("picks.csv").write_text("old")
    assert run("--score", "bald", "--out", "picks.csv", target="no.npy").exit_code == 0
    assert len(parse(Path("picks.csv").read_text())[0]) == 5


def test_read_only_folder_is_refused_before_any_work(folder, monkeypatch):
    def deny(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    # Not chmod: root may write anywhere, and tests run as root in containers.
    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    monkeypatch.setattr(suggest, "score_all", lambda *_, **__: pytest.fail("scored in vain"))
    assert_refused(run("--out", "picks.csv"), "--out", "Read-only file system", "choose another")


# What it leaves behind


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("existing", [False, True])
def test_full_disk_is_one_line_and_leaves_things_as_they_were(folder, monkeypatch, call, existing):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if existing:
        Path("picks.csv").write_text("precious")
    before = sorted(os.listdir())
    monkeypatch.setattr(os, call, fail)
    assert_refused(run("--out", "picks.csv"), "picks.csv could not be written", "No space left")
    assert sorted(os.listdir()) == before
    assert not existing or Path("picks.csv").read_text() == "precious"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_of_an_interrupted_write(folder, monkeypatch, error):
    def interrupt(_):
        assert len(os.listdir()) == 3  # the temporary file is there
        raise error

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(error):
        files.write(folder / "picks.csv", b"index,score,rank\n")
    assert sorted(os.listdir()) == ["pool.npy", "val.npy"]


def test_out_replaces_and_goes_through_links(folder):
    Path("picks.csv").write_text("old")
    Path("link.csv").symlink_to("picks.csv")
    assert run("--out", "link.csv").exit_code == 0
    assert Path("link.csv").is_symlink()
    assert len(parse(Path("picks.csv").read_text())[0]) == 5


def test_others_may_read_the_result(folder):
    run("--out", "picks.csv")
    Path("plain").touch()
    assert Path("picks.csv").stat().st_mode == Path("plain").stat().st_mode


def test_errors_of_ours_are_not_hidden(folder, monkeypatch):
    def bug(*_):
        raise ValueError("a bug, not an input")

    monkeypatch.setattr(suggest, "to_csv", bug)
    result = run()
    assert isinstance(result.exception, ValueError)
    assert not isinstance(result.exception, InputError)


# The program itself


def program(*args, before=""):
    """Run main() in a fresh Python, after the statements of ``before``."""
    code = f"import os, signal, sys\n{before}\nfrom foresee.cli.app import main\nmain()"
    return [sys.executable, "-c", code, *args]


ARGS = ["suggest", "--pool", "pool.npy", "--target", "val.npy", "-k", "5"]


def test_pipe_gets_the_csv_and_the_terminal_gets_the_bar(folder):
    ours, theirs = pty.openpty()
    command = [Path(sys.executable).with_name("foresee"), *ARGS]
    terminal = b""
    with open("stdout", "w") as stdout:
        child = subprocess.Popen(
            command, stdout=stdout, stderr=theirs, env=os.environ | {"TERM": "xterm"}
        )
    os.close(theirs)
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(ours, 1 << 16):
            terminal += part
    os.close(ours)
    assert child.wait() == 0
    assert b"loading" in terminal
    # Another program, as the number of threads decides the last digit.
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path("stdout").read_text() == piped.stdout


def test_interrupt_while_writing_is_one_line_and_leaves_nothing(folder):
    before = "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGINT)"
    command = program(*ARGS, "--out", "picks.csv", before=before)
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    said = child.stderr.splitlines()
    assert (child.returncode, child.stdout, said[-1]) == (130, "", "interrupted")
    assert said[0].startswith(
        "note: the labels of 5 points can use up 10 directions, and there are"
    )
    assert len(said) == 2
    assert sorted(os.listdir()) == ["pool.npy", "val.npy"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_full_stdout_is_one_line(folder):
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "foresee.cli", *ARGS],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert child.returncode == 2
    note, error = child.stderr.splitlines()
    assert note.startswith("note: the labels of 5 points can use up")
    assert error == "error: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("closed", "options", "code", "message"),
    [
        (">&-", [], 2, "error: stdout is closed: send it to a file, a pipe or /dev/null\n"),
        ("2>&-", ["--pool", "no.npy"], 2, ""),
        (">&- 2>&- <&-", ["--out", "picks.csv"], 2, ""),
    ],
)
def test_closed_streams_are_no_traceback(folder, closed, options, code, message):
    command = [sys.executable, "-m", "foresee.cli", *ARGS, *options]
    child = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout, child.stderr) == (code, "", message)
    assert Path("picks.csv").exists() == (code == 0)


def test_help_is_quick():
    before = (
        "import atexit\n"
        "heavy = {'torch', 'numba', 'scipy', 'sklearn', 'numpy'}\n"
        "atexit.register(lambda: print('loaded', sorted(heavy & set(sys.modules))))"
    )
    command = program("suggest", "--help", before=before)
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert "--target" in child.stdout
    assert child.stdout.endswith("loaded []\n")
