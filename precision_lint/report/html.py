"""One HTML page that needs nothing else: no network, no scripts, light and dark as readers like."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

import precision_lint
from precision_lint import catalogue
from precision_lint.api import Applicability, Diagnostic, Evidence, Fix, Position, Severity
from precision_lint.display import printable
from precision_lint.report import filters
from precision_lint.report.colors import Line, highlighted
from precision_lint.report.files import promise, spot
from precision_lint.source import Source

CONTEXT = 2
"""Lines shown before and after a finding."""
ROWS = 12
"""Lines of a finding that are shown; the rest gives way to a mark."""
MANY = 15
"""Files from which on their list is folded."""
STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c1e21; --soft: #5b616b; --line: #d9dce1;
  --good: #1b7f5c; --error: #b3303f; --warning: #8a5a00; --info: #1d6a96; --code: #f4f5f7;
  --mark: #fbe3a8; --word: #8250a0; --text: #2a6b3f; --number: #9a4b1e; --name: #1d5f9e; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e8eb; --soft: #a2a9b4;
  --line: #343a43; --good: #55c79a; --error: #f0808c; --warning: #e3b341; --info: #6cb6e8;
  --code: #1e2329; --mark: #5c4a12; --word: #c9a2e8; --text: #8fd19e; --number: #e8a87c;
  --name: #7fb8ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .25rem; font-weight: 600; }
p, ul, ol { max-width: 48rem; margin: .5rem 0; } ol, ul { padding-left: 1.25rem; }
a { color: inherit; } a:focus-visible { outline: 2px solid var(--info); }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: .8125rem; }
pre { background: var(--code); padding: .75rem 0; overflow-x: auto; line-height: 1.45;
  border-radius: 4px; margin: .5rem 0; overflow-wrap: normal; }
pre > span { display: block; width: max-content; min-width: 100%; padding: 0 1rem; }
pre i { color: var(--soft); font-style: normal; user-select: none; }
mark { background: var(--mark); color: inherit; border-radius: 2px; }
del, ins { text-decoration: none; } del { color: var(--error); } ins { color: var(--good); }
table { border-collapse: collapse; font-size: .875rem; margin: .5rem 0 1.5rem; width: 100%; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); } .number { text-align: right; padding-right: 0; }
td:first-child { overflow-wrap: anywhere; } .code { white-space: nowrap; }
.soft { color: var(--soft); margin: 0 0 1rem; }
.error { color: var(--error); } .warning { color: var(--warning); } .info { color: var(--info); }
.good { color: var(--good); } .finding { border-top: 1px solid var(--line); padding: 1rem 0 .5rem; }
.finding > p { margin: .25rem 0; font-size: .875rem; } .finding li { font-size: .875rem; }
details { margin: .5rem 0; font-size: .875rem; } summary { cursor: pointer; color: var(--soft); }
.k { color: var(--word); } .s { color: var(--text); } .n { color: var(--number); }
.d { color: var(--name); } .c { color: var(--soft); font-style: italic; }
.filters { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .25rem 0; font-size: .875rem; }
.filters b { color: var(--soft); font-weight: 600; min-width: 6rem; }
.filters label { white-space: nowrap; cursor: pointer; }
.filters input { accent-color: var(--info); margin: 0 .35rem 0 0; vertical-align: middle; }
.pill { border: 1px solid var(--line); border-radius: 1rem; padding: .05rem .55rem; font-size: .75rem;
  color: var(--soft); white-space: nowrap; }
.pill.certain { color: var(--error); border-color: var(--error); }
.pill.likely { color: var(--warning); border-color: var(--warning); }
.same { border-left: 2px solid var(--line); padding-left: 1rem; }
@media print { body { max-width: none; } .finding { break-inside: avoid; } .filters { display: none; } }
"""


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """Counts of each rule and file, the findings by file, and the rules behind them: the dearest first."""
    if not diagnostics:
        return _page("<p>No findings.</p>")
    numbered = list(enumerate(diagnostics, start=1))
    files = {
        name: sorted(own, key=lambda one: _dear(one[1].code, one[1].severity))
        for name, own in groupby(numbered, key=lambda one: one[1].filename)
    }
    anchors = {name: f"file{number}" for number, name in enumerate(files, start=1)}
    parts = [_summary(diagnostics, len(files)), _rules(diagnostics), _files(files, anchors)]
    parts.append(filters.controls(diagnostics))
    for name, own in files.items():
        parts.append(f'<h2 id="{anchors[name]}">{_text(name)}</h2>')
        for group in _causes(own):
            shown = [_finding(number, one, sources) for number, one in group]
            parts.append(shown[0])
            if shown[1:]:
                title = f"{_count(len(shown) - 1, 'more finding')} of the same cause"
                rest = "\n".join(shown[1:])
                parts.append(_folded(title, f'<div class="same">{rest}</div>'))
    style = filters.style(diagnostics)
    return _page("\n".join([*parts, *_explained(numbered, sources)]), style)


