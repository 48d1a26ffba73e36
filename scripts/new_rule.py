"""Scaffold a rule: its module, and a folder of fixtures whose proof fails until you write it.

python scripts/new_rule.py MP610 spam-overflow
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

RULE = '''\
"""@CODE@: @NAME@."""

from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Rule, Severity


class @CLASS@(Rule):
    """Say what is flagged, in one line.

    ## What it flags
    Say which code, and what stays silent.

    ## Why it breaks
    Say which dtype loses what, with the numbers.

    ## Example
    Show the hazard, then the code that does not have it.

    ## Fix safety
    There is no fix.

    ## How to silence
    `# noqa: @CODE@`, or `# precision-lint: ignore[@CODE@] reason`, on the line.

    ## Sources
    Name the page or the measurement that the claim rests on.
    """

    code, name = "@CODE@", "@NAME@"
    severity, applicability = Severity.WARNING, None
    listens = ("half:exp",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        """Report an exponential in half."""
        yield Finding("say what breaks, with the numbers")
'''

POSITIVE = '''\
"""The hazard, in code as one meets it."""

import torch


def hazard(x):
    return torch.exp(x.half())  # expect: @CODE@
'''

NEGATIVE = '''\
"""Code that looks like the hazard and is none."""

import torch


def upcast(x):
    return torch.exp(x.float())  # ok: @CODE@ the operand is float32
'''

PROOF = '''\
"""How the fixtures of @CODE@ are executed, and what their hazards do."""

import torch

from precision_lint.harness.cases import Case, Failure

CASES = (
    Case(
        module="hazard.py",
        entry="hazard",
        inputs=lambda: (torch.linspace(-1.0, 1.0, 9, dtype=torch.float64),),
        # The proof fails until this says what the hazard really does.
        before={
            "float16": Failure.raises("not proven yet"),
            "bfloat16": Failure.raises("not proven yet"),
        },
        level="none",
    ),
)
'''


def scaffold(root: Path, code: str, name: str) -> list[Path]:
    """Write the files of a rule under ``root``; raises ValueError for a bad or taken name."""
    if not re.fullmatch(r"MP[1-9]\d{2}", code):
        raise ValueError(f"code is {code!r}; write MP and three digits from MP101 on")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", name):
        raise ValueError(f"name is {name!r}; write the hazard in kebab-case, two words or more")
    slug = name.replace("-", "_")
    stem = f"{code.lower()}_{slug}"
    taken = [
        path
        for folder in ("rules", "fixtures")
        for path in (root / folder).glob("mp[0-9][0-9][0-9]_*")
        if path.stem.startswith(f"{code.lower()}_") or path.stem[6:] == slug
    ]
    if taken:
        raise ValueError(f"{taken[0]} exists; choose another code and name")
    words = {
        "@CODE@": code,
        "@NAME@": name,
        "@CLASS@": "".join(word.capitalize() for word in name.split("-")),
    }
    folder = root / "fixtures" / stem
    folder.mkdir(parents=True)
    files = {
        root / "rules" / f"{stem}.py": RULE,
        folder / "hazard.py": POSITIVE,
        folder / "negatives.py": NEGATIVE,
        folder / "proof.py": PROOF,
    }
    for path, text in files.items():
        for mark, word in words.items():
            text = text.replace(mark, word)
        path.write_text(text)
    return list(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("code", help="MP and three digits, such as MP610")
    parser.add_argument("name", help="the hazard in kebab-case, such as spam-overflow")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    options = parser.parse_args()
    try:
        files = scaffold(options.root, options.code, options.name)
    except ValueError as error:
        parser.error(str(error))
    for path in files:
        print(path)


if __name__ == "__main__":
    main()
