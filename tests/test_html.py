"""The report as a page: whole, by itself, and safe whatever it is about."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from precision_lint.api import Applicability, Confidence, Diagnostic, Edit, Fix
from precision_lint.report import FORMATS, MACHINE
from precision_lint.report.html import MANY, ROWS
from precision_lint.source import Source
from tests.test_formats import CHAIN, EVERYTHING, SOURCES, diagnostic, fix

EVIL = "<script>alert('1')</script><img src=x onerror=\"alert(2)\">&lt;\x1b[31m\u202e\udcff\0"


class Page(HTMLParser):
    """Reads a page, and holds that each element that begins also ends."""

    VOID = ("meta", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.shown.append(data)

    @property
    def text(self) -> str:
        return "".join(self.shown)

    def values(self, attribute: str) -> list[str | None]:
        return [found[attribute] for _, found in self.elements if attribute in found]

    def inside(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def page(*found: Diagnostic, sources: dict[str, Source] | None = None) -> Page:
    text = FORMATS["html"](found, SOURCES if sources is None else sources)
    assert text.startswith("<!doctype html>")
    assert "://" not in text and "url(" not in text and "@import" not in text
    text.encode()  # no surrogate is left
    return Page(text)


def test_everything_is_on_the_page() -> None:
    made = page(*EVERYTHING)
    for part in (
        "4 errors, 1 warning, 1 info finding in 3 files, 1 with a safe fix (--fix).",
        "6:13 error epsilon 1e-08 rounds to 0",
        "MP301 a-name confidence likely",
        "p is half (train.py:5:5)",
        "the region opens here (src/main file.py:88:10)",
        "half is on here (conf.yaml)",
        "the smallest positive float16 is 5.96e-08",
        "Fix: upcast x (safe)",
        "Fix: upcast x (unsafe: a reason)",
        "Fix: upcast x (by hand: two optimizers)",
        "-    p = x.sigmoid()  # größer",
        "+    p = x.float().sigmoid()  # größer",
        "float16's smallest subnormal",  # of the rule's documentation
    ):
        assert part in " ".join(made.text.split("\n")), part
    assert "MP003 a-name confidence" not in made.text
    assert "html" in MACHINE


def test_links_lead_somewhere() -> None:
    made = page(*EVERYTHING)
    ids = made.values("id")
    assert len(ids) == len(set(ids))
    links = {str(link) for link in made.values("href")}
    labels = {str(label) for label in made.values("for")}
    assert links == {f"#{name}" for name in ids if name not in labels}
    assert labels <= set(ids) and not links & {f"#{name}" for name in labels}


def test_both_schemes() -> None:
    text = FORMATS["html"](EVERYTHING, SOURCES)
    assert "color-scheme: light dark" in text and "prefers-color-scheme: dark" in text
    assert text.count("--mark:") == 2


def test_nothing_on_the_page_is_executed() -> None:
    name = f"{EVIL}.py"
    source = Source(name, f"x = '''{EVIL}'''\n\ty = 1\n")
    evil = Fix(EVIL, Applicability.UNSAFE, (Edit(0, 1, EVIL),), EVIL)
    found = diagnostic("MP301", name, (1, 5), (2, 2), EVIL, evidence=CHAIN, fix=evil)
    made = page(found, sources={name: source})
    harmless = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "a", "ol",
                "li", "span", "div", "table", "thead", "tbody", "tr", "th", "td", "code", "pre",
                "i", "mark", "del", "ins", "details", "summary", "b", "label", "input"}  # fmt: skip
    assert {tag for tag, _ in made.elements} <= harmless
    attributes = {name for _, found in made.elements for name in found}
    assert attributes <= {
        "lang", "charset", "name", "content", "class", "id", "href", "for", "type", "checked",
    }  # fmt: skip
    assert made.text.count("<script>alert('1')</script>") >= 6
    assert not set(made.text) & {"\x1b", "\u202e", "\udcff", "\0"}


def test_an_excerpt_marks_what_was_found() -> None:
    [_, after] = FORMATS["html"]([diagnostic()], SOURCES).split("<mark>", 1)
    assert re.sub("<[^>]+>", "", after.partition("</mark>")[0]) == "(p + 1e-8).log()"
    assert '<span class="n">1e-8</span>' in after
    long = Source("train.py", "".join(f"x{row} = [\n" for row in range(1, 200)))
    made = page(diagnostic(start=(10, 1), end=(150, 3)), sources={"train.py": long})
    assert made.inside("mark") <= ROWS and "..." in made.text
    for source in ("", "one = 1\n"):
        gone = page(diagnostic(fix=fix()), sources={"train.py": Source("train.py", source)})
        assert gone.inside("pre") == 0 and "Fix: upcast x" in gone.text


def test_findings_of_one_cause_are_together() -> None:
    same = [diagnostic(start=(row, 1), end=(row, 3), evidence=CHAIN) for row in (1, 2, 3)]
    text = FORMATS["html"]([*same, diagnostic(start=(4, 1), end=(4, 3))], SOURCES)
    assert text.count("2 more findings of the same cause") == 1
    assert text.count('<div class="finding rule-') == 4


def test_findings_are_hidden_by_rule_confidence_and_mode() -> None:
    found = [
        replace(diagnostic(), modes=("amp-float16", "float16")),
        replace(diagnostic("MP305"), confidence=Confidence.CERTAIN, modes=("float16",)),
    ]
    text = FORMATS["html"](found, SOURCES)
    made = page(*found)
    assert set(made.values("for")) == {
        "show-rule-MP301", "show-rule-MP305", "show-confidence-certain", "show-confidence-likely",
        "show-mode-amp-float16", "show-mode-float16",
    }  # fmt: skip
    assert "body:has(#show-rule-MP305:not(:checked)) .rule-MP305 { display: none; }" in text
    both = ":has(#show-mode-amp-float16:not(:checked)):has(#show-mode-float16:not(:checked))"
    assert f"body{both} .mode-amp-float16_float16 {{ display: none; }}" in text
    assert 'type="checkbox"' not in FORMATS["html"](found[1:], SOURCES)  # nothing to choose


def test_many_files_are_folded() -> None:
    found = [diagnostic(name=f"{number}.py") for number in range(MANY + 1)]
    assert f"{MANY + 1} files" in page(*found).text
    folded = page(*found).inside("details") - page(*found[1:]).inside("details")
    assert folded == 1


def test_no_findings() -> None:
    assert "No findings." in page().text
