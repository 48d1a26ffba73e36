"""The registry: finds rules by package name, and refuses every malformed one with one line."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from precision_lint import registry
from precision_lint.api import Cost
from precision_lint.harness import collect

GOOD = '''\
import math

from precision_lint.api import Applicability, Rule, Severity


class SpamOverflow(Rule):
    """Spam that overflows in float16.

    ## What it flags
    Spam.

    ## Why it breaks
    Eggs.

    ## Example
    Ham.

    ## Fix safety
    None.

    ## How to silence
    # noqa: MP901

    ## Sources
    The menu.
    """

    code, name = "MP901", "spam-overflow"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    listens = ("square-overflow",)

    def check(self, event, at):
        yield from ()
'''
_numbers = itertools.count()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package that can be imported, under a name never used before."""
    folder = tmp_path / f"private_rules_{next(_numbers)}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def write(package: Path, text: str = GOOD, stem: str = "mp901_spam_overflow") -> Path:
    path = package / f"{stem}.py"
    path.write_text(text)
    return path


def test_good_rule_is_loaded(package: Path) -> None:
    write(package)
    second = GOOD.replace("MP901", "MP902").replace("spam-overflow", "ham-overflow")
    write(package, second, "mp902_ham_overflow")
    found = registry.load(package.name)
    assert list(found) == ["MP901", "MP902"]
    assert found["MP901"].name == "spam-overflow"


SECTION = "\n    ## Sources\n    The menu.\n"
MALFORMED = {
    "no code": ('code, name = "MP901", ', "name = ", "has no code"),
    "no name": ('code, name = "MP901", "spam-overflow"', 'code = "MP901"', "has no name"),
    "no severity": ("severity, applicability = Severity.ERROR, ", "applicability = ", "severity"),
    "no applicability": (", applicability = Severity.ERROR, Applicability.SAFE", " = None", "appl"),
    "no listens": ('listens = ("square-overflow",)', "", "has no listens"),
    "code of the engine": ('"MP901"', '"MP001"', "code is 'MP001'"),
    "code too long": ('"MP901"', '"MP9010"', "code is 'MP9010'"),
    "code of another type": ('"MP901"', "901", "code is 901"),
    "name with a capital": ('"spam-overflow"', '"Spam-overflow"', "kebab-case"),
    "name of one word": ('"spam-overflow"', '"spam"', "kebab-case"),
    "name of another type": ('"spam-overflow"', "None", "kebab-case"),
    "name of another module": ('"spam-overflow"', '"ham-overflow"', "rename it to mp901_ham"),
    "code of another module": ('"MP901"', '"MP902"', "rename it to mp902_spam_overflow"),
    "severity of another type": ("Severity.ERROR", '"error"', "severity is 'error'"),
    "applicability of another type": ("Applicability.SAFE", '"safe"', "applicability is 'safe'"),
    "listens to nothing": ('("square-overflow",)', "()", "listens is ()"),
    "listens of another type": ('("square-overflow",)', "(3,)", "listens is (3,)"),
    "no check": ("def check(", "def chekc(", "check is not defined"),
    "no summary": ('"""Spam that overflows in float16.\n', '"""\n', "no summary"),
    "no docstring": (GOOD[GOOD.index('    """') : GOOD.index("    code,")], "", "no summary"),
    "missing section": (SECTION, "", "docstring sections are"),
    "sections out of order": (
        "    Spam.\n",
        f"    Spam.\n{SECTION}",
        "docstring sections are",
    ),
    "no rule": ("(Rule):", ":", "has 0 rules"),
    "two rules": ("\nclass", "\nclass Other(Rule):\n    pass\n\n\nclass", "has 2 rules"),
    "syntax error": ("def check(", "def check((", "cannot be imported"),
    "import error": ("import math", "import math\nimport no_such_module", "no_such_module"),
    "crash at import": ('("square-overflow",)', "(1 / 0,)", "ZeroDivisionError"),
}


