"""Comments that silence findings."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_lint import registry, suppress
from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Fix,
    Position,
    Severity,
)
from precision_lint.fixer import fix
from precision_lint.source import Source
from precision_lint.suppress import Suppressed

NAMES = {
    "eps-before-log": "MP301",
    "small-eps": "MP302",
    "cdist-in-half": "MP504",
    "unreadable-file": "MP001",
    "syntax-error": "MP002",
    "rule-crash": "MP003",
    "unused-suppression": "MP004",
}
ALL = frozenset(NAMES.values())
CODES = {"log": "MP301", "div": "MP302", "cdist": "MP504"}


@pytest.fixture(autouse=True, scope="module")
def names() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", lambda: NAMES)
        yield


def lint(source: Source) -> list[Diagnostic]:
    """Flags calls of log, div and cdist."""
    return [
        Diagnostic(
            code=CODES[match[1]],
            name="n",
            message="m",
            filename=source.filename,
            start=source.position(match.start()),
            end=source.position(match.end()),
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
        )
        for match in re.finditer(r"\b(log|div|cdist)\([^()]*\)", source.text)
    ]


def judge(text: str, selected: frozenset[str] = ALL) -> Suppressed:
    source = Source("a.py", text)
    return suppress.apply(source, lint(source), selected)


def kept(text: str) -> list[tuple[str, int]]:
    return [(d.code, d.start.row) for d in judge(text).kept]


def cleaned(text: str, selected: frozenset[str] = ALL) -> str:
    """The text after all fixes of unused suppressions."""

    def run(source: Source) -> list[Diagnostic]:
        result = suppress.apply(source, lint(source), selected)
        return [*result.kept, *result.unused]

    result = fix(Source("a.py", text), run, {Applicability.SAFE})
    assert not any(d.internal for d in result.remaining)
    return result.source.text


# What silences


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "# NOQA",
        "#noqa",
        "# noqa because of float32",
        "# noqa: MP301",
        "# noqa:MP301",
        "# noqa:mp301",
        "# noqa : MP301",
        "# noqa: E501, MP301",
        "# noqa: E501 MP301 reason",
        "# noqa: eps-before-log",
        "# type: ignore # noqa: MP301",
        "# noqa: MP301  # type: ignore",
        "# precision-lint: ignore[MP301]",
        "# precision-lint:ignore[MP301]",
        "# precision-lint: ignore [ MP302 , MP301 ] reason",
        "# precision-lint: ignore[eps-before-log] float32 here",
        "# noqa: E501  # precision-lint: ignore[MP301] see #12",
        "# precision-lint: ignore-file",
        "# precision-lint: ignore-file[eps-before-log]",
    ],
)
def test_comments_that_silence(comment: str) -> None:
    assert kept(f"y = log(x)  {comment}\n") == []


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa: E501",
        "# noqa: MP302",
        "# noqa: MP30",
        "# noqa: MP3",
        "# noqa: MP3011",
        "# noqa: because MP301 is wrong",
        "# noqa-not",
        "# nonoqa",
        "# flake8: noqa",
        "# ruff: noqa: MP301",
        "# precision-lint: ignore",
        "# precision-lint: ignore MP301",
        "# precision-lint: ignore[]",
        "# precision-lint: ignore[MP301",
        "# precision-lint: ignore[ALL]",
        "# precision-lint: ignored[MP301]",
        "# precision-lint: ignore-file[",
        "# precision-lint: ignore-files",
        "# precision-lint: ignore-file[MP302]",
        "# write `# noqa: MP301` or '# precision-lint: ignore[MP301]'",
        "; '# noqa'",
        "; '''# precision-lint: ignore-file'''",
    ],
)
def test_comments_that_do_not(comment: str) -> None:
    assert kept(f"y = log(x)  {comment}\n") == [("MP301", 1)]


def test_only_the_codes_named() -> None:
    assert kept("y = log(x) + div(x) + cdist(x)  # noqa: MP301, MP504\n") == [("MP302", 1)]
    assert kept("# precision-lint: ignore-file[MP301]\nlog(x)\ndiv(x)\n") == [("MP302", 3)]
    assert kept("log(x)\ndiv(x)\n# precision-lint: ignore-file\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "y = (\n    log(x)  # noqa: MP301\n)\n",
        "y = (\n    log(x)\n)  # noqa: MP301\n",
        "y = log(\n    x,\n)  # noqa: MP301\n",
        "y = f(log(\n    x,\n),  # noqa: MP301\n    z\n)\n",
        "y = log(x) + '''\n\n'''  # noqa: MP301\n",
        "y = log(x) \\\n  + 1  # noqa: MP301\n",
        "y = log(x); z = (\n    1)  # noqa: MP301\n",
        "for a in f(\n    log(x)\n):  # noqa: MP301\n    pass\n",
        "y = log(x)\r\nz = log(\r\n    x)  # noqa: MP301\r\n",
        "y = log(x)\rz = log(\r    x)  # noqa: MP301\r",
        "y = '\u2028\x0c\x85'; log(x)  # noqa: MP301",
    ],
)
def test_lines_on_which_a_comment_counts(text: str) -> None:
    expected = [("MP301", 1)] if text.count("log") == 2 else []
    assert kept(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "y = f(  # noqa: MP301\n    log(x)\n)\n",
        "y = f(  # precision-lint: ignore[MP301]\n    log(x)\n)\n",
        "# noqa: MP301\nlog(x)\n",
        "log(x)\n# noqa: MP301\n",
        "log(x)\nz = 1  # precision-lint: ignore[MP301]\n",
        "z = 1  # precision-lint: ignore[MP301]\nlog(x)\n",
        "for a in log(x):\n    pass  # noqa: MP301\n",
        "'''\n# noqa: MP301\n'''; log(x)\n",
    ],
)
def test_lines_on_which_it_does_not(text: str) -> None:
    assert [code for code, _ in kept(text)] == ["MP301"]


@pytest.mark.parametrize(
    "text",
    [
        "{c}\ny = log(x)\n",
        "{c}\ny = (\n    1 +\n    log(x)\n)\n",
        "{c}\n# more words\ny = log(x)\n",
        "# words\n{c}\n{c}\ny = log(x)\n",
        "if x:\n    {c}\n    y = log(x)\n",
        "if x:\n    z = 1\n{c}\n    y = log(x)\n",
        "y = f(\n    z,\n    {c}\n    log(x),\n)\n",
        "{c}\rfor a in f(\r    log(x)\r):\r    pass\r",
    ],
)
def test_own_comment_alone_stands_for_what_follows(text: str) -> None:
    assert kept(text.replace("{c}", "# precision-lint: ignore[MP301] reason")) == []


@pytest.mark.parametrize(
    "text",
    [
        "{c}\n\ny = log(x)\n",
        "{c}\nz = 1\ny = log(x)\n",
        "{c}\nfor a in x:\n    log(x)\n",
        "y = f(\n    {c}\n    z,\n    log(x),\n)\n",
        "y = log(x)\n{c}\n",
        "{c}",
    ],
)
def test_own_comment_alone_reaches_no_further(text: str) -> None:
    result = judge(text.replace("{c}", "# precision-lint: ignore[MP301] reason"))
    assert result.suppressed == []
    assert [d.code for d in result.unused] == ["MP004"]


def test_reasons_go_with_what_is_suppressed() -> None:
    result = judge(
        "log(x)  # noqa: MP301 - float32 here\n"
        "# precision-lint: ignore[MP302]: see #12\ndiv(x)\ncdist(x)  # noqa\n"
    )
    assert [(d.code, reason) for d, reason in result.suppressed] == [
        ("MP301", "float32 here"),
        ("MP302", "see"),
        ("MP504", ""),
    ]


@pytest.mark.parametrize("code", ["MP001", "MP002", "MP003"])
def test_failures_cannot_be_silenced(code: str) -> None:
    source = Source("a.py", "x = 1  # noqa # precision-lint: ignore-file # noqa: MP001, MP301\n")
    place = Position(1, 1)
    failure = Diagnostic(code, "n", "m", "a.py", place, place, Severity.ERROR, Confidence.CERTAIN)
    result = suppress.apply(source, [failure], ALL)
    assert result == Suppressed(kept=[failure]), "nor is anything unused where rules failed"


def test_text_without_tokens_has_no_suppressions() -> None:
    text = "y = log(x)  # noqa: MP301, MP302\nz = '''\n"
    result = judge(text)
    assert [d.code for d in result.kept] == ["MP301"]
    assert result.unused == []
    assert result.suppressed == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # precision-lint: ignore[MP301]\0\n",
        # the tokenizer of Python 3.12 and 3.13 raises SystemError here
        '\x0c )# precision-lint: ignore[MP301]\n0x#\0"""0x',
        "x = '\ud800'  # precision-lint: ignore[MP301]\n",
    ],
)
def test_texts_that_the_tokenizer_refuses(text: str) -> None:
    place = Position(1, 1)
    failure = Diagnostic(
        "MP002", "n", "m", "a.py", place, place, Severity.ERROR, Confidence.CERTAIN
    )
    result = suppress.apply(Source("a.py", text), [failure], ALL)
    assert (result.kept, result.unused) == ([failure], [])


