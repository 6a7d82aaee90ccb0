"""Damage a store in thousands of ways: nothing may crash, hide another trial or differ silently.

    python tests/lab/fuzz_store.py [--flips 3000] [--mutations 500] [--report-every 250]

A flip changes one byte of one file. A mutation puts a value of another type into one line, takes a
field away or adds one, in a store with checksums, which are then made to fit, and in one without.
After each `foresee status` runs, and after some `foresee report`.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
from foresee.cli.app import app
from foresee.lab import loop, store
from tiny import LINEAR, MELL, RANDOM

OPTIONAL = (
    *("cost", "train_loss", "train_accuracy", "promise", "promise_pool", "loss"),
    *("in_target", "scrambled"),
)
DEEP = "[" * 5000 + "]" * 5000
ODD = [None, True, 5, -1.5, 10**400, "a", "0", "../../evil", [], ["a"], [[1]], {}, {"a": 1}, DEEP]


def seal(values):
    """Lines with their checksums, as the documentation of `foresee.lines` has it."""
    content, total = b"", 0
    for value in values:
        body = json.dumps(value).replace(json.dumps(DEEP), DEEP).encode()[:-1]
        total = zlib.crc32(body, total)
        content += body + b', "sum": "%08x"}\n' % total
    return content


def unseal(content):
    """The values of the lines, without checksums."""
    values = [json.loads(line) for line in content.splitlines()]
    for value in values:
        value.pop("sum", None)
        value.pop("checksums", None)
    return values


def unsummed(values):
    """Lines as they were written before there were checksums."""
    return b"".join(
        json.dumps(value).replace(json.dumps(DEEP), DEEP).encode() + b"\n" for value in values
    )


def rehash(header):
    """Make the hash of a header fit its configuration."""
    config = {key: header.get(key) for key in ("experiment", "method", "seed", "data")}
    header["hash"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def build(folder):
    """A small store: three trials, one of them unfinished, and a plan that names a fourth."""
    task = tiny.linear_task()
    store.keep_plan(folder, LINEAR, {"MELL": [0, 1], "Random": [0, 1]})
    for method, seed, rounds in ((MELL, 0, 4), (MELL, 1, 2), (RANDOM, 0, 4)):
        with store.recording(folder, LINEAR, method, seed, "split", device="cpu") as recorder:
            for found in list(loop.run(LINEAR, method, seed, task))[:rounds]:
                recorder.append(found)


def flip(rng, content, summed):
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ rng.randrange(1, 256)]) + content[at + 1 :]


def mutate(rng, content, summed):
    """Confuse the type of one value, remove it, or put a stranger beside it."""
    values = unseal(content)
    if summed:
        values[0]["checksums"] = "crc32"
    line = rng.choice(values)
    holder, key = rng.choice(list(_places(line)))
    way = rng.choice(["confuse"] * 8 + ["remove", "add"])
    if way == "confuse":
        fits = [odd for odd in ODD if _class(odd) != _class(holder[key])]
        if key in OPTIONAL:
            fits = [odd for odd in fits if _class(odd) in ("text", "bool", "object")]
        holder[key] = rng.choice(fits)
    elif (
        way == "remove"
        and any(holder is it for it in (line, line.get("experiment")))
        and (key not in OPTIONAL)
    ):
        del holder[key]
    elif line is values[0]:
        line["experiment"] = {**_object(line["experiment"]), "stranger": 1}
    else:
        line["stranger"] = 1
    if line is values[0] and "hash" in line and (holder, key) != (line, "hash"):
        rehash(line)
    return (seal if summed else unsummed)(values)


def _object(value):
    return value if isinstance(value, dict) else {}


def _places(line):
    """Every value that has one type only: the description of a method is anybody's."""
    for key in line:
        # Without these a header is one that was written before checksums, or on another machine.
        if key not in ("checksums", "device"):
            yield line, key
    for part in (line.get("experiment"), line.get("seconds"), line.get("versions")):
        yield from ((part, key) for key in part or () if key not in ("network", "recipe", "budget"))
    for part in (line.get("picks"), line.get("labels")):
        yield from ((part, place) for place in range(len(part or ())))
    if recipe := (line.get("experiment") or {}).get("recipe"):
        yield from ((recipe, key) for key in ("iterations", "learning_rate", "optimiser"))
    if method := line.get("method"):
        yield method, "name"


def _class(value):
    if isinstance(value, bool):
        return "bool"
    kinds = {type(None): "null", int: "number", float: "number", str: "text", list: "array"}
    return "deep" if value is DEEP else kinds.get(type(value), "object")


def damage(folder, change, times, seed=0, summed=True, report_every=0):
    """Damage one file after another, undoing each; count what happened, assert what must hold."""
    rng = random.Random(f"{change.__name__} {seed} {summed}")
    paths = sorted(folder.glob("*/*.jsonl")) + (sorted(folder.glob("*/plan.json")) * summed)
    for path in [] if summed else paths:
        path.write_bytes(unsummed(unseal(path.read_bytes())))
    whole = {trial.path: trial for trial in store.trials(folder)}
    counts = Counter()
    for time in range(times):
        path = rng.choice(paths if change is flip else paths[:3])
        content = path.read_bytes()
        path.write_bytes(change(rng, content, summed))
        heard = []
        found = {trial.path: trial for trial in store.trials(folder, heard.append)}
        result = CliRunner().invoke(app, ["status", str(folder)])
        assert result.exit_code == 0, (result.output, result.exception)
        for other in whole.keys() - {path}:
            assert path.name == "plan.json" or found[other] == whole[other], other
        said = [str(problem) for problem in heard]
        named = len(said) == 1 and str(path) in said[0]
        assert named or not said, said
        assert not named or said[0] in result.stderr
        rounds = found[path].rounds if path in found else ()
        silent = path in whole and rounds != whole[path].rounds[: len(rounds)]
        kind = "torn" if named and isinstance(heard[0], store.TornLineError) else "left out"
        counts["differing" if silent else kind if named else "unseen"] += 1
        if (change is mutate or summed) and (silent or not named):
            where = Path(tempfile.gettempdir()) / "damaged"
            where.write_bytes(path.read_bytes())
            raise AssertionError(f"{path.name} differs and nobody says so: see {where}")
        if report_every and time % report_every == 0:
            with tempfile.TemporaryDirectory() as out:
                result = CliRunner().invoke(app, ["report", str(folder), "-o", out])
            assert result.exit_code == 0, (result.output, result.exception)
            counts["reports"] += 1
        path.write_bytes(content)
    return dict(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=3000)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--report-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for change, times in ((flip, args.flips), (mutate, args.mutations)):
        for summed in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder))
                counts = damage(Path(folder), change, times, args.seed, summed, args.report_every)
            checksums = "with" if summed else "without"
            print(f"{times} times {change.__name__}, {checksums} checksums: {counts}", flush=True)


if __name__ == "__main__":
    main()