def _causes(found: Iterable[tuple[int, Diagnostic]]) -> list[list[tuple[int, Diagnostic]]]:
    """Findings of one rule that are known from the same places, together."""
    groups: dict[object, list[tuple[int, Diagnostic]]] = {}
    for number, one in found:
        places = tuple((link.filename, link.start) for link in one.evidence if link.start)
        groups.setdefault((one.code, places) if places else number, []).append((number, one))
    return list(groups.values())


def _page(body: str, style: str = "") -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>precision-lint</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        f'<h1>precision-lint</h1>\n<p class="soft">Version {precision_lint.__version__}</p>\n'
        f"{body}\n</body>\n</html>"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _span(kind: str, words: str) -> str:
    return f'<span class="{kind}">{_text(words)}</span>'


WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "info finding"}


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def _summary(diagnostics: Sequence[Diagnostic], files: int) -> str:
    counts = Counter(one.severity for one in diagnostics)
    severities = [
        _span(severity.value, _count(counts[severity], WORDS[severity]))
        for severity in reversed(Severity)
        if counts[severity]
    ]
    safe = sum(
        one.fix is not None and one.fix.applicability is Applicability.SAFE for one in diagnostics
    )
    fixable = f", {safe:,} with a safe fix (<code>--fix</code>)" if safe else ""
    return f"<p>{', '.join(severities)} in {_count(files, 'file')}{fixable}.</p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML; the last column is a number."""
    kinds = ["", *[""] * (len(head) - 2), ' class="number"']

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(kinds, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in pairs)}</tr>"

    body = "\n".join(row("td", cells) for cells in rows)
    return f"<table>\n<thead>{row('th', head)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>"


def _dear(code: str, severity: Severity) -> tuple[int, int]:
    """The order of findings: by what they cost, then by their severity."""
    return catalogue.cost(code), -severity.rank


def _rules(diagnostics: Sequence[Diagnostic]) -> str:
    counts = Counter((d.code, d.name, d.severity) for d in diagnostics)
    ranked = sorted(
        counts.items(), key=lambda item: (*_dear(item[0][0], item[0][2]), -item[1], item[0][0])
    )
    return _table(
        ("Rule", "Severity", "Findings"),
        [
            (
                f"{_rule_link(code)} {_text(name)}",
                _span(severity.value, severity.value),
                f"{number:,}",
            )
            for (code, name, severity), number in ranked
        ],
    )


def _files(files: Mapping[str, Sequence[object]], anchors: Mapping[str, str]) -> str:
    table = _table(
        ("File", "Findings"),
        [
            (f'<a href="#{anchors[name]}">{_text(name)}</a>', f"{len(found):,}")
            for name, found in files.items()
        ],
    )
    return table if len(files) <= MANY else _folded(_count(len(files), "file"), table)


def _rule_link(code: str) -> str:
    return f'<a class="code" href="#{_text(code)}">{_text(code)}</a>'


def _place(filename: str, position: Position, sources: Mapping[str, Source]) -> str:
    """Row and column, of a notebook with the cell before them."""
    cell, inner = spot(filename, position, sources)
    return f"{cell}:{inner.row}:{inner.column}"


def _finding(number: int, one: Diagnostic, sources: Mapping[str, Source]) -> str:
    source = sources.get(one.filename)
    place = _place(one.filename, one.start, sources)[1:]
    head = f"{_span('soft', place)} {_span(one.severity.value, one.severity.value)}"
    sure = ""
    if not one.code.startswith("MP0"):  # the engine's own diagnostics are no judgement
        level = _span(f"pill {one.confidence.value}", f"confidence {one.confidence.value}")
        sure = f" {level}{_modes(one)}"
    parts = [
        f'<div class="finding {filters.classes(one)}" id="finding{number}">',
        f"<h3>{head} {_text(one.message)}</h3>",
        f"<p>{_rule_link(one.code)} {_text(one.name)}{sure}</p>",
        _excerpt(one, source) if source else "",
    ]
    if one.assumptions:
        parts.append(f"<p>Assumed: {_text('; '.join(one.assumptions))}.</p>")
    if one.evidence:
        links = "".join(
            f"<li>{_evidence(link, one.filename, sources)}</li>" for link in one.evidence
        )
        parts.append(f"<p>Known from:</p><ol>{links}</ol>")
    if one.fix:
        parts.append(_fix(one.fix, source))
    return "\n".join([*filter(None, parts), "</div>"])


def _modes(one: Diagnostic) -> str:
    words = ["as written" if mode == "code" else mode for mode in one.modes]
    return "".join(f" {_span('pill', word)}" for word in words)


def _evidence(link: Evidence, filename: str, sources: Mapping[str, Source]) -> str:
    place = link.filename or (filename if link.start else "")
    if link.start:
        place += _place(place, link.start, sources)
    return f"{_text(link.message)} {f'(<code>{_text(place)}</code>)' if place else ''}".rstrip()


