"""A proven finding as a pytest file.

It holds a copy of the code, which shows the failure and the cure, and calls the code itself where
that can be imported.  It needs torch; where CUDA's autocast is to be emulated on a CPU,
precision-lint as well.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from precision_lint.display import printable
from precision_lint.harness import told
from precision_lint.harness.imported import Imported, reached
from precision_lint.harness.witnesses import Verdict

_HEAD = '''\
"""{code} {name} at {place}, proven by `precision-lint verify`.

{message}
{words}: {before}.

{about}
"""

# precision-lint: ignore-file  the hazard in here is meant

import contextlib
import math
{modules}
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
_ITSELF = (
    "`test_the_code_itself` calls {name} in the file: it fails until that is mended, and when the\n"
    "bug comes back.  The other tests run copies, which show the failure and what cures it."
)
_COPY = """\
The code below is a copy of what is flagged there, and does not notice when the file changes, since
the file's own cannot be called: {reason}.
To keep the bug from coming back, lint the file."""
_IMPORTED = """\
sys.path.insert(0, str(Path(__file__).resolve().parent / {root!r}))
{statement}


def imported({names}**others):
    return {call}


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
    """One file for each proven finding; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    proven = [one for one in verdicts if one.outcome == "proven"]
    written = []
    for one, how in zip(proven, reached(proven), strict=True):
        path = directory / filename(one)
        path.write_text(text(one, how, directory), encoding="utf-8")
        written.append(path)
    return written


def filename(one: Verdict) -> str:
    """``test_models_loss_12_5_mp301.py``: the place and the code."""
    start = one.finding.start
    stem = re.sub(r"\W+", "_", Path(one.finding.filename).with_suffix("").as_posix()).strip("_")
    return f"test_{stem}_{start.row}_{start.column}_{one.finding.code.lower()}.py"


def text(one: Verdict, how: Imported | str, directory: Path) -> str:
    """The file of a proven finding; ``how`` its code is called, or why it cannot be."""
    answer, condition = one.answer, one.answer["condition"]
    fixed, floor = one.fixed, answer["floor"]
    parts = [
        _HEAD.format(
            code=one.finding.code,
            name=one.finding.name,
            place=_quotable(one.place),
            message=_quotable(one.finding.message),
            about=_about(how),
            modules="" if isinstance(how, str) else "import sys\nfrom pathlib import Path\n",
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
    if not isinstance(how, str):
        parts.append(_itself(how, directory))
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
    if not isinstance(how, str):
        parts.append(f"\n\ndef test_the_code_itself():\n{_cured(one, 'imported', 'imported')}")
    return "".join(parts)


def _about(how: Imported | str) -> str:
    if isinstance(how, str):
        return _COPY.format(reason=_quotable(how))
    return _ITSELF.format(name=".".join(how.statement.split()[1:4:2]))


def _itself(how: Imported, directory: Path) -> str:
    names = ", ".join(how.names)
    return _IMPORTED.format(
        root=Path(os.path.relpath(how.root, directory.resolve())).as_posix(),
        statement=how.statement.rstrip(),
        names=f"{names}, " if names else "",
        call=how.call,
    )


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
    return f"{tests}\n\ndef test_the_fix_cures_it():\n{_cured(one, 'fixed()', 'fixed()')}"


def _cured(one: Verdict, function: str, reference: str) -> str:
    """The body of a test that a function is right."""
    kind, place = one.answer["kind"], int(one.answer["phase"] == "backward")
    if kind == "widened":
        line = "    assert all(one.dtype.itemsize == 2 for one in outputs)\n"
        return f"    outputs, _ = run({function})\n{line}"
    what = "gradients" if place else "outputs"
    times = "" if one.answer["floor"] else "4 * "
    body = f"    {what} = run({function})[{place}]\n    assert finite({what})\n"
    if one.answer["drew"]:  # other numbers in every dtype
        return body
    true = f"run({reference}, wide=True)[{place}]"
    return f"{body}    assert error({what}, {true}) <= {times}LIMIT\n"
