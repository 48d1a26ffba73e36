"""The order of the test files."""

from __future__ import annotations

from typing import Final

import pytest

SLOW: Final = frozenset({
    "test_harness.py", "test_witnesses.py", "test_rewritings.py", "test_incidents.py",
    "test_differential.py", "test_own_fixes.py", "test_calibrate.py",
})  # fmt: skip
"""Files that begin first, so that no worker waits in the end for one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in SLOW)
