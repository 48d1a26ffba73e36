"""The command line: what it prints where, and with which code it exits."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import precision_lint
from precision_lint import cli, registry
from tests import standins

HEAD = "import torch\n"


class Run:
    """Calls ``main`` and keeps what it wrote."""

    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capfd = capfd
        self.patch = patch
        self.out = self.err = ""

    def __call__(self, *args: str, stdin: bytes | None = None) -> int:
        if stdin is not None:
            self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(list(args))
        self.out, self.err = self.capfd.readouterr()
        return code


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    standins.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Run(capfd, monkeypatch)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + text + "\n")
    return path


# exit codes


@pytest.mark.parametrize(
    ("text", "args", "code"),
    [
        ("fine", ".", 0),
        ("MEH", ".", 0),
        ("MEH", "--fail-on info .", 1),
        ("ODD", ".", 1),
        ("ODD", "--fail-on error .", 0),
        ("MAYBE", ".", 0),
        ("MAYBE", "--confidence possible .", 1),
        ("BAD", ".", 1),
        ("BAD", "--exit-zero .", 0),
        ("BAD", "--ignore MP911 .", 0),
        ("BAD", "--select MP92,odd-word --select MP921 .", 0),
        ("BAD", "--select MP92 --extend-select MP911 .", 1),
        ("BAD", "--fix .", 0),
        ("ODD", "--fix .", 1),
        ("ODD", "--fix --unsafe-fixes .", 0),
        ("BAD", "--diff .", 1),
        ("BAD", "--diff --exit-zero .", 0),
        ("ODD", "--diff .", 0),
        ("ODD", "--diff --unsafe-fixes .", 1),
        ("def f(:", "--diff .", 1),
        ("BAD  # noqa: MP911", ".", 0),
        ("fine  # noqa: MP911", ".", 1),
        ("CRASH", ".", 2),
        ("CRASH", "--exit-zero .", 2),
        ("BAD", "missing.py", 2),
        ("fine", "missing.py --exit-zero", 2),
        ("BAD", "--exclude m.py,other .", 0),
        ("BAD", "--extend-exclude *.py .", 0),
        ("BAD", "m.py --exclude m.py", 1),
        ("BAD", "m.py --exclude m.py --force-exclude", 0),
    ],
)
def test_exit_codes(run: Run, text: str, args: str, code: int) -> None:
    write("m.py", text)
    assert run(*args.split()) == code


def test_missing_path_does_not_keep_others_from_being_linted(run: Run) -> None:
    write("m.py", "BAD")
    assert run("missing.py", "m.py") == 2
    assert run.err == "missing.py: no such file or directory; check the path\n"
    assert "m.py:2:1: error[MP911] bad-word" in run.out


def test_a_path_that_looks_like_a_command_is_a_path(run: Run) -> None:
    write("chekc/m.py", "BAD")
    assert run("chekc") == 1
    assert run("somewhere", "chekc") == 2
    assert run.err == "somewhere: no such file or directory; check the path\n"


def test_directory_without_python(run: Run) -> None:
    Path("docs").mkdir()
    assert run("docs") == 0
    assert run.err == "docs: no Python files; name a directory that has some\n"
    assert run.out == ""
    run("docs", "--quiet")
    assert run.err == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--selct", "MP9"], "No such option"),
        (["--confidence", "high"], "'high' is not one of 'possible', 'likely', 'certain'"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--select", "MP9x"], '--select: unknown rule "MP9x"; did you mean "MP9'),
        (["--config", "none.toml"], "none.toml: cannot be read (No such file or directory)"),
        (["--config", "x", "--isolated"], "--config and --isolated exclude each other"),
        (["-", "m.py"], "- stands alone; lint files in another run"),
        (["m.py", ""], "a path is empty; name a file or a directory"),
        (["--select", ","], "'--select': names nothing; leave it out or fill it in"),
        (["--stdin-filename", "x", "m.py"], "--stdin-filename names the text read from -"),
        (["explain", "bad-wrod"], 'unknown rule "bad-wrod"; did you mean "bad-word"?'),
        (["explain", "MP9"], 'unknown rule "MP9"; did you mean'),
        (["explain", "MP999"], 'unknown rule "MP999"; `precision-lint rules` lists'),
        (["--select", "MP999"], 'unknown rule "MP999"; `precision-lint rules` lists'),
        (["chekc", "m.py"], 'no command or path "chekc"; did you mean "check"?'),
        (["explan", "MP911"], 'no command or path "explan"; did you mean "explain"?'),
        (["--fix", "m.py", "none"], "none: no such file or directory; nothing was written"),
        (["--add-noqa", "legacy"], "legacy: no such file or directory; nothing was written"),
        (["baseline", "create", "none"], "none: no such file or directory; nothing was written"),
        (["baseline"], "Missing command"),
        (["explain"], "Missing argument 'CODE|NAME'"),
        (["explain-at"], "Missing argument 'FILE:LINE'"),
        (["explain-at", "m.py"], '"m.py" is not a place; write FILE:LINE'),
        (["verify", "--device", "tpu"], "'tpu' is not one of 'cpu', 'cuda'"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, args: list[str], message: str) -> None:
    write("m.py", "BAD")
    assert run(*args) == 2
    assert [path.name for path in Path().iterdir()] == ["m.py"]
    assert Path("m.py").read_text() == HEAD + "BAD\n"
    assert run.out == ""
    assert message in run.err
    assert run.err.count("\n") == 1
    assert run.out == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device"), "no space left on device; correct that and"),
        (PermissionError(13, "Permission denied", "a"), "a: permission denied; correct that and"),
        (KeyError("odd\nkey"), "test_cli.py:"),
    ],
)
def test_what_nobody_expected_is_one_line_and_no_finding(
    run: Run, error: Exception, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    run.patch.setattr("precision_lint.runner.check", fail)
    assert run(".") == 2
    assert line in run.err
    assert len(run.err.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="no such device on Windows")
def test_a_full_disk_is_not_a_finding(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import torch\nx = (\n")
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "precision_lint", "m.py"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"no space left on device; correct that and run again\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a directory in use cannot be removed there")
def test_a_working_directory_that_is_gone(run: Run, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture goes back
    gone.rmdir()
    assert run(".") == 2
    assert run.err == "working directory: no such file or directory; correct that and run again\n"


def test_closed_streams(run: Run) -> None:
    write("m.py", "BAD")
    run.patch.setattr(sys, "stdin", None)
    assert run("-") == 2
    assert run.err.startswith("standard input is closed; name a file")
    run.patch.setattr(sys, "stdout", None)
    assert run("m.py") == 1


def test_mistake_in_configuration_is_one_line(run: Run) -> None:
    write("a/m.py", "BAD")
    Path("a/precision-lint.toml").write_text("selct = []\n")
    assert run(".") == 2
    file = Path("a/precision-lint.toml").absolute()
    assert run.err == f'{file}:1: unknown key "selct"; did you mean "select"?\n'
    assert run("--isolated", ".") == 1


# what is printed


def test_default_command_and_path(run: Run) -> None:
    write("m.py", "BAD")
    for args in ([], ["check"], ["."], ["check", "m.py"], ["--isolated", "m.py"], ["--", "m.py"]):
        assert run(*args) == 1
        assert run.out.startswith("m.py:2:1: error[MP911] bad-word: BAD is hazardous\n")


def summary(run: Run) -> str:
    return run.out.rpartition("\n\n")[2].rstrip("\n")


@pytest.mark.parametrize(
    ("text", "args", "line"),
    [
        ("fine", [], "All checks passed!"),
        ("BAD", [], "Found 1 error (1 fixable with `--fix`)."),
        ("MEH", [], "Found 1 info finding."),
        (
            "BAD, BAD, ODD, MEH",
            [],
            "Found 2 errors, 1 warning, 1 info finding "
            "(2 fixable with `--fix`, 1 more with `--unsafe-fixes`).",
        ),
        ("ODD", [], "Found 1 warning (1 fixable with `--fix --unsafe-fixes`)."),
        ("BAD, ODD", ["--fix"], "Found 1 error, 1 warning (1 fixed, 1 remaining)."),
        (
            "MAYBE",
            [],
            "All checks passed!\n1 possible finding not shown; `--confidence possible` shows it.",
        ),
        (
            "MAYBE, MAYBE, MEH",
            [],
            "Found 1 info finding.\n2 possible findings not shown; `--confidence possible` shows them.",
        ),
    ],
)
def test_summary(run: Run, text: str, args: list[str], line: str) -> None:
    write("m.py", text)
    run(*args, "m.py")
    assert summary(run) == line
    assert run.err == ""


def test_quiet(run: Run) -> None:
    write("m.py", "BAD, MAYBE")
    assert run("-q", "m.py") == 1
    assert run.out.startswith("m.py:2:1: error[MP911]")
    assert "Found" not in run.out + run.err
    assert "not shown" not in run.out + run.err


def test_concise(run: Run) -> None:
    write("m.py", "BAD\nMEH")
    run("--output-format", "concise", "m.py")
    assert run.out == (
        "m.py:2:1: MP911 [*] BAD is hazardous\n"
        "m.py:3:1: MP921 MEH is hazardous\n"
        "Found 1 error, 1 info finding ([*] 1 fixable with `--fix`).\n"
    )


def test_json_is_alone_on_standard_output(run: Run) -> None:
    Path("docs").mkdir()
    write("m.py", "BAD, MAYBE")
    assert run("--output-format", "json", "m.py", "docs", "nope") == 2
    assert [one["code"] for one in json.loads(run.out)] == ["MP911"]
    assert run.err.splitlines() == [
        "nope: no such file or directory; check the path",
        "docs: no Python files; name a directory that has some",
        "Found 1 error (1 fixable with `--fix`).",
        "1 possible finding not shown; `--confidence possible` shows it.",
    ]
    assert run("--output-format", "json", "docs") == 0
    assert json.loads(run.out) == []


def test_output_format_of_the_configuration(run: Run) -> None:
    Path("precision-lint.toml").write_text('output-format = "json"\n')
    write("m.py", "BAD")
    run("m.py")
    assert len(json.loads(run.out)) == 1
    run("m.py", "--output-format", "concise")
    assert run.out.startswith("m.py:2:1: MP911")


def test_statistics_go_into_the_file(run: Run) -> None:
    write("a.py", "BAD, MEH\nMEH")
    run("--statistics", "-o", "counts.txt", "a.py")
    table = "2  MP921  [ ]  meh-word\n1  MP911  [*]  bad-word\n"
    assert Path("counts.txt").read_text() == table
    assert "MP921" not in run.out
    assert "Found 1 error" in run.out


def test_statistics(run: Run) -> None:
    write("a.py", "BAD, MEH\nMEH")
    write("b.py", "\n".join(["MEH"] * 9))
    run("--statistics", ".")
    assert re.sub(r"[\d.]+ s", "0 s", run.out) == (
        "11  MP921  [ ]  meh-word\n"
        " 1  MP911  [*]  bad-word\n"
        "Found 1 error, 11 info findings ([*] 1 fixable with `--fix`).\n"
        "Linted 2 files, 13 lines in 0 s.\n"
    )
    run("--statistics", "--output-format", "json", "a.py")
    assert json.loads(run.out) == [
        {"code": "MP921", "name": "meh-word", "count": 2, "fixable_count": 0, "modes": {}},
        {"code": "MP911", "name": "bad-word", "count": 1, "fixable_count": 1, "modes": {}},
    ]


def test_diff(run: Run) -> None:
    write("a.py", "BAD")
    write("b.py", "def f(:")
    assert run("--diff", ".") == 1
    assert run.out == "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n import torch\n-BAD\n+GOOD\n"
    assert run.err.splitlines()[-1] == "Would fix 1 error."
    assert run.err.startswith("b.py:2:7: MP002 ")
    assert Path("a.py").read_text() == HEAD + "BAD\n"
    run("--diff", "--fix", "--ignore", "ALL", ".")  # --diff wins
    assert (run.out, run.err) == ("", "Would fix nothing.\n")


def test_a_diff_applies(run: Run) -> None:
    write("sub/a.py", "x\nBAD")
    run("--diff", ".")
    subprocess.run(["git", "apply"], input=run.out, text=True, check=True)
    assert Path("sub/a.py").read_text() == HEAD + "x\nGOOD\n"


# standard input


def test_stdin(run: Run) -> None:
    assert run("-", stdin=b"import torch\nBAD") == 1
    assert run.out.startswith("-:2:1: error[MP911]")
    assert run("--stdin-filename", "src/a.py", stdin=b"import torch\nBAD") == 1
    assert run.out.startswith("src/a.py:2:1: error[MP911]")


def test_stdin_fix_prints_the_text_alone(run: Run) -> None:
    text = b"import torch\r\nBAD, ODD"
    assert run("--fix", "-", stdin=text) == 1
    assert run.out.encode() == text.replace(b"BAD", b"GOOD")
    assert "-:2:7: warning[MP912]" in run.err
    assert run.err.endswith("Found 1 error, 1 warning (1 fixed, 1 remaining).\n")
    assert run("--fix", "-", stdin=b"nothing to do") == 0
    assert run.out == "nothing to do"


def test_stdin_diff(run: Run) -> None:
    assert run("--diff", "-", "--stdin-filename", "a.py", stdin=b"torch, BAD\n") == 1
    assert run.out.startswith("--- a/a.py\n+++ b/a.py\n")


# the cache


def test_cache_options(run: Run) -> None:
    write("m.py", "BAD")
    Path("setup.cfg").touch()
    run.patch.delenv("PRECISION_LINT_NO_CACHE", raising=False)
    for args, kept in (
        (["--no-cache"], None),
        (["-n"], None),
        (["--cache-dir", "a/b"], "a/b"),
        ([], ".precision_lint_cache"),
    ):
        assert run(*args, ".") == 1
        directories = [path.name for path in Path().glob("**/facts.sqlite3")]
        assert directories == (["facts.sqlite3"] if kept else [])
        if kept:
            (Path(kept) / "facts.sqlite3").unlink()
    run.patch.setenv("PRECISION_LINT_NO_CACHE", "1")
    assert run(".") == 1
    assert list(Path().glob("**/facts.sqlite3")) == []


# colour and streams


@pytest.mark.parametrize(
    ("variables", "colored"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": ""}, False),
    ],
)
def test_color(run: Run, variables: dict[str, str], colored: bool) -> None:
    for name, value in variables.items():
        run.patch.setenv(name, value)
    write("m.py", "BAD")
    run("m.py")
    assert ("\x1b[" in run.out) is colored


@pytest.mark.parametrize(("term", "colored"), [("xterm", True), ("dumb", False)])
def test_color_on_a_terminal(run: Run, term: str, colored: bool) -> None:
    run.patch.setenv("TERM", term)
    run.patch.setattr(sys.stdout, "isatty", lambda: True)
    write("m.py", "BAD")
    run("m.py")
    assert ("\x1b[" in run.out) is colored


def process(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "precision_lint", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.skipif(os.name == "nt", reason="no such pipes on Windows")
def test_a_reader_that_leaves_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import torch\ndef f(:\n")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "precision_lint", "--isolated", str(tmp_path)]
    for args, code in (([], 1), (["--exit-zero"], 0)):
        done = subprocess.run([*command, *args], stdout=writing, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (code, b"")
    os.close(writing)


@pytest.mark.skipif(os.name == "nt", reason="no such signals on Windows")
def test_interrupt_ends_cleanly() -> None:
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # nohup ignores it
    child = process("--isolated", "-", stdin=subprocess.PIPE, preexec_fn=heard)
    assert child.stdin is not None
    child.stdin.write(b"import torch\n" * 10_000)  # more than a pipe holds: the run has begun
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert (child.returncode, out, err.strip()) == (130, b"", b"interrupted")


def test_names_and_sources_beyond_the_terminal_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "m\u00e9.py").write_text("import torch  # \u4e00\ndef f(:\n", "utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    child = process("--isolated", ".", cwd=tmp_path, env=environment)
    out, err = child.communicate()
    assert (child.returncode, err) == (1, b"")
    assert out.startswith(rb"m\xe9.py:2:7: error[MP002]")
    assert rb"# \u4e00" in out


# other commands


def test_version(run: Run) -> None:
    assert run("--version") == 0
    assert run.out == f"precision-lint {precision_lint.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["check", "--help"], ["verify", "-h"]])
def test_help_fits_the_terminal(run: Run, args: list[str]) -> None:
    assert run(*args) == 0
    assert run.out.startswith("Usage: precision-lint")
    assert max(map(len, run.out.splitlines())) <= 80
    assert "..." not in run.out.replace("[PATHS]...", "").replace("[ARGS]...", "")


def test_rules(run: Run) -> None:
    assert run("rules") == 0
    lines = run.out.splitlines()
    assert lines[5:7] == [
        "MP911  bad-word            error    safe fix",
        "MP912  odd-word            warning  unsafe fix",
    ]
    assert lines[-1] == "MP922  maybe-word          error"
    assert run("rules", "--output-format", "json") == 0
    listed = json.loads(run.out)
    assert [rule["code"] for rule in listed] == registry.known("ALL")
    bad = next(rule for rule in listed if rule["code"] == "MP911")
    assert (bad["summary"], bad["fix"]) == ("A bad word.", "safe")


@pytest.mark.parametrize("name", ["MP911", "mp911", "bad-word"])
def test_explain(run: Run, name: str) -> None:
    assert run("explain", name) == 0
    assert run.out.startswith("# bad-word (MP911)\n\nSeverity: error. Fix: safe.\n\nA bad word.\n")
    assert run("explain", name, "--output-format", "json") == 0
    assert json.loads(run.out)["name"] == "bad-word"


def test_explain_prints_every_section(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the rules that ship
    rule = next(iter(registry.rules().values()))
    assert run("explain", rule.code) == 0
    assert re.findall(r"^## (.+)$", run.out, re.MULTILINE) == list(registry.SECTIONS)


def test_engine_codes_can_be_explained(run: Run) -> None:
    for code, name in registry.ENGINE_CODES.items():
        assert run("explain", code) == 0
        assert run.out.startswith(f"# {name} ({code})\n")


def test_verify_without_torch(run: Run) -> None:
    run.patch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("verify") == 2
    assert run.err == "verify needs torch; pip install 'precision-lint[verify]'\n"


def test_verify_hands_its_options_over(run: Run) -> None:
    harness = pytest.importorskip("precision_lint.harness.verify")
    seen: list[tuple[Any, ...]] = []

    def main(*args: Any) -> int:
        seen.append(args)
        return 1

    run.patch.setattr(harness, "main", main)
    assert run("verify", "--select", "MP3,MP5", "-k", "log", "-x", "--jobs", "2") == 1
    assert run("verify", "--device", "cuda", "--output-format", "json") == 1
    assert seen == [
        (("MP3", "MP5"), "log", True, 2, "cpu", "text", None),
        ((), "", False, None, "cuda", "json", None),
    ]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["verify", "--emit-test", "tests"], "--emit-test is for findings in your code"),
        (["verify", ".", "--device", "cuda"], "--device cuda is for the rules"),
        (["verify", ".", "--select", "MP9x"], "MP9x"),
    ],
)
def test_verify_of_paths_refuses(run: Run, args: list[str], told: str) -> None:
    pytest.importorskip("torch")
    assert run(*args) == 2
    assert told in run.err and run.err.count("\n") == 1


def test_selecting_only_what_is_in_preview_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standins.RULES["MP912"], "preview", True)
    write("m.py", "ODD")
    assert run("--select", "MP912", ".") == 0
    assert run.err == "MP912: is in preview, so this selects nothing; add --preview\n"
    assert run("--select", "MP912", "--preview", ".") == 1 and not run.err
    assert run("--select", "MP91", ".") == 0 and not run.err


def test_configuration_that_turns_every_rule_off_is_said(run: Run) -> None:
    write("a/m.py", "ODD")
    file = Path("a/precision-lint.toml").absolute()
    said = 'no rule is on, so nothing is checked; select some, or "ALL"\n'
    for text, row in (("\nselect = []\n", 2), ('select = ["MP912"]\nignore = ["MP912"]\n', 2)):
        file.write_text(text)
        assert run(".") == 0
        assert (run.err, run.out) == (f"{file}:{row}: {said}", "No findings.\n")
        assert run("--ignore", "MP911", ".") == 0 and run.err == f"{file}:{row}: {said}"
        assert run("--extend-select", "MP912", ".") == 1 and not run.err
    file.write_text('select = ["MP004"]\n')
    assert run(".") == 0 and not run.err
    assert run("--ignore", "ALL", ".") == 0 and not run.err  # an option is meant
    file.write_text('ignore = ["ALL"]\n')
    assert run("-", "--config", str(file), stdin=b"ODD") == 0 and run.err == f"{file}:1: {said}"


def test_a_tree_without_torch_says_so(run: Run) -> None:
    """Findings are looked for in files with tensors; where there are none, the user named something else."""
    Path("a.py").write_text("x = 1\n")
    expected = "The file does not use torch, so there is nothing to check: name the code that does."
    for _ in range(2):  # the second time from the cache
        assert run(".") == 0 and run.out.strip() == expected
    Path("b.py").write_text("y = 2\n")
    assert run(".") == 0 and run.out.startswith("None of the 2 files uses torch, ")
    Path("c.py").write_text("import torch\n")
    assert run(".") == 0 and run.out == "All checks passed!\n"


@pytest.mark.parametrize("option", [["-o", "train.py"], ["--report", "html=train.py"]])
def test_no_report_is_written_over_code(
    option: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    assert cli.main(["check", "train.py", *option]) == 2
    assert "train.py holds code; name another file for the report" in capsys.readouterr().err
    assert Path("train.py").read_text() == "import torch\n"


def test_misstated_facts_are_found_where_nothing_else_is_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\n\n\ndef f(x):\n    x = x.half()\n"
        "    return torch.exp(x)  # precision-lint: assume x float32\n"
    )
    cli.main(["check", "train.py", "--select", "MP005", "--output-format", "concise"])
    assert "train.py:6:" in (said := capsys.readouterr().out) and "MP005" in said
