"""The report as one HTML page that needs nothing else: no network, no scripts.

Per rule: which conditions fail before the fix and not after it, and a plot of the error against
magnitude.  For users' code: each finding with its witness.  Light and dark as the reader has it.
"""

from __future__ import annotations

import datetime
import html
import importlib.util
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

import precision_lint
from precision_lint.harness import told
from precision_lint.harness.sweep import Sweep
from precision_lint.harness.tables import conclusion, policy_words, verdict_words

if TYPE_CHECKING:
    from precision_lint.harness.verify import Result
    from precision_lint.harness.witnesses import Verdict


class Missing(Exception):
    """What the report needs is not installed; the text says what to do."""


def require() -> None:
    """Raises `Missing` where there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Missing("--report needs matplotlib; pip install 'precision-lint[report]'")


STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c1e21; --soft: #5b616b; --line: #d9dce1;
  --good: #1b7f5c; --bad: #b3303f; --none: #6b7280; --code: #f4f5f7; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e8eb; --soft: #a2a9b4;
  --line: #343a43; --good: #55c79a; --bad: #f0808c; --none: #9aa1ad; --code: #1e2329; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p, li { max-width: 46rem; } .soft { color: var(--soft); margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: .75rem 0; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
.overview th { white-space: normal; } .overview td:first-child { white-space: nowrap; }
.matrix td { white-space: nowrap; } .matrix td:nth-child(4) { white-space: normal; }
a { color: inherit; }
.good { color: var(--good); } .bad { color: var(--bad); } .none { color: var(--none); }
.plot { width: 100%; height: auto; display: block; color: var(--ink); }
pre { background: var(--code); padding: .75rem 1rem; overflow-x: auto; font-size: .8125rem;
  line-height: 1.45; border-radius: 4px; } code { font-family: ui-monospace, monospace; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .875rem; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .875rem; }
"""


