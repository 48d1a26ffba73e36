"""Fixes and what the code asserts of dtypes: no safe fix may make it fail."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import library
from precision_lint.api import Applicability, Fix

HALF = "x = x.half()\n"
LOG = "y = torch.log(x.sigmoid() + 1e-8)\n"


def fix(body: str) -> Fix:
    """The fix of the one finding in a function."""
    text = f"import torch\n\n\ndef f(x):\n{textwrap.indent(body, '    ')}    return y\n"
    (found,) = library.lint_source(text, select=["MP301"])
    assert found.fix is not None
    return found.fix


@pytest.mark.parametrize(
    "body",
    [
        HALF + LOG + "assert y.dtype == torch.float16\n",
        HALF + LOG + "torch._assert(y.dtype == torch.float16, 'half')\n",
        HALF + LOG + "torch._check(y.dtype is torch.half)\n",
        HALF + LOG + "if y.dtype != x.dtype:\n    raise TypeError(y.dtype)\n",
        HALF + LOG + "z = y[0] * 2\nkind = z.dtype\nassert kind == torch.float16\n",
        HALF + LOG + "assert y.min() > 0 and y.dtype in (torch.float16, torch.bfloat16)\n",
        HALF + LOG + "torch.testing.assert_close(y, x)\n",
        HALF + "p = x.sigmoid()\ny = torch.log(p + 1e-8)\nassert p.dtype == torch.float16\n",
        HALF + "with torch.no_grad():\n    " + LOG + "assert torch.float16 == y.dtype\n",
    ],
)
def test_what_is_asserted_of_the_result_makes_a_fix_unsafe(body: str) -> None:
    found = fix(body)
    assert found.applicability is Applicability.UNSAFE
    assert found.reason is not None and found.reason.endswith("may not hold after it")


@pytest.mark.parametrize(
    "body",
    [
        HALF + LOG,
        HALF + "assert x.dtype == torch.float16\n" + LOG,
        HALF + LOG + "assert y.shape == x.shape\n",
        HALF + LOG + "assert x.dtype == torch.float16 and y.min() > 0\n",
        HALF + LOG + "assert y.device == x.device and x.dtype == torch.float16\n",
        HALF + LOG + "z = y.to(torch.float16)\nassert z.dtype == torch.float16\n",
        HALF + LOG + "z = torch.zeros(y.shape, dtype=x.dtype)\nassert z.dtype == x.dtype\n",
        HALF + "y = torch.log(x.sigmoid() + 1e-8).half()\nassert y.dtype == torch.float16\n",
        HALF + LOG + "torch.testing.assert_close(y, x, check_dtype=False)\n",
        HALF + LOG + "def g(y):\n    assert y.dtype == torch.float16\n",
    ],
)
def test_other_assertions_leave_it_safe(body: str) -> None:
    assert fix(body).applicability is Applicability.SAFE
