"""Trees that others made: their names reach no log raw, and their links lead nowhere."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint import baseline, cli
from precision_lint.cache import DIRECTORY, Cache
from precision_lint.config import ConfigError
from precision_lint.display import printable, quoted
from precision_lint.report import FORMATS
from tests import standins

HEAD = "import torch\n"
NAMES = (
    "a\n::error::b.py",
    "c\r::stop-commands::d.py",
    "e\x1b[31mf.py",
    "g\u202eh.py",
    "i\x9b31mj.py",
    'k"""l.py',
    "m\n::set-env::n/o.py",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    standins.install(monkeypatch)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def harmless(text: str, commands: bool = False) -> None:
    """Nothing there draws on a terminal or begins a workflow command of its own."""
    odd = [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert not odd, odd
    for line in text.splitlines():
        assert not line.lstrip().startswith("::") or (commands and line.startswith("::error file="))


@pytest.fixture
def hostile() -> None:
    for name in NAMES:
        write(name, HEAD + "BAD\n")
    write("p\n::error::q.py", HEAD + "def f(:\n")


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("output_format", FORMATS)
def test_names_in_reports(output_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--output-format", output_format, "."]) == 1
    out, err = capsys.readouterr()
    assert "b.py" in out
    harmless(out, commands=output_format == "github")
    harmless(err)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize(
    "args",
    [
        ["--show-files", "."],
        ["--show-settings", *NAMES],
        ["--diff", "."],
        ["no\n::error::such.py"],
        ["--config", "no\n::error::such.toml"],
        ["--select", "no\n::error::such"],
        ["--output-format", "no\n::error::such"],
        ["no\n::error::such", "--fix-it\n::error::now"],
        ["explain", "no\n::error::such"],
        ["explain-at", f"{NAMES[0]}:2"],
        ["explain-at", "no\n::error::such.py:1"],
        ["explain-at", "p\n::error::q.py:1"],
        ["--add-noqa=legacy", "."],
        ["baseline", "create", "--baseline", "r\n::error::s.json", "."],
        ["-o", "no\n::error::such/file", "."],
    ],
)
def test_names_in_everything_else(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(args)
    out, err = capsys.readouterr()
    assert out + err
    harmless(out.replace("\t", ""))
    harmless(err)


@pytest.mark.parametrize("text", ['"a\\n::error::b" = 1\n', "extend = '''a\n::error::b'''\n"])
def test_names_in_configurations(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("t\n::error::u/precision-lint.toml", text)
    write("t\n::error::u/a.py", HEAD)
    assert cli.main(["."]) == 2
    out, err = capsys.readouterr()
    harmless(out)
    harmless(err)
    assert err.count("\n") == 1


def test_show_files_quotes_as_git_does(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\tb.py", HEAD)
    write("é c.py", HEAD)
    assert cli.main(["--show-files", "."]) == 0
    shown = capsys.readouterr().out.splitlines()
    root = Path.cwd()
    assert shown == [f'"{root}/a\\011b.py"', f"{root}/é c.py"]
    assert quoted('é"') == '"\\303\\251\\042"'


def test_printable_is_one_line() -> None:
    assert printable("a\n\x1b\x85\u2028\ud800é") == "a" + "\ufffd" * 5 + "é"


# links


@pytest.mark.parametrize("what", ["directory", "nowhere", "facts.sqlite3", "facts.sqlite3-wal"])
def test_a_cache_that_is_a_link_is_not_used(here: Path, what: str) -> None:
    other = here / "other"
    other.mkdir()
    (other / "facts.sqlite3").write_bytes(b"somebody's work")
    cache = Path(DIRECTORY)
    if what in ("directory", "nowhere"):
        cache.symlink_to(other if what == "directory" else here / "new")
    else:
        cache.mkdir()
        (cache / what).symlink_to(other / ("facts.sqlite3" if "wal" in what else "made"))
    write("a.py", HEAD + "BAD\n")
    assert cli.main(["."]) == 1
    assert (other / "facts.sqlite3").read_bytes() == b"somebody's work"
    assert sorted(path.name for path in here.iterdir()) == ["other", "project"]
    assert [path.name for path in other.iterdir()] == ["facts.sqlite3"]


def test_the_users_own_link_to_a_cache_is_followed(here: Path) -> None:
    other = here / "other"
    other.mkdir()
    (here / "link").symlink_to(other)
    write("a.py", HEAD + "BAD\n")
    assert cli.main(["--cache-dir", str(here / "link"), "."]) == 1
    assert (other / "facts.sqlite3").is_file()


def test_a_pipe_in_the_cache_does_not_stop_the_run() -> None:
    Path(DIRECTORY).mkdir()
    os.mkfifo(Path(DIRECTORY) / "facts.sqlite3")
    assert Cache(Path(DIRECTORY)).get([b"key"]) == {}


@pytest.mark.parametrize("args", [["--fix"], ["--add-noqa=legacy"]])
@pytest.mark.parametrize("named", [".", "link.py"])
def test_a_link_out_of_the_project_is_not_fixed(
    here: Path, args: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("pyproject.toml", "")
    target = here / "target.py"
    target.write_text(HEAD + "BAD\n")
    Path("link.py").symlink_to(target)
    assert cli.main([*args, named]) != 0
    assert target.read_text() == HEAD + "BAD\n"
    out, err = capsys.readouterr()
    assert f"is a link to {target}, outside of the project" in out + err
    assert cli.main([*args, named, str(target)]) == 0, "the target is named"
    assert target.read_text() != HEAD + "BAD\n"


def test_a_link_within_the_project_is_fixed() -> None:
    write("pyproject.toml", "")
    target = write("sub/target.py", HEAD + "BAD\n")
    Path("link.py").symlink_to(target)
    assert cli.main(["--fix", "link.py"]) == 0
    assert (target.read_text(), Path("link.py").is_symlink()) == (HEAD + "GOOD\n", True)


def test_a_hard_link_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = write("a.py", HEAD + "BAD\n"), here / "other.py"
    other.hardlink_to(path)
    assert cli.main(["--fix", "."]) == 0
    assert (path.read_text(), other.read_text()) == (HEAD + "GOOD\n", HEAD + "BAD\n")
    assert "a.py: 1 other hard link to it had the same text and keep" in capsys.readouterr().err


@pytest.fixture
def attributed() -> Iterator[Path]:
    path = write("a.py", HEAD + "BAD\n")
    try:
        os.setxattr(path, "user.note", b"mine")
    except (AttributeError, OSError):
        pytest.skip("no extended attributes here")
    yield path


def test_extended_attributes_are_kept(attributed: Path) -> None:
    assert cli.main(["--fix", "."]) == 0
    assert attributed.read_text() == HEAD + "GOOD\n"
    assert os.getxattr(attributed, "user.note") == b"mine"


def test_a_file_whose_attributes_cannot_be_kept_is_not_fixed(
    attributed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    assert cli.main(["--fix", "."]) == 1
    assert attributed.read_text() == HEAD + "BAD\n"
    assert "operation not supported" in capsys.readouterr().out


def test_a_baseline_that_is_a_link_is_not_written(here: Path) -> None:
    (here / "target").write_text("{}")
    Path("b.json").symlink_to(here / "target")
    with pytest.raises(ConfigError, match="is a symbolic link; name the file"):
        baseline.save(baseline.Baseline(), Path("b.json"))
    assert (here / "target").read_text() == "{}"
