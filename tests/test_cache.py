"""The cache: what it remembers, and that nothing bad comes of one that is damaged or hostile."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from precision_lint import cache
from precision_lint.cache import DIRECTORY, Cache, digest
from precision_lint.config import Settings
from precision_lint.project import amp
from precision_lint.project.amp import Survey
from precision_lint.project.files import below
from precision_lint.project.spellings import Statement
from precision_lint.semantics import gather as gathering
from precision_lint.semantics.gather import gather
from precision_lint.semantics.program import Program
from precision_lint.semantics.summary import Summary, summarise
from tests import projects

KEY = digest(b"key")
SUMMARY = summarise(
    b"import torch\nfrom a import b\n\nclass C(B):\n    def f(self, x=b):\n        b(x)\n"
    b"@torch.autocast('cuda')\ndef g():\n    return b()\n"
)
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
    monkeypatch.setattr(cache, "_VERSION", b"another")
    assert digest(b"key") != KEY


def test_what_is_put_is_got_by_another_run(home: Path) -> None:
    program = projects.linked(
        util="import torch\ndef f(x):\n    return x\n", train="from util import f\n"
    )
    keys = {digest(bytes([n])): value for n, value in enumerate([SUMMARY, Summary(), program])}
    put(home, keys)
    assert get(home, keys) == keys
    assert get(home, [KEY]) == {}


def test_more_keys_than_one_question_holds(home: Path) -> None:
    many = {digest(str(n).encode()): Summary(stars=(str(n),)) for n in range(1200)}
    put(home, many)
    assert get(home, [*many, *many]) == many


def test_no_directory_remembers_nothing(tmp_path: Path) -> None:
    nothing = Cache(None)
    nothing.put({KEY: SUMMARY})
    assert nothing.get([KEY]) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_new_directory_is_marked(home: Path) -> None:
    Cache(home / "deep").close()
    assert (home / "deep" / ".gitignore").read_text() == "*\n"
    assert (home / "deep" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172")


def test_somebodys_directory_is_not_marked(home: Path) -> None:
    home.mkdir()
    put(home, {KEY: SUMMARY})
    assert not (home / ".gitignore").exists()
    assert get(home, [KEY]) == {KEY: SUMMARY}


def test_what_nobody_asks_for_expires(home: Path) -> None:
    put(home, {KEY: SUMMARY})
    store(home, pickle.dumps(SUMMARY), TODAY - 31)
    put(home, {digest(b"other"): SUMMARY})
    assert [key for key, _, _ in rows(home)] == [digest(b"other")]


def test_what_somebody_asks_for_stays(home: Path) -> None:
    put(home, {KEY: SUMMARY})
    store(home, pickle.dumps(SUMMARY), TODAY - 29)
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
    put(home, {digest(str(n).encode()): SUMMARY for n in range(200)})
    for name in damaged(home):
        assert get(home, [KEY]) == {}, name
        put(home, {KEY: SUMMARY})
        if name in ("empty", "text", "odd", "missing"):
            put(home, {KEY: SUMMARY})  # what was damaged is gone by now
            assert get(home, [KEY]) == {KEY: SUMMARY}, name


@pytest.mark.parametrize("day", [None, "yesterday", 1e300, b"\0", -(2**62)])
@pytest.mark.parametrize("value", [None, 5, "text", b"", b"\x80", pickle.dumps(SUMMARY)[:-9]])
def test_odd_rows_are_passed_over(home: Path, value: Any, day: Any) -> None:
    put(home, {KEY: SUMMARY})
    store(home, value, day)
    assert get(home, [KEY]) == {}
    put(home, {KEY: SUMMARY})
    assert get(home, [KEY]) == {KEY: SUMMARY}


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize("name", ["os.system", "builtins.exec", "pathlib.Path", "subprocess.Popen"])
def test_a_hostile_value_is_not_executed(home: Path, tmp_path: Path, name: str) -> None:
    proof = tmp_path / "proof"
    module, _, last = name.rpartition(".")
    function = getattr(sys.modules[module], last)
    argument = {
        "os.system": f"touch {proof}",
        "builtins.exec": f"open({str(proof)!r}, 'w')",
        "pathlib.Path": str(proof),
        "subprocess.Popen": ["touch", str(proof)],
    }[name]
    put(home, {KEY: SUMMARY})
    for value in (Hostile(function, argument), [Hostile(function, argument)]):
        store(home, pickle.dumps(value))
        assert get(home, [KEY]) == {}
    time.sleep(0.05)  # a process that was started would have run
    assert not proof.exists()


@pytest.mark.parametrize(
    "name",
    [
        "precision_lint.semantics.program.Path",
        "precision_lint.semantics.program.Module",
        "precision_lint.semantics.summary.summarise",
        "precision_lint.semantics.summary.ast.parse",
        "precision_lint.api.import_module",
        "precision_lint.api.Rule",
        "precision_lint.runner.Result",
        "builtins.getattr",
    ],
)
def test_only_records_come_out(home: Path, name: str) -> None:
    module, _, last = name.partition(".ast.") if ".ast." in name else name.rpartition(".")
    last = f"ast.{last}" if ".ast." in name else last
    put(home, {KEY: SUMMARY})
    text = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode()
    text += b"\x8c" + bytes([len(last)]) + last.encode() + b"\x93."
    store(home, text)
    assert get(home, [KEY]) == {}


# several runs at once


def test_a_locked_table_is_not_waited_for_and_not_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, timeout: connect(file, timeout=0.01))
    put(home, {KEY: SUMMARY})
    other = connect(home / "facts.sqlite3")
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM facts WHERE day = 0")
    assert get(home, [KEY]) in ({}, {KEY: SUMMARY})
    put(home, {digest(b"other"): SUMMARY})
    other.rollback()
    other.close()
    assert get(home, [KEY]) == {KEY: SUMMARY}
    assert get(home, [digest(b"other")]) == {}


def test_processes_share_one_table(home: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from precision_lint.cache import Cache, digest\n"
        "from precision_lint.semantics.summary import Summary\n"
        "for n in range(20):\n"
        "    cache = Cache(Path(sys.argv[1]))\n"
        "    cache.put({digest(f'{sys.argv[2]} {n}'.encode()): Summary(stars=(str(n),))})\n"
        "    cache.get([digest(b'key')])\n"
        "    cache.close()\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, home, str(n)], stderr=subprocess.PIPE)
        for n in range(3)
    ]
    assert [child.communicate()[1] for child in children] == [b""] * 3
    assert len(rows(home)) == 60


# projects

UTIL = "import torch\n\ndef f(x):\n    return x\n"
TRAIN = "import torch\nfrom util import f\n\n@torch.autocast('cuda')\ndef g(x):\n    f(x)\n"


@pytest.fixture
def summarised(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The contents that are summarised anew."""
    seen: list[bytes] = []

    def counted(data: bytes) -> Summary:
        seen.append(data)
        return summarise(data)

    monkeypatch.setattr(gathering, "summarise", counted)
    return seen


