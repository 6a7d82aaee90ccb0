"""Pools on Ray: the result of one machine, whatever the shards, and whoever dies on the way."""

import contextlib
import csv
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from foresee import predictions, scale, scores, suggest
from foresee.cli.app import app
from foresee.errors import DrawsWarning, InputError
from foresee.lab import runner, store
from foresee.lab.paper import experiment
from foresee.posteriors import mc_dropout
from foresee.testing import random_draws

pytest.importorskip("pyarrow")
ray = pytest.importorskip("ray")
parquet = pytest.importorskip("pyarrow.parquet")

N, M, T, C = 3000, 20, 12, 4


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two workers of one thread; sockets below the folder allow no long names."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def one_thread():
    """As the workers have: products of several threads are rounded in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pool():
    """With many copies, and many equal scores among rows that differ."""
    rng = np.random.default_rng(0)
    rows = random_draws(rng, N // 2, T, C)
    sure = np.broadcast_to(np.eye(C)[rng.integers(C, size=(N // 4, 1))], (N // 4, T, C))
    copies = rows[rng.integers(50, size=N // 4)]
    return rng.permutation(np.concatenate([rows, sure, copies])).astype(np.float16)


@pytest.fixture(scope="module")
def val():
    return random_draws(np.random.default_rng(1), M, T, C).astype(np.float16)


@pytest.fixture(scope="module")
def files(pool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    names = np.array([f"photo {i}" for i in range(N)])
    for number, some in enumerate(np.array_split(np.arange(N), 3)):
        table = predictions.to_arrow(probs=pool[some], name=names[some], number=some)
        parquet.write_table(table, folder / f"p{number}.parquet", row_group_size=100)
    return folder


def here(files, val, k, score=None, shortlist=400):
    """What one machine finds in one loop."""
    rows = predictions.read("--pool", str(files / "*.parquet"))
    if score is not None:
        return suggest.best_by_score(rows, val if suggest.SCORES[score] else None, score, k)
    return suggest.best_by_strategy(rows, val, suggest.choice("greedy"), k, shortlist)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.promises, expected.promises)


@pytest.mark.parametrize("score", ["mell", "mezl", "mebl", "bald"])
@pytest.mark.parametrize("shard", [100, 1000])
def test_the_highest_scores_are_those_of_one_machine(files, val, score, shard):
    found = scale.suggest(str(files), val, 1800, score=score, shard=shard)  # among equals too
    assert_same(found, here(files, val, 1800, score))
    assert found.ids[0] == f"p{found.positions[0] // 1000}.parquet:{found.positions[0] % 1000}"
    assert (found.rows, found.ceiling) == (N, None)


@pytest.mark.parametrize(("shard", "workers"), [(100, 1), (1000, None)])
def test_a_batch_is_that_of_one_machine_and_below_its_ceiling(files, pool, val, shard, workers):
    found = scale.suggest(
        str(files / "*.parquet"), val, 10, shortlist=400, shard=shard, workers=workers
    )
    assert_same(found, here(files, val, 10))
    assert found.shortlist == 400
    every = here(files, val, 10, shortlist=N)  # without a shortlist
    assert found.worth <= found.ceiling
    assert scale._tangent(pool[every.positions], val).worth <= found.ceiling < 1.2 * found.worth


def test_other_strategies_and_targets_that_are_not_looked_at(files, val):
    found = scale.suggest(str(files), None, 5, strategy="batchbald", shortlist=50)
    assert len(set(found.ids)) == 5
    assert found.ceiling is None
    assert len(found.promises) == 0
    assert scale.suggest(str(files), val, 5, ceiling=False, shortlist=50).worth is None


def test_names_and_what_is_labelled_already(files, pool, val):
    options = {"ids": "name", "score": "mell", "column": "probs"}
    first = scale.suggest(str(files), val, 20, **options)
    assert first.ids == [f"photo {i}" for i in first.positions]
    rest = scale.suggest(str(files), val, 5, exclude=[*first.ids[:15], "stranger"], **options)
    assert rest.ids == first.ids[15:]
    assert rest.unknown == ["stranger"]
    numbered = options | {"ids": "number"}
    rest = scale.suggest(str(files), val, 5, exclude=first.positions[:15], **numbered)
    assert (rest.ids, rest.unknown) == ([str(i) for i in first.positions[15:]], [])
    unnamed = scale.suggest(str(files), val, 20, score="mell")
    rest = scale.suggest(str(files), val, 5, score="mell", exclude=unnamed.ids[:15])
    assert rest.ids == unnamed.ids[15:]


def test_names_with_spaces_around_them_can_be_excluded(pool, val, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("val.npy", val)
    names = [f"photo {i} " for i in range(300)]
    parquet.write_table(predictions.to_arrow(probs=pool[:300], name=names), "p.parquet")
    asked = ["suggest", "--pool", "p.parquet", "--target", "val.npy", "-k", "9", "--ids", "name"]
    asked += ["--score", "mell", "--ray", "local", "--force-ray"]
    assert CliRunner().invoke(app, [*asked, "--out", "picks.csv"]).exit_code == 0
    again = CliRunner().invoke(app, [*asked, "--exclude", "picks.csv"])
    first, rest = (
        [row["id"] for row in csv.DictReader(text.splitlines())]
        for text in (Path("picks.csv").read_text(), again.stdout)
    )
    assert len({*first, *rest}) == 18
    assert "are not in the pool" not in again.stderr


def test_hidden_files_are_passed_over(files, val, tmp_path):
    for number, name in enumerate((".p0", "p1", "p2")):
        shutil.copy(files / f"p{number}.parquet", tmp_path / f"{name}.parquet")
    for source in (tmp_path, tmp_path / "*.parquet"):
        assert scale.suggest(str(source), val, 5, score="mell").rows == 2000
    assert scale.suggest(str(tmp_path / ".p*"), val, 5, score="mell").rows == 1000


def test_files_of_one_name_in_several_folders(files, val, tmp_path):
    for number in range(3):
        (tmp_path / f"part={number}").mkdir()
        shutil.copy(files / f"p{number}.parquet", tmp_path / f"part={number}" / "p.parquet")
    found = scale.suggest(str(tmp_path), val, 20, score="mell")
    assert_same(found, here(files, val, 20, "mell"))
    first = found.positions[0]
    assert found.ids[0] == f"part={first // 1000}/p.parquet:{first % 1000}"
    rest = scale.suggest(str(tmp_path), val, 5, score="mell", exclude=found.ids[:15])
    assert rest.ids == found.ids[15:]


def test_any_file_system(files, val, tmp_path):
    with zipfile.ZipFile(tmp_path / "pool.zip", "w") as archive:
        for file in sorted(files.iterdir()):
            archive.write(file, file.name)
    expected = here(files, val, 20, "mell")
    for source in (f"file://{files}", f"zip://*.parquet::file://{tmp_path}/pool.zip"):
        assert_same(scale.suggest(source, val, 20, score="mell"), expected)
    assert_same(scale.suggest(sorted(files.iterdir()), val, 20, score="mell"), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
def test_a_ray_dataset_in_any_blocks(files, pool, val):
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    whole = ray.data.from_arrow(predictions.to_arrow(probs=pool, id=np.arange(N)))
    made = ray.data.range(N, override_num_blocks=3).map_batches(
        lambda batch: {"id": batch["id"], "probs": pool[batch["id"]]}
    )
    for options in ({"score": "mezl"}, {"shortlist": 400}):
        one, five, three = (
            scale.suggest(dataset, val, 15, ids="id", **options)
            for dataset in (whole, whole.repartition(5), made)
        )
        for other in (five, three):
            assert one.ids == other.ids
            assert (one.rows, one.ceiling) == (other.rows, other.ceiling)
            np.testing.assert_array_equal(one.scores, other.scores)
        expected = here(files, val, 15, options.get("score"))
        # Of what is equal, names decide here and positions there.
        np.testing.assert_array_equal(np.sort(one.scores), np.sort(expected.scores))
    with pytest.raises(InputError, match="ids must name a column of the Ray dataset"):
        scale.suggest(whole, val, 5)
    with pytest.raises(InputError, match="has no column 'nobody' but probs, id"):
        scale.suggest(whole, val, 5, ids="nobody")


@pytest.fixture(params=["files", "dataset"])
def source(request, tmp_path):
    """What makes a pool of rows and names."""
    import ray.data

    def made(rows, names):
        table = predictions.to_arrow(probs=rows, id=names)
        parquet.write_table(table, tmp_path / "p.parquet", row_group_size=100)
        is_file = request.param == "files"
        return str(tmp_path) if is_file else ray.data.from_arrow(table).repartition(3)

    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
@pytest.mark.parametrize("options", [{"score": "mell"}, {"shortlist": 20}])
def test_the_name_of_a_pick_is_that_of_no_other_row(source, val, options):
    rows = random_draws(np.random.default_rng(0), 300, T, C)
    order = np.argsort(-scores.mell(rows, val))

    def ask(one, other):
        names = [f"photo {i}" for i in range(len(rows))]
        names[other] = names[one]
        pool = source(rows, names)
        return scale.suggest(pool, val, 5, ids="id", shard=100, **options).ids

    ids = ask(0, 0)
    pick = int(ids[0].removeprefix("photo "))
    for other in {order[0], order[1], order[-1]} - {pick}:
        with pytest.raises(InputError, match=f"'photo {pick}' is the name of 2 rows: give each"):
            ask(pick, other)
    # Of others it does not matter, as on one machine.
    assert ask(order[-1], order[-2]) == ids


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
def test_names_of_bytes_are_texts_in_utf_8(source, val):
    rows = random_draws(np.random.default_rng(0), 300, T, C)
    names = [f"Bär {i}" for i in range(300)]
    options = {"ids": "id", "score": "mell"}
    expected = scale.suggest(source(rows, names), val, 5, **options).ids
    as_bytes = [name.encode() for name in names]
    assert scale.suggest(source(rows, as_bytes), val, 5, **options).ids == expected
    rest = scale.suggest(source(rows, as_bytes), val, 4, exclude=expected[:1], **options)
    assert rest.ids == expected[1:]
    as_bytes[217] = b"\xff and more"
    with pytest.raises(InputError, match=r"must hold texts in id, got .* b'.xff and more': write"):
        scale.suggest(source(rows, as_bytes), val, 5, **options)


def test_workers_predict_by_the_same_draws(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, C))
    posterior = mc_dropout(network.eval(), draws=T, seed=3)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(600, 6)).astype(np.float32)
    target = rng.normal(size=(M, 6)).astype(np.float32)
    table = predictions.to_arrow(x=inputs, twice=2 * inputs)
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=60)
    with torch.no_grad():
        pool, val = (posterior.predict(x).numpy() for x in (inputs, target))
    best = np.argsort(-scores.mell(pool, val), kind="stable")[:10]
    source = str(tmp_path / "x.parquet")
    found = scale.suggest(
        source, target, 10, posterior=posterior, column="x", score="mell", shard=60
    )
    np.testing.assert_array_equal(found.positions, best)
    np.testing.assert_allclose(found.scores, scores.mell(pool, val)[best], rtol=1e-4)

    def halved(batch):
        return predictions.from_arrow("", "", batch, "twice") / 2

    read = scale.suggest(source, target, 10, posterior=posterior, read=halved, score="mell")
    np.testing.assert_array_equal(read.positions, best)


@pytest.mark.parametrize("score", ["mell", "bald"])
def test_rows_that_take_much_memory_are_read_by_few(val, tmp_path, score):
    noise = np.random.default_rng(0).integers(256, size=(40, 1 << 20), dtype=np.uint8)
    parquet.write_table(predictions.to_arrow(x=noise), tmp_path / "x.parquet")

    def read(batch):
        assert len(batch) <= 16  # MiB
        return np.full((len(batch), T, C), 1 / C)

    found = scale.suggest(str(tmp_path / "x.parquet"), val, 40, score=score, read=read)
    assert sorted(found.positions) == list(range(40))


def test_what_is_wrong_is_said_in_one_line(files, val, tmp_path):
    bad = random_draws(np.random.default_rng(0), 300, T, C)
    bad[217, 2] *= 2
    parquet.write_table(predictions.to_arrow(probs=bad), tmp_path / "b.parquet", row_group_size=50)
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    twice = predictions.to_arrow(probs=bad[:9], name=["cat"] * 9)
    parquet.write_table(twice, tmp_path / "d.parquet")
    named = predictions.to_arrow(probs=bad[200:250], name=[f"cat {i}" for i in range(200, 250)])
    parquet.write_table(named, tmp_path / "e.parquet")
    unnamed = predictions.to_arrow(probs=bad[:9], name=[*"abcdefgh", None])
    parquet.write_table(unnamed, tmp_path / "f.parquet")
    double = predictions.to_arrow(probs=bad[:100])
    parquet.write_table(double, tmp_path / "g.parquet")
    both = [*files.iterdir(), tmp_path / "g.parquet"]

    def one_less(batch):
        return predictions.from_arrow("", "", batch, "probs")[1:]

    for words, source, options in (
        (r"pool\[217, 2\]", f"{tmp_path}/b.parquet", {}),
        ("c.parquet cannot be read", f"{tmp_path}/c.parquet", {}),
        ("no .parquet file at", f"{tmp_path}/x*.parquet", {}),
        ("names a file twice", [str(files), str(files)], {}),
        ("at another place than", [str(files), "memory://x.parquet"], {}),
        ("cannot be reached", "nowhere://x.parquet", {}),
        ("has no column 'p' but", str(files), {"column": "p"}),
        ("k = 5000 is more than the 3000 points", str(files), {"k": 5000}),
        ("score must be one of mell", str(files), {"score": "mall"}),
        ("'photo x' is no row of the pool", str(files), {"exclude": ["photo x"]}),
        ("no row is called 'x'", str(files), {"exclude": ["x"], "ids": "name"}),
        ("share draws t", str(files), {"target": val[:, :3]}),
        ("each of 100 rows, got 99", str(files), {"read": one_less, "shard": 100}),
        ("'cat' is the name of 9 rows: give", f"{tmp_path}/d.parquet", {"ids": "name"}),
        ("shortlist must be at least k = 5", str(files), {"score": None, "shortlist": 4}),
        ("shortlist is for a strategy", str(files), {"shortlist": 40}),
        ("target is needed by mell", str(files), {"target": None}),
        (r"dataset row 'cat 217'\[2\] sums", f"{tmp_path}/e.parquet", {"ids": "name"}),
        ("f.parquet has rows without name", f"{tmp_path}/f.parquet", {"ids": "name"}),
        ("of float16 and .* of float64: write", both, {"column": "probs", "score": "bald"}),
        ("Ray dataset or paths of Parquet files, got ndarray", bad, {}),
    ):
        given = {"target": val, "k": 5, "score": "mell"} | options
        with pytest.raises(InputError, match=words) as refusal:
            scale.suggest(source, **given)
        assert "\n" not in str(refusal.value)


class Locked:
    """A posterior that cannot travel."""

    def __init__(self):
        self.lock = threading.Lock()

    def predict(self, inputs):
        return random_draws(np.random.default_rng(0), len(inputs), T, C)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
def test_what_workers_lack_is_said_and_not_tried_again(tmp_path, monkeypatch):
    inputs = np.ones((50, 2))
    table = predictions.to_arrow(x=inputs, name=[str(i) for i in range(50)])
    parquet.write_table(table, tmp_path / "p.parquet")
    (tmp_path / "only_here.py").write_text(
        "from foresee.testing import random_draws\nimport numpy as np\n\n\n"
        "class Model:\n    def predict(self, inputs):\n"
        f"        return random_draws(np.random.default_rng(0), len(inputs), {T}, {C})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("only_here").Model()
    blocks = ray.data.read_parquet(str(tmp_path / "p.parquet"))
    for source in (str(tmp_path / "p.parquet"), blocks):
        given = {"target": inputs[:3], "k": 5, "ids": "name", "column": "x"}
        with pytest.raises(InputError, match=r"cannot read its work .No module named 'only_here'"):
            scale.suggest(source, posterior=model, **given)
        with pytest.raises(InputError, match=r"can be sent to workers: cannot pickle .*lock"):
            scale.suggest(source, posterior=Locked(), **given)


@contextlib.contextmanager
def killing(number, seconds, title=b"ray::foresee shard"):
    """Kill so many workers that are at work, one every so many seconds; yields the list of them."""
    killed, over = [], threading.Event()

    def kill():
        while len(killed) < number and not over.wait(seconds):
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    pid = int(entry.name)
                    named = (entry / "cmdline").read_bytes().startswith(title)
                    if named and _is_ours(pid):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _is_ours(pid):
    """Whether this process started it: another may test beside it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells whose workers")
