"""Small projects of several files, in memory and on disk."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from precision_lint import runner
from precision_lint.api import Confidence
from precision_lint.config import Overrides, Resolver
from precision_lint.runner import Result


def write(root: Path, texts: Mapping[str, str]) -> None:
    """Write files by their paths, and a mark that makes the directory a project."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "setup.cfg").touch()
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf8")


def check(
    *paths: Path,
    confidence: Confidence = Confidence.LIKELY,
    cache_dir: Path | None = None,
    workers: int = 1,
) -> Result:
    """A run over paths, without a cache unless a directory for one is given."""
    overrides = Overrides(
        confidence=confidence, cache_dir=cache_dir, no_cache=cache_dir is None or None
    )
    return runner.check(paths, Resolver(overrides, isolated=True), workers=workers)


def found(result: Result) -> list[str]:
    """``file:row code`` of the diagnostics."""
    return [f"{Path(d.filename).name}:{d.start.row} {d.code}" for d in result.diagnostics]
