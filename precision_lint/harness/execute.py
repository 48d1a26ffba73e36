"""Runs one text of a fixture module under one condition, and keeps what came out.

A text is executed as a fresh module from a fixed seed each time, so no run sees the state of
another.  `precision_lint.harness.judge` compares the outcomes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from precision_lint.harness.cases import Case, Input, Policy
from precision_lint.harness.policy import cuda_policy
from precision_lint.harness.redirect import redirected

MODULE = "precision_lint_fixture"
"""Name under which a fixture module is imported while it runs."""


Width = Literal["half", "float32", "float64"]


class Fault(Exception):
    """A case that cannot be executed as declared; the text says what to change."""


@dataclass(frozen=True)
class Run:
    """How a text is executed.

    ``width``: ``half`` is the condition under test; ``float32`` and ``float64`` are runs with
    autocast and GradScaler off, on inputs that were quantised to ``low``, the dtype under test.
    ``scale`` is the loss scale.
    """

    policy: Policy
    low: torch.dtype
    width: Width = "half"
    scale: float = 1.0
    device: str = "cpu"


@dataclass
class Outcome:
    """What a run returned.

    ``gradients`` are divided by the loss scale, in float64; None where there is none.
    ``half_gradients`` names those that were computed in half.  ``scale_too_large``: the gradient
    that enters a half output is itself infinite at this loss scale.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    half_gradients: set[str] = field(default_factory=set)
    scale_too_large: bool = False
    drew: bool = False
    """It drew random numbers, other ones in every dtype."""
    raised: str | None = None
    raised_in: Literal["forward", "backward"] = "forward"


def execute(case: Case, text: str, path: Path, run: Run) -> Outcome:
    """Execute ``text`` (of the module at ``path``) as ``case`` says.

    Raises `Fault` where the case does not fit its fixture; what the fixture's own code raises is
    part of the outcome.
    """
    amp = run.width == "half"
    with contextlib.ExitStack() as stack:
        if run.device == "cpu" and run.policy != "cpu":
            stack.enter_context(cuda_policy())
        seen = stack.enter_context(
            redirected(run.low, device=run.device, loss_scale=run.scale, amp=amp)
        )
        if run.device != "cpu":  # what a proof builds must be where its inputs are
            stack.enter_context(torch.device(run.device))
        torch.manual_seed(0)
        module = stack.enter_context(_imported(text, path))
        call, owner = _resolve(case, module)
        if owner is not None and case.regime != "training":
            _cast_module(owner, case, run)
        args, kwargs, leaves = _build_inputs(case, run)
        if owner is not None:
            leaves |= {f"parameter {name}": p for name, p in owner.named_parameters()}
        torch.manual_seed(0)
        region: Any = contextlib.nullcontext()
        if amp and case.regime == "autocast":
            region = torch.autocast(run.device, dtype=run.low)
        outcome = Outcome()
        try:
            with region:
                value = call(*args, **kwargs)
            outcome.outputs = dict(flatten(value, "output"))
            if case.backward and case.regime != "training":
                outcome.raised_in = "backward"
                backpropagate(outcome, leaves, run)
        except Fault:
            raise
        except Exception as error:
            outcome.raised = f"{type(error).__name__}: {error}"
    foreign = seen.regions - {run.low}
    if amp and foreign:
        raise Fault(
            f"an autocast region of {case.module} runs in {_names(foreign)} under {run.low}; "
            "skip that dtype, or leave it to the default"
        )
    outcome.outputs = {name: tensor.detach() for name, tensor in outcome.outputs.items()}
    return outcome


def _names(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype) for dtype in dtypes))


@contextlib.contextmanager
def _imported(text: str, path: Path) -> Iterator[ModuleType]:
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module  # dataclasses and pickle look the module up
    sys.path.insert(0, str(path.parent))
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
        yield module
    finally:
        sys.path.remove(str(path.parent))
        del sys.modules[MODULE]


