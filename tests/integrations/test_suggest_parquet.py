"""Pools in Parquet files, as pyarrow and pandas write them."""

import csv
import io

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee import predictions
from foresee.cli.app import app
from foresee.errors import InputError
from foresee.testing import random_draws

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N, T, C = 50, 4, 3


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = random_draws(np.random.default_rng(0), N, T, C)
    np.save("pool.npy", pool)
    np.save("val.npy", random_draws(np.random.default_rng(1), 9, T, C))
    return pool


def picked(pool, *args):
    words = ["suggest", "--pool", pool, "--target", "val.npy", "-k", "6", *args]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def columns(pool):
    table = {f"{t}:{name}": pool[:, t, c] for t in range(T) for c, name in enumerate("xyz")}
    return {"name": [f"{i}.png" for i in range(len(pool))], **table}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_column_for_each_draw_and_class(pool, dtype):
    half = pool.astype(dtype)
    np.save("pool.npy", half)
    parquet.write_table(pyarrow.table(columns(half)), "p.parquet", row_group_size=7)
    found = picked("p.parquet", "--ids", "name")
    assert [row["index"] for row in found] == [row["index"] for row in picked("pool.npy")]
    assert [row["id"] for row in found] == [f"{row['index']}.png" for row in found]


@pytest.mark.parametrize("inner", ["list", "fixed"])
def test_a_column_of_lists(pool, inner):
    value = pyarrow.float64()
    if inner == "list":
        kind = pyarrow.list_(pyarrow.list_(value))
    else:
        kind = pyarrow.list_(pyarrow.list_(value, C), T)
    table = pyarrow.table({"p": pyarrow.array(pool.tolist(), kind), "id": list(range(100, 150))})
    parquet.write_table(table, "p.parquet", row_group_size=7)
    for source in ("p.parquet", "p.parquet:p"):
        found = picked(source, "--ids", "id")
        assert [row["index"] for row in found] == [row["index"] for row in picked("pool.npy")]
        assert [int(row["id"]) for row in found] == [100 + int(row["index"]) for row in found]


def test_rows_without_an_id_are_refused(pool):
    parquet.write_table(pyarrow.table({"id": [None, *map(str, range(1, N))]}), "ids.parquet")
    with pytest.raises(InputError, match=r"ids\.parquet has rows without id"):
        list(predictions.names("--ids", "ids.parquet"))


@pytest.mark.parametrize("kind", ["binary", "large_binary", "dictionary"])
def test_ids_of_bytes_are_texts_in_utf_8(pool, kind):
    names = [f"Bär {i}" for i in range(N)]

    def write(ids):
        ids = pyarrow.array(ids)
        ids = ids.dictionary_encode() if kind == "dictionary" else ids.cast(kind)
        table = predictions.to_arrow(probs=pool, id=ids)
        parquet.write_table(table, "p.parquet", row_group_size=7)

    write([name.encode() for name in names])
    found = picked("p.parquet", "--ids", "id")
    assert [row["id"] for row in found] == [names[int(row["index"])] for row in found]
    parquet.write_table(pyarrow.table({"id": [found[0]["id"].encode()]}), "done.parquet")
    rest = picked("p.parquet", "--ids", "id", "--exclude", "done.parquet")
    assert found[0]["id"] not in {row["id"] for row in rest}
    write([b"\xff and more", *(name.encode() for name in names[1:])])
    words = ["suggest", "--pool", "p.parquet", "--target", "val.npy", "-k", "6", "--ids", "id"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    told = "--ids: p.parquet must hold texts in id, got bytes that are not UTF-8, b'\\xff and more'"
    assert f"error: {told}: write their .hex() there" in refused.stderr


def test_many_files_are_read_in_pieces(pool):
    for number, part in enumerate(np.split(pool, 5)):
        parquet.write_table(pyarrow.table(columns(part)), f"p-{number}.parquet")
    found = predictions.read("--pool", "p-*.parquet")
    assert found.classes == ("x", "y", "z")
    assert {len(piece) for piece in found.pieces(4)} == {4, 2}
    np.testing.assert_array_equal(found.all(), pool)
    assert [row["index"] for row in picked("p-*.parquet")] == [
        row["index"] for row in picked("pool.npy")
    ]


def test_lists_of_several_lengths_are_refused(pool):
    ragged = pool.tolist()
    ragged[3] = ragged[3][:2]
    parquet.write_table(pyarrow.table({"p": ragged}), "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet must hold lists of one length, got \[2, 4\]"):
        predictions.read("--pool", "p.parquet").all()


def test_damage_and_strangers_are_one_line(pool):
    parquet.write_table(pyarrow.table({"a": [1.0, 2.0]}), "p.parquet")
    with pytest.raises(InputError, match="must have a column for every draw and class"):
        predictions.read("--pool", "p.parquet")
    with open("p.parquet", "wb") as file:
        file.write(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"--pool: p\.parquet cannot be read"):
        predictions.read("--pool", "p.parquet")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_column_of_packed_rows(pool, dtype):
    np.save("pool.npy", pool.astype(dtype))
    table = predictions.to_arrow(probs=pool.astype(dtype), name=[f"{i}.png" for i in range(N)])
    parquet.write_table(table, "p.parquet", row_group_size=7)
    found = predictions.read("--pool", "p.parquet")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.all(), pool.astype(dtype))
    rows = picked("p.parquet", "--ids", "name")
    assert [row["index"] for row in rows] == [row["index"] for row in picked("pool.npy")]
    assert rows == picked("p.parquet:probs", "--ids", "name")


def test_packed_rows_of_another_size_are_refused(pool):
    table = predictions.to_arrow(probs=pool)
    field = table.schema.field(0).with_metadata({"shape": "4,2", "dtype": "<f8"})
    parquet.write_table(table.cast(pyarrow.schema([field])), "p.parquet")
    with pytest.raises(InputError, match=r"has rows \[4, 2\] of float64, but each has 96 bytes"):
        predictions.read("--pool", "p.parquet")
