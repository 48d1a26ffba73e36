"""Guards that half precision does not hold: before logarithms, in denominators, under roots.

Every check compares what happens in a mode with what happens in float32: a value that is 0 there too is
no hazard of the precision.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow.graph import behind, is_op, peel, same
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT16, LOW, MODES
from precision_lint.domains.values import DETACHED, Scalar, Tensor, number
from precision_lint.hazards.magnitudes import holder
from precision_lint.hazards.places import (
    SQUASHING,
    is_only_in,
    like_places,
    made_at,
    on_cpu,
    operand_node,
    upcast_places,
)
from precision_lint.hazards.rounding import RECIPROCAL, VANISHES, rounded
from precision_lint.hazards.zeros import (
    DRAWN,
    FILLED,
    NORMS,
    REFERENCE,
    UNDERFLOW,
    Guard,
    Least,
    guard_of,
    guards,
    least,
    low_dtype,
    transparent,
    vanish_together,
)

PROBABILITIES: Final = frozenset({"sigmoid", "softmax", "hardsigmoid", "gumbel_softmax", "softmin"})
STEP: Final = 2.0**-11
"""Half the distance from 1 to the next smaller number of float16."""


# logarithms


@hazard("log", "log2", "log10", "log1p")
def zero_before_log(it: Interpreter, applied: Applied) -> None:
    """A logarithm of what is 0 in half, or whose gradient overflows there."""
    value = peel(applied.tensor(0))
    if value is None:
        return
    complement = _complement(value, applied.name)
    if complement is not None:
        _log_of_complement(it, applied, value, complement)
        return
    if applied.name == "log1p" or not _some_low(value):
        return
    if _log_odds(it, applied, value):
        return
    if least(value, REFERENCE).bound <= 0:
        return  # float32 has the same zero
    for fate, modes, found in _fates(it, value, applied):
        _report_log(it, applied, value, fate, modes, found)


def _some_low(value: Tensor, depth: int = 6) -> bool:
    """Whether a value, or what it was made of, may be half in some mode."""
    if dtypes.modes_of(value.dtypes, LOW):
        return True
    inner = [peel(one) for one in value.operands[:2]]
    return depth > 0 and any(isinstance(one, Tensor) and _some_low(one, depth - 1) for one in inner)


def _fates(it: Interpreter, value: Tensor, applied: Applied) -> list[tuple[str, int, Least]]:
    """What happens, in which modes."""
    zero = gradient = 0
    first: dict[str, Least] = {}
    passes = not (applied.result.flags & DETACHED)
    for mode in range(len(MODES)):
        found = least(value, mode)
        if found.bound <= 0:
            zero |= 1 << mode
            first.setdefault("zero", found)
        elif found.bound < RECIPROCAL and _in_half(value, found, mode):
            if passes or any(one.made is not value for one in guards(value)):
                gradient |= 1 << mode
                first.setdefault("gradient", found)
    result = []
    if zero:
        result.append(("zero", zero, first["zero"]))
    if gradient:
        result.append(("gradient", gradient, first["gradient"]))
    return result


def _in_half(value: Tensor, found: Least, mode: int) -> bool:
    """Whether the guarded value is float16 where a gradient of 1 / eps reaches it."""
    if low_dtype(value, mode) == FLOAT16:
        return True
    return found.guard is not None and low_dtype(found.guard.made, mode) == FLOAT16


def _report_log(
    it: Interpreter, applied: Applied, value: Tensor, fate: str, modes: int, found: Least
) -> None:
    guard, base = found.guard, found.base
    kind = "log-guard"
    if guard is not None and found.wide is not None and _before(found.wide, guard):
        kind = "late-cast-log"
    elif isinstance(base, Tensor) and base.op in DRAWN:
        kind = "log-noise"
    elif guard is None and _is_probability(base) and _reached_by_views(value, base):
        kind = "log-probability"
    report_guard(it, kind, applied, value, fate, modes, found)


def _reached_by_views(value: Any, base: Any) -> bool:
    """Whether nothing but views and sums is between a value and what underflows."""
    while value is not base and isinstance(value, Tensor) and transparent(value):
        value = peel(value.operands[0])
    return value is base


def _is_probability(base: Any) -> bool:
    return isinstance(base, Tensor) and base.op in UNDERFLOW


def _before(cast: Tensor, guard: Guard) -> bool:
    """Whether a cast is applied to a guarded value."""
    inner = peel(cast.operands[0])
    while isinstance(inner, Tensor) and inner is not guard.made and transparent(inner):
        inner = peel(inner.operands[0])
    return inner is guard.made


def report_guard(
    it: Interpreter,
    kind: str,
    applied: Applied,
    value: Tensor,
    fate: str,
    modes: int,
    found: Least,
    beside: Guard | None = None,
    **more: Any,
) -> None:
    """Report a guard that does not hold, with the places that a fix needs.

    beside: another guard of the same value, which has to be cured as well.
    """
    guard, base = found.guard, found.base
    operand = operand_node(applied.node, it.module, 0)
    fallback = _guarded_node(guard, it) or operand
    if guard is not None:
        it.retract("lost-guard", guard.made)
    places = upcast_places(it, _squared(guard) or base, fallback)
    also = _guarded_node(beside, it)
    if also is not None and fallback is not None and places == (it.place(fallback),):
        places = (it.place(also), *places)
    it.emit(
        kind,
        applied.node,
        modes,
        value.assumptions | found.assumptions,
        about=value,
        operation=applied.name,
        fate=fate,
        epsilon=guard.epsilon if guard is not None else 0.0,
        clamped=made_at(it, guard.made) if guard is not None and guard.made.op != "add" else None,
        epsilon_at=made_at(it, guard.source) if guard is not None else None,
        base=base.op if isinstance(base, Tensor) else "",
        base_at=made_at(it, base),
        upcast=places,
        likes=like_places(it, guard.source) if guard is not None else (),
        at_origin=fallback is None or it.place(fallback) not in places or _expands(base),
        passes=not applied.result.flags & DETACHED,
        direct=it.place(_of_complement(fallback)) if fallback is not None else None,
        known=isinstance(base, Tensor) and base.op not in ("input", "argument"),
        of_probability=_is_probability(base),
        wide_at=made_at(it, found.wide) if found.wide is not None else None,
        **more,
    )


def _expands(base: Any) -> bool:
    """Whether a value is made by an operation that squashes nothing: its own gradient is as large
    as that of what it is made of, wherever it is upcast."""
    return isinstance(base, Tensor) and base.op not in {*UNSEEN, *SQUASHING}


UNSEEN: Final = frozenset({"", "input", "argument"})
"""Operations of values whose making is not in sight."""


def _of_complement(node: ast.AST) -> ast.AST:
    """``p`` of ``1 - p``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return node.right if isinstance(node.left, ast.Constant) else node
    return node