def _resolve(case: Case, module: ModuleType) -> tuple[Callable[..., Any], torch.nn.Module | None]:
    """What is called, and the ``nn.Module`` that it belongs to."""
    if isinstance(case.entry, str):
        if not hasattr(module, case.entry):
            raise Fault(f"{case.module} has no {case.entry}")
        target: Any = getattr(module, case.entry)
    else:
        target = case.entry(module)
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        target = target()
    if not callable(target):
        raise Fault(f"entry of {case.title} is {type(target).__name__}, which cannot be called")
    owner = target if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    return target, owner if isinstance(owner, torch.nn.Module) else None


def _cast_module(module: torch.nn.Module, case: Case, run: Run) -> None:
    to = functools.partial(torch.nn.Module.to, module)  # a fixture may define methods of that name
    to(run.device)
    if case.regime == "eager":
        to(run.low)
    if run.width != "half":
        to(getattr(torch, run.width))


def _build_inputs(
    case: Case, run: Run
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, torch.Tensor]]:
    """Positional and keyword inputs, and those that get gradients, by name."""
    leaves: dict[str, torch.Tensor] = {}
    differentiate = case.backward and case.regime != "training"

    def build(value: Any, name: str) -> Any:
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(build(item, f"{name}[{i}]") for i, item in enumerate(value))
        if isinstance(value, dict):
            return {key: build(item, f"{name}[{key!r}]") for key, item in value.items()}
        given = value if isinstance(value, Input) else None
        if given is None and not isinstance(value, torch.Tensor):
            return value
        given = given or Input(value)
        tensor = given.value.detach().clone().to(run.device)
        if not tensor.is_floating_point():
            return tensor
        low = given.dtype == "low" or (given.dtype == "regime" and case.regime == "eager")
        tensor = tensor.to(run.low if low else torch.float32)
        if run.width != "half":
            tensor = tensor.to(getattr(torch, run.width))
        if differentiate and given.gradient:
            leaves[name] = tensor.requires_grad_()
        return tensor

    inputs = case.inputs()
    if isinstance(inputs, dict):
        return (), {name: build(value, f"input {name}") for name, value in inputs.items()}, leaves
    if not isinstance(inputs, tuple):
        raise Fault(f"inputs of {case.title} is no tuple or dict; write a trailing comma")
    return tuple(build(value, f"input {i}") for i, value in enumerate(inputs)), {}, leaves


def flatten(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (bool, int, float)):
        yield name, torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from flatten(item, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}[{key!r}]")
    elif type(value).__module__ == "numpy":  # an array, or a number of its own
        yield name, torch.as_tensor(value)
    elif value is not None:
        raise Fault(f"the entry returns a {type(value).__name__}; return tensors or numbers")


def backpropagate(outcome: Outcome, leaves: dict[str, torch.Tensor], run: Run) -> None:
    """Gradients of a weighted mean of every output, times the loss scale.

    The weights differ, so that outputs which always sum to one (a softmax) have gradients too.
    """
    terms = []
    for output in outcome.outputs.values():
        if not output.requires_grad or not output.numel():
            continue
        steps = torch.arange(output.numel(), dtype=torch.float64, device=output.device)
        weight = (1 + 0.5 * torch.cos(steps)).reshape(output.shape) / output.numel()
        if output.is_complex():
            raise Fault("an output is complex; return its real and imaginary parts")
        wide = torch.float64 if run.width == "float64" else torch.float32
        terms.append((output.to(wide) * weight.to(wide)).sum())
        entering = (weight.abs().max() * run.scale).to(output.dtype)
        outcome.scale_too_large |= not bool(torch.isfinite(entering))
    if terms:
        (torch.stack(terms).sum() * run.scale).backward()  # type: ignore[no-untyped-call]
    for name, leaf in leaves.items():
        gradient = leaf.grad
        outcome.gradients[name] = None if gradient is None else gradient.double() / run.scale
        if leaf.dtype == run.low:
            outcome.half_gradients.add(name)
