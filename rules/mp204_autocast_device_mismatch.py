from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Leaving,
    Lowered,
    Region,
    Rule,
    Severity,
    calls,
)

ASKS = ("torch.get_autocast_gpu_dtype", "torch.is_autocast_enabled")
OTHERS = re.compile(r"[\"'](cpu|mps|xpu|npu|hpu)[\"']|device\.type|device_type")
NOT_CPU = re.compile(r"!= *(torch\.device\()?[\"']cpu[\"']|not in .*[\"']cpu[\"']")
CHOSEN = re.compile(
    r"[\"']cuda(:\d)?[\"'] if |is_available\(\) else|(args|cfg|config|opt|accelerator)\.device\b"
    r"|[\"']--device[\"']|self\.device *=(?!=)"
)
"""Code that runs on the device that there is, or on the one that it is told."""
MPS = (2, 5)
"""The release that brought autocast for Apple's GPUs."""
HALVES = frozenset({"float16", "bfloat16", "low"})


class AutocastDeviceMismatch(Rule):
    """autocast(enabled=False) for another device than that of the region it is meant to leave.

    ## What it flags
    `autocast("cpu", enabled=False)` inside a region for `"cuda"`, `torch.cuda.amp.autocast(False)`
    inside one for `"cpu"`, and so on: both device types are literal, and differ. The region may be
    in the same function or around every call of it, which a decorator may be meant to leave.

    `possible`: a region for a literal `"cuda"` in a function that puts tensors on a device it is
    given, or that runs whatever it is handed (`forward(*args, **kwargs)`), or in a file that
    chooses its device (`"cuda" if ... else "cpu"`, `--device`); a region for
    `device.type` that is on for every device but the CPU, or in a file that knows `"mps"`, whose
    autocast is as young as torch 2.5; and `torch.get_autocast_gpu_dtype()` or
    `is_autocast_enabled()`, which speak of CUDA alone.

    It stays silent where one device type is only known at run time (`x.device.type`), where the
    same statement, or one right inside, switches the region's own device off too, and for regions
    that switch another device on.

    ## Why it breaks
    Each device type has an autocast state of its own. Leaving the CPU's changes nothing for CUDA
    tensors, without an error or a warning: the products in the body still run in half, and the
    overflow or the lost digits that the region was written against are still there. 65,536
    products of values up to 4 are inf.

    ## Example
    ```python
    with torch.autocast("cuda"):
        with torch.autocast("mps", enabled=False):
            scores = query.float() @ key.float()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        with torch.autocast("cuda", enabled=False):
            scores = query.float() @ key.float()
    ```
    In code for several devices, `device_type=query.device.type` is right everywhere.

    ## Fix safety
    Safe: in float32 no region does anything. Half operands of the products inside are upcast by
    the same fix, because leaving autocast casts nothing up (MP203). Where the region is around a
    call, the device type comes from a tensor of the body; without one there is no fix.

    ## How to silence
    `# precision-lint: ignore[MP204] reason` or `# noqa: MP204` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `torch.autocast(device_type)`; nested regions.
    """

    code = "MP204"
    name = "autocast-device-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast",
        "torch.xpu.amp.autocast",
        "torch.npu.amp.autocast",
        "torch.get_autocast_gpu_dtype",
        "torch.is_autocast_enabled",
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        name = at.qualify(node.func) or ""
        if name in ASKS:
            if not node.args and (name == ASKS[0] or OTHERS.search(at.source.text)):
                yield at.finding(
                    node,
                    f"{name} speaks of CUDA's autocast alone, whatever device the tensors are on",
                    Confidence.POSSIBLE,
                    severity=Severity.INFO,
                )
            return
        found = Leaving.of(node, at)
        decorating = Leaving.decorating(node, at) if found is None else None
        if decorating is not None:
            device, around, inside = decorating
            yield at.finding(
                node,
                f'switching autocast off for "{device}" leaves that of "{around.device}" on, in '
                f"which {inside.function.name}() is called: it runs in half as before",
                Confidence.LIKELY,
                evidence=inside.why(around),
            )
            return
        if found is None:
            yield from _any_device(node, at)
            yield from _fixed(node, at)
            return
        bare = _bare(found.statement, at)
        edits = self._edits(found, bare, at)
        evidence = [*at.why(found.around)]
        evidence += [at.note(o, "still half inside: it is upcast too") for o in bare]
        yield at.finding(
            node,
            f'switching autocast off for "{found.device}" leaves that of "{found.around.device}" '
            "on: the body runs in half as before",
            Confidence.CERTAIN if found.around.sure and found.here else Confidence.LIKELY,
            evidence=evidence,
            fix=Fix("leave the region that is on", Applicability.SAFE, edits) if edits else None,
        )

    @staticmethod
    def _edits(found: Leaving, bare: list[ast.expr], at: Context) -> tuple[Edit, ...] | None:
        target: str | None = f'"{found.around.device}"'
        if not found.here:
            target = _device_inside(found.statement, at)
        if target is None:
            return None
        imports: tuple[Edit, ...] = ()
        if found.named is None:
            spelling, imports = at.torch()
            text = f"{spelling}.autocast(device_type={target}, enabled=False)"
            edits = at.edit.put(found.node, text)
        else:
            edits = at.edit.put(found.named, target)
        if edits is None:
            return None
        edits = (*imports, *edits)
        for inner in dict.fromkeys(at.statement(operand) for operand in bare):
            own = {o: ".float()" for o in bare if at.statement(o) is inner}
            upcast = at.edit.append(inner, own) if inner is not None else None
            if upcast is None:
                return None
            edits += upcast
        return edits


