"""Calls that somebody still writes: an operation without what it needs, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint import runner
from precision_lint.config import Overrides, Resolver
from precision_lint.torchmodel.tables import table

CALLS = ("torch.{name}()", "torch.{name}(x)", "x.{method}()", "x.{method}(y)")
USES = """\
    x = x.half()
    r = {call}
    x[y] = r
    n = (r ** 2).mean() + 1e-6
    return x / r, x * r, torch.log(r + 1e-8), r.sum(), r @ x, torch.rsqrt(n) * x, torch.cat([r, x]), 1 - r
"""


def functions(call: str) -> Iterator[str]:
    for number, name in enumerate(sorted(table("operations")["operations"])):
        written = call.format(name=name, method=name.rpartition(".")[2])
        yield f"def f{number}(x, y):\n{USES.format(call=written)}"


@pytest.mark.parametrize("call", CALLS)
def test_no_operation_is_a_crash_without_its_operands(call: str, tmp_path: Path) -> None:
    last = "def last(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n"
    text = "import torch\n\n\n" + "\n\n".join((*functions(call), last))
    (tmp_path / "half.py").write_text(text)
    found = runner.check([tmp_path], Resolver(Overrides(no_cache=True), isolated=True))
    assert [one.message for one in found.diagnostics if one.internal] == []
    assert any(one.code == "MP301" for one in found.diagnostics)
