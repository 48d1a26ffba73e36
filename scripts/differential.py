"""Execute every safe fix of the fixtures on drawn inputs, before and after.

    python scripts/differential.py [--examples 20] [--jobs 2] [--select MP301,MP305] [--cases]

In float32 and in float64, on values that hypothesis draws (any magnitude, subnormals, zeros, infinities,
NaN), the code and what the fix makes of it must agree, forward and backward, within the bound that the
rule's proof declares.  It is done twice:

- each case of a proof: the whole module as it is and its golden, with one, as many or twice as many rows;
- each finding by itself: its slice, on shapes that it runs with, and what its own fix makes of it.  In half,
  the fixed slice's gradients must be finite wherever its result is right and the true gradient is within
  range.

``--cases`` leaves out the second part, which takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from precision_lint import inspection, registry
from precision_lint.api import Applicability
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import expectations, trial, users
from precision_lint.harness.cases import Case, Input
from precision_lint.harness.collect import proof
from precision_lint.harness.execute import Fault, Outcome, Run, Width, execute
from precision_lint.harness.hunt import Form, Hunt, Job, fills, texts
from precision_lint.harness.plan import Plan, Variant
from precision_lint.harness.trial import Argument, Condition, Program

PLAIN = Condition("cpu", "float16", "float32", False)
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 6e-8, 6.1e-5, 1e-8, 1e-12, 1e-30, 65504.0, -65520.0, 2049.0, 1e5,
    1e19, -1e30, 3e38, 17.0, -88.0, 104.0, math.inf, -math.inf, math.nan,
)  # fmt: skip
WIDTHS: tuple[Width, ...] = ("float32", "float64")
SHAPES = 3
SECONDS = 20.0
"""Time for the shapes of one finding."""
KNOWN = {
    (
        "MP305",
        "linear_attention.py",
    ): "a denominator is exactly 0, and 1/eps leaves half on its way back",
    ("MP305", "trained.py"): "the same",
    ("MP603", "cosines.py"): "the gradient of exp leaves half on its way back",
    ("MP502", "apart.py"): "integers in the place of samples, which only run with one step",
}
"""What is not as it should be, and why; docs/reliability.md lists it."""
LARGE = 1000.0
"""A true gradient above this is near the end of float16, and a loss scale's business."""
MOST = 24
"""Values of one input that are drawn; larger ones repeat them."""
POWERS = (0, 3, -3, 15, -14, -24, 60, -60, 120, -140)
"""Powers of two that a case's own values are multiplied with; the last makes subnormals."""


class Differ(AssertionError):
    """Before and after do not agree."""


@dataclass
class Count:
    """What was executed of one rule."""

    code: str
    fixes: int = 0
    compared: int = 0
    drawn: int = 0
    gradients: int = 0
    differ: list[str] = field(default_factory=list)
    infinite: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    single: list[str] = field(default_factory=list)
    """Cases that raise in float64 before the fix, so only float32 is compared."""


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    """Finite numbers of a range in single precision, and special ones."""
    single = [float(torch.tensor(one, dtype=torch.float32)) for one in (low, high)]
    bounds = [None if math.isinf(one) else one for one in single]
    drawn = st.floats(bounds[0], bounds[1], width=32, allow_nan=False, allow_infinity=False)
    unbounded = low == -math.inf and high == math.inf
    kept = [one for one in SPECIAL if low <= one <= high or (unbounded and math.isnan(one))]
    return st.one_of(drawn, st.sampled_from(kept), st.floats(-20.0, 20.0, width=32)) if (
        kept and low <= -20.0 and high >= 20.0
    ) else st.one_of(drawn, st.sampled_from(kept)) if kept else drawn  # fmt: skip


def tensor(data: st.DataObject, hypothesis: dict[str, Any], form: Form) -> str:
    """Python text of drawn values."""
    shape = form.shape or ()
    count = math.prod(shape)
    each = numbers(hypothesis["lo"], hypothesis["hi"])
    size = min(max(count, 1), MOST)
    values = data.draw(st.lists(each, min_size=size, max_size=size))
    repeated = list(itertools.islice(itertools.cycle(values), count))
    words = ", ".join(f"float({str(v)!r})" for v in repeated)
    return f"torch.tensor([{words}], dtype=torch.float64).reshape({shape})"


