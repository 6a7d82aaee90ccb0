"""The labelling page, played through its own endpoints: order, speed, memory, kills.

    python benchmarks/label.py order [--seeds 0-9]      the page's order beside random order
    python benchmarks/label.py speed [--files 100000]   first item, and key to next during fits
    python benchmarks/label.py memory [--labels 10000]  of the server, as labels come
    python benchmarks/label.py kills [--people 20] [--labels 10000] [--kills 3]
    python benchmarks/label.py texts [--seeds 0-5]      draws of the page's model of texts

`order` is the comparison of benchmarks/learner.py: digits, the target only 3, 5, 8 and 9, 20 first
labels and 8 batches of 10; both orders are judged by one model, a forest, on the same test images.
`texts` does likewise with beginnings of documentation, to be told apart by the package they come
from; the target is 4 of 10.
"""

import argparse
import csv
import http.client
import importlib
import inspect
import json
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import stats
from sklearn.datasets import load_digits

from foresee import Learner, Random
from foresee.label.items import Spec
from foresee.label.work import model_of
from foresee.posteriors import bootstrap
from learner import BATCH, BATCHES, auc, split
from scoring import console

TOKEN = "a-token-for-benchmarks"


class Page:
    """`foresee label`, started as people start it."""

    def __init__(self, pool: Path, out: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.out = out
        self.command = [sys.executable, "-m", "foresee.cli", "label", str(pool), "--no-browser"]
        self.command += ["--token", TOKEN, "--port", str(self.port), "--out", str(out), *options]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("http"), "the server did not start"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def memory(self) -> float:
        """MiB of the server, without the process that fits."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def rows(self) -> list[dict[str, str]]:
        with open(self.out, newline="") as file:
            return list(csv.DictReader(file))


class Client:
    """Somebody who labels; sends again under the same key what was not answered."""

    def __init__(self, page: Page, name: str) -> None:
        self.page, self.tab, self.edition = page, f"tab-of-{name}", ""
        self.cookie = f"foresee-{page.port}={TOKEN}; foresee-who={name}"
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        here = f"127.0.0.1:{self.page.port}"
        headers = {"Cookie": self.cookie, "Origin": f"http://{here}"}
        headers["Content-Type"] = "application/json"
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(here, timeout=60)
                self._connection.request("POST", path, json.dumps(body), headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self._connection = None
                time.sleep(0.1)
                continue
            if answer.status == 200:
                return dict(json.loads(content))
            if answer.status != 429:
                raise RuntimeError(f"{answer.status}: {content!r}")
            time.sleep(0.2)

    def next(self, size: int = 6) -> list[dict[str, Any]]:
        """Items, however long it takes; none where the pool is exhausted for a while."""
        for _ in range(1200):
            found = self.post("/next", tab=self.tab, size=size)
            self.edition = found["live"]["edition"]
            if found["items"]:
                return list(found["items"])
            time.sleep(0.1)
        return []

    def label(self, item: dict[str, Any], label: str, size: int = 6) -> list[dict[str, Any]]:
        body = {"tab": self.tab, "key": secrets.token_hex(8), "edition": self.edition}
        found = self.post("/label", **body, items=[item["item"]], label=label, size=size)
        return list(found["items"])


def write_digits(folder: Path, rows: Any) -> None:
    digits = load_digits()
    folder.mkdir(parents=True)
    for i in rows:
        pixels = (digits.images[i] * 15.9).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{i:04d}.png")


def played(seed: int, root: Path) -> list[int]:
    """Rows of the digits in the order in which the page asks for them, 20 first ones before."""
    y, rows = load_digits().target, split(seed)
    for name in ("pool", "val"):
        write_digits(root / name, rows[name])
    first = root / "first.csv"
    told = [f"{i:04d}.png,{y[i]}" for i in rows["first"]]
    first.write_text("\n".join(["id,label", *told]))
    options = ["--target", str(root / "val"), "--import", str(first), "--size", "8"]
    options += ["--seed", str(seed), "--holdout", "0", "--batch", str(BATCH)]
    page = Page(root / "pool", root / "labels.csv", *options, "--ahead", "0", "--patience", "1e9")
    try:
        client, order = Client(page, "ann"), list(rows["first"])
        for _ in range(BATCHES):
            for item in client.next(BATCH):
                row = int(item["name"][:4])
                client.label(item, str(y[row]), 1)
                order.append(row)
    finally:
        page.kill()
    return order


def judged(order: list[int], test: Any) -> float:
    """AUC of a forest that learns the labels in this order."""
    from sklearn.ensemble import RandomForestClassifier

    digits, found = load_digits(), []
    for known in range(20, 20 + BATCH * BATCHES + 1, BATCH):
        forest = RandomForestClassifier(200, random_state=0)
        forest.fit(digits.data[order[:known]], digits.target[order[:known]])
        found.append(float((forest.predict(digits.data[test]) == digits.target[test]).mean()))
    return auc(found)


def order(seeds: list[int]) -> None:
    differences = []
    for seed in seeds:
        rows, root = split(seed), Path(tempfile.mkdtemp())
        try:
            ours = judged(played(seed, root), rows["test"])
        finally:
            shutil.rmtree(root)
        rng = np.random.default_rng([seed, 14])
        chance = [*rows["first"], *rng.permutation(rows["pool"][20:])[: BATCH * BATCHES]]
        random = judged(chance, rows["test"])
        differences.append(ours - random)
        console.print(f"seed {seed}: page {ours:.1f}, random {random:.1f}, {ours - random:+.2f}")
    if len(differences) > 1:
        half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
        mean = np.mean(differences)
        console.print(f"page − random: {mean:+.2f}, lower 95 % bound {mean - half:+.2f} points")


PACKAGES = {
    "numpy": "numpy numpy.linalg numpy.fft numpy.random",
    "stats": "scipy.stats",
    "special": "scipy.special",
    "signal": "scipy.signal scipy.ndimage",
    "sparse": "scipy.sparse scipy.sparse.linalg scipy.linalg",
    "sklearn": "sklearn.metrics sklearn.preprocessing sklearn.linear_model sklearn.datasets "
    "sklearn.ensemble sklearn.cluster sklearn.decomposition sklearn.model_selection",
    "torch": "torch torch.linalg",
    "nn": "torch.nn torch.nn.functional",
    "plot": "matplotlib.pyplot matplotlib.axes matplotlib.artist matplotlib.patches",
    "python": "os shutil asyncio pathlib logging collections itertools socket subprocess threading "
    "typing unittest http.client urllib.parse statistics zipfile argparse inspect decimal datetime",
}
NARROW = ("numpy", "stats", "special", "signal")
_NAMES = r"\b(numpy|np|scipy|sklearn|scikit-learn|torch|matplotlib|pyplot|python|tensor\w*)\b"


def documents(most: int = 200) -> tuple[Any, Any]:
    """Beginnings of documentation without the packages' names, and the kind of each."""
    rng, texts, labels = np.random.default_rng(0), list[str](), list[str]()
    for kind, modules in PACKAGES.items():
        found = set()
        for module in map(importlib.import_module, modules.split()):
            things = [getattr(module, name) for name in dir(module) if not name.startswith("_")]
            if kind in ("plot", "python"):
                kinds = [each for each in things if inspect.isclass(each)]
                things += [method for each in kinds for method in vars(each).values()]
            for thing in filter(callable, things):
                text = " ".join((inspect.getdoc(thing) or "").split())
                if len(text) > 40:
                    found.add(re.sub(_NAMES, " ", text, flags=re.I)[:300])
        texts += rng.permutation(sorted(found))[:most].tolist()
        labels += [kind] * (len(texts) - len(labels))
    return np.array(texts, object), np.array(labels)


def texts_auc(draws: str, seed: int) -> tuple[float, float]:
    """AUC on the target and seconds a batch: Gaussian weights, a bootstrap, or random order."""
    (words, kinds), classes = documents(), sorted(PACKAGES)
    rng = np.random.default_rng([seed, 21])
    inside = rng.permutation(np.flatnonzero(np.isin(kinds, NARROW)))
    rest = rng.permutation(np.setdiff1d(np.arange(len(words)), inside[:400]))
    model = model_of(Spec("texts.csv"), ["a text"])["model"]
    fit = partial(bootstrap, model, draws=100, classes=len(classes))
    learner = Learner(
        (lambda x, y, rng: fit(x, y, rng=rng)) if draws == "bootstrap" else model,
        words[rest].tolist(),
        words[inside[:150]].tolist(),
        seed=seed,
        classes=classes,
        strategy=Random() if draws == "random" else None,
    )
    test, found, start = inside[150:400], list[float](), time.perf_counter()
    learner.tell(range(20), kinds[rest[:20]])
    for _ in range(BATCHES):
        found.append(float((learner.predict(words[test].tolist()) == kinds[test]).mean()))
        ids = learner.ask(BATCH).ids
        learner.tell(ids, kinds[rest[list(ids)]])
    found.append(float((learner.predict(words[test].tolist()) == kinds[test]).mean()))
    return auc(found), (time.perf_counter() - start) / BATCHES


def texts(seeds: list[int]) -> None:
    ways = ("gaussian", "bootstrap", "random")
    found = {way: [texts_auc(way, seed) for seed in seeds] for way in ways}
    for way in ways:
        score, seconds = np.mean(found[way], axis=0)
        console.print(f"{way}: AUC {score:.1f}, {seconds:.1f} s a batch")
    for way in ways[1:]:
        gap = np.subtract([a for a, _ in found["gaussian"]], [a for a, _ in found[way]])
        half = stats.t.ppf(0.975, len(seeds) - 1) * stats.sem(gap)
        console.print(f"gaussian − {way}: {gap.mean():+.1f}, lower end {gap.mean() - half:+.1f}")


def many_files(folder: Path, number: int) -> None:
    """Small images, each a file of its own."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(200):
        path = folder / "one.png"
        Image.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(path)
        contents.append(path.read_bytes())
        path.unlink()
    for i in range(number):
        (folder / f"{i:06d}.png").write_bytes(contents[i % 200])


def speed(root: Path, number: int, labels: int = 300) -> None:
    many_files(root / "pool", number)
    start = time.perf_counter()
    page = Page(root / "pool", root / "labels.csv")
    served = time.perf_counter() - start
    client = Client(page, "ann")
    items = client.next()
    console.print(
        f"{number:,} files: page after {served:.1f} s, first item after "
        f"{time.perf_counter() - start:.1f} s"
    )
    times, fits = [], 0
    for i in range(labels):
        start = time.perf_counter()
        items = client.label(items[0], "ab"[i % 2])
        wall = time.perf_counter() - start
        fitting = client.post("/next", tab=client.tab)["live"]["fitting"]
        if fitting:
            times.append(wall)
            fits += 1
        items = items or client.next()
        time.sleep(0.05)
    page.kill()
    tail = np.percentile(times, [50, 95, 99]) * 1000
    console.print(
        f"key to next, {fits} of {labels} labels while a fit ran: median {tail[0]:.1f}, "
        f"p95 {tail[1]:.1f}, p99 {tail[2]:.1f} ms"
    )


def memory(root: Path, labels: int) -> None:
    many_files(root / "pool", labels + 500)
    page = Page(root / "pool", root / "labels.csv", "--batch", "200")
    client = Client(page, "ann")
    items, done = client.next(48), 0
    while done < labels:
        for item in items:
            client.label(item, "ab"[done % 2], 48)
            done += 1
            if done % max(1, labels // 10) == 0:
                console.print(f"{done:,} labels: {page.memory():.0f} MiB")
        items = client.next(48)
    page.kill()


def kills(root: Path, people: int, labels: int, times: int) -> None:
    many_files(root / "pool", labels + 1000)
    page = Page(root / "pool", root / "labels.csv", "--batch", "200")
    told: list[list[tuple[str, str, str]]] = [[] for _ in range(people)]

    def work(who: int) -> None:
        client, rng = Client(page, f"p{who}"), np.random.default_rng(who)
        while len(told[who]) < labels // people:
            for item in client.next(4)[:2]:
                label = f"class-{rng.integers(3)}"
                client.label(item, label, 4)
                told[who].append((item["name"], label, f"p{who}"))

    threads = [threading.Thread(target=work, args=[i]) for i in range(people)]
    for thread in threads:
        thread.start()
    for kill in range(1, times + 1):
        while sum(map(len, told)) < labels * kill / (times + 1):
            time.sleep(0.02)
        page.kill()
        page.start()
    for thread in threads:
        thread.join()
    page.kill()
    want = sorted(each for one in told for each in one)
    found = sorted((row["id"], row["label"], row["who"]) for row in page.rows())
    twice = len(found) - len({name for name, *_ in found})
    console.print(
        f"{people} people, {len(want):,} labels, {times} kills: "
        f"{len(set(want) - set(found))} lost, "
        f"{len(found) - len(want)} more than told, {twice} items labelled twice"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["order", "speed", "memory", "kills", "texts"])
    parser.add_argument("--seeds", default=None)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=10_000)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    if args.what in ("order", "texts"):
        usual, work = ("0-9", order) if args.what == "order" else ("0-5", texts)
        first, last = map(int, (args.seeds or usual).split("-"))
        return work(list(range(first, last + 1)))
    root = Path(tempfile.mkdtemp())
    works: dict[str, Callable[[], None]] = {
        "speed": lambda: speed(root, args.files),
        "memory": lambda: memory(root, args.labels),
        "kills": lambda: kills(root, args.people, args.labels, args.kills),
    }
    try:
        works[args.what]()
    finally:
        shutil.rmtree(root)
    return None


if __name__ == "__main__":
    main()
