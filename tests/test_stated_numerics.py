"""Numerics and kernels of half where the user states the mode: each pair of a bug and its safe twin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from precision_lint import cli

ALL = "amp-float16,amp-bfloat16,float16,bfloat16"
CASES = {
    "a dict that is asked for a key": """\
import torch

def loss(outputs, kind):
    assert "scores" in outputs
    if kind == "focal":
        return torch.log(outputs["scores"].sigmoid() + 1e-12)  # MP301
    return torch.log(outputs["scores"].float().sigmoid() + 1e-12)
""",
    "areas of boxes by their corners": """\
import torch

def overlap(first, second, floor=1e-2):
    (top1, low1), (top2, low2) = first.unsqueeze(1).chunk(2, 2), second.unsqueeze(0).chunk(2, 2)
    shared = (torch.min(low1, low2) - torch.max(top1, top2)).clamp(0).prod(2)  # MP607
    whole = (low1 - top1).prod(2) + (low2 - top2).prod(2)  # MP607
    return shared / (whole - shared + floor)

def cells(shapes, starts):
    return (shapes[:, 0] * shapes[:, 1]).sum() + starts

def overlap_in_full(first, second, floor=1e-2):
    (top1, low1), (top2, low2) = first.float().unsqueeze(1).chunk(2, 2), second.unsqueeze(0).chunk(2, 2)
    shared = (torch.min(low1, low2.float()) - torch.max(top1, top2.float())).clamp(0).prod(2)
    return shared / ((low1 - top1).prod(2) + floor)
""",
    "a function that is called in many contexts": """\
import torch
from torch import nn

def scaled(x, by):
    return torch.tanh(x) * by

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        x = scaled(x, 1) + scaled(x, 2) + scaled(x, 3) + scaled(x, 4) + scaled(x, 5)
        x = scaled(x, 6) + scaled(x, 7) + scaled(x, 8) + scaled(x, 9) + scaled(x, 10)
        x = scaled(x, 11) + scaled(x, 12) + scaled(x, 13) + scaled(x, 14)
        return torch.log(torch.sigmoid(scaled(x, 20.0)) + 1e-12)  # MP301

    def exact(self, x):
        x = self.first(x).float()
        return torch.log(torch.sigmoid(scaled(x, 21.0)) + 1e-12)
""",
    "a product with a table that nobody has seen": """\
import torch
from torch import nn
from torch.nn import functional as F
from vendor import lookup

class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.names = {}

    def forward(self, x, ids):
        table = lookup(ids, self.names)[0]
        return F.log_softmax(torch.bmm(table, self.query(x)), dim=-1)  # MP606

    def smooth(self, x, ids):
        table = lookup(ids, self.names)[0]
        return F.log_softmax(self.query(x) + table, dim=-1)
""",
    "what is made of something unknown is passed on": """\
import torch
from torch import nn
from vendor import lookup

def likelihood(x, scale):
    return torch.log(torch.sigmoid(x * scale) + 1e-12)  # MP301

class Sampler(nn.Module):
    def forward(self, x, names):
        noise = lookup(x, names)[0]
        return likelihood(x, scale=0.5 * noise)

def exact(x, scale):
    return torch.log(torch.sigmoid(x * scale) + 1e-12)

class ExactSampler(nn.Module):
    def forward(self, x, names):
        noise = lookup(x, names)[0]
        return exact(x, scale=noise.double())
""",
    "a transform of what a caller gives": """\
import torch

def spectrum(x: torch.Tensor, size: int):
    bands = torch.fft.rfft(x, dim=-1)  # MP505
    return bands.abs().view(size, -1)

def spectrum_in_full(x: torch.Tensor):
    return torch.fft.rfft(x.float(), dim=-1).abs()
""",
    "a decomposition of a sum of unknown matrices": """\
import torch

def directions(layer, change: torch.Tensor):
    base = layer.wrapped_layer().weight.data
    merged = base + change
    if base.dtype in (torch.float16, torch.bfloat16):
        base = base.float()
    return torch.linalg.svd(base), torch.linalg.svd(merged)  # MP505
""",
    "a window that is kept in a table of the file": """\
import torch

windows = {}

def power(wave, size):
    key = f"{size} {wave.dtype}"
    if key not in windows:
        windows[key] = torch.hann_window(size).to(dtype=wave.dtype)
    return torch.stft(wave, size, window=windows[key], return_complex=True)  # MP505

def power_in_full(wave, size):
    window = torch.hann_window(size)
    return torch.stft(wave.float(), size, window=window, return_complex=True)
