"""The reader of image files: what comes out of which file, and what is refused by name."""

import io
import os
import struct
import subprocess
import threading
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from foresee.errors import InputError
from foresee.reading import images
from foresee.reading.images import inside, read

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (30, 40, 3)).astype(np.uint8)
PICTURE = Image.fromarray(RGB)
LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "BMP": {}, "TIFF": {}}


def packed(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.fixture
def file(tmp_path):
    """Write a file and read it: its name tells nothing."""

    def reader(content, size=None):
        (tmp_path / "image.jpg").write_bytes(content)
        return read(tmp_path / "image.jpg", size)

    return reader


# What comes out


@pytest.mark.parametrize("form", LOSSLESS)
def test_pixels_are_those_of_the_file(file, form):
    got = file(packed(PICTURE, form, **LOSSLESS[form]))
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert (got == RGB.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("form", ["JPEG", "GIF"])
def test_formats_that_lose_something_come_close(file, form):
    smooth = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    got = file(packed(smooth, form)).astype(int)
    assert np.abs(got - np.asarray(smooth).transpose(2, 0, 1)).max() < 8


def test_an_image_is_squeezed_to_the_square_and_small_ones_stay(file):
    chess = (np.indices((60, 90)).sum(0) % 2 * 255).astype(np.uint8)
    got = file(packed(Image.fromarray(chess), "PNG"), size=20)
    assert got.shape == (3, 20, 20)
    assert np.abs(got.astype(int) - 127).max() < 20  # over all pixels, not some
    square = PICTURE.crop((0, 0, 30, 30))
    assert (file(packed(square, "PNG"), size=30) == np.asarray(square).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "RGB", "P"])
def test_every_kind_of_pixel_becomes_colour_over_white(file, mode):
    image = PICTURE.convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.linear_gradient("L").resize((40, 30)))
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    if mode == "RGB":
        image.info["transparency"] = image.getpixel((3, 4))  # a colour that is not there
    *colours, alpha = np.asarray(image.convert("RGBA")).astype(float).transpose(2, 0, 1)
    assert (alpha.min() < 255) == (mode not in ("1", "L"))
    expected = 255 + (np.stack(colours) - 255) * alpha / 255
    assert np.abs(file(packed(image, "PNG")) - expected).max() <= 1


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_inks_become_colours(file, form):
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    got = file(packed(red, form)).astype(int)
    assert np.abs(got - np.array([255, 0, 0])[:, None, None]).max() < 8


