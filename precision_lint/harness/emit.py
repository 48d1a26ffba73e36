"""A proven finding as a pytest file that stands by itself.

It needs torch alone; where CUDA's autocast is to be emulated on a CPU, precision-lint as well.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from precision_lint.display import printable
from precision_lint.harness import told
from precision_lint.harness.witnesses import Verdict

_HEAD = '''\
"""{code} {name} at {place}, proven by `precision-lint verify`.

{message}
{words}: {before}.

The code below is a copy of what is flagged there: it shows that this code breaks, and does not
notice when the file changes.  To keep the bug from coming back, lint the file.
"""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

LOW = torch.{dtype}
SCALE = {scale!r}  # loss scale
LIMIT = {limit!r}  # {errors} error
DIVIDED = {divided}  # by the largest value


def original():
{original}
    return isolated


'''
_FIXED = """\
def fixed():
{fixed}
    return isolated


"""
_INPUTS = """\
def inputs():
{inputs}
    return dict({names})


"""
_PLAIN = """\
@contextlib.contextmanager
def conditions(wide):
    yield


"""
_EMULATED = """\
@contextlib.contextmanager
def conditions(wide):
    \"\"\"{words}; with `wide` no autocast.\"\"\"
    policy = pytest.importorskip("precision_lint.harness.policy")
    redirect = pytest.importorskip("precision_lint.harness.redirect")
    with contextlib.ExitStack() as stack:
{policy}        stack.enter_context(redirect.redirected(LOW, amp={amp}))
{region}        yield


"""
_WIDE = """\
class Wide(TorchFunctionMode):
    \"\"\"Where the code names a half dtype, it gets float32.\"\"\"

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("half", "bfloat16"):
            return args[0].float()
        given = {key: self.wider(value) for key, value in (kwargs or {}).items()}
        return func(*map(self.wider, args), **given)

    @staticmethod
    def wider(value):
        half = isinstance(value, torch.dtype) and value in (torch.float16, torch.bfloat16)
        return torch.float32 if half else value