def test_an_error_of_the_tokenizer_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(_: object) -> Iterator[tokenize.TokenInfo]:
        raise SystemError("returned a result with an exception set")

    monkeypatch.setattr(tokenize, "generate_tokens", raising)
    assert judge("y = log(x)  # noqa: MP301\n").suppressed == []


def test_texts_that_mention_nothing_are_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppress, "_layout", lambda source: pytest.fail("tokenized"))
    assert kept("y = log(x)  # no qa\n") == [("MP301", 1)]
    assert judge("import x  # noqa: F401\ny = 1  # noqa\n") == Suppressed()


# What silences nothing


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # the whole comment
        ("x = 1  # noqa: MP301\n", "x = 1\n"),
        ("x = 1\t# noqa: MP301  \r\ny\r\n", "x = 1\r\ny\r\n"),
        ("x = 1  # precision-lint: ignore[MP301, small-eps]", "x = 1"),
        ("x = 1  # precision-lint: ignore[MP002]\n", "x = 1\n"),
        ("def f():\n    # precision-lint: ignore[MP301]\n    x\n", "def f():\n    x\n"),
        ("x = 1\r    # noqa: MP301\ry = 1\r", "x = 1\ry = 1\r"),
        ("x\n  # noqa: MP301", "x\n"),
        ("# noqa: MP301", ""),
        ("# precision-lint: ignore-file[MP301]\nx\n", "x\n"),
        ("f'''{x}'''  # noqa: MP301\n", "f'''{x}'''\n"),
        # one of several codes
        ("x = 1  # noqa: E501, MP301\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # noqa: E501 MP301 W503 why\n", "x = 1  # noqa: E501, W503 why\n"),
        ("x = 1  # NOQA:MP301,E501\n", "x = 1  # NOQA:E501\n"),
        ("log(x)  # noqa: MP302, MP301, E501 why\n", "log(x)  # noqa: MP301, E501 why\n"),
        (
            "log(x)  # precision-lint: ignore[ small-eps, MP301 ] why\n",
            "log(x)  # precision-lint: ignore[ MP301 ] why\n",
        ),
        # words of the author and comments of other tools stay
        ("x = 1  # precision-lint: ignore[MP301] see #12 # z\n", "x = 1  # see #12 # z\n"),
        ("# noqa: MP301 - float32 here\nx\n", "# float32 here\nx\n"),
        ("x = 1  # noqa: MP301 FP16 is fine\n", "x = 1  # FP16 is fine\n"),
        ("x = 1  # noqa: MP301  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("x = 1  # type: ignore  # noqa: MP301\n", "x = 1  # type: ignore\n"),
        ("x = 1  # a # noqa: MP301 # b\n", "x = 1  # a # b\n"),
        ("    # a # noqa: MP301\nx\n", "    # a\nx\n"),
        # several in one comment
        ("x  # noqa: MP301  # precision-lint: ignore[MP302]\n", "x\n"),
        ("# noqa: MP301 # noqa: MP302 why # noqa: E501\nx\n", "# why # noqa: E501\nx\n"),
        # one of two that would do, of which none is unused
        ("f(log(x  # noqa: MP301\n))  # noqa: MP301\n", None),
        ("log(x)  # noqa: MP301 # precision-lint: ignore[eps-before-log, MP301]\n", None),
        # nobody else's, and those that belong to every tool
        ("x = 1  # noqa\n", None),
        ("x = 1  # noqa: E501, F401\n", None),
        ("x = 1  # precision-lint: ignore-file\n", None),
        ("x = 1  # precision-lint: ignore[MP004]\n", None),
        ("# write `# noqa: MP301` or '# precision-lint: ignore[MP301]'\n", None),
        ("x = 1  # noqa: MPX100, MP301X\n", None),
    ],
)
def test_unused_suppressions_go(before: str, after: str | None) -> None:
    assert cleaned(before) == (before if after is None else after)
    assert bool(judge(before).unused) is (after is not None)


