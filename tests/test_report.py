"""Output formats: the shape that people and programs rely on."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Evidence,
    Fix,
    Position,
    Severity,
)
from precision_lint.report import FORMATS
from precision_lint.source import Source, decode

CODE = """\
import torch


def loss(x):
    p = x.sigmoid()
    return -(p + 1e-8).log()
"""


def source(text: str, name: str = "train.py") -> Source:
    made = decode(text.encode(), name)
    assert isinstance(made, Source)
    return made


ASSUMED = ("the values are large enough", "this is a tensor of floats")


def diagnostic(
    start: tuple[int, int] = (6, 13),
    end: tuple[int, int] = (6, 29),
    *,
    message: str = "epsilon 1e-08 rounds to 0 in float16 before log",
    evidence: tuple[Evidence, ...] = (),
    fix: Fix | None = None,
    severity: Severity = Severity.ERROR,
    filename: str = "train.py",
    assumptions: tuple[str, ...] = (),
) -> Diagnostic:
    return Diagnostic(
        "MP301",
        "eps-before-log",
        message,
        filename,
        Position(*start),
        Position(*end),
        severity,
        Confidence.LIKELY,
        evidence,
        fix,
        assumptions=assumptions,
    )


def fix(applicability: Applicability, reason: str | None = None) -> Fix:
    at = CODE.index("x.sigmoid")
    return Fix("upcast x", applicability, (Edit(at + 1, at + 1, ".float()"),), reason)


def full(text: str, *found: Diagnostic, color: bool = False) -> str:
    return FORMATS["text"](found, {"train.py": source(text)}, color=color)


def test_full_shows_place_reason_chain_and_fix() -> None:
    found = diagnostic(
        evidence=(
            Evidence("p is float16: sigmoid keeps the dtype of x", Position(5, 9)),
            Evidence("loss() runs under float16 autocast", Position(88, 10), filename="main.py"),
            Evidence("the smallest positive float16 is 5.96e-08"),
        ),
        fix=fix(Applicability.SAFE),
        assumptions=ASSUMED,
    )
    assert full(CODE, found) == (
        "train.py:6:13: error[MP301] eps-before-log: "
        "epsilon 1e-08 rounds to 0 in float16 before log\n"
        "  |\n"
        "5 |     p = x.sigmoid()\n"
        "6 |     return -(p + 1e-8).log()\n"
        "  |             ^^^^^^^^^^^^^^^^\n"
        "  = confidence: likely\n"
        "  = assumed: the values are large enough; this is a tensor of floats\n"
        "  = note: p is float16: sigmoid keeps the dtype of x (train.py:5:9)\n"
        "  = note: loss() runs under float16 autocast (main.py:88:10)\n"
        "  = note: the smallest positive float16 is 5.96e-08\n"
        "  = fix: upcast x (safe; --fix)"
    )


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (fix(Applicability.SAFE), "= fix: upcast x (safe; --fix)"),
        (
            fix(Applicability.UNSAFE, "drops the epsilon"),
            "= fix: upcast x (unsafe: drops the epsilon; --unsafe-fixes)",
        ),
        (
            fix(Applicability.DISPLAY, "two optimizers share the loss"),
            "= fix: upcast x (by hand: two optimizers share the loss)",
        ),
    ],
)
def test_fix_line_says_what_the_fix_promises(made: Fix, line: str) -> None:
    assert full(CODE, diagnostic(fix=made)).splitlines()[-1].strip() == line


def test_frame_shows_the_line_after_and_widens_for_the_numbers() -> None:
    text = "".join(f"x{n} = {n}\n" for n in range(1, 12))
    lines = full(text, diagnostic((9, 1), (9, 3))).splitlines()
    assert lines[1:6] == ["   |", " 8 | x8 = 8", " 9 | x9 = 9", "   | ^^", "10 | x10 = 10"]
    assert lines[6] == "   = confidence: likely"


def test_frame_of_many_lines_has_a_margin() -> None:
    text = "a = f(\n    1,\n    2,\n)\nb = 1\n"
    lines = full(text, diagnostic((1, 5), (4, 2))).splitlines()
    assert lines[1:9] == [
        "  |",
        "1 |   a = f(",
        "  |  _____^",
        "2 | |     1,",
        "3 | |     2,",
        "4 | | )",
        "  | |_^",
        "5 |   b = 1",
    ]


def test_frame_of_a_long_range_leaves_out_its_middle() -> None:
    text = "a = f(\n" + "".join(f"    {n},\n" for n in range(2, 41)) + ")\n"
    lines = full(text, diagnostic((1, 5), (41, 2))).splitlines()
    assert lines[2:12] == [
        "  1 |   a = f(",
        "    |  _____^",
        "  2 | |     2,",
        "  3 | |     3,",
        "  4 | |     4,",
        "  5 | |     5,",
        "... | |",
        " 40 | |     40,",
        " 41 | | )",
        "    | |_^",
    ]


def columns(text: str) -> int:
    """Screen columns of a line without tabs."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


