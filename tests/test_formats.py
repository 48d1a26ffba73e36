"""Formats for machines, held against the schemas that their readers go by."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.message import Message
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as XML

import jsonschema
import pytest
import xmlschema

from precision_lint import catalogue, registry
from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Evidence,
    Fix,
    Position,
    Severity,
    Silenced,
)
from precision_lint.report import FORMATS, MACHINE, Aside
from precision_lint.source import Source
from tests import projects

DATA = Path(__file__).parent / "data"
CODE = """\
import torch


def loss(x):
    p = x.sigmoid()  # größer
    return -(p + 1e-8).log()
"""
SOURCES = {"train.py": Source("train.py", CODE)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_WORKSPACE", "GITHUB_SERVER_URL", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def diagnostic(
    code: str = "MP301",
    name: str = "train.py",
    start: tuple[int, int] = (6, 13),
    end: tuple[int, int] = (6, 29),
    message: str = "epsilon 1e-08 rounds to 0",
    severity: Severity = Severity.ERROR,
    evidence: tuple[Evidence, ...] = (),
    fix: Fix | None = None,
    internal: bool = False,
) -> Diagnostic:
    places = Position(*start), Position(*end)
    sure = Confidence.LIKELY
    return Diagnostic(
        code, "a-name", message, name, *places, severity, sure, evidence, fix, None, internal
    )


def fix(applicability: Applicability = Applicability.SAFE, reason: str | None = None) -> Fix:
    at = CODE.index("x.sigmoid") + 1
    return Fix("upcast x", applicability, (Edit(at, at, ".float()"),), reason)


CHAIN = (
    Evidence("p is half", Position(5, 5), Position(5, 6)),
    Evidence("the region opens here", Position(88, 10), filename="src/main file.py"),
    Evidence("half is on here", filename="conf.yaml"),
    Evidence("the smallest positive float16 is 5.96e-08"),
)
EVERYTHING = (
    diagnostic(evidence=CHAIN, fix=fix()),
    diagnostic(fix=fix(Applicability.UNSAFE, "a reason")),
    diagnostic("MP401", severity=Severity.INFO, fix=fix(Applicability.DISPLAY, "two optimizers")),
    diagnostic("MP102", start=(5, 1), end=(6, 4), severity=Severity.WARNING),
    diagnostic("MP002", "bad\x1b,: %ü]]>&<.py", (1, 1), (1, 1), "a,b: 100%\nß|*`<b>\x07\udcff"),
    diagnostic("MP003", "vanished.py", (9, 1), (9, 1), internal=True),
)


def render(name: str, *found: Diagnostic, aside: Aside = Aside()) -> str:  # noqa: B008
    return FORMATS[name](found, SOURCES, aside=aside)


# SARIF


@cache
def _sarif_schema() -> Any:
    return json.loads((DATA / "sarif-2.1.0.json").read_text("utf8"))


def sarif(*found: Diagnostic, aside: Aside = Aside()) -> Any:  # noqa: B008
    """The one run of a report, which keeps to the schema."""
    report = json.loads(render("sarif", *found, aside=aside))
    validator = jsonschema.Draft202012Validator(_sarif_schema())
    assert [error.message for error in validator.iter_errors(report)] == []
    (run,) = report["runs"]
    return run


def test_sarif_keeps_to_the_schema_whatever_is_found() -> None:
    assert len(sarif(*EVERYTHING)["results"]) == len(EVERYTHING)
    assert sarif()["results"] == []
    broken = json.loads(render("sarif", diagnostic()))
    broken["runs"][0]["results"][0]["level"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, _sarif_schema())


def test_sarif_result() -> None:
    (result,) = sarif(diagnostic(evidence=CHAIN[:1], fix=fix(Applicability.UNSAFE, "why")))[
        "results"
    ]
    artifact = {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    found = {
        "artifactLocation": artifact,
        "region": {
            "startLine": 6,
            "startColumn": 13,
            "endLine": 6,
            "endColumn": 29,
            "snippet": {"text": "(p + 1e-8).log()"},
        },
    }
    link = {
        "physicalLocation": {
            "artifactLocation": artifact,
            "region": {
                "startLine": 5,
                "startColumn": 5,
                "endLine": 5,
                "endColumn": 6,
                "snippet": {"text": "p"},
            },
        },
        "message": {"text": "p is half"},
    }
    (key,) = result["partialFingerprints"].values()
    assert result.pop("ruleIndex") == 0
    assert re.fullmatch(r"MP301:[0-9a-f]{16}:1", key)
    message = {"text": "epsilon 1e-08 rounds to 0"}
    deleted = {"startLine": 5, "startColumn": 10, "endLine": 5, "endColumn": 10}
    assert result == {
        "ruleId": "MP301",
        "level": "error",
        "message": message,
        "locations": [{"physicalLocation": found}],
        "partialFingerprints": {"expressionHash/v1": key},
        "properties": {"confidence": "likely"},
        "relatedLocations": [{"id": 1} | link],
        "codeFlows": [
            {
                "threadFlows": [
                    {
                        "locations": [
                            {"location": link},
                            {"location": {"physicalLocation": found, "message": message}},
                        ]
                    }
                ]
            }
        ],
        "fixes": [
            {
                "description": {"text": "upcast x (unsafe: why)"},
                "artifactChanges": [
                    {
                        "artifactLocation": artifact,
                        "replacements": [
                            {"deletedRegion": deleted, "insertedContent": {"text": ".float()"}}
                        ],
                    }
                ],
                "properties": {"applicability": "unsafe"},
            }
        ],
    }


def test_assumptions_are_listed_worst_first() -> None:
    assumed = ("the values are large enough", "this is a tensor of floats")
    found = replace(diagnostic(evidence=CHAIN[:1]), assumptions=assumed)
    (result,) = sarif(found)["results"]
    texts = [one["message"]["text"] for one in result["relatedLocations"]]
    assert texts == [CHAIN[0].message, *(f"assumed: {text}" for text in assumed)]
    assert len(result["codeFlows"][0]["threadFlows"][0]["locations"]) == 2, "not how it comes about"
    ((_, _, said),) = commands(render("github", found))
    assert said.splitlines()[2] == f"assumed: {'; '.join(assumed)}"
    assert f"Assumed: {'; '.join(assumed)}." in render("html", found)


def test_sarif_evidence_without_a_place() -> None:
    (result,) = sarif(diagnostic(evidence=CHAIN))["results"]
    places = [one["physicalLocation"] for one in result["relatedLocations"]]
    assert [place["artifactLocation"]["uri"] for place in places] == [
        "train.py",
        "src/main%20file.py",
        "conf.yaml",
        "train.py",
    ]
    assert "region" not in places[2], "a file without a row"
    assert places[3]["region"]["startLine"] == 6, "a fact about the finding itself"


def test_sarif_rules_explain_themselves() -> None:
    driver = sarif()["tool"]["driver"]
    assert driver["rules"] == [], "only those that found something"
    driver = sarif(*(diagnostic(code) for code in registry.known("ALL")))["tool"]["driver"]
    rules = {rule["id"]: rule for rule in driver["rules"]}
    assert list(rules) == registry.known("ALL")
    assert all(20 < len(rule["fullDescription"]["text"]) <= 1024 for rule in rules.values())
    rule = rules["MP301"]
    assert rule["name"] == "eps-before-log"
    assert "## Why it breaks" in rule["help"]["markdown"]
    assert rule["defaultConfiguration"] == {"enabled": True, "level": "error"}
    assert rule["properties"]["tags"] == ["pytorch", "mixed-precision", "epsilons-and-constants"]


def test_sarif_indices_and_size() -> None:
    run = sarif(*(diagnostic(code) for code in ("MP501", "MP102", "MP301", "MP102")))
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["MP102", "MP301", "MP501"]
    assert [rules[r["ruleIndex"]] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert len(render("sarif", *[diagnostic()] * 9)) < 30_000


def test_rules_link_to_the_pages_that_their_distribution_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def described(name: str) -> Message:
        found = Message()
        found["Project-URL"] = "Source, https://example.invalid/source"
        if name == "precision-lint":
            found["Project-URL"] = "Documentation, https://example.invalid/docs/"
        return found

    catalogue.page.cache_clear()
    monkeypatch.setattr(metadata, "metadata", described)
    page = "https://example.invalid/docs/rules/mp301/"
    try:
        (rule,) = sarif(diagnostic())["tool"]["driver"]["rules"]
        assert rule["helpUri"] == page
        (found,) = json.loads(render("json", diagnostic()))
        assert found["url"] == page
    finally:
        catalogue.page.cache_clear()


def test_sarif_keeps_what_is_silenced() -> None:
    aside = Aside(
        [Silenced(diagnostic("MP102"), False, "clipping is off"), Silenced(diagnostic(), True)],
        compared=True,
    )
    results = sarif(diagnostic("MP201"), aside=aside)["results"]
    assert [(r["ruleId"], r.get("baselineState"), r.get("suppressions")) for r in results] == [
        ("MP201", "new", None),
        (
            "MP102",
            None,  # what a comment silences is not compared
            [{"kind": "inSource", "status": "accepted", "justification": "clipping is off"}],
        ),
        ("MP301", "unchanged", [{"kind": "external", "status": "accepted"}]),
    ]
    assert "baselineState" not in sarif(diagnostic())["results"][0]


def test_sarif_fingerprints_outlive_moves() -> None:
    def keys(text: str) -> list[str]:
        source = Source("train.py", text)
        rows = [row for row, line in enumerate(text.splitlines(), 1) if "log" in line]
        columns = [text.splitlines()[row - 1].index("(p") + 1 for row in rows]
        found = [
            diagnostic(start=(row, at), end=(row, at + 16))
            for row, at in zip(rows, columns, strict=True)
        ]
        run = json.loads(FORMATS["sarif"](found, {"train.py": source}))["runs"][0]
        return [one["partialFingerprints"]["expressionHash/v1"] for one in run["results"]]

    once = keys(CODE)
    assert keys(f"x = 1\n\n{CODE}") == once
    assert keys(f"{CODE}    return -(p + 1e-8).log()\n")[0] == once[0]
    assert len(set(keys(f"{CODE}    return -(p + 1e-8).log()\n"))) == 2


def test_sarif_fingerprints_outlive_that_another_is_silenced() -> None:
    text = "log(x)\nlog(x)\n"
    first, second = (diagnostic(start=(row, 1), end=(row, 7)) for row in (1, 2))

    def keys(*shown: Diagnostic, aside: Aside) -> list[str]:
        report = json.loads(
            FORMATS["sarif"](shown, {"train.py": Source("train.py", text)}, aside=aside)
        )
        return [
            f"{one['locations'][0]['physicalLocation']['region']['startLine']} "
            f"{one['partialFingerprints']['expressionHash/v1'][-2:]}"
            for one in report["runs"][0]["results"]
        ]

    assert keys(first, second, aside=Aside()) == ["1 :1", "2 :2"]
    assert keys(second, aside=Aside([Silenced(first, False)])) == ["2 :2", "1 :1"]


def test_sarif_says_whether_the_tool_failed() -> None:
    assert sarif(diagnostic())["invocations"] == [{"executionSuccessful": True}]
    assert sarif(diagnostic(internal=True))["invocations"] == [{"executionSuccessful": False}]


def test_sarif_addresses(here: Path) -> None:
    run = sarif(diagnostic(name=str(here / "a" / "ü b.py")), diagnostic(name="../other.py"))
    base = run["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert base == f"{here.as_uri()}/"
    assert uris == [
        {"uri": "a/%C3%BC%20b.py", "uriBaseId": "%SRCROOT%"},
        {"uri": (here.parent / "other.py").as_uri()},
    ]


# GitHub


def commands(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Workflow commands as GitHub's runner reads them."""

    def unescaped(value: str) -> str:
        for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n")):
            value = value.replace(code, character)
        return value.replace("%25", "%")

    for line in text.splitlines():
        match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert match, line
        properties = dict(part.split("=", 1) for part in match[2].split(","))
        yield match[1], {k: unescaped(v) for k, v in properties.items()}, unescaped(match[3])


