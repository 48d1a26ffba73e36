from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Angle,
    Applicability,
    Blanket,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Half,
    Provenance,
    Rule,
    Severity,
    Value,
    calls,
)

EXACT = {"float16": 2048, "bfloat16": 256}
"""Up to where every integer has a number of its own."""
CASTS = ("half", "bfloat16", "to", "type_as")
WHOLE = frozenset({"long", "int", "short", "int64", "int32"})
COUNTED = re.compile(
    r"seq|len|tokens|max_|pos|time|steps|frames|samples|num_(points|nodes|queries|patches)|\bT\b|"
    r"\bL\b|shape\[(1|-2)\]|size\((1|-2)\)"
)
"""Sizes that are not bounded by the size of an image."""
INDICES = re.compile(
    r"(?<![a-z])(?!\w*(gr|val|o)ids?(?![a-z]))(\w*ids?|\w*idx|ind(ex|ices)|\w*labels?|\w*steps?|pos(itions?)?|segments?|rows?|"
    r"cols?|lengths?|lens?|instances?|\w*_map|ranks?|order)(?![a-z])"
)
"""Names of integers that have to stay distinct."""
IDS = re.compile(r"(^|_)(ids?|idx|indices|positions?)$")
"""Names of integers whatever is known of their dtype."""
PASSES = frozenset({
    "view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "repeat", "flatten", "cat",
    "stack", "transpose", "permute", "interpolate", "pad", "to", "cuda", "contiguous", "round",
    "floor", "clamp", "where", "gather", "meshgrid", "type_as", "cpu", "clone", "add", "mul",
    "repeat_interleave", "broadcast_to", "index_select", "tile", "roll", "max_pool2d", "view_as",
    "reshape_as", "max_pool1d", "max_pool3d",
})  # fmt: skip
COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