@pytest.mark.parametrize(
    "before",
    ["", "\t", " \t", "a = '深度' + ", "e\u0301 = ", "a = '\x1b[31m' + ", "a = '\u202e' + "],
    ids=["plain", "tab", "space-tab", "cjk", "combining", "escape", "bidi"],
)
def test_caret_lies_under_what_it_marks(before: str) -> None:
    line = f"{before}eps"
    lines = full(f"{line}\n", diagnostic((1, len(before) + 1), (1, len(line) + 1))).splitlines()
    shown, marks = lines[2], lines[3]
    assert columns(marks[: marks.index("^")]) == columns(shown[: shown.index("eps")])
    assert marks.count("^") == 3
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\t" not in shown


@pytest.mark.parametrize("at", [1, 5_000, 9_998])
def test_long_line_is_cut_around_the_caret(at: int) -> None:
    line = "x" * (at - 1) + "eps" + "y" * (10_000 - at - 2)
    lines = full(f"{line}\n", diagnostic((1, at), (1, at + 3))).splitlines()
    shown, marks = lines[2], lines[3]
    assert len(shown) < 140
    assert shown[marks.index("^") : marks.rindex("^") + 1] == "eps"
    assert ("..." in shown[:10]) == (at > 1)
    assert shown.endswith("...") == (at < 9_000)


def test_carets_end_where_a_cut_line_ends() -> None:
    lines = full("f(" + "x" * 10_000 + ")\n", diagnostic((1, 1), (1, 10_004))).splitlines()
    assert len(lines[3]) <= len(lines[2])
    assert lines[3].count("^") > 100


def test_empty_range_and_range_past_the_end_of_a_line_have_a_caret() -> None:
    assert full("ab\n", diagnostic((1, 3), (1, 3))).splitlines()[3] == "  |   ^"
    assert full("ab\n", diagnostic((1, 2), (1, 9))).splitlines()[3] == "  |  ^"


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_newlines_of_the_file_do_not_reach_the_frame(newline: str) -> None:
    assert full(CODE.replace("\n", newline), diagnostic()) == full(CODE, diagnostic())


@pytest.mark.parametrize("name", ["text", "concise", "json"])
@pytest.mark.parametrize("start", [(6, 13), (99, 1)])
def test_vanished_or_shortened_file_still_prints(name: str, start: tuple[int, int]) -> None:
    found = diagnostic(start, start, fix=fix(Applicability.SAFE))
    sources = {} if start == (6, 13) else {"train.py": source(CODE)}
    text = FORMATS[name]([found], sources, color=False)
    assert "rounds to 0 in float16" in text
    assert "6 |" not in text


def test_empty_file_still_prints() -> None:
    assert "rounds to 0" in full("", diagnostic((1, 1), (1, 1)))


