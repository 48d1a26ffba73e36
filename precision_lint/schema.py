"""JSON Schema of the configuration, from which editors complete and check it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precision_lint import config, registry
from precision_lint.api import Confidence, Severity
from precision_lint.config import DEFAULT_EXCLUDE, KEYS, Settings
from precision_lint.report import FORMATS

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest one that the usual TOML extensions of editors read."""

Schema = dict[str, Any]

DESCRIPTIONS = {
    "select": "Codes, prefixes, names or ALL of the rules that are on; the longer prefix wins.",
    "extend-select": "Rules to turn on besides those of select.",
    "ignore": "Rules to turn off; wins over select at equal length.",
    "confidence": "Least confidence of a finding that is shown.",
    "fail-on": "Least severity that fails the run.",
    "exclude": "Files and directories to skip, as in .gitignore, instead of the usual list.",
    "extend-exclude": "Files and directories to skip besides those of exclude.",
    "force-exclude": "Skip excluded files even when they are named, as by pre-commit.",
    "respect-gitignore": "Skip what git ignores.",
    "per-file-ignores": 'Rules to turn off by pattern of files; "!pattern" holds everywhere else.',
    "preview": "Turn on rules in preview, which are wrong more often.",
    "unsafe-fixes": "Let --fix and --diff apply unsafe fixes, too.",
    "output-format": "How findings are reported.",
    "jobs": "Processes at most; by default one a core.",
    "cache-dir": "Where summaries of the project are kept; by default .precision_lint_cache.",
    "torch-version": "Least torch that the code has to run on; by default the project's.",
    "precision": "Modes that the code is run in; [] means float32 only. Unset: what code shows.",
    "device": "Devices that the code runs on, the usual one first. Unset: what code shows.",
    "overrides": "Modes or devices of the files under a path, instead of the above; the last match counts.",
    "baseline": "File of the findings that are put off: `precision-lint baseline --help`.",
    "extend": "Configuration file that this one adds to and overrides.",
}
DEFAULTS: dict[str, Any] = {"exclude": list(DEFAULT_EXCLUDE), "select": ["ALL"]}


def generate() -> Schema:
    """The schema of precision-lint.toml, which is that of [tool.precision-lint] as well."""
    properties = {}
    for key, (_, convert) in KEYS.items():
        ours = key in ("select", "extend-select", "ignore")
        shape = {"$ref": "#/definitions/selectors"} if ours else dict(_SHAPES[convert])
        properties[key] = {"description": DESCRIPTIONS[key]} | _with_default(key, shape)
    return {
        "$schema": DIALECT,
        "title": "precision-lint",
        "description": "Configuration of precision-lint, a linter for mixed precision in PyTorch.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "definitions": {
            "selectors": {"type": "array", "items": {"$ref": "#/definitions/selector"}},
            "selector": {
                "description": "A rule's code or name, a prefix of codes, or ALL.",
                "anyOf": [{"enum": _selectors()}, {"type": "string", "pattern": _OTHERS}],
            },
        },
    }


def _with_default(key: str, shape: Schema) -> Schema:
    if "$ref" in shape:  # beside a reference, draft 7 takes nothing but its annotations
        shape = {"allOf": [shape]}
    field = Settings.__dataclass_fields__.get(key.replace("-", "_"))
    default = DEFAULTS.get(key, field.default if field else None)
    value = getattr(default, "value", default)
    return shape | ({"default": value} if isinstance(value, bool | str | list) else {})


def _selectors() -> list[str]:
    """All that ``select`` takes, in order: ALL, codes and their prefixes, names."""
    rules = registry.rules()
    codes = [c for c in registry.known("ALL") if c not in rules or registry.ships(rules[c])]
    names = {name for name, code in registry.names().items() if code in codes}
    prefixes = {code[:length] for code in codes for length in range(2, len(codes[0]) + 1)}
    return ["ALL", *sorted(prefixes), *sorted(names)]


def _enum(kind: type[Confidence] | type[Severity]) -> Schema:
    return {"enum": [level.value for level in kind]}


_OTHERS = rf"^MP[{registry.OTHERS}]\d{{0,2}}$"
"""Codes of other packages, whichever are installed."""
_STRINGS: Schema = {"type": "array", "items": {"type": "string"}}
_MODES: Schema = {"type": "array", "items": {"enum": list(config.REFERENCE_AND_MODES)}}
_DEVICE: Schema = {"enum": list(config.DEVICES)}
_DEVICES: Schema = {"anyOf": [_DEVICE, {"type": "array", "items": _DEVICE, "minItems": 1}]}
_SHAPES: Mapping[Callable[[Any], Any], Schema] = {
    config._strings: _STRINGS,
    config._boolean: {"type": "boolean"},
    config._positive: {"type": "integer", "minimum": 1},
    config._path: {"type": "string", "pattern": r"^[^\u0000]+$"},
    config._version: {"type": "string", "pattern": r"^(>= *)?[0-9]+(\.[0-9]+){1,2}$"},
    config._format: {"enum": list(FORMATS)},
    config._ignores: {
        "type": "object",
        "additionalProperties": {"$ref": "#/definitions/selectors"},
    },
    config._modes: _MODES,
    config._devices: _DEVICES,
    config._overrides: {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["path"],
            "minProperties": 2,
            "properties": {
                "path": {"anyOf": [{"type": "string"}, _STRINGS]},
                "precision": _MODES,
                "device": _DEVICES,
            },
        },
    },
    Confidence: _enum(Confidence),
    Severity: _enum(Severity),
}
