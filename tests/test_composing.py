"""What several fixes of one run come to together."""

from __future__ import annotations

import itertools

import pytest

from precision_lint import fix_source, lint_source
from precision_lint.api import Edit
from precision_lint.composing import composed
from precision_lint.source import Source

NEW = [Edit(0, 0, "autocast")]
OFF = "with torch.autocast(device_type=q.device.type, enabled=False):"


def fixed(text: str, **options: object) -> str:
    return fix_source(text, isolated=True, **options).text  # type: ignore[arg-type]


def test_neighbours_share_one_region() -> None:
    text = """\
import torch


def pool(q, k, v):
    with torch.autocast("cuda", dtype=torch.float16):
        a = torch.einsum("bnhw,bchw->bnc", q, k)
        b = torch.einsum("bnhw,bchw->bnc", q, v)

        c = torch.einsum("bnhw,bchw->bnc", q, k)
        return a + b + c
"""
    assert (
        fixed(text)
        == f"""\
import torch


def pool(q, k, v):
    with torch.autocast("cuda", dtype=torch.float16):
        {OFF}
            a = torch.einsum("bnhw,bchw->bnc", q.float(), k.float())
            b = torch.einsum("bnhw,bchw->bnc", q.float(), v.float())

        {OFF}
            c = torch.einsum("bnhw,bchw->bnc", q.float(), k.float())
        return a + b + c
"""
    )


def test_a_region_that_was_there_takes_its_neighbour_up() -> None:
    head = 'import torch\n\n\ndef f(q, k):\n    with torch.autocast("cuda", dtype=torch.float16):\n'
    head = head.replace("\\\n", "\n")
    was = f"        {OFF}\n            a = q.float() @ k.float()\n".replace("\\\n", "\n")
    before = Source("a.py", f"{head}{was}        b = q @ k\n".replace("\\\n", "\n"))
    new = f"        {OFF}\n            b = q.float() @ k.float()\n".replace("\\\n", "\n")
    after = Source("a.py", f"{head}{was}{new}")
    body = new.partition("\n".replace("\\\n", "\n"))[2]
    assert composed(before, after, NEW).text == f"{head}{was}{body}"
    assert composed(after, after, NEW) == after, "nothing there is new"
    apart = Source("a.py", f"{head}{was}        # why\n{new}".replace("\\\n", "\n"))
    assert composed(before, apart, NEW) == apart, "a comment parts them"


def test_no_cast_that_another_fix_undoes() -> None:
    text = """\
import torch


def project(points, depth, K):
    points = points.half()
    rays = points / (depth.half() + 1e-8)
    return torch.matmul(torch.inverse(K.float()).half(), rays)
"""
    after = fixed(text)
    assert ".to(points.dtype)" not in after
    assert "points.float() / (depth.float() + 1e-8)" in after
    assert ".half().float()" not in after and ".float().float()" not in after


def test_a_cast_that_is_needed_stays() -> None:
    text = """\
import torch


def project(points, depth, K):
    points = points.half()
    rays = points / (depth.half() + 1e-8)
    return K.half() @ rays
"""
    assert ".to(points.dtype)" in fixed(text, select=["MP305"])


@pytest.mark.parametrize(
    ("cast", "upcast"),
    [
        ("x.half()", "x.float()"),
        ("x.to(torch.float16)", "x.float()"),
        ("x.to(dtype=torch.half)", "x.float()"),
        ("x.to(y.dtype)", "x.float()"),
        ("x.to(y.device)", "x.to(y.device).float()"),
        ("x[0]", "x[0].float()"),
    ],
)
def test_an_upcast_takes_the_place_of_a_cast_to_half(cast: str, upcast: str) -> None:
    text = f"""\
import torch


def loss(x, y):
    y = y.half()
    with torch.autocast("cuda", dtype=torch.float16):
        x = torch.nn.functional.linear(x, y)
        return torch.log(torch.sigmoid({cast}) + 1e-8)
"""
    assert f"torch.sigmoid({upcast})" in fixed(text)


TEXTS = [
    "out.sigmoid()",
    "torch.einsum('bnhw,bchw->bnc', out, y)",
    "(out / (y + 1e-8))",
    "torch.softmax(out.half(), -1)",
]


def test_the_order_of_select_does_not_matter() -> None:
    body = "".join(f"        loss = loss + torch.log({text} + 1e-8).sum()\n" for text in TEXTS)
    text = (
        "import torch\n\n\ndef step(model, x):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        f"        out, y, loss = model(x), model(x), 0\n{body}        return loss\n"
    ).replace("\\\n", "\n")
    codes = sorted({d.code for d in lint_source(text, isolated=True)})
    assert len(codes) > 2
    whole = fixed(text)
    for some in itertools.permutations(codes):
        assert fixed(text, select=some) == whole


def test_a_returned_dtype_never_changes_under_a_safe_fix() -> None:
    text = """\
import torch


def geman(a, b, reduction="sum"):
    dtype = a.dtype
    loss = (a.float() - b.float()).square().sum()
    return loss.to(dtype) if dtype != loss.dtype else loss


def area(a):
    a = a.half()
    found = a.float().square().sum().to(a.dtype)
    return found, a


def named(a):
    return a.half().float().square().sum().half()

"""
    found = [
        d for d in lint_source(text, isolated=True, precision=["float16"]) if d.code == "MP507"
    ]
    assert [(d.start.row, d.fix and d.fix.applicability.value) for d in found] == [
        (7, "unsafe"),
        (12, "unsafe"),
        (17, "unsafe"),
    ]