def test_unused_suppression_as_a_diagnostic() -> None:
    text = "log(x)  # noqa: MP302, E501, MP301, small-eps why"
    (diagnostic,) = judge(f"{text} \n").unused
    assert diagnostic == Diagnostic(
        code="MP004",
        name="unused-suppression",
        message="suppression of MP302, small-eps silences nothing here; remove it",
        filename="a.py",
        start=Position(1, 9),
        end=Position(1, len(text) + 1),
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        fix=Fix(
            "remove the suppression of MP302, small-eps",
            Applicability.SAFE,
            (Edit(text.index("MP302"), text.index(" why"), "E501, MP301"),),
        ),
    )


def test_rules_that_are_not_selected_are_not_judged() -> None:
    text = "x  # noqa: MP301, small-eps # precision-lint: ignore[MP504]\n"
    assert judge(text, frozenset()).unused == []
    assert cleaned(text, frozenset({"MP302", "MP004"})) == (
        "x  # noqa: MP301 # precision-lint: ignore[MP504]\n"
    )


def test_reason_that_would_silence_is_not_uncovered() -> None:
    text = "log(x)  # precision-lint: ignore[MP302] noqa\n"
    (diagnostic,) = judge(text).unused
    assert diagnostic.fix is None
    assert cleaned(text) == text


