"""Learners on files that are larger than the memory they are allowed."""

import os
import subprocess
import sys

import numpy as np

N, D = 40_000, 300  # 96 MB of floats
MORE = 36  # MB beyond what the process had before it saw the data: less than half of that

_SCRIPT = """
import re, resource, sys
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline
from foresee import Learner, read
from foresee.reading import archives, tables
if any(path.endswith("parquet") for path in sys.argv):
    from pyarrow import parquet, table
    few = {"x": [f"word {i}" for i in range(100)]}
    parquet.write_table(table(few), sys.argv[1] + ".few.parquet")
    read(sys.argv[1] + ".few.parquet")
archives.LOADED = 1 << 20

def learner(pool, target=None):
    texts = isinstance(pool, tables.Texts | list)
    model = make_pipeline(HashingVectorizer(n_features=64), LogisticRegression())
    return Learner(model if texts else LogisticRegression(), pool, target, draws=10,
                   candidates=500, targets=200, holdout=0.1)

def rounds(found):
    for _ in range(3):
        batch = found.ask(10)
        found.tell(batch.ids, [str(hash(i) % 3) for i in map(str, batch.ids)])
    assert found.promise() > 0 and len(found.ask(7)) == 7

rng = np.random.default_rng(0)
rounds(learner([f"word {i}" for i in range(1000)]))  # all code and all buffers are there
rounds(learner(rng.normal(size=(1000, 300))))
held = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
limit = held + (MORE << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for path in sys.argv[1:]:
    source = read(path, inputs="x" if path.endswith("z") else None)
    found = learner(source.inputs, source.inputs)
    rounds(found)
    rounds(learner(source.inputs))
    assert len(source) == ROWS
    few = 100 if isinstance(source.inputs, tables.Texts) else ROWS  # texts take long to hash
    assert len(found.predict(source.inputs[:few])) == few
try:
    np.ones((ROWS, 300))
except MemoryError:
    print("enough")
""".replace("MORE", str(MORE)).replace("ROWS", str(N))


def _write(path, table):
    """A file that is larger than what a process may hold beyond its code."""
    kind = path.name
    texts = (f"word {i} " + "x" * 2400 for i in range(N))
    if kind == "numbers.npy":
        np.save(path, table)
    elif kind == "stored.npz":
        np.savez(path, x=table, y=np.arange(N))
    elif kind == "packed.npz":
        np.savez_compressed(path, x=table, y=np.arange(N))
    elif kind == "numbers.csv":
        some = [",".join(map(repr, row.tolist())) + "\n" for row in table[:400]]
        with open(path, "w") as out:
            out.write(",".join(f"c{i}" for i in range(D)) + "\n")
            out.writelines(some * (N // 400))
    elif kind == "texts.csv":
        path.write_text("\n".join(["text", *texts]))
    else:
        import pyarrow
        from pyarrow import parquet

        numbers = pyarrow.FixedSizeListArray.from_arrays(table.reshape(-1), D)
        columns = {"x": list(texts) if kind == "texts.parquet" else numbers}
        parquet.write_table(pyarrow.table(columns), path, row_group_size=1000)


def check(kinds, folder):
    """Ask, tell and predict from files of these names: numbers.npy, texts.csv, …"""
    table = np.tile(np.random.default_rng(0).normal(size=(400, D)).round(3), (N // 400, 1))
    table[:, 0] += np.arange(N)
    for kind in kinds:
        _write(folder / kind, table)
    # A thread's stack and what an allocator sets aside count as memory too.
    calm = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    said = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *(str(folder / kind) for kind in kinds)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **calm},
    )
    assert said.returncode == 0, said.stderr[-3000:]
    assert said.stdout == "enough\n"  # that much memory could not be had
