"""Gradual adoption: baselines, comments that silence, and what a run would look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli

from precision_lint import baseline, config, registry
from precision_lint.api import Confidence
from precision_lint.config import ConfigError
from tests import projects, standins
from tests.test_cli import Run

HEAD = "import torch\n"
FILE = Path("precision-lint-baseline.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    standins.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Run(capfd, monkeypatch)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + text + "\n")
    return path


def shown(run: Run, *args: str) -> list[str]:
    """``file:row code`` of what a run reports."""
    run("--output-format", "json", *args)
    return [
        f"{Path(one['filename']).name}:{one['location']['row']} {one['code']}"
        for one in json.loads(run.out)
    ]


def held(run: Run) -> dict[str, list[tuple[str, int, str]]]:
    """Code, count and expression of the entries by file."""
    table = json.loads(FILE.read_text())
    assert table["version"] == 1
    return {
        name: [(e["code"], e["count"], e["expression"]) for e in entries]
        for name, entries in table["files"].items()
    }


@pytest.fixture
def configured(run: Run) -> Run:
    Path("precision-lint.toml").write_text(f'baseline = "{FILE}"\n')
    return run


# baseline


def test_a_baseline_holds_what_there_is(run: Run) -> None:
    write("a.py", "BAD\nBAD + ODD")
    write("src/b.py", "MAYBE\nBAD  # noqa: MP911")
    assert run("baseline", "create") == 0
    assert run.out == f"{FILE} holds 3 findings of 1 file.\n"
    assert run.err == (
        f'put `baseline = "{FILE}"` into the configuration, or give --baseline {FILE}\n'
    )
    assert held(run) == {"a.py": [("MP911", 2, "BAD"), ("MP912", 1, "ODD")]}
    assert run(".") == 1, "nobody says that it is in use"
    assert run("--baseline", str(FILE), ".") == 0
    assert run.out.splitlines() == [
        "All checks passed!",
        "1 possible finding not shown; `--confidence possible` shows it.",
        "3 findings not shown; they are not new.",
    ]


def test_a_baseline_is_where_the_configuration_says(run: Run) -> None:
    Path("precision-lint.toml").write_text('baseline = "ci/held.json"\n')
    Path("ci").mkdir()
    write("a.py", "BAD")
    assert run("baseline", "create") == 0
    assert run.err == ""
    assert list(json.loads(Path("ci/held.json").read_text())["files"]) == ["../a.py"]
    assert run(".") == 0
    write("a.py", "BAD\nBAD")
    assert run("a.py") == 1


def test_a_baseline_is_not_overwritten(configured: Run) -> None:
    write("a.py", "BAD")
    assert configured("baseline", "create") == 0
    before = FILE.read_bytes()
    write("a.py", "ODD")
    assert configured("baseline", "create") == 2
    assert "is there already; `precision-lint baseline update` renews it" in configured.err
    assert FILE.read_bytes() == before


def test_what_moves_or_is_reformatted_is_not_new(configured: Run) -> None:
    write("a.py", "BAD\nODD")
    configured("baseline", "create")
    write("a.py", "\n\ndef f():\n    return [\n        ODD,  # why\n        BAD,\n    ]")
    assert shown(configured) == []


def test_more_of_the_same_is_new(configured: Run) -> None:
    write("a.py", "BAD\nBAD")
    configured("baseline", "create")
    write("a.py", "BAD\nx\nBAD\nBAD")
    assert shown(configured) == ["a.py:5 MP911"]
    write("b.py", "BAD")
    assert shown(configured, "b.py") == ["b.py:2 MP911"], "it is held of another file"


def test_a_baseline_is_that_of_the_project_from_wherever_it_is_run(
    configured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("src/a.py", "BAD")
    configured("baseline", "create")
    monkeypatch.chdir("src")
    assert shown(configured) == []
    assert shown(configured, str(Path.cwd() / "a.py")) == []


def test_what_a_baseline_holds_is_not_fixed(configured: Run) -> None:
    path = write("a.py", "BAD")
    configured("baseline", "create")
    path.write_text(f"{HEAD}BAD\nODD\nBAD\n")
    assert configured("--fix", "a.py") == 1
    assert path.read_text() == f"{HEAD}BAD\nODD\nGOOD\n"
    assert configured("--fix", "--unsafe-fixes", "a.py") == 0
    assert path.read_text() == f"{HEAD}BAD\nEVEN\nGOOD\n"


def test_a_baseline_holds_no_failure(configured: Run) -> None:
    write("a.py", "def f(:")
    write("b.py", "BAD")
    assert configured("baseline", "create") == 2
    assert "a.py:2:7: MP002" in configured.err
    assert list(held(configured)) == ["b.py"]
    assert shown(configured) == ["a.py:2 MP002"]


def test_update_adds_and_removes(configured: Run) -> None:
    write("a.py", "BAD\nODD")
    write("b.py", "BAD")
    write("c.py", "BAD")
    configured("baseline", "create")
    write("a.py", "ODD\nODD")
    Path("c.py").unlink()
    assert configured("baseline", "update", "a.py") == 0
    assert configured.out == f"{FILE} holds 3 findings of 2 files: 1 added, 2 removed.\n"
    assert held(configured) == {"a.py": [("MP912", 2, "ODD")], "b.py": [("MP911", 1, "BAD")]}


def test_prune_only_removes(configured: Run) -> None:
    write("a.py", "BAD\nBAD\nMAYBE")
    write("b.py", "BAD")
    write("c.py", "BAD")
    assert configured("baseline", "create", "--confidence", "possible") == 0
    write("a.py", "BAD\nODD\nMAYBE")
    write("b.py", "fine")
    write("c.py", "def f(:")
    assert configured("a.py", "b.py") == 1
    assert "2 findings of the baseline are gone; `precision-lint baseline prune`" in configured.out
    assert configured("baseline", "prune") == 2, "c.py could not be linted"
    assert held(configured) == {
        "a.py": [("MP911", 1, "BAD"), ("MP922", 1, "MAYBE")],
        "c.py": [("MP911", 1, "BAD")],
    }
    assert configured("baseline", "prune", "a.py", "--select", "MP912") == 0
    assert len(held(configured)["a.py"]) == 2, "what is off may still be there"


def test_fixing_says_what_is_gone(configured: Run) -> None:
    write("a.py", "BAD")
    configured("baseline", "create")
    write("a.py", "GOOD  # torch is not named here")
    Path("a.py").write_text("GOOD\n")
    assert configured("a.py") == 0
    assert "1 finding of the baseline is gone; `precision-lint baseline prune` removes it." in (
        configured.out
    )


def test_silenced_findings_need_no_baseline(configured: Run) -> None:
    write("a.py", "BAD")
    configured("baseline", "create")
    write("a.py", "BAD  # noqa: MP911")
    configured("baseline", "prune")
    assert held(configured) == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, ": cannot be read (No such file or directory); make it anew with"),
        ("<<<<<<< ours\n", ":1:1: is not JSON; resolve conflicts, or make it anew with"),
        ("[]", ": is not a baseline of version 1; make it anew with"),
        ('{"version": 2}', ": is not a baseline of version 1; make it anew with"),
        ('{"version": 1}', ': "files" is not an object; make it anew with'),
        ('{"version": 1, "files": {"a.py": 1}}', ": an entry of a.py is not code, hash, count"),
        (
            '{"version": 1, "files": {"a.py": [{"code": "MP911", "hash": "a", "count": 0}]}}',
            ": an entry of a.py is not code, hash, count",
        ),
    ],
)
def test_a_damaged_baseline_is_one_line(configured: Run, text: str | None, what: str) -> None:
    write("a.py", "BAD")
    if text is not None:
        FILE.write_text(text)
    assert configured("a.py") == 2
    assert configured.err.startswith(f"{FILE.absolute()}{what}")
    assert configured.err.count("\n") == 1
    with pytest.raises(ConfigError):
        baseline.load(FILE)


def test_a_baseline_reads_as_it_was_written(tmp_path: Path) -> None:
    made = baseline.Baseline()
    made.add("b/ü.py", "MP911:00ff", 'f("x")', 2)
    made.add("a.py", "MP301:aa", "log(x)")
    file = tmp_path / "held.json"
    baseline.save(made, file)
    assert baseline.load(file) == made
    assert baseline.render(baseline.load(file)) == file.read_text()
    assert [line.strip()[:7] for line in file.read_text().splitlines()].count('{"code"') == 2


def test_processes_use_the_baseline(configured: Run) -> None:
    for number in range(70):
        write(f"f{number}.py", "BAD")
    configured("baseline", "create", "--jobs", "2")
    write("f3.py", "BAD, BAD")
    assert shown(configured, "--jobs", "2", ".") == ["f3.py:2 MP911"]


# --add-noqa


def test_comments_silence_what_was_found(run: Run) -> None:
    path = write("a.py", "def f(x):\n    return [\n        BAD, ODD,\n        BAD]\nif MEH: pass")
    assert run("--add-noqa=see #12", "a.py") == 0
    assert run.out == "Added 2 comments that silence 4 findings.\n"
    assert path.read_text() == (
        f"{HEAD}def f(x):\n"
        "    # precision-lint: ignore[MP911, MP912] see #12\n"
        "    return [\n        BAD, ODD,\n        BAD]\n"
        "# precision-lint: ignore[MP921] see #12\n"
        "if MEH: pass\n"
    )
    assert run("a.py") == 0
    before = path.read_bytes()
    assert run("--add-noqa", "a.py") == 0
    assert run.out == "Added 0 comments that silence 0 findings.\n"
    assert path.read_bytes() == before


def test_the_reason_is_optional_and_no_path(run: Run) -> None:
    write("a.py", "BAD")
    write("b.py", "BAD")
    assert run("--add-noqa", "a.py") == 0
    assert "ignore[MP911]\n" in Path("a.py").read_text()
    assert Path("b.py").read_text() == f"{HEAD}BAD\n"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1; y = BAD",
        "if x: y = BAD",
        "@BAD\ndef f(): pass",
        "def f(\n    a=BAD,\n): pass",
        "if x:\n    pass\nelif BAD:\n    pass",
        "x = '''\n{}\n''' + BAD",
        "x = 1 + \\\n    BAD",
        "class A:\n\tx = BAD\n",
        "x = f(lambda: BAD,\n  ODD)",
        "# why\nBAD",
        "BAD  # noqa: E501",
        "# precision-lint: ignore[MP912]\nBAD + ODD",
        "x = '''\nBAD'''",
        "try:\n    pass\nexcept BAD:\n    pass",
    ],
)
def test_comments_silence_in_every_place(run: Run, text: str) -> None:
    path = write("a.py", text)
    before = path.read_text().splitlines()
    assert run("--add-noqa=because", "a.py") == 0
    after = path.read_text().splitlines()
    assert [line for line in after if "because" not in line] == before
    assert run("--fail-on", "info", "a.py") == 0, "and no comment is unused"


def test_comments_keep_newlines_and_encoding(run: Run) -> None:
    path = Path("a.py")
    path.write_bytes(b"# coding: latin-1\r\nimport torch\r\nx = '\xe4' + BAD\r\n")
    assert run("--add-noqa=w\xe4r", "a.py") == 0
    assert path.read_bytes() == (
        b"# coding: latin-1\r\nimport torch\r\n"
        b"# precision-lint: ignore[MP911] w\xe4r\r\nx = '\xe4' + BAD\r\n"
    )
    path.write_bytes(b"# coding: latin-1\nimport torch\nBAD\n")
    assert run("--add-noqa=\u2192", "a.py") == 2
    assert "cannot be written back in iso-8859-1" in run.err
    assert path.read_bytes() == b"# coding: latin-1\nimport torch\nBAD\n"


@pytest.mark.parametrize("reason", ["a\nb", "# noqa", "x # precision-lint: ignore[MP301]", "\x1b"])
def test_reasons_that_are_none(run: Run, reason: str) -> None:
    path = write("a.py", "BAD")
    code = run(f"--add-noqa={reason}", "a.py")
    if reason == "a\nb":
        assert code == 0
        assert "ignore[MP911] a b\n" in path.read_text()
        return
    assert code == 2
    assert "would not be read as a reason; leave out what else silences" in run.err
    assert path.read_text() == f"{HEAD}BAD\n"


def test_what_cannot_be_silenced_stays(run: Run) -> None:
    write("a.py", "def f(:")
    write("b.py", "BAD\nx  # noqa: MP912")
    assert run("--add-noqa", ".") == 2
    assert "a.py:2:7: MP002" in run.err
    assert shown(run) == ["a.py:2 MP002", "b.py:4 MP004"]


def test_add_noqa_stands_alone(run: Run) -> None:
    write("a.py", "BAD")
    assert run("--add-noqa", "--fix", "a.py") == 2
    assert run("--add-noqa", "-") == 2


# what a run would look at


def test_show_files(run: Run) -> None:
    write("src/a.py", "BAD")
    write("build/b.py", "BAD")
    assert run("--show-files") == 0
    assert run.out == f"{Path('src/a.py').absolute()}\n"
    assert run("--show-files", "none.py") == 2
    assert (run.out, run.err) == ("", "none.py: no such file or directory; check the path\n")


def test_show_settings_is_a_configuration(run: Run) -> None:
    Path("precision-lint.toml").write_text(
        'confidence = "possible"\nbaseline = "b.json"\n'
        'per-file-ignores = { "a.py" = ["MP911"] }\nextend-exclude = ["ü/"]\n'
    )
    write("a.py", "BAD")
    assert run("--show-settings", "a.py", ".") == 0
    first, second = run.out.split("\n\n")
    assert first.startswith(f"# a.py: from {Path('precision-lint.toml').absolute()}, project root")
    table = tomli.loads(first)
    assert "MP911" not in table["select"]
    assert "MP911" in tomli.loads(second)["select"]
    assert "# off here: MP911" in first
    assert table["baseline"] == str(Path("b.json").absolute())
    said = {line.strip("# ").partition(" =")[0].partition(":")[0] for line in first.splitlines()}
    assert said >= set(config.KEYS) - {
        "extend-select", "ignore", "per-file-ignores", "extend", "overrides",
    }  # fmt: skip
    Path("precision-lint.toml").write_text(first)
    assert run("a.py") == 2, "there is no such baseline"
    FILE.write_text('{"version": 1, "files": {}}')
    assert run("--baseline", str(FILE), "a.py") == 0


# on real rules


def test_a_baseline_of_real_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
        import torch

        @torch.autocast("cuda", dtype=torch.float16)
        def loss(x):
            return -(x.sigmoid() + 1e-8).log().mean()
    """
    projects.write(tmp_path, {"loss.py": text})
    from precision_lint import cli

    assert "MP301" in registry.rules()
    assert cli.main(["baseline", "create", "--no-cache"]) == 0
    projects.write(tmp_path, {"loss.py": f"        x = 1\n{text}"})
    assert cli.main(["check", "--no-cache", "--baseline", str(FILE)]) == 0
    assert [d.code for d in projects.check(tmp_path, confidence=Confidence.LIKELY).diagnostics]


