"""How sure a finding is: the one place that turns assumptions and modes into a confidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from precision_lint.api import Confidence
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import AMP16, AMPBF, CODE, HALF16, HALFBF, MODES
from precision_lint.events import Event, Sign, Variant
from precision_lint.precision.modes import Force, Strength, outermost
from precision_lint.syntax.imports import is_test

USUAL = (
    assume.INPUT | assume.ENTRY | assume.NETWORK | assume.FLAG | assume.DEFAULT | assume.WEIGHTS
    | assume.BRANCH | assume.LIBRARY | assume.BATCH | assume.AGAIN | assume.ELSEWHERE | assume.KEPT
)  # fmt: skip
"""Assumptions that are mostly right where the mode is in force."""
BY_MODE = (
    assume.INPUT | assume.ENTRY | assume.WEIGHTS | assume.BATCH,
    0,
    0,
    assume.ENTRY | assume.OUTSIDE,
    assume.ENTRY | assume.OUTSIDE,
)
"""By mode: assumptions that do not matter in it.  As written (``code``), the dtype of an argument is not
assumed; in half modes there is no autocast."""
TOLERATED: dict[str, int] = {
    "square-overflow": assume.MAGNITUDE | assume.OUTSIDE,
    "exponential-overflow": assume.MAGNITUDE | assume.OUTSIDE,
    "norm-by-hand": assume.MAGNITUDE | assume.OUTSIDE,
    "late-cast": assume.MAGNITUDE | assume.OUTSIDE,
    "narrowing-cast": assume.MAGNITUDE,
    "box-area": assume.MAGNITUDE,
    "slow-average": assume.MAGNITUDE,
    "sum-overflow": assume.MAGNITUDE | assume.SIZE | assume.OUTSIDE,
    "half-softmax": assume.OUTSIDE,
    "half-schedule": assume.OUTSIDE,
    "large-contraction": assume.MAGNITUDE | assume.SIZE,
    "late-scale": assume.MAGNITUDE,
    "zero-vector": assume.OUTSIDE,
}
"""By kind of event: further assumptions that measured precision allows."""
DOUBTED: dict[str, int] = {
    "bfloat16-to-numpy": assume.INPUT,
    "square-overflow": assume.INPUT,
    "half-softmax": assume.INPUT,
    "half-total": (
        assume.INPUT | assume.ENTRY | assume.NETWORK | assume.WEIGHTS | assume.ELSEWHERE
    ),
    "left-half": assume.INPUT,
    "cached-cast": assume.FLAG | assume.BRANCH,
    "half-parameters-scaled": assume.BRANCH,
}
"""By kind of event: usual assumptions that it must not rest on.  Of 41 totals that rested on any of these none
was right: the terms were few, or float32."""
WRITTEN: dict[str, int] = {
    "half-loss": assume.MAGNITUDE,
    "geometry-product": assume.NAME,
    "zero-vector": assume.ZERO,
    "coarse-noise": assume.BRANCH,
}
"""By kind of event: what is believed where the code itself makes the operands half, or opens the region."""
DATA = frozenset({
    "norm-by-hand", "slow-average", "missing-decomposition", "half-total", "half-scaled-loss",
})  # fmt: skip
"""Events of operands that no layer makes so large, or gives: arguments of the kind are data, weights or losses,
float32 under autocast (of 17 losses and terms of arguments that were read none was half)."""
STATED: dict[str, int] = {
    "bfloat16-to-numpy": assume.INPUT | assume.KIND | assume.CALL,
    "half-softmax": assume.INPUT | assume.KIND,
    "fill-overflow": assume.KIND | assume.CALL,
    "late-scale": assume.CALL,
    **dict.fromkeys(
        ("missing-kernel", "missing-decomposition", "log-guard", "log-probability", "log-complement",
         "log-odds", "log-noise", "late-cast-log", "weak-norm", "weak-root", "rotary-angle",
         "wide-buffer"),
        assume.KIND,
    ),
}  # fmt: skip
"""By kind of event: what it may rest on besides where the user states the mode: the operation is one
of numbers, so that its operand is of the mode's dtype, as is what a call of elsewhere gives back."""


