"""The cache: what it remembers, and that nothing bad comes of one that is damaged or hostile."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from precision_lint import cache, gathering, source
from precision_lint.api import Confidence
from precision_lint.cache import DIRECTORY, Cache, digest
from precision_lint.cli import main
from precision_lint.engine import Engine, Facts
from precision_lint.plain import decode, encode
from precision_lint.project import contents
from precision_lint.runner import Result
from tests import projects

KEY = digest(b"key")
TEXT = '{"some": "text"}'
TODAY = int(time.time() // 86400)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / DIRECTORY


def get(home: Path, keys: Iterable[bytes]) -> dict[bytes, Any]:
    with closing(Cache(home)) as table:
        return table.get(keys)


def put(home: Path, values: Mapping[bytes, Any]) -> None:
    with closing(Cache(home)) as table:
        table.put(values)


def rows(home: Path) -> list[tuple[bytes, bytes, int]]:
    with sqlite3.connect(home / "facts.sqlite3") as table:
        found = table.execute("SELECT key, value, day FROM facts").fetchall()
    table.close()
    return found


def store(home: Path, value: Any, day: Any = TODAY) -> None:
    with sqlite3.connect(home / "facts.sqlite3") as table:
        table.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (KEY, value, day))
    table.close()


# values


def test_digests_tell_parts_apart() -> None:
    texts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), ()]
    assert len({digest(*parts) for parts in texts}) == len(texts)
    assert digest(b"ab", b"c") == digest(b"ab", b"c")


def test_another_version_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_version", lambda: b"another")
    assert digest(b"key") != KEY


def test_what_is_put_is_got_by_another_run(home: Path) -> None:
    keys = {digest(bytes([n])): value for n, value in enumerate([TEXT, "", "\u00e9\U0001f600"])}
    put(home, keys)
    assert get(home, keys) == keys
    assert get(home, [KEY]) == {}


def test_more_keys_than_one_question_holds(home: Path) -> None:
    many = {digest(str(n).encode()): str(n) for n in range(1200)}
    put(home, many)
    assert get(home, [*many, *many]) == many


def test_no_directory_remembers_nothing(tmp_path: Path) -> None:
    nothing = Cache(None)
    nothing.put({KEY: TEXT})
    assert nothing.get([KEY]) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_new_directory_is_marked(home: Path) -> None:
    put(home / "deep", {KEY: TEXT})
    assert (home / "deep" / ".gitignore").read_text() == "*\n"
    assert (home / "deep" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172")


def test_somebodys_directory_is_not_marked(home: Path) -> None:
    home.mkdir()
    put(home, {KEY: TEXT})
    assert not (home / ".gitignore").exists()
    assert get(home, [KEY]) == {KEY: TEXT}


def test_what_nobody_asks_for_expires(home: Path) -> None:
    put(home, {KEY: TEXT})
    store(home, TEXT, TODAY - 31)
    put(home, {digest(b"other"): TEXT})
    assert [key for key, _, _ in rows(home)] == [digest(b"other")]


def test_what_somebody_asks_for_stays(home: Path) -> None:
    put(home, {KEY: TEXT})
    store(home, TEXT, TODAY - 29)
    get(home, [KEY])
    assert [day for _, _, day in rows(home)] == [TODAY]


# damage


def damaged(home: Path) -> Iterator[str]:
    """Ways to spoil a table; yields the name of each after doing it."""
    file = home / "facts.sqlite3"
    whole = file.read_bytes()
    for name, data in {
        "empty": b"",
        "text": b"not a database\n" * 100,
        "cut": whole[: len(whole) // 2],
        "odd": whole[:100] + b"\xff" * (len(whole) - 100),
    }.items():
        for other in home.glob("facts.sqlite3-*"):
            other.unlink()
        file.write_bytes(data)
        yield name
    file.unlink()
    with sqlite3.connect(file) as table:
        table.execute("CREATE TABLE facts (something TEXT)")
    table.close()
    yield "of another shape"
    file.unlink()
    file.mkdir()
    yield "a directory"
    file.rmdir()
    yield "missing"


def test_damage_is_survived_and_repaired(home: Path) -> None:
    put(home, {digest(str(n).encode()): TEXT for n in range(200)})
    for name in damaged(home):
        assert get(home, [KEY]) == {}, name
        put(home, {KEY: TEXT})
        if name in ("empty", "text", "odd", "missing"):
            put(home, {KEY: TEXT})  # what was damaged is gone by now
            assert get(home, [KEY]) == {KEY: TEXT}, name


@pytest.mark.parametrize("day", [None, "yesterday", 1e300, b"\0", -(2**62)])
@pytest.mark.parametrize("value", [None, b"text", b"", b"\x80", pickle.dumps(b"")])
def test_odd_rows_are_passed_over(home: Path, value: Any, day: Any) -> None:
    put(home, {KEY: TEXT})
    store(home, value, day)
    assert get(home, [KEY]) == {}
    put(home, {KEY: TEXT})
    assert get(home, [KEY]) == {KEY: TEXT}


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("name", ["", "facts.sqlite3", "facts.sqlite3-wal"])
def test_nothing_is_read_or_written_through_a_link(tmp_path: Path, home: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere, {KEY: TEXT})
    before = sorted(elsewhere.iterdir())
    if name:
        put(home, {})
        home.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(elsewhere / name)
    else:
        home.symlink_to(elsewhere)
    assert get(home, [KEY]) == {}
    put(home, {digest(b"other"): TEXT})
    assert sorted(elsewhere.iterdir()) == before
    assert get(elsewhere, [KEY, digest(b"other")]) == {KEY: TEXT}


# several runs at once


def test_a_locked_table_is_not_waited_for_and_not_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, timeout: connect(file, timeout=0.01))
    put(home, {KEY: TEXT})
    other = connect(home / "facts.sqlite3")
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM facts WHERE day = 0")
    assert get(home, [KEY]) in ({}, {KEY: TEXT})
    put(home, {digest(b"other"): TEXT})
    other.rollback()
    other.close()
    assert get(home, [KEY]) == {KEY: TEXT}
    assert get(home, [digest(b"other")]) == {}


def test_processes_share_one_table(home: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from precision_lint.cache import Cache, digest\n"
        "for n in range(20):\n"
        "    cache = Cache(Path(sys.argv[1]))\n"
        "    cache.put({digest(f'{sys.argv[2]} {n}'.encode()): str(n)})\n"
        "    cache.get([digest(b'key')])\n"
        "    cache.close()\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, home, str(n)], stderr=subprocess.PIPE)
        for n in range(3)
    ]
    assert [child.communicate()[1] for child in children] == [b""] * 3
    assert len(rows(home)) == 60


def test_texts_that_were_overwritten_are_not_known(home: Path) -> None:
    """What writes over the file of a table may leave its structure whole, and change a text in it."""
    put(home, {KEY: "x" * 10_000})
    table = home / "facts.sqlite3"
    data = table.read_bytes()
    assert data.count(b"x" * 1000)
    table.write_bytes(data.replace(b"x" * 1000, b"y" * 1000, 1))
    assert get(home, [KEY]) == {}
    put(home, {KEY: TEXT})
    assert get(home, [KEY]) == {KEY: TEXT}


CHURN = (
    "import sys\n"
    "from pathlib import Path\n"
    "from precision_lint.cache import Cache, digest\n"
    "for n in range(100):\n"
    "    cache = Cache(Path(sys.argv[1]))\n"
    "    key = digest(str(n).encode())\n"
    "    assert cache.get([key]) in ({}, {key: 'x' * 10_000})\n"
    "    cache.put({key: 'x' * 10_000})\n"
    "    if n % 10 == 9:\n"
    "        (Path(sys.argv[1]) / 'facts.sqlite3').write_bytes(b'damage' * 1000)\n"
    "    cache.close()\n"
)


def test_damage_while_others_write_gives_nothing_wrong(home: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", CHURN, home], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [child.communicate()[1] for child in children] == [b""] * 2
    put(home, {KEY: TEXT})  # what was damaged is found out
    put(home, {KEY: TEXT})
    assert get(home, [KEY]) == {KEY: TEXT}


def lint(root: Path, *words: str) -> subprocess.Popen[str]:
    options = ("--isolated", "--output-format", "concise", "--confidence", "possible")
    command = [sys.executable, "-m", "precision_lint", *words, *options]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


def test_two_runs_at_once_find_the_same(tmp_path: Path) -> None:
    root = tmp_path / "project"
    users = {f"t{i}.py": TRAIN.replace("g(", f"g{i}(") for i in range(8)}
    projects.write(root, {"util.py": UTIL, **users})
    said = {run.communicate()[0] for run in [lint(root, ".") for _ in range(3)]}
    again = lint(root, ".").communicate()[0]
    assert said == {again} and "util.py:4:12: MP301" in again
    assert len(list((root / DIRECTORY).glob("facts.sqlite3"))) == 1


# clean


def test_clean_removes_what_runs_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    (root / "notes").mkdir()
    lint(root, ".").communicate()
    assert (root / DIRECTORY / "facts.sqlite3").is_file()
    assert main(["clean", str(root / "notes")]) == 0
    assert not (root / DIRECTORY).exists()
    assert main(["clean", str(root)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{root / DIRECTORY}: {what}" for what in ("removed", "nothing to remove")]


def test_clean_leaves_what_is_somebodys(tmp_path: Path, home: Path) -> None:
    put(home, {KEY: TEXT})
    (home / "mine.txt").write_text("kept")
    (home / ".gitignore").write_text("# kept\n")
    assert main(["clean", "--cache-dir", str(home), str(tmp_path)]) == 0
    assert sorted(path.name for path in home.iterdir()) == [".gitignore", "mine.txt"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_clean_follows_no_link(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "elsewhere", {KEY: TEXT})
    (tmp_path / "setup.cfg").touch()
    home.symlink_to(tmp_path / "elsewhere")
    assert main(["clean", str(tmp_path)]) == 2
    assert "is a link" in capsys.readouterr().err
    assert get(tmp_path / "elsewhere", [KEY]) == {KEY: TEXT}


# projects

UTIL = "import torch\n\ndef f(x):\n    return torch.log(x.sigmoid() + 1e-8)\n"
TRAIN = (
    "import torch\nfrom util import f\n\ndef g(model, x):\n"
    "    with torch.autocast('cuda'):\n        return f(model(x).half())\n"
)
FILES = {"util.py": UTIL, "train.py": TRAIN, "other.py": "import torch\n", "plain.py": "x = 1\n"}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are interpreted anew."""
    seen: list[str] = []
    real = Engine.facts

    def facts(engine: Engine, name: str) -> Facts:
        seen.append(name)
        return real(engine, name)

    monkeypatch.setattr(Engine, "facts", facts)
    return seen


