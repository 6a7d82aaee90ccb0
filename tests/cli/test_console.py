"""What all commands share: a warning is a note, and no line is written into a bar that moves."""

import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foresee.cli.app import app
from foresee.cli.console import notes, on_stderr, progress_bar


@pytest.mark.filterwarnings("always")
def test_a_warning_is_a_note_and_is_told_once(capsys, recwarn):
    with notes():
        for message in ("first,\n  on two lines", "second", "first, on two lines"):
            warnings.warn(message, stacklevel=1)
        warnings.warn("is for those who program", DeprecationWarning, stacklevel=1)
    warnings.warn("after it", stacklevel=1)
    assert capsys.readouterr().err == "note: first, on two lines\nnote: second\n"
    assert [str(each.message) for each in recwarn] == ["is for those who program", "after it"]


@pytest.mark.filterwarnings("always")
def test_a_doubtful_line_of_names_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i / 7},{i / 3},{i % 2}" for i in range(40)]
    Path("t.csv").write_text("\n".join(["850.5,852,860", *rows]))
    done = CliRunner().invoke(app, ["init", "t.toml", "--data", "t.csv"])
    assert done.exit_code == 0
    assert done.stderr == (
        "note: t.csv must begin with the names of its columns, got 850.5, 852, 860, as in the "
        "rows below: add such a line, if these are no names\n"
    )


def test_lines_go_above_a_bar():
    assert progress_bar().console is on_stderr()