def agree(before: Outcome, after: Outcome, bound: float) -> str:
    """How two outcomes differ; nothing if they do not, or if the first one raises."""
    if before.raised is not None:
        return ""
    if after.raised is not None:
        return f"raises {after.raised[:120]}"
    pairs: dict[str, tuple[Any, Any]] = {
        **{n: (v, after.outputs.get(n)) for n, v in before.outputs.items()},
        **{f"gradient of {n}": (v, after.gradients.get(n)) for n, v in before.gradients.items()},
    }
    for name, (one, other) in pairs.items():
        if one is None:
            continue
        if other is None or one.shape != other.shape:
            return f"{name} has another shape, or is missing"
        if one.dtype != other.dtype:
            return f"{name} has another dtype"
        one, other = one.double(), other.double()
        if not torch.equal(torch.isfinite(one), torch.isfinite(other)):
            if bool((torch.isfinite(one) & ~torch.isfinite(other)).any()):
                return f"{name} is not finite any more"
            continue  # what was not finite is now
        finite = torch.isfinite(one)
        if not bool(finite.any()):
            continue
        off = float((one - other)[finite].abs().max())
        size = float(one[finite].abs().max())
        allowed = bound * (4 if name.startswith("gradient") else 1) * size
        if off > allowed:
            return f"{name} is off by {off / (size or 1.0):.3g} of the largest value"
    return ""


def bounds() -> dict[str, float]:
    """By rule the error that its proof allows a safe fix in float32."""
    found = {}
    for rule in registry.rules().values():
        cases = [one for one in proof(rule).cases if one.level == "safe"]
        found[rule.code] = max((one.float32_tolerance for one in cases), default=0.0)
    return found


def settled(examples: int) -> settings:
    """The same draws in every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )


# whole cases


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The inputs of a case with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Input):
        return replace(value, value=change(value.value))
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    return value


def redrawn(data: st.DataObject, inputs: Any) -> Any:
    """Inputs of the same kinds: other values in floating tensors, and perhaps another number of rows."""
    rows = data.draw(st.sampled_from(("all", "all", "one", "twice")))
    lengths: list[int] = []
    mapped(inputs, lambda one: lengths.append(len(one)) or one if one.dim() else one)

    def change(one: torch.Tensor) -> torch.Tensor:
        if one.dim() and len(one) == lengths[0] and rows != "all":
            one = one[:1] if rows == "one" else torch.cat([one, one])
        if not one.is_floating_point() or not one.numel():
            return one
        kind = data.draw(st.sampled_from(("scaled", "spiked", "any")))
        if kind == "scaled":
            return one.double() * 2.0 ** data.draw(st.sampled_from(POWERS))
        each = st.sampled_from(SPECIAL) if kind == "spiked" else numbers(-math.inf, math.inf)
        count = 2 if kind == "spiked" else min(one.numel(), MOST)
        drawn = torch.tensor(data.draw(st.lists(each, min_size=count, max_size=count)))
        values = one.detach().double().flatten().clone()
        if kind == "any":
            values = drawn.double().repeat(-(-one.numel() // count))[: one.numel()]
        else:
            values[:: max(one.numel() // count, 1)][:count] = drawn.double()[: one.numel()]
        return values.reshape(one.shape)

    return mapped(inputs, change)


def of_case(case: Case, texts: tuple[str, str], path: Path, examples: int, count: Count) -> None:
    """Compare a module with its golden, through the entry of a case."""
    widths: set[str] = set()

    def one(data: st.DataObject) -> None:
        inputs = redrawn(data, case.inputs())
        drawn = replace(case, inputs=lambda: inputs)
        for width in WIDTHS:
            pair = []
            for text in texts:
                with trial.wide(width):
                    pair.append(execute(drawn, text, path, Run("cpu", torch.float32, width)))
            if pair[0].raised is None:
                count.drawn += 1
                widths.add(width)
            if words := agree(pair[0], pair[1], case.float32_tolerance):
                raise Differ(f"{width}: {words} for {inputs!r:.300}")

    count.fixes += 1
    try:
        settled(1 if case.regime == "training" else examples)(given(st.data())(one))()
    except Differ as error:
        count.differ.append(f"{path.parent.name}/{case.title}: {error}")
    count.compared += bool(widths)
    if widths and "float64" not in widths:
        count.single.append(f"{path.parent.name}/{case.title}")


def cases(code: str, examples: int) -> Count:
    """All cases of a rule that a safe fix cures."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count = Count(code)
    found = proof(registry.rules()[code])
    for case in found.cases:
        assert found.folder is not None
        path = found.folder / case.module
        golden = path.with_suffix(".golden.py")
        if case.level == "safe" and golden.is_file():
            texts = path.read_text("utf-8"), golden.read_text("utf-8")
            with contextlib.redirect_stdout(io.StringIO()):
                of_case(case, texts, path, examples, count)
    return count


