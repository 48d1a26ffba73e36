"""Every before of the incidents is flagged by the rule one would expect, every after is silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_lint import cli, inspection, registry
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import users, witnesses
from tests.incidents import (
    AFTER,
    BEFORE,
    HELPER,
    INLINE,
    LATE,
    SKIP,
    SKIP_AND_UPDATE,
    UNSCALE,
    Case,
    Files,
    trainer,
)

PAGE = Path(__file__).parent.parent / "docs" / "fixes.md"


class Project:
    """Files in a directory, linted through the command line."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capfd = capfd

    def write(self, files: Files) -> None:
        (self.root / "pyproject.toml").write_text('[project]\nname = "vision"\n')
        for name, text in files.items():
            compile(text, name, "exec")
            (self.root / name).write_text(text)

    def lint(self, *arguments: str) -> list[dict[str, Any]]:
        """The JSON report at default confidence."""
        always = ("--output-format", "json", "--jobs", "1", "--isolated", str(self.root))
        assert cli.main([*arguments, *always]) in (0, 1)
        found: list[dict[str, Any]] = json.loads(self.capfd.readouterr().out)
        return [f for f in found if f["code"] != "MP212"]  # a note on names, not a hazard

    def line(self, found: dict[str, Any]) -> str:
        lines = Path(found["filename"]).read_text().splitlines()
        return str(lines[found["location"]["row"] - 1])


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capfd)


def expected_lines(case: Case) -> set[tuple[str, str]]:
    lines = [line for text in case.files.values() for line in text.splitlines()]
    wanted = set()
    for code, fragments in case.expected.items():
        for fragment in fragments:
            (line,) = (line for line in lines if fragment in line)
            wanted.add((code, line))
    return wanted


@pytest.mark.parametrize("name", BEFORE)
def test_before_is_flagged(project: Project, name: str) -> None:
    case = BEFORE[name]
    project.write(case.files)
    found = project.lint()
    wanted = expected_lines(case)
    assert wanted <= {(f["code"], project.line(f)) for f in found}
    assert wanted


@pytest.mark.parametrize("name", [name for name in BEFORE if "in two files" in name])
def test_a_hook_sees_in_one_file_what_the_other_shows(project: Project, name: str) -> None:
    project.write(BEFORE[name].files)
    every = [f for f in project.lint() if f["filename"].endswith("losses.py")]
    project.root /= "losses.py"
    assert [(f["code"], f["location"]) for f in project.lint()] == [
        (f["code"], f["location"]) for f in every
    ]
    assert every


@pytest.mark.parametrize("name", AFTER)
def test_after_is_silent(project: Project, name: str) -> None:
    assert not AFTER[name].expected
    project.write(AFTER[name].files)
    assert [(f["code"], project.line(f)) for f in project.lint()] == []


@pytest.mark.parametrize("name", [name for name in BEFORE if "in two files" not in name])
def test_fix_cures_what_it_promises(project: Project, name: str) -> None:
    project.write(BEFORE[name].files)
    before = project.lint()
    unfixable = [f["code"] for f in before if not f["fix"] or f["fix"]["applicability"] != "safe"]
    assert [f["code"] for f in project.lint("--fix")] == unfixable
    for file in project.root.glob("*.py"):
        compile(file.read_text(), file.name, "exec")


def test_every_incident_is_proven(tmp_path: Path) -> None:
    """By execution, and so is what the fix makes of it: forward, backward and in the training step."""
    found = []
    for number, name in enumerate(name for name in BEFORE if "in one file" not in name):
        root = tmp_path / f"project{number}"
        root.mkdir()
        Project(root, None).write(BEFORE[name].files)  # type: ignore[arg-type]
        resolver = Resolver(Overrides(ignore=("MP212",), no_cache=True), None, True)
        found += users.plans(inspection.examine([root], resolver), [])
    verdicts = list(witnesses.search(found, jobs=2, seconds=200))
    assert [f"{one.place} {one.reason}" for one in verdicts if one.outcome != "proven"] == []
    cured = [one for one in verdicts if one.plan.cure]
    assert [one.place for one in cured if one.fixed is None or one.answer["note"]] == []
    assert len(verdicts) >= len(BEFORE) / 2


def test_evidence_of_another_file_is_named(project: Project) -> None:
    project.write(BEFORE["mask pooling, in two files"].files)
    (found,) = project.lint()
    assert Path(found["filename"]).name == "losses.py"
    assert [Path(link["filename"]).name for link in found["evidence"]] == ["trainer.py"]


# the trainer, executed: GradScaler itself says which repairs hold


class Criterion(torch.nn.Module):
    """Squared error whose gradient is inf for inputs that are."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.float() - target).square().mean()


def train(files: Files) -> None:
    """Three batches on the CPU; the gradients of the second are not finite."""
    text = files["train.py"].replace('"cuda"', '"cpu"')
    namespace: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), namespace)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.full((1, 2), value), torch.ones(1, 1)) for value in (1.0, torch.inf, 1.0)]
    namespace["Trainer"](model, Criterion(), optimizer).train_epoch(batches)


@pytest.mark.parametrize("check", [INLINE, HELPER], ids=["inline", "helper"])
@pytest.mark.parametrize(
    ("skip", "after_backward", "before_clip", "raises"),
    [
        (SKIP, "", LATE, False),
        (SKIP_AND_UPDATE, UNSCALE, "", False),
        (SKIP_AND_UPDATE, UNSCALE, LATE, True),
        (SKIP, UNSCALE, "", True),
    ],
    ids=["before", "after", "duplicate kept", "no update"],
)
def test_double_unscale_is_what_raises(
    project: Project, check: str, skip: str, after_backward: str, before_clip: str, raises: bool
) -> None:
    files = trainer(check + skip, after_backward, before_clip)
    project.write(files)
    assert ("MP103" in {f["code"] for f in project.lint()}) == raises
    if raises:
        with pytest.raises(RuntimeError, match="unscale_"):
            train(files)
    else:
        train(files)


# repairs of the reports that are not good enough, and where the rules say so


@pytest.mark.parametrize(
    ("code", "section", "words"),
    [
        ("MP301", "Why it breaks", ["clamp(min=1e-6)", "leaves the gradient infinite"]),
        ("MP501", "Why it breaks", ["K.to(points.dtype)", "13 pixels", "goes up to float32"]),
        ("MP501", "Why it breaks", ["`.float()` on the operands alone does nothing"]),
        ("MP201", "Fix safety", ["casting it back", "stays float32"]),
        ("MP504", "Fix safety", ["above 65504 would be inf in half"]),
        ("MP103", "Why it breaks", ["naive repair of MP101"]),
    ],
)
def test_rule_says_which_repair_is_not_enough(code: str, section: str, words: list[str]) -> None:
    text = " ".join(registry.document(registry.rules()[code]).sections[section].split())
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("repair", ["clamp(min=1e-6)", "K.to(points.dtype)", "Adam(eps=1e-4)"])
def test_the_page_says_which_popular_repair_is_not_enough(repair: str) -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Popular fixes that are not")
    assert f"{repair}`" in section.partition("\n#")[0]
