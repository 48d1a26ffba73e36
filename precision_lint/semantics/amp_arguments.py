"""Arguments of autocast and GradScaler that raise, or that mean something else in silence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Edit, Severity

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
PARAMETERS = {
    "torch.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.amp.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.cuda.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.cpu.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.amp.GradScaler": ("device", *SCALER),
    "torch.cuda.amp.GradScaler": SCALER,
    "torch.cpu.amp.GradScaler": SCALER,
}
REGIONS = frozenset(name for name in PARAMETERS if name.endswith("autocast"))
RENAMED = {"enable": "enabled", "device": "device_type", "device_type": "device"}
"""Keywords that are taken for others."""
HALVES = {"float16": "float16", "half": "float16", "fp16": "float16", "bfloat16": "bfloat16",
          "bf16": "bfloat16"}  # fmt: skip
WIDE = frozenset({"torch.float32", "torch.float", "torch.float64", "torch.double"})
DTYPES = WIDE | {"torch.float16", "torch.half", "torch.bfloat16"}
FLAG = re.compile(r"(^|[._])(use_?)?(amp|fp16|half|enabled?|mixed)(_|$)|mixed_precision|use_amp")
"""Names that hold whether, not how much."""

HAS_DEVICE = re.compile(
    r"(\w+_)?(model|module|net|unet|vae|encoder|decoder|transformer|pipe|pipeline|accelerator|fabric)"
)
"""Names of what has a ``torch.device``; options and trainers may hold its name instead."""


IS_TEXT = re.compile(
    r"self\.device(: str)? *(==|!=|=) *f?[\"']|[\"'] (not )?in self\.device\b"
    r"|self\.device\.(startswith|split|lower)|self\.device\["
)
"""Code of an object whose device is a text."""
NUMBERED = re.compile(r"[\"'] (not )?in self\.device\b|self\.device(\.(startswith|split)|\[)|cuda:")
"""Code of one whose text may have a number."""
WRAPPER = re.compile(r"autocast|amp_|_amp\b|precision|mixed", re.IGNORECASE)
"""Names of what passes its arguments on to autocast."""


@dataclass(frozen=True)
class BadArguments:
    """What is wrong with a call, and the edits that put it right."""

    message: str
    edits: tuple[Edit, ...] | None = None
    guess: str | None = None
    """Why the fix is one."""
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.CERTAIN

    @classmethod
    def of(cls, node: ast.Call, at: Context) -> BadArguments | None:
        """What is wrong with a call of one of them; None: nothing, or it cannot be told."""
        homes = cls.meanings(node.func, at)
        old = _too_new(node, homes, at)
        if old is not None:
            return old
        starred = any(isinstance(a, ast.Starred) for a in node.args)
        if starred or not homes <= PARAMETERS.keys():
            return None
        known = {parameter for home in homes for parameter in PARAMETERS[home]}
        for keyword in node.keywords:
            if keyword.arg is None:
                wrong = _keys(keyword.value, at) - known
            else:  # of two homes of the name, neither has it
                wrong = {keyword.arg} - known if len(homes) > 1 else set()
            if wrong:
                short = " and ".join(sorted(home.removeprefix("torch.") for home in homes))
                named = " or ".join(sorted(wrong))
                verb = "have" if len(homes) > 1 else "has"
                message = f"{short} {verb} no parameter {named}: it raises a TypeError"
                return cls(message, confidence=Confidence.LIKELY)
        if homes <= {"torch.autocast", "torch.amp.autocast"} and _never_given(node, at):
            message = f"autocast needs a device type, and no call of {at.function.name}() has one"
            return cls(f"{message}: it raises a TypeError", confidence=Confidence.LIKELY)
        if len(homes) > 1 or any(k.arg is None for k in node.keywords):
            return None
        (name,) = homes
        return next(_problems(node, name, at), None)

    @staticmethod
    def wrapped(keyword: ast.keyword, at: Context) -> ast.Call | None:
        """The call of a wrapper of autocast that gets a whole device as its device type."""
        if keyword.arg != "device_type":
            return None
        call = next(iter(at.ancestors(keyword)), None)
        if not isinstance(call, ast.Call) or at.qualify(call.func) in PARAMETERS:
            return None
        if not WRAPPER.search(at.text(call.func)):
            return None
        value = keyword.value
        return call if _is_numbered(value, at) or _is_device(value, at) is not None else None

    @staticmethod
    def uncalled(node: ast.expr, at: Context) -> str | None:
        """Why what a `with` or decorator is given opens no region, or None."""
        if isinstance(node, ast.BoolOp):  # and gives its last operand, or its first, as both are
            last = isinstance(node.op, ast.And)
            lost = node.values[:-1] if last else node.values[1:]
            for made in lost:
                if isinstance(made, ast.Call) and at.qualify(made.func) in REGIONS:
                    entered = at.text(node.values[-1 if last else 0])
                    return f"only {entered} is entered: write {at.text(made)}, {entered}"
            return None
        if isinstance(node, ast.Call) or at.qualify(node) not in PARAMETERS:
            return None
        return f"{at.text(node)} is not called: write {at.text(node)}(...)"

    @staticmethod
    def default_on(node: ast.Call | ast.Dict, at: Context) -> ast.expr | None:
        """What switches a region on unless somebody says otherwise; a dict: its arguments."""
        if isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            if not set(keys) <= set(PARAMETERS["torch.autocast"]) or "dtype" not in keys:
                return None
            given = dict(zip(keys, node.values, strict=True))
        else:
            given = {k.arg: k.value for k in node.keywords}
        enabled = given.get("enabled")
        return enabled if enabled is not None and _is_on(enabled, at) else None

    @staticmethod
    def meanings(func: ast.expr, at: Context) -> set[str]:
        """Qualified names that a callee may have: a name can be imported from two places."""
        homes = {at.qualify(func) or ""}
        for statement in ast.walk(at.module.index.tree) if isinstance(func, ast.Name) else ():
            if isinstance(statement, ast.ImportFrom):
                homes |= {
                    f"{statement.module}.{alias.name}"
                    for alias in statement.names
                    if (alias.asname or alias.name) == getattr(func, "id", "")
                }
        return homes


NEEDS = {"torch.amp.GradScaler": (2, 3), "torch.autocast": (1, 10), "torch.amp.autocast": (1, 10)}
"""Releases from which on torch has a name."""


def _too_new(node: ast.Call, homes: set[str], at: Context) -> BadArguments | None:
    """A name that an old torch, which the project's metadata allow, does not have."""
    name = next(iter(homes)) if len(homes) == 1 else ""
    if name not in NEEDS or at.project.torch is None or at.project.has_torch(*NEEDS[name]):
        return None
    if re.search(r"__version__|hasattr\(torch|_version\(|TORCH_\w*\d", at.source.text):
        return None
    release = ".".join(map(str, NEEDS[name]))
    return BadArguments(
        f"{name} needs torch {release}, and the project allows older ones: AttributeError there",
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
    )


