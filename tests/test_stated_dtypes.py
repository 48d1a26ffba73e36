"""Dtypes of operands where the user states the mode: each pair of a bug and its safe twin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from precision_lint import cli, lint_source
from precision_lint.domains import dtypes

ALL = "amp-float16,amp-bfloat16,float16,bfloat16"
CASES = {
    "offsets in a window, in a shape that unknown numbers give": """\
import torch
import torch.nn.functional as F
from torch import nn

class Lookup(nn.Module):
    def __init__(self, reach):
        super().__init__()
        self.reach = reach

    def forward(self, volume, centres, n, step):
        r = self.reach
        dx = torch.linspace(-r, r, 2 * r + 1, device=centres.device)
        dy = torch.linspace(-r, r, 2 * r + 1, device=centres.device)  # MP401
        window = torch.stack(torch.meshgrid(dy, dx, indexing="ij"), dim=-1)
        window = window.view(1, 2 * r + 1, 2 * r + 1, 2)
        centres = F.softplus(centres).reshape(n * step, 1, 1, 2)
        return F.grid_sample(volume, centres + window)

class LookupInItsDtype(nn.Module):
    def forward(self, volume, centres, r, n, step):
        dx = torch.linspace(-r, r, 2 * r + 1, device=centres.device).to(centres.dtype)
        window = torch.stack(torch.meshgrid(dx, dx, indexing="ij"), dim=-1)
        window = window.view(1, 2 * r + 1, 2 * r + 1, 2)
        centres = F.softplus(centres).reshape(n * step, 1, 1, 2)
        return F.grid_sample(volume, centres + window)
""",
    "states of recurrent layers": """\
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8)
        self.gru = nn.GRU(8, 8)
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x):
        h = torch.zeros(1, x.shape[1], 8, device=x.device)  # MP401
        c = torch.zeros(1, x.shape[1], 8, device=x.device, dtype=x.dtype)
        return self.lstm(x, (h, c))[0]

    def gated(self, x):
        start = torch.zeros(1, x.shape[1], 8, device=x.device)  # MP401
        return self.gru(x, hx=start)[0]

    def step(self, x):
        return self.cell(x, torch.zeros(len(x), 8))  # MP401

    def in_its_dtype(self, x):
        h = x.new_zeros(1, x.shape[1], 8)
        return self.lstm(x, (h, torch.zeros_like(h)))[0] + self.gru(x, h)[0] + self.gru(x)[0]

    def on_and_on(self, xs):
        h = None
        for x in xs:
            y, h = self.gru(x, h)
        return y
""",
    "attention over a memory that was upcast": """\
import torch
from torch import nn

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.MultiheadAttention(8, 2)

    def forward(self, x, memory):
        return self.read(x, memory.float(), memory.float())[0]  # MP502

    def in_its_dtype(self, x, memory):
        return self.read(x, memory, memory)[0]
""",
    "helpers of einops for several tensors": """\
import torch
from einops import pack, unpack
from einops_exts import rearrange_many
from torch import einsum, nn

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = rearrange_many((self.to_q(x), self.to_k(x), self.to_v(x)), "b n (h d) -> b h n d", h=2)
        scores = einsum("b h i d, b h j d -> b h i j", q * 8**-0.5, k)
        attn = scores.softmax(dim=-1, dtype=torch.float32)
        return einsum("b h i j, b h j d -> b h i d", attn, v)  # MP502

    def packed(self, x, bands):
        flat, shape = pack([self.to_v(x)], "* n d")
        (rows,) = unpack(flat, shape, "* n d")
        return rows @ bands.float()  # MP502

    def in_its_dtype(self, x):
        q, k, v = rearrange_many((self.to_q(x), self.to_k(x), self.to_v(x)), "b n (h d) -> b h n d", h=2)
        scores = einsum("b h i d, b h j d -> b h i j", q * 8**-0.5, k)
        attn = scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype)
        return einsum("b h i j, b h j d -> b h i d", attn, v)
""",
    "kernels of attention that autocast does not know": """\
import torch
from flash_attn import flash_attn_func
from torch import nn
from xformers.ops import memory_efficient_attention