def run(root: Path, home: Path | None, *names: str) -> Result:
    paths = [root / name for name in names] if names else [root]
    return projects.check(*paths, confidence=Confidence.POSSIBLE, cache_dir=home)


def test_only_what_changed_is_interpreted(
    tmp_path: Path, home: Path, interpreted: list[str]
) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    first = run(root, home).diagnostics
    assert [d.code for d in first] == ["MP301"]
    assert sorted(interpreted) == ["other.py", "train.py", "util.py"]
    interpreted.clear()
    assert run(root, home).diagnostics == first == run(root, None).diagnostics
    interpreted.clear()
    (root / "train.py").write_text(TRAIN + "# changed\n")
    assert run(root, home).diagnostics == first
    assert interpreted == ["train.py"]
    interpreted.clear()
    (root / "util.py").write_text("# changed\n" + UTIL)
    (moved,) = run(root, home).diagnostics
    assert moved.start.row == first[0].start.row + 1
    assert sorted(interpreted) == ["train.py", "util.py"]  # what imports it depends on it


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as one that was not changed lately."""
    monkeypatch.setattr(contents, "SETTLED", -(2**62))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are read to know what they hold."""
    seen: list[str] = []

    def load(path: str) -> Any:
        seen.append(Path(path).name)
        return source.load(path)

    monkeypatch.setattr(contents, "load", load)
    return seen


