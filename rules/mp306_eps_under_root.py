"""MP306: eps-under-root."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import Context, Finding, Rule, Severity, calls


class EpsUnderRoot(Rule):
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
    `# noqa: MP306`, or `# precision-lint: ignore[MP306] reason`, on the line.

    ## Sources
    Name the page or the measurement that the claim rests on.
    """

    code, name = "MP306", "eps-under-root"
    severity, applicability = Severity.WARNING, None
    triggers = calls("torch.exp")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """Report a call that loses precision; nothing yet."""
        yield from ()