def program(root: Path, home: Path | None) -> Program:
    with closing(Cache(home)) as table:
        return gather(root, below(root, Settings()), table, 1)


def test_only_what_changed_is_summarised(
    tmp_path: Path, home: Path, summarised: list[bytes]
) -> None:
    projects.write(tmp_path, {"util.py": UTIL, "train.py": TRAIN, "plain.py": "x = 1\n"})
    first = program(tmp_path, home)
    assert sorted(summarised) == sorted([UTIL.encode(), TRAIN.encode()])
    summarised.clear()
    assert program(tmp_path, home) == first
    assert summarised == []
    (tmp_path / "util.py").write_text(UTIL + "# changed\n")
    again = program(tmp_path, home)
    assert [data.endswith(b"# changed\n") for data in summarised] == [True]
    assert again.callers == first.callers
    (tmp_path / "train.py").rename(tmp_path / "other.py")
    summarised.clear()
    moved = program(tmp_path, home)
    assert summarised == []
    assert {site.file for sites in moved.callers.values() for site in sites} == {"other.py"}


def test_a_cached_program_is_the_computed_one(tmp_path: Path, home: Path) -> None:
    projects.write(tmp_path, {"util.py": UTIL, "train.py": TRAIN})
    cold, warm = program(tmp_path, home), program(tmp_path, home)
    assert cold == warm == program(tmp_path, None)
    assert warm.resolve("util.f", "train.py") == ("util.py", "f")