class IntegersInHalf(Rule):
    """Positions, indices and label maps in half precision, where neighbouring integers coincide.

    ## What it flags
    - `torch.arange` created in a half dtype or in the dtype of the activations, and integer
      tensors (positions, ids, label maps, lengths) cast to one, where the result is compared or
      turned back into integers: masks from lengths, resized label maps, lookups;
    - more than 2,048 (float16) or 256 (bfloat16) of them in a literal half dtype;
    - the same under the name of positions or ids wherever they go, which is `possible`;
    - a flat index `y * width + x` computed from half coordinates;
    - arguments that are made half because they are tensors, whatever they hold (`t.half() if
      torch.is_tensor(t) else t`), and labels or targets that are cast to a `data_type` which may
      be float16: likely in a project that runs half precision, else `possible`;
    - labels `torch.arange(1, b * h * w + 1, dtype=image.dtype)` of all cells that are returned.

    It stays silent on ranges that are provably short, on masks and one-hot vectors, on integers
    that stay integers or go to float32, on ranges that are only scaled, and for positions of a
    rotary embedding (MP405 shows those).

    ## Why it breaks
    Float16 has 11 significant bits and bfloat16 8: of 5,000 consecutive integers 3,299 are distinct
    in float16 and 797 in bfloat16. Masks end at the wrong token, instance ids merge, and a flat
    index beyond 65,519 is inf in float16, which becomes an arbitrary integer.

    ## Example
    ```python
    steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    mask = steps < lengths[:, None]
    ```
    Use instead:
    ```python
    steps = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    mask = steps < lengths[:, None]
    ```

    ## Fix safety
    Safe: the integers are made in float32, which changes nothing in a float32 run, and the result
    is boolean or integer again. There is no fix where the values go on into arithmetic, whose
    result would change its dtype, and where the code names a half dtype itself, which rounds a
    float32 run as well: keep them integers and cast last.

    ## How to silence
    `# precision-lint: ignore[MP404] reason` or `# noqa: MP404` on the line.

    ## Sources
    IEEE 754 binary16; PyTorch, `torch.finfo` (eps 9.8e-4 and 7.8e-3).
    """

    code = "MP404"
    name = "integers-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.arange", *(f"Tensor.{name}" for name in CASTS), *(f"Tensor.{n}" for n in WHOLE)
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        name = at.text(node.func).rpartition(".")[2]
        if name in WHOLE or (name == "to" and at.value(node).dtype == "int"):
            yield from self._flat_index(node, at)
            return
        blind = Blanket.blind(node, at)
        if blind is not None:
            yield at.finding(
                node,
                f"every tensor that {blind} stands for is made half, ids and masks too: from "
                "2048 (float16) or 256 (bfloat16) on they coincide",
                Care.offered(at),
                evidence=at.settings[:1],
            )
            return
        labels_of = Blanket.labels(node, at)
        if labels_of is not None:
            yield at.finding(
                node,
                f"{labels_of} take a dtype that may be float16: identities and places of pixels in "
                "them are exact up to 2048",
                Care.offered(at),
                evidence=at.settings[:1],
            )
            return
        lowered = _lowered(node, name, at)
        if lowered is None:
            return
        integers, dtype = lowered
        value = at.value(node)
        half = at.half(value, at.region(node))
        if half is None or not Care.is_activation(dtype.replace("dtype", "")):
            return
        if value.variable and _is_whole(dtype, at):
            return
        limit = min(EXACT[d] for d in half.dtypes)
        if integers.hi <= limit or integers.dtype == "bool":
            return
        uses = _uses(node, at, set())
        named = value.dtype in ("float16", "bfloat16")
        known = named and EXACT[half.dtype] < integers.hi < float("inf")
        labels = "label" in uses and name == "arange" and _counts_cells(node, at)
        unused = not known and not labels and not uses & {"compared", "index"}
        if unused and named and name == "arange" and COUNTED.search(at.text(node)):
            unused = False
        if Angle.uses(node, at):
            return
        named_as = at.text(node).lower() if name != "arange" else _target(node, at)
        if unused and not (INDICES.search(named_as) or COUNTED.search(at.text(node))):
            return
        guessed = unused or integers.variable  # nothing but the name says that these are integers
        confidence = Confidence.POSSIBLE if guessed else _sure(half, value, dtype, at)
        if not known:
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
            named_so = labels or COUNTED.search(at.text(node))
            if not named_so and not INDICES.search(at.text(node).lower()):
                confidence = Confidence.POSSIBLE  # as likely the rows of an image
            elif name == "arange" and _counts_cells(node, at) and at.project.evidence:
                confidence = Confidence.LIKELY  # more than 2048 in an image of 46 x 46
        ends = "masks and comparisons" if "compared" in uses else "the integers made of them"
        ends = "neighbours" if not uses & {"compared", "index"} else ends
        ends = "labels" if labels else ends
        yield at.finding(
            node,
            f"integers in {half.dtype} are exact up to {EXACT[half.dtype]}: beyond it {ends} "
            "coincide",
            confidence,
            evidence=half.evidence,
            fix=None if "other" in uses or named else self._fix(node, at, labels),
        )

    def _fix(self, node: ast.Call, at: Context, labels: bool) -> Fix | None:
        """The same in float32, as which labels are returned."""
        statement = at.statement(node)
        spelling, imports = at.torch()
        if statement is None or imports:
            return None
        given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
        if given is not None:
            edits = at.edit.replace(statement, {given: f"{spelling}.float32"})
        elif isinstance(node.func, ast.Attribute):
            edits = at.edit.exchange(statement, {node: ".float()"})
        else:
            return None
        if edits is None:
            return None
        if labels:
            why = "the function returns float32 then, because half does not hold the labels"
            return Fix("count in float32", Applicability.UNSAFE, edits, why)
        return Fix("count in float32", Applicability.SAFE, edits)

    def _flat_index(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """``(y * width + x).long()``"""
        if not isinstance(node.func, ast.Attribute):
            return
        sums = [p for p in Provenance.of(node.func.value, at) if isinstance(p, ast.BinOp)]
        for part in sums:
            if not isinstance(part.op, ast.Add):
                continue
            for side, other in ((part.left, part.right), (part.right, part.left)):
                if not isinstance(side, ast.BinOp) or not isinstance(side.op, ast.Mult):
                    continue
                if at.value(other).kind == "number":
                    continue  # 127.5 * image + 128
                rows = [o for o in (side.left, side.right) if at.value(o).kind != "number"]
                stride = [o for o in (side.left, side.right) if o not in rows[:1]]
                if len(rows) > 1 and not re.search(r"\bw(idth)?\b|stride|_w\b", at.text(stride[0])):
                    continue
                half = at.half(at.value(rows[0]), at.region(part)) if rows else None
                if half is None or not _wide_stride(stride[0], at):
                    continue
                yield self._index(part, rows[0], other, half, at)
                return

    def _index(
        self, total: ast.BinOp, row: ast.expr, column: ast.expr, half: Half, at: Context
    ) -> Finding:
        value = at.value(row)
        confidence = _sure(half, value, "", at)
        if value.variable and Provenance.computed(row, at) is None and not at.from_layer(value):
            confidence = Confidence.POSSIBLE
        statement = at.statement(total)
        low = [o for o in (row, column) if at.half(at.value(o), at.region(total)) is not None]
        edits = None
        if statement is not None and value.dtype not in ("float16", "bfloat16"):
            edits = at.edit.append(statement, dict.fromkeys(low, ".float()"))
        title = "compute the index in float32"
        over = "and inf from 65520 on" if half.dtype == "float16" else "of up to 5 digits"
        return at.finding(
            total,
            f"flat index in {half.dtype}: exact up to {EXACT[half.dtype]} {over}",
            confidence,
            evidence=half.evidence,
            fix=Fix(title, Applicability.SAFE, edits) if edits is not None else None,
        )


def _is_whole(dtype: str, at: Context) -> bool:
    """Whether a name stands for dtypes of integers only, in this function or one around it."""
    sources, seen = at.function.assigned.get(dtype), at
    while not sources and dtype not in {p.arg for p in seen.function.parameters()}:
        if seen.function.parent is None:
            return False
        seen = at.inside(seen.function.parent)
        sources = seen.function.assigned.get(dtype)
    return bool(sources) and all(seen.value(s).dtype == "int" for s in sources or ())


def _lowered(node: ast.Call, name: str, at: Context) -> tuple[Value, str] | None:
    """The integers that a call makes in a dtype that may be half, and that dtype."""
    given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
    if name == "arange":
        if given is None:
            return None
        plain = [at.value(a) for a in node.args]
        steps = plain[2:] or [at.value(k.value) for k in node.keywords if k.arg == "step"]
        ends = [v.hi for v in plain[:2]] + [at.value(k.value).hi for k in node.keywords
                                            if k.arg == "end"]  # fmt: skip
        if any(v.dtype == "float" for v in plain) or steps:
            return None
        top = max(ends, default=float("inf"))
        return Value("tensor", "int", 0.0, top), at.text(given)
    if not isinstance(node.func, ast.Attribute):
        return None
    operand = at.value(node.func.value)
    if operand.variable and IDS.search(ast.unparse(node.func.value)) and operand.maybe_tensor:
        pass  # by its name
    elif operand.dtype != "int" or not operand.is_tensor or "normalized" in operand.tags:
        return None
    if name in ("half", "bfloat16"):
        return (operand, name) if not node.args else None
    given = given or next(iter(node.args), None)
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return None  # a device
    return (operand, at.text(given)) if given is not None else None


def _target(node: ast.expr, at: Context) -> str:
    """The name that a statement gives what it makes, or ""."""
    statement = at.statement(node)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id.lower()
    return ""


def _sure(half: Half, value: Value, dtype: str, at: Context) -> Confidence:
    if value.dtype in ("float16", "bfloat16", "low"):
        return half.confidence
    if not at.plausible or Care.in_test(at):
        return Confidence.POSSIBLE
    if at.half_models is not None and at.project.half is not None:
        return half.confidence
    owner = dtype.removesuffix(".dtype")
    for use in at.uses(owner):
        if Provenance.computed(use, at) is not None:
            return half.confidence
    return Confidence.POSSIBLE


def _wide_stride(stride: ast.expr, at: Context) -> bool:
    """Whether a row may be long enough to matter."""
    value = at.value(stride)
    return not isinstance(value.const, (int, float)) or abs(value.const) > 16


def _counts_cells(node: ast.Call, at: Context) -> bool:
    """Whether a range gives each cell of a grid a number: its end is a product of extents."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Mult)
        and not any(at.value(side).const is not None for side in (part.left, part.right))
        for end in node.args[:2]
        for part in ast.walk(end)
    )


def _uses(node: ast.expr, at: Context, seen: set[int], changed: bool = False) -> set[str]:
    """What becomes of the integers: ``compared``, an ``index``, a ``label`` that is returned as
    it is, or something ``other``.

    ``changed``: something was computed from them.
    """
    if id(node) in seen or len(seen) > 40:
        return {"other"}
    seen.add(id(node))
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.Compare():
                return {"compared"}
            case ast.Attribute(attr=attr) if attr in WHOLE:
                return {"index"}
            case ast.Attribute(attr=attr) if attr in COMPARED:
                return {"compared"}
            case ast.Attribute(attr=attr) if attr in ("shape", "device", "dtype", "ndim"):
                return set()
            case ast.Attribute(attr=attr):
                if attr not in PASSES:
                    return {"other"}
            case ast.Subscript(value=value):
                if value is not inner:
                    return {"other"}
            case ast.BinOp(left=left, right=right):
                changed |= not any(at.value(side).dtype == "bool" for side in (left, right))
            case ast.UnaryOp() | ast.Tuple() | ast.List() | ast.keyword():
                pass
            case ast.Return() if not changed:
                return {"label"}
            case ast.Call(func=func):
                last = at.text(func).rpartition(".")[2]
                if last in COMPARED:
                    return {"compared"}
                if last == "to" and at.value(parent).dtype == "int":
                    return {"index"}
                if last not in PASSES:
                    return {"other"}
                if last in ("add", "mul"):
                    changed |= not any(at.value(given).dtype == "bool" for given in parent.args)
            case ast.Assign(targets=[ast.Name(id=name)], value=source):
                found: set[str] = set()
                for use in at.uses(name):
                    if isinstance(use.ctx, ast.Load) and at.definition(name, use) is source:
                        found |= _uses(use, at, seen, changed)
                return found or {"other"}
            case _:
                return {"other"}
        inner = parent
    return {"other"}