""",
    "a spectrum made of layers that are fed by what nobody saw": """\
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, encode):
        super().__init__()
        self.encode = encode
        self.out = nn.Conv1d(4, 2, 1)

    def forward(self, x):
        parts = self.out(torch.stack([self.encode.part(x, n) for n in range(3)]).sum(0))
        return torch.istft(torch.complex(parts[:, 0], parts[:, 1]), n_fft=8)  # MP505
""",
    "a floor under a logarithm, handed to a helper by what cannot be followed": """\
import torch
from elsewhere import pack

def scan(gates, floor=1e-20):
    return gates.clamp(min=floor).log().cumsum(dim=1)  # MP301

def run(gates, cache=None):
    if cache is not None:
        gates = pack([cache, gates])
    return scan(gates)

def scan_in_full(gates, floor=1e-20):
    return gates.float().clamp(min=floor).log().cumsum(dim=1)
""",
    "a constant stored into a copy": """\
import torch

def assign(plan: torch.Tensor):
    left = plan.clone()
    left[0, :] = -1e9  # MP310
    return left

def assign_in_range(plan: torch.Tensor):
    left = plan.clone()
    left[0, :] = -1e4
    return left
""",
    "scores of a model that is called in another method": """\
import torch.nn.functional as F

class Ranker:
    def scores(self, ids, mask=None):
        if mask is not None:
            return self.model(input_ids=ids, attention_mask=mask).logits
        return self.model(ids).logits

    def rank(self, ids):
        return F.log_softmax(self.scores(ids), dim=-1)  # MP606

    def rank_in_full(self, ids):
        return F.log_softmax(self.scores(ids).float(), dim=-1)
""",
    "a model that is given a dict": """\
import torch.nn.functional as F

class Comparison:
    def loss(self, model, inputs):
        _, values = model(**inputs, use_cache=False)
        good, bad = values.chunk(2)
        return -F.logsigmoid(good - bad).mean()  # MP606
""",
    "embeddings in a list": """\
import torch
import numpy as np

def encode(self, batches):
    found = []
    for batch in batches:
        rows = self.model(batch)["rows"].detach()
        found.extend(rows.cpu())
    return np.asarray([row.numpy() for row in found])  # MP506

def encode_in_full(self, batches):
    rows = [self.model(batch)["rows"].float().cpu() for batch in batches]
    return np.asarray([row.numpy() for row in rows])
""",
    "an image for PIL": """\
import torch
from torchvision import transforms

def show(self, latents: torch.Tensor):
    image = self.decoder(latents).clamp(0, 1)
    convert = transforms.ToPILImage()
    return convert(image)  # MP506

def show_in_full(self, latents: torch.Tensor):
    image = self.decoder(latents).clamp(0, 1)
    return transforms.ToPILImage()(image.float())
""",
    "scores of three kinds that are added": """\
import math
import torch
from torch import nn

class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, s, z):
        a = torch.matmul(self.q(s), self.k(s).transpose(-1, -2))  # MP208
        a *= math.sqrt(1.0 / 24)
        a += math.sqrt(1.0 / 3) * self.b(z)
        return a.softmax(-1)

class ScaledPoints(Points):
    def forward(self, s, z):
        a = torch.matmul(self.q(s) * math.sqrt(1.0 / 24), self.k(s).transpose(-1, -2))
        a += math.sqrt(1.0 / 3) * self.b(z)
        return a.softmax(-1)
""",
    "keys that are unpacked with their dtype": """\
import torch

def kernel(q, k):
    b, h, n, e, dtype = *q.shape, q.dtype
    q, k = map(lambda x: x * (e ** -0.25), (q, k))
    return torch.exp(k).type(dtype)  # MP507

def shifted_kernel(q, k):
    b, h, n, e, dtype = *q.shape, q.dtype
    k = k - k.amax(dim=-2, keepdim=True)
    return torch.exp(k).type(dtype)

def run(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)
""",
    "gradients that are handed to backward": """\
import torch

def probe(net, images):
    images = images.clone().requires_grad_()
    scores = net.logits(images)
    chosen = torch.zeros_like(scores)
    for i in range(scores.shape[-1]):
        chosen[:, i] = 1.0
        scores.backward(chosen, retain_graph=True)
        if images.grad.norm() > 1:
            return i

def engine(accelerator, model, x):
    accelerator.backward(model(x).mean())
    for p in model.parameters():
        if p.grad.norm() > 1:  # MP101
            return p
""",
    "equations that are made at run time": """\
