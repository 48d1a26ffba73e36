"""What other tools read of this repository: hooks, the action, and the examples for CI."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from precision_lint import cli
from tests import projects

ROOT = Path(__file__).parent.parent
CI = ROOT / "examples" / "ci"
LOSS = """
    import torch

    def loss(x):
        return -(x.sigmoid() + 1e-8).log().mean()

    def other(x):
        return (x.sigmoid() + 1e-8).log()  # precision-lint: ignore[MP301] why not
"""
TRAIN = """
    import torch
    from loss import loss, other

    def step(model, x):
        with torch.autocast("cuda", dtype=torch.float16):
            y = model(x).half()
            return loss(y) + other(y)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "a project"
    projects.write(root, {"loss.py": LOSS, "train.py": TRAIN, "fine.py": "import torch\n"})
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.github-actions", ROOT / "action.yml"),
        ("vendor.github-workflows", CI / "github-lint.yml"),
        ("vendor.github-workflows", CI / "github-fix.yml"),
        ("custom.github-workflows-require-timeout", CI / "github-lint.yml"),
        ("custom.github-workflows-require-timeout", CI / "github-fix.yml"),
        ("vendor.gitlab-ci", CI / "gitlab.yml"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_files_keep_to_their_schemas(schema: str, path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    if "gitlab" in schema:
        command += ["--data-transform", "gitlab-ci"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_examples_use_inputs_that_the_action_has() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    used = [
        step["with"]
        for path in CI.glob("github-*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "precision-lint@" in step.get("uses", "")
    ]
    assert len(used) == 2
    assert {name for one in used for name in one} <= set(inputs)


# the action's own steps


def step(name: str) -> str:
    (text,) = (
        step["run"]
        for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
        if step["name"] == name
    )
    assert "${{" not in text, "what a caller writes must not become code"
    return str(text)


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The variables of a runner on which the tool is installed."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, module in (("precision-lint", " -m precision_lint"), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (bin_ / name).chmod(0o755)
    return {
        "BIN": str(bin_),
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_WORKSPACE": str(Path.cwd()),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "INPUT_PATHS": ".",
        "INPUT_ARGS": "",
        "INPUT_SINCE": "",
        "INPUT_FIX": "false",
        "INPUT_SARIF": str(tmp_path / "out.sarif"),
    }


def bash(text: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def test_the_action_leaves_the_path_of_later_steps_alone() -> None:
    text = (ROOT / "action.yml").read_text()
    assert "GITHUB_PATH" not in text and "GITHUB_ENV" not in text
    for name in ("Lint", "Leave out what comments silence"):
        assert re.search(r'^"\$BIN/|^ *"\$BIN/', step(name), re.MULTILINE)
        assert not re.search(r"^ *(?:precision-lint|python)\b", step(name), re.MULTILINE)


@pytest.mark.skipif(os.name == "nt", reason="needs a bash that runs scripts by their first line")
def test_the_action_annotates_and_reports(project: Path, runner: dict[str, str]) -> None:
    done = bash(step("Lint"), runner)
    assert done.returncode == 0, done.stderr
    assert Path(runner["GITHUB_OUTPUT"]).read_text() == "exit-code=1\n"
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=loss.py,line=5,")
    assert "loss.py:5" in Path(runner["GITHUB_STEP_SUMMARY"]).read_text()

    def results() -> list[Any]:
        report = json.loads(Path(runner["INPUT_SARIF"]).read_text())
        return [result["locations"] for result in report["runs"][0]["results"]]

    assert len(results()) == 2
    assert bash(step("Leave out what comments silence"), runner).returncode == 0
    assert len(results()) == 1
    assert bash(step("Result"), runner | {"CODE": "1"}).returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="needs a bash that runs scripts by their first line")
def test_the_action_fixes_and_takes_options(project: Path, runner: dict[str, str]) -> None:
    (project / "a b").mkdir()
    (project / "a b" / "m.py").write_text("import torch\nx = (\n")
    done = bash(step("Lint"), runner | {"INPUT_PATHS": "a b\nfine.py\n"})
    assert done.stdout.startswith("::error file=a b/m.py,line=2,"), done.stderr
    options = {"INPUT_ARGS": "--ignore\nMP002", "INPUT_FIX": "true"}
    assert bash(step("Lint"), runner | options).stdout == ""
    assert "x.float()" in (project / "loss.py").read_text()
    assert Path(runner["GITHUB_OUTPUT"]).read_text() == "exit-code=1\nexit-code=0\n"
    bash(step("Lint"), runner | {"INPUT_SINCE": "nowhere"})
    assert Path(runner["GITHUB_OUTPUT"]).read_text().endswith("exit-code=2\n")


@pytest.mark.skipif(os.name == "nt", reason="needs a bash that runs scripts by their first line")
def test_the_script_for_gitlab(project: Path, runner: dict[str, str]) -> None:
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b.invalid commit -qm a"):
        subprocess.run(["git", *shlex.split(command)], check=True)
    script = yaml.safe_load((CI / "gitlab.yml").read_text())["precision-lint"]["script"]
    assert script[0].startswith("pip install")
    done = bash(script[1], runner)
    assert done.returncode == 0, done.stderr
    (issue,) = json.loads(Path("gl-code-quality-report.json").read_text())
    assert issue["location"]["path"] == "loss.py"
    assert "<failure " in Path("precision-lint.xml").read_text()
    assert bash(script[2], runner).returncode == 1
    merge_request = runner | {"CI_MERGE_REQUEST_DIFF_BASE_SHA": "HEAD"}
    assert bash(script[2], merge_request).returncode == 0, "the base has it already"


@pytest.mark.skipif(os.name == "nt", reason="needs a bash that runs scripts by their first line")
def test_the_workflow_opens_a_pull_request(
    project: Path, runner: dict[str, str], tmp_path: Path
) -> None:
    def git(command: str) -> str:
        done = subprocess.run(
            ["git", *shlex.split(command)], check=True, capture_output=True, text=True
        )
        return done.stdout

    remote = tmp_path / "remote"
    git(f"init -q --bare '{remote}'")
    git("init -q -b main")
    git(f"remote add origin '{remote}'")
    git("add -A")
    git("-c user.name=a -c user.email=a@b.invalid commit -qm base")
    asked = tmp_path / "asked"
    gh = tmp_path / "bin" / "gh"
    gh.write_text(f'#!/bin/sh\n[ "$2" = list ] || echo "$@" >> "{asked}"\n')
    gh.chmod(0o755)
    (job,) = yaml.safe_load((CI / "github-fix.yml").read_text())["jobs"].values()
    script = job["steps"][-1]["run"]
    variables = runner | {"BRANCH": "precision-lint/fix", "INPUT_FIX": "true"}
    assert bash(script, variables).returncode == 0
    assert not asked.exists(), "there is nothing to open"
    assert bash(step("Lint"), variables).returncode == 0
    done = bash(script, variables)
    assert done.returncode == 0, done.stderr
    assert asked.read_text() == "pr create --fill --head precision-lint/fix\n"
    assert git("diff --name-only main origin/precision-lint/fix") == "loss.py\n"
    assert git("status --short") == "", "neither cache nor report is left in the way"


# pre-commit


def hooks() -> list[Any]:
    hooks: list[Any] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return hooks


def test_hooks_judge_a_batch_as_a_whole_run_does(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check, fix, _ = hooks()
    for hook, code in ((check, 1), (fix, 0)):
        program, *args = shlex.split(hook["entry"])
        assert program == "precision-lint"
        # train.py, from which the finding follows, is in another batch
        assert cli.main([*args, *hook["args"], "loss.py", "fine.py"]) == code
    assert re.search(r"loss\.py:5:\d+: error\[MP301\].*train\.py:8", capfd.readouterr().out, re.S)
    assert "x.float()" in (project / "loss.py").read_text()


def test_hooks_skip_what_is_excluded(project: Path) -> None:
    (project / "precision-lint.toml").write_text('extend-exclude = ["loss.py"]\n')
    for hook in hooks()[:2]:
        _, *args = shlex.split(hook["entry"])
        assert cli.main([*args, *hook["args"], "loss.py"]) == 0


def test_the_hook_of_modes_tells_when_code_outgrew_them(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, hook = hooks()
    program, *args = shlex.split(hook["entry"])
    assert program == "precision-lint" and not hook["pass_filenames"]
    assert cli.main(args) == 1
    assert re.search(
        r"train\.py:\d+: amp-float16 is proved and not stated", capsys.readouterr().out
    )
    (project / "precision-lint.toml").write_text('precision = ["amp-float16"]\n')
    assert cli.main(args) == 0
