"""Rewrite the goldens of all fixtures from the real fixer, and print what changed.

    python scripts/bless.py [FOLDER ...]

Look at the diff before you commit it: a golden is a promise.
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from precision_lint import registry
from precision_lint.harness import expectations as fixtures
from precision_lint.source import Source, read


def bless(fixture: fixtures.Fixture) -> list[tuple[Path, bytes | None]]:
    """The goldens of a fixture that differ, with what they should hold; None: nothing."""
    source = read(fixture.path)
    if not isinstance(source, Source):
        raise SystemExit(f"{fixture.path}: {source.message}")
    lint = fixtures.linter(registry.rules().values(), fixture.path)
    wanted = fixtures.goldens(fixture, source, lint)
    return [(path, data) for path, data in wanted.items() if data != old(path)]


def old(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def show(path: Path, data: bytes | None) -> str:
    """A unified diff from a golden to what replaces it."""
    before, after = ((text or b"").decode().splitlines(keepends=True) for text in (old(path), data))
    return "".join(difflib.unified_diff(before, after, f"{path} (old)", f"{path} (new)"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="*", help="only these folders of fixtures/")
    parser.add_argument("--root", type=Path, default=None, help="where the folders lie")
    options = parser.parse_args()
    root = options.root or fixtures.home()
    missing = [name for name in options.folder if not (root / name).is_dir()]
    if missing:
        parser.error(f"no folder {missing[0]} in {root}; name one of fixtures/")
    changed = 0
    for fixture in fixtures.fixtures(root):
        if options.folder and fixture.rule not in options.folder:
            continue
        for path, data in bless(fixture):
            print(show(path, data))
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)
            changed += 1
    print(f"{changed} goldens changed")


if __name__ == "__main__":
    main()
