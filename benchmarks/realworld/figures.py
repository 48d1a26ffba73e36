"""The tables of README.md, made from the labels and from ``results/*.json``.

python -m benchmarks.realworld.figures
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.realworld.cases import CONTEXTS, HERE, SETS, categories, load

README = HERE / "README.md"
VERDICTS = ("right", "arguable", "wrong")
GROUPS = ("libraries", "unseen", "repositories", "packages", "fresh", "offered", "newest")
"""Of read alarms: those of well-kept libraries, then of other code, in the order of reading."""
TEXT = {"Context", "Rule", "Linter", "Category", "What it is", "Repository", "Set", "Sets"}
ORDER = ("precision-lint", "torchfix", "dslinter", "semgrep", "ruff")


def rendered(text: str) -> str:
    """The README's text with what is between its markers made anew."""
    tables = {
        "sizes": sizes, "linters": linters, "sets": by_set, "known": known, "alarms": alarms,
        "categories": counts, "repositories": repositories,
    }  # fmt: skip

    def table(marker: re.Match[str]) -> str:
        rows = "\n".join(tables[marker["name"]]())
        return f"<!-- {marker['name']} -->\n\n{rows}\n\n<!-- end -->"

    return re.sub(
        r"<!-- (?P<name>\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL | re.MULTILINE
    )


def results() -> dict[str, dict[str, Any]]:
    """By linter the newest published result."""
    found = {path.stem: json.loads(path.read_text()) for path in HERE.glob("results/*.json")}
    return {name: found[name] for name in ORDER if name in found}


def sizes() -> Iterator[str]:
    """One row a set: what it holds."""
    yield from _head("Set", "Repositories", "Fixes", "Cases", *CONTEXTS, "Negatives")
    for name in (*SETS, "all"):
        cases, negatives = (
            [one for one in load(kind) if name in (one.set, "all")] for kind in ("case", "negative")
        )
        contexts = Counter(one.context for one in cases)
        yield _row(
            name,
            str(len({one.repo for one in (*cases, *negatives)})),
            str(len({(one.repo, one.fix_commit) for one in cases})),
            str(len(cases)),
            *(str(contexts[context] or "") for context in CONTEXTS),
            str(len(negatives)),
        )


def linters() -> Iterator[str]:
    """One row a linter, in the first set: cases flagged by default, false alarms, all alarms."""
    yield from _head("Linter", *CONTEXTS, "all cases", "a rule exists", "any confidence",
                     "negatives", "alarms per 1,000 lines", "by fitting rules")  # fmt: skip
    for name, result in results().items():
        figures = result["sets"]["first"]
        rates = (_rate(figures["alarms"], key) for key in ("default", "fitting"))
        scope = "" if result["scope"] == "tree" else " (files)"
        yield _row(
            f"{_versioned(name, result['version'])}{scope}",
            *(_share(figures["contexts"][context]["all"]) for context in CONTEXTS),
            f"**{_share(figures['cases']['all'])}**",
            _share(figures["cases"]["covered"]),
            _share(figures["cases"]["all"], "possible"),
            _share(figures["negatives"]),
            *rates,
        )


def by_set() -> Iterator[str]:
    """precision-lint by context, in each set that it was run on."""
    sets = results()["precision-lint"]["sets"]
    ways = {"by default": "default", "with possible": "possible"}
    yield from _head("Context", *(f"{name}: {way}" for name in sets for way in ways))
    rows = {
        context: [of["contexts"][context]["all"] for of in sets.values()] for context in CONTEXTS
    }
    rows["all cases"] = [of["cases"]["all"] for of in sets.values()]
    rows["false alarms on negatives"] = [of["negatives"] for of in sets.values()]
    for title, counted in rows.items():
        yield _row(title, *(_share(count, key) for count in counted for key in ways.values()))


def known() -> Iterator[str]:
    """precision-lint by context, in the categories of the first set for which it has a rule."""
    contexts = results()["precision-lint"]["sets"]["first"]["contexts"]
    yield from _head("Context", "by default", "with possible")
    for context in CONTEXTS:
        count = contexts[context]["covered"]
        yield _row(context, _share(count), _share(count, "possible"))


def alarms() -> Iterator[str]:
    """One row a rule: right, arguable and wrong alarms of each group, and those still shown."""
    read = [json.loads(line) for line in (HERE / "alarms.jsonl").read_text().splitlines()]
    yield from _head("Rule", *GROUPS, "now: libraries", "now: other code")
    by_rule: dict[str, Counter[tuple[str, str]]] = {}
    for alarm in read:
        group = alarm["group"]
        now = ["now: libraries" if group == "libraries" else "now: other code"]
        for rule in (alarm["rule"], "~"):
            for column in (group, *(now if alarm["shown"] else ())):
                by_rule.setdefault(rule, Counter())[column, alarm["verdict"]] += 1
    for rule, verdicts in sorted(by_rule.items()):
        numbers = (
            [verdicts[column, verdict] for verdict in VERDICTS]
            for column in (*GROUPS, "now: libraries", "now: other code")
        )
        cells = (" / ".join(str(n) for n in three) if any(three) else "" for three in numbers)
        yield _row("all" if rule == "~" else rule, *cells)


def counts() -> Iterator[str]:
    """One row a category: labels, and what precision-lint flags of its cases."""
    cases = Counter(one.category for one in load("case"))
    negatives = Counter(one.category for one in load("negative"))
    ours = results().get("precision-lint", {}).get("figures", {}).get("categories")
    yield from _head("Category", "What it is", "Cases", "Negatives", *(["Flagged"] if ours else []))
    for name in sorted(categories(), key=lambda name: (-cases[name], name)):
        flagged = [_share(ours[name]) if name in ours else ""] if ours else []
        number = (str(counter[name] or "") for counter in (cases, negatives))
        yield _row(f"`{name}`", categories()[name].description, *number, *flagged)


def repositories() -> Iterator[str]:
    """One row a repository: how many labels it gives, and to which sets."""
    cases = load("case")
    named: dict[str, set[str]] = {}
    for one in (*cases, *load("negative")):
        named.setdefault(one.repo, set()).add(one.set)
    fixes = Counter(repo for repo, _ in {(one.repo, one.fix_commit) for one in cases})
    places = Counter(one.repo for one in cases)
    negatives = Counter(one.repo for one in load("negative"))
    yield from _head("Repository", "Sets", "Fixes", "Cases", "Negatives")
    for repo in sorted(named, key=str.lower):
        sets = ", ".join(name for name in SETS if name in named[repo])
        numbers = (str(counter[repo] or "") for counter in (fixes, places, negatives))
        yield _row(f"[{repo}](https://github.com/{repo})", sets, *numbers)


def _head(*titles: str) -> Iterator[str]:
    """Titles, and the alignment of their columns: numbers to the right."""
    yield _row(*titles)
    yield _row(*("---" if title in TEXT else "---:" for title in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _share(count: Mapping[str, int], key: str = "default") -> str:
    return f"{count[key]} / {count['n']}"


def _rate(alarms: Mapping[str, int], key: str) -> str:
    return f"{1000 * alarms[key] / alarms['lines']:.2f}"


def _versioned(name: str, said: str) -> str:
    """A linter and what ``--version`` said; that of a plug-in speaks of its host."""
    match = re.match(r"(?P<program>[\w-]*?)\W*(?P<number>\d+(\.\d+)+)", said)
    if not match:
        return name
    if match["program"] in ("", name):
        return f"{name} {match['number']}"
    return f"{name} ({match['program']} {match['number']})"


def main() -> None:
    README.write_text(rendered(README.read_text()))


if __name__ == "__main__":
    main()