@pytest.mark.parametrize(
    ("text", "message", "columns"),
    [
        ("# noqa: MP999", "MP999, which is no rule; `precision-lint rules` lists all", (9, 14)),
        (
            "# noqa: MP310, E501",
            "MP310, which is no rule; `precision-lint rules` lists all",
            (9, 14),
        ),
        (
            "# precision-lint: ignore[MP3]",
            "MP3, which is no rule; name each rule",
            (26, 29),
        ),
        (
            "# precision-lint: ignore[eps-befor-log]",
            "eps-befor-log, which is no rule; did you mean eps-before-log?",
            (26, 39),
        ),
        (
            "# precision-lint: ignore-file[E501]",
            "E501, which is no rule; `precision-lint rules` lists all",
            (31, 35),
        ),
    ],
)
def test_unknown_codes(text: str, message: str, columns: tuple[int, int]) -> None:
    (diagnostic,) = judge(text, frozenset()).unused
    assert message in diagnostic.message
    assert (diagnostic.start.column, diagnostic.end.column) == columns
    assert diagnostic.fix is None


def test_unknown_and_unused_codes_are_told_apart() -> None:
    text = "log(x)  # precision-lint: ignore[MP999, MP302, MP301] why\n"
    assert [d.message.partition(";")[0] for d in judge(text).unused] == [
        "suppression of MP999, which is no rule",
        "suppression of MP302 silences nothing here",
    ]
    assert cleaned(text) == "log(x)  # precision-lint: ignore[MP999, MP301] why\n"