def _squared(guard: Guard | None) -> Tensor | None:
    """What a guard is added to, where that is made of squares: these underflow first."""
    base = peel(guard.base) if guard is not None else None
    return base if isinstance(base, Tensor) and base.op in ("mul", "pow", "square", "add") else None


def _guarded_node(guard: Guard | None, it: Interpreter) -> ast.AST | None:
    """The expression that a guard guards, in this file."""
    if guard is None or guard.made.home is not it.module:
        return None
    operands = guard.made.operands
    index = next((i for i, one in enumerate(operands) if peel(one) is guard.base), 0)
    return operand_node(guard.made.node, it.module, index)


# one minus a probability


def _complement(value: Tensor, name: str) -> Tensor | None:
    """The probability ``p`` in ``log(1 - p [+ eps])`` or ``log1p(-p)``."""
    inner: Any = value
    if name == "log1p":
        if inner.op == "neg":
            return _probability(inner.operands[0])
        if inner.op == "mul" and number(inner.operands[1]) == -1:
            return _probability(inner.operands[0])
        return None
    for _ in range(6):
        inner = peel(inner)
        if not isinstance(inner, Tensor):
            return None
        if inner.op == "sub" and number(inner.operands[0]) == 1:
            return _probability(inner.operands[1])
        guard = guard_of(inner)
        if guard is not None:
            if guard.epsilon > 2 * STEP:
                return None
            inner = guard.base
        elif transparent(inner) and inner.op not in ("mean", "sum"):
            inner = inner.operands[0]
        else:
            return None
    return None