def test_killed_workers_change_nothing(files, val):
    def slowly(batch):
        time.sleep(0.15)
        return predictions.from_arrow("", "", batch, "probs")

    with killing(5, seconds=1.5) as killed:
        while len(killed) < 5:
            top = scale.suggest(str(files), val, 50, score="mell", shard=100, read=slowly)
            assert_same(top, here(files, val, 50, "mell"))
            batch = scale.suggest(str(files), val, 10, shortlist=400, shard=100, read=slowly)
            assert_same(batch, here(files, val, 10))
            assert top.rows == batch.rows == N


def test_what_kills_every_worker_ends(files, val, monkeypatch):
    monkeypatch.setattr(scale.cluster, "RETRIES", 1)
    with pytest.raises(InputError, match=r"a shard .* its worker died 2 times .* more memory"):
        scale.suggest(str(files), val, 5, score="mell", read=lambda batch: os._exit(1))


@pytest.mark.parametrize("asked", [{"gpus": 0.5}, {"cpus": 3}])
def test_what_no_machine_has_is_not_waited_for_in_silence(files, val, asked):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no machine of the cluster has cpus="):
            scale.suggest(str(files), val, 5, score="mell", **asked)


LOST = """
import sys, threading, time, tempfile, warnings
import numpy as np, torch
torch.set_num_threads(1)
from ray.cluster_utils import Cluster
from foresee import predictions, scale, suggest
folder, values, temporary = sys.argv[1:]
val = np.load(values)
cluster = Cluster(
    initialize_head=True,
    head_node_args={
        "num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False,
        "temp_dir": temporary,
    },
)
lost = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
cluster.wait_for_nodes()
where = set()
def slow(batch):
    time.sleep(0.15)
    return predictions.from_arrow("", "", batch, "probs")
threading.Timer(4.0, lambda: cluster.remove_node(lost, allow_graceful=False)).start()
found = scale.suggest(folder, val, 50, score="mell", shard=100, read=slow, address=cluster.address)
assert not lost.any_processes_alive(), "it was too early"
rows = predictions.read("--pool", folder + "/*.parquet")
expected = suggest.best_by_score(rows, val, "mell", 50)
assert (found.positions == expected.positions).all() and (found.scores == expected.scores).all()
print("the same")
cluster.shutdown()
"""


