"""Camelyon17, iWildCam and FMoW from small folders in their real layouts, and the decoded cache."""

import contextlib
import csv
import errno
import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from foresee.errors import InputError
from foresee.lab import paper
from foresee.lab.data import decoding_bytes, load, split, task, wilds
from foresee.lab.experiment import Experiment
from foresee.reading import decoded, kept

N = 40
SIDE = {"camelyon17": 96, "iwildcam": 64, "fmow": 96}
HOME = {name: layout.folder for name, layout in wilds.LAYOUTS.items()}
SPECIES = ["empty", "tayassu pecari", "dasyprocta punctata"]
LAND = ["airport", "zoo", "multi-unit_residential", "park"]


def colour(row):
    return (row * 5 % 256, row * 11 % 256, row * 17 % 256)


def save(path, row, size, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour(row)).convert(mode).save(path)


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)


def camelyon17(folder):
    rows = []
    for i in range(N):
        patient, node, x, y = f"{i % 7:03d}", i % 3, 10 * i, 20 * i
        rows.append([i, patient, node, x, y, i % 2, i % 5, i % 5, i % 2])
        place = f"patches/patient_{patient}_node_{node}"
        save(folder / place / f"patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png", i, (96, 96))
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
    write_csv(folder / "metadata.csv", header, rows)


def iwildcam(folder):
    splits = ["train", "val", "test", "id_val", "id_test"]
    rows = []
    for i in range(N):
        file = f"8a{i:04x}.jpg"
        when = "2013-06-05 07:44:19.000"
        rows.append([i, splits[i % 5], 3, 12, 5, "s, q", i % 3, i % 3 + 7, when, file, "8a"])
        save(folder / "train" / file, i, (597, 448), mode="L" if i == 1 else "RGB")
    header = (
        ",split,location_remapped,location,sequence_remapped,seq_id,y,category_id,datetime,"
        "filename,image_id"
    )
    write_csv(folder / "metadata.csv", header, rows)
    names = [[y, y + 7, name] for y, name in enumerate(SPECIES)]
    write_csv(folder / "categories.csv", "y,category_id,name", [*names[::-1], [99999, 1, "start"]])