class Fast(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        q, v = self.to_q(x).float(), self.to_v(x)
        return memory_efficient_attention(q, q, v)  # MP502

    def flash(self, x):
        q, v = self.to_q(x), self.to_v(x)
        return flash_attn_func(q, q, v)
""",
    "a layer that may be left out": """\
import torch
from torch import nn

class Projected(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.proj = nn.Linear(width, out) if width != out else nn.Identity()
        self.drop = nn.Dropout(0.1) if out > 8 else nn.Identity()

    def forward(self, x):
        return self.drop(self.proj(x.float()))  # MP502

    def in_its_dtype(self, x):
        return self.drop(self.proj(x))
""",
    "a constant that is a plain attribute, with dimensions that an index adds": """\
import torch
from torch import nn

class Codec(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.scale = torch.tensor(scale)  # MP401
        if len(self.scale.shape) > 0:
            self.scale = self.scale[None, :, None, None]

    def forward(self, x):
        return self.conv(self.conv(x) * self.scale)

class CodecOfBuffers(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x):
        return self.conv(self.conv(x) * self.scale)
""",
    "sparse matrices inside a region": """\
import torch

def spread(places, tokens, count):
    with torch.autocast("cuda", dtype=torch.float16):
        values = torch.ones_like(tokens[:, 0]).to(torch.float32)
        table = torch.sparse_coo_tensor(places, values, (count, len(tokens)))
        return table @ tokens.to(torch.float32)  # MP202

def spread_outside(places, tokens, count):
    with torch.autocast("cuda", enabled=False):
        values = torch.ones_like(tokens[:, 0]).to(torch.float32)
        table = torch.sparse_coo_tensor(places, values, (count, len(tokens)))
        return table @ tokens.to(torch.float32)
""",
    "a model that was cast, and what it is given": """\
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel

def draw(name, states):
    unet = UNet2DConditionModel.from_pretrained(name, torch_dtype=torch.float16)
    noise = torch.randn(1, 4, 8, 8)  # MP401
    return unet(noise, 1, states).sample

def encode(name, image):
    vae = AutoencoderKL.from_pretrained(name)
    vae.to("cuda", dtype=torch.float16)
    return vae.encode(image.float() / 255).latent_dist  # MP502

def encode_in_its_dtype(name, image):
    vae = AutoencoderKL.from_pretrained(name).to("cuda", dtype=torch.float16)
    return vae.encode((image.float() / 255).half()).latent_dist

def encode_in_a_region(name, image):
    vae = AutoencoderKL.from_pretrained(name).to("cuda", dtype=torch.float16)
    with torch.autocast("cuda", dtype=torch.float16):
        return vae.encode(image.float() / 255).latent_dist

def count(load, path, ids):
    net = load(path).half()
    return net(ids.long()), net.names(torch.zeros(3))
""",
    "a model that is upcast together with its input, where a setting says so": """\
import torch
import torch.nn.functional as F

class Pipeline:
    def prepare(self, image, dtype):
        image = F.relu(image).to(dtype=dtype)
        if self.upcasts:
            image = image.float()
            self.vae.to(dtype=torch.float32)
        return self.vae.encode(image)

    def widen(self):
        self.net.to(dtype=torch.float32)

    def read(self, image):
        image = F.relu(image).half()
        if self.upcasts:
            image = image.float()
            self.widen()
        return self.net.encode(image)

    def wrong(self, image):
        self.head.to(dtype=torch.float16)
        return self.head.encode(F.relu(image).float())  # MP502

    def run(self, image, text):
        return self.prepare(image, self.encoder(text).dtype)
""",
    "noise of a distribution": """\
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2)

    def forward(self, x):
        x = self.gate(x)
        low = torch.zeros(2, device=x.device)  # MP401
        high = torch.ones(2, device=x.device)
        noise = torch.distributions.Uniform(low, high).rsample((len(x),))
        return self.gate(x * noise)

    def in_its_dtype(self, x):
        x = self.gate(x)
        low, high = x.new_zeros(2), x.new_ones(2)
        noise = torch.distributions.Uniform(low, high).rsample((len(x),))
        return self.gate(x * noise)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_found_where_it_is_and_nowhere_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CASES[name]
    file = tmp_path / "case.py"
    file.write_text(text)
    cli.main(["check", "-n", "--isolated", "--output-format", "json", "--precision", ALL,
              "--select", "MP2,MP4,MP5", "--ignore", "MP201", str(file)])  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    found = said["findings"] if isinstance(said, dict) else said
    wanted = [
        (row, code)
        for row, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"# (MP\d+)", line)
    ]
    assert sorted({(one["location"]["row"], one["code"]) for one in found}) == wanted


def test_what_may_be_of_any_dtype_does_not_surely_differ() -> None:
    unsure, half = dtypes.everywhere(dtypes.FLOAT32 | dtypes.OTHER), dtypes.V_FLOAT16
    assert dtypes.differing(dtypes.V_FLOAT32, half) == dtypes.ALL_MODES
    assert dtypes.differing(unsure, half) == 0


@pytest.mark.parametrize(
    "text",
    [
        """\
def first_of_two_or_three(x, third):
    pair = (x.half(), x.float(), x.double()) if third else (x.half(), x.float())
    return torch.mm(pair[0], pair[1])  # MP502
""",
        """\
def last_of_three_or_four(x, fourth):
    some = (x.half(), x.float(), x.float()) if not fourth else (x.half(), x.float(), x.float(), x.half())
    a, b, c, d = some
    return torch.mm(c, d)  # MP502
""",
        """\
def times_a_number_that_is_declared(x, weights, settings):
    scale: float = settings["scale"]
    return torch.mm(x.half() * scale, weights.float())  # MP502
""",
        """\
def loss_of_classes(x, labels, weights):
    loss = torch.nn.functional.cross_entropy(x.half(), labels)
    return torch.mm(loss.view(1, 1), weights.float())  # MP502
""",
        """\
def at_least_a_half(x):
    least = torch.tensor(1e-8).half()
    return x / torch.maximum(x.float(), least)  # MP308
""",
    ],
)
def test_what_is_sure_as_written(text: str) -> None:
    found = lint_source(f"import torch\n{text}", isolated=True, confidence="certain")
    wanted = [
        (row, code)
        for row, line in enumerate(text.splitlines(), 2)
        for code in re.findall(r"# (MP\d+)", line)
    ]
    assert [(one.start.row, one.code) for one in found] == wanted


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (
            "amp-float16",
            """\
def mean_of_a_total(x, count):
    mean = x.half().sum() / count
    return torch.log(mean + 1e-8)
""",
        ),
        (
            "amp-float16",
            """\
def given_half_outside_of_a_region(reference):
    layer = make().eval().to("cuda")
    y = layer(torch.rand(1, 8, dtype=torch.float16))
    return torch.allclose(y, reference.half())
""",
        ),
        (
            "amp-float16",
            """\
def handed_half_outside_of_a_region(x, reference):
    layer = make().eval()
    return torch.allclose(layer(x.half())[0], reference.half())
""",
        ),
        (
            "float16",
            """\
def step(net, optimizer, loader, every):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        steps = len(loader) % every if i else every
        with torch.autocast("cuda", dtype=torch.float16):
            _, losses = net(x)
            total = sum(v for v in losses.values())
        scaler.scale(total / steps).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ],
)
def test_nothing_is_said_of_what_may_be_right(mode: str, text: str) -> None:
    head = "import torch\nfrom somewhere import make\n"
    found = lint_source(head + text, isolated=True, precision=[mode], confidence="possible")
    assert [(one.start.row, one.code) for one in found] == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.arange(4096, dtype=torch.float16)", "certain: integers in float16"),
        ("torch.arange(count, dtype=torch.float16)", "likely: integers in float16"),
        ("torch.full((2,), -1e9, dtype=torch.float16)", "certain: `full` with -1e+09 raises"),
        ("torch.tensor(-1e9, dtype=torch.float16)", "certain: `tensor` with -1e+09 is infinite"),
        ("torch.nn.functional.mse_loss(left, y.half())", "certain: mse_loss after the autocast region"),
        ("torch.nn.functional.mse_loss(x.half(), y.half())", "likely: mse_loss squares in float16"),
    ],
)  # fmt: skip
def test_how_sure_and_in_which_words(code: str, expected: str) -> None:
    text = (
        "import torch\n\n\ndef work(x, y, count=4096):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n        left = x @ y\n"
        f"    return left, {code}\n"
    )
    found = lint_source(text, isolated=True, select=["MP209", "MP310", "MP404"])
    assert [f"{one.confidence.value}: {one.message}"[: len(expected)] for one in found] == [
        expected
    ]