def _probability(value: Any) -> Tensor | None:
    inner = peel(value)
    for _ in range(6):
        if not isinstance(inner, Tensor):
            return None
        if inner.op in PROBABILITIES or inner.op == "cosine_similarity":
            return inner
        if not transparent(inner) or inner.op in ("mean", "sum", "sqrt", "square"):
            return None
        inner = peel(inner.operands[0])
    return None


def _log_of_complement(
    it: Interpreter, applied: Applied, value: Tensor, probability: Tensor
) -> None:
    operand = peel(probability.operands[0]) if probability.operands else None
    if isinstance(operand, Tensor) and operand.hi < 6.0 and probability.op != "softmax":
        return
    modes = dtypes.modes_of(probability.dtypes, LOW)
    if not modes:
        return
    epsilon = max((guard.epsilon for guard in guards(value)), default=0.0)
    found = Least(0.0, probability, next(guards(value), None), 0)
    for guard in guards(value):
        it.retract("lost-guard", guard.made)
    report_guard(
        it, "log-complement", applied, value, "zero", modes, found,
        probability=probability.op, smallest=epsilon,
    )  # fmt: skip


# log odds


def _log_odds(it: Interpreter, applied: Applied, value: Tensor) -> bool:
    """``log(p.clamp(min=e) / (1 - p).clamp(min=e))``: the quotient overflows."""
    if value.op != "div" or len(value.operands) < 2:
        return False
    over, under = guard_of(value.operands[0]), guard_of(value.operands[1])
    if under is None:
        return _odds_of_limited(it, applied, value, over)
    top = over.base if over is not None else peel(value.operands[0])
    below = peel(under.base)
    if not isinstance(below, Tensor) or below.op != "sub" or number(below.operands[0]) != 1:
        return False
    if not same(peel(below.operands[1]), top):
        return False
    modes = 0
    for mode in range(len(MODES)):
        low = low_dtype(peel(value.operands[1]), mode)
        if low == FLOAT16 and under.epsilon < RECIPROCAL:
            modes |= 1 << mode
    if modes:
        for guard in (over, under):
            if guard is not None:
                it.retract("lost-guard", guard.made)
        found = Least(0.0, top, under, 0)
        report_guard(it, "log-odds", applied, value, "zero", modes, found, over)
    return True


def _odds_of_limited(it: Interpreter, applied: Applied, value: Tensor, over: Guard | None) -> bool:
    """``p = p.clamp(e, 1 - e)`` and ``log(p / (1 - p))``: the limit is 1 in half, and the odds infinite."""
    share, below = peel(value.operands[0]), peel(value.operands[1])
    if not isinstance(share, Tensor) or not isinstance(below, Tensor) or below.op != "sub":
        return False
    if number(below.operands[0]) != 1 or not same(peel(below.operands[1]), share):
        return False
    modes = 0
    for mode in range(len(MODES)):
        low = low_dtype(below, mode)
        if low and rounded(share.hi, low) == 1:
            modes |= 1 << mode
    if modes:
        it.retract("lost-guard", share)
        found = Least(0.0, over.base if over is not None else share, over, 0)
        report_guard(it, "log-odds", applied, value, "zero", modes, found)
    return bool(modes)


@hazard("logit")
def logit_of_half(it: Interpreter, applied: Applied) -> None:
    """``torch.logit(p, eps)`` on the CPU: 1 - eps is 1 in half; CUDA's kernel computes in float32."""
    value = applied.tensor(0)
    epsilon = number(applied["eps"])
    if value is None or epsilon is None or value.hi < 0.99:
        return
    where = on_cpu(it, value)
    if where is None:
        return
    modes = 0
    for mode in range(len(MODES)):
        low = low_dtype(value, mode)
        if low and rounded(1 - epsilon, low) == 1:
            modes |= 1 << mode
    found = Least(0.0, value, None, where)
    report_guard(it, "log-odds", applied, value, "zero", modes, found, logit=epsilon)


# denominators and roots


