"""Devices and the least torch: what is stated, what the code says, and which kernels there are."""

from __future__ import annotations

import importlib.util
import json
import operator
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_lint import cli
from precision_lint.config import ConfigError, Overrides, Place, Resolver, from_table
from precision_lint.torchmodel import amp, operations
from precision_lint.torchmodel.operations import DTYPES
from precision_lint.torchmodel.tables import table

DIVERGENCE = """
import torch.nn.functional as F


def divergence(model, reference, tokens):
    a = F.log_softmax(model(tokens).logits, dim=-1)
    b = F.log_softmax(reference(tokens).logits, dim=-1)
    ratio = {ratio}
    return (ratio.exp() - 1 - ratio).mean()
"""
MOVED = {
    "method": "a.cpu() - b.cpu()",
    "to": "a.to('cpu') - b.to('cpu')",
    "keyword": "(a - b).to(device='cpu')",
    "device": "(a - b).to(__import__('torch').device('cpu')).cpu()",
    "view": "(a.cpu() - b.cpu())[:, 1:]",
}
ROOT = Path(__file__).parent.parent / "scripts"
HALVED = """
import torch

device = {device}


def run(model, path):
    x = torch.zeros(3)
    return model({cast})
"""
LAYER = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return torch.sigmoid(self.proj(x))
"""


def found(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    *options: str,
    precision: str = "float16",
    select: str = "MP505",
) -> list[tuple[str, int, str]]:
    """Code, row and message of what is shown."""
    path = tmp_path / "a.py"
    path.write_text(text)
    cli.main([
        "check", "-n", "--isolated", "--select", select, "--precision", precision,
        "--output-format", "json", *options, str(path),
    ])  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    said = said["findings"] if isinstance(said, dict) else said
    return [(one["code"], one["location"]["row"], one["message"]) for one in said]


@pytest.mark.parametrize("ratio", MOVED.values(), ids=MOVED)
def test_what_is_moved_to_the_cpu_runs_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ratio: str
) -> None:
    text = DIVERGENCE.format(ratio=ratio)
    [(_, row, message)] = found(capsys, tmp_path, text, "--torch-version", "2.0")
    assert row == 9 and "the CPU has `exp` of float16 from torch 2.1 on" in message
    assert not found(capsys, tmp_path, text, "--torch-version", "2.1")
    assert not found(capsys, tmp_path, text), "nothing is known of the release"


@pytest.mark.parametrize("ratio", ["a - b", "(a.cpu() - b.cpu()).cuda()", "(a - b).cuda()"])
def test_what_is_elsewhere_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ratio: str
) -> None:
    text = DIVERGENCE.format(ratio=ratio)
    assert not found(capsys, tmp_path, text, "--torch-version", "2.0")


DRAWN = """
import torch


def draw(net, x):
    return torch.multinomial(net.half()(x.cuda().half()).softmax(-1).bfloat16(), {how})
"""


@pytest.mark.parametrize(
    "how", ["1", "num_samples=1, replacement=True", "4", "4, replacement=False"]
)
def test_draws_that_need_no_kernel_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str
) -> None:
    """One draw, and several without replacement, are quotients by noise of which the largest are taken."""
    release = ("--device", "cuda", "--torch-version", "2.2")
    assert not found(capsys, tmp_path, DRAWN.format(how=how), *release)
    again = DRAWN.format(how="4, replacement=True")
    [(_, _, message)] = found(capsys, tmp_path, again, *release)
    assert "CUDA has `multinomial` of bfloat16 from torch 2.3 on" in message


HELD = """
import torch
from torch import nn