def _fix(fix: Fix, source: Source | None) -> str:
    safe = fix.applicability is Applicability.SAFE
    said = f"<p>Fix: {_span('good' if safe else 'soft', promise(fix))}</p>"
    change = _change(fix, source) if source else ""
    return (
        f"{said}<details><summary>What it changes</summary>{change}</details>" if change else said
    )


def _change(fix: Fix, source: Source) -> str:
    """The lines that a fix takes away and puts there."""
    edits = sorted(fix.edits)
    if not edits or edits[-1].end > len(source.text):
        return ""
    first, last = source.position(edits[0].start).row, source.position(edits[-1].end).row
    begin = source.lines[first - 1]
    end = source.lines[last] if last < len(source.lines) else len(source.text)
    new, at = "", begin
    for edit in edits:
        new += source.text[at : edit.start] + edit.text
        at = edit.end
    before, after = (_lines(text) for text in (source.text[begin:end], new + source.text[at:end]))
    if not before[-1] and not after[-1]:  # what follows the last newline
        del before[-1], after[-1]
    tags = {"-": "del", "+": "ins"}
    rows = []
    for line in list(difflib.unified_diff(before, after, n=1, lineterm=""))[3:]:
        tag = tags.get(line[0])
        shown = _code(line)
        rows.append(f"<span>{f'<{tag}>{shown}</{tag}>' if tag else shown}</span>")
    return f"<pre>{''.join(rows)}</pre>" if rows else ""


def _lines(text: str) -> list[str]:
    return re.split(r"\r\n?|\n", text)


def _code(text: str) -> str:
    return _text(_tabs(text)) or " "


def _excerpt(one: Diagnostic, source: Source) -> str:
    """The lines of a finding and some around them, the finding marked."""
    lines = _lines(source.text)
    if not lines[-1]:
        lines.pop()
    start, end = one.start, max(one.end, one.start)
    if not 1 <= start.row <= end.row <= len(lines):
        return ""
    rows = [*range(max(1, start.row - CONTEXT), min(len(lines), end.row + CONTEXT) + 1)]
    colored = highlighted(source.text, len(lines))
    hidden = set(range(start.row + ROWS // 2, end.row - ROWS // 2 + 1))
    width = len(str(rows[-1]))
    shown = []
    for row in rows:
        if row not in hidden:
            label = f"{row:>{width}}"
            shown.append(
                f"<span><i>{label}  </i>{_marked(colored[row - 1], row, start, end)}</span>"
            )
        elif row == min(hidden):
            shown.append(f"<span><i>{'':>{width}}  ...</i></span>")
    return f"<pre>{''.join(shown)}</pre>"


def _marked(line: Line, row: int, start: Position, end: Position) -> str:
    whole = "".join(text for _, text in line)
    if not start.row <= row <= end.row:
        return _colored(line) or " "
    left = start.column - 1 if row == start.row else len(whole) - len(whole.lstrip())
    right = end.column - 1 if row == end.row else len(whole)
    right = max(right, left + 1) if row == start.row == end.row else right
    before, marked, after = (
        _colored(_cut(line, *part)) for part in ((0, left), (left, right), (right, len(whole)))
    )
    return f"{before}<mark>{marked}</mark>{after}" if marked else before + after or " "


def _cut(line: Line, left: int, right: int) -> Line:
    """A part of a line, with its colours."""
    found, at = [], 0
    for kind, text in line:
        part = text[max(left - at, 0) : max(right - at, 0)]
        if part:
            found.append((kind, part))
        at += len(text)
    return found


def _colored(line: Line) -> str:
    return "".join(_span(kind, _tabs(text)) if kind else _text(_tabs(text)) for kind, text in line)


def _tabs(text: str) -> str:
    return text.replace("\t", "    ")


def _explained(
    numbered: Sequence[tuple[int, Diagnostic]], sources: Mapping[str, Source]
) -> list[str]:
    """Each rule that found something: what it means, and where."""
    places: dict[str, list[tuple[int, Diagnostic]]] = defaultdict(list)
    for number, one in numbered:
        places[one.code].append((number, one))
    parts = ["<h2>Rules</h2>"]
    for code, found in sorted(places.items()):
        rule = catalogue.described(code)
        sections = rule.get("sections", {})
        parts.append(f'<div class="finding" id="{_text(code)}">')
        parts.append(f"<h3>{_text(code)} {_text(rule['name'])}</h3>")
        parts.append(_prose(rule["summary"]))
        if sections:
            parts += [_prose(sections["Why it breaks"])]
        links = ", ".join(
            f'<a href="#finding{number}">'
            f"{_text(one.filename + _place(one.filename, one.start, sources))}</a>"
            for number, one in found
        )
        parts.append(
            f"<details><summary>{_count(len(found), 'finding')}</summary>{links}</details>"
        )
        parts.append("</div>")
    return parts


def _prose(text: str) -> str:
    """Paragraphs of a rule's documentation, with its code as code."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    coded = [re.sub("`([^`]+)`", r"<code>\1</code>", _text(part)) for part in paragraphs]
    return "".join(f"<p>{part}</p>" for part in coded)