# findings by themselves


def shapes(hunt: Hunt) -> list[tuple[int, tuple[Form, ...]]]:
    """The first combinations of shapes that run."""
    with trial.under(PLAIN):
        found = itertools.islice(hunt.combinations(PLAIN), SHAPES)
        return [one for one in found if one[0] <= 32]


def fitting(hunt: Hunt, fixed: Program) -> list[tuple[int, tuple[Form, ...]]]:
    """Shapes that the fixed slice runs with as well: it may need more of an input than the slice did."""
    found = shapes(hunt)
    kept = [
        one
        for one in found
        if fixed.call(next(_plausible(hunt, [one])), PLAIN, "float32").raised is None
    ]
    return kept or found


def compare(hunt: Hunt, fixed: Program, bound: float, examples: int) -> tuple[int, str]:
    """How many draws were compared, and how they differ."""
    drawn: list[int] = []
    how = settled(examples)
    for size, combination in fitting(hunt, fixed):

        def one(data: st.DataObject) -> None:
            chosen = drawn_arguments(data, hunt, size, combination)  # noqa: B023
            drawn.append(size)  # noqa: B023
            for width in WIDTHS:
                pair = [
                    program.call(chosen, PLAIN, width, backward=True)
                    for program in (hunt.program, fixed)
                ]
                if pair[0].drew:
                    return
                if words := agree(*pair, bound):
                    inputs = ", ".join(f"{a.name} = {a.text}" for a in chosen)
                    raise Differ(f"{width}: {words} for {inputs[:300]}")

        try:
            how(given(st.data())(one))()
        except Differ as error:
            return len(drawn), str(error)
        except (Fault, ValueError):
            continue
    return len(drawn), ""


def drawn_arguments(
    data: st.DataObject, hunt: Hunt, size: int, combination: Sequence[Form]
) -> tuple[Argument, ...]:
    """An argument for each input of a slice."""
    found = []
    for h, form in zip(hunt.job.inputs, combination, strict=True):
        if form.kind == "tensor":
            text = tensor(data, h, form)
        else:
            text = data.draw(st.sampled_from(texts(h, form, size)[:2]))
        found.append(Argument(h["name"], text, h["wide"]))
    return tuple(found)


def infinite(hunt: Hunt, fixed: Program, plan: Plan) -> Iterator[str]:
    """Per condition one line if a gradient of the fixed code is not finite where it should be."""
    for written in plan.conditions[:2]:
        condition = Condition(**written)
        with trial.under(condition):
            for arguments in _plausible(hunt, shapes(hunt)[:1]):
                try:
                    seen = trial.full(fixed, arguments, condition, backward=True)
                    if seen is None or not seen.backward or seen.drew:
                        continue
                    true = [g for g in seen.reference.gradients.values() if g is not None]
                    if any(g.numel() and float(g.abs().max()) > LARGE for g in true):
                        continue
                    if trial.forward_failure(fixed, arguments, condition, seen):
                        continue
                    wrong = trial.backward_failure(fixed, arguments, condition, seen, (1.0,))
                except Fault:
                    continue
                if wrong is not None and wrong[0] in ("inf", "nan"):
                    inputs = ", ".join(f"{a.name} = {a.text}" for a in arguments)
                    yield f"{condition.words}: {wrong[1]} for {inputs[:200]}"
                    break