def test_a_lost_node_changes_nothing(files, val, tmp_path):
    np.save(tmp_path / "val.npy", val)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        Path(folder, "ray").mkdir()  # where a cluster's head writes its address
        words = [sys.executable, "-c", LOST, str(files), str(tmp_path / "val.npy"), folder]
        env = os.environ | {"RAY_TMPDIR": folder}
        result = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=120, check=False
        )
    assert result.stdout.strip().endswith("the same"), result.stderr[-3000:]


# Experiments


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells whose workers")
def test_trials_as_tasks_are_those_of_one_machine(tmp_path):
    jobs = runner.plan([experiment("digits", shift=True, budget=0.02)], ["Random", "MEBL"], [0, 1])
    list(runner.run_all(jobs, runner.Place(tmp_path / "here")))
    with killing(2, seconds=3, title=b"ray::foresee trial") as killed:
        found = list(runner.run_all(jobs, runner.Place(tmp_path / "there"), ray="local"))
    assert len(killed) == 2
    assert [one.state for one in found] == ["finished"] * 4
    for folder in ("here", "there"):
        assert len(list((tmp_path / folder).glob("*/*.jsonl"))) == 4
    for file in (tmp_path / "here").glob("*/*.jsonl"):
        here, there = (
            [one.picks for one in store.read(path).rounds]
            for path in (file, tmp_path / "there" / file.relative_to(tmp_path / "here"))
        )
        assert here == there
    again = [
        one.state for one in runner.run_all(jobs, runner.Place(tmp_path / "there"), ray="local")
    ]
    assert again == ["finished"] * 4


# The page


def test_its_page_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    made, asked, drawn = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (command,) = re.findall(r"^```sh\nforesee (.*?)\n```$", page, re.M)
    names = {}
    exec(made, names)
    done = CliRunner().invoke(app, [*shlex.split(command), "--force-ray"])
    assert done.exit_code == 0, done.output
    assert "no 10 of these 2,000 rows are worth more than" in done.stderr
    with pytest.warns(DrawsWarning):
        exec(asked + drawn, names)
    picks = list(csv.DictReader(Path("picks.csv").read_text().splitlines()))
    assert [row["id"] for row in picks] == names["batch"].ids
    assert len(names["found"].ids) == len(names["top"].ids) == 10