SHOWN = assume.MAGNITUDE | assume.SIZE
"""What is believed only where the file itself says that it runs so, and, where it shows late, of a module that
no file imports where the project runs so, since it is handed to what runs; in half weights also where the
user says so."""
HANDED = frozenset({"log-guard", "log-complement", "log-probability", "flat-index"})
"""Events that may rest, under autocast, on an argument that is half, also where no region is in the file.  Read
in code that nobody had tuned to, such alarms were right in 5 of 70 cases for other kinds; guards of
denominators and limits in none of 12, fills in 2 of 26, integers in none of 6, writes in 3 of 30."""
ENTERED = frozenset({"geometry-product", "upcast-in-vain", "left-half", "distance-in-region"})
"""Events of code that a region has to be seen to call, or a model's, even where the user states the mode: most
products of inverses and constant matrices prepare something, or fit something else, products that are
upcast in plain functions quantise weights or work on what a model gave, kernels that leave a region
are given what they ask for (none of 26 was right), and few of their distances are reached outside of
one (1 of 8)."""
TAKEN = frozenset({
    "half-total", "geometry-product", "weak-denominator", "dtype-mismatch", "wide-input",
    "bfloat16-to-numpy", "fill-overflow",
})  # fmt: skip
"""Events that must not rest, under autocast, on that what is called is a model: totals of times and counts,
products of coefficients, spreads of rewards, and writes of what normalisation gives are as frequent.  Of 21
such writes and reads that were read one was right."""
SEEN = frozenset({"bfloat16-to-numpy"})
"""Events that rest on that what is called is a model only where its cast or the region is in sight, or the
user states the mode: of 33 others that were read 7 were right."""
TWICE = assume.BRANCH | assume.ELSEWHERE
"""Where the code is half on one of several ways only, and the user states no mode, large values are not
believed as well: of 8 such alarms that were read none was right."""
LATE = frozenset({"large-contraction"})
"""Events for which several guesses are not too many: what comes of them shows late, or somewhere else.  Of 12
products of geometry and 8 distances that rested on where their function is called, 1 was right."""
RARE = frozenset({
    "weak-denominator", "half-total", "integers-in-half", "left-half", "late-scale", "cached-cast",
    "slow-average", "square-overflow", "large-contraction",
})  # fmt: skip
"""Events that were right in at most one of six causes that were read, where no mode was stated, as operands of
two dtypes were where nothing is written.  Each is believed if it rests on nothing, or a region around it is in
sight; under autocast also if the file shows the mode."""
ENTRIES = frozenset({
    "forward", "backward", "__call__", "training_step", "validation_step", "test_step", "predict_step",
    "compute_loss",
})  # fmt: skip
"""Methods that torch calls, or what trains or evaluates, in its region; of other methods of modules that
nothing was seen to call, 1 of 10 alarms was right."""
RAISING = frozenset({"banned-operation"})
"""Events of such methods that are believed all the same: 3 of 5 were right."""
FILLED = frozenset({"fill-overflow"})
"""Events that may rest, under autocast, on what may be a tensor and may be half: such numbers fill scores,
as a rule."""
CALLED_WRONGLY = frozenset({"deprecated-amp", "amp-arguments"})
"""Events that are as wrong in a test.  Of 31 others in tests that were read where nothing was stated, and of 35
under autocast that was stated, none was right."""
SAID = {
    "upcast-in-vain": (Strength.PARTS, Strength.FILE),
    "left-half": (Strength.PARTS, Strength.FILE),
    "distance-in-region": (Strength.FILE,),
}
"""Events of code that is written for a region around it, since it leaves the region or casts up in vain, and
what of the file shows that there is one."""