@pytest.mark.parametrize(("old", "new", "what"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_rule_is_refused(package: Path, old: str, new: str, what: str) -> None:
    assert GOOD.count(old) >= 1
    path = write(package, GOOD.replace(old, new, 1))
    with pytest.raises(registry.InvalidRule) as caught:
        registry.load(package.name)
    line = str(caught.value)
    assert re.fullmatch(rf"{re.escape(str(path))}:\d+: [^;\n]+; [^\n]+", line)
    assert what in line


@pytest.mark.parametrize(
    ("old", "new"), [("spam-overflow", "ham-overflow"), ("MP901", "MP902")], ids=["code", "name"]
)
def test_second_rule_of_a_code_or_a_name_is_refused(package: Path, old: str, new: str) -> None:
    write(package)
    text = GOOD.replace(old, new)
    stem = "mp902_spam_overflow" if "MP902" in text else "mp901_ham_overflow"
    write(package, text, stem)
    with pytest.raises(registry.InvalidRule, match=r"^.+\.py:\d+: code or name is taken by .+; "):
        registry.load(package.name)


def test_missing_package_says_what_to_do() -> None:
    with pytest.raises(registry.InvalidRule, match="install the project") as caught:
        registry.load("no_such_package.rules")
    assert "\n" not in str(caught.value)


def test_document_splits_the_docstring(package: Path) -> None:
    write(package)
    doc = registry.document(registry.load(package.name)["MP901"])
    assert doc.summary == "Spam that overflows in float16."
    assert doc.sections["Fix safety"] == "None."
    assert doc.sections["How to silence"] == "# noqa: MP901"
    assert tuple(doc.sections) == registry.SECTIONS


def test_selectors(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(package)
    found = registry.load(package.name)
    entries = {code: registry.Entry.of(rule) for code, rule in found.items()}
    monkeypatch.setattr(registry, "entries", lambda: entries)
    monkeypatch.setattr(registry, "names", lambda: {"spam-overflow": "MP901"})
    assert registry.known("MP901") == ["MP901"]
    assert registry.known("MP9") == ["MP901"]
    assert registry.known("MP0") == list(registry.ENGINE_CODES)
    assert registry.known("spam-overflow") == ["MP901"]
    assert registry.known("ALL") == [*registry.ENGINE_CODES, "MP901"]
    assert registry.known("MP8") == []
    assert registry.known("E501") == []


def test_loading_the_rules_needs_neither_torch_nor_libcst(tmp_path: Path) -> None:
    code = (
        "import sys; from precision_lint import registry; registry.rules(); "
        "assert not {'torch', 'libcst', 'rich', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_aliases_name_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = registry.entries()
    aliased = replace(entries["MP301"], aliases=("log-of-eps",))
    monkeypatch.setattr(registry, "entries", lambda: entries | {"MP301": aliased})
    registry.names.cache_clear()
    try:
        assert registry.known("log-of-eps") == registry.known("eps-before-log") == ["MP301"]
    finally:
        registry.names.cache_clear()


def test_aliases_may_not_be_taken(package: Path) -> None:
    (package / "mp901_spam_overflow.py").write_text(GOOD)
    other = GOOD.replace("MP901", "MP902").replace("SpamOverflow", "HamOverflow")
    other = other.replace('"spam-overflow"', '"ham-overflow"')
    other = other.replace("    listens", '    aliases = ("spam-overflow",)\n    listens')
    (package / "mp902_ham_overflow.py").write_text(other)
    with pytest.raises(registry.InvalidRule, match="code or name is taken"):
        registry.load(package.name)


CHILD = (
    "import json; from precision_lint import registry; found = registry.entries(); "
    "print(json.dumps([any(name.startswith('precision_lint.rules.') for name in "
    "__import__('sys').modules), {code: [e.name, *e.listens] for code, e in found.items()}]))"
)


def test_entries_are_remembered_beside_the_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether rules are imported: the first time, not again, and again when one has changed."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def child() -> tuple[bool, dict[str, list[str]]]:
        run = subprocess.run(
            [sys.executable, "-c", CHILD], env=env, capture_output=True, check=True
        )
        imported, found = json.loads(run.stdout)
        return imported, found

    rules = {code: [rule.name, *rule.listens] for code, rule in registry.rules().items()}
    assert child() == (True, rules)
    assert child() == (False, rules)
    (file,) = tmp_path.rglob("catalogue.json")
    for damaged in ("", "[]", "{", file.read_text().replace("mp301_", "mp300_")):
        file.write_text(damaged)
        assert child() == (True, rules)
        assert child() == (False, rules)


def test_entry_points_of_others_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what other tests imported may have left a finder or an archive behind
    finders = [f for f in sys.meta_path if f is PathFinder or not hasattr(f, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not registry._others()
    points = tmp_path / "rays-1.0.dist-info" / "entry_points.txt"
    points.parent.mkdir()
    points.write_text("[console_scripts]\nrays = rays:main\n")
    assert not registry._others()
    points.write_text("[precision_lint.rules]\nrays = rays.rules\n")
    assert registry._others()
    monkeypatch.setattr(sys, "path", [str(points)])  # as an archive is
    assert registry._others()


@pytest.mark.parametrize("code", registry.rules())
def test_the_cost_of_a_rule_is_what_its_proof_shows(code: str) -> None:
    rule = registry.rules()[code]
    kinds = {
        failure.kind
        for case in collect.proof(rule).cases
        for expected in case.before.values()
        for failure in (expected if isinstance(expected, tuple) else (expected,))
        if failure is not None
    }
    silent = kinds - {"raises", "promoted"}
    if rule.cost is not Cost.STYLE and kinds:
        assert rule.cost is (Cost.SILENT if silent else Cost.RAISES)
