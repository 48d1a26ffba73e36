"""What looks like a hazard and is `possible` only, each beside what is shown by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint.api import Confidence
from precision_lint.project.amp import MANY, Survey
from tests import projects
from tests.analysis import returned

HALF = """\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("net", torch_dtype=torch.float16)
"""
CAST = "import torch\nfrom net import Net\n\nmodel = Net().half()\n"
MADE = """\
import torch
from net import Net


def serve(dtype=torch.float16):
    return run(Net, dtype)
"""
MIXED = 'import torch\n\nwith torch.autocast("cuda"):\n    net()\n'
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.window = torch.hann_window(1024)
        inverse = 1.0 / 10000.0 ** (torch.arange(0, 8, 2).float() / 8)
        self.register_buffer("inv_freq", inverse)

    def forward(self, x, mask=None):
        {}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(code: str, text: str, run: str = HALF) -> list[str]:
    """The confidences of what a rule finds in net.py."""
    projects.write(Path.cwd(), {"net.py": HEAD + text, "run.py": run})
    result = projects.check(Path("net.py"), confidence=Confidence.POSSIBLE)
    return [d.confidence.value for d in result.diagnostics if d.code == code]


def net(*lines: str) -> str:
    return NET.format("\n        ".join(lines))


@pytest.mark.parametrize(
    ("code", "own", "torchs"),
    [
        ("MP307", "self.fmt.normalize(self.proj(x) * mask)", "F.normalize(self.proj(x) * mask)"),
        ("MP307", "fmt.normalize(self.proj(x) * mask)", "F.normalize(self.proj(x) * mask)"),
        ("MP606", "head.log_softmax(self.proj(x))", "self.proj(x).log_softmax(-1)"),
    ],
)
def test_a_function_of_torch_is_no_method_of_a_tensor(code: str, own: str, torchs: str) -> None:
    assert shown(code, net(f"return {torchs}"))
    tensors = code == "MP606"  # tensors do have this one
    assert bool(shown(code, net(f"return {own}"))) == tensors


def test_what_an_object_gives_is_not_known_by_the_name_of_a_function() -> None:
    own = returned("def f(fmt, x):\n    return fmt.softplus(x.half())\n")
    assert not own.is_tensor
    assert returned("def f(fmt, x):\n    return fmt.relu()\n").is_tensor  # tensors have it


@pytest.mark.parametrize(
    ("lines", "confidence"),
    [
        (("return F.normalize(self.proj(x))",), "possible"),
        (("return F.cosine_similarity(self.proj(x), x)",), "possible"),
        (("return F.normalize(self.proj(x), eps=1e-10)",), "likely"),
        (("return F.normalize(self.proj(x) * mask)",), "likely"),
        (("x = torch.relu(x)", "return F.normalize(self.proj(x))"), "likely"),
        (("x = x.half()", "return F.normalize(x)"), "certain"),
    ],
)
def test_vectors_that_nothing_makes_zero(lines: tuple[str, ...], confidence: str) -> None:
    body = net(*lines).replace(", mask=None", ", mask" if "mask" in lines[0] else "")
    assert shown("MP307", body) == [confidence]


@pytest.mark.parametrize(
    ("call", "confidence"),
    [
        ("torch.fft.rfft(self.proj(x))", "likely"),
        ("torch.fft.irfft(self.proj(x))", "possible"),
        ("torch.fft.ifftn(self.proj(x))", "possible"),
        ("torch.angle(self.proj(x))", "possible"),
        ("torch.fft.irfft(x.bfloat16())", "certain"),
        ("torch.linalg.inv(self.proj(x))", "likely"),
    ],
)
def test_what_is_called_on_complex_tensors_as_a_rule(call: str, confidence: str) -> None:
    run = HALF.replace("float16", "bfloat16")
    assert shown("MP505", net(f"return {call}"), run) == [confidence]


SPECTRUM = (
    "s = torch.stft(x, 1024, 256, window=self.window, return_complex=True)",
    "power = s.abs() ** 2",
    "return self.filters @ power",
)
TOKENS = (
    "k = F.elu(self.proj(x)) + 1",
    "v = self.proj(x){}",
    'return torch.einsum("bnd,bne->bde", k, v)',
)


@pytest.mark.parametrize(("run", "confidence"), [(HALF, "possible"), (MIXED, "likely")])
def test_a_power_spectrum_is_half_under_autocast_alone(run: str, confidence: str) -> None:
    assert shown("MP201", net(*SPECTRUM), run) == [confidence]


@pytest.mark.parametrize(
    ("cast", "run", "confidence"),
    [("", HALF, "likely"), (".float()", HALF, "possible"), (".float()", MIXED, "likely")],
)
def test_a_sum_over_float32_is_half_under_autocast_alone(
    cast: str, run: str, confidence: str
) -> None:
    lines = [line.format(cast) for line in TOKENS]
    assert shown("MP201", net(*lines), run) == [confidence]


@pytest.mark.parametrize("cast", ["", ".float()"])
def test_what_a_region_around_it_makes_half_is_shown(cast: str) -> None:
    lines = [
        *TOKENS[:1],
        TOKENS[1].format(cast),
        TOKENS[2].replace("return ", "    y = "),
        "return y",
    ]
    lines.insert(2, 'with torch.autocast("cuda"):')
    assert shown("MP201", net(*lines)) == ["likely"]


ANGLES = (
    "t = torch.arange(x.shape[1], device=x.device).type_as(self.inv_freq)",
    "angles = {}",
    "return x * angles.cos(), x * angles.sin()",
)


@pytest.mark.parametrize(
    "product", ['torch.einsum("i,j->ij", t, self.inv_freq)', "t * self.inv_freq"]
)
@pytest.mark.parametrize(
    ("run", "confidence"),
    [(CAST, "likely"), (HALF, "likely"), (MADE, "possible"), (MADE + MIXED[14:], "likely")],
)
def test_a_model_that_is_made_half_keeps_its_float32_tables(
    product: str, run: str, confidence: str
) -> None:
    assert shown("MP405", net(ANGLES[0], f"angles = {product}", ANGLES[2]), run) == [confidence]


@pytest.mark.parametrize(
    ("body", "confidence"),
    [
        ("    return x.float() @ m\n", "possible"),
        ("    if m is None:\n        m = identity(x)\n    return x.float() @ m\n", "possible"),
        ("    y = x.float()\n    y = y / y.norm()\n    return y @ m\n", "possible"),
        ("    return F.layer_norm(x.float(), (8,), m)\n", "possible"),
        ("    m = m.t()\n    return x.float() @ m\n", "likely"),
        ("    return F.layer_norm(x.float(), (8,), weight)\n", "possible"),
    ],
)
def test_the_matrix_that_a_helper_is_given(body: str, confidence: str) -> None:
    helper = f"def helper(x, {'weight' if 'weight' in body else 'm'}):\n{body}"
    caller = (
        "\n\nclass Net(nn.Module):\n    def forward(self, x, m):\n        return helper(x, m)\n"
    )
    assert shown("MP502", helper + caller, CAST) == [confidence]


def known(tmp_path: Path, asked: str, text: str = "") -> bool:
    """Whether the project around a file runs half precision, by what the file says."""
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    return bool(survey.around(tmp_path / asked, text).evidence)


@pytest.mark.parametrize(
    ("count", "text", "heard"),
    [
        (MANY, "class Net(nn.Module): ...\nmodel.half()", False),
        (MANY - 1, "class Net(nn.Module): ...\nmodel.half()", True),
        (MANY, "model.half()", True),
        (MANY, "class Net(nn.Module): ...\nscaler = torch.amp.GradScaler()", True),
    ],
)
def test_one_of_many_models_says_nothing_of_the_others(
    tmp_path: Path, count: int, text: str, heard: bool
) -> None:
    files = {f"pkg/models/m{i}.py": "import torch\n" for i in range(count)}
    files["pkg/models/one.py"] = f"import torch\nfrom torch import nn\n{text}\n"
    projects.write(tmp_path, files)
    assert known(tmp_path, "pkg/models/one.py")
    assert known(tmp_path, "pkg/models/m1.py") == heard


@pytest.mark.parametrize("package", [True, False])
def test_the_files_of_a_package_find_nothing_beside_them_by_a_bare_name(
    tmp_path: Path, package: bool
) -> None:
    up = "class Up:\n    def f(self):\n        self.n.half()\n"
    own = f"import torch\nfrom near import Net\n\n\n{up}"
    files = {
        "pkg/one.py": own,
        "pkg/near/net.py": "x = 1\n",
        "pkg/far/sub/net.py": "import torch\nscaler = torch.amp.GradScaler()\n",
        **({"pkg/__init__.py": ""} if package else {}),
    }
    projects.write(tmp_path, files)
    assert known(tmp_path, "pkg/near/net.py") != package
    assert known(tmp_path, "pkg/two.py", "import far\n") != package


def test_what_adds_adapters_makes_no_model_half(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef {}(model, dtype=torch.float16):\n    model.f(dtype)\n"
    projects.write(tmp_path, {"pkg/a.py": text.format("add_adapters"), "pkg/b.py": "x = 1\n"})
    assert not known(tmp_path, "pkg/b.py")
    projects.write(tmp_path, {"pkg/a.py": text.format("serve")})
    assert known(tmp_path, "pkg/b.py")
