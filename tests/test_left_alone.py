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
MIXED = 'import torch\n\nwith torch.autocast("cuda"):\n    net()\n'
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.window = torch.hann_window(1024)
        self.sequence = nn.Sequential(nn.Linear(8, 8), {})

    def forward(self, x, mask=None):
        {}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(code: str, text: str, run: str = HALF, head: str = HEAD) -> list[str]:
    """The confidences of what a rule finds in net.py."""
    projects.write(Path.cwd(), {"net.py": head + text, "run.py": run})
    result = projects.check(Path("net.py"), confidence=Confidence.POSSIBLE)
    return [d.confidence.value for d in result.diagnostics if d.code == code]


def net(*lines: str) -> str:
    return NET.format("nn.GELU()", "\n        ".join(lines))


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
        (("return F.normalize(self.proj(x), 2, -1, 1e-10)",), "likely"),
        (("x = self.proj(x)", "return F.normalize(x[1:] - x[:-1])"), "likely"),
        (("x = self.proj(x)", "return F.normalize(x[1:] + x[:-1])"), "possible"),
        (("x = self.proj(x)", "d = x[1:] - x[:-1]", "return F.normalize(d)"), "likely"),
        (("return F.normalize(self.proj(x) * mask)",), "likely"),
        (("x = torch.relu(x)", "return F.normalize(self.proj(x))"), "likely"),
        (("x = x.half()", "return F.normalize(x)"), "certain"),
    ],
)
def test_vectors_that_nothing_makes_zero(lines: tuple[str, ...], confidence: str) -> None:
    body = net(*lines).replace(", mask=None", ", mask" if "mask" in lines[0] else "")
    assert shown("MP307", body) == [confidence]


def test_a_layer_that_makes_vectors_zero_counts_as_well() -> None:
    body = "return F.normalize(self.sequence(x))"
    assert shown("MP307", NET.format("nn.GELU()", body).replace(", mask=None", "")) == ["possible"]
    assert shown("MP307", NET.format("nn.ReLU()", body).replace(", mask=None", "")) == ["likely"]


@pytest.mark.parametrize("home", ["F", "self.F", "nnf", "torch.nn.functional"])
def test_modules_of_torch_are_known_where_no_import_tells(home: str) -> None:
    body = net(f"return {home}.normalize(self.proj(x) * mask)")
    head = "from common import *\nimport torch\nfrom torch import nn\n\n\n"
    assert shown("MP307", body, head=head) == ["likely"]


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


@pytest.mark.parametrize(
    ("body", "confidence"),
    [
        ("    return x.float() @ m\n", "possible"),
        ("    if m is None:\n        m = identity(x)\n    return x.float() @ m\n", "possible"),
        ("    y = x.float()\n    y = y / y.norm()\n    return y @ m\n", "possible"),
        ("    return F.layer_norm(x.float(), (8,), m)\n", "possible"),
        ("    m = m.t()\n    return x.float() @ m\n", "likely"),
        ("    k = torch.eye(8, device=x.device)\n    return k @ m\n", "likely"),
        ("    y = torch.softmax(x.float(), -1)\n    return y @ m\n", "likely"),
        ("    return F.linear(x.float(), weight)\n", "likely"),
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
        (MANY, "def convert(model: nn.Module):\n    return model.half()", True),
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


@pytest.mark.parametrize("gone", ["one.py", "new/one.py"])
def test_a_file_that_is_not_saved_yet_is_one_of_none(tmp_path: Path, gone: str) -> None:
    text = b"import torch\nfrom torch import nn\nclass Net(nn.Module): ...\nNet().half()\n"
    survey = Survey.scan(tmp_path / gone, []).with_file(tmp_path / gone, gone, text)
    assert survey.around(tmp_path / gone).evidence
    survey = Survey.scan(tmp_path, []).with_file(tmp_path / gone, gone, text)
    assert survey.around(tmp_path / gone).evidence


@pytest.mark.parametrize(
    ("imports", "package"),
    [
        ("", False),
        ("from .a import b\n", True),
        ("from pkg.a import b\n", True),
        ("import a\n", False),
    ],
)
@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize("home", ["pkg", "src/pkg"])
def test_the_files_of_a_package_find_nothing_beside_them_by_a_bare_name(
    tmp_path: Path, home: str, imports: str, package: bool, init: bool
) -> None:
    up = "class Up:\n    def f(self):\n        self.n.half()\n"
    own = f"import torch\n{imports}from near import Net\n\n\n{up}"
    files = {
        f"{home}/one.py": own,
        f"{home}/near/net.py": "x = 1\n",
        f"{home}/far/sub/net.py": "import torch\nscaler = torch.amp.GradScaler()\n",
        **({f"{home}/__init__.py": ""} if init else {}),
    }
    projects.write(tmp_path, files)
    assert known(tmp_path, f"{home}/near/net.py") == (not package or not init)
    assert known(tmp_path, f"{home}/two.py", f"{imports}import far\n") == (not package or not init)


STEP = """\
def train(net, batches, optimizer, scaler, skip=True):
    for x in batches:
        scaler.scale(net(x).mean()).backward()
        {unscale}
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if {test}:
            optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()
            {last}
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ({}, 0),
        ({"test": "not torch.isfinite(norm)", "last": "break"}, 0),
        ({"test": "norm > 9"}, 1),
        ({"last": "pass"}, 1),
        ({"unscale": "pass"}, 1),
        ({"test": "torch.isfinite(norm)", "last": "pass"}, 1),
    ],
)
def test_a_step_that_is_skipped_on_purpose(parts: dict[str, str], count: int) -> None:
    unscale = "scaler.unscale_(optimizer)"
    given = {
        "unscale": unscale,
        "test": "norm > 9 and skip",
        "last": "continue",
        **parts,
    }
    assert len(shown("MP109", STEP.format(**given))) == count


def test_a_condition_around_the_backward_pass_skips_no_step() -> None:
    text = """\
def train(net, batches, optimizer, scaler, skip):
    for x in batches:
        if not skip:
            scaler.scale(net(x).mean()).backward()
            scaler.unscale_(optimizer)
            optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()
            continue
        print(x)
"""
    assert len(shown("MP109", text)) == 1