def _fixed(node: ast.Call, at: Context) -> Iterator[Finding]:
    """A region for CUDA in a function that puts its tensors on a device of its own."""
    given = {k.arg: k.value for k in node.keywords}
    first = given.get("device_type") or (node.args[0] if node.args else None)
    old = at.qualify(node.func) == "torch.cuda.amp.autocast"
    switch = given.get("enabled") or (node.args[0] if old and node.args else None)
    if not isinstance(at.statement(node), ast.With):
        return
    if switch is not None and re.search(r"cuda|device|cpu|^False$", at.text(switch)):
        return
    if not old and (not isinstance(first, ast.Constant) or first.value != "cuda"):
        return
    if at.mentions(r"is_cuda|device_type=[^\"']|[\"']cuda[\"'] (in|==)|(in|==) [\"']cuda"):
        return
    if _hands_on(at):
        yield at.finding(
            node,
            "the region is for CUDA, whatever device the call that is wrapped runs on: on another "
            "one nothing runs in half",
            Confidence.POSSIBLE,
            severity=Severity.INFO,
        )
        return
    for part in at.function.nodes if switch is None else ():
        if not isinstance(part, ast.Call):
            continue
        moved = part.args[:1] if getattr(part.func, "attr", "") == "to" else []
        moved += [k.value for k in part.keywords if k.arg == "device"]
        for device in moved:
            name = getattr(device, "attr", getattr(device, "id", ""))
            if name.endswith("device"):
                yield at.finding(
                    node,
                    f"the region is for CUDA, whatever {at.text(device)} is: on another device "
                    "nothing runs in half",
                    Confidence.POSSIBLE,
                    severity=Severity.INFO,
                    evidence=(at.note(device, "the tensors are put on this device"),),
                )
                return
    if CHOSEN.search(at.source.text):
        yield at.finding(
            node,
            "the region is for CUDA in a file that chooses its device: on another one nothing "
            "runs in half",
            Confidence.POSSIBLE,
            severity=Severity.INFO,
        )


def _hands_on(at: Context) -> bool:
    """Whether a function hands all that it is given to another one: it fits any device."""
    node = at.function.node
    if isinstance(node, ast.Module) or node.args.vararg is None:
        return False
    given = node.args.vararg.arg
    return any(
        isinstance(part, ast.Call)
        and at.qualify(part.func) is None
        and any(isinstance(a, ast.Starred) and at.text(a.value) == given for a in part.args)
        for part in at.function.nodes
    )


def _any_device(node: ast.Call, at: Context) -> Iterator[Finding]:
    """A region for the device of the moment, where one is meant that old torch has none for."""
    if at.qualify(node.func) not in ("torch.autocast", "torch.amp.autocast"):
        return
    given = {k.arg: k.value for k in node.keywords}
    device = given.get("device_type") or (node.args[0] if node.args else None)
    if device is None or not re.search(r"device\w*(\.type)?$", at.text(device)):
        return
    enabled = given.get("enabled")
    test = at.text(enabled) if enabled is not None else ""
    if enabled is not None and not NOT_CPU.search(test):
        return  # off, or a choice of its own
    if not test and not re.search(r"[\"']mps[\"']|backends\.mps", at.source.text):
        return
    if at.mentions(r"[\"']mps|is_mps|(==|in) *[\"'(\[]+cuda|nullcontext"):
        return
    if at.project.torch is not None and at.project.has_torch(*MPS):
        return
    yield at.finding(
        node,
        f"{at.text(device)} may be mps, for which older torch (2.3) has no autocast: the region "
        "raises there",
        Confidence.POSSIBLE,
        severity=Severity.INFO,
    )


def _bare(statement: ast.With | ast.AsyncWith, at: Context) -> list[ast.expr]:
    """Half operands of the products in a body that come from outside of it."""
    found: list[ast.expr] = []
    for product in _products(statement, at):
        for operand in product.operands:
            source = at.definition(operand.id, operand) if isinstance(operand, ast.Name) else None
            inside = source is not None and source.lineno >= statement.body[0].lineno
            made = Lowered.of(source, at) if inside and source is not None else None
            if at.value(operand).dtype in HALVES and made is None:
                found.append(operand)
    return found


def _device_inside(statement: ast.With | ast.AsyncWith, at: Context) -> str | None:
    """Source of the device type of a tensor that a product of the body takes from outside."""
    for product in _products(statement, at):
        for operand in product.operands:
            text = at.device([operand], Region())
            place = statement.items[0].context_expr
            if text is not None and at.bound_before(text.removesuffix(".device.type"), place):
                return text
    return None


def _products(statement: ast.With | ast.AsyncWith, at: Context) -> Iterator[Lowered]:
    for part in (node for inner in statement.body for node in ast.walk(inner)):
        found = Lowered.of(part, at) if isinstance(part, (ast.Call, ast.BinOp)) else None
        if found is not None:
            yield found
