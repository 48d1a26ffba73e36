"""precision-lint: a linter for mixed-precision hazards in PyTorch code.

    from precision_lint import lint_source

    for finding in lint_source(text, filename="train.py"):
        print(finding.start.row, finding.code, finding.message)

The names below are imported when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from precision_lint.config import ConfigError
    from precision_lint.library import FixedSource, fix_source, lint_paths, lint_source

__all__ = [
    "Applicability",
    "Confidence",
    "ConfigError",
    "Diagnostic",
    "Edit",
    "Evidence",
    "Fix",
    "FixedSource",
    "Position",
    "Severity",
    "fix_source",
    "lint_paths",
    "lint_source",
]
__version__ = "0.1.0"

_HOMES = {"ConfigError": "config"} | dict.fromkeys(
    ("FixedSource", "fix_source", "lint_paths", "lint_source"), "library"
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