@pytest.mark.usefixtures("settled")
def test_files_are_read_again_when_their_status_changes(
    tmp_path: Path, home: Path, read: list[str], interpreted: list[str]
) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    first = run(root, home).diagnostics
    assert sorted(read) == sorted(FILES)
    read.clear()
    interpreted.clear()
    assert run(root, home).diagnostics == first
    assert read == interpreted == []
    util = root / "util.py"
    before = util.stat()
    util.write_text(UTIL.replace("1e-8", "1e-1"))  # as long as it was
    os.utime(util, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run(root, home).diagnostics == []
    assert read == ["util.py"]
    assert sorted(interpreted) == ["train.py", "util.py"]


def test_files_that_changed_lately_are_read_again(
    tmp_path: Path, home: Path, read: list[str]
) -> None:
    projects.write(tmp_path / "project", FILES)
    for _ in range(2):
        read.clear()
        run(tmp_path / "project", home)
        assert sorted(read) == sorted(FILES)


def test_only_what_a_file_rests_on_counts(
    tmp_path: Path, home: Path, interpreted: list[str]
) -> None:
    """Imports go in a circle; what is used of them does not."""
    root = tmp_path / "project"
    projects.write(root, {**FILES, "util.py": f"{UTIL}\ndef late():\n    import train\n"})
    first = run(root, home).diagnostics
    interpreted.clear()
    (root / "train.py").write_text(f"{TRAIN}# changed\n")
    assert run(root, home).diagnostics == first
    assert interpreted == ["train.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "torch>=2.4\n"),
        ("train.yaml", "trainer:\n  precision: bf16-mixed\n"),
        ("new.py", "from util import f\nimport torch\nwith torch.autocast('cuda'):\n    f(1)\n"),
    ],
)
def test_all_that_findings_follow_from_counts(
    tmp_path: Path, home: Path, name: str, text: str
) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    before = run(root, home)
    (root / name).write_text(text)
    assert run(root, home).diagnostics == run(root, None).diagnostics
    (root / name).unlink()
    assert run(root, home).diagnostics == before.diagnostics