@pytest.mark.parametrize(
    "comment",
    [
        "# precision-lint: ignore",
        "# precision-lint: ignore MP301",
        "# precision-lint: ignore[]",
        "# precision-lint: ignore[MP301",
        "# precision-lint: ignore-file[",
        "# precision-lint: ignore-file[]",
        "# precision-lint: noqa",
        "# precision-lint:",
    ],
)
def test_suppressions_that_are_not_understood(comment: str) -> None:
    (diagnostic,) = judge(f"log(x)  {comment} \n").unused
    assert "write `# precision-lint: ignore[CODE] reason`" in diagnostic.message
    assert (diagnostic.start.column, diagnostic.end.column) == (9, 9 + len(comment))
    assert diagnostic.fix is None


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("ignroe", "did you mean `ignore`?"),
        ("Ignore", "did you mean `ignore`?"),
        ("ignore-fil", "did you mean `ignore-file`?"),
        ("asume", "did you mean `assume`?"),
        ("disable", "write `# precision-lint: ignore[CODE] reason` or "),
    ],
)
def test_misspelt_directives(word: str, hint: str) -> None:
    (diagnostic,) = judge(f"log(x)  # precision-lint: {word}[MP301]\n").unused
    assert diagnostic.message.startswith(f"`{word}` is no directive; {hint}")


@pytest.mark.parametrize(
    "text",
    [
        "x  # noqa: MP301 # precision-lint: ignore[MP004]\n",
        "# precision-lint: ignore[MP301, unused-suppression] on some platforms\nx\n",
        "# precision-lint: ignore-file[MP004]\nx  # noqa: MP301\n",
        "# precision-lint: ignore-file\nx  # noqa: MP301, MP999\n",
        "x  # noqa: MP301 # noqa\n",
    ],
)
def test_unused_suppressions_can_be_silenced(text: str) -> None:
    result = judge(text)
    assert result.unused == []
    assert {d.code for d, _ in result.suppressed} == {"MP004"}


# Together


CODE = st.sampled_from(
    ["MP301", "MP302", "MP504", "small-eps", "cdist-in-half", "E501", "MP999", "MP004", "W1"]
)
LIST = st.lists(CODE, min_size=1, max_size=4).map(", ".join)
WORDS = st.sampled_from(["", " because", " - see #12", ", noqa", " noqa: MP301", " fp16 MP301"])
PART = st.one_of(
    st.builds("# noqa: {}{}".format, LIST, WORDS),
    st.builds("# precision-lint: ignore[{}]{}".format, LIST, WORDS),
    st.builds("# precision-lint: ignore-file[{}]".format, LIST),
    st.sampled_from(["# noqa", "# type: ignore", "# words", "# precision-lint: ignore", "#"]),
)
COMMENT = st.lists(PART, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from(["", " ", "  "]).map(lambda gap: gap.join(parts))
)
LINE = st.sampled_from(
    ["y = log(x){c}{n}", "{c}{n}", "    {c}{n}", "{n}",
     "z = f({c}{n}  div(x), {c}{n}cdist(x)){c}{n}",
     "if x:{c}{n}{c}{n}    log(x) + div(x){c}{n}", "s = '''{n}# noqa: MP301{n}'''{c}{n}"]
)  # fmt: skip


@st.composite
def modules(draw: st.DrawFn) -> str:
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = "".join(draw(st.lists(LINE, max_size=6)))
    while "{c}" in text:
        comment = draw(st.one_of(COMMENT, st.just("")))
        text = text.replace("{c}", f"  {comment}" if comment else "", 1)
    return text.replace("{n}", newline)


@settings(deadline=None)
@given(modules())
def test_cleaning_converges_and_changes_no_finding_and_no_code(text: str) -> None:
    result = cleaned(text)
    assert cleaned(result) == result
    assert not any(d.fix for d in judge(result).unused)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(text))
    before, after = judge(text), judge(result)
    assert [d.code for d in after.kept] == [d.code for d in before.kept]
    assert {d.code for d, _ in after.suppressed} - {"MP004"} == {
        d.code for d, _ in before.suppressed
    } - {"MP004"}
    for word in ["E501", "W1", "because", "#12", "type: ignore", "words", "MP999", "fp16"]:
        assert result.count(word) == text.count(word)