@pytest.mark.parametrize("value", ["text", 5, (), {"util.py": 1}, Summary()])
def test_a_value_of_another_kind_is_computed_anew(tmp_path: Path, home: Path, value: Any) -> None:
    projects.write(tmp_path, {"util.py": UTIL, "train.py": TRAIN})
    right = program(tmp_path, home)
    with sqlite3.connect(home / "facts.sqlite3") as table:
        table.execute("DELETE FROM facts WHERE length(value) > 100000")
        for key, kept, _ in rows(home):
            other = isinstance(value, Summary) and b"Summary" in kept
            if not other:
                table.execute(
                    "UPDATE facts SET value = ? WHERE key = ?", (pickle.dumps(value), key)
                )
    table.close()
    assert program(tmp_path, home) == right


@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_names_that_are_no_text(tmp_path: Path, home: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    projects.write(tmp_path, {"util.py": UTIL})
    (tmp_path / name).write_text(TRAIN)
    for _ in range(2):
        (site,) = program(tmp_path, home).callers["util.py", "f"]
        assert site.file == name


def test_files_that_cannot_be_read_count_as_empty(tmp_path: Path) -> None:
    projects.write(tmp_path, {"util.py": UTIL, "train.py": TRAIN})
    (tmp_path / "broken.py").symlink_to("nowhere.py")
    (tmp_path / "syntax.py").write_text("import torch\ndef f(:\n")
    (tmp_path / "bytes.py").write_bytes(b"import torch\n\xff\0")
    paths = [*below(tmp_path, Settings()), tmp_path / "gone.py", tmp_path.parent / "outside.py"]
    made = gather(tmp_path, paths, Cache(None), 1)
    assert set(made.callers) == {("util.py", "f")}
    assert "outside.py" not in "".join(made.files)


def test_processes_summarise_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects.write(
        tmp_path,
        {"util.py": UTIL, **{f"t{i}.py": TRAIN.replace("g(", f"g{i}(") for i in range(8)}},
    )
    alone = program(tmp_path, None)
    monkeypatch.setattr(gathering, "POOL_FROM", 1)
    assert gather(tmp_path, below(tmp_path, Settings()), Cache(None), 2) == alone
    assert len(alone.callers["util.py", "f"]) == 8


# evidence of half precision


def survey(root: Path, home: Path) -> Survey:
    with closing(Cache(home)) as table:
        return Survey.scan(root, sorted(root.iterdir()), table)


SAYS = {"train.py": "import torch\nmodel.half()\n", "conf.yaml": "use_amp: true\n"}


def test_evidence_is_read_again_only_where_bytes_changed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    projects.write(root, SAYS)
    first = survey(root, home)
    assert first.around(root / "a.py").half and first.around(root / "a.py").autocast
    read: list[str] = []
    known = amp.statements

    def statements(filename: str, data: bytes) -> list[Statement]:
        read.append(Path(filename).name)
        return known(filename, data)

    monkeypatch.setattr(amp, "statements", statements)
    assert survey(root, home) == first and read == []
    (root / "conf.yaml").write_text("use_amp: false\n")
    assert survey(root, home).around(root / "a.py").autocast is None
    assert read == ["conf.yaml"]


@pytest.mark.parametrize("value", ["text", None, ["text"], {"half": 1}, (1, 2)])
def test_evidence_of_another_kind_is_read_anew(tmp_path: Path, home: Path, value: Any) -> None:
    root = tmp_path / "project"
    projects.write(root, SAYS)
    right = survey(root, home)
    put(home, {key: value for key, _, _ in rows(home)})
    assert survey(root, home) == right