import torch

def outer(a, b, dims):
    names = "".join(chr(97 + i) for i in range(dims))
    return torch.einsum(names + ",z->" + names + "z", a.half(), b.float())

def product(a, b):
    return torch.einsum("ij,jk->ik", a.half(), b.float())  # MP502
""",
    "numbers of NumPy in float64": """\
import numpy as np
import torch
from torch import nn

class Normal(nn.Module):
    def __init__(self, shape):
        super().__init__()
        size = 0.5 * np.prod(shape) * np.log(2 * np.pi)
        self.register_buffer("log_z", torch.tensor(size, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(np.linspace(0, 1, 4)))  # MP402
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        return self.net(x - self.log_z), self.net(x - self.steps)

def run():
    return Normal([2, 2])(torch.randn(3, 4))
""",
    "bell curves are no frequencies": """\
import torch

def bell(size, width, device):
    at = torch.linspace(-3.0, 3.0, steps=size, device=device)
    curve = torch.exp(-0.5 * (at / width).pow(2))
    return curve / curve.sum()

def blur(size, device):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.einsum("i,j->ij", bell(size, 1.0, device), bell(size, 1.5, device))

def spread(size, device):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.einsum("i,j->ij", torch.arange(4096, device=device).float(), bell(size, 1.0, device))

def weights(size, device):
    rates = 0.5 ** torch.arange(0, size, device=device).float()
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.einsum("i,j->ij", rates, rates)

def angles(size, device):
    rates = 1.0 / (10000 ** (torch.arange(0, size, 2, device=device).float() / size))
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.einsum("i,j->ij", torch.arange(4096, device=device).float(), rates)  # MP405
""",
    "norms times a constant": """\
import torch

class Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (0.1 * grad.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True))  # MP601
""",
    "frequencies of a base that is computed": """\
import torch
from torch import nn

class Turns(nn.Module):
    def __init__(self, dim, base=10000, stretch=1.0):
        super().__init__()
        base *= stretch ** (dim / (dim - 2))
        self.register_buffer("rates", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))

    def forward(self, n: int):
        places = torch.arange(n).type_as(self.rates)
        return torch.einsum("i,j->ij", places, self.rates)  # MP405
""",
}


@pytest.mark.parametrize("name", CASES)
def test_found_where_it_is_and_nowhere_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CASES[name]
    file = tmp_path / "case.py"
    file.write_text(text)
    cli.main(
        ["check", "-n", "--isolated", "--output-format", "json", "--precision", ALL, str(file)]
    )
    said = json.loads(capsys.readouterr().out)
    found = said["findings"] if isinstance(said, dict) else said
    wanted = [
        (row, code)
        for row, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"# (MP\d+)", line)
    ]
    assert sorted({(one["location"]["row"], one["code"]) for one in found}) == wanted


def test_what_a_region_casts_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``custom_fwd(cast_inputs=...)`` casts the arguments where a region is on, and only there."""
    file = tmp_path / "case.py"
    file.write_text("""\
import torch

class Turn(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, points, pose):
        return torch.linalg.inv(pose) @ points

    @staticmethod
    def backward(ctx, grad):
        return grad, None

def step(points, pose):
    with torch.autocast("cuda", dtype=torch.float16):
        return Turn.apply(points @ points.mT, pose @ pose)
""")
    command = ["check", "-n", "--isolated", "--output-format", "json", "--select", "MP505"]
    rows = []
    for mode in ("amp-float16", "float16"):
        cli.main([*command, "--precision", mode, str(file)])
        said = json.loads(capsys.readouterr().out)
        found = said["findings"] if isinstance(said, dict) else said
        rows.append([one["location"]["row"] for one in found])
    assert rows == [[], []]


def test_attributes_of_a_model_are_any_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model gives are tensors of floats; its settings need not be."""
    file = tmp_path / "case.py"
    file.write_text("""\
import torch
from torch import nn

def build(kind, config, **options):
    return kind.create(config, **options)

class Vision(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tower = build(config.kind, config.vision)

    def forward(self, pixels, grid: torch.LongTensor, **options):
        features = self.tower(pixels, grid=grid, **options).features
        sizes = grid.prod(-1) // self.tower.merge_size**2
        return features**2, sizes.tolist()
""")
    cli.main(["check", "-n", "--isolated", "--output-format", "json", "--precision", "float16",
              "--select", "MP601", str(file)])  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    found = said["findings"] if isinstance(said, dict) else said
    assert [one["location"]["row"] for one in found] == [15]