@hazard("div", "reciprocal", "true_divide", "addcdiv")
def zero_denominator(it: Interpreter, applied: Applied) -> None:
    """A quotient by a guarded value whose guard vanishes, or is too small, in float16."""
    index = {"reciprocal": 0, "addcdiv": 2}.get(applied.name, 1)
    value = peel(applied.tensor(index))
    if value is None:
        return
    _weak_divisor(it, applied, value, "weak-denominator")


def _weak_divisor(it: Interpreter, applied: Applied, value: Tensor, kind: str) -> None:
    guard = next(guards(value), None)
    if guard is None or guard.epsilon >= RECIPROCAL:
        return
    if least(value, REFERENCE).bound <= 0:
        return
    modes, vanishes = 0, rounded(guard.epsilon, FLOAT16) == 0
    first: Least | None = None
    for mode in range(len(MODES)):
        if low_dtype(guard.made, mode) != FLOAT16:
            continue
        if not vanishes and low_dtype(applied.result, mode) != FLOAT16:
            continue  # the quotient has the range of float32
        found = least(value, mode)
        held = found.guard is None or low_dtype(found.guard.made, mode) != FLOAT16
        if found.bound < RECIPROCAL and not held:
            modes |= 1 << mode
            first = first or found
    if first is None or first.guard is None:
        return
    if _is_norm(first.base) and kind == "weak-denominator":
        kind = "weak-norm"
    fate = "zero" if vanishes else "overflow"
    numerator = applied.values[0] if applied.name == "div" else None
    if not vanishes:
        if kind == "weak-norm" or vanish_together(numerator, guard.base):
            return
        # that it comes to 0 where the numerator does not is more than whoever guards it says
        more_assumed = least(guard.base, REFERENCE).assumptions & assume.ZERO
        first = first._replace(assumptions=first.assumptions | more_assumed)
    top = operand_node(applied.node, it.module, 0)
    more: dict[str, Any] = {
        "numerator": it.place(top) if top is not None and isinstance(numerator, Tensor) else None,
        "normed": _normed(it, first, numerator),
    }
    report_guard(it, kind, applied, value, fate, modes, first, **more)


def _is_norm(base: Any) -> bool:
    return isinstance(base, Tensor) and base.op in NORMS


def _normed(it: Interpreter, found: Least, numerator: Any) -> bool:
    """Whether a tensor is divided by its own norm."""
    base = found.base
    return (
        isinstance(base, Tensor)
        and bool(base.operands)
        and same(peel(base.operands[0]), peel(numerator))
    )


@hazard("sqrt", "rsqrt", "pow")
def zero_under_root(it: Interpreter, applied: Applied) -> None:
    """A root of a guarded value whose guard vanishes in float16."""
    value = applied.tensor(0)
    if value is None:
        return
    inverse = applied.name == "rsqrt"
    if applied.name == "pow":
        exponent = number(applied.values[1]) if len(applied.values) > 1 else None
        if exponent == -1:
            _weak_divisor(it, applied, value, "weak-denominator")
        if exponent is None or abs(exponent) != 0.5:
            return
        inverse = exponent < 0
    guard = next(guards(value), None)
    if guard is None or guard.epsilon > VANISHES or least(value, REFERENCE).bound <= 0:
        return
    if not inverse and applied.result.flags & DETACHED:
        return
    modes = 0
    first: Least | None = None
    for mode in range(len(MODES)):
        if low_dtype(guard.made, mode) == FLOAT16:
            found = least(value, mode)
            if found.bound <= 0:
                modes |= 1 << mode
                first = first or found
    if first is not None:
        report_guard(it, "weak-root", applied, value, "zero", modes, first, inverse=inverse)


@hazard("sqrt", "pow")
def root_of_cosine(it: Interpreter, applied: Applied) -> None:
    """``sqrt(1 - cos**2)`` in half: rounding makes the difference negative, and the root nan."""
    value = applied.tensor(0)
    if value is None or value.op != "sub" or value.lo > 0:
        return
    if applied.name == "pow" and number(applied.values[1]) != 0.5:
        return
    constant = number(value.operands[0])
    cosine = _cosine(value.operands[1]) if constant is not None else None
    if cosine is None:
        return
    modes = dtypes.modes_of(value.dtypes, LOW) | dtypes.modes_of(cosine.dtypes, LOW)
    found = Least(0.0, cosine, None, 0)
    report_guard(it, "weak-root", applied, value, "negative", modes, found, inverse=False)


