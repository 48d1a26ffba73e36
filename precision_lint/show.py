"""``--show-files`` and ``--show-settings``: what a run would look at, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from precision_lint import registry, shell
from precision_lint.config import Resolver, Settings
from precision_lint.display import printable, quoted
from precision_lint.project import files as project


def files(paths: Iterable[Path], resolver: Resolver) -> int:
    """List the files that paths name, as absolute paths; odd ones in quotes, as git writes them."""
    found = project.discover(paths, resolver)
    for line in (*found.errors, *found.warnings):
        shell.tell(line)
    if found.files:
        shell.echo("\n".join(_named(file.path) for file in found.files), sys.stdout)
    return 2 if found.errors else 0


def _named(path: Path) -> str:
    name = str(path)
    return name if name == printable(name) else quoted(name)


def settings(paths: Iterable[Path], resolver: Resolver) -> int:
    """Show for each path what holds there, as TOML that would say the same."""
    parts = []
    for shown in paths:
        path = project.absolute(shown)
        found = resolver(path if path.is_dir() else path.parent)
        origin = f"from {found.file}" if found.file else "without a configuration file"
        head = f"# {shown}: {origin}, project root {project.project_root(path)}"
        parts.append("\n".join([printable(head), *_lines(found, path)]))
    shell.echo("\n\n".join(parts), sys.stdout)
    return 0


def _lines(found: Settings, path: Path) -> Iterator[str]:
    table: dict[str, Any] = {
        "select": sorted(found.codes_for(path)),
        "confidence": found.confidence.value,
        "fail-on": found.fail_on.value,
        "exclude": list(found.exclude.globs),
        "extend-exclude": [glob for patterns in found.extend_exclude for glob in patterns.globs],
        "force-exclude": found.force_exclude,
        "respect-gitignore": found.respect_gitignore,
        "preview": found.preview,
        "unsafe-fixes": found.unsafe_fixes,
        "output-format": found.output_format,
        "jobs": found.jobs,
        "cache-dir": found.cache_dir and str(found.cache_dir),
        "torch-version": found.torch_version,
        "precision": found.modes_for(path),
        "device": found.devices_for(path),
        "baseline": found.baseline and str(found.baseline),
    }
    off = sorted(set(registry.known("ALL")) - found.codes_for(path))
    for key, value in table.items():
        if value is None:
            yield f"# {key}: not set"
        else:
            yield f"{key} = {_toml(value)}"
        if key == "select" and off:
            yield f"# off here: {', '.join(off)}"


def _toml(value: Any) -> str:
    """A value as TOML, with escapes for what is not printable."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c == printable(c) else f"\\U{ord(c):08x}" for c in text)
