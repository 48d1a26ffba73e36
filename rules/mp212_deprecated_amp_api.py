from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    BadArguments,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
    operators,
)

PLACES = {"autocast": ("enabled", "dtype", "cache_enabled")}
"""Positional parameters of the old form that stand elsewhere in the new one."""
SINCE = {"autocast": (2, 0), "GradScaler": (2, 3), "custom_fwd": (2, 4), "custom_bwd": (2, 4)}
"""The release that has the new form, with a device."""
OLD = {
    f"torch.{device}.amp.{name}": (device, f"amp.{name}", release)
    for device, names in (("cuda", tuple(SINCE)), ("cpu", ("autocast", "GradScaler")))
    for name, release in SINCE.items()
    if name in names
} | {
    "torch.get_autocast_gpu_dtype": ("cuda", "get_autocast_dtype", (2, 4)),
    "torch.get_autocast_cpu_dtype": ("cpu", "get_autocast_dtype", (2, 4)),
    "torch.set_autocast_gpu_dtype": ("cuda", "set_autocast_dtype", (2, 4)),
    "torch.set_autocast_cpu_dtype": ("cpu", "set_autocast_dtype", (2, 4)),
    "torch.is_autocast_cpu_enabled": ("cpu", "is_autocast_enabled", (2, 4)),
}
"""Old names, with the device, the new name and the release that has it."""
DEPRECATED = (2, 4)
"""The release that warns first."""
DECORATORS = ("custom_fwd", "custom_bwd")
VERSIONS = re.compile(r"version|hasattr|TORCH|_available|parse\(", re.IGNORECASE)


class DeprecatedAmpApi(Rule):
    """torch.cuda.amp and its kin where the project's torch has the form that replaces them.

    ## What it flags
    Calls of `torch.cuda.amp.autocast`, `GradScaler`, `custom_fwd` and `custom_bwd` (as decorators
    without parentheses too), of `torch.cpu.amp`, and of `torch.get_autocast_gpu_dtype` and its
    siblings, if every torch that the project allows has the replacement: `torch.amp.autocast` with
    a device is taken for granted from 2.0 on, `torch.amp.GradScaler` from 2.3, the rest from 2.4.

    The version comes from the project: `torch-version` in the settings, or the lower bound in
    pyproject.toml, setup.cfg, setup.py, requirements files or a conda environment. Without one it
    stays silent, and so it does in a branch that asks for a version or catches an ImportError, and
    where every requirement pins torch to a release before 2.4 (`torch==2.0.1`).

    ## Why it breaks
    Nothing breaks yet: since torch 2.4 the old names give a `FutureWarning` at every use. But they
    say CUDA in code that may run elsewhere, where they switch themselves off with a warning.

    ## Example
    ```python
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        loss = model(batch)
    ```
    Use instead:
    ```python
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)
    ```

    ## Fix safety
    Safe: the old names call the new ones with that device. An import of the old name stays where
    it was.

    ## How to silence
    `# precision-lint: ignore[MP212] reason` or `# noqa: MP212` on the line.

    ## Sources
    PyTorch 2.4 release notes, deprecations; PyTorch, Automatic Mixed Precision package.
    """

    code = "MP212"
    name = "deprecated-amp-api"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = calls(*OLD) | operators(
        ast.ClassDef, pattern=r"@(?:[\w.]*\.)?custom_[fb]wd[ \t]*(?:#|$)"
    )

    def check(self, node: ast.Call | ast.ClassDef, at: Context) -> Iterator[Finding]:
        if at.project.torch is None:
            return
        if at.project.pinned is not None and at.project.pinned < DEPRECATED:
            return  # nothing warns before the pin is moved
        if isinstance(node, ast.Call):
            if BadArguments.of(node, at) is None:  # else MP210 says what is meant
                yield from self._judged(node, node.func, at)
            return
        for method in node.body:
            for decorator in getattr(method, "decorator_list", []):
                if not isinstance(decorator, ast.Call):
                    yield from self._judged(decorator, decorator, at)

    def _judged(self, node: ast.expr, callee: ast.expr, at: Context) -> Iterator[Finding]:
        found = OLD.get(at.qualify(callee) or "")
        if found is None or not at.project.has_torch(*found[2]) or _asks_for_version(node, at):
            return
        if len(BadArguments.meanings(callee, at)) > 1:
            return  # the new name was tried first
        device, new, release = found
        old = (at.qualify(callee) or "").removeprefix("torch.")
        edits = _edits(node, callee, device, new, at)
        yield at.finding(
            node,
            f"torch.{old} is deprecated since torch 2.4, torch.{new} with the device "
            f'"{device}" is there from {release[0]}.{release[1]} on',
            Confidence.CERTAIN,
            fix=Fix(f"call torch.{new}", Applicability.SAFE, edits) if edits else None,
        )


def _asks_for_version(node: ast.expr, at: Context) -> bool:
    """Whether a place is reached for some versions of torch only."""
    for parent in at.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and VERSIONS.search(ast.unparse(parent.test)):
            return True
        if isinstance(parent, ast.Try) and parent.handlers:
            caught = " ".join(ast.unparse(h.type) for h in parent.handlers if h.type is not None)
            if re.search("ImportError|AttributeError|ModuleNotFound|TypeError", caught):
                return True
    return False


def _edits(
    node: ast.expr, callee: ast.expr, device: str, new: str, at: Context
) -> tuple[Edit, ...] | None:
    spelling, imports = at.torch()
    name = new.rpartition(".")[2]
    argument = f'device_type="{device}"' if name in DECORATORS else f'"{device}"'
    called = at.edit.put(callee, f"{spelling}.{new}")
    if called is None:
        return None
    if not isinstance(node, ast.Call):
        return (*imports, Edit(called[0].start, called[0].end, f"{called[0].text}({argument})"))
    places = PLACES.get(name, ())
    if any(isinstance(a, ast.Starred) for a in node.args) and places:
        return None
    given = [*node.args, *(k.value for k in node.keywords)]
    if not given:
        end = at.edit.end(node)
        return (*imports, *called, Edit(end - 1, end - 1, argument))
    first = node.args[0] if node.args else None
    if first is not None and name in DECORATORS:
        return None  # called as a function
    start = at.edit.offset(first) if first is not None else _keyword(node, at)
    named = [
        (at.edit.offset(argument), f"{place}=")
        for argument, place in zip(node.args, places, strict=False)
    ]
    edits = [Edit(offset, offset, text) for offset, text in named]
    if edits and edits[0].start == start:
        edits[0] = Edit(start, start, f"{argument}, {named[0][1]}")
    else:
        edits.insert(0, Edit(start, start, f"{argument}, "))
    return (*imports, *called, *edits)


def _keyword(node: ast.Call, at: Context) -> int:
    """Where the first keyword argument starts."""
    first = node.keywords[0]
    if first.arg is None:
        return at.edit.offset(first.value) - 2
    return at.source.offset(first.lineno, first.col_offset)