"""
_RUN = """\
def tensors(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [one for each in value for one in tensors(each)]
    return [] if value is None else [torch.as_tensor(value)]


def run(function, wide=False):
    \"\"\"Outputs and gradients; `wide` in float32 without autocast.\"\"\"
    torch.manual_seed(0)
    given = inputs()
    leaves = {}
    for name, value in given.items():
        if isinstance(value, (torch.Tensor, nn.Module)) and wide:
            floating = isinstance(value, nn.Module) or value.is_floating_point()
            given[name] = value.float() if floating else value
        if BACKWARD and isinstance(value, torch.Tensor) and value.is_floating_point():
            leaves[name] = given[name].requires_grad_()
    with conditions(wide), Wide() if wide else contextlib.nullcontext():
        outputs = tensors(function(**given))
        graded = [one for one in outputs if one.requires_grad and one.is_floating_point()]
        if graded and BACKWARD:
            total = 0.0
            for one in graded:
                steps = torch.arange(one.numel(), dtype=torch.float32).reshape(one.shape)
                total = total + (one.float() * (1 + 0.5 * steps.cos()) / one.numel()).sum()
            (total * SCALE).backward()
    gradients = [leaf.grad.double() / SCALE for leaf in leaves.values() if leaf.grad is not None]
    return [one.detach() for one in outputs], gradients


def finite(tensors):
    return all(bool(torch.isfinite(one).all()) for one in tensors)


def error(found, true):
    worst = 0.0
    for one, exact in zip(found, true):
        size = exact.double().abs().max().item() if DIVIDED else 1.0
        worst = max(worst, (one.double() - exact.double()).abs().max().item() / (size or 1.0))
    return worst if math.isfinite(worst) else math.inf


"""


def write(verdicts: Iterable[Verdict], directory: Path) -> list[Path]:
    """One file for each proven finding, with a copy of its code; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for one in verdicts:
        if one.outcome == "proven":
            path = directory / filename(one)
            path.write_text(text(one), encoding="utf-8")
            written.append(path)
    return written


def filename(one: Verdict) -> str:
    """``test_models_loss_12_5_mp301.py``: the place and the code."""
    start = one.finding.start
    stem = re.sub(r"\W+", "_", Path(one.finding.filename).with_suffix("").as_posix()).strip("_")
    return f"test_{stem}_{start.row}_{start.column}_{one.finding.code.lower()}.py"


def text(one: Verdict) -> str:
    """The file of a proven finding."""
    answer, condition = one.answer, one.answer["condition"]
    fixed, floor = one.fixed, answer["floor"]
    parts = [
        _HEAD.format(
            code=one.finding.code,
            name=one.finding.name,
            place=_quotable(one.place),
            message=_quotable(one.finding.message),
            words=answer["words"],
            before=_quotable(answer["before"]),
            dtype=condition["dtype"],
            scale=answer["scale"],
            limit=floor or (0.02 if condition["dtype"] == "float16" else 0.16),
            errors="absolute" if floor else "relative",
            divided=not floor,
            original=textwrap.indent(one.variant.original.strip(), "    "),
        )
    ]
    if fixed is not None:
        parts.append(_FIXED.format(fixed=textwrap.indent(fixed.strip(), "    ")))
    names = ", ".join(f"{i['name']}={i['name']}" for i in answer["inputs"])
    lines = textwrap.indent(told.inputs(one) or "pass", "    ")
    parts.append(_INPUTS.format(inputs=lines, names=names))
    regional = condition["region"] or "autocast" in one.variant.original + (fixed or "")
    if regional or "cuda" in one.variant.original:
        parts.append(_conditions(one))
    else:
        parts.append(_PLAIN)
    parts.append(f"BACKWARD = {answer['phase'] == 'backward'}\n\n\n")
    parts.append(_WIDE)
    parts.append(_RUN)
    parts.append(_tests(one))
    return "".join(parts)


def _quotable(text: str) -> str:
    """A line that a docstring can hold."""
    return printable(text).replace('"', "'").replace("\\", "/")


def _conditions(one: Verdict) -> str:
    condition = one.answer["condition"]
    policy = "        stack.enter_context(policy.cuda_policy())\n"
    region = (
        '        if not wide:\n            stack.enter_context(torch.autocast("cpu", dtype=LOW))\n'
    )
    return _EMULATED.format(
        words=one.answer["words"],
        policy=policy if condition["policy"] == "cuda" else "",
        amp="not wide" if condition["amp"] else "False",
        region=region if condition["region"] and condition["amp"] else "",
    )


def _tests(one: Verdict) -> str:
    kind, place = one.answer["kind"], int(one.answer["phase"] == "backward")
    what = "gradients" if place else "outputs"
    full = "fixed" if one.fixed is not None else "original"
    hazard = {
        "raises": "    with pytest.raises((RuntimeError, TypeError, NotImplementedError)):\n"
        "        run(original())\n",
        **dict.fromkeys(
            ("error", "absolute"),
            f"    true = run({full}(), wide=True)[{place}]\n"
            f"    assert error(run(original())[{place}], true) > LIMIT\n",
        ),
        "widened": "    outputs, _ = run(original())\n"
        "    assert any(one.dtype.itemsize > 2 for one in outputs)\n",
    }.get(kind, f"    assert not finite(run(original())[{place}])\n")
    tests = f"def test_the_hazard_shows():\n{hazard}"
    if one.fixed is None:
        return tests
    times = "" if one.answer["floor"] else "4 * "
    compared = f"    assert error({what}, run(fixed(), wide=True)[{place}]) <= {times}LIMIT\n"
    if one.answer["drew"]:  # other numbers in every dtype
        compared = ""
    cured = {
        "widened": "    outputs, _ = run(fixed())\n"
        "    assert all(one.dtype.itemsize == 2 for one in outputs)\n",
    }.get(
        kind,
        f"    {what} = run(fixed())[{place}]\n    assert finite({what})\n" + compared,
    )
    return f"{tests}\n\ndef test_the_fix_cures_it():\n{cured}"
