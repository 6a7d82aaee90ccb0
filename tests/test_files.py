"""Files that are written whole or not at all, and nothing stays of those that were not."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from foresee import files
from foresee.errors import InputError

KILLED = """
import os, sys
from pathlib import Path
from foresee import files
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
files.write(Path(sys.argv[1]), b"new")
"""


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(tmp_path, monkeypatch, mode):
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(mode)
    modes = []
    monkeypatch.setattr(os, "fsync", lambda d: modes.append(stat.S_IMODE(os.fstat(d).st_mode)))
    files.write(path, b"new")
    assert modes == [mode]  # the new content was never open to others
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def killed_writer(path):
    child = subprocess.run([sys.executable, "-c", KILLED, path])
    assert child.returncode == -9


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    killed_writer(path)
    assert path.read_text() == "old"
    (left,) = tmp_path.glob(".foresee-*.tmp")
    files.write(tmp_path / "another", b"")
    assert sorted(os.listdir(tmp_path)) == ["another", "file"]
    assert not left.exists()


def test_what_a_living_process_or_another_machine_writes_stays(tmp_path):
    killed_writer(tmp_path / "file")
    (left,) = tmp_path.glob(".foresee-*.tmp")
    here, pid, _ = left.name.rsplit("-", 2)
    others = {
        f"{here}-{os.getpid()}-abc.tmp",
        f"{here}-1-abc.tmp",
        f".foresee-elsewhere-{pid}-abc.tmp",
        f"{here}-no_number-abc.tmp",
        f"{here}-{pid}-abc.txt",
        f"{pid}-abc.tmp",
    }
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f"{here}-{10**30}-abc.tmp").touch()  # no process has this number
    files.write(tmp_path / "file", b"")
    assert set(os.listdir(tmp_path)) == {"file", *others}


def test_what_a_process_of_somebody_else_writes_stays(tmp_path, monkeypatch):
    def kill(pid, signal):
        raise PermissionError if pid == 1 else ProcessLookupError

    killed_writer(tmp_path / "file")
    (dead,) = tmp_path.glob(".foresee-*.tmp")
    theirs = dead.with_name(f"{dead.name.rsplit('-', 2)[0]}-1-abc.tmp")
    theirs.touch()
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(os, "listdir", lambda folder: [theirs.name, dead.name])
    files.write(tmp_path / "another", b"")
    assert (theirs.exists(), dead.exists()) == (True, False)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    files.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_folder_in_the_way_of_cleaning_is_no_error(tmp_path):
    killed_writer(tmp_path / "file")
    (left,) = tmp_path.glob(".foresee-*.tmp")
    left.unlink()
    left.mkdir()
    files.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_devices_and_folders_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match=f"{path} is no file that could be replaced"):
            files.write(path, b"")
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere/file could not be written \(No such file"):
        files.write(tmp_path / "nowhere" / "file", b"")


def test_a_read_only_disk_is_named_with_a_remedy(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr(os, "unlink", refused)  # even of what is not there
    with pytest.raises(InputError, match=r"a could not be written \(Read-only.*another folder"):
        files.write(tmp_path / "a", b"")