@dataclass(frozen=True)
class Callers:
    """Functions whose callers are known, by the interpretation of a file that saw them called."""

    seen: tuple[frozenset[tuple[str, str]], ...] = ()
    _over: dict[tuple[str, str], frozenset[tuple[str, str]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def all(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*self.seen)

    def over(self, event: Event) -> frozenset[tuple[str, str]]:
        """Those of which what was assumed does not count for an event.

        Who calls a function and does not come to the event's own, as far as could be followed, says
        nothing of it.
        """
        if not self.seen:
            return frozenset()
        function = (event.place.path, event.function)
        known = self._over.get(function)
        if known is None:
            came = [one for one in self.seen if function in one] or self.seen
            known = self._over[function] = frozenset().union(*came)
        return known


NOBODY = Callers()


@dataclass(frozen=True)
class Verdict:
    """What an event comes to: the variant that counts, and what shows its mode.

    mode: index into ``domains.dtypes.MODES``.  modes: mask over them, of those that give as much.
    assumptions: those that it rests on in the mode.  strange: those of them that are often wrong.
    """

    confidence: Confidence
    variant: Variant
    mode: int
    sign: Sign | None
    modes: int = 0
    assumptions: int = 0
    strange: int = 0

    @property
    def assumed(self) -> tuple[str, ...]:
        """What it assumes, the least sure first."""
        usual = self.assumptions & ~self.strange
        return (*assume.names(self.strange), *assume.names(usual))


def counting(event: Event, superseded: Callers) -> Iterator[Variant]:
    """The variants that count: not what was assumed of functions whose callers are known."""
    known = superseded.over(event)
    for variant in event.variants:
        if variant.script or not known.issuperset((variant.root, *variant.also)):
            yield variant


def judge(event: Event, force: Force, superseded: Callers) -> Verdict | None:
    """How sure an event is; None: nothing of it is left.

    superseded: functions whose callers are known, so that what was assumed of them does not count.
    """
    best: Verdict | None = None
    for variant in counting(event, superseded):
        found = _of_variant(event, variant, force)
        if found is not None and (best is None or _order(found) > _order(best)):
            best = found
    return best


def with_modes(event: Event, verdict: Verdict, force: Force, superseded: Callers) -> Verdict:
    """The verdict with all modes in which the event is as sure; ``code`` alone where it is one."""
    modes = 1 << verdict.mode
    for mode in range(len(MODES)) if verdict.mode != CODE else ():
        if not modes & 1 << mode and event.modes & 1 << mode:
            ways = [replace(v, modes=1 << mode) for v in event.variants if v.modes & 1 << mode]
            found = judge(replace(event, variants=ways), force, superseded)
            if found is not None and found.confidence is verdict.confidence:
                modes |= 1 << mode
    return replace(verdict, modes=modes)


def _order(verdict: Verdict) -> tuple[int, int, int]:
    return (
        verdict.confidence.rank,
        verdict.mode == CODE,
        -bin(verdict.variant.assumptions).count("1"),
    )


def _of_variant(event: Event, variant: Variant, force: Force) -> Verdict | None:
    tolerated = (USUAL | TOLERATED.get(event.kind, 0)) & ~DOUBTED.get(event.kind, 0)
    if force.stated:
        tolerated |= STATED.get(event.kind, 0)
    best: Verdict | None = None
    for mode in range(len(MODES)):
        if not variant.modes >> mode & 1:
            continue
        assumptions = variant.assumptions & ~BY_MODE[mode]
        strange = assumptions & ~tolerated
        strange |= assumptions & _doubted(event, mode, variant, assumptions, force)
        if mode == CODE:
            strange &= ~WRITTEN.get(event.kind, 0)
        confidence, sign = _in_mode(event, mode, variant, assumptions, strange, force)
        if confidence is not None:
            found = Verdict(confidence, variant, mode, sign, 0, assumptions, strange)
            if best is None or _order(found) > _order(best):
                best = found
    return best


def _is_rare(event: Event, mode: int, variant: Variant, assumptions: int, force: Force) -> bool:
    """Whether such alarms were wrong as a rule where the user stated no mode.

    What is seen to be called in a region is not one of them, but for large values on one of several ways, and
    for operands of two dtypes: as written on any guess, under autocast where one is what may be a model's.
    """
    if force.stated:
        return False
    large, plain = bool(assumptions & SHOWN), _is_plain_mismatch(event)
    seen = variant.regions and mode not in (HALF16, HALFBF)
    if seen and not plain and event.kind != "left-half":  # which is in one that is off
        return large and bool(assumptions & TWICE)
    rare = event.kind in RARE or plain
    if mode == CODE:
        guesses = assumptions & ~(assume.OUTSIDE | assume.DEFAULT | assume.KEPT)
        return bool(guesses) and (rare or bool(guesses & (guesses - 1)))
    shown, sign = force.modes[mode]
    cast = _is_cast(variant, mode, force)
    if mode not in (AMP16, AMPBF) and (sign is None or sign.bound or sign.flag) and not cast:
        return True
    if event.kind in LATE:
        return False
    if cast or shown in (Strength.FILE, Strength.PARTS):
        by_model = assumptions & assume.NETWORK and not event.facts.get("float64")
        return large or (plain and bool(by_model))
    return large or rare or not _is_entered(event, variant)


def _is_cast(variant: Variant, mode: int, force: Force) -> bool:
    """Whether a hazard begins in a method of a class that the code builds and casts so."""
    ways = (variant.root, *variant.also)
    return any((mode, (path, name.rpartition(".")[0])) in force.made for path, name in ways)


def _is_tried(event: Event) -> bool:
    """Whether a test does it, which tries what it asserts: a test that broke would not pass."""
    return _is_test(event.place.path, event.function) and event.kind not in CALLED_WRONGLY


def _is_test(path: str, function: str) -> bool:
    """Whether a function is a test: ``test(model, loader)`` evaluates a model, also in a file that is called
    as tests are."""
    parts = function.split(".")
    test = parts[-1] not in ENTRIES and any(one.startswith(("test_", "Test")) for one in parts)
    return test and is_test(path)


def _is_plain_mismatch(event: Event) -> bool:
    """Whether operands of two dtypes meet where nothing is written, and not in a hand-written ``backward``."""
    if event.kind != "dtype-mismatch":
        return event.kind == "wide-input"
    return not event.facts["writes"] and event.facts["backward"] is None


def _is_entered(event: Event, variant: Variant) -> bool:
    """Whether what trains or evaluates calls the method where a hazard begins, by convention."""
    ways = (variant.root, *variant.also)
    conventional = any(one[1].rpartition(".")[2] in ENTRIES for one in ways)
    return conventional or bool(event.facts.get("framework")) or event.kind in RAISING


def _doubted(event: Event, mode: int, variant: Variant, assumptions: int, force: Force) -> int:
    """Usual assumptions that are often wrong in a mode."""
    if mode == CODE:
        return 0 if force.stated else assume.BRANCH
    in_force = force.of(mode) is not None and not force.stated
    unseen = assume.NETWORK if event.kind in SEEN and in_force else 0
    enough = Strength.HANDED if variant.of_module else Strength.FILE
    if mode in (AMP16, AMPBF):
        run = force.by_code(mode) >= enough
        doubted = _doubted_in_region(event, variant, assumptions, run)
        alone = not (run or force.stated or assumptions & assume.WEIGHTS)
        return unseen | doubted | (assume.NETWORK if alone else 0)
    # who casts the model may still switch the region on
    return unseen | assume.FLAG | (SHOWN if (force.of(mode) or Strength.PROJECT) < enough else 0)


def _doubted_in_region(event: Event, variant: Variant, assumptions: int, run: bool) -> int:
    """What is often wrong under autocast; run: the code shows that it runs there.

    Elsewhere activations are rarely as large as they would have to be, and what a function is handed is
    data, or was computed in float32, more often than it is half.
    """
    doubted = 0 if run else SHOWN | (assume.NETWORK if _may_be_data(event) else 0)
    if event.kind in DATA or not (run or _handed(event, variant)) or _is_uncalled(variant):
        doubted |= assume.INPUT
    if assumptions & assume.INPUT and event.kind not in FILLED:
        doubted |= assume.KIND
    return doubted


def _is_uncalled(variant: Variant) -> bool:
    """Whether nothing calls the function where a hazard begins, which says itself that no other file does."""
    name = variant.root[1].rpartition(".")[2]
    return name.startswith("_") and not name.endswith("__") and not variant.also


def _may_be_data(event: Event) -> bool:
    """Whether what something gives is data, or float32 behind a softmax, as often as a model's half."""
    if event.kind == "log-guard":
        return not event.facts["of_probability"]
    return event.kind in TAKEN


def _handed(event: Event, variant: Variant) -> bool:
    """Whether an event may rest on an argument that is half: the guard of a probability, or what a module
    writes into a buffer of its own, as a memory of embeddings."""
    facts = event.facts
    if event.kind == "dtype-mismatch":
        return variant.of_module and bool(facts["writes"] and facts["into_buffer"])
    return event.kind in HANDED and (event.kind != "log-guard" or facts["of_probability"])


def _in_mode(
    event: Event, mode: int, variant: Variant, assumptions: int, strange: int, force: Force
) -> tuple[Confidence | None, Sign | None]:
    if mode == CODE:
        tried = _is_tried(event)
        if not (assumptions or tried):
            return Confidence.CERTAIN, None
        rare = tried or _is_rare(event, mode, variant, assumptions, force)
        return (Confidence.POSSIBLE if strange or rare else Confidence.LIKELY), None
    strength = force.of(mode)
    sign = force.modes[mode][1] if strength is not None else None
    runs = strength is not None and (
        _is_cast(variant, mode, force) or _runs_it(event, mode, strength, variant, force)
    )
    if runs:
        # what a test runs says nothing of how the project is run: on which device, with what
        tried = _is_test(*variant.root) and not variant.regions
        rare = tried or _is_rare(event, mode, variant, assumptions, force)
        return (Confidence.POSSIBLE if strange or rare else Confidence.LIKELY), sign
    unstated = force.stated and strength is None
    return (None if strange or unstated else Confidence.POSSIBLE), sign


def _runs_it(event: Event, mode: int, strength: Strength, variant: Variant, force: Force) -> bool:
    """Whether a mode that is in force for a file is that of a hazard in it.

    A region of autocast runs models and what they call: a function that no region was seen to call, and
    that is no model's, runs outside of it unless its code says so.
    """
    sign = force.modes[mode][1]
    says_so = force.by_code(mode) in SAID.get(event.kind, ()) and not _stays_out(event, sign)
    stated = strength is Strength.STATED and event.kind not in ENTERED
    if mode in (AMP16, AMPBF) and not stated and not says_so:
        outside = 0 if variant.regions else assume.INPUT
        if variant.assumptions & (assume.ENTRY | outside) and not variant.of_module:
            return False
    return says_so or strength > Strength.IMPORTER or _reached(event, strength, variant, sign)


def _stays_out(event: Event, sign: Sign | None) -> bool:
    """Whether what shows a mode is a region in the class or function of a hazard, which is left out of it.

    Code that leaves a region is written for one around it, wherever that is opened.
    """
    if sign is None or sign.setting is not None or event.kind == "left-half":
        return False
    here = outermost((event.place.path, event.function))
    return outermost((sign.place.path, sign.around)) == here


def _reached(event: Event, strength: Strength, variant: Variant, sign: Sign | None) -> bool:
    """Whether what a file runs in a mode comes to a hazard in another file that it imports.

    It runs models, and calls what it calls; a framework calls its hooks.  A module's region around parts
    of itself runs these.
    """
    if strength is Strength.PARTS:
        return sign is not None and sign.place in variant.regions
    if strength < Strength.CALLER or sign is None:
        return False
    by_call = variant.root[0] == sign.place.path
    runs = variant.of_module or bool(event.facts.get("framework"))
    return by_call or (runs and strength is Strength.IMPORTER)