def _is_on(node: ast.expr, at: Context) -> bool:
    """Whether an expression is True unless a caller, an option or a setting says otherwise."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, ast.Constant(value=True)]):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[_, ast.Constant(value=True)]):
            return True
        case ast.Name(id=name):
            default = at.function.defaults().get(name)
            return isinstance(default, ast.Constant) and default.value is True
        case ast.Attribute(value=ast.Name(id="self")) if at.function.cls is not None:
            stored = at.module.stores(at.function.cls).get(node.attr)
            if stored is None or stored[1] is None:
                return False
            return _is_on(stored[0], at.inside(stored[1]))
    return False


def _keys(node: ast.expr, at: Context) -> set[str]:
    """Keys of the dicts that ``**options`` is bound to in this function."""
    sources = at.function.assigned.get(node.id, []) if isinstance(node, ast.Name) else [node]
    return {
        key.value
        for source in sources
        if isinstance(source, ast.Dict)
        for key in source.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _problems(node: ast.Call, name: str, at: Context) -> Iterator[BadArguments]:
    parameters = PARAMETERS[name]
    short = name.removeprefix("torch.")
    for keyword in node.keywords:
        if keyword.arg not in parameters:
            yield BadArguments(
                f"{short} has no parameter {keyword.arg}: it raises a TypeError",
                _renamed(node, keyword, name, at),
            )
    given = dict(zip(parameters, node.args, strict=False))
    given |= {k.arg: k.value for k in node.keywords if k.arg}
    if len(node.args) > len(parameters):
        return
    if name.endswith("GradScaler"):
        yield from _scaler(node, name, given, at)
    elif parameters[0] == "enabled":
        yield from _old_region(node, name, given, at)
    else:
        yield from _region(node, short, given, at)
    yield from _dtype(node, short, given.get("dtype"), at)


def _renamed(
    node: ast.Call, keyword: ast.keyword, name: str, at: Context
) -> tuple[Edit, ...] | None:
    """Edits that call a keyword by its right name, or the callable that has it."""
    wrong = keyword.arg or ""
    if wrong == "device_type" and name in ("torch.cuda.amp.autocast", "torch.cpu.amp.autocast"):
        spelling, imports = at.torch()
        callee = at.edit.put(node.func, f"{spelling}.autocast")
        return None if callee is None or node.args else (*imports, *callee)
    right = RENAMED.get(wrong)
    if right not in PARAMETERS[name] or any(k.arg == right for k in node.keywords):
        return None
    if node.args and right == PARAMETERS[name][0]:
        return None
    start = at.source.offset(keyword.lineno, keyword.col_offset)
    return (Edit(start, start + len(wrong), right or ""),)


def _named(argument: ast.expr, name: str, at: Context) -> tuple[Edit, ...]:
    """Edits that give a positional argument its name."""
    start = at.edit.offset(argument)
    return (Edit(start, start, f"{name}="),)


def _last(node: ast.Call, argument: ast.expr) -> bool:
    """Whether an argument is the last positional one, so that it may get a name."""
    return bool(node.args) and node.args[-1] is argument


def _scaler(
    node: ast.Call, name: str, given: dict[str, ast.expr], at: Context
) -> Iterator[BadArguments]:
    first = node.args[0] if node.args else None
    if first is None:
        return
    short = name.removeprefix("torch.")
    new = name == "torch.amp.GradScaler"
    flag = isinstance(first, ast.Constant) and isinstance(first.value, bool)
    named = isinstance(first, (ast.Name, ast.Attribute)) and FLAG.search(at.text(first).lower())
    if flag or (named and at.value(first).kind != "text"):
        edits = _named(first, "enabled", at) if _last(node, first) else None
        told = at.text(first)
        if new:
            what = f"the device: the scaler is on, whatever {told} is"
        else:
            what = f"the initial scale: {told} is a scale of 1 or 0, not a switch"
        sure = Confidence.CERTAIN if flag else Confidence.LIKELY
        yield BadArguments(f"{short} takes its first argument for {what}", edits, confidence=sure)
    elif new and isinstance(first, ast.Constant) and isinstance(first.value, (int, float)):
        edits = _named(first, "init_scale", at) if _last(node, first) else None
        yield BadArguments(f"{short} takes its first argument for the device, not the scale", edits)
    elif not new and isinstance(first, ast.Constant) and isinstance(first.value, str):
        own = first.value == name.split(".")[1] and len(node.args) == 1
        yield BadArguments(
            f"{short} takes its first argument for the initial scale: a device raises",
            _dropped(node, first, at) if own else None,
        )


def _dropped(node: ast.Call, first: ast.expr, at: Context) -> tuple[Edit, ...] | None:
    """Edits that take the only positional argument away."""
    start, end = at.edit.offset(first), at.edit.end(first)
    if node.keywords:
        following = node.keywords[0]
        end = at.source.offset(following.lineno, following.col_offset)
    return None if "#" in at.source.text[start:end] else (Edit(start, end, ""),)


def _old_region(
    node: ast.Call, name: str, given: dict[str, ast.expr], at: Context
) -> Iterator[BadArguments]:
    first = node.args[0] if node.args else None
    if first is None:
        return
    short, device = name.removeprefix("torch."), name.split(".")[1]
    if at.qualify(first) in DTYPES:
        default = "float16" if device == "cuda" else "bfloat16"
        edits = _named(first, "dtype", at) if _last(node, first) else None
        if at.qualify(first) != f"torch.{default}":
            yield BadArguments(
                f"{short} takes its first argument for enabled: the region runs in {default}, not "
                f"{at.text(first)}",
                edits,
            )
    elif isinstance(first, ast.Constant) and isinstance(first.value, str):
        if first.value.partition(":")[0] != device:
            spelling, imports = at.torch()
            callee = at.edit.put(node.func, f"{spelling}.autocast")
            yield BadArguments(
                f'{short} takes its first argument for enabled: the region is one of "{device}"',
                (*imports, *callee) if callee is not None and len(node.args) < 3 else None,
            )


def _never_given(node: ast.Call, at: Context) -> bool:
    """Whether a region gets its device type by its function's ``**settings`` alone, and no call of
    that function in the project has one."""
    function = at.function.node
    spread = [k.value for k in node.keywords if k.arg is None]
    settings = None if isinstance(function, ast.Module) else function.args.kwarg
    if settings is None or node.args or len(spread) != 1 or at.mentions("device_type"):
        return False
    if not isinstance(spread[0], ast.Name) or spread[0].id != settings.arg:
        return False
    calls = [call for call, _ in at.module.call_sites(at.function)]
    for site in at.module.foreign_sites(at.function):
        home = at.module.program.load(site.file) if at.module.program is not None else None
        where = home.site(site.function, site.span) if home is not None else None
        if where is None:
            return False
        calls.append(where[0])
    return bool(calls) and not any(
        k.arg in (None, "device_type") for call in calls for k in call.keywords
    )


def _region(
    node: ast.Call, short: str, given: dict[str, ast.expr], at: Context
) -> Iterator[BadArguments]:
    device = given.get("device_type")
    if device is None:
        if not any(k.arg not in PARAMETERS[f"torch.{short}"] for k in node.keywords):
            yield BadArguments(
                f"{short} needs a device type: it raises a TypeError",
                _insert(node, '"cuda"', at),
                "the device is a guess",
            )
        return
    second = given.get("dtype")
    if isinstance(device, ast.Constant) and isinstance(device.value, str):
        word = device.value.partition(":")[0]
        if word.lower() in ("gpu", "cuda") and word not in ("cuda",):
            yield BadArguments(
                f'"{device.value}" is no device type: the region raises a RuntimeError',
                at.edit.put(device, '"cuda"'),
            )
    elif at.qualify(device) in DTYPES:
        yield BadArguments(
            f"{short} takes its first argument for the device type: a dtype raises a ValueError",
            _insert(node, '"cuda", dtype=', at) if node.args == [device] else None,
            "the device is a guess",
        )
    elif isinstance(device, ast.Constant):
        flag = node.args == [device] and isinstance(device.value, bool)
        yield BadArguments(
            f"{short} takes its first argument for the device type: it raises a ValueError",
            _insert(node, '"cuda", enabled=', at) if flag else None,
            "the device is a guess",
        )
    elif _is_numbered(device, at):
        yield BadArguments(
            f"{short} takes a device type: of a device with a number the text raises in old torch",
            confidence=Confidence.POSSIBLE,
        )
    elif (sure := _is_device(device, at)) is not None:
        end = at.edit.end(device)
        yield BadArguments(
            f"{short} takes the device type as text: a torch.device raises a ValueError",
            (Edit(end, end, ".type"),),
            confidence=sure,
        )
    if isinstance(second, ast.Constant) and isinstance(second.value, bool):
        edits = _named(second, "enabled", at) if _last(node, second) else None
        yield BadArguments(
            f"{short} takes its second argument for the dtype: a flag raises a TypeError", edits
        )


def _insert(node: ast.Call, text: str, at: Context) -> tuple[Edit, ...]:
    """Edits that put a first argument, or all but the value of one, into a call."""
    if not node.args and not node.keywords:
        end = at.edit.end(node)
        return (Edit(end - 1, end - 1, text),)
    first = node.args[0] if node.args else node.keywords[0]
    start = at.source.offset(first.lineno, first.col_offset)
    return (Edit(start, start, text if text.endswith("=") else f"{text}, "),)


def _is_numbered(node: ast.expr, at: Context) -> bool:
    """Whether an expression is the text of a device, which may have a number."""
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id == "str"
        return named and at.text(node).endswith("device)")
    if isinstance(node, ast.Attribute) and at.text(node) == "self.device":
        text = at.source.text
        return IS_TEXT.search(text) is not None and NUMBERED.search(text) is not None
    return isinstance(node, ast.JoinedStr)


def _is_device(node: ast.expr, at: Context) -> Confidence | None:
    """How sure it is that an expression is a ``torch.device``; None: it may as well be text."""
    if isinstance(node, ast.Call):
        return Confidence.CERTAIN if at.qualify(node.func) == "torch.device" else None
    if isinstance(node, ast.Name):
        sources = at.function.assigned.get(node.id, [])
        if not sources and node.id in {p.arg for p in at.function.parameters()}:
            return _parameter(node.id, at)
        return _is_device(sources[0], at) if len({id(s) for s in sources}) == 1 else None
    if not (isinstance(node, ast.Attribute) and node.attr == "device"):
        return None
    if at.text(node) == "self.device" and at.function.cls is not None:
        return None if IS_TEXT.search(at.source.text) else Confidence.POSSIBLE
    if at.value(node.value).is_tensor:
        return Confidence.CERTAIN
    owner = at.text(node.value).rpartition(".")[2]
    return Confidence.LIKELY if HAS_DEVICE.fullmatch(owner) else None


def _parameter(name: str, at: Context) -> Confidence | None:
    """How sure it is that a parameter is a ``torch.device``."""
    parameter = next(p for p in at.function.parameters() if p.arg == name)
    note = at.text(parameter.annotation) if parameter.annotation is not None else ""
    if note == "torch.device":
        return Confidence.LIKELY
    word = re.escape(name)
    text = rf"\b{word}\s*(==|!=|in\b|\.startswith|\.split)|[\"']\s*(==|in)\s*{word}\b"
    given = at.function.defaults().get(name)
    if note or name != "device" or at.mentions(text) or isinstance(given, ast.Constant):
        return None
    if at.mentions(rf"(?<![\w.]){word}\.type\b"):
        return Confidence.LIKELY
    return Confidence.POSSIBLE if at.mentions(rf"\.to\({word}\b") else None


def _dtype(
    node: ast.Call, short: str, dtype: ast.expr | None, at: Context
) -> Iterator[BadArguments]:
    if isinstance(dtype, ast.Constant) and isinstance(dtype.value, str):
        right = HALVES.get(dtype.value.removeprefix("torch."))
        spelling, imports = at.torch()
        edits = at.edit.put(dtype, f"{spelling}.{right}") if right else None
        yield BadArguments(
            f"{short} takes a torch.dtype: a text raises a TypeError",
            (*imports, *edits) if edits is not None else None,
        )
    elif isinstance(dtype, ast.Attribute) and _is_option(dtype, at):
        yield BadArguments(
            f"{short} takes a torch.dtype, and {at.text(dtype)} is the text of an option",
            confidence=Confidence.LIKELY,
        )
    elif dtype is not None and at.qualify(dtype) in WIDE:
        region = at.region(node)
        off = any(
            k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False
            for k in node.keywords
        )
        if off or region.state == "on":
            return
        trains = at.mentions(r"\.backward\(|\.step\(")
        yield BadArguments(
            f"a region of {at.text(dtype)} lowers nothing: mixed precision is off without an error",
            severity=Severity.WARNING,
            # elsewhere it may bring a part of its caller's region up
            confidence=Confidence.LIKELY if trains else Confidence.POSSIBLE,
        )


def _is_option(node: ast.Attribute, at: Context) -> bool:
    """Whether an attribute is a text that this file reads off the command line, and keeps."""
    name = node.attr
    if at.text(node.value).rpartition(".")[2] not in ("args", "opt", "opts", "options", "flags"):
        return False
    for call, _ in at.module.index.calls.get("add_argument", []):
        flags = [a.value for a in call.args if isinstance(a, ast.Constant)]
        if f"--{name}" not in flags and f"--{name.replace('_', '-')}" not in flags:
            continue
        given = {k.arg: k.value for k in call.keywords}
        default = given.get("default")
        text = isinstance(default, ast.Constant) and isinstance(default.value, str)
        kind = ast.unparse(given["type"]) if "type" in given else "str"
        stored = re.search(rf"\.{name}\s*=(?!=)|setattr\(", at.source.text)
        return text and kind == "str" and stored is None
    return False
