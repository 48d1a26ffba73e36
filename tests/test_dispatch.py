"""One file through the rules: what is looked at, in which order, and what a crash leaves."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from precision_lint import dispatch, registry
from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Diagnostic,
    Finding,
    Rule,
    Severity,
    Triggers,
    calls,
    events,
    operators,
)
from precision_lint.project.amp import Project
from precision_lint.source import Source, decode
from tests.incidents import BEFORE

RULES = list(registry.rules().values())
UNFILTERED = [
    type(rule.__name__, (rule,), {"triggers": dataclasses.replace(rule.triggers, pattern="")})
    for rule in RULES
]


def source(text: str) -> Source:
    made = decode(text.encode(), "a.py")
    assert isinstance(made, Source)
    return made


def lint(text: str, *rules: type[Rule]) -> list[Diagnostic]:
    return dispatch.lint(source(text), rules or RULES, Project())


class Probe(Rule):
    """Reports every candidate."""

    code, name, severity = "MP901", "every-candidate", Severity.ERROR
    applicability: ClassVar[Applicability | None] = None
    triggers = calls("torch.log", "Tensor.log")

    def check(self, node: Any, at: Context) -> Iterator[Finding]:
        inner = getattr(node, "node", node)
        yield at.finding(inner, at.text(inner), Confidence.CERTAIN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"torch.log(x)", True),
        (b"x.log", True),
        (b"log", True),
        (b"\xc3\xa9log\xc3\xa9", True),
        (b"blog", False),
        (b"log10(x) + log_(x) + _log", False),
        (b"", False),
    ],
)
def test_words_are_found_as_their_pattern_finds_them(text: bytes, expected: bool) -> None:
    rest = operators(ast.MatMult, pattern=r"\bMatMult\b")
    rules: list[type[Rule]] = [
        Probe,
        probe(calls("torch.log") | calls("torch.exp")),
        probe(calls("torch.log") | rest),
        probe(rest | calls("torch.log")),
    ]
    found = [
        rule
        for rule in rules
        if re.search(rule.triggers.pattern.encode(), text, re.MULTILINE) is not None
    ]
    assert dispatch._triggered(rules, text) == found == (rules if expected else [])


def probe(triggers: Triggers, **attributes: Any) -> type[Rule]:
    return type("Triggered", (Probe,), {"triggers": triggers, **attributes})


def seen(text: str, triggers: Triggers) -> list[str]:
    return [d.message for d in lint(text, probe(triggers))]


# candidates


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch\ntorch.log(x)", ["torch.log(x)"]),
        ("import torch as T\nT.log(x)", ["T.log(x)"]),
        ("from torch import log\nlog(x)", ["log(x)"]),
        ("from torch import log as ln\nln(x)", ["ln(x)"]),
        ("import torch\nx.log()", ["x.log()"]),
        ("import torch\nf(x).sum().log()", ["f(x).sum().log()"]),
        ("import torch\nx.log().log()", ["x.log()", "x.log().log()"]),
        ("import torch\ntorch.log(torch.log(x))", ["torch.log(torch.log(x))", "torch.log(x)"]),
        ("import torch, math\nmath.log(x)", []),
        ("import torch, numpy as np\nnp.log(x)", []),
        ("import torch\nlog(x)", []),
        ("import torch\ntorch.log", []),
        ("import torch\nx.log2()", []),
        ("from torch import log2 as log\nlog(x)", []),
        ("import numpy\nx.log()", []),
        ("def f():\n    import torch\n    return torch.log(1)", ["torch.log(1)"]),
        ("import torch\ndef f(x=torch.log(1)): ...", ["torch.log(1)"]),
        ("import torch\n@torch.log(1)\ndef f(): ...", ["torch.log(1)"]),
        ("import torch\nlambda: [torch.log(i) for i in x]", ["torch.log(i)"]),
    ],
)  # fmt: skip
def test_calls(code: str, found: list[str]) -> None:
    assert seen(f"{code}\n", calls("torch.log", "Tensor.log")) == found


def test_operators_and_nodes() -> None:
    code = "import torch\nx = a @ b + c @ d\nx @= a\ny = not a\n"
    assert seen(code, operators(ast.MatMult, pattern="@")) == ["a @ b", "c @ d"]
    assert seen(code, operators(ast.UnaryOp, pattern="")) == ["not a"]


def test_protocol_events() -> None:
    code = """
import torch
def f(scaler, optimizer, loss, parameters):
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    print(parameters[0].grad)
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
"""
    both = events("unscaled-twice", "scaled-gradient-clipped", pattern="")
    clip = "torch.nn.utils.clip_grad_norm_(parameters, 1.0)"
    assert seen(code, both) == [clip, "scaler.unscale_(optimizer)"]
    assert seen(code, events("unscaled-twice", pattern="")) == ["scaler.unscale_(optimizer)"]


def test_creation_events() -> None:
    code = "import torch\ndef f(x):\n    return torch.ones(3) * x.half() + torch.zeros(3)\n"
    assert seen(code, events("creation-promotes", pattern="")) == [
        "torch.ones(3)",
        "torch.zeros(3)",
    ]


# the prefilter


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"import torch\ny = x.log()", True),
        (b"import torch\ny = x.log2()", False),
        (b"y = x.log()", False),
        (b"", False),
        (b"\xff\xfe torch log", True),
    ],
)
def test_relevant(data: bytes, answer: bool) -> None:
    assert dispatch.relevant(data, [Probe]) is answer
    assert dispatch.relevant(data, []) is (b"torch" in data)


FRAME = """
import torch

def project(points, intrinsics):
    with torch.autocast("cuda"):
        uv = {}
    return uv