def test_a_run_asks_for_what_it_shows(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    for confidence in (*Confidence, *Confidence):
        shown = projects.check(root, confidence=confidence, cache_dir=home)
        fresh = projects.check(root, confidence=confidence)
        assert (shown.diagnostics, shown.hidden) == (fresh.diagnostics, fresh.hidden)
        assert shown.sources == fresh.sources


def test_a_file_alone_is_judged_as_among_others(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    for cached in (None, home, home):
        assert run(root, cached, "util.py").diagnostics == run(root, None).diagnostics


def test_a_new_file_changes_what_an_import_means(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, {**FILES, "pkg/util.py": UTIL, "pkg/train.py": TRAIN})
    first = projects.found(run(root, home))
    assert first == ["util.py:4 MP301", "util.py:4 MP301"]
    (root / "pkg/util.py").unlink()
    assert projects.found(run(root, home)) == ["util.py:4 MP301"]


def test_findings_survive_the_cache_whole(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    for diagnostic in run(root, None).diagnostics:
        assert diagnostic.fix is not None and diagnostic.evidence
        text = encode([diagnostic], [diagnostic])
        assert decode(text, diagnostic.filename) == ([diagnostic], [diagnostic])
    assert run(root, home).diagnostics == run(root, home).diagnostics


@pytest.mark.parametrize(
    "value", ["text", "5", "[]", "{}", "null", "[{}]", '{"files": 1}', "[[1]]"]
)
def test_a_value_of_another_kind_is_computed_anew(tmp_path: Path, home: Path, value: str) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    right = run(root, home).diagnostics
    whole = f"{zlib.crc32(value.encode()):08x}{value}"
    with sqlite3.connect(home / "facts.sqlite3") as table:
        table.execute("UPDATE facts SET value = ?", (whole,))
    table.close()
    found = run(root, home).diagnostics
    assert found == right or value == "[]"


@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_names_that_are_no_text(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, {"util.py": UTIL})
    (root / os.fsdecode(b"caf\xe9.py")).write_text(TRAIN)
    for _ in range(2):
        assert projects.found(run(root, home)) == ["util.py:4 MP301"]


def test_files_that_cannot_be_read_count_as_empty(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "project"
    projects.write(root, FILES)
    (root / "broken.py").symlink_to("nowhere.py")
    (root / "syntax.py").write_text("import torch\nimport util\ndef f(:\n")
    (root / "bytes.py").write_bytes(b"import torch, util\n\xff\0")
    assert projects.found(run(root, home, "util.py")) == ["util.py:4 MP301"]


def test_processes_judge_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    users = {f"t{i}.py": TRAIN.replace("g(", f"g{i}(") for i in range(8)}
    projects.write(root, {"util.py": UTIL, **users})
    alone = run(root, None).diagnostics
    monkeypatch.setattr(gathering, "POOL_FROM", 1)
    both = projects.check(root, confidence=Confidence.POSSIBLE, workers=2)
    assert both.diagnostics == alone != []


def test_what_was_made_of_a_file_that_changed_meanwhile_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool.precision-lint]\n")
    file = Path("loss.py")
    text = "import torch\n\n\ndef f(x):\n    return torch.log(torch.sigmoid(x.half()) + 1e-8)\n"
    file.write_text(text)
    interpret = gathering._interpret

    def while_it_changes(*given: Any) -> Any:
        file.write_text(text.replace(".half()", ".float()"))
        return interpret(*given)

    monkeypatch.setattr(gathering, "_interpret", while_it_changes)
    main(["check", "loss.py"])
    monkeypatch.setattr(gathering, "_interpret", interpret)
    file.write_text(text)
    capsys.readouterr()
    main(["check", "loss.py", "--output-format", "concise"])
    kept = capsys.readouterr().out
    main(["check", "loss.py", "--output-format", "concise", "--no-cache"])
    assert kept == capsys.readouterr().out != ""
    assert "MP301" in kept
