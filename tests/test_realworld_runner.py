"""The benchmark's runner: trees from git, linters as commands, and what is counted as found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmarks.realworld.__main__ as realworld
from benchmarks.realworld import figures, linters
from benchmarks.realworld.cases import CONTEXTS, Entry
from benchmarks.realworld.linters import LINTERS, Failed, Finding, Linter
from benchmarks.realworld.score import Alarms, judged, report, summary
from benchmarks.realworld.trees import LARGEST, Tree, Trees, Unavailable, wanted

FILES = {
    "spam/loss.py": "import torch\n\n\ndef loss(p):\n    return torch.log(p + 1e-8)\n",
    "conf/train.yaml": "precision: 16-mixed\n",
    "requirements-dev.txt": "torch\n",
    "README.md": "not wanted\n",
    "data.json": " " * (LARGEST + 1),
    "mit Leerzeichen/ü.py": "a = 1\n",
}
FITTING = {"eps-log": frozenset({"MP301", "eps-before-log"}), "eps-div": frozenset[str]()}


def git(folder: Path, *arguments: str, time: int = 1_000_000_000) -> str:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{who}_{what}": "spam@example.org" for who in ("AUTHOR", "COMMITTER")
           for what in ("NAME", "EMAIL")},
        **{f"GIT_{who}_DATE": f"{time} +0000" for who in ("AUTHOR", "COMMITTER")},
    }  # fmt: skip
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def committed(folder: Path, files: dict[str, str], time: int = 1_000_000_000) -> str:
    """Commit these files alone in a repository at ``folder``; the commit."""
    if not (folder / ".git").is_dir():
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
    for old in folder.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link.py").symlink_to("spam/loss.py")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "spam", time=time)
    return git(folder, "rev-parse", "HEAD")


def entry(commit: str = "0" * 40, **changes: Any) -> Entry:
    plain = Entry(
        "case", "spam-1", "spam/eggs", commit, "spam/loss.py", (5, 6), "eps-log", "same-file",
        "An epsilon.", "f" * 40, "Larger.", "first", None,
    )  # fmt: skip
    return replace(plain, **changes)


@pytest.fixture
def mirrors(tmp_path: Path) -> Path:
    return tmp_path / "mirrors"


@pytest.fixture
def commit(mirrors: Path) -> str:
    return committed(mirrors / "spam+eggs", FILES)


# Trees


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.py", True),
        ("a/b.yml", True),
        ("a/requirements/dev.txt", False),
        ("a/requirements_dev.txt", True),
        ("a.pyc", False),
        ("py", False),
    ],
)
def test_wanted(name: str, expected: bool) -> None:
    assert wanted(name) is expected


def test_a_tree_holds_python_and_configuration(tmp_path: Path, mirrors: Path, commit: str) -> None:
    tree = Trees(tmp_path / "work", mirrors).get("spam/eggs", commit)
    files = {one.relative_to(tree.path).as_posix() for one in tree.path.rglob("*") if one.is_file()}
    assert files == {
        "spam/loss.py", "conf/train.yaml", "requirements-dev.txt", "mit Leerzeichen/ü.py"
    }  # fmt: skip
    assert (tree.path / "spam/loss.py").read_text() == FILES["spam/loss.py"]
    assert (tree.files, tree.lines, tree.committed, tree.absent) == (2, 6, 1_000_000_000, 0)


def test_a_tree_is_made_once(tmp_path: Path, mirrors: Path, commit: str) -> None:
    first = Trees(tmp_path / "work", mirrors).get("spam/eggs", commit)
    shutil.rmtree(mirrors)
    assert Trees(tmp_path / "work").get("spam/eggs", commit) == first


def test_half_a_tree_is_made_anew(tmp_path: Path, mirrors: Path, commit: str) -> None:
    half = tmp_path / "work" / "trees" / f"spam+eggs@{commit[:12]}"
    half.mkdir(parents=True)
    (half / "left.py").touch()
    tree = Trees(tmp_path / "work", mirrors).get("spam/eggs", commit)
    assert tree.path == half
    assert not (half / "left.py").exists()


@pytest.mark.parametrize("place", ["spam+eggs", "spam+eggs/repo", "spam+eggs/eggs.git"])
def test_a_mirror_may_be_bare(tmp_path: Path, mirrors: Path, commit: str, place: str) -> None:
    bare = tmp_path / "bare" / place
    git(tmp_path, "clone", "--quiet", "--bare", str(mirrors / "spam+eggs"), str(bare))
    assert Trees(tmp_path / "work", tmp_path / "bare").get("spam/eggs", commit).files == 2


@pytest.mark.parametrize("has", ["no mirrors", "another repository", "another commit"])
def test_a_missing_mirror(tmp_path: Path, mirrors: Path, commit: str, has: str) -> None:
    trees = Trees(tmp_path / "work", None if has == "no mirrors" else mirrors)
    repo = "spam/ham" if has == "another repository" else "spam/eggs"
    with pytest.raises(Unavailable, match=rf"^{repo}@1{{12}}: .*; give --mirrors DIR with .*--clo"):
        trees.get(repo, "1" * 40)
    assert not list((tmp_path / "work").rglob("*.json"))


@pytest.fixture
def hub(tmp_path: Path) -> str:
    """Where to clone from: it serves parts of repositories, as GitHub does."""
    committed(tmp_path / "hub/spam/eggs", FILES)
    for key in ("allowFilter", "allowAnySHA1InWant"):
        git(tmp_path / "hub/spam/eggs", "config", f"uploadpack.{key}", "true")
    return (tmp_path / "hub").as_uri()


def test_a_clone(tmp_path: Path, hub: str) -> None:
    top = tmp_path / "hub/spam/eggs"
    first = git(top, "rev-parse", "HEAD")
    git(top, "checkout", "--quiet", "--orphan", "other")
    hidden = committed(top, {"ham.py": "b = 2\n"})
    git(top, "checkout", "--quiet", "--force", "--detach", first)
    git(top, "branch", "--delete", "--force", "other")
    trees = Trees(tmp_path / "work", tmp_path / "nothing", hub)
    assert (trees.get("spam/eggs", first).files, trees.get("spam/eggs", hidden).files) == (2, 1)


def test_a_clone_that_fails(tmp_path: Path, hub: str) -> None:
    with pytest.raises(Unavailable, match=r"^git failed: fatal: .*spam/ham"):
        Trees(tmp_path / "work", clone=hub).get("spam/ham", "1" * 40)


def test_a_mirror_never_uses_the_network(tmp_path: Path, hub: str, mirrors: Path) -> None:
    partial = mirrors / "spam+eggs"
    git(tmp_path, "clone", "--quiet", "--bare", "--filter=blob:none", f"{hub}/spam/eggs",
        str(partial))  # fmt: skip
    commit = git(partial, "rev-parse", "HEAD")
    outcome = runner(tmp_path, mirrors, fake(tmp_path, "[]")).outcome([entry(commit)])
    assert outcome.tree and outcome.tree.absent == len(FILES) - 1  # README.md is not wanted
    assert outcome.problems == (
        f"spam/eggs@{commit[:12]}: spam/loss.py of spam-1 is not there; "
        "repair the mirror or the entry",
    )


# Running a linter


def fake(folder: Path, prints: str, code: str = "") -> Linter:
    """A linter that prints this, after running this code."""
    script = folder / "linter.py"
    script.write_text(f"import sys, time\n{code}\nprint({prints!r})\n")
    return linters.command([sys.executable, str(script)])


def found(row: int, **more: str) -> dict[str, object]:
    return {"filename": "spam/loss.py", "location": {"row": row}, "code": "MP301", **more}


def runner(folder: Path, mirrors: Path, linter: Linter, scope: str = "tree") -> realworld.Runner:
    trees = Trees(folder / "work", mirrors)
    return realworld.Runner(linter, FITTING, trees, scope, timeout=60)


def test_a_case_is_flagged(tmp_path: Path, mirrors: Path, commit: str) -> None:
    linter = fake(tmp_path, json.dumps([found(5), found(40)]))
    outcome = runner(tmp_path, mirrors, linter).outcome([entry(commit)])
    (verdict,) = outcome.verdicts
    assert (verdict.default, verdict.possible, verdict.near, verdict.rules) == (
        True, True, True, ("MP301",)
    )  # fmt: skip
    assert outcome.alarms and (outcome.alarms.default, outcome.alarms.lines) == (2, 6)
    assert outcome.problems == ()


@pytest.mark.parametrize(
    ("lists", "scope", "within", "expected"),
    [
        (False, "tree", None, ["."]),
        (True, "tree", None, ["mit Leerzeichen/ü.py", "spam/loss.py"]),
        (False, "tree", "spam", ["spam"]),
        (True, "tree", "spam", ["spam/loss.py"]),
        (False, "file", None, ["spam/loss.py"]),
        (True, "file", None, ["spam/loss.py"]),
        (False, "file", "spam", ["spam/loss.py"]),
    ],
)
def test_what_is_linted(
    tmp_path: Path,
    mirrors: Path,
    commit: str,
    lists: bool,
    scope: str,
    within: str | None,
    expected: list[str],
) -> None:
    seen = tmp_path / "seen"
    code = f"open({str(seen)!r}, 'w', encoding='utf-8').write('\\n'.join(sys.argv[1:]))"
    linter = replace(fake(tmp_path, "[]", code), lists=lists)
    outcome = runner(tmp_path, mirrors, linter, scope).outcome([entry(commit, within=within)])
    assert seen.read_text(encoding="utf-8").splitlines() == expected
    assert outcome.alarms and outcome.alarms.lines == (
        6 if (scope, within) == ("tree", None) else 5
    )


@pytest.mark.parametrize(
    ("prints", "code", "changes", "problem"),
    [
        ("", "", {}, r"output of command cannot be read \(JSONDecodeError\), it ended with 0: it"),
        ("Oh no\n", "", {}, r"cannot be read .* ended with 0: Oh no$"),
        ("[3]", "", {}, r"cannot be read \(AttributeError\), it ended with 0: \[3\]$"),
        ("", "sys.exit('no such option')", {}, r"it ended with 1: no such option$"),
        ("[]", "sys.exit('bad\\nend')", {"exits": {0}}, r"ended with 1: end"),
        ("[]", "sys.exit(3)", {"exits": {0}}, r"ended with 3: it said nothing"),
        ("[]", "", {"executable": ("/no/such/linter",)}, r"/no/such/linter cannot be run"),
        ("[]", "time.sleep(60)", {"timeout": 0.1}, r"no result after 0\.1 s; raise --timeout"),
    ],
)
def test_a_failed_run_flags_nothing(
    tmp_path: Path,
    mirrors: Path,
    commit: str,
    prints: str,
    code: str,
    changes: dict[str, Any],
    problem: str,
) -> None:
    timeout = changes.pop("timeout", 60)
    linter = replace(fake(tmp_path, prints, code), **changes)
    run = replace(runner(tmp_path, mirrors, linter), timeout=timeout)
    outcome = run.outcome([entry(commit)])
    with pytest.raises(Failed, match=problem):
        linter.run(tmp_path, ["."], timeout)
    assert len(outcome.problems) == 1
    assert outcome.problems[0].startswith(f"spam/eggs@{commit[:12]}: ")
    assert [one.possible for one in outcome.verdicts] == [False]  # counted as missed
    assert outcome.alarms is None  # its silence says nothing


def test_without_a_source_there_is_no_verdict(tmp_path: Path, mirrors: Path) -> None:
    outcome = runner(tmp_path, mirrors, fake(tmp_path, "[]")).outcome([entry("1" * 40)])
    assert (outcome.tree, outcome.verdicts, len(outcome.problems)) == (None, (), 1)


# Judging findings


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree("spam/eggs", "0" * 40, tmp_path, 0, 1, 5, 0)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (Finding("spam/loss.py", 5, "MP301"), "default possible near"),
        (Finding("spam/loss.py", 3, "MP301"), "default possible near"),  # two lines before
        (Finding("spam/loss.py", 8, "MP301"), "default possible near"),
        (Finding("spam/loss.py", 2, "MP301"), ""),
        (Finding("spam/loss.py", 9, "MP301"), ""),
        (Finding("./spam/loss.py", 5, "MP301"), "default possible near"),
        (Finding("loss.py", 5, "MP301"), ""),
        (Finding("/spam/loss.py", 5, "MP301"), ""),
        (Finding("spam/loss.py", 5, "", "eps-before-log"), "default possible near"),
        (Finding("spam/loss.py", 5, "MP305"), "near"),
        (Finding("spam/loss.py", 5, "MP301", confidence="certain"), "default possible near"),
        (Finding("spam/loss.py", 5, "MP301", confidence="likely"), "default possible near"),
        (Finding("spam/loss.py", 5, "MP301", confidence="possible"), "possible near"),
    ],
)
def test_matching(tree: Tree, finding: Finding, expected: str) -> None:
    verdict = judged(entry(), [finding], tree, FITTING)
    assert verdict and verdict.covered
    flags = [flag for flag in ("default", "possible", "near") if getattr(verdict, flag)]
    assert flags == expected.split()


def test_an_absolute_path_is_the_same_file(tree: Tree) -> None:
    finding = Finding(str(tree.path / "spam/loss.py"), 5, "MP301")
    verdict = judged(entry(), [finding], tree, FITTING)
    assert verdict and verdict.default


def test_a_category_without_a_rule_is_not_covered(tree: Tree) -> None:
    finding = Finding("spam/loss.py", 5, "MP301")
    verdict = judged(entry(category="eps-div"), [finding], tree, FITTING)
    assert verdict
    assert (verdict.covered, verdict.possible, verdict.near) == (False, False, True)


def test_lines_that_are_not_known_have_no_verdict(tree: Tree) -> None:
    assert judged(entry(lines=None), [], tree, FITTING) is None


def test_summary(tree: Tree) -> None:
    found = [
        Finding("spam/loss.py", 5, "MP301"),
        Finding("spam/other.py", 5, "MP301", confidence="possible"),
    ]
    entries = [
        entry(),
        entry(id="spam-2", file="spam/third.py"),  # the same fix
        entry(id="spam-3", file="spam/other.py", fix_commit="e" * 40, context="cross-file"),
        entry(id="spam-4", category="eps-div", fix_commit="d" * 40),
        entry(id="spam-5", kind="negative", fix_commit=None),
        entry(id="spam-6", kind="negative", file="spam/other.py", fix_commit=None),
        entry(id="spam-7", kind="residual", fix_commit=None),
    ]
    verdicts = [judged(one, found, tree, FITTING) for one in entries]
    counted = summary([one for one in verdicts if one], [])
    assert counted["cases"] == {
        "all": {"n": 4, "default": 1, "possible": 2, "near": 3},
        "covered": {"n": 3, "default": 1, "possible": 2, "near": 2},
    }
    assert counted["fixes"]["all"] == {"n": 3, "default": 1, "possible": 2, "near": 3}
    assert counted["fixes"]["covered"]["n"] == 2
    assert counted["contexts"]["cross-file"]["all"]["possible"] == 1
    assert counted["contexts"]["same-file"]["covered"]["n"] == 2
    assert counted["categories"]["eps-div"] == {
        "n": 1, "default": 0, "possible": 0, "near": 1, "covered": False
    }  # fmt: skip
    assert counted["negatives"] == {"n": 2, "default": 1, "possible": 2, "near": 2}
    assert counted["residuals"]["all"]["default"] == 1
    text = report(counted, {})
    assert "(eps-div)" in text
    assert "  same-file 1 / 3 1 / 3 2 / 3" in re.sub(r"(?<=\S) +", " ", text)


def test_the_newest_tree_of_a_repository_counts() -> None:
    """Of two parts of it the larger."""

    def outcome(repo: str, time: int, lines: int) -> realworld.Outcome:
        tree = Tree(repo, f"{time:040}", Path(), time, 1, 100, 0)
        return realworld.Outcome(tree, (), Alarms(repo, tree.commit, lines, 0, 0, 0), ())

    outcomes = [outcome("a/a", 1, 90), outcome("a/a", 2, 5), outcome("b/b", 1, 3)]
    outcomes += [outcome("a/a", 2, 7), outcome("a/a", 2, 6)]
    assert [(one.repo, one.lines) for one in realworld.newest(outcomes)] == [("a/a", 7), ("b/b", 3)]


# Linters


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (
            linters.parse_precision_lint,
            '[{"code": "MP002", "name": "syntax-error", "filename": "a.py", "location": '
            '{"row": 1, "column": 7}, "confidence": "certain"}, {"code": "MP501", "name": '
            '"intrinsics-matmul", "filename": "b.py", "location": {"row": 210, "column": 13}, '
            '"confidence": "possible"}]',
            [Finding("b.py", 210, "MP501", "intrinsics-matmul", "possible")],
        ),
        (
            linters.parse_torchfix,
            "src/trainer.py:1289:22: TOR102 [*] `torch.load` without `weights_only` parameter is "
            "unsafe.\n--- /lab/src/trainer.py\n+++ /lab/src/trainer.py\n@@ -1284,3 +1284,3 @@\n"
            "     # see notes.py:3:1: TOR101\n-        checkpoint = torch.load(path)\n"
            "+        checkpoint = torch.load(path, weights_only=True)\n \n"
            "a b/rodrigues_layer.py:58:13: TOR101 Use of deprecated function torch.norm\n",
            [
                Finding("src/trainer.py", 1289, "TOR102"),
                Finding("a b/rodrigues_layer.py", 58, "TOR101"),
            ],
        ),
        (
            linters.parse_ruff,
            '[{"cell": null, "code": "D205", "end_location": {"column": 4, "row": 4}, "filename": '
            '"src/losses/__init__.py", "fix": null, "location": {"column": 1, "row": 1}, '
            '"message": "1 blank line required between summary line and description", "name": '
            '"missing-blank-line-after-summary", "noqa_row": 4, "severity": "error", "url": null}, '
            '{"cell": null, "code": "invalid-syntax", "filename": "bad.py", "location": '
            '{"column": 7, "row": 1}, "name": "invalid-syntax"}]',
            [Finding("src/losses/__init__.py", 1, "D205", "missing-blank-line-after-summary")],
        ),
        (
            linters.parse_pylint,
            "Skipping type checking of module losses.dfl_loss: Mypy failed [internal]\n"
            '[\n{"type": "warning", "module": "losses.cpe_loss", "obj": "CPELoss.forward", "line": '
            '128, "column": 22, "endLine": 130, "endColumn": 13, "path": "src/losses/cpe_loss.py", '
            '"symbol": "missing-mask-pytorch", "message": "The variable in torch.log() isn\'t '
            'wrapped with torch.clip() or torch.clamp().", "message-id": "W5514"}, {"type": '
            '"error", "line": 1, "path": "bad.py", "symbol": "syntax-error", "message-id": '
            '"E0001"}, {"type": "fatal", "line": 1, "path": "bad.py", "symbol": "astroid-error", '
            '"message-id": "F0002"}]',
            [Finding("src/losses/cpe_loss.py", 128, "W5514", "missing-mask-pytorch")],
        ),
        (linters.parse_pylint, "[]\n", []),
        (
            linters.parse_semgrep,
            '{"version": "1.182.0", "results": [{"check_id": "rules.python.pytorch-tensor", '
            '"path": "timm/layers/patch_embed.py", "start": {"line": 193, "col": 23, "offset": '
            '6780}, "end": {"line": 193, "col": 65, "offset": 6822}, "extra": {"severity": '
            '"WARNING"}}], "errors": []}',
            [Finding("timm/layers/patch_embed.py", 193, "", "pytorch-tensor")],
        ),
        (
            linters.parse_json,
            '{"findings": [{"path": "a.py", "line": 3, "code": "S1"}, {"filename": "b.py"}]}',
            [Finding("a.py", 3, "S1"), Finding("b.py", 0, "")],
        ),
    ],
)
def test_parsers(parse: Callable[[str], list[Finding]], text: str, expected: list[Finding]) -> None:
    assert list(parse(text)) == expected


def test_rules_that_do_not_exist_fit_nothing() -> None:
    linter = replace(LINTERS["precision-lint"], known=lambda _: frozenset({"MP301"}))
    fitting = linter.fitting()
    assert fitting["eps-log"] == {"MP301", "eps-before-log"}
    assert fitting["cdist-half"] == frozenset()


def test_a_path_means_the_same_in_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/spam").touch()
    assert linters.located("bin/spam") == str(tmp_path / "bin/spam")
    assert linters.located("spam") == "spam"
    assert linters.located("p/python") == "p/python"  # rules of semgrep's registry


def test_precision_lint_imports_nothing_from_a_tree(tmp_path: Path) -> None:
    for name in ("click", "precision_lint", "pathspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the tree')\n")
    assert LINTERS["precision-lint"].run(tmp_path, ["."], 60) == ([], 0)


def test_precision_lint_lints(tmp_path: Path) -> None:
    linter = LINTERS["precision-lint"]
    (tmp_path / "loss.py").write_text(
        "import torch\n\n\n@torch.autocast('cuda', dtype=torch.float16)\n"
        "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8)\n"
    )
    (found,), _ = linter.run(tmp_path, ["."], 60)
    assert (found.file, found.row, found.code, found.name) == (
        "loss.py", 6, "MP301", "eps-before-log"
    )  # fmt: skip
    assert {"MP301", "eps-before-log"} <= linter.fitting()["eps-log"]
    assert linter.version().startswith("precision-lint")


# The command line


@pytest.fixture
def labelled(monkeypatch: pytest.MonkeyPatch, mirrors: Path) -> None:
    """Two trees of one repository, one of them held out, and one that no mirror has."""
    new = committed(mirrors / "spam+eggs", FILES | {"more.py": "a\nb\n"}, time=2_000_000_000)
    old = committed(mirrors / "spam+eggs", FILES)
    entries = [
        entry(old),
        entry(new, id="spam-2", kind="negative", fix_commit=None, set="held-out"),
        entry("1" * 40, id="ham-1", repo="spam/ham", set="second"),
    ]
    monkeypatch.setattr(
        realworld, "load", lambda kind: [one for one in entries if one.kind == kind]
    )


def main(folder: Path, *arguments: str, prints: str = "[]", code: str = "") -> int:
    linter = fake(folder, prints, code)
    rules = folder / "rules.json"
    rules.write_text('{"eps-log": ["MP301"]}')
    options = ["--mirrors", str(folder / "mirrors"), "--work", str(folder / "work")]
    run = ["--", *linter.executable, *linter.options]
    return realworld.main([*options, "--rules", str(rules), "--jobs", "2", *arguments, *run])


@pytest.mark.usefixtures("labelled")
def test_main(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    rows = json.dumps([found(5), found(5, code="X1", confidence="possible")])
    code = "if '--version' in sys.argv: sys.exit(print('spam 1.2'))"
    assert main(tmp_path, "--only", "eggs", "--output", str(output), prints=rows, code=code) == 0
    results = json.loads(output.read_text())
    assert results["figures"]["cases"]["all"] == {"n": 1, "default": 1, "possible": 1, "near": 1}
    assert results["figures"]["alarms"] == {"lines": 8, "default": 1, "possible": 2, "fitting": 1}
    sets = results["sets"]
    assert list(sets) == ["first", "held-out"]
    assert (sets["first"]["cases"]["all"]["n"], sets["first"]["negatives"]["n"]) == (1, 0)
    assert (sets["held-out"]["cases"]["all"]["n"], sets["held-out"]["negatives"]["n"]) == (0, 1)
    assert [of["alarms"]["lines"] for of in sets.values()] == [6, 8]
    assert {one["id"] for one in results["verdicts"]} == {"spam-1", "spam-2"}
    assert str(tmp_path) not in output.read_text()
    said = capsys.readouterr().out
    assert "2 trees, scope tree" in said
    assert "8 lines in the newest tree of each repository" in said
    said = re.sub(r"(?<=\S) +", " ", said)
    assert "\nfirst set, case 1 / 1 1 / 1 1 / 1\n" in said
    assert "\nheld-out set, case 0 / 0 0 / 0 0 / 0\n" in said
    assert "second set" not in said


@pytest.mark.usefixtures("labelled")
def test_main_tells_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 1
    assert "problem: spam/ham@111111111111: not in " in capsys.readouterr().err


@pytest.mark.usefixtures("labelled")
@pytest.mark.parametrize(
    ("only", "problem"), [("ham-1", "spam/ham@111111111111"), ("nobody", "nothing matches --only")]
)
def test_only(tmp_path: Path, capsys: pytest.CaptureFixture[str], only: str, problem: str) -> None:
    try:
        assert main(tmp_path, "--only", only) == 1
    except SystemExit as end:
        assert (only, end.code) == ("nobody", 2)
    assert problem in capsys.readouterr().err


@pytest.mark.usefixtures("labelled")
def test_a_set_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    assert main(tmp_path, "--set", "held-out", "--output", str(output)) == 0
    assert [one["id"] for one in json.loads(output.read_text())["verdicts"]] == ["spam-2"]
    with pytest.raises(SystemExit) as end:
        main(tmp_path, "--set", "held-out", "--only", "ham")
    assert end.value.code == 2
    assert "nothing matches --only ham in the set held-out" in capsys.readouterr().err


def test_entries_are_linted_together_if_they_want_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry(id="spam-1"),
        entry(id="spam-2", within="spam"),
        entry(id="spam-3", set="held-out"),
        entry("1" * 40, id="spam-4"),
    ]
    found = {"case": entries, "negative": [], "residual": []}
    monkeypatch.setattr(realworld, "load", found.__getitem__)
    groups = [[one.id for one in group] for group in realworld.selected(None, None)]
    assert groups == [["spam-1", "spam-3"], ["spam-2"], ["spam-4"]]


def test_a_linter_that_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        realworld.main(["--linter", "torchfix", "--executable", "/no/such/torchfix"])
    assert end.value.code == 2
    assert "/no/such/torchfix cannot be run" in capsys.readouterr().err


# The tables of the README


def test_tables(monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    verdicts = [judged(entry(), [Finding("spam/loss.py", 5, "MP301")], tree, FITTING)]
    counted = summary([one for one in verdicts if one], [])
    counted["alarms"] = {"lines": 4000, "default": 2, "possible": 3, "fitting": 1}
    result = {"version": "torchfix 1.2", "scope": "file", "sets": {"first": counted}}
    monkeypatch.setattr(figures, "results", lambda: {"torchfix": result})
    text = figures.rendered("# Title\n\n<!-- linters -->\nold\n<!-- end -->\n\nrest\n")
    rows = text.splitlines()
    assert rows[0] == "# Title" and rows[-1] == "rest"
    cells = ["0 / 0" if context != "same-file" else "1 / 1" for context in CONTEXTS]
    assert (
        f"| torchfix 1.2 (files) | {' | '.join(cells)} | **1 / 1** | 1 / 1 | 1 / 1 | 0 / 0 "
        "| 0.50 | 0.25 |"
    ) in rows
    assert figures.rendered(text) == text


def test_a_table_by_set(monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    flagged = judged(entry(), [Finding("spam/loss.py", 5, "MP301")], tree, FITTING)
    missed = judged(entry(set="held-out"), [], tree, FITTING)
    sets = {one.set: summary([one], []) for one in (flagged, missed) if one}
    monkeypatch.setattr(figures, "results", lambda: {"precision-lint": {"sets": sets}})
    head, _, *rows = figures.by_set()
    assert head == (
        "| Context | first: by default | first: with possible | held-out: by default "
        "| held-out: with possible |"
    )
    assert "| same-file | 1 / 1 | 1 / 1 | 0 / 1 | 0 / 1 |" in rows
    assert "| all cases | 1 / 1 | 1 / 1 | 0 / 1 | 0 / 1 |" in rows
    assert rows[-1] == "| false alarms on negatives | 0 / 0 | 0 / 0 | 0 / 0 | 0 / 0 |"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("spam 1.2.3", "spam 1.2.3"),
        ("1.182.0", "spam 1.182.0"),
        ("pylint 2.12.2, astroid 2.9.3", "spam (pylint 2.12.2)"),
        ("unknown", "spam"),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, said: str, expected: str) -> None:
    counted = summary([], [])
    counted["alarms"]["lines"] = 1
    result = {"version": said, "scope": "tree", "sets": {"first": counted}}
    monkeypatch.setattr(figures, "results", lambda: {"spam": result})
    assert list(figures.linters())[-1].startswith(f"| {expected} | 0 / 0 |")
