from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from precision_lint.api import (
    Care,
    Confidence,
    Context,
    Finding,
    Halved,
    Rule,
    Severity,
    calls,
)

ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
OPTIMIZERS = (*ADAPTIVE, "SGD", "ASGD", "Adafactor", "Rprop", "SparseAdam", "LBFGS", "Muon")
FROM = {"bfloat16": 2e-3, "float16": 2e-4}
"""Up to which learning rate a weight of 1 does not move."""
MASTERS = re.compile(r"(?i)deepspeed|master_?(weight|param|copy)|kahan|stochastic_?round")
"""What keeps or rounds the weights otherwise."""


class LowPrecisionTrainedParameters(Rule):
    """Optimizer on the parameters of a half model, whose small updates are rounded away.

    ## What it flags
    `torch.optim.*` over `model.parameters()` where the code makes the model bfloat16 (or float16
    with SGD; Adam on float16 has a more direct problem with its epsilon) before, and the learning
    rate is at most 2e-3 (2e-4), not known, or the default.

    It stays silent where the trained parameters are others than the model's own (adapters, copies
    in float32, `requires_grad_(False)`), where the file keeps master weights, rounds stochastically
    or sums up with Kahan's method, and for models under autocast, whose parameters are float32.

    ## Why it breaks
    A weight changes only by steps of its last place: near 1 these are 7.8e-3 in bfloat16 and 9.8e-4
    in float16, and what is below half of that is lost. Measured at a weight of 1: SGD with a
    learning rate of 1e-3 and a gradient of 1 never moves in bfloat16 (float32: 0.9 after 100
    steps), nor with 1e-4 in float16; AdamW with 1e-3 never moves in bfloat16, and its weight decay
    is lost altogether. Small weights go on moving, so that the loss falls for a while.

    ## Example
    ```python
    model = Net().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ```
    Use instead:
    ```python
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    ```

    ## Fix safety
    There is no fix: the parameters stay float32, the forward pass goes under autocast, or another
    optimizer keeps float32 copies; which of them fits depends on the memory.

    ## How to silence
    `# precision-lint: ignore[MP409] reason` or `# noqa: MP409` on the line.

    ## Sources
    Micikevicius et al., Mixed Precision Training (2018), FP32 master copy of weights; Zamirai et
    al., Revisiting BFloat16 Training (2020).
    """

    code = "MP409"
    name = "low-precision-trained-parameters"
    severity = Severity.WARNING
    applicability = None
    triggers = calls(*(f"torch.optim.{name}" for name in OPTIMIZERS))

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        model = _trained(node, at)
        if model is None or Care.in_test(at) or MASTERS.search(at.source.text):
            return
        cast = _cast_of(model, node, at)
        if cast is None:
            return
        home = at.function if cast in at.function.nodes else _constructor(at)
        dtype = _dtype(cast, at.inside(home) if home is not None else at)
        name = (at.qualify(node.func) or "").rpartition(".")[2]
        if dtype == "float16" and name in ADAPTIVE:
            return  # its epsilon is 0
        rate = next((k.value for k in node.keywords if k.arg == "lr"), None)
        rate = rate if rate is not None else (node.args[1] if len(node.args) > 1 else None)
        value = at.value(rate).const if rate is not None else None
        if isinstance(value, float) and value > FROM[dtype]:
            return
        shown = f"{value:g}" if isinstance(value, float) else "1e-4"
        yield at.finding(
            node,
            f"{model} is trained in {dtype}: at a weight of 1 updates below "
            f"{FROM[dtype]:g} are rounded away, such as those of a learning rate of {shown}",
            Confidence.LIKELY,
            evidence=(at.note(cast, f"the parameters are made {dtype} here"),),
        )


def _trained(node: ast.Call, at: Context) -> str | None:
    """The model of whose parameters an optimizer takes care."""
    given = node.args[0] if node.args else None
    given = given or next((k.value for k in node.keywords if k.arg == "params"), None)
    if isinstance(given, ast.Name):
        given = at.definition(given.id, given) or given
    if given is None:
        return None
    text = at.text(given)
    if re.search(r"float\(\)|float32|clone|master|lora|adapter", text):
        return None
    found = re.findall(r"([\w.]+?)\.(?:named_)?parameters\(\)", text)
    return str(found[0]) if len(set(found)) == 1 else None


def _cast_of(model: str, node: ast.Call, at: Context) -> ast.Call | None:
    """Where a model's parameters were made half, unless something else happened to it since."""
    cast = Halved.names(at.function, at).get(model)
    init = _constructor(at)
    if cast is None and init is not None and model.startswith("self."):
        cast = Halved.names(init, at).get(model)
        if cast is not None and init is not at.function:
            return None if _frozen(model, at) else cast
    if cast is None or cast.lineno > node.lineno or _frozen(model, at):
        return None
    later = [
        source
        for source in at.function.assigned.get(model, [])
        if cast.lineno < source.lineno < node.lineno and cast not in ast.walk(source)
    ]
    return None if later else cast


def _constructor(at: Context) -> Any:
    cls = at.function.cls
    return cls.methods.get("__init__") if cls is not None else None


def _frozen(model: str, at: Context) -> bool:
    """Whether a model's parameters are frozen, or brought back to float32."""
    name = re.escape(model)
    return at.mentions(
        rf"{name}\.requires_grad_\(False\)|requires_grad\s*=\s*False|{name}\.float\(\)|"
        r"\.data\s*=\s*[\w.]+\.(?:float\(\)|to\(torch\.float32\))"
    )


def _dtype(cast: ast.Call, at: Context) -> str:
    given = [*cast.args, *(k.value for k in cast.keywords)]
    named = [d for g in given if (d := Halved.dtype(g, at)) is not None]
    name = cast.func.attr if isinstance(cast.func, ast.Attribute) else ""
    return "bfloat16" if "bfloat16" in (*named, name) else "float16"
