"""Every rule is documented, executed, announced and listed; nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from precision_lint import catalogue, registry
from precision_lint.cli import cli
from precision_lint.harness import expectations

ROOT = Path(__file__).parent.parent
CODES = set(registry.rules())


def run(*arguments: str) -> str:
    answer = CliRunner().invoke(cli, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_list_in_the_repository_is_what_the_tool_prints() -> None:
    command = "`precision-lint rules --output-format markdown > rules/README.md`"
    listed = (ROOT / "rules" / "README.md").read_text("utf8")
    assert listed == run("rules", "--output-format", "markdown"), f"run {command}"


def test_codes_are_the_same_everywhere() -> None:
    folders = {f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in
               registry.rules().values()}  # fmt: skip
    fixtures = {path.name for path in (ROOT / "fixtures").iterdir() if path.name[:2] == "mp"}
    modules = {path.stem for path in (ROOT / "rules").glob("mp*.py")}
    assert fixtures == modules == folders
    assert {path.parent.name for path in (ROOT / "fixtures").glob("mp*/proof.py")} == folders
    changelog = set(re.findall(r"\bMP[1-6]\d\d\b", (ROOT / "CHANGELOG.md").read_text("utf8")))
    assert changelog == CODES
    readme = (ROOT / "README.md").read_text("utf8")
    named = set(re.findall(r"\| (MP\d{3} [a-z-]+) \|", readme))
    assert named and named <= {f"{code} {rule.name}" for code, rule in registry.rules().items()}
    assert f"There are {len(CODES)} " in readme
    described = {rule["code"] for rule in json.loads(run("rules", "--output-format", "json"))}
    assert described == CODES | set(registry.ENGINE_CODES)


@pytest.mark.parametrize("code", [*registry.ENGINE_CODES, *registry.rules()])
def test_every_code_can_be_explained_and_belongs_to_a_group(code: str) -> None:
    assert run("explain", code).startswith(f"# {catalogue.described(code)['name']} ({code})")
    assert code[:3] in catalogue.GROUPS


def test_every_rule_has_fixtures_of_its_own() -> None:
    found = {fixture.rule for fixture in expectations.fixtures(expectations.home())}
    assert {name[:5].upper() for name in found} == CODES