def fmow(folder):
    splits = ["train", "seq", "val", "test"]
    rows = []
    for i in range(N):
        rows.append([splits[i % 4], "a.jpg", "p", LAND[i // 4 % 4], "USA", "2016-01-01T00:00:00Z"])
        save(folder / "images" / f"rgb_img_{i}.png", i, (224, 224), "RGBA" if i == 2 else "RGB")
    header = "split,img_filename,img_path,category,country_code,timestamp"
    write_csv(folder / "rgb_metadata.csv", header, rows)


WRITERS = {"camelyon17": camelyon17, "iwildcam": iwildcam, "fmow": fmow}


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("wilds")
    for name, writer in WRITERS.items():
        (root / HOME[name]).mkdir()
        writer(root / HOME[name])
    return root


@pytest.fixture
def root(tmp_path, originals):
    """A folder of its own for each test: WILDS's sets, with nothing decoded yet."""
    return shutil.copytree(originals, tmp_path / "data")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inside", [False, True])
def test_images_are_decoded_to_the_papers_size(root, name, inside):
    images = load(name, root / HOME[name] if inside else root)
    side = SIDE[name]
    assert images.name == name
    assert images.pixels.shape == (N, 3, side, side)
    assert images.pixels.dtype == np.uint8
    for row in range(N):
        if (name, row) != ("iwildcam", 1):  # that one is grey
            off = images.pixels[row].astype(int) - np.array(colour(row))[:, None, None]
            assert np.abs(off).max() <= (4 if name == "iwildcam" else 0)  # JPEG is not exact
    cached = root / HOME[name] / "foresee-cache"
    assert {file.suffix for file in cached.iterdir()} == {".npy", ".json", ".lock"}


def test_labels_classes_and_domains_are_those_of_the_metadata(root):
    images = load("camelyon17", root)
    assert images.labels.tolist() == [i % 2 for i in range(N)]
    assert images.classes == ("normal", "tumor")
    assert images.source.tolist() == [i % 5 in (0, 1) for i in range(N)]  # hospitals, not splits
    images = load("iwildcam", root)
    assert images.labels.tolist() == [i % 3 for i in range(N)]
    assert images.classes == tuple(SPECIES)
    assert images.source.tolist() == [i % 5 in (1, 2) for i in range(N)]  # val and test
    images = load("fmow", root)
    assert [images.classes[y] for y in images.labels] == [LAND[i // 4 % 4] for i in range(N)]
    assert images.classes == ("airport", "multi-unit_residential", "park", "zoo")
    assert images.source.tolist() == [i % 4 == 0 for i in range(N)]


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("camelyon17", lambda i: i % 5 == 2),
        ("iwildcam", lambda i: i % 5 == 2),
        ("fmow", lambda i: i % 4 == 3),
    ],
)
def test_a_narrow_target_is_the_domain_that_wilds_tests_on(root, name, inside):
    images = load(name, root)
    narrow = paper.experiment(name, narrow=True)
    few = {"n_seed": 4, "n_val": 3, "n_pool": 31, "n_test": 2, "classes": len(images.classes)}
    drawn = split(images, replace(narrow, **few), 0)
    assert all(inside(i) for i in (*drawn.val, *drawn.test))
    assert {inside(i) for i in drawn.pool} == {False, True}


def test_shrinking_averages_over_all_pixels(root):
    fine = np.indices((448, 600)).sum(0) % 2 * 255  # a chessboard of single pixels
    rgb = np.repeat(fine[:, :, None], 3, axis=2).astype(np.uint8)
    Image.fromarray(rgb).save(root / HOME["iwildcam"] / "train" / "8a0000.jpg", quality=100)
    grey = load("iwildcam", root).pixels[0, :, 2:-2, 2:-2]
    assert np.abs(grey.astype(int) - 127).max() < 12


def test_a_split_by_domain_makes_a_task(root):
    images = load("camelyon17", root)
    experiment = Experiment("Camelyon17", True, 96, 2, 5, 4, 10, 2, 6, 1, 2, 2, 2)
    drawn = split(images, experiment, 0)
    assert set(drawn.seed % 5) <= {0, 1}
    assert set(np.concatenate([drawn.val, drawn.pool, drawn.test]) % 5) <= {2, 3, 4}
    made = task(images, drawn)
    assert made.pool[3, :, 0, 0].tolist() == list(colour(drawn.pool[3]))
    assert made.oracle(np.array([3])).tolist() == [drawn.pool[3] % 2]
    assert {i % 5 for i in split(images, replace(experiment, shift=False), 0).seed} - {0, 1}


# The cache


@pytest.fixture
def decodes(monkeypatch):
    """Names of the files that are decoded from here on."""
    read, seen = decoded.read, []
    monkeypatch.setattr(decoded, "read", lambda *args: (seen.append(args[0]), read(*args))[1])
    return seen


def test_images_are_decoded_once_with_progress_and_the_need_of_disk_is_known(
    root, decodes, monkeypatch
):
    monkeypatch.setattr(decoded, "BLOCK", 16)
    assert decoding_bytes("camelyon17", root) == N * 3 * 96 * 96
    progress = []
    first = load("camelyon17", root, advance=lambda *args: progress.append(args))
    assert progress == [(16, 40), (32, 40), (40, 40)]
    assert len(decodes) == N
    assert decoding_bytes("camelyon17", root) == 0
    again = load("camelyon17", root, advance=lambda *args: progress.append(args))
    assert len(decodes) == N
    assert len(progress) == 3
    assert (first.pixels == again.pixels).all()


def test_what_is_written_to_the_pixels_never_reaches_the_file(root):
    images = load("camelyon17", root)
    assert isinstance(images.pixels, np.memmap)
    images.pixels[:] = 77
    assert load("camelyon17", root).pixels[1, :, 0, 0].tolist() == list(colour(1))


def test_the_cache_can_be_elsewhere(root, tmp_path):
    load("camelyon17", root, cache=tmp_path / "fast" / "disk")
    assert (tmp_path / "fast" / "disk" / "camelyon17-96.npy").is_file()
    assert not (root / HOME["camelyon17"] / "foresee-cache").exists()
    assert decoding_bytes("camelyon17", root, cache=tmp_path / "fast" / "disk") == 0


def damage_metadata(folder):
    path = folder / "metadata.csv"
    path.write_text(path.read_text().replace("\n3,", "\n03,"))


@pytest.mark.parametrize(
    "change",
    [
        damage_metadata,
        lambda folder: (folder / "foresee-cache" / "camelyon17-96.json").unlink(),
        lambda folder: (folder / "foresee-cache" / "camelyon17-96.json").write_text("{"),
        lambda folder: (folder / "foresee-cache" / "camelyon17-96.npy").unlink(),
        lambda folder: (folder / "foresee-cache" / "camelyon17-96.npy").write_bytes(b"\x93NUMPY"),
    ],
)
def test_a_cache_that_is_not_whole_or_not_of_this_metadata_is_made_again(root, decodes, change):
    whole = np.array(load("camelyon17", root).pixels)
    change(root / HOME["camelyon17"])
    decodes.clear()
    assert (load("camelyon17", root).pixels == whole).all()
    assert len(decodes) == N


def test_a_cache_of_an_older_reader_is_made_again(root, decodes, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(wilds, "READER", 1)
        load("camelyon17", root)
    decodes.clear()
    load("camelyon17", root)
    assert len(decodes) == N


def test_a_kill_in_mid_decode_leaves_no_half_cache(root, decodes):
    code = f"""
import os, signal
from foresee.reading import decoded
from foresee.lab.data import load
decoded.BLOCK = 8
load("camelyon17", {str(root)!r}, advance=lambda done, total: done == 16
     and os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = root / HOME["camelyon17"] / "foresee-cache"
    assert (folder / "camelyon17-96.part").is_file()
    assert not (folder / "camelyon17-96.npy").exists()
    images = load("camelyon17", root)
    assert len(decodes) == N
    assert [images.pixels[i, :, 5, 5].tolist() for i in range(N)] == [
        list(colour(i)) for i in range(N)
    ]
    assert not (folder / "camelyon17-96.part").exists()


def test_an_old_stamp_never_stands_beside_new_pixels(root, monkeypatch):
    whole = np.array(load("camelyon17", root).pixels)
    path = root / HOME["camelyon17"] / "metadata.csv"
    content = path.read_bytes()
    header, *rows = content.decode().splitlines()

    def killed(*_):
        raise KeyboardInterrupt

    path.write_text("\n".join([header, *rows[::-1]]))
    with monkeypatch.context() as patch:
        patch.setattr(kept, "write", killed)  # the pixels are there, their stamp is not
        with pytest.raises(KeyboardInterrupt):
            load("camelyon17", root)
    path.write_bytes(content)
    assert (load("camelyon17", root).pixels == whole).all()


def test_two_at_once_decode_once(root, decodes):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(load("camelyon17", root))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decodes) == N
    assert all((images.pixels == results[0].pixels).all() for images in results)
    assert len(results) == 3


def test_too_little_room_is_known_before_the_work(root, decodes, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"needs 0\.0 GB .* pass another folder as cache"):
        load("camelyon17", root)
    assert decodes == []


def test_a_disk_that_fills_up_leaves_nothing(root, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(InputError, match=r"cannot be written .*No space left"):
        load("camelyon17", root)
    left = {file.suffix for file in (root / HOME["camelyon17"] / "foresee-cache").iterdir()}
    assert left <= {".lock"}


def test_a_folder_that_cannot_be_written_asks_for_another(root):
    (root / HOME["camelyon17"] / "foresee-cache").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot be written to .*pass another folder as cache"):
        load("camelyon17", root)


@pytest.mark.parametrize("suffix", [".npy", ".part", ".json", ".lock"])
def test_nothing_is_written_through_a_link_in_the_folder(root, tmp_path, suffix):
    (tmp_path / "precious").write_text("precious")
    cached = root / HOME["camelyon17"] / "foresee-cache"
    cached.mkdir()
    (cached / f"camelyon17-96{suffix}").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=rf"camelyon17-96\{suffix} is a link.* as --cache"):
        load("camelyon17", root)
    assert (tmp_path / "precious").read_text() == "precious"


def test_an_array_of_another_form_is_made_again(root, decodes):
    whole = np.array(load("camelyon17", root).pixels)
    file = root / HOME["camelyon17"] / "foresee-cache" / "camelyon17-96.npy"
    for other in (whole[:-1], whole[:, :2], whole.astype(np.int8), np.float64(1)):
        np.save(file, other)
        assert (load("camelyon17", root).pixels == whole).all()
    assert len(decodes) == 5 * N


# What is wrong with the files


def redirect(root, name, old, new):
    path = root / HOME[name] / wilds.LAYOUTS[name].metadata
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("iwildcam", "8a000a.jpg", "../../../secret.png"),
        ("iwildcam", "8a000a.jpg", "out.jpg"),
        ("iwildcam", "8a000a.jpg", "elsewhere/secret.png"),
        ("camelyon17", "\n10,003,", "\n10,x/../../../../secret.png/../,"),
    ],
)
def test_images_outside_the_folder_are_refused_with_their_row(root, decodes, name, old, new):
    secret = root.parent / "secret.png"
    save(secret, 1, (64, 64))
    (root / HOME["iwildcam"] / "train" / "out.jpg").symlink_to(secret)
    (root / HOME["iwildcam"] / "train" / "elsewhere").symlink_to(root.parent)
    redirect(root, name, old, new)
    with pytest.raises(InputError) as caught:
        load(name, root)
    assert "leads out of the folder" in str(caught.value)
    assert "It is row 10 of" in str(caught.value)
    assert "delete that row" in str(caught.value)
    assert decodes == []


def test_a_data_folder_that_is_itself_a_link_is_read(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert len(load("fmow", tmp_path / "link")) == N


def test_postscript_in_the_guise_of_a_photo_starts_nothing(root, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    photo = root / HOME["iwildcam"] / "train" / "8a000a.jpg"
    photo.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with pytest.raises(InputError, match=r"8a000a\.jpg .*none of PNG, .* It is row 10 of"):
        load("iwildcam", root)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("camelyon17", "metadata.csv"),
        ("iwildcam", "metadata.csv"),
        ("iwildcam", "categories.csv"),
        ("fmow", "rgb_metadata.csv"),
        ("fmow", "images/rgb_img_0.png"),
        ("fmow", "foresee-cache/fmow-96.json"),
        ("fmow", "foresee-cache/fmow-96.npy"),
    ],
)
def test_damage_is_read_or_refused_by_name(root, monkeypatch, name, file):
    monkeypatch.setattr(
        decoded, "read", lambda _, size, channels: np.zeros((channels, *size), np.uint8)
    )
    load(name, root)
    if file.endswith("png"):
        monkeypatch.undo()
        shutil.rmtree(root / HOME[name] / "foresee-cache")
    path, rng = root / HOME[name] / file, np.random.default_rng(0)
    content = path.read_bytes()[:2000]
    for _ in range(15):
        changed = np.frombuffer(content, np.uint8).copy()
        changed[rng.integers(0, len(content), 3)] = rng.integers(0, 256, 3)
        cut = content[: rng.integers(0, len(content))]
        for damaged in (cut, changed.tobytes(), rng.bytes(99), b"[" * 99_999):
            path.write_bytes(damaged)
            with contextlib.suppress(InputError):
                load(name, root)


@pytest.mark.parametrize(
    ("name", "file", "row", "remedy"),
    [
        (
            "camelyon17",
            "patches/patient_003_node_1/patch_patient_003_node_1_x_100_y_200.png",
            10,
            1,
        ),
        ("iwildcam", "train/8a000a.jpg", 10, 1),
        ("fmow", "images/rgb_img_10.png", 10, 0),
    ],
)
@pytest.mark.parametrize("how", ["missing", "cut", "text"])
def test_a_bad_image_is_named_with_its_row(root, name, file, row, remedy, how):
    path = root / HOME[name] / file
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if how == "cut" else b"404 not found")
    with pytest.raises(InputError) as caught:
        load(name, root)
    message = str(caught.value)
    assert f"{path}" in message
    assert f"row {row} of {root / HOME[name] / wilds.LAYOUTS[name].metadata}" in message
    assert "unpack the archive again" in message
    assert ("delete that row" in message) == bool(remedy)
    assert ("1 of" in message) == (how == "missing")
    left = {entry.suffix for entry in (root / HOME[name] / "foresee-cache").iterdir()}
    assert left <= {".lock"}


@pytest.mark.parametrize(
    ("name", "column"),
    [("camelyon17", "center"), ("iwildcam", "filename"), ("fmow", "category"), ("fmow", "split")],
)
def test_a_missing_column_is_named_with_the_file_and_what_was_found(root, name, column):
    path = root / HOME[name] / wilds.LAYOUTS[name].metadata
    path.write_text(path.read_text().replace(column, "other", 1))
    with pytest.raises(InputError) as caught:
        load(name, root)
    found = path.read_text().splitlines()[0].replace(",", ", ")
    assert f"{path} must have the columns" in str(caught.value)
    assert f"; {column} is not among those found: {found}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            "camelyon17",
            "\n7,000,1,70,140,1,2,2,1",
            "\n7,000,1,70,140,1,2,9,1",
            "row 7: center must",
        ),
        ("camelyon17", "\n7,000,1,70,140,1,2,2,1", "\n7,000,1,70,140,x,2,2,1", "row 7: tumor must"),
        ("camelyon17", "\n7,000,1,70,140,1,2,2,1", "\n7,000,1,70", "row 7: 9 fields .* got 4"),
        ("iwildcam", "\n7,test,3,12,5,", "\n7,extra,3,12,5,", "split must be one of val, test, id"),
        ("fmow", "\nval,", "\nvalid,", "one of train, val, test, seq, got 'valid'"),
    ],
)
def test_bad_metadata_is_named_with_its_row(root, name, old, new, words):
    path = root / HOME[name] / wilds.LAYOUTS[name].metadata
    text = path.read_bytes().decode().replace("\r\n", "\n")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        load(name, root)


def test_metadata_without_rows_or_text_is_refused(root):
    path = root / HOME["camelyon17"] / "metadata.csv"
    header = path.read_text().splitlines()[0]
    path.write_text(header)
    with pytest.raises(InputError, match="lists no images"):
        load("camelyon17", root)
    path.write_text("")
    with pytest.raises(InputError, match="those found: none"):
        load("camelyon17", root)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        load("camelyon17", root)


def test_iwildcam_needs_the_names_of_its_classes(root):
    path = root / HOME["iwildcam"] / "categories.csv"
    path.write_text("y,category_id,name\n0,1,a\n2,1,b\n")
    with pytest.raises(InputError, match="without gaps"):
        load("iwildcam", root)
    path.write_text("y,category_id,name\nzero,1,a\n")
    with pytest.raises(InputError, match="must be whole numbers"):
        load("iwildcam", root)
    path.write_text("y,category_id,name\n0,1,a\n1,1,b\n")
    with pytest.raises(InputError, match="row 2: y must be one of 2 classes, got '2'"):
        load("iwildcam", root)
    path.unlink()
    with pytest.raises(InputError, match="which names the classes"):
        load("iwildcam", root)


def test_the_stamp_is_plain_json(root):
    load("fmow", root)
    stamp = json.loads((root / HOME["fmow"] / "foresee-cache" / "fmow-96.json").read_text())
    assert stamp["rows"] == N
    assert stamp["side"] == 96
    assert len(stamp["metadata"]) == 32
