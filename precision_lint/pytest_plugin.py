"""``pytest --precision-lint``: one test a file, which fails as ``precision-lint FILE`` would.

All files are linted in one run when the first of their tests begins, under the configuration that
holds for them.  Without the option nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS = pytest.StashKey[dict[Path, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("precision-lint")
    group.addoption(
        "--precision-lint",
        action="store_true",
        help="Lint the collected files for mixed-precision hazards.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, by which ``-m`` chooses these tests or leaves them out."""
    config.addinivalue_line("markers", "precision_lint: a file that --precision-lint lints")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect every Python file, tests or not."""
    if parent.config.getoption("--precision-lint") and file_path.suffix in (".py", ".pyi"):
        return LintFile.from_parent(parent, path=file_path)
    return None


class LintFile(pytest.File):
    """A file to lint."""

    def collect(self) -> Iterator[pytest.Item]:
        yield LintItem.from_parent(self, name="precision-lint")


class LintItem(pytest.Item):
    """The test that nothing in a file fails the run."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.funcargs: dict[str, Any] = {}  # pytest-lsp looks for it in every item
        self.add_marker("precision_lint")

    def runtest(self) -> None:
        stash = self.session.stash
        if RESULTS not in stash:
            paths = [item.path for item in self.session.items if isinstance(item, LintItem)]
            stash[RESULTS] = _linted(paths)
        report = stash[RESULTS].get(self.path)
        if report:
            pytest.fail(report, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"precision-lint: {self.path.name}"


def _linted(paths: list[Path]) -> dict[Path, str]:
    """What is to be said of each file that fails, by its path."""
    from precision_lint import runner
    from precision_lint.config import ConfigError, Overrides, Resolver
    from precision_lint.display import printable
    from precision_lint.registry import InvalidRule
    from precision_lint.report import FORMATS

    here = Path.cwd()
    shown = {path: path.relative_to(here) if path.is_relative_to(here) else path for path in paths}
    try:
        # pytest names the files, not the user: what is excluded stays excluded
        resolver = Resolver(Overrides(force_exclude=True))
        result = runner.check(shown.values(), resolver, workers=resolver(here).jobs)
        least = {path: resolver(path.parent).fail_on.rank for path in paths}
    except (ConfigError, InvalidRule) as error:
        return dict.fromkeys(paths, printable(str(error)))
    found = {}
    for path, name in shown.items():
        own = [d for d in result.diagnostics if d.filename == str(name)]
        if any(d.severity.rank >= least[path] for d in own):
            found[path] = FORMATS["text"](own, result.sources)
    return found
