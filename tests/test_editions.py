"""After any edit a kept edition of a file says what a fresh look at the text says."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint import dispatch, registry, runner
from precision_lint.project.amp import Project
from precision_lint.semantics.edition import Edition
from precision_lint.semantics.index import build
from precision_lint.source import Failure, Source, parse

FIXTURES = Path(__file__).parent.parent / "fixtures"
TEXTS = (
    "mp502_matmul_dtype_mismatch/by_kind.py",
    "mp502_matmul_dtype_mismatch/apart.py",
    "mp101_unscaled_gradient_check/accumulation.py",
    "mp209_loss_in_half/behind.py",
    "mp203_autocast_disabled_without_upcast/attention.py",
    "mp310_mask_fill_overflow/attention.py",
    "mp401_dtypeless_creation/beside_weights.py",
    "mp503_index_assign_mismatch/expert_dispatch.py",
)
LINES = (
    "", "# a comment", "    # deeper", "x = 1; y = 2", "@decorated", "    value = x.half()",
    "        value = value.float() @ value", '"""', "    '''text", "x = (", ")", "else:", "\\",
    "import torch as t", "from torch import nn", "class Other(nn.Module):",
    "def other(x, scaler):", "    return torch.log(x + 1e-8)", "SCALE = 65504.0",
    "    with torch.autocast('cuda'):", "if True:", "\ttabbed = 1", "f'{x!r}'", "ä = 'ß'", "\f",
)  # fmt: skip
"""What is typed: much of it is wrong where it comes to stand."""


def edits(text: str, seed: int, count: int) -> Iterator[str]:
    """A text after one edit, after two, and so on; some are taken back, so that it stays code."""
    dice, whole = random.Random(seed), text
    for _ in range(count):
        lines = text.split("\n")
        row = dice.randrange(len(lines))
        match dice.randrange(8):
            case 0 | 1:
                lines.insert(row, dice.choice(LINES))
            case 2:
                del lines[row]
            case 3:
                lines.insert(row, lines[dice.randrange(len(lines))])
            case 4:
                place = dice.randrange(len(lines[row]) + 1)
                lines[row] = lines[row][:place] + dice.choice("ab1_ .(\"'#:") + lines[row][place:]
            case 5:
                end = row + dice.randrange(1, 8)
                lines[row:end] = [line[1:] for line in lines[row:end]]
            case 6:
                text = whole  # taken back
                lines = text.split("\n")
            case _:
                start = next((r for r in range(row, 0, -1) if lines[r][:4] == "def "), 0)
                lines.insert(start, f"def added_{row}(x):\n    return x.float()\n\n")
        text = "\n".join(lines)
        try:
            ast.parse(text)
        except SyntaxError:
            yield text
            text = whole
        whole = text if dice.random() < 0.8 else whole
        yield text


@pytest.mark.parametrize("name", TEXTS)
def test_trees_and_indexes_are_those_of_a_fresh_parse(name: str) -> None:
    edition, nodes = Edition(), {ast.With, ast.Call, ast.Return, ast.MatMult}
    for text in edits((FIXTURES / name).read_text("utf8"), len(name), 60):
        kept, fresh = edition.parse(Source(name, text)), parse(Source(name, text))
        if isinstance(fresh, Failure) or isinstance(kept, Failure):
            assert kept == fresh
            continue
        assert ast.dump(kept, include_attributes=True) == ast.dump(fresh, include_attributes=True)
        one, other = edition.index(kept, nodes), build(fresh, nodes)
        assert one.names.__dict__ == other.names.__dict__
        assert one.instances == other.instances
        assert [f.qualname for f in one.functions] == [f.qualname for f in other.functions]
        assert list(one.classes) == list(other.classes)
        for found, expected in ((one.calls, other.calls), (one.candidates, other.candidates)):
            assert {k: [_place(*e) for e in v] for k, v in found.items()} == {
                k: [_place(*e) for e in v] for k, v in expected.items()
            }


def _place(node: object, function: object) -> tuple[object, ...]:
    home = getattr(function, "node", None)
    return (
        getattr(node, "lineno", 0), getattr(node, "col_offset", 0), type(node),
        getattr(function, "qualname", ""), getattr(home, "lineno", 0),
    )  # fmt: skip


def test_unchanged_statements_keep_their_trees() -> None:
    text = "import torch\n\ndef a(x):\n    return x\n\ndef b(x):\n    return x.half()\n"
    edition = Edition()
    first = edition.parse(Source("a.py", text))
    second = edition.parse(Source("a.py", text.replace("return x\n", "y = x\n    return y\n")))
    assert isinstance(first, ast.Module)
    assert isinstance(second, ast.Module)
    assert first.body[0] is second.body[0]
    assert first.body[1] is not second.body[1]
    assert first.body[2] is second.body[2]
    assert second.body[2].lineno == 7


@pytest.mark.parametrize("name", TEXTS)
def test_findings_are_those_of_a_fresh_lint(name: str) -> None:
    rules, project = list(registry.rules().values()), Project()
    edition, seen = Edition(), 0
    with runner.collector_off(), runner.deep_recursion():
        for text in edits((FIXTURES / name).read_text("utf8"), len(name) + 1, 12):
            source = Source(name, text)
            found = dispatch.lint(source, rules, project, edition=edition)
            assert found == dispatch.lint(source, rules, project)
            seen += len(found)
    assert seen


def test_interpretations_are_kept_until_an_answer_is_another() -> None:
    text = (
        "import torch\n\nEPS = 1e-8\n\ndef outer(x):\n    return torch.log(inner(x) + EPS)\n\n"
        "def inner(x):\n    return x.half()\n"
    )
    rules, edition = list(registry.rules().values()), Edition()

    def outer(changed: str) -> object:
        source = Source("a.py", changed)
        found = dispatch.lint(source, rules, Project(), edition=edition)
        assert found == dispatch.lint(source, rules, Project())
        return next(kept for function, kept in edition._kept.items() if function.name == "outer")

    first = outer(text)
    assert outer(text + "\ndef third(x):\n    return x\n") is first
    assert outer(text.replace("1e-8", "1e-2")) is not first
    assert outer(text) is not first


def test_a_new_circle_of_calls_is_judged_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import torch\n\ndef outer(x):\n    return torch.log(inner(x) + 1e-8)\n\n"
        "def inner(x):\n    return x.half()\n"
    )
    rules, edition = list(registry.rules().values()), Edition()
    dispatch.lint(Source("a.py", text), rules, Project(), edition=edition)
    judged, calls = dispatch._judged, 0

    def counted(*given: object) -> object:
        nonlocal calls
        calls += 1
        return judged(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(dispatch, "_judged", counted)
    circle = Source("a.py", text.replace("x.half()", "outer(x.half())"))
    found = dispatch.lint(circle, rules, Project(), edition=edition)
    assert calls == 2
    assert found == dispatch.lint(circle, rules, Project())