"""
PRODUCTS = [
    "points @ intrinsics",
    "points@intrinsics",
    "points\t@\t(intrinsics)",
    "points[0]@intrinsics",
    "(points)@ intrinsics",
    "f(points) @ intrinsics",
    "(points\n        @ intrinsics)",
    "(points  # homogeneous\n        @  # by\n        intrinsics)",
    "torch.matmul (points, intrinsics)",
    "torch.\\\n        bmm(points, intrinsics)",
    "points.matmul(intrinsics)",
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_prefilter_hides_no_product(product: str) -> None:
    text = FRAME.format(product)
    found = lint(text, *UNFILTERED)
    assert [d.code for d in found] == ["MP501"]
    assert lint(text) == found
    assert dispatch.relevant(text.encode(), RULES)


@pytest.mark.parametrize("name", BEFORE)
def test_prefilter_hides_nothing_of_the_incidents(name: str) -> None:
    for text in BEFORE[name].files.values():
        found = lint(text, *UNFILTERED)
        assert lint(text) == found
        assert dispatch.relevant(text.encode(), RULES) or not found


# order and identity


def test_findings_come_in_order_of_place_whatever_the_order_of_rules() -> None:
    text = next(iter(BEFORE["projection in half, in one file"].files.values()))
    found = lint(text)
    assert len({d.code for d in found}) > 1
    assert [d.start for d in found] == sorted(d.start for d in found)
    assert lint(text, *reversed(RULES)) == found


def test_diagnostics_carry_code_name_and_file_of_their_rule() -> None:
    (found,) = lint("import torch\nx = torch.log(y)\n", Probe)
    assert (found.code, found.name, found.filename) == ("MP901", "every-candidate", "a.py")
    assert (found.start.row, found.start.column, found.end.column) == (2, 5, 17)
    assert not found.internal


def test_a_file_is_evidence_for_itself() -> None:
    loss = "import torch\nclass Loss(torch.nn.Module):\n    def forward(self, x):\n"
    loss += "        return torch.log(torch.sigmoid(x) + 1e-8)\n"
    (alone,) = lint(loss)
    (beside,) = lint(loss + "scaler = torch.amp.GradScaler('cuda')\n")
    assert alone.confidence is Confidence.POSSIBLE
    assert beside.confidence is Confidence.LIKELY


def test_a_file_without_torch_has_no_findings() -> None:
    assert lint("def f(x):\n    return x.log()\n", Probe) == []


# what goes wrong


class Crashing(Probe):
    """Crashes on its second candidate."""

    code, name = "MP902", "crash-on-second"

    def check(self, node: Any, at: Context) -> Iterator[Finding]:
        if "second" in at.text(node):
            raise LookupError("no\nsuch  thing")
        yield from super().check(node, at)


THREE = "import torch\ntorch.log(first)\nx = torch.log(second)\ntorch.log(third)\n"


def test_a_crash_is_one_diagnostic_that_names_rule_and_line() -> None:
    found = lint(THREE, Crashing, Probe)
    (crash,) = (d for d in found if d.code == "MP003")
    assert crash.internal and crash.severity is Severity.ERROR and crash.fix is None
    assert (crash.start.row, crash.start.column, crash.filename) == (3, 5, "a.py")
    assert crash.message.startswith("rule MP902 (crash-on-second) crashed with LookupError: ")
    assert "no such thing" in crash.message and "--ignore MP902" in crash.message
    assert "\n" not in crash.message


def test_the_other_rules_go_on_after_a_crash() -> None:
    for rules in ([Crashing, Probe], [Probe, Crashing]):
        messages = [d.message for d in lint(THREE, *rules) if d.code == "MP901"]
        assert messages == ["torch.log(first)", "torch.log(second)", "torch.log(third)"]


def test_what_a_rule_found_before_it_crashed_is_kept() -> None:
    (kept,) = (d.message for d in lint(THREE, Crashing) if d.code == "MP902")
    assert kept in ("torch.log(first)", "torch.log(third)")


@pytest.mark.parametrize("error", [RecursionError, AttributeError, AssertionError, KeyError])
def test_every_exception_of_a_rule_is_a_crash(error: type[Exception]) -> None:
    def check(self: Rule, node: Any, at: Context) -> Iterator[Finding]:
        raise error

    (found,) = lint(THREE, probe(calls("torch.log"), check=check))
    assert found.code == "MP003" and error.__name__ in found.message


def test_an_interrupt_is_no_crash() -> None:
    def check(self: Rule, node: Any, at: Context) -> Iterator[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lint(THREE, probe(calls("torch.log"), check=check))


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("import torch\ntorch.log(x\n", 2),
        ("import torch\nprint torch\n", 2),
        ("import torch\n  x = 1\n", 2),
        ("torch.log(x) = 1\n", 1),
        ("import torch\nif x:\n\ty\n        z\n", 4),
    ],
)
def test_a_syntax_error_is_a_diagnostic(text: str, row: int) -> None:
    (found,) = lint(text)
    assert (found.code, found.start.row) == ("MP002", row)


@pytest.mark.parametrize(
    "expression",
    [
        "x" + ".exp()" * 900 + ".log()",
        "torch.log(" + "-" * 900 + "x + 1e-8)",
        "torch.log(" + " + ".join(["x"] * 900) + " + 1e-8)",
    ],
    ids=["calls", "signs", "terms"],
)
def test_deep_expressions_crash_no_rule(expression: str) -> None:
    text = (
        f"import torch\ndef f(x):\n    with torch.autocast('cuda'):\n        return {expression}\n"
    )
    assert {d.code for d in lint(text)} <= {"MP301"}
