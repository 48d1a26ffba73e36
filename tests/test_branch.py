"""``--since``: what a branch adds, in repositories that the real git made."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from precision_lint import runner
from tests import standins
from tests.test_cli import Run

HEAD = "import torch\n"


def git(*args: str) -> str:
    """Run git in the working directory, with nobody's configuration."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(message: str = "change") -> str:
    git("add", "-A")
    git("commit", "-qm", message, "--allow-empty")
    return git("rev-parse", "HEAD")


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + text + "\n")
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    git("init", "-q")
    Path(".gitignore").write_text(".precision_lint_cache/\n")
    return Run(capfd, monkeypatch)


@pytest.fixture
def run(bare: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    standins.install(monkeypatch)
    return bare


def added(run: Run, *args: str) -> list[str]:
    """``file:row code`` of what a run since main reports."""
    assert run("--since", "main", "--output-format", "json", *args) in (0, 1), run.err
    return [f"{d['filename']}:{d['location']['row']} {d['code']}" for d in json.loads(run.out)]


def test_the_repository_is_that_of_the_paths(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.py", "BAD")
    commit()
    git("switch", "-qc", "topic")
    write("a.py", "BAD\nODD")
    commit()
    project = Path.cwd()
    monkeypatch.chdir(project.parent)
    assert added(run, "project") == ["project/a.py:3 MP912"]
    assert added(run, "project/a.py") == ["project/a.py:3 MP912"]


def test_only_what_the_branch_adds(run: Run) -> None:
    write("a.py", "BAD\nODD")
    write("b.py", "BAD")
    commit()
    git("switch", "-qc", "topic")
    write("a.py", "x = 1\nODD\nBAD\nBAD")
    write("c.py", "ODD")
    commit()
    write("d.py", "BAD")  # not even known to git
    assert added(run) == ["a.py:5 MP911", "c.py:2 MP912", "d.py:2 MP911"]
    assert added(run, "b.py") == []
    run("--since", "main", ".")
    assert "3 findings not shown; they are not new." in run.out


def test_what_the_base_adds_meanwhile_does_not_count(run: Run) -> None:
    write("a.py", "fine")
    commit()
    git("switch", "-qc", "topic")
    write("b.py", "BAD")
    commit()
    git("switch", "-q", "main")
    write("b.py", "BAD")
    commit("the same on main")
    git("switch", "-q", "topic")
    assert added(run) == ["b.py:2 MP911"]


def test_a_clean_run_looks_at_no_base(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.py", "fine")
    commit()
    calls = []
    real = runner.check

    def check(*args: object, **options: object) -> runner.Result:
        calls.append(args)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "check", check)
    assert added(run) == []
    assert len(calls) == 1


def test_renamed_files_keep_what_they_had(run: Run) -> None:
    write("old name.py", "BAD\n" + "\n".join(f"x{n} = {n}" for n in range(20)))
    commit()
    git("switch", "-qc", "topic")
    Path("sub").mkdir()
    git("mv", "old name.py", "sub/nöw.py")
    assert added(run) == []
    with Path("sub/nöw.py").open("a") as file:
        file.write("ODD\n")
    assert added(run) == ["sub/nöw.py:23 MP912"]


def test_comments_and_settings_are_those_of_today(run: Run) -> None:
    write("a.py", "BAD  # noqa: MP911\nODD")
    Path("precision-lint.toml").write_text('ignore = ["MP912"]\n')
    commit()
    git("switch", "-qc", "topic")
    Path("precision-lint.toml").write_text("")
    assert added(run) == [], "a rule that is switched on is not the branch's code"
    write("a.py", "BAD\nODD")
    assert added(run) == ["a.py:2 MP911"], "a comment that is taken away is"


def test_per_file_ignores_hold_in_the_base(run: Run) -> None:
    Path("precision-lint.toml").write_text('per-file-ignores = { "/tests/" = ["MP911"] }\n')
    write("tests/a.py", "BAD")
    commit()
    git("switch", "-qc", "topic")
    git("mv", "tests", "src")
    assert added(run) == ["src/a.py:2 MP911"]


def test_only_what_is_new_is_fixed(run: Run) -> None:
    path = write("a.py", "BAD")
    commit()
    path.write_text(f"{HEAD}BAD\nx\nBAD\n")
    assert run("--since", "HEAD", "--diff", ".") == 1
    assert run.out.count("+GOOD") == 1
    assert run("--since", "HEAD", "--fix", ".") == 0
    assert path.read_text() == f"{HEAD}BAD\nx\nGOOD\n"
    assert git("status", "--short") == "M a.py", "nothing is left behind"
    assert run("--since", "HEAD", "--add-noqa", ".") == 0
    assert "Added 0 comments" in run.out


def test_from_a_subdirectory_and_with_a_baseline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("src/a.py", "BAD")
    commit()
    write("src/a.py", "BAD\nODD\nMEH")
    monkeypatch.chdir("src")
    assert added(run) == ["a.py:3 MP912", "a.py:4 MP921"]
    run("baseline", "create", "--baseline", "held.json", "--select", "MP912")
    assert added(run, "--baseline", "held.json") == ["a.py:4 MP921"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_through_a_link_to_the_repository(run: Run, tmp_path: Path) -> None:
    write("src/a.py", "BAD")
    commit()
    write("src/a.py", "BAD\nODD")
    link = tmp_path / "link"
    link.symlink_to(Path.cwd())
    assert added(run, str(link / "src")) == [f"{link}/src/a.py:3 MP912"]


def test_why_a_file_cannot_be_linted_is_always_new(run: Run) -> None:
    write("a.py", "def f(:")
    commit()
    assert added(run) == ["a.py:2 MP002"]


@pytest.mark.parametrize(
    ("ref", "what"),
    [
        ("nowhere", "--since nowhere: git knows no such commit; name a commit"),
        ("--all", "--since --all: git knows no such commit; name a commit"),
        ("", "--since : git knows no such commit; name a commit"),
        ("orphan", "--since orphan: it and HEAD have no commit in common; name a commit"),
    ],
)
def test_mistakes_are_one_line(run: Run, ref: str, what: str) -> None:
    write("a.py", "BAD")
    commit()
    git("switch", "-q", "--orphan", "orphan")
    commit()
    git("switch", "-q", "main")
    assert run(f"--since={ref}", ".") == 2
    assert run.err.startswith(what)
    assert run.err.count("\n") == 1


def test_no_repository_and_no_git(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--since", "main", "-") == 2
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("--since", "main", ".") == 2
    assert f"{Path.cwd()} is in no git repository; leave --since out there" in run.err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("--since", "main", ".") == 2
    assert run.err.startswith("--since needs git, which cannot be run")


def told(run: Run, ref: str) -> str:
    """What a run says that cannot tell what is new."""
    assert run("--since", ref, ".") == 2
    assert run.err.count("\n") == 1 and run.err.startswith(f"--since {ref}: ")
    return run.err.removeprefix(f"--since {ref}: ").strip()


def test_repositories_without_a_base(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.py", "BAD")
    assert told(run, "HEAD~1") == "HEAD has no commit yet; commit, or leave --since out"
    commit()
    commit()
    for name, option in (("copy.git", "--bare"), ("shallow", "--depth=1")):
        git("clone", "-q", option, Path("../project").resolve().as_uri(), f"../{name}")
    monkeypatch.chdir(tmp_path / "copy.git")
    assert told(run, "HEAD~1").endswith(
        "copy.git is in no work tree of git; lint a checkout instead"
    )
    monkeypatch.chdir(tmp_path / "shallow")
    how = "run `git fetch --unshallow`, or set fetch-depth: 0 in CI"
    assert told(run, "HEAD~1") == f"git knows no such commit, and the clone is shallow; {how}"
    git("switch", "-qc", "topic")
    shared = "it and HEAD have no commit in common, and the clone is shallow"
    git("update-ref", "refs/heads/topic", git("commit-tree", "-m", "x", "HEAD^{tree}"))
    assert told(run, "main") == f"{shared}; {how}"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert told(run, "main").startswith("git does not trust ")


def test_what_a_change_elsewhere_brings_about_is_new(bare: Run) -> None:
    Path("setup.cfg").touch()
    Path("loss.py").write_text(
        textwrap.dedent("""\
        import torch

        def loss(x):
            return -(x.sigmoid() + 1e-8).log().mean()
        """)
    )
    train = """\
    import torch
    from loss import loss

    def step(model, x):
        with torch.autocast("cuda", dtype=torch.float16, enabled={on}):
            return loss(model(x).half())
    """
    Path("train.py").write_text(textwrap.dedent(train.format(on=False)).replace(".half()", ""))
    commit()
    git("switch", "-qc", "topic")
    assert added(bare) == []
    Path("train.py").write_text(textwrap.dedent(train.format(on=True)))
    assert added(bare) == ["loss.py:4 MP301"]
    commit()
    git("branch", "-f", "main")
    write("other.py", "x = 1")
    assert added(bare) == [], "and it is not, once the base has it"