def _cosine(value: Any) -> Tensor | None:
    """The product of normalised vectors in its square or a multiple."""
    inner = peel(value)
    for _ in range(5):
        if not isinstance(inner, Tensor):
            return None
        if inner.op in ("matmul", "linear", "mm", "bmm", "einsum"):
            units = [one for one in inner.operands[:2] if _is_unit(one)]
            return inner if len(units) == 2 else None
        if inner.op not in ("pow", "square", "mul", "index", "view"):
            return None
        inner = peel(inner.operands[0])
    return None


def _is_unit(value: Any) -> bool:
    inner = peel(value)
    while isinstance(inner, Tensor) and inner.op != "normalize" and transparent(inner):
        inner = peel(inner.operands[0])
    return isinstance(inner, Tensor) and inner.op == "normalize"


@hazard("normalize", "cosine_similarity")
def zero_vector(it: Interpreter, applied: Applied) -> None:
    """``normalize`` in float16: its epsilon is 0 there, so a zero vector gives nan."""
    default = 1e-12 if applied.name == "normalize" else 1e-8
    given = applied["eps"]
    epsilon = default if given is None else number(given)
    if epsilon is None or epsilon > VANISHES:
        return
    for index in (0, 1) if applied.name == "cosine_similarity" else (0,):
        value = applied.tensor(index)
        if value is None:
            continue
        modes = 0
        seen = applied.seen.get(index, value.dtypes)
        for mode in range(len(MODES)):
            one = seen[mode]
            if one & FLOAT16 and not one & dtypes.OTHER:
                modes |= 1 << mode
        found = least(value, REFERENCE)
        if found.bound > 0:
            continue
        if _is_hardly_zero(value):
            modes &= ~(1 << dtypes.CODE)  # what is written shows no zero vector
        operand = operand_node(applied.node, it.module, index)
        place = it.place(operand) if operand is not None else None
        it.emit(
            "zero-vector",
            applied.node,
            modes,
            value.assumptions | found.assumptions | it.outside(applied),
            about=value,
            operation=applied.name,
            epsilon=epsilon,
            given=given is not None,
            upcast=tuple(
                it.place(node)
                for i in ((0, 1) if applied.name == "cosine_similarity" else (0,))
                if (node := operand_node(applied.node, it.module, i)) is not None
            ),
            operand=place,
        )
        return


def _is_hardly_zero(value: Any) -> bool:
    """Whether a value is what an unseen model gives, or a layer that adds a bias."""
    value, cast = peel(value), False
    while isinstance(value, Tensor) and transparent(value) and value.operands:
        cast = cast or value.op == "cast"
        value = peel(value.operands[0])
    if is_op(value, "input"):
        return not cast
    layer = holder(value)
    if layer is None or not value.op.startswith(("linear", "conv")):
        return False
    given = layer.arguments.get("bias")
    return not (isinstance(given, Scalar) and given.value is False)


@hazard("clamp")
def clamped_quotient(it: Interpreter, applied: Applied) -> None:
    """A quotient that is limited on both sides: where it is inf, the limit counts."""
    value = peel(applied.tensor(0))
    if len(applied.values) < 3 or None in applied.values[1:3]:
        return
    while isinstance(value, Tensor) and value.op in ("round", "floor", "add", "sub", "cast"):
        value = peel(value.operands[0])
    if is_op(value, "div") and value.node is not None and value.home is not None:
        event = it.events.get(("weak-denominator", it.place(value.node, value.home), None))
        if event is not None and event.facts["fate"] == "overflow":
            it.retract("weak-denominator", value)


# limits of half


