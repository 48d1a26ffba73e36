"""Searches inputs on which a slice fails in half precision: shapes first, then values.

Shapes: every combination of what the inputs may be, the likely first, until the slice runs in
float32.  Values: the thresholds at which half precision breaks, in closed form, for all inputs at
once, for one of them, and in combinations; then a gradient search in float32 that drives the result
up or down, replayed in half after every step.  Bounds that the analysis knows hold for every value.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_lint.harness import trial
from precision_lint.harness.execute import Fault
from precision_lint.harness.judge import first_line
from precision_lint.harness.trial import Argument, Condition, Program, Witness

LONGEST, WIDEST = 2050, 260
SIZES = (3, 4, 2, 32, LONGEST, WIDEST)
"""Sizes tried for dimensions that are not known; 3 and 4 are those of cameras and boxes, and half
precision cannot count to the longest; a square of the widest has more elements than float16's
largest number."""
SHAPES = 2500
"""Combinations of kinds and shapes tried for one size, of even and of any dimensions each."""
SHAPE_SECONDS = 2.0
"""Processor time for one size."""
GLANCE_SECONDS = 0.5
"""Processor time for the values of one condition at first, so that none waits for the others."""
VALUE_SECONDS = 2.0
"""Time for them afterwards."""
TRIES = {LONGEST: 60, WIDEST: 12}
"""Values for one size, of which many elements take long; `MANY` for others."""
MANY = 500
LARGEST = 8192
"""Elements of an input at most."""
THRESHOLDS = (
    1.0, 0.0, 100.0, 1000.0, -20.0, 20.0, 8.5, -8.5, 300.0, 12.0, -12.0, 60.0, 3000.0, 1e-4,
    30000.0, 6e-8, 0.9995, 1e-3, 60000.0, -300.0, -1000.0, -1.0, 2049.0, 1e-6,
)  # fmt: skip
"""Where float16 and bfloat16 break: sigmoid is 0 below -17.4 and 1 above 8.3, squares overflow from
256, integers end at 2048, products at 65504, subnormals begin at 6.1e-5 and end at 6e-8."""
LONG = (2049, 4099)
"""Integers of which half precision has only some: bfloat16 from 256, float16 from 2048."""
CLIMBS = 12
"""Steps of the gradient search."""


class Patience:
    """How long a part of the search may take: processor seconds, so that a busy machine changes no
    verdict, and in any case the deadline of the whole search, by the clock."""

    def __init__(self, seconds: float, deadline: float) -> None:
        self._end = time.process_time() + seconds
        self._deadline = deadline

    @property
    def over(self) -> bool:
        return time.process_time() > self._end or time.monotonic() > self._deadline


@dataclass(frozen=True)
class Form:
    """A kind and, for tensors, a shape, with how unlikely it is."""

    kind: str
    shape: tuple[int, ...] | None
    cost: float


def _even(shape: tuple[int, ...], size: int) -> bool:
    return all(dimension == size for dimension in shape)


class NothingRuns(Exception):
    """No combination of kinds and shapes runs in float32; the text is the last error."""


def forms(hypothesis: dict[str, Any], size: int, mentioned: Sequence[int]) -> list[Form]:
    """What an input may be where unknown dimensions are ``size``, the likely first."""
    found: dict[tuple[str, tuple[int, ...] | None], float] = {}

    def add(kind: str, shape: tuple[int, ...] | None, cost: float) -> None:
        if shape is None or math.prod(shape) <= (LARGEST if size != WIDEST else WIDEST**2):
            found[kind, shape] = min(cost, found.get((kind, shape), math.inf))

    specials = [s for s in dict.fromkeys((1, 3, 4, *mentioned)) if s != size and s <= 64]
    for position, kind in enumerate(hypothesis["kinds"]):
        base = 2.5 * position
        if kind not in ("tensor", "index", "mask"):
            add(kind, None, base)
            if kind in ("int", "sizes"):
                for place, special in enumerate(specials[:6]):
                    add(f"{kind} {special}", None, base + 2 + place / 4)
            continue
        known = hypothesis["shape"]
        if known is not None:
            add(kind, tuple(d if isinstance(d, int) else size for d in known), base)
        for place, rank in enumerate(hypothesis["ranks"]):
            cost = base + place * (1.0 if known is None else 1.5) + (known is not None)
            for shape, more in _shapes(rank, size, specials[:8], mentioned):
                add(kind, shape, cost + more)
    return sorted((Form(k, s, c) for (k, s), c in found.items()), key=lambda form: form.cost)


def _shapes(
    rank: int, size: int, specials: Sequence[int], mentioned: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Shapes of a rank where dimensions are ``size`` or special, each with what it costs."""
    yield (size,) * rank, 0.0
    for order, special in enumerate(specials):
        more = 1.5 + order / 4
        if rank:
            yield (size,) * (rank - 1) + (special,), more
        if rank >= 2:
            yield (size,) * (rank - 2) + (special, special), more + 0.25
            yield (size,) * (rank - 2) + (special, size), more + 0.5
            if size > 64:  # a long sequence
                yield (1,) * (rank - 2) + (size, special), more
            if size == WIDEST:
                yield (1,) * (rank - 2) + (size, size), 0.1
    for order, long in enumerate(one for one in mentioned if 64 < one <= LARGEST // 4):
        if rank:
            yield (1,) * (rank - 1) + (2 * long,), 3 + order / 4


def cheapest(
    lists: Sequence[Sequence[Any]], costs: Sequence[Sequence[float]]
) -> Iterator[tuple[Any, ...]]:
    """The product of some lists in the order of the sum of costs."""
    if not all(lists):
        return
    start = (0,) * len(lists)
    heap = [(sum(c[0] for c in costs), start)]
    seen = {start}
    while heap:
        _, places = heapq.heappop(heap)
        yield tuple(items[i] for items, i in zip(lists, places, strict=True))
        for position in range(len(places)):
            after = (*places[:position], places[position] + 1, *places[position + 1 :])
            if after[position] < len(lists[position]) and after not in seen:
                seen.add(after)
                total = sum(c[i] for c, i in zip(costs, after, strict=True))
                heapq.heappush(heap, (total, after))


# values


def _bounded(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _number(value: float) -> str:
    return repr(float(f"{value:.6g}"))


def wave(shape: tuple[int, ...], low: float, high: float) -> str:
    """Values that look arbitrary and fill a range; matrices of them can be inverted."""
    count = math.prod(shape)
    text = f"torch.sin(0.7 * torch.arange({count}, dtype=torch.float64) ** 1.1 + 0.5)"
    middle, half = (low + high) / 2, (high - low) / 2
    text = text if half == 1.0 else f"{_number(half)} * {text}"
    text = f"{_number(middle)} + {text}" if middle else text
    return f"{text}.reshape({shape})" if text.startswith("torch.") else f"({text}).reshape({shape})"


def fills(hypothesis: dict[str, Any], form: Form) -> list[str]:
    """Python texts of an input's values, the plausible first."""
    low, high = hypothesis["lo"], hypothesis["hi"]
    shape = form.shape
    assert shape is not None
    floor, ceiling = max(low, -1.0), min(high, 1.0)
    if floor >= ceiling:  # all of its range is elsewhere
        floor, ceiling = (low, min(high, low + 1)) if low > 0 else (max(low, high - 1), high)
    found = [wave(shape, floor, ceiling)]
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    for threshold in THRESHOLDS:
        value = _bounded(threshold, low, high)
        found.append(f"torch.full({shape}, {_number(value)}, dtype=torch.float64)")
        if threshold in (100.0, 1000.0, 20.0, 30000.0):
            edges = _bounded(-threshold, low, high), _bounded(threshold, low, high)
            if edges[0] < edges[1]:
                found.append(wave(shape, *edges))
        if square and threshold in (1.0, 1000.0):
            eye = f"torch.eye({shape[-1]}, dtype=torch.float64).expand({shape})"
            found.append(eye if threshold == 1.0 else f"{_number(value)} * {eye}")
    count = math.prod(shape)
    if count > 1:
        steps = f"torch.linspace({_number(max(low, -40.0))}, {_number(min(high, 40.0))}, {count}"
        found.insert(3, f"{steps}, dtype=torch.float64).reshape({shape})")
    return list(dict.fromkeys(found))


def texts(hypothesis: dict[str, Any], form: Form, size: int) -> list[str]:
    """Python texts of an input of any kind."""
    if form.kind == "tensor":
        return fills(hypothesis, form)
    count = math.prod(form.shape or ())
    steps = f"torch.arange({count}).reshape({form.shape})"
    kind, _, number = form.kind.partition(" ")
    if kind == "int":
        return list(dict.fromkeys([number or str(size), *map(str, LONG)]))
    if kind == "sizes":
        return [f"({number or size},)"]
    return {
        "index": [f"{steps} % 2", f"0 * {steps}", *(f"{steps} + {one}" for one in LONG)],
        "mask": [f"{steps} % 2 == 0"],
        "float": ["1.0", "0.5", "0.0", "100.0"],
        "small": ["1e-06"],
        "bool": ["True", "False"],
        "device": ["'cpu'"],
        "dtype": ["LOW"],
        "text": ["''"],
        "layer": [hypothesis["layer"] or "None"],
    }[kind]


# the search


@dataclass
class Job:
    """A slice to be searched: text, fixed texts, inputs, and sizes that the code mentions."""

    original: str
    fixed: Sequence[str]
    inputs: Sequence[dict[str, Any]]
    sizes: Sequence[int]
    claims: Sequence[str] = ()
    """Kinds of failures that prove the finding (`trial.claimed`); none: every kind."""


class Hunt:
    """The search for one slice."""

    def __init__(self, job: Job, deadline: float) -> None:
        self.job = job
        self.program = Program(job.original, "original")
        self.fixed = [Program(text, f"fixed_{i}") for i, text in enumerate(job.fixed)]
        self.deadline = deadline
        self.tries = 0
        self.uncured: Witness | None = None
        self.differs = False
        """Whether that raises, and fixed code runs, but gives other values than float32."""
        self.last_error = "no combination of shapes runs"
        self.always = False  # whether it raises in every precision, and a fixed text does not
        self.scales: Sequence[float] = ()
        self.shapes: list[tuple[int, tuple[Form, ...]]] = []
        self._more: Iterator[tuple[int, tuple[Form, ...]]] | None = None

    def run(self, condition: Condition, seconds: float, scales: Sequence[float]) -> Witness | None:
        """A witness under a condition, backward at these loss scales; raises `NothingRuns` or
        `Fault`."""
        self.scales = scales
        with trial.under(condition):
            if not list(self._shapes(condition)):
                raise NothingRuns(self.last_error)
            patience = Patience(seconds, self.deadline)
            for size, combination in self.shapes:
                if size in TRIES:  # many elements have a time of their own
                    patience = Patience(seconds, self.deadline)
                found = self._values(size, combination, condition, patience)
                if found is not None:
                    return found
        return None

    def first(self, condition: Condition) -> Witness | None:
        """What raises whatever the values: a dtype that does not fit, an order of calls."""
        with trial.under(condition):
            for size, combination in self._shapes(condition):
                pairs = zip(self.job.inputs, combination, strict=True)
                chosen = [texts(h, form, size)[0] for h, form in pairs]
                found = self._try(self._arguments(combination, chosen), condition)
                return found if found is not None and found.kind == "raises" else None
        return None

    def _arguments(
        self, combination: Sequence[Form], chosen: Sequence[str]
    ) -> tuple[Argument, ...]:
        return tuple(
            Argument(h["name"], text, h["wide"])
            for h, _, text in zip(self.job.inputs, combination, chosen, strict=True)
        )

    # shapes

    def _shapes(self, condition: Condition) -> Iterator[tuple[int, tuple[Form, ...]]]:
        """The same, searched once."""
        yield from self.shapes
        if self._more is None:
            self._more = self.combinations(condition)
        for one in self._more:
            self.shapes.append(one)
            yield one

    def combinations(self, condition: Condition) -> Iterator[tuple[int, tuple[Form, ...]]]:
        """Combinations that run in float32: the first of each size."""
        for size in SIZES:
            patience = Patience(SHAPE_SECONDS, self.deadline)
            for combination in self._combinations(size):
                if patience.over:
                    break
                if self._runs(size, combination, condition):
                    yield size, combination
                    break

    def _combinations(self, size: int) -> Iterator[tuple[Form, ...]]:
        """Kinds and ranks first, then dimensions that differ from the rest."""
        lists = [forms(one, size, self.job.sizes) for one in self.job.inputs]
        alike = [
            [f for f in each if f.shape is None or f.cost <= each[0].cost or _even(f.shape, size)]
            for each in lists
        ]
        both = [
            itertools.islice(cheapest(some, [[f.cost for f in each] for each in some]), SHAPES)
            for some in (alike, lists)
        ]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*both))
        seen: set[tuple[Form, ...]] = set()
        for one in turns:
            if one is not None and one not in seen:
                seen.add(one)
                yield one

    def _runs(self, size: int, combination: tuple[Form, ...], condition: Condition) -> bool:
        chosen = [
            texts(h, form, size)[0] for h, form in zip(self.job.inputs, combination, strict=True)
        ]
        arguments = self._arguments(combination, chosen)
        try:
            outcome = self.program.call(arguments, condition, "float32")
            if outcome.raised is not None and self._always(arguments, condition) is not None:
                self.always = True
                return True
        except Fault as fault:
            self.last_error = str(fault).partition(";")[0]
            return False
        if outcome.raised is not None:
            self.last_error = first_line(outcome.raised)
            return False
        if not any(t.dtype != torch.bool and t.numel() for t in outcome.outputs.values()):
            self.last_error = "it returns no numbers"
            return False
        return True

    # values

    def _values(
        self, size: int, combination: tuple[Form, ...], condition: Condition, patience: Patience
    ) -> Witness | None:
        lists = [texts(h, form, size) for h, form in zip(self.job.inputs, combination, strict=True)]
        seen: set[tuple[str, ...]] = set()
        for chosen in _candidates(lists):
            if chosen in seen:
                continue
            seen.add(chosen)
            if len(seen) > TRIES.get(size, MANY) or patience.over:
                break
            found = self._try(self._arguments(combination, chosen), condition)
            if found is not None:
                return self._plainer(found, lists, patience)
        starts = [[each[0] for each in lists], [each[len(each) // 2] for each in lists]]
        for start in starts if size not in TRIES else ():
            found = self._climb(self._arguments(combination, start), condition, patience)
            if found is not None:
                return found
        return self._widens(self._arguments(combination, [each[0] for each in lists]), condition)

    def _try(self, arguments: tuple[Argument, ...], condition: Condition) -> Witness | None:
        """A witness of these inputs, if the fixed text is right on them."""
        self.tries += 1
        seen = trial.full(self.program, arguments, condition, claims=self.job.claims)
        if seen is None:
            return self._always(arguments, condition) if self.always else None
        failure = trial.forward_failure(self.program, arguments, condition, seen)
        if failure is not None:
            kind, words = failure
            if not trial.claimed(kind, "forward", words, self.job.claims):
                return None
            witness = Witness(arguments, condition, "forward", kind, words)
            if kind != "raises":
                claims = self.job.claims
                full = trial.full(self.program, arguments, condition, True, claims)
                seen = full or seen
            return self._judge(witness, seen)
        if self.job.claims and not any(one.startswith("gradient") for one in self.job.claims):
            return None
        if seen.drew:
            return None
        seen = trial.full(self.program, arguments, condition, backward=True)
        if seen is None or not seen.backward:
            return None
        back = trial.backward_failure(self.program, arguments, condition, seen, self.scales)
        if back is None or not trial.claimed(back[0], "backward", back[1], self.job.claims):
            return None
        kind, words, scale = back
        return self._judge(Witness(arguments, condition, "backward", kind, words, scale), seen)

    def _always(self, arguments: tuple[Argument, ...], condition: Condition) -> Witness | None:
        """A witness that raises in every precision, where the fixed text runs."""
        raised = self.program.call(arguments, condition, "float32").raised
        words = f"raises {first_line(raised or '')}"
        if raised is None or not trial.claimed("raises", "forward", words, self.job.claims):
            return None
        for index, fixed in enumerate(self.fixed):
            seen = trial.full(fixed, arguments, condition)
            if seen is not None and self.program.call(arguments, condition).raised is not None:
                witness = Witness(arguments, condition, "forward", "raises", words)
                witness.after = trial.cure(fixed, witness, seen) or ""
                witness.cured_by = index if witness.after else None
                if witness.after:
                    return witness
        return None

    def _plainer(
        self, witness: Witness, lists: Sequence[Sequence[str]], patience: Patience
    ) -> Witness:
        """The same failure with the most plausible values for each input, one after the other."""
        for position, each in enumerate(lists):
            for text in each:
                given = list(witness.arguments)
                if text == given[position].text or patience.over:
                    break
                given[position] = Argument(given[position].name, text, given[position].wide)
                found = self._try(tuple(given), witness.condition)
                if found is not None and (found.phase, found.kind) == (witness.phase, witness.kind):
                    witness = found
                    break
        return witness

    def _judge(self, witness: Witness, seen: trial.Seen) -> Witness | None:
        witness.drew = seen.drew
        floors = [trial.allowed(one, seen.claims) for one in seen.reference.outputs.values()]
        witness.floor = min(floors, default=0.0) if witness.kind == "absolute" else 0.0
        if not self.fixed:
            return witness
        for index, fixed in enumerate(self.fixed):
            after = trial.cure(fixed, witness, seen)
            if after is not None:
                witness.after, witness.cured_by = after, index
                return witness
        if self.uncured is None:
            self.uncured = witness
            self.differs = witness.kind == "raises" and any(
                fixed.call(witness.arguments, witness.condition).raised is None
                for fixed in self.fixed
            )
        return None

    def _widens(self, arguments: tuple[Argument, ...], condition: Condition) -> Witness | None:
        """Half inputs whose result is wider: nothing is wrong yet, the next half layer raises."""
        if condition.inputs != "low" or condition.region or not self.fixed:
            return None
        if not trial.claimed("widened", "forward", "", self.job.claims):
            return None
        seen = trial.full(self.program, arguments, condition)
        wide = trial.widened(self.program, arguments, condition)
        if seen is None or wide is None:
            return None
        words = f"is {wide} for {condition.dtype} inputs"
        return self._judge(Witness(arguments, condition, "forward", "widened", words), seen)

    def _climb(
        self, start: tuple[Argument, ...], condition: Condition, patience: Patience
    ) -> Witness | None:
        """Follow the gradient of the result's size, up and down, in float32; replay each step."""
        for direction in (1.0, -1.0):
            arguments = start
            for _ in range(CLIMBS):
                if patience.over:
                    return None
                stepped = self._step(arguments, condition, direction)
                if stepped is None or stepped == arguments:
                    break
                arguments = stepped
                found = self._try(arguments, condition)
                if found is not None:
                    return found
        return None

    def _step(
        self, arguments: tuple[Argument, ...], condition: Condition, direction: float
    ) -> tuple[Argument, ...] | None:
        outcome = self.program.call(arguments, condition, "float32", backward=True)
        if outcome.raised is not None or not any(g is not None for g in outcome.gradients.values()):
            return None
        size = sum(float(t.double().abs().mean()) for t in outcome.outputs.values() if t.numel())
        total = sum(float(t.double().sum()) for t in outcome.outputs.values())
        sign = math.copysign(1.0, total) * direction if size else direction
        stepped = []
        for one, hypothesis in zip(arguments, self.job.inputs, strict=True):
            gradient = outcome.gradients.get(one.name)
            if gradient is None or gradient.numel() > 64 or not torch.isfinite(gradient).all():
                stepped.append(one)
                continue
            value = trial.build(one, condition, "float64").double()
            moved = value + sign * gradient.sign() * (value.abs() + 0.5)
            moved = moved.clamp(hypothesis["lo"], hypothesis["hi"]).flatten().tolist()
            values = ", ".join(_number(v) for v in moved)
            shape = tuple(gradient.shape)
            text = f"torch.tensor([{values}], dtype=torch.float64).reshape({shape})"
            stepped.append(Argument(one.name, text, one.wide))
        return tuple(stepped)


def _candidates(lists: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All inputs alike, then one apart from the rest, then combinations."""
    if not lists:
        yield ()
        return
    longest = max(map(len, lists))
    for place in range(longest):
        yield tuple(each[min(place, len(each) - 1)] for each in lists)
    for position, each in enumerate(lists):
        for text in each[1:]:
            yield tuple(text if i == position else other[0] for i, other in enumerate(lists))
    costs = [[float(i) for i in range(len(each))] for each in lists]
    yield from cheapest(lists, costs)