class Projected(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        q, _ = torch.linalg.qr(torch.randn(width, width).cpu())
        {held}

    def forward(self, x):
        return torch.sigmoid(x @ self.matrix.to(x.dtype))
"""


@pytest.mark.parametrize(
    ("held", "count"),
    [
        ("self.matrix = q.cpu()", 2),
        ("self.register_buffer('matrix', q)", 0),
        ("self.matrix = nn.Parameter(q)", 0),
        ("self.matrix = nn.Parameter(torch.ones(4, 4, device=self.inner.weight.device))", 0),
    ],
)
def test_what_a_module_holds_moves_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, held: str, count: int
) -> None:
    text = HELD.format(held=held)
    assert len(found(capsys, tmp_path, text, "--torch-version", "1.13")) == count


def test_a_stated_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = ("--torch-version", ">=1.13")
    assert not found(capsys, tmp_path, LAYER, *old)
    assert not found(capsys, tmp_path, LAYER, *old, "--device", "cuda")
    assert found(capsys, tmp_path, LAYER, *old, "--device", "cuda,cpu")
    assert found(capsys, tmp_path, LAYER, *old, "--device", "cpu")
    assert not found(capsys, tmp_path, LAYER, "--torch-version", "2.4", "--device", "cpu")


def test_a_test_for_the_device_says_where_a_tensor_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = """
import torch


def squashed(x):
    if x.device.type == "cpu":
        return torch.sigmoid(x)
    return torch.tanh(x)


def dropped(weight, density):
    return weight * torch.bernoulli(torch.full_like(weight, density))
"""
    old = ("--torch-version", "1.13")
    assert [row for _, row, _ in found(capsys, tmp_path, text, *old)] == [7]
    guarded = text.replace("return torch.sigmoid(x)", "return torch.sigmoid(x.float())")
    assert [row for _, row, _ in found(capsys, tmp_path, guarded, *old)] == [12], "half comes there"
    unasked = guarded.replace('"cpu"', '"mps"')
    assert not found(capsys, tmp_path, unasked, *old)


@pytest.mark.parametrize(
    ("device", "cast", "count"),
    [
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "x.to(device).half()", 1),
        (
            "torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
            "x.to(device).half()",
            1,
        ),
        (
            "'cuda' if torch.cuda.is_available() else 'cpu'",
            "x.to(device=device).to(torch.float16)",
            1,
        ),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "x.to(device).bfloat16()", 0),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "x.to(device).float()", 0),
        ("'cuda' if torch.cuda.is_available() else 'mps'", "x.to(device).half()", 0),
        ("'cuda'", "x.to(device).half()", 0),
        ("pick()", "x.to(device).half()", 0),
    ],
)
def test_half_on_a_device_that_may_be_the_cpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, device: str, cast: str, count: int
) -> None:
    text = HALVED.format(device=device, cast=cast)
    assert len(found(capsys, tmp_path, text)) == count
    assert not found(capsys, tmp_path, text, "--torch-version", "2.2")
    asked = text.replace("    return model", "    if device != 'cpu':\n        return model")
    assert not found(capsys, tmp_path, asked)


FALLBACK = """
import torch


def score(x):
    device = {device}
    y = torch.exp(-x.square())
    z = y.to(device)
    share = torch.sigmoid(z)
    return share, torch.linalg.inv(z)
"""


@pytest.mark.parametrize(
    ("device", "stated", "rows", "written"),
    [
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "", [10], [9, 10]),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "cuda", [10], [10]),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "cpu", [7, 9, 10], [7, 9, 10]),
        ("'cuda' if torch.cuda.is_available() else 'cpu'", "cuda,cpu", [7, 9, 10], [7, 9, 10]),
        ("'cpu'", "", [9, 10], [9, 10]),
    ],
)
def test_a_stated_mode_is_for_the_gpu_where_the_code_names_both(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    device: str,
    stated: str,
    rows: list[int],
    written: list[int],
) -> None:
    """Written: rows where the code itself makes it half, on the CPU as well."""
    options = ("--torch-version", "1.13", *(("--device", stated) if stated else ()))
    text = FALLBACK.format(device=device)
    half = text.replace("y.to(device)", "y.half().to(device)")
    assert [row for _, row, _ in found(capsys, tmp_path, text, *options)] == rows
    assert [row for _, row, _ in found(capsys, tmp_path, half, *options)] == written


def test_gaps_that_are_left_depend_on_the_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "import torch.nn.functional as F\ndef f(x):\n    return F.avg_pool3d(x, 2)\n"
    assert not found(capsys, tmp_path, text)
    [(_, _, message)] = found(capsys, tmp_path, text, "--device", "cpu")
    assert message.startswith("the CPU has no `avg_pool3d` of float16")


def test_devices_of_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {
        "device": "cuda",
        "precision": ["float16"],
        "overrides": [
            {"path": "edge/**", "device": ["cpu", "mps"]},
            {"path": "edge/big/**", "precision": []},
        ],
    }
    settings = from_table(said, Place(tmp_path / "precision-lint.toml"), tmp_path)
    inner = tmp_path / "edge" / "big" / "a.py"
    assert settings.devices_for(tmp_path / "a.py") == ("cuda",)
    assert settings.devices_for(inner) == ("cpu", "mps")
    assert settings.modes_for(inner) == ()
    both = Overrides(device=("xpu",)).apply(settings)
    assert both.devices_for(inner) == ("xpu",) and both.modes_for(inner) == ()
    (tmp_path / "precision-lint.toml").write_text('device = ["cpu", "cuda"]\n')
    cli.main(["check", "--show-settings", str(tmp_path / "a.py")])
    assert 'device = ["cpu", "cuda"]' in capsys.readouterr().out


@pytest.mark.parametrize(
    "said",
    [
        {"device": "gpu"},
        {"device": []},
        {"device": ["cpu", 1]},
        {"overrides": [{"path": "a", "device": "gpu"}]},
        {"overrides": [{"path": "a", "cpu": True}]},
    ],
)
def test_mistakes_say_what_to_write(tmp_path: Path, said: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="cuda, cpu, mps, xpu"):
        from_table(said, Place(tmp_path / "precision-lint.toml"), tmp_path)


def test_mistakes_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match='--device: unknown device "cdua"; did you mean "cuda"'):
        Resolver(Overrides(device=("cdua",)))
    with pytest.raises(ConfigError, match="--torch-version"):
        Resolver(Overrides(torch_version="new"))


def test_the_regions_of_callers_are_those_of_the_stated_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of the two, the CPU's autocast alone casts a matrix up that is inverted."""
    text = "import torch\ndef f(x):\n    return torch.linalg.inv(x.T @ x)\n"
    amp = "amp-float16"
    assert found(capsys, tmp_path, text, precision=amp)
    assert found(capsys, tmp_path, text, "--device", "cuda", precision=amp)
    assert not found(capsys, tmp_path, text, "--device", "cpu", precision=amp)


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("make_kernels", ROOT / "make_kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_that_came_are_there() -> None:
    tests = Path(torch.__file__).parent / "testing" / "_internal"
    declared = _script().declared(tests)
    for device in ("cpu", "cuda"):
        for dtype, by_release in table("kernels")[device].items():
            for name in " ".join(by_release.values()).split():
                operation = operations.operation(name)
                assert operation is not None, name
                assert declared[operation.name][device, dtype], name
                assert not operation.missing.get(device, 0) & DTYPES[dtype], name


def test_since_is_the_first_release_that_has_a_kernel() -> None:
    def takes(cpu: bool) -> dict[tuple[str, str], bool]:
        return {("cpu", "float16"): cpu, ("cpu", "bfloat16"): True,
                ("cuda", "float16"): True, ("cuda", "bfloat16"): True}  # fmt: skip

    old, new = {"exp": takes(False), "log": takes(False)}, {"exp": takes(True), "log": takes(False)}
    newest = {"exp": takes(True), "log": takes(True)}
    table = _script().since({"1.0": old, "1.1": new, "9.0": newest})
    assert {d: dict(by) for d, by in table["cpu"].items()} == {"float16": {"1.1": ["exp"]}}


REGION = """
import torch


def run(model, x):
    with torch.autocast({given}):
        return model(x)
"""
LATE = {
    "str(x.device)": "2.4",
    "device_type=str(x.device), dtype=torch.bfloat16": "2.4",
    "'cuda:0'": "2.4",
    "'mps'": "2.5",
    "'cpu', torch.float16": "2.2",
}


@pytest.mark.parametrize(("given", "since"), LATE.items(), ids=LATE)
def test_arguments_of_autocast_by_release(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str, since: str
) -> None:
    def shown(*options: str) -> list[tuple[str, int, str]]:
        text = REGION.format(given=given)
        return found(capsys, tmp_path, text, *options, select="MP210")

    [(_, row, message)] = shown("--torch-version", "1.13")
    assert row == 6 and since in message
    assert not shown("--torch-version", since)
    assert not shown(), "nothing is known of the release"
    assert bool(shown("--confidence", "possible")) is ("str(" in given)


@pytest.mark.parametrize("given", ["x.device.type", "'cuda'", "'cpu'", "'cpu', torch.bfloat16"])
def test_what_autocast_always_took(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str
) -> None:
    text = REGION.format(given=given)
    assert not found(capsys, tmp_path, text, "--torch-version", "1.13", select="MP210")


SETTINGS = """
import torch
from torch import nn


def settings(device=None):
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return {text}


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        y = self.proj(x)
        with torch.autocast(settings({given})):
            return self.proj(y)
"""


@pytest.mark.parametrize(
    ("given", "text", "count"),
    [
        ("y.device", "str(device)", 1),
        ("", "str(device)", 0),
        ("None", "str(device)", 0),
        ("y.device", "torch.device(device).type", 0),
    ],
)
def test_the_device_of_a_tensor_is_never_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str, text: str, count: int
) -> None:
    written = SETTINGS.format(given=given, text=text)
    shown = found(capsys, tmp_path, written, "--torch-version", "1.13", select="MP210")
    assert [row for _, row, _ in shown] == [19] * count
    cli.main([
        "check", "-n", "--isolated", "--select", "MP210", "--torch-version", "1.13", str(tmp_path / "a.py"),
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert ("the text is made here" in said) is bool(count) and ("a.py:9:12" in said) is bool(count)


def test_names_of_amp_by_release(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "import torch\n\nscaler = torch.amp.GradScaler()\n"

    def shown(text: str, version: str) -> list[tuple[str, int, str]]:
        return found(capsys, tmp_path, text, "--torch-version", version, select="MP210")

    assert [row for _, row, _ in shown(text, "2.2")] == [3]
    assert not shown(text, "2.3")
    tried = """
try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler()
"""
    assert not shown(tried, "2.2")


def test_what_the_newest_torch_takes_of_autocast() -> None:
    for name in amp.SINCE:
        assert operator.attrgetter(name.removeprefix("torch."))(torch) is not None
    for kind in {*amp.DEVICE_SINCE, "cuda", "cpu", "xpu"} - {"privateuseone"}:
        assert torch.amp.is_autocast_available(kind), kind
    assert torch.autocast("cuda:0").device == "cuda:0"
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled()


MANY = """
import torch


def product(a, b):
    a, b = torch.randn(3, 3).half(), torch.randn(3, 3).half()
    return torch.einsum("ij,jk->ik", a, b)
"""


def test_operands_beyond_the_named_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--device", "cpu", "--torch-version", "2.0")
    assert [row for _, row, _ in found(capsys, tmp_path, MANY, *options, select="MP505")] == [7]