# where reports go


def test_several_reports_of_one_run(run: Run, tmp_path: Path) -> None:
    write("a.py", "BAD  # noqa: MP912")
    args = ("--report", "sarif=a.sarif", "--report", "markdown=a.md", "--report", "json-lines=no")
    assert run("--output-format", "github", *args, "a.py") == 1
    assert run.out.startswith("::error file=a.py,line=2,")
    results = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["MP911", "MP004"]
    assert Path("a.md").read_text().startswith("## precision-lint\n\n| Rule ")
    assert Path("no").read_text().count("\n") == 2
    write("a.py", "fine")
    assert run(*args, "a.py") == 0
    assert Path("no").read_text() == ""
    assert Path("a.md").read_text() == "## precision-lint\n\nNo findings.\n"


def test_output_file(run: Run) -> None:
    write("a.py", "BAD")
    assert run("--output-format", "json", "-o", "a.json", "a.py") == 1
    assert json.loads(Path("a.json").read_text())[0]["code"] == "MP911"
    assert run.out == "Found 1 error (1 fixable with `--fix`).\n"
    assert run("-o", "missing/a.txt", "a.py") == 2
    assert run.err == "missing/a.txt: no such file or directory; correct that and run again\n"


@pytest.mark.parametrize("report", ["sarif", "sarif=", "xml=a.xml", "=a"])
def test_reports_that_are_none(run: Run, report: str) -> None:
    assert run("--report", report, ".") == 2
    assert "is no report; write FORMAT=FILE with text, concise, json" in run.err
    assert run.err.count("\n") == 1