def test_names_and_messages_cannot_drive_the_terminal() -> None:
    found = diagnostic(filename="a\n\x1b[2J\udcff.py", message="bad\x07\nname")
    for name in ("text", "concise"):
        text = FORMATS[name]([found], {}, color=False)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "a\n" not in text
        text.encode()


def test_engine_diagnostics_have_no_confidence() -> None:
    found = Diagnostic(
        "MP002",
        "syntax-error",
        "invalid syntax",
        "train.py",
        Position(1, 1),
        Position(1, 1),
        Severity.ERROR,
        Confidence.CERTAIN,
    )
    assert "confidence" not in full(CODE, found)


def test_color_only_when_asked_for() -> None:
    found = diagnostic(fix=fix(Applicability.SAFE), evidence=(Evidence("why"),))
    sources = {"train.py": source(CODE)}
    for name in ("text", "concise"):
        plain = FORMATS[name]([found], sources, color=False)
        colored = FORMATS[name]([found], sources, color=True)
        assert "\x1b" not in plain
        assert "\x1b[31m" in colored
        parts = colored.split("\x1b[")
        assert parts[0] + "".join(part.partition("m")[2] for part in parts[1:]) == plain


def test_concise_is_one_line_each_and_marks_safe_fixes() -> None:
    found = [
        diagnostic(fix=fix(Applicability.SAFE)),
        diagnostic(fix=fix(Applicability.UNSAFE)),
        diagnostic(),
    ]
    message = "epsilon 1e-08 rounds to 0 in float16 before log"
    assert FORMATS["concise"](found, {}, color=False).splitlines() == [
        f"train.py:6:13: MP301 [*] {message}",
        f"train.py:6:13: MP301 {message}",
        f"train.py:6:13: MP301 {message}",
    ]


def test_json_has_ruffs_shape() -> None:
    found = diagnostic(
        evidence=(
            Evidence("here", Position(5, 9), Position(5, 20)),
            Evidence("there", filename="main.py"),
        ),
        fix=fix(Applicability.UNSAFE, "a reason"),
        assumptions=ASSUMED[:1],
    )
    text = FORMATS["json"]([found], {"train.py": source(CODE)}, color=True)
    assert json.loads(text) == [
        {
            "cell": None,
            "code": "MP301",
            "name": "eps-before-log",
            "message": "epsilon 1e-08 rounds to 0 in float16 before log",
            "filename": "train.py",
            "location": {"row": 6, "column": 13},
            "end_location": {"row": 6, "column": 29},
            "severity": "error",
            "confidence": "likely",
            "modes": [],
            "assumptions": ["the values are large enough"],
            "evidence": [
                {
                    "message": "here",
                    "filename": "train.py",
                    "location": {"row": 5, "column": 9},
                    "end_location": {"row": 5, "column": 20},
                },
                {
                    "message": "there",
                    "filename": "main.py",
                    "location": None,
                    "end_location": None,
                },
            ],
            "fix": {
                "applicability": "unsafe",
                "message": "upcast x",
                "reason": "a reason",
                "edits": [
                    {
                        "content": ".float()",
                        "location": {"row": 5, "column": 10},
                        "end_location": {"row": 5, "column": 10},
                    }
                ],
            },
            "url": None,
        }
    ]
    assert text == FORMATS["json"]([found], {"train.py": source(CODE)}, color=False)
    assert json.loads(FORMATS["json"]([diagnostic()], {}, color=False))[0]["fix"] is None


@pytest.mark.parametrize(("name", "empty"), [("text", ""), ("concise", ""), ("json", "[]")])
def test_nothing_found(name: str, empty: str) -> None:
    assert FORMATS[name]([], {}, color=False) == empty


def test_formats_are_imported_when_used(tmp_path: Path) -> None:
    code = (
        "import sys, precision_lint.report as report; "
        "assert 'precision_lint.report.text' not in sys.modules; "
        "report.FORMATS['json']([], {}, color=False); "
        "assert 'precision_lint.report.json' in sys.modules; "
        "assert 'precision_lint.report.text' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
