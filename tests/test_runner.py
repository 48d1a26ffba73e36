"""The way of a file from its bytes to diagnostics, thresholds and fixes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from precision_lint import engine, gathering, judging, pool, progress, runner, source
from precision_lint.api import Confidence, Severity
from precision_lint.config import Overrides, Resolver, Settings
from precision_lint.engine import Told
from precision_lint.jobs import Mode
from precision_lint.project.code import Code
from precision_lint.runner import Result
from tests import standins

ROOT = Path(__file__).parent.parent
HEAD = "import torch\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    standins.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)  # a worker that is not forked imports this module
    return tmp_path


def write(**texts: str) -> None:
    """``a__b="BAD"`` writes a/b.py, which imports torch and has the text as a name."""
    for name, text in texts.items():
        path = Path(name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text + "\n")


def check(
    *paths: str, mode: Mode = Mode.CHECK, workers: int | None = 1, **overrides: Any
) -> Result:
    resolver = Resolver(Overrides(**overrides))
    return runner.check(map(Path, paths or (".",)), resolver, mode=mode, workers=workers)


def codes(result: Result) -> list[str]:
    return [f"{d.filename}:{d.start.row}:{d.start.column} {d.code}" for d in result.diagnostics]


def test_diagnostics_are_sorted_and_their_sources_kept() -> None:
    write(b="x = ODD, BAD\nBAD", a="BAD", clean="fine")
    result = check()
    assert codes(result) == [
        "a.py:2:1 MP911",
        "b.py:2:5 MP912",
        "b.py:2:10 MP911",
        "b.py:3:1 MP911",
    ]
    assert set(result.sources) == {"a.py", "b.py"}
    assert result.sources["a.py"].text == HEAD + "BAD\n"
    assert (result.files, result.lines, result.failing) == (3, 7, 4)


def test_lines_count_a_last_one_without_newline() -> None:
    Path("a.py").write_bytes(b"x\ny")
    Path("b.py").write_bytes(b"x\ny\n")
    Path("c.py").write_bytes(b"")
    assert check().lines == 4


# thresholds


def test_confidence_hides_and_counts() -> None:
    write(a="MAYBE\nODD\nBAD")
    assert (len(check().diagnostics), check().hidden) == (2, {"possible": 1})
    certain = check(confidence=Confidence.CERTAIN)
    assert (codes(certain), certain.hidden) == (["a.py:4:1 MP911"], {"likely": 1, "possible": 1})
    everything = check(confidence=Confidence.POSSIBLE)
    assert (len(everything.diagnostics), everything.hidden) == (3, {})


@pytest.mark.parametrize(
    ("level", "failing"), [(Severity.INFO, 3), (Severity.WARNING, 2), (Severity.ERROR, 1)]
)
def test_fail_on(level: Severity, failing: int) -> None:
    write(a="MEH\nODD\nBAD")
    result = check(fail_on=level)
    assert (len(result.diagnostics), result.failing) == (3, failing)


def test_thresholds_are_those_of_each_file() -> None:
    write(a__m="ODD", b__m="ODD")
    Path("a/precision-lint.toml").write_text('fail-on = "error"\n')
    Path("b/precision-lint.toml").write_text('confidence = "certain"\n')
    result = check()
    assert codes(result) == ["a/m.py:2:1 MP912"]
    assert (result.failing, result.hidden) == (0, {"likely": 1})


def test_selection_and_per_file_ignores() -> None:
    write(a="BAD\nODD", old__a="BAD\nODD")
    Path("precision-lint.toml").write_text('per-file-ignores = { "old" = ["bad-word"] }\n')
    assert codes(check()) == [
        "a.py:2:1 MP911",
        "a.py:3:1 MP912",
        "old/a.py:3:1 MP912",
    ]
    assert codes(check(select=("MP911",))) == ["a.py:2:1 MP911"]


# what is looked at


def test_syntax_errors_are_reported_where_torch_is_mentioned() -> None:
    Path("a.py").write_text("import torch\ndef f(:\n")
    Path("b.py").write_text("def f(:\n")
    result = check()
    assert codes(result) == ["a.py:2:7 MP002"]
    assert result.failing == 1
    assert codes(check(ignore=("MP002",))) == []


def test_unreadable_files_are_reported_and_others_linted() -> None:
    Path("broken.py").symlink_to("nowhere.py")
    Path("loop.py").symlink_to("loop.py")
    Path("latin.py").write_bytes(b"# \xe9\n")
    Path("nul.py").write_bytes(b"x = 1\n\0")
    Path("empty.py").touch()
    Path("blank.py").write_text("\n\n")
    write(m="BAD")
    assert codes(check()) == [
        "broken.py:1:1 MP001",
        "latin.py:1:3 MP001",
        "loop.py:1:1 MP001",
        "m.py:2:1 MP911",
        "nul.py:2:1 MP002",
    ]


NEIGHBOURS = [
    ("bad.py", b"# coding: idna\nimport torch  # \xc3\xa9\n"),
    ("bad.py", b"import torch\n" + b"(" * 100_000),
    ("bad.py", b"import torch\nx = " + b"-" * 100_000 + b"1\n"),
    ("bad.py", b"import torch\nx = " + b"9" * 100_000 + b"\n"),
    ("bad.py", b"import torch  # precision-lint: ignore[MP301]\0\n"),
    ("bad.py", b"import torch\ndef f(x: '1if 2else 3', y: '\\0', z: '" + b"(" * 999 + b"'): x\n"),
    ("bad.ipynb", b"[" * 100_000 + b"torch"),
    ("bad.ipynb", b'{"cells": [{"cell_type": "code", "source": "import torch\\ud800"}]}'),
    ("requirements.txt", b"torch>=" + b"9" * 6_000),
    ("setup.py", b"torch" + b"(" * 100_000),
    ("setup.py", b"x = 1if 2else 3\nurl = '\\d torch'\n"),
    ("setup.cfg", b"[options]\n[options]\ntorch\0"),
    ("pyproject.toml", b"[project]\ndependencies = ['torch>=" + b"9" * 6_000 + b"']"),
    ("config.json", b'{"fp16": ' * 5_000 + b"1" + b"}" * 5_000),
    ("config.yaml", b"fp16: " + b"[" * 100_000),
    ("config.yaml", b"fp16: &a [*a, *a]\n\0"),
    (".gitignore", b"[\n[z-a]\n\\\n\xff\n"),
]


@pytest.mark.parametrize(("name", "data"), NEIGHBOURS, ids=[name for name, _ in NEIGHBOURS])
def test_a_bad_file_costs_no_other_file_its_findings(
    name: str, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    write(good="import bad\nBAD")
    Path(name).write_bytes(data)
    for paths in ((), ("good.py",)):
        assert [d.code for d in check(*paths).diagnostics if d.filename == "good.py"] == ["MP911"]
    assert capfd.readouterr() == ("", "")


def test_a_defect_of_the_reader_costs_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = source.decode

    def failing(data: bytes, filename: str) -> source.Source | source.Failure:
        if b"odd" in data:
            raise LookupError("no such thing")
        return decode(data, filename)

    monkeypatch.setattr(source, "decode", failing)
    write(a="import b\nBAD", b="import a\nodd", c="BAD")
    assert codes(check()) == ["a.py:3:1 MP911", "b.py:1:1 MP003", "c.py:2:1 MP911"]


def test_rules_do_not_see_files_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a file without torch was analysed")

    monkeypatch.setattr(engine, "lint", never)
    Path("a.py").write_text("BAD = 'é'  # noqa: MP911\n")
    assert [d.code for d in check().diagnostics] == ["MP004"]


def test_projects_are_read_once_and_whole(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    read: list[tuple[str, list[str]]] = []
    real = Code.of

    def of(root: Path, settings: Settings, named: Iterable[Path] = (), index: Any = None) -> Code:
        code = real(root, settings, named)
        read.append((root.name, sorted(code.layout.paths)))
        return code

    monkeypatch.setattr(Code, "of", of)
    write(p__a="BAD", p__sub__b="BAD", p__other="fine", r__d="ODD", r__venv__e="ODD")
    Path("q").mkdir()
    Path("q", "c.py").write_text("no tensors")
    for root in "pqr":
        Path(root, "setup.py").touch()
    check("p/a.py", "p/sub", "q", "r", "r/venv/e.py")
    assert read == [
        ("p", ["a.py", "other.py", "setup.py", "sub/b.py"]),
        # nothing in q is about torch; r/venv is excluded, and yet was named
        ("r", ["d.py", "setup.py", "venv/e.py"]),
    ]


def test_a_file_is_judged_by_what_its_importers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        p__loss="def loss(x):\n    return x",
        p__train=(
            "from loss import loss\ndef f(x):\n    with torch.autocast('cuda'):\n"
            "        loss(x.model(x)).backward()"
        ),
        q__loss="def loss(x):\n    return x",
    )
    for root in "pq":
        Path(root, "setup.py").touch()
    seen = {}

    def lint(source: Any, code: Any, name: str, known: Told, *_: Any) -> list[Any]:
        seen[source.filename] = {mode: found[0].name for mode, found in known.force.modes.items()}
        return []

    monkeypatch.setattr(engine, "lint", lint)
    check()
    assert seen == {"p/loss.py": {1: "IMPORTER"}, "p/train.py": {1: "FILE"}, "q/loss.py": {}}


def test_the_collector_is_off_during_analysis_only(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = []

    def lint(*_: object) -> list[Any]:
        enabled.append(gc.isenabled())
        raise ValueError

    monkeypatch.setattr(engine, "lint", lint)
    write(a="BAD")
    check()
    assert enabled == [False]
    assert gc.isenabled()


def test_deep_trees_may_be_walked_recursively(monkeypatch: pytest.MonkeyPatch) -> None:
    def depth(levels: int) -> int:
        return 1 + depth(levels - 1) if levels else 0

    def lint(*_: object) -> list[Any]:
        assert depth(4000) == 4000
        return []

    limit = sys.getrecursionlimit()
    write(a="BAD")
    monkeypatch.setattr(engine, "lint", lint)
    assert codes(check()) == []
    assert sys.getrecursionlimit() == limit


# suppressions


def test_suppressions_are_obeyed_and_unused_ones_reported() -> None:
    write(a="BAD  # noqa: MP911\nfine  # noqa: MP911\nMAYBE  # noqa: MP922")
    result = check()
    assert codes(result) == ["a.py:3:7 MP004"]
    assert not result.hidden  # a hidden finding can be suppressed too
    assert codes(check(select=("MP9",))) == []
    assert codes(check(select=("MP004",))) == []  # a rule that is off is not known to be silent


# failures of the tool


def test_a_crash_costs_one_file() -> None:
    write(a="BAD", b="CRASH", c="BAD")
    result = check()
    assert codes(result) == ["a.py:2:1 MP911", "b.py:1:1 MP003", "c.py:2:1 MP911"]
    assert result.internal
    message = result.diagnostics[1].message
    assert message.startswith("the analysis failed with KeyError: 'CRASH' (standins.py:")
    assert "\n" not in message


def test_a_crash_of_a_rule_is_neither_hidden_nor_suppressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = judging.crash("a.py", ValueError())  # as rules make them
    monkeypatch.setattr(engine, "lint", lambda *_: [crash])
    Path("a.py").write_text("torch  # noqa\n# precision-lint: ignore-file\n")
    result = check(ignore=("MP003",), confidence=Confidence.CERTAIN)
    assert result.diagnostics == [crash]
    assert result.internal


def test_a_crash_cannot_be_ignored_or_suppressed() -> None:
    write(a="CRASH  # noqa\n# precision-lint: ignore-file")
    assert check(ignore=("MP003", "MP91"), confidence=Confidence.CERTAIN).internal


# fixes


def test_fix_writes_safe_fixes() -> None:
    write(a="BAD  # why BAD\nODD", b="ODD", c="fine")
    result = check(mode=Mode.FIX)
    assert Path("a.py").read_text() == HEAD + "GOOD  # why GOOD\nODD\n"
    assert codes(result) == ["a.py:3:1 MP912", "b.py:2:1 MP912"]
    assert [d.code for d in result.fixed] == ["MP911", "MP911"]
    assert result.sources["a.py"].text == Path("a.py").read_text()
    assert check(mode=Mode.FIX).fixed == []


def test_unsafe_fixes_are_added() -> None:
    write(a="BAD\nODD")
    result = check(mode=Mode.FIX, unsafe_fixes=True)
    assert Path("a.py").read_text() == HEAD + "GOOD\nEVEN\n"
    assert (len(result.fixed), result.diagnostics, result.failing) == (2, [], 0)


def test_suppressed_and_hidden_findings_are_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standins.BadWord, "confidence", Confidence.POSSIBLE)
    write(a="BAD", b="ODD  # noqa: MP912")
    check(mode=Mode.FIX, unsafe_fixes=True)
    assert Path("a.py").read_text() == HEAD + "BAD\n"
    assert Path("b.py").read_text() == HEAD + "ODD  # noqa: MP912\n"


def test_unused_suppressions_are_removed() -> None:
    write(a="fine  # noqa: MP911")
    check(mode=Mode.FIX)
    assert Path("a.py").read_text() == HEAD + "fine\n"


def test_diff_writes_nothing() -> None:
    write(a="BAD", b="ODD")
    result = check(mode=Mode.DIFF)
    assert b"-BAD\n+GOOD\n" in result.diff
    assert b"b.py" not in result.diff
    assert len(result.fixed) == 1
    assert Path("a.py").read_text() == HEAD + "BAD\n"


def test_a_file_that_cannot_be_written_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    write(a="BAD", b="BAD")

    def lint(source: Any, *rest: Any) -> list[Any]:
        if source.filename == "a.py":  # somebody else saves the file meanwhile
            Path("a.py").write_text(HEAD + "changed\n")
        return standins.lint(source, *rest)

    monkeypatch.setattr(engine, "lint", lint)
    result = check(mode=Mode.FIX)
    assert codes(result) == ["a.py:1:1 MP001", "a.py:2:1 MP911"]
    assert result.failing == 2
    assert Path("a.py").read_text() == HEAD + "changed\n"
    assert Path("b.py").read_text() == HEAD + "GOOD\n"
    assert [d.filename for d in result.fixed] == ["b.py"]


@pytest.mark.skipif(os.name == "nt", reason="no pipes with names on Windows")
def test_a_pipe_does_not_stop_the_run() -> None:
    write(a="torch.log(torch.rand(3))")  # worth the search for half precision in the project
    os.mkfifo("pipe.py")
    program = "from precision_lint.cli import main; raise SystemExit(main(['.']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert b"pipe.py:1:1: error[MP001]" in done.stdout


# standard input


def stdin(text: bytes, name: str | None = None, mode: Mode = Mode.CHECK, **said: Any) -> Result:
    path = Path(name) if name else None
    return runner.check_stdin(text, path, Resolver(Overrides(**said)), mode=mode)


def test_stdin() -> None:
    result = stdin(b"import torch\nBAD\n")
    assert codes(result) == ["-:2:1 MP911"]
    assert result.sources["-"].text == "import torch\nBAD\n"
    assert (result.files, result.failing) == (1, 1)


def test_stdin_has_the_settings_of_its_name() -> None:
    Path("a").mkdir()
    Path("a/precision-lint.toml").write_text('ignore = ["MP911"]\n')
    assert codes(stdin(b"torch, BAD, ODD", "a/new.py")) == ["a/new.py:1:13 MP912"]


def test_stdin_is_fixed_in_its_encoding() -> None:
    text = "# coding: latin-1\r\nimport torch\r\nBAD = 'é'".encode("latin-1")
    result = stdin(text, mode=Mode.FIX)
    assert result.stdin == text.replace(b"BAD", b"GOOD")
    assert stdin(text).stdin == text


def test_stdin_of_an_excluded_name_passes_through() -> None:
    text = b"torch, BAD"
    assert codes(stdin(text, "build/a.py"))
    forced = stdin(text, "build/a.py", Mode.FIX, force_exclude=True)
    assert (forced.stdin, forced.diagnostics) == (text, [])


# processes


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(gathering, "POOL_FROM", 8)
    for number in range(40):
        bad = number % 3 == 0
        Path(f"m{number:02}.py").write_text("import torch\n" + "def f(:\n" * bad)
    return 40


def test_processes_find_what_one_finds(many: int) -> None:
    alone, together = check(workers=1), check(workers=2)
    assert len(together.diagnostics) == 14
    assert together.diagnostics == alone.diagnostics
    assert together.sources == alone.sources
    assert together.lines == alone.lines


def test_few_files_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "run", lambda *_, **__: pytest.fail("a process was started"))
    write(a="BAD", b="BAD")
    assert len(check(workers=4).diagnostics) == 2


def work(items: Sequence[int], state: dict[str, list[int]]) -> list[Any]:
    """Doubles; for ``pool.run``."""
    answers: list[Any] = []
    for item in items:
        if item in state["die"]:
            os._exit(9)
        if item in state["raise"]:
            raise ValueError(item)
        answers.append((lambda: None) if item in state["unsendable"] else 2 * item)
    return answers


def pooled(count: int = 100, **state: Any) -> list[Any]:
    empty: dict[str, Any] = {"die": [], "raise": [], "unsendable": []}
    return pool.run(work, range(count), empty | state, lost=lambda item: -item, workers=2)


def test_items_count_as_their_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def answered(_: object, items: Sequence[int], *__: object) -> Iterator[list[int]]:
        for item in items:
            told.append(item)
            yield [item]

    monkeypatch.setattr(pool, "_pass", answered)
    monkeypatch.setattr(progress, "step", lambda: told.append("done"))
    pool.run(work, [1, 2], None, lost=int, workers=2)
    assert told == [1, "done", 2, "done"]


def test_pool_keeps_order() -> None:
    assert pooled() == [2 * item for item in range(100)]
    assert pooled(1) == [0]
    assert pooled(0) == []


@pytest.mark.parametrize("how", ["die", "raise", "unsendable"])
def test_pool_loses_only_what_failed(how: str) -> None:
    failed = [5, 6, 77]
    state: dict[str, Any] = {how: failed}
    answers = pooled(100, **state)
    assert answers == [-item if item in failed else 2 * item for item in range(100)]


@pytest.mark.skipif(os.name == "nt", reason="no such signals on Windows")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_leave_with_their_parent(here: Path, ending: int) -> None:
    code = (
        "import pathlib, signal, time\n"
        "from precision_lint import pool\n"
        "def work(items, state):\n"
        "    pathlib.Path(f'worker-{items[0]}').touch()\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it\n"
        "    pool.run(work, [0, 1], None, lost=str, workers=2)\n"
    )
    Path("main.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "main.py"], stderr=subprocess.PIPE, env=environment)
    until(lambda: len(list(here.glob("worker-*"))) == 2)
    parent.send_signal(ending)
    parent.communicate(timeout=60)  # ends when no worker holds the pipe any more


def until(done: Callable[[], bool]) -> None:
    """Wait for another process."""
    for _ in range(600):
        if done():
            return
        time.sleep(0.05)
    pytest.fail("it does not happen")


def test_pool_does_without_processes_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import concurrent.futures

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", refuse)
    assert pooled(3) == [0, 2, 4]


def test_a_worker_that_dies_costs_one_file(many: int) -> None:
    # in a process of its own: the stand-in must be there when workers are forked
    if sys.platform != "linux":
        pytest.skip("workers are forked on Linux only")
    write(m05="DIE")
    code = (
        "import json, multiprocessing, pytest\n"
        "from pathlib import Path\n"
        "multiprocessing.set_start_method('fork')\n"
        "from precision_lint import gathering, runner\n"
        "from precision_lint.config import Resolver\n"
        "from tests import standins\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    standins.install(patch)\n"
        "    patch.setattr(gathering, 'POOL_FROM', 8)\n"
        "    result = runner.check([Path('.')], Resolver(), workers=2)\n"
        "    print(json.dumps([(d.filename, d.code, d.message) for d in result.diagnostics]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert [name for name, code, _ in found if code == "MP003"] == ["m05.py"]
    assert "its process ended without an answer" in str(found)
    assert len(found) == 15


@pytest.mark.parametrize(
    "weights", [[1], [5, 1, 1, 1], [1] * 500, [*range(300)], [9_000, *[1] * 99]]
)
@pytest.mark.parametrize("workers", [2, 8])
def test_batches_weigh_about_as_much(weights: list[int], workers: int) -> None:
    parts = pool.batches(weights, workers)
    assert sorted(index for part in parts for index in part) == list(range(len(weights)))
    weighed = [sum(weights[index] for index in part) for part in parts]
    assert weighed == sorted(weighed, reverse=True)
    most = max(1, sum(weights) // (pool.PARTS * workers))
    assert all(len(part) <= pool.BATCH for part in parts)
    assert all(
        len(part) == 1 or weight <= most for part, weight in zip(parts, weighed, strict=True)
    )