def _plausible(
    hunt: Hunt, found: Sequence[tuple[int, tuple[Form, ...]]]
) -> Iterator[tuple[Argument, ...]]:
    for size, combination in found:
        lists = [
            fills(h, form) if form.kind == "tensor" else texts(h, form, size)
            for h, form in zip(hunt.job.inputs, combination, strict=True)
        ]
        for place in range(max(map(len, lists), default=1)):
            yield tuple(
                Argument(h["name"], each[min(place, len(each) - 1)], h["wide"])
                for h, each in zip(hunt.job.inputs, lists, strict=True)
            )


def one_variant(plan: Plan, variant: Variant, bound: float, examples: int, count: Count) -> None:
    """Compare a slice with what the finding's own fix makes of it."""
    start = plan.finding.start
    place = f"{Path(plan.finding.filename).name}:{start.row}"
    hunt = Hunt(
        Job(variant.original, variant.fixed[:1], variant.inputs, variant.sizes),
        time.monotonic() + SECONDS,
    )
    fixed = hunt.fixed[0]
    drawn, words = compare(hunt, fixed, bound, examples)
    count.compared += bool(drawn)
    count.drawn += drawn
    known = KNOWN.get((count.code, Path(plan.finding.filename).name))
    if words:
        (count.known if known else count.differ).append(f"{place}: {words}")
    if variant.inputs:
        count.gradients += bool(drawn)
        wrong = [f"{place}: {line}" for line in infinite(hunt, fixed, plan)]
        (count.known if known else count.infinite).extend(wrong)


def rule(code: str, bound: float, examples: int, files: Sequence[Path] | None = None) -> Count:
    """All safe fixes of a rule's fixtures."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count = Count(code)
    folder = proof(registry.rules()[code]).folder
    paths = files or (expectations.modules(folder) if folder is not None else [])
    found = users.plans(itertools.chain.from_iterable(_examined(code, one) for one in paths), [])
    with contextlib.redirect_stdout(io.StringIO()):  # what the code prints
        for plan in found:
            _one(plan, bound, examples, count)
    return count


def _examined(code: str, path: Path) -> Iterator[inspection.Examined | str]:
    """A fixture's findings, in the modes that it states."""
    stated = Overrides(select=(code,), no_cache=True, precision=expectations.stated(path))
    return inspection.examine([path], Resolver(stated, None, True))


def _one(plan: Plan, bound: float, examples: int, count: Count) -> None:
    fix = plan.finding.fix
    if fix is None or fix.applicability is not Applicability.SAFE:
        return
    count.fixes += 1
    variant = next((one for one in plan.variants if one.fixed), None)
    if variant is not None:
        try:
            one_variant(plan, variant, bound, examples, count)
        except Exception as error:  # what the slice does when it is defined
            sys.stderr.write(f"{plan.finding.filename}: {type(error).__name__}: {error}\n")


def show(one: Count, what: str) -> None:
    print(
        f"{one.code}: {one.fixes} {what}, {one.compared} compared on {one.drawn} inputs, "
        f"{len(one.differ)} differ; {one.gradients} with gradients in half, "
        f"{len(one.infinite)} not finite",
        flush=True,
    )
    for line in one.differ + one.infinite + [f"known: {line}" for line in one.known]:
        print(f"  {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--select", default="")
    parser.add_argument("--cases", action="store_true")
    options = parser.parse_args()
    allowed = bounds()
    codes = [one for one in allowed if one.startswith(tuple(options.select.split(",")))]
    wrong = False
    with ProcessPoolExecutor(options.jobs) as pool:
        parts = {"cases": [pool.submit(cases, code, options.examples) for code in codes]}
        if not options.cases:
            jobs = [pool.submit(rule, code, allowed[code], options.examples) for code in codes]
            parts["safe fixes"] = jobs
        for what, jobs in parts.items():
            total = [0, 0, 0]
            for job in jobs:
                one = job.result()
                if one.fixes:
                    show(one, what)
                wrong |= bool(one.differ or one.infinite)
                total = [
                    a + b for a, b in zip(total, (one.fixes, one.compared, one.drawn), strict=True)
                ]
            print(f"{total[0]} {what}, {total[1]} compared on {total[2]} inputs", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
