from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Leaving,
    Lowered,
    Reach,
    Rule,
    Severity,
    calls,
    operators,
)

ROTARY = re.compile(r"(?<![a-z])(inv_freqs?|freqs?|frequenc(y|ies)|theta|omegas?|rope|rotary)")
"""Names of tables of angles, whose product belongs to their own rule."""
WEIGHTS = re.compile(r"fuse|merge|delta|load|init|convert|export|quanti[sz]e_weight|svd|pca")
"""Functions that prepare weights, which no region is around."""


class UpcastWithoutDisablingAutocast(Rule):
    """Operands upcast for a product that autocast casts down again.

    ## What it flags
    `@`, `matmul`, `bmm`, `einsum`, `F.linear`, `F.conv2d`, `scaled_dot_product_attention` and the
    rest of autocast's lower-precision list, on operands that were cast to float32 for it
    (`.float()`, `.to(torch.float32)`, at the call or where the name was bound), while autocast is
    on: in the function itself, or around a call that leads to it, in this file or another. One
    upcast operand beside another float32 one counts where the region is in the same function;
    elsewhere that is only `possible`, and so is a function that no region is known to reach.

    It stays silent where the product stands under `autocast(enabled=False)`, for float64 operands,
    for a layer that is called (`self.gate(x.float())`, where the cast may only meet the weights),
    for integers made float, and where a more specific rule speaks: MP201 for sums over pixels or
    tokens, MP501 for geometry. Tables of rotary angles are left out too.

    ## Why it breaks
    `.float()` makes a float32 tensor, and the next line's `matmul` is on the list of operations
    that autocast runs in half: it casts the operands down again before it runs. The cast costs
    memory and changes nothing. Measured: 65,536 products of values up to 4 are the same inf, and a
    projection is off by the same 1.7 pixels, with and without `.float()`. Half-precision values
    that were rounded once stay rounded either way; what the upcast was meant to save is the sum.

    ## Example
    ```python
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2))
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=query.device.type, enabled=False):
        scores = torch.matmul(query.float(), key.float().transpose(-1, -2))
    ```

    ## Fix safety
    Safe: in float32 the region does nothing. Both halves are needed, because
    `autocast(enabled=False)` alone does not cast operands up (MP203). Inside the surrounding region
    the result is float32 then; operations on its list take it as it is.

    ## How to silence
    `# precision-lint: ignore[MP202] reason` or `# noqa: MP202` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16; Autocast op eligibility.
    """

    code = "MP202"
    name = "upcast-without-disabling-autocast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(*Lowered.functions) | operators(
        ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]"
    )

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if region.state == "off" or (region.state == "on" and not region.on):
            return
        found = Lowered.of(node, at)
        if found is None or len(found.operands) < 2:
            return
        values = [at.value(operand) for operand in found.operands]
        if any(v.dtype in ("float64", "int", "bool") for v in values):
            return
        casts = [Lowered.upcast(operand, at) for operand in found.operands]
        done = [cast for cast in casts if cast is not None]
        rest = [o for o, cast in zip(found.operands, casts, strict=True) if cast is None]
        confidence = self._confidence(done, rest, found, at)
        if confidence is None or Leaving.missed(node, at) or _belongs_elsewhere(found, at):
            return
        bare = [o for o, v in zip(found.operands, values, strict=True) if v.dtype != "float32"]
        edits = found.without_autocast(bare, "product", at)
        fix = Fix("leave autocast for it", Applicability.SAFE, edits) if edits else None
        evidence: list[Evidence] = [*at.why(region)]
        if not region.known and at.project.autocast is not None:
            evidence.append(at.project.autocast)
        evidence += [at.note(cast, "cast up here") for cast in done if cast not in found.operands]
        yield at.finding(
            node,
            f"autocast undoes the upcast: {found.name} casts its operands down to half again",
            confidence,
            evidence=[*evidence, *at.around(node, "this statement leaves autocast")],
            fix=fix,
        )

    @staticmethod
    def _confidence(
        done: list[ast.expr], rest: list[ast.expr], found: Lowered, at: Context
    ) -> Confidence | None:
        """How sure it is that autocast is on there; None: nobody meant to leave it.

        ``done``: the upcasts; ``rest``: operands without one.
        """
        region = at.region(found.node)
        if not done:
            return None
        others = [at.value(o) for o in rest if not _is_bias(o, found)]
        whole = not others
        if any(v.dtype != "float32" and not v.tags & {"parameter", "buffer"} for v in others):
            return Confidence.POSSIBLE
        if region.on:
            here = region.called is None and not region.foreign
            if whole:
                return Confidence.CERTAIN if region.sure and here else Confidence.LIKELY
            return Confidence.LIKELY if here else Confidence.POSSIBLE
        if Lowered.left_by_caller(at):
            return None
        # elsewhere the upcast may be meant for a half model, where it does what it says
        offline = WEIGHTS.search(at.function.name.lower()) or at.mentions("autocast")
        return Confidence.LIKELY if whole and region.known and not offline else Confidence.POSSIBLE


def _is_bias(operand: ast.expr, found: Lowered) -> bool:
    takes = found.name == "linear" or found.name.startswith("conv")
    return takes and operand in found.operands[2:]


def _belongs_elsewhere(found: Lowered, at: Context) -> bool:
    """Whether a more specific rule speaks: geometry, sums over pixels or tokens, rotary tables."""
    if any(ROTARY.search(at.text(operand).lower()) for operand in found.operands):
        return True
    name, operands = at.product(found.node)
    if not operands:
        return False
    if at.geometry(found.node, operands) is not None:
        return True
    reach = Reach.of(name, found.node, operands, at)
    region = at.region(found.node)
    dtypes = frozenset({region.dtype}) if region.on and region.dtype != "low" else at.project.dtypes
    in_range = bool(dtypes) and "float16" not in dtypes
    return reach is not None and not in_range and reach.most is not Confidence.POSSIBLE
