"""What a YAML, TOML or JSON file says of half precision.

YAML is read as events of the parser: nothing is constructed, so that tags, anchors, several
documents and templates do no harm, and what stands before an error counts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from precision_lint.project.files import CONFIGS

if TYPE_CHECKING:
    from precision_lint.project.spellings import Entry, Kind, Statement, Strength

MAX_BYTES = 256 * 1024
_DEEPEST = 40
_DATA = re.compile(
    r"(?:package|npm|yarn|composer|poetry|pdm|uv|pnpm|cargo)?[-.]?lock\w*\.\w+|npm-shrinkwrap\.json"
    r"|package(?:-lock)?\.json|tsconfig.*\.json|(?:added_|special_)?tokens?(?:_map|izer)?\w*\.json"
    r"|vocab.*\.json|merges.*\.json|.*\.index\.json|pnpm-lock\.yaml|pdm\.lock\.toml"
)


def is_config(name: str) -> bool:
    return name.endswith(CONFIGS)


def is_data(name: str) -> bool:
    """Whether a file of this name never configures a training: locks, vocabularies."""
    return _DATA.fullmatch(PurePath(name).name.lower()) is not None


def statements(name: str, data: bytes) -> list[Statement]:
    """Every distinct statement of a file; none if it is no text or does not parse."""
    from precision_lint.project import hints  # late: they compile much
    from precision_lint.project.spellings import Statement, is_coined, settings

    if len(data) > MAX_BYTES or not hints.configures(data):
        return []
    text = data.decode("utf-8-sig", "replace")
    is_json = name.endswith(".json")
    yaml = name.endswith((".yaml", ".yml"))
    entries = _yaml(text) if yaml else _nested(text, _load(text, is_json))
    found: dict[tuple[Kind, Strength, frozenset[str]], Statement] = {}
    for entry, said in settings(entries, weak=is_json):
        key = (said.kind, said.strength, said.dtypes)
        if key not in found:
            spelling = f"{_framework(entry, name)}: {'.'.join(entry.path)}: {_shown(entry.value)}"
            row = entry.row or _row(text, entry.path)
            coined = is_coined(entry.path[-1])
            found[key] = Statement(
                said.kind, said.strength, said.dtypes, spelling[:120], row, coined=coined
            )
    return list(found.values())


def _framework(entry: Entry, name: str) -> str:
    path = [part.lower() for part in entry.path]
    outer = path[-2] if len(path) > 1 else ""
    if path[-1] == "enabled" and outer in ("fp16", "bf16", "bfloat16", "torch_autocast"):
        return "DeepSpeed config"
    if path[-3:] == ["solver", "amp", "enabled"]:
        return "Detectron2 config"
    if path[-1] in ("precision", "class_path") and "trainer" in path:
        return "Lightning config"
    if path[-1] in ("mixed_precision", "downcast_bf16") and len(path) == 1:
        return "Accelerate config"
    if path[0] == "common" and len(path) == 2:
        return "fairseq config"
    if path[-1] == "torch_dtype" and name.endswith(".json"):
        return "Hugging Face model config"
    return "config"


def _shown(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


# parsers


def _load(text: str, is_json: bool) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _nested(text: str, value: Any) -> Iterator[Entry]:
    """The leaves of a parsed document; the row is where the keys follow each other."""
    from precision_lint.project import spellings

    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        path, value = stack.pop()
        if len(path) > _DEEPEST:
            continue
        if isinstance(value, dict):
            stack += reversed([((*path, str(key)), inner) for key, inner in value.items()])
        elif isinstance(value, list):
            inner = [one for one in value if isinstance(one, (dict, list))]
            stack += reversed([((*path, str(number)), one) for number, one in enumerate(inner)])
        elif path and (value is None or isinstance(value, (bool, int, float, str))):
            yield spellings.Entry(path, value, 0)


def _row(text: str, path: Iterable[str]) -> int:
    at = 0
    for key in path:
        found = re.compile(rf"\b{re.escape(key)}\b").search(text, at)
        at = found.start() if found else at
    return text.count("\n", 0, at) + 1


def _yaml(text: str) -> Iterator[Entry]:
    import yaml  # late: most projects need it for no file

    from precision_lint.project import spellings

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    frames: list[_Frame] = []
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionEndEvent):
                frames.pop()
            if not isinstance(event, yaml.NodeEvent):
                continue
            scalar = event.value if isinstance(event, yaml.ScalarEvent) else None
            path = frames[-1].place(scalar) if frames else ()
            if isinstance(event, yaml.CollectionStartEvent):
                if len(frames) > _DEEPEST:
                    return
                frames.append(_Frame(path, isinstance(event, yaml.MappingStartEvent)))
            elif path and scalar is not None and event.start_mark is not None:
                yield spellings.Entry(path, scalar, event.start_mark.line + 1)
    except (yaml.YAMLError, ValueError, RecursionError):
        return


class _Frame:
    """An open collection of a YAML file: where it is, and the key that waits for its value."""

    def __init__(self, path: tuple[str, ...] | None, mapping: bool) -> None:
        self.path = path
        self.mapping = mapping
        self.key: str | None = None
        self.waits = False
        self.count = 0

    def place(self, scalar: str | None) -> tuple[str, ...] | None:
        """Path of the next node; None for a key, and for what no plain keys lead to."""
        if self.mapping and not self.waits:
            self.key, self.waits = scalar, True
            return None
        self.waits = False
        key = self.key if self.mapping else str(self.count)
        self.count += 1
        return None if self.path is None or key is None else (*self.path, key)