@hazard("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "max", "where", "masked_fill")
def lost_guard(it: Interpreter, applied: Applied) -> None:
    """A limit that is 0, or 1, in half: a clamp that keeps nothing away from there."""
    value = applied.result
    guard = guard_of(value)
    if guard is not None and guard.epsilon <= VANISHES:
        reference, limit = least(guard.base, REFERENCE), peel(guard.source)
        modes = 0
        for mode in range(len(MODES)):
            low = low_dtype(value, mode) == FLOAT16 or low_dtype(limit, mode) == FLOAT16
            if low and least(guard.base, mode).bound <= guard.epsilon:
                modes |= 1 << mode
        if reference.bound <= guard.epsilon or isinstance(guard.base, Tensor):
            _report_limit(it, applied, guard.base, guard.epsilon, 0.0, modes, guard.source)
    _lost_upper(it, applied)


@hazard("log", "log2", "log10")
def limited_above(it: Interpreter, applied: Applied) -> None:
    """``log(p.clamp(low, 1 - eps))``: where the limit above is 1 in half, the logarithm is 0."""
    value = peel(applied.tensor(0))
    if is_op(value, "clamp", "clamp_max") and value.home is it.module:
        event = it.events.get(("lost-guard", it.place(value.node), None))
        if (
            is_only_in(it, value.node, applied.node)
            and event is not None
            and event.facts["becomes"] == 1.0
        ):
            it.retract("lost-guard", value)


def _lost_upper(it: Interpreter, applied: Applied) -> None:
    """``clamp(max=1 - eps)`` where that is 1."""
    index = {"clamp": 2, "clamp_max": 1, "minimum": 1}.get(applied.name)
    if index is None or len(applied.values) <= index:
        return
    value = applied.tensor(0)
    limit = number(applied.values[index])
    if limit is None:
        other = peel(applied.values[index])
        if isinstance(other, Tensor) and other.op in FILLED:
            limit = other.lo if other.lo == other.hi else None
    if value is None or limit is None or not 0.99 < abs(limit) < 1 or value.hi <= limit:
        return
    modes = 0
    for mode in range(len(MODES)):
        low = low_dtype(applied.result, mode)
        if low and abs(rounded(limit, low)) == 1:
            modes |= 1 << mode
    if value.hi <= 1:
        _report_limit(it, applied, value, limit, 1.0, modes, applied.values[index])


def _report_limit(
    it: Interpreter,
    applied: Applied,
    base: Any,
    limit: float,
    becomes: float,
    modes: int,
    source: Any,
) -> None:
    operand = operand_node(applied.node, it.module, 0)
    it.emit(
        "lost-guard",
        applied.node,
        modes,
        base.assumptions,
        about=base,
        operation=applied.name,
        limit=limit,
        becomes=becomes,
        limit_at=made_at(it, source),
        upcast=upcast_places(it, base, operand),
        likes=like_places(it, source),
        direct=it.place(operand) if operand is not None else None,
        base=base.op,
    )


# masks and infinities


@hazard("mul")
def masked_infinity(it: Interpreter, applied: Applied) -> None:
    """``mask * log(p)``: where ``p`` is 0 this is 0 times -inf, which is nan."""
    for index in (0, 1):
        value, mask = applied.tensor(index), applied.tensor(1 - index)
        logarithm = _logarithm(value)
        tested = _masked_logarithm(value, mask) if mask is not None else None
        logarithm = logarithm or tested
        if logarithm is None or mask is None:
            continue
        if same(_unguarded(logarithm.operands[0]), _unguarded(mask)):
            it.bounded(logarithm)  # x * log(x + eps): the gradient is bounded
        elif (test := _mask(mask)) is not None:
            asked = logarithm is tested
            supposed = assume.ZERO if test.op == "input" else 0
            _masked(it, applied, logarithm, logarithm.operands[0], "mul", asked, supposed)


def _masked_logarithm(value: Any, mask: Tensor) -> Tensor | None:
    """The logarithm, somewhere in a value, of what a mask was made of (``(x > 0)``)."""
    test = peel(mask)
    while isinstance(test, Tensor) and test.op in MASKING and test.operands:
        test = peel(test.operands[0])
    if not isinstance(test, Tensor) or test.op not in COMPARISONS:
        return None
    for one in behind(value, 10):
        if one.op in LOGARITHMS and any(same(one.operands[0], part) for part in test.operands):
            return one
    return None


GUARDING: Final = frozenset({"add", "clamp", "clamp_min", "maximum"})
LOGARITHMS: Final = frozenset({"log", "log2", "log10"})
MASKING: Final = frozenset({"cast", "index", "view", "unsqueeze", "bitwise_not", "logical_not"})
"""What a test goes through to become a mask."""


@hazard("where")
def chosen_infinity(it: Interpreter, applied: Applied) -> None:
    """``where(keep, log(p), 0)``: the gradient of the branch that is not taken is nan."""
    for index in (1, 2):
        value = peel(applied.tensor(index))
        logarithm = next((one for one in behind(value, 8) if one.op in LOGARITHMS), None)
        if applied.result.flags & DETACHED:
            if logarithm is not None:
                it.retract(
                    "log-guard", logarithm
                )  # it is chosen where it is finite, without gradient
        elif logarithm is not None:
            _masked(it, applied, logarithm, logarithm.operands[0], "where")
        elif isinstance(value, Tensor) and value.op == "div" and len(value.operands) > 1:
            _masked(it, applied, value, value.operands[1], "where")


def _masked(
    it: Interpreter,
    applied: Applied,
    made: Tensor,
    inner: Any,
    how: str,
    asked: bool = False,
    supposed: int = 0,
) -> None:
    """A value that is infinite where ``inner`` is 0, in half only, and masked afterwards.

    asked: whether the mask asks where it is positive: who does that has seen it at zero.  supposed: what
    is assumed of a mask of which nothing is known, where float32 has the same zero.
    """
    within = peel(inner)
    if next(guards(within), None) is not None or not isinstance(within, Tensor):
        return
    if within.op in GUARDING and within.lo > 0:
        return  # by a number that is not always the same
    found = least(inner, REFERENCE)
    modes = 0
    for mode in range(len(MODES)):
        if least(inner, mode).bound <= 0:
            modes |= 1 << mode
    if found.bound <= 0 and how == "where":
        return  # float32 has the same zero
    for kind in ("log-guard", "log-probability"):
        it.retract(kind, made)
    assumptions = found.assumptions & ~(assume.ZERO if asked else 0)
    assumptions |= supposed if found.bound <= 0 else 0
    it.emit(
        "masked-infinity",
        applied.node,
        modes,
        within.assumptions | assumptions,
        about=None if found.bound <= 0 else inner,
        made=made_at(it, made),
        operation=made.op,
        how=how,
        everywhere=found.bound <= 0,
    )


@hazard("floor", "ceil", "round", "trunc", "sign")
def rounded_at_once(it: Interpreter, applied: Applied) -> None:
    """A logarithm that is rounded has no gradient that could overflow."""
    for one in behind(applied.tensor(0), 8):
        if one.op in ("log", "log2", "log10"):
            it.bounded(one)


def _logarithm(value: Any, depth: int = 6) -> Tensor | None:
    """The logarithm that makes a value infinite, through signs, views, numbers and sums."""
    inner = peel(value)
    if not isinstance(inner, Tensor) or not depth:
        return None
    if inner.op in LOGARITHMS:
        return inner
    for one, other in _carrying(inner):
        found = _logarithm(one, depth - 1)
        if found is not None and not same(_unguarded(found.operands[0]), _unguarded(other)):
            return found
    return None


def _carrying(value: Tensor) -> list[tuple[Any, Any]]:
    """The operands of which one that is infinite makes the result infinite, too; each with its factor."""
    first, second = (*value.operands[:2], None, None)[:2]
    if value.op in ("neg", "cast", "index", "view"):
        return [(first, None)]
    if value.op in ("add", "sub"):
        return [(first, None), (second, None)]
    if value.op == "mul":
        return [(first, second), (second, first)]
    return [(first, None)] if value.op in ("div", "pow") and number(second) is not None else []


def _unguarded(value: Any) -> Any:
    guard = guard_of(value)
    return guard.base if guard is not None else value


COMPARISONS: Final = frozenset(
    {"gt", "ge", "lt", "le", "eq", "ne", "logical_and", "logical_not", "isfinite"}
)


def _mask(value: Any) -> Tensor | None:
    """What a mask is made of: a comparison, or something that comes in and may be one; None: it is none."""
    inner = peel(value)
    while isinstance(inner, Tensor) and inner.op in MASKING and inner.operands:
        inner = peel(inner.operands[0])
    found = isinstance(inner, Tensor) and (inner.op in COMPARISONS or inner.op == "input")
    return inner if found else None
