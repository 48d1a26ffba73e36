"""Autocast regions: which state an expression runs under, and why it is believed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from precision_lint.api import Evidence
from precision_lint.semantics.names import Names, dotted

AUTOCAST = {
    "torch.autocast": None,
    "torch.amp.autocast": None,
    "torch.cuda.amp.autocast": "cuda",
    "torch.cpu.amp.autocast": "cpu",
    "torch.xpu.amp.autocast": "xpu",
    "torch.npu.amp.autocast": "npu",
}
"""Autocast context managers, with the device that their name implies."""

OFF = re.compile(r"(disable|disabled|no|without|off|suspend)\w*autocast|autocast\w*(off|disabled)")
"""Names of project helpers that switch autocast off."""

NO_GRAD = ("torch.no_grad", "torch.inference_mode")

DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "float32",
    "torch.float": "float32",
    "torch.float64": "float64",
    "torch.double": "float64",
    "torch.bool": "bool",
} | {
    f"torch.{name}": "int"
    for name in (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "long",
        "int",
        "short",
    )
}


@dataclass(frozen=True)
class Region:
    """The autocast state at a point.

    state: ``on``, ``off`` (``enabled=False``), or ``inherited`` (whatever the caller has).
    dtype: ``float16``, ``bfloat16``, ``float32`` (autocast that lowers nothing) or ``low``.
    device: ``cuda``, ``cpu``, ... or ``""`` where it is only known at run time.
    sure: whether state, device and dtype are literal in the code.
    node: what opened the region; None for an inherited one.
    """

    state: str = "inherited"
    dtype: str = "low"
    device: str = ""
    sure: bool = False
    node: ast.expr | None = None
    called: ast.Call | None = None
    """The call through which this state was inherited, if it is in this module."""
    foreign: tuple[Evidence, ...] = ()
    """The places in other files that opened it and lead here."""

    @property
    def on(self) -> bool:
        return self.state == "on" and self.dtype != "float32"

    @property
    def known(self) -> bool:
        """Whether some place is known that opened it."""
        return self.node is not None or bool(self.foreign)


INHERITED = Region()
OUTSIDE = Region("off", "float32")


def _argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    for item in call.keywords:
        if item.arg == keyword:
            return item.value
    return call.args[position] if len(call.args) > position else None


def region_of(node: ast.expr, names: Names, around: Region) -> Region | None:
    """The region that a context manager expression (or decorator) opens; None: not autocast.

    ``enabled=flag`` counts as on, because the code is written to run that way; it is not sure.
    """
    call = node if isinstance(node, ast.Call) else None
    callee = call.func if call else node
    qualified = names.qualify(callee)
    if qualified == "functools.partial" or qualified == "contextlib.nullcontext":
        return None
    if isinstance(node, ast.IfExp):
        chosen = region_of(node.body, names, around) or region_of(node.orelse, names, around)
        return Region(**{**chosen.__dict__, "sure": False}) if chosen else None
    wrapped = call is not None and any(k.arg == "cast_inputs" for k in call.keywords)
    if wrapped or qualified in ("torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd"):
        cast = call and _argument(call, 1, "cast_inputs")
        dtype = DTYPES.get(names.qualify(cast) or "") if cast is not None else None
        return Region("off", "float32", sure=True, node=node) if dtype == "float32" else None
    if qualified not in AUTOCAST:
        last = (dotted(callee) or "").rpartition(".")[2].lower()
        if last == "force_fp32":
            return Region("off", "float32", sure=True, node=node)
        if last == "auto_fp16":
            return Region("on", "float16", "cuda", False, node)
        if last.endswith("autocast") or OFF.search(last):
            # accelerator.autocast(), fabric.autocast(), self.amp_autocast(), project wrappers
            off = call is not None and _constant(_argument(call, 9, "enabled")) is False
            off = off or OFF.search(last) is not None
            off = off or (call is not None and _constant(_argument(call, 0, "enabled")) is False)
            return Region("off" if off else "on", "low", "", False, node)
        return None
    device, sure = AUTOCAST[qualified], True
    offset = 0
    if device is None:
        offset = 1
        given = _constant(_argument(call, 0, "device_type")) if call else None
        device = given.partition(":")[0] if isinstance(given, str) else ""
        sure = bool(device)
    named = _argument(call, offset if offset else 1, "dtype") if call else None
    flag = _argument(call, 2 if offset else 0, "enabled") if call else None
    if named is None and call is not None and any(k.arg is None for k in call.keywords):
        dtype, sure = "low", False  # **settings
    elif named is None or (_constant(named) is None and isinstance(named, ast.Constant)):
        dtype = "bfloat16" if device in ("cpu", "hpu", "xla") else "float16"
    else:
        dtype = DTYPES.get(names.qualify(named) or "", "low")
        sure = dtype != "low"
    state = "on"
    if flag is not None:
        value = _constant(flag)
        if value is False:
            state = "off"
        elif value is not True:
            sure = False
    if state == "off" and around.state == "on" and device and around.device not in ("", device):
        return around  # another device's autocast: this region changes nothing
    return Region(state, dtype, device, sure, node)


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def without_gradient(function: ast.AST, names: Names) -> bool:
    """Whether a function is decorated with ``no_grad`` or ``inference_mode``."""
    for decorator in getattr(function, "decorator_list", []):
        callee = decorator.func if isinstance(decorator, ast.Call) else decorator
        if names.qualify(callee) in NO_GRAD:
            return True
    return False


def decorated(function: ast.FunctionDef | ast.AsyncFunctionDef, names: Names) -> Region | None:
    """The region that a function's decorators open around its body."""
    for decorator in function.decorator_list:
        region = region_of(decorator, names, INHERITED)
        if region is not None:
            return region
    return None


def applied(made: ast.Call, call: ast.Call, names: Names) -> ast.Call | None:
    """``partial(f, a)(b)`` as ``f(a, b)``."""
    if names.qualify(made.func) != "functools.partial" or not made.args:
        return None
    whole = ast.Call(made.args[0], [*made.args[1:], *call.args], [*made.keywords, *call.keywords])
    return ast.copy_location(whole, call)