def test_github_commands() -> None:
    found = list(commands(render("github", *EVERYTHING[:-1])))
    assert [command for command, _, _ in found] == ["error", "error", "notice", "warning", "error"]
    assert found[0][1] == {
        "file": "train.py",
        "line": "6",
        "endLine": "6",
        "title": "MP301 a-name",
        "col": "13",
        "endColumn": "29",
    }
    assert found[0][2].splitlines() == [
        "epsilon 1e-08 rounds to 0",
        "confidence: likely",
        "note: p is half (train.py:5)",
        "note: the region opens here (src/main file.py:88)",
        "note: half is on here (conf.yaml)",
        "note: the smallest positive float16 is 5.96e-08",
        "fix: upcast x (safe)",
    ]
    assert "col" not in found[3][1], "GitHub refuses columns of two rows"
    assert found[4][1]["file"] == "bad\ufffd,: %ü]]>&<.py"
    assert found[4][2] == "a,b: 100%\ufffdß|*`<b>\ufffd\ufffd"
    assert render("github") == ""


def test_github_paths_are_those_of_the_checkout(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))
    ((_, properties, _),) = commands(render("github", diagnostic()))
    assert properties["file"] == f"{here.name}/train.py"


# GitLab


def test_gitlab_issues(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issues = json.loads(render("gitlab", *EVERYTHING))
    severities = ["major", "major", "info", "minor", "major", "major"]
    assert [issue["severity"] for issue in issues] == severities
    assert len({issue["fingerprint"] for issue in issues}) == len(issues), "GitLab drops doubles"
    assert issues[0]["check_name"] == "MP301"
    assert issues[0]["location"] == {
        "path": "train.py",
        "positions": {"begin": {"line": 6, "column": 13}, "end": {"line": 6, "column": 29}},
    }
    assert issues[0]["description"].startswith("MP301 a-name: epsilon 1e-08 rounds to 0; conf")
    assert json.loads(render("gitlab")) == []
    copies = [diagnostic(name=name) for name in ("a.py", "b.py")]
    text = FORMATS["gitlab"](copies, dict.fromkeys(["a.py", "b.py"], SOURCES["train.py"]))
    assert len({issue["fingerprint"] for issue in json.loads(text)}) == 2
    monkeypatch.setenv("CI_PROJECT_DIR", str(here.parent))
    (issue,) = json.loads(render("gitlab", diagnostic()))
    assert issue["location"]["path"] == f"{here.name}/train.py"


# JUnit


def junit(*found: Diagnostic) -> XML.Element:
    """A report, which keeps to the schema."""
    text = render("junit", *found)
    schema = xmlschema.XMLSchema(str(DATA / "junit-10.xsd"))
    schema.validate(io.StringIO(text))
    return XML.fromstring(text)


def test_junit_keeps_to_the_schema() -> None:
    root = junit(*EVERYTHING)
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["train.py", "bad\ufffd,: %ü]]>&<.py", "vanished.py"]
    suite = suites["train.py"]
    numbers = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert numbers == ["4", "3", "0", "1"]
    case = suite[0]
    assert case.get("name") == "MP301 a-name 6:13"
    assert case[0].tag == "failure"
    assert (case[0].text or "").splitlines()[-1] == "fix: upcast x (safe)"
    assert suite[2][0].tag == "skipped", "what is for information fails no run"


def test_junit_without_findings_has_a_test_that_passed() -> None:
    (suite,) = junit()
    assert suite.get("tests") == "1"
    assert len(suite[0]) == 0


# Markdown, JSON lines


def test_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = render("markdown", *EVERYTHING)
    assert "| MP301 a-name | error | 2 |" in text
    assert "| train.py:6 | MP301 (likely) | epsilon 1e-08 rounds to 0 | upcast x (safe) |" in text
    assert "a,b: 100% ß\\|\\*\\`\\<b\\>" in text
    assert "- note: the region opens here (src/main file.py:88)" in text
    assert render("markdown") == "## precision-lint\n\nNo findings."
    for name, value in (("SERVER_URL", "https://h"), ("REPOSITORY", "o/r"), ("SHA", "abc")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    text = render("markdown", diagnostic(name="a b.py"))
    assert "[a b.py:6](https://h/o/r/blob/abc/a%20b.py#L6)" in text


def test_markdown_stays_below_what_github_takes() -> None:
    text = render("markdown", *[diagnostic(message="x" * 200)] * 5000)
    assert len(text) < 2**20
    assert "4,800 more are not listed." in text


def test_json_lines() -> None:
    lines = render("json-lines", *EVERYTHING).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(render("json", *EVERYTHING))
    assert render("json-lines") == ""


# all


@pytest.mark.parametrize("name", sorted(MACHINE))
def test_vanished_and_shortened_files(name: str) -> None:
    found: Sequence[Diagnostic] = [diagnostic(fix=fix(), start=(99, 1), end=(99, 5))]
    for sources in ({}, SOURCES):
        FORMATS[name](found, sources).encode("utf8")


def test_a_run_on_real_code(here: Path) -> None:
    projects.write(
        here,
        {
            "loss.py": """
                import torch

                def loss(x):
                    p = x.sigmoid()
                    return -(p + 1e-8).log().mean()

                def other(x):
                    return x.sigmoid().add(1e-8).log()  # precision-lint: ignore[MP301] why
            """,
            "train.py": """
                import torch
                from loss import loss, other

                def step(model, x):
                    with torch.autocast("cuda", dtype=torch.float16):
                        return loss(model(x)) + other(model(x))
            """,
        },
    )
    result = projects.check(here)
    aside = Aside(result.silenced, result.compared)
    report = json.loads(FORMATS["sarif"](result.diagnostics, result.sources, aside=aside))
    jsonschema.validate(report, _sarif_schema())
    (shown, silenced) = report["runs"][0]["results"]
    assert shown["ruleId"] == "MP301"
    uris = {one["physicalLocation"]["artifactLocation"]["uri"] for one in shown["relatedLocations"]}
    assert "train.py" in uris, "the evidence is in another file"
    assert silenced["suppressions"][0]["justification"] == "why"


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_to_the_checkout_are_followed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "real" / "src").mkdir(parents=True)
    (here / "link").symlink_to(here / "real")
    monkeypatch.chdir(here / "real" / "src")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here / "link"))
    found = [diagnostic(), diagnostic(name=str(here / "link" / "src" / "b.py"))]
    places = [properties["file"] for _, properties, _ in commands(render("github", *found))]
    assert places == ["src/train.py", "src/b.py"]