def _document(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _stamp(where: str) -> str:
    today = datetime.date.today().isoformat()
    version = precision_lint.__version__
    return f"precision-lint {version}, torch {torch.__version__}, {where}, {today}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "plain") -> str:
    """A table of cells that are HTML."""
    top = "".join(f"<th>{one}</th>" for one in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _span(kind: str, words: str) -> str:
    return f'<span class="{kind}">{html.escape(words)}</span>'


# rules

CLASSES = {"proven": "good", "unchanged": "good", "failed": "bad", "shown": "bad"}


def of_rules(
    results: Sequence[Result], where: str, sweeps: Mapping[str, Sweep] | None = None
) -> str:
    """The page of the proofs of rules; ``sweeps`` by code."""
    from precision_lint.harness import plots

    failed = sum(len(result.failures) for result in results)
    cases = sum(len(result.cells) for result in results)
    end = _span("bad" if failed else "good", conclusion(results))
    parts = [
        "<h1>What the rules claim, executed</h1>",
        f'<p class="soft">{html.escape(_stamp(where))}</p>',
        f"<p>{len(results)} rules, {cases} cases: {end}. <em>Proven</em>: the original fails "
        "as its rule declares, and the text that the fixer makes of it does not. <em>Shown</em>: "
        "the original fails so, and the case has no fix to prove.</p>",
        _overview(results, where),
    ]
    for result in results:
        parts.append(_rule(result, where))
        sweep = (sweeps or {}).get(result.rule.code)
        if sweep is not None:
            parts.append(
                f"<figure>{plots.draw(sweep, result.rule.code)}<figcaption>"
                f"{html.escape(_caption(sweep, where))}</figcaption></figure>"
            )
    return _document("precision-lint: proofs", "\n".join(parts))


def _caption(sweep: Sweep, where: str) -> str:
    policy = {"eager": "half inputs without autocast"}.get(
        sweep.policy, f"autocast, {policy_words(sweep.policy, where)}"
    )
    return (
        f"{sweep.case}: {policy}. Error against a reference in full precision; broken: an "
        "exception, inf or nan."
    )


def _overview(results: Sequence[Result], where: str) -> str:
    conditions = list(
        dict.fromkeys((p, d) for r in results for p, d, _ in r.summary() if d != "float32")
    )
    rows = []
    for result in results:
        found = {(policy, dtype): phases for policy, dtype, phases in result.summary()}
        name = f"{result.rule.code} {result.rule.name}"
        cells = [f'<a href="#{result.rule.code}">{html.escape(name)}</a>']
        for condition in conditions:
            phases = found.get(condition, {})
            verdicts = [phases[p] for p in ("forward", "backward") if p in phases]
            ranked = [v for v in ("failed", "proven", "shown") if v in verdicts] + verdicts
            best = ranked[0] if ranked else "-"
            cells.append(_span(CLASSES.get(best, "none"), verdict_words(best)))
        rows.append(cells)
    head = ["rule", *(html.escape(f"{policy_words(p, where)} {d}") for p, d in conditions)]
    return _table(head, rows, "overview")


def _rule(result: Result, where: str) -> str:
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for cells in result.cells.values():
        for cell in cells:
            grouped[cell["policy"], cell["dtype"], cell["phase"]].append(cell)
    rows = []
    for (policy, dtype, phase), cells in sorted(grouped.items(), key=lambda one: one[0][:2]):
        if dtype == "float32":
            continue
        rows.append(
            [
                html.escape(policy_words(policy, where)),
                dtype,
                phase,
                _before(cells),
                _after(cells),
            ]
        )
    same = [c for (_, d, _), cells in grouped.items() if d == "float32" for c in cells]
    notes = [f"<li>{_span('bad', one)}</li>" for one in result.failures]
    words = ""
    if same:
        kept = all(cell["verdict"] == "unchanged" for cell in same)
        words = (
            " In float32 the fix changes nothing." if kept else " In float32 the fix changes it."
        )
    summary = html.escape((result.rule.__doc__ or "").strip().splitlines()[0])
    return (
        f'<h2 id="{result.rule.code}">{result.rule.code} {html.escape(result.rule.name)}</h2>'
        f'<p class="soft">{summary}{words}</p>'
        + _table(["policy", "dtype", "phase", "before the fix", "after the fix"], rows, "matrix")
        + (f"<ul>{''.join(notes)}</ul>" if notes else "")
    )


def _before(cells: Sequence[dict[str, Any]]) -> str:
    """What the originals of a condition show, each kind once."""
    executed = [cell for cell in cells if cell["verdict"] != "skipped"]
    if not executed:
        return _span("none", "not executed")
    shown = list(dict.fromkeys(words for cell in executed for words in cell["shown"]))
    if not shown:
        return _span("none", "not a hazard here")
    more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    return _span("bad", _short(shown[0]) + more)


def _short(words: str) -> str:
    return words if len(words) < 90 else words[:87] + "…"


def _after(cells: Sequence[dict[str, Any]]) -> str:
    verdicts = {cell["verdict"] for cell in cells}
    if "failed" in verdicts:
        return _span("bad", "FAILED")
    if "proven" in verdicts:
        return _span("good", "right")
    return _span("none", "no fix" if "shown" in verdicts else "-")


# users' code


def of_witnesses(verdicts: Sequence[Verdict], where: str) -> str:
    """The page of the findings in users' code."""
    counts = told.counts(verdicts)
    parts = [
        "<h1>Findings, executed</h1>",
        f'<p class="soft">{html.escape(_stamp(where))}</p>',
        f"<p>{html.escape(told.summary(verdicts))}</p>",
        _table(
            ["finding", "verdict", "what was seen"],
            [
                [
                    f'<a href="#f{i}">{html.escape(one.place)} {one.finding.code}</a>',
                    _span("bad" if one.outcome == "proven" else "none", told.outcome(one)),
                    html.escape(one.answer.get("before", one.reason)),
                ]
                for i, one in enumerate(verdicts)
            ],
        )
        if counts
        else "",
    ]
    for i, one in enumerate(verdicts):
        parts.append(_finding(one, i))
    return _document("precision-lint: findings", "\n".join(parts))


def _plot(drawn: Sweep, name: str) -> str:
    from precision_lint.harness import plots

    words = "Relative error of the witness when its inputs are multiplied by a factor, within what "
    words += "the code allows."
    figure = plots.draw(drawn, name)
    return f"<figure>{figure}<figcaption>{words}</figcaption></figure>"


def _finding(one: Verdict, number: int) -> str:
    title = f"{one.place} {one.finding.code} {one.finding.name}"
    parts = [
        f'<h2 id="f{number}">{html.escape(title)}</h2>',
        f'<p class="soft">{html.escape(one.finding.message)}</p>',
    ]
    if one.outcome != "proven":
        return "".join(
            [*parts, f"<p>{html.escape(told.outcome(one))}: {html.escape(one.reason)}</p>"]
        )
    rows = [["before", _span("bad", one.answer["before"])]]
    if one.fix is not None:
        rows.append(["after", _span("good", f"{one.answer['after']} ({one.fix})")])
    if one.answer["note"]:
        rows.append(["but", html.escape(one.answer["note"])])
    parts.append(f"<p>{html.escape(one.answer['words'])}</p>")
    parts.append(_table(["", ""], rows))
    if one.answer.get("sweep"):
        parts.append(_plot(Sweep(**one.answer["sweep"]), f"f{number}"))
    parts.append(f"<pre><code>{html.escape(told.inputs(one))}</code></pre>")
    parts.append(f"<pre><code>{html.escape(one.variant.original)}</code></pre>")
    if one.fixed is not None:
        fixed = html.escape(one.fixed)
        parts.append(
            "<details open><summary>after the fix</summary>"
            f"<pre><code>{fixed}</code></pre></details>"
        )
    return "\n".join(parts)
