"""The labelled bugs: what the files must hold so that they can be scored and cited."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.realworld import figures
from benchmarks.realworld.cases import (
    HERE,
    KEYS,
    KINDS,
    OPTIONAL,
    SETS,
    Entry,
    InvalidEntry,
    categories,
    load,
)
from precision_lint import registry

ENTRIES = [entry for kind in KINDS for entry in load(kind)]
VALID = {
    "id": "spam-1",
    "set": "second",
    "repo": "spam/eggs",
    "fix_commit": "a" * 40,
    "parent_commit": "b" * 40,
    "file": "spam/loss.py",
    "lines": [3, 4],
    "category": "eps-log",
    "context": "same-file",
    "description": "An epsilon that is 0 in half.",
    "fix": "It is larger.",
}


def test_sizes() -> None:
    assert Counter((entry.set, entry.kind) for entry in ENTRIES) == {
        ("first", "case"): 114,
        ("first", "negative"): 58,
        ("first", "residual"): 11,
        ("second", "case"): 259,
        ("second", "negative"): 54,
        ("held-out", "case"): 41,
        ("held-out", "negative"): 52,
    }
    fixes = {(one.set, one.repo, one.fix_commit) for one in ENTRIES if one.kind == "case"}
    assert Counter(of for of, *_ in fixes) == {"first": 100, "second": 246, "held-out": 39}


def test_no_repository_gives_cases_to_two_sets() -> None:
    """Bugs of one repository are alike: what was learnt on one set would show on the other."""
    named = {(one.repo, one.set) for one in ENTRIES if one.kind == "case"}
    assert [repo for repo, n in Counter(repo for repo, _ in named).items() if n > 1] == []


def test_the_held_out_negatives_share_no_repository_with_the_first_set() -> None:
    first, held_out = ({one.repo for one in ENTRIES if one.set == of} for of in SETS[::2])
    assert first & held_out == set()


def test_ids_are_unique_over_all_files() -> None:
    assert [one for one, n in Counter(entry.id for entry in ENTRIES).items() if n > 1] == []


def test_every_category_is_used() -> None:
    assert {entry.category for entry in ENTRIES} == set(categories())


@pytest.mark.parametrize("kind", KINDS)
def test_descriptions_stand_alone(kind: str) -> None:
    texts = [text for one in load(kind) for text in (one.description, one.fix) if text]
    assert [text for text in texts if not re.fullmatch(r"[^\n]{10,260}[.)]", text)] == []
    assert max(Counter(one.description for one in load(kind)).values()) <= 2


def test_rules_of_this_linter_are_named_as_they_are() -> None:
    """A category may name a rule that does not exist yet, but none by a wrong name."""
    names = {code: rule.name for code, rule in registry.load().items()}
    mapped = {
        (code, name)
        for category in categories().values()
        for rule in category.rules.get("precision-lint", ())
        for code, name in [sorted(rule, key=lambda word: not word.startswith("MP"))]
    }
    assert len({code for code, _ in mapped}) == len(mapped)
    assert [(code, name) for code, name in mapped if names.get(code, name) != name] == []


def test_what_is_linted_of_a_tree(tmp_path: Path) -> None:
    (entry,) = load("case", written(tmp_path / "cases.jsonl", within="spam"))
    assert entry.within == "spam"


def written(path: Path, **changes: object) -> Path:
    row = {key: value for key, value in (VALID | changes).items() if value != "absent"}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_valid_case(tmp_path: Path) -> None:
    (entry,) = load("case", written(tmp_path / "cases.jsonl"))
    assert entry == Entry(
        "case", "spam-1", "spam/eggs", "b" * 40, "spam/loss.py", (3, 4), "eps-log", "same-file",
        "An epsilon that is 0 in half.", "a" * 40, "It is larger.", "second", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fix": "absent"}, "keys fix"),
        ({"note": "surplus"}, "keys note"),
        ({"parent_commit": "b" * 12}, "40 hexadecimal digits"),
        ({"fix_commit": "master"}, "40 hexadecimal digits"),
        ({"repo": "eggs"}, "owner/name"),
        ({"set": "absent"}, "keys set"),
        ({"set": "third"}, "write one of first, second, held-out"),
        ({"within": "eggs"}, "file is not within 'eggs'"),
        ({"within": "spam/loss.py"}, "file is not within 'spam/loss.py'"),
        ({"within": "spam/"}, "file is not within 'spam/'"),
        ({"within": ""}, "file is not within ''"),
        ({"file": "/spam/loss.py"}, "relative to the repository"),
        ({"file": "spam/../loss.py"}, "relative to the repository"),
        ({"lines": None}, "lines are null"),
        ({"lines": [4, 3]}, r"lines are \[4, 3\]"),
        ({"lines": [0, 3]}, r"lines are \[0, 3\]"),
        ({"category": "eps-spam"}, "add it to categories.json"),
        ({"context": "elsewhere"}, "write one of same-function"),
        ({"context": None}, "write one of same-function"),
        ({"description": ""}, "a text is empty"),
        ({"fix": ""}, "a text is empty"),
    ],
)
def test_an_invalid_case_is_refused(tmp_path: Path, changes: dict[str, object], what: str) -> None:
    with pytest.raises(InvalidEntry, match=rf"^cases\.jsonl:1: .*{what}"):
        load("case", written(tmp_path / "cases.jsonl", **changes))


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    path = written(tmp_path / "cases.jsonl")
    path.write_text(path.read_text() * 2)
    with pytest.raises(InvalidEntry, match=r"^cases\.jsonl:2: id spam-1 is taken"):
        load("case", path)


def test_a_line_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("{\n")
    with pytest.raises(InvalidEntry, match=r"^cases\.jsonl:1: "):
        load("case", path)


def test_the_readme_documents_every_key() -> None:
    text = (HERE / "README.md").read_text()
    keys = {key for kind in KEYS for key in KEYS[kind] | OPTIONAL[kind]}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_the_readme_shows_the_results() -> None:
    text = (HERE / "README.md").read_text()
    assert figures.rendered(text) == text


def test_every_read_alarm_has_a_place_a_verdict_and_a_reason() -> None:
    read = [json.loads(line) for line in (HERE / "alarms.jsonl").read_text().splitlines()]
    assert len(read) >= 100
    for alarm in read:
        assert set(alarm) == {
            "repo",
            "commit",
            "file",
            "line",
            "rule",
            "group",
            "shown",
            "verdict",
            "reason",
        }
        assert alarm["verdict"] in figures.VERDICTS and alarm["group"] in figures.GROUPS
        assert len(alarm["reason"].split()) >= 4
        assert alarm["line"] > 0


def test_rules_in_preview_are_those_that_are_wrong_too_often_in_libraries() -> None:
    read = [json.loads(line) for line in (HERE / "alarms.jsonl").read_text().splitlines()]
    verdicts: dict[str, list[str]] = {}
    for alarm in read:
        if alarm["group"] == "libraries" and alarm["shown"]:
            verdicts.setdefault(alarm["rule"], []).append(alarm["verdict"])
    wrong = {rule for rule, of in verdicts.items() if of.count("wrong") > 0.15 * len(of)}
    few = {rule for rule in wrong if len(verdicts[rule]) < 10}
    assert few == {"MP301"}  # one of five
    assert registry.previews() == wrong - few