def grey_png(values, bits=16, transparent=None):
    """A PNG of a row of greys, or of colours [n 3], written by hand: not every Pillow can."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    kind = 2 if values.ndim == 3 else 0
    numbers = values.astype(">u2").view(np.uint8).reshape(-1, 2)
    row = np.packbits(np.unpackbits(numbers, axis=1)[:, -bits:])
    header = struct.pack(">IIBBBBB", values.shape[1], 1, bits, kind, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0" + row.tobytes()))]
    if transparent is not None:
        parts.insert(1, chunk(b"tRNS", np.array(transparent, ">u2").tobytes()))
    parts.append(chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_of_sixteen_bits_the_upper_eight_are_kept(file):
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]])
    expected = [[0, 0, 1, 0x12, 0xFF]] * 3
    assert file(grey_png(values))[:, 0].tolist() == expected
    tiff = packed(Image.fromarray(values.astype(np.uint16)), "TIFF")
    assert file(tiff)[:, 0].tolist() == expected
    older = Image.fromarray(values.astype(np.int32))  # as Pillow 10 opens such a PNG
    older.format = "PNG"
    assert np.asarray(images._colour(older))[0].T.tolist() == expected


def test_a_transparent_grey_is_that_of_the_file_at_any_depth(file):
    deep = np.array([[0x1234, 0x1235, 0x0034]])
    assert file(grey_png(deep, 16, 0x1234))[0, 0].tolist() == [255, 0x12, 0]
    for bits, whole in ((8, 1), (4, 17), (2, 85)):
        values = np.array([[1, 2, 0, 3]])
        expected = np.where(values == 1, 255, whole * values)
        assert file(grey_png(values, bits, 1))[0].tolist() == expected.tolist()


def test_a_transparent_colour_of_sixteen_bits_is_refused(file):
    colours = np.array([[[0x12AB, 0x12AB, 0x12AB], [0xABFF, 0xABFF, 0xABFF]]])
    assert file(grey_png(colours))[0, 0].tolist() == [0x12, 0xAB]
    with pytest.raises(InputError, match="transparent colour has 16 bits: save it with an alpha"):
        file(grey_png(colours, 16, [0x12AB] * 3))


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_numbers_without_a_white_are_refused(file, kind):
    with pytest.raises(InputError, match=r"image\.jpg .*32 bits, and nothing tells which is white"):
        file(packed(Image.fromarray(RGB[:, :, 0].astype(kind)), "TIFF"))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_the_cameras_orientation_is_applied_once(file, form):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn to the right
    tall = np.zeros((16, 48, 3), np.uint8)
    tall[:, :24] = 255
    got = file(packed(Image.fromarray(tall), form, exif=exif))
    assert got.shape == (3, 48, 16)
    assert got[:, :20].min() > 250  # what was left is on top
    assert got[:, 28:].max() < 5


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_frame_counts(file, form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if form == "WEBP" else {}
    moving = packed(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert file(moving)[:, 0, 0].tolist() == [255, 0, 0]


# What is refused


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"404 not found",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        b"P6 1 1 255 abc",
        packed(PICTURE, "ICO"),
        packed(PICTURE, "PDF"),
    ],
    ids=["nothing", "text", "EPS", "SVG", "PPM", "ICO", "PDF"],
)
def test_other_formats_are_refused_and_start_no_program(file, monkeypatch, content):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    with pytest.raises(InputError, match=r"image\.jpg .* none of PNG, JPEG, WEBP, GIF, BMP, TIFF"):
        file(content)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "no.png", tmp_path, tmp_path / "pipe.png"):
        with pytest.raises(InputError, match=f"no image file {path}"):
            read(path)


@pytest.mark.parametrize(("wide", "pixels"), [(8192, "80,003,072"), (40_000, "400,000,000|400000")])
def test_a_bomb_is_refused_before_it_is_decoded(file, monkeypatch, wide, pixels):
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("it was decoded"))
    bomb = bytearray(packed(Image.new("1", (8, 8)), "PNG"))
    bomb[16:24] = struct.pack(">II", wide, 9766 if wide == 8192 else 10_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    with pytest.raises(InputError, match=rf"image\.jpg cannot be read .*({pixels})"):
        file(bytes(bomb))


def test_limits_are_the_last_sizes_that_are_read(file, monkeypatch):
    content = packed(PICTURE, "PNG")
    monkeypatch.setattr(images, "PIXELS", 1200)
    monkeypatch.setattr(images, "BYTES", len(content))
    assert file(content).shape == (3, 30, 40)
    monkeypatch.setattr(images, "PIXELS", 1199)
    with pytest.raises(InputError, match="1,200 pixels, and no more than 1,199 are read"):
        file(content)
    monkeypatch.setattr(images, "BYTES", len(content) - 1)
    with pytest.raises(InputError, match="bytes, and no more than"):
        file(content)


def test_memory_that_runs_out_is_not_the_fault_of_the_file(file, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(images, "_colour", full)
    with pytest.raises(MemoryError):
        file(packed(PICTURE, "PNG"))


def everything():
    """One small file of each format and of some of their variants."""
    small = PICTURE.resize((9, 7))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    yield packed(small, "PNG", exif=exif)
    yield packed(small.convert("P"), "PNG")
    yield packed(small, "JPEG", exif=exif)
    yield packed(small, "JPEG", progressive=True)
    yield packed(small, "WEBP", exif=exif)
    yield packed(small, "WEBP", lossless=True)
    yield packed(small, "GIF", save_all=True, append_images=[PICTURE.resize((9, 7))])
    yield packed(small, "BMP")
    for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "jpeg", "group4"):
        yield packed(small.convert("1") if compression == "group4" else small, "TIFF",
                     compression=compression, exif=exif)  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # a person would see them and the refusal
@pytest.mark.parametrize("number", range(13))
def test_damage_is_an_image_or_a_refusal_that_names_the_file(file, number):
    content = list(everything())[number]
    rng = np.random.default_rng(number)
    refused = 0
    cuts = [content[:end] for end in rng.integers(0, len(content), 30)]
    for _ in range(60):
        flipped = np.frombuffer(content, np.uint8).copy()
        flipped[rng.integers(0, len(content), 3)] = rng.integers(0, 256, 3)
        cuts.append(flipped.tobytes())
    noise = [content[:12] + rng.bytes(200) for _ in range(10)]
    for damaged in [*cuts, *noise]:
        try:
            assert file(damaged, size=8).shape == (3, 8, 8)
        except InputError as error:
            refused += "image.jpg" in str(error)
    assert refused > 30


def test_many_threads_read_at_once(tmp_path):
    (tmp_path / "a.png").write_bytes(packed(PICTURE, "PNG"))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(read(tmp_path / "a.png"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert all((image == RGB.transpose(2, 0, 1)).all() for image in got)


# Names that lead out of the folder


@pytest.fixture
def folder(tmp_path):
    """A folder with an image and links of all kinds, and a secret beside it."""
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    (tmp_path / "homely").mkdir()
    for path in (home / "a.png", home / "sub" / "b.png", tmp_path / "homely" / "secret.png"):
        path.write_bytes(packed(PICTURE, "PNG"))
    (home / "out.png").symlink_to(tmp_path / "homely" / "secret.png")
    (home / "further.png").symlink_to("out.png")
    (home / "elsewhere").symlink_to(tmp_path / "homely")
    (home / "inner.png").symlink_to("sub/b.png")
    (home / "loop.png").symlink_to("loop.png")
    (tmp_path / "link").symlink_to(home)
    return home


@pytest.mark.parametrize("name", ["a.png", "sub/b.png", "sub/../a.png", "inner.png", "./a.png"])
@pytest.mark.parametrize("linked", [False, True])
def test_names_inside_are_followed_wherever_the_folder_is(folder, name, linked):
    path = inside(folder.parent / "link" if linked else folder, name)
    assert read(path).shape == (3, 30, 40)
    assert str(folder) in path


@pytest.mark.parametrize(
    "name",
    [
        "../homely/secret.png",
        "sub/../../homely/secret.png",
        "{}/homely/secret.png",
        "out.png",
        "further.png",
        "elsewhere/secret.png",
        "..",
        ".",
        "",
    ],
)
def test_names_that_leave_are_refused(folder, name):
    with pytest.raises(InputError, match="leads out of the folder"):
        inside(folder, name.format(folder.parent))


def test_names_that_name_nothing_are_refused(folder):
    with pytest.raises(InputError, match="is no file name"):
        inside(folder, "a\0.png")
    for name in ("loop.png", "no.png", "x" * 5000, "a.png/b.png"):
        with pytest.raises(InputError, match="there is no image file"):
            read(inside(folder, name))
    assert inside("/", "etc") == "/etc"
