"""What a project says of half precision as a whole: which place is told, and which files count."""

from __future__ import annotations

import os
import pickle
from itertools import permutations
from pathlib import Path

import pytest

from precision_lint.config import Overrides, Resolver
from precision_lint.project import amp, configs, files, hints
from precision_lint.project.amp import Project, Survey

F16, BF16 = "float16", "bfloat16"


def project(*lines: str, name: str = "train.py") -> Project:
    return Project().with_file(name, "\n".join(("import torch", *lines, "")).encode())


def place(found: Project) -> tuple[str | None, int | None]:
    """File and row of the evidence for mixed precision."""
    evidence = found.autocast
    assert evidence is not None and evidence.start is not None
    return evidence.filename, evidence.start.row


def test_nothing_is_known_of_nothing() -> None:
    nothing = Project()
    assert nothing.evidence == () and nothing.dtypes == nothing.half_dtypes == set()
    assert nothing.autocast_strength is nothing.half_strength is None


def test_evidence_has_a_place_of_each_kind() -> None:
    found = project("", "with torch.autocast('cuda'):", "    pass", "model.half()")
    assert place(found) == ("train.py", 3)
    assert found.half is not None and "`model.half()`" in found.half.message
    assert found.evidence == (found.autocast, found.half)


def test_a_comment_does_not_hide_what_comes_later() -> None:
    found = project("# scaler = GradScaler()", "scaler = GradScaler()")
    assert place(found) == ("train.py", 3)


def test_dtypes_add_up() -> None:
    found = project("context = torch.autocast(device, dtype=torch.float16)", "model.bfloat16()")
    assert found.dtypes == {F16, BF16} and found.half_dtypes == {BF16}


def test_a_long_spelling_is_cut() -> None:
    found = project(f"with torch.autocast('cuda', dtype={'x' * 300}): pass").autocast
    assert found is not None and found.message.endswith("...") and len(found.message) < 150


# which place is told


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        # strength first
        ("scaler = GradScaler(enabled=args.amp)", "scaler = GradScaler()"),
        ("parser.add_argument('--bf16')", "Trainer(precision='bf16-mixed')"),
        # float16 breaks more than bfloat16 does
        ("Trainer(precision='bf16-mixed')", "Trainer(precision='16-mixed')"),
        ("with accelerator.autocast(): pass", "Accelerator(mixed_precision='fp16')"),
    ],
)
def test_the_better_place_is_told(worse: str, better: str) -> None:
    assert place(project(worse, better)) == ("train.py", 3)
    assert place(project(better, worse)) == ("train.py", 2)


@pytest.mark.parametrize(
    "aside",
    ["examples/a.py", "scripts/a.py", "docs/a.py", "third_party/lib/a.py", "Benchmarks/a.py",
     "test_speed.py"],
)  # fmt: skip
def test_the_projects_own_code_is_told_rather(aside: str) -> None:
    line = b"import torch\nscaler = GradScaler()\n"
    found = Project().with_file(aside, line)
    assert place(found) == (aside, 2)
    assert place(found.with_file("lib/z.py", line)) == ("lib/z.py", 2)


def test_an_example_that_switches_on_is_told_rather_than_an_option() -> None:
    found = project("parser.add_argument('--amp')").with_file(
        "examples/a.py", b"import torch\nscaler = GradScaler()\n"
    )
    assert place(found) == ("examples/a.py", 2)


def test_the_first_of_equals_is_kept() -> None:
    first = project("scaler = GradScaler()")
    assert first.with_file("other.py", b"import torch\nscaler = GradScaler()\n") == first
    assert first.with_file("train.py", b"import torch\nscaler = GradScaler()\n") == first


def test_tensors_at_a_place_are_the_weakest() -> None:
    found = project("x = x.half()")
    assert found.half_strength == "local"
    assert found.half is not None and found.half.message.startswith("the project makes half")
    better = found.with_file("b.py", b"import torch\nparser.add_argument('--half')\n")
    assert better.half_strength == "flag"
    best = better.with_file("c.py", b"import torch\nmodel.half()\n")
    assert best.half_strength == "on"
    assert best.half is not None and best.half.filename == "c.py"


@pytest.mark.parametrize(
    "text", ["model.cuda().half()", "Net().to(device).half()", "net.eval().to(torch.bfloat16)"]
)
def test_a_model_that_is_moved_first_is_a_model(text: str) -> None:
    assert project(f"model = {text}").half_strength == "on"
    assert project("x = images.cuda().half()").half_strength == "local"


# files without torch


def test_a_tensors_methods_are_torchs_only_beside_torch() -> None:
    assert Project().with_file("a.py", b"model.half()\n") == Project()


@pytest.mark.parametrize(
    "text",
    ["fp16 = dict(loss_scale=512.)", "train.amp.enabled = True",
     "from transformers import TrainingArguments\nTrainingArguments(fp16=True)",
     "import lightning as L\nL.Trainer(precision=16)", "parser.add_argument('--amp')"],
)  # fmt: skip
def test_settings_count_without_torch(text: str) -> None:
    assert Project().with_file("a.py", text.encode()).autocast is not None


@pytest.mark.parametrize("other", ["tensorflow", "jax", "paddle"])
def test_settings_of_another_framework_do_not(other: str) -> None:
    text = f"import {other}\nparser.add_argument('--amp')\nuse_amp = True\n"
    assert Project().with_file("a.py", text.encode()) == Project()


# a tree of files


def scan(root: Path, **texts: str) -> Project:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        stem, _, suffix = path.name.rpartition("_")
        path = path.with_name(f"{stem}.{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import torch\n{text}\n" if suffix == "py" else f"{text}\n")
    return Survey.scan(root, (p for p in root.rglob("*") if p.is_file())).around(root / "a.py")


def test_scan_reads_code_and_configuration(tmp_path: Path) -> None:
    found = scan(tmp_path, train_yaml="trainer:\n  precision: 16", src__eval_py="model.bfloat16()")
    assert found.dtypes == {F16, BF16} and found.half_dtypes == {BF16}
    assert found.half is not None and found.half.filename is not None
    assert found.half.filename.endswith("src/eval.py")
    assert place(found) == (str(tmp_path / "train.yaml"), 2)


def test_names_are_relative_to_where_the_tool_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place(scan(tmp_path, train_yaml="use_amp: true")) == ("train.yaml", 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tests__train_py", "model.half()"),
        ("src__test__train_py", "model.half()"),
        ("src__tests__amp_yaml", "fp16: true"),
        ("src__test_model_py", "import pytest\nmodel.half()"),
        ("notes_txt", "model.half()"),
        ("package-lock_json", '{"fp16": true}'),
    ],
)
def test_scan_passes_over_tests_and_other_files(tmp_path: Path, name: str, text: str) -> None:
    assert scan(tmp_path, **{name: text}) == Project()


def test_a_script_whose_name_starts_with_test_is_read(tmp_path: Path) -> None:
    assert scan(tmp_path, test_net_py="model.half()").half is not None


def test_a_file_may_be_a_project_by_itself(tmp_path: Path) -> None:
    scan(tmp_path, train_py="import torch\nscaler = torch.amp.GradScaler()")
    file = tmp_path / "train.py"
    assert Survey.scan(file, [file]).around(file).autocast is not None


def test_a_root_inside_of_tests_is_read(tmp_path: Path) -> None:
    root = tmp_path / "tests" / "sample"
    root.mkdir(parents=True)
    assert scan(root, train_py="model.half()").half is not None


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    scan(
        tmp_path,
        a_yaml="amp_dtype: bfloat16",
        b_py="scaler = GradScaler()",
        c_py="scaler = GradScaler()",
        examples__a_py="model.half()",
        z_json='{"bf16": {"enabled": "auto"}}',
    )
    members = [path for path in tmp_path.rglob("*") if path.is_file()]
    found = [
        Survey.scan(tmp_path, order).around(tmp_path / "examples" / "z.py")
        for order in permutations(members)
    ]
    assert all(one == found[0] for one in found)
    assert place(found[0]) == (str(tmp_path / "b.py"), 2)


def test_unreadable_and_huge_files_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    os.mkfifo(tmp_path / "pipe.py")
    missing = [tmp_path / name for name in ("gone.py", "loop.yaml", "pipe.py", "never.py")]
    assert Survey.scan(tmp_path, missing) == Survey(tmp_path)
    monkeypatch.setattr(amp, "MAX_BYTES", 10)
    assert scan(tmp_path / "sub", train_py="model.half()") == Project()


def test_evidence_that_cannot_get_better_saves_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    full = project(
        "Trainer(precision='16-mixed')", "Trainer(precision='bf16-mixed')",
        "model.half()", "model.bfloat16()",
    )  # fmt: skip
    monkeypatch.setattr(amp, "statements", None)
    assert full.with_file("b.py", b"import torch\nmodel.half()\nscaler = GradScaler()\n") == full


@pytest.mark.parametrize(
    "text",
    ["# scaler = GradScaler()", "    >>> model.half()", "resample = 16", "x = x.to(torch.float32)",
     "with torch.autocast(device, enabled=False): pass", "n = sample_rate / half"],
)  # fmt: skip
def test_files_that_say_nothing_are_not_parsed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(amp, "statements", None)
    assert project(text) == Project()


def test_configurations_that_say_nothing_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "settings", None)
    for text in ("sampler: 1\nlamp: true\n", "precision: 32\namp: false\nfp16: null\n"):
        assert Project().with_file("a.yaml", text.encode()) == Project()


def test_a_project_travels_to_other_processes() -> None:
    found = project("scaler = GradScaler()", "model.half()")
    assert pickle.loads(pickle.dumps(found)) == found


# which files there are


def test_configuration_files_are_found_below_a_root(tmp_path: Path) -> None:
    for name in ("a.yaml", "b/c.yml", "b/d.json", "e.toml", "f.py", "g.txt", "build/h.yaml",
                 "skip/i.json"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("skip/\n")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    settings = Resolver(Overrides())(tmp_path)

    def below(suffixes: tuple[str, ...]) -> list[str]:
        found = files.below(tmp_path, settings, suffixes)
        return [str(path.relative_to(tmp_path)) for path in found]

    assert below(configs.SUFFIXES) == ["a.yaml", "b/c.yml", "b/d.json", "e.toml"]
    assert below((*files.SUFFIXES, *configs.SUFFIXES)) == [
        "a.yaml", "b/c.yml", "b/d.json", "e.toml", "f.py",
    ]  # fmt: skip
    assert files.below(tmp_path, settings) == [tmp_path / "f.py"]


@pytest.mark.parametrize(
    ("stated", "asked", "known"),
    [
        ("train_py", "pkg/models/net.py", True),
        ("pkg__engine_py", "pkg/models/net.py", True),
        ("pkg__utils__cuda_py", "pkg/models/net.py", True),
        ("pkg__a__vae__train_py", "pkg/a/parts/net.py", True),
        ("pkg__a__vae__train_py", "pkg/b/parts/net.py", False),
        ("one__configs__amp_yaml", "one/src/net.py", True),
        ("one__configs__deep__amp_yaml", "one/src/net.py", True),
        ("one__configs__amp_yaml", "two/src/net.py", False),
        ("examples__llm__train_py", "examples/llm/net.py", True),
        ("examples__llm__train_py", "examples/gan/net.py", False),
        ("examples__llm__train_py", "pkg/net.py", False),
        ("projects__one__one__net_py", "projects/one/tools/a.py", True),
        ("projects__one__one__net_py", "pkg/net.py", False),
        ("pkg__datasets__read_py", "pkg/models/net.py", False),
    ],
)
def test_what_a_place_speaks_of(tmp_path: Path, stated: str, asked: str, known: bool) -> None:
    text = "use_amp: true" if stated.endswith("yaml") else "scaler = torch.amp.GradScaler()"
    scan(tmp_path, **{stated: text})
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert (survey.around(tmp_path / asked).autocast is not None) == known


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ("pkg/bert/config.yml", False),
        ("pkg/training/config.yml", True),
        ("pkg/configs/config.yml", True),
        ("pkg/settings/config.yml", True),  # nothing there is a part
        ("config.yml", True),
    ],
)
def test_settings_of_a_part_say_nothing_of_the_others(
    tmp_path: Path, stated: str, known: bool
) -> None:
    scan(tmp_path, pkg__bert__net_py="x = 1", pkg__asr__net_py="x = 1", pkg__training__run_py="")
    (tmp_path / stated).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stated).write_text("mixed_precision: fp16")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    beside = (tmp_path / stated).parent / "net.py"
    assert survey.around(beside).autocast is not None
    assert (survey.around(tmp_path / "pkg/asr/net.py").autocast is not None) == known


BUILT = """\
class Trainer:
    def __init__(self, model):
        {}
        self.optimizer = torch.optim.SGD(model.parameters())

    def run(self):
        self.model = self.model.half()
"""
LAYER = "class Net(nn.Module):\n def forward(self, x):\n  return x\n"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("import lib.train.run", True),
        ("from lib.train import run", True),
        ("def main():\n    from lib import train", True),
        ("import os, lib", True),
        ("import library", False),
        ('"""Taken\nfrom lib, of old."""', False),
        ("if TYPE_CHECKING:\n    import lib", False),
        ("from lib import (", False),
        ("import other", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("asked", ["main.py", "tools/main.py"])
def test_a_program_hears_the_packages_that_it_imports(
    tmp_path: Path, asked: str, text: str, known: bool
) -> None:
    scan(tmp_path, lib__train__run_py="scaler = torch.amp.GradScaler()", other__net__a_py="x = 1")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert (survey.around(tmp_path / asked, text).autocast is not None) == known


def test_a_part_of_a_package_hears_no_other_part_for_importing_it(tmp_path: Path) -> None:
    scan(tmp_path, lib__lib__train__run_py="scaler = torch.amp.GradScaler()")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert survey.around(tmp_path / "lib/net/a.py", "import lib.lib").autocast is None


@pytest.mark.parametrize(
    ("imported", "known"),
    [
        ("from .net import Net", True),
        ("from . import net", True),
        ("from . import (\n    base,\n    net,\n)", True),
        ("from pkg.one.net import Net", True),
        ("from pkg.one import net", True),
        ("from net import Net", True),
        ("from ..net import Net", False),
        ("from pkg.two.net import Net", False),
        ("import networks", False),
    ],
)
def test_an_object_speaks_of_the_files_beside_it_that_it_is_made_of(
    tmp_path: Path, imported: str, known: bool
) -> None:
    text = f"{imported}\n\n\nclass Up:\n    def __init__(self):\n        self.net = Net().half()\n"
    scan(tmp_path, pkg__one__use_py=f"import torch\n{text}", pkg__one__net_py="x = 1")
    survey = Survey.scan(tmp_path, list(tmp_path.rglob("*.py")))
    assert bool(survey.around(tmp_path / "pkg" / "one" / "net.py").evidence) == known


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("class Animation:\n def __init__(self, net):\n  self.dtype = torch.float16", False),
        ("class Animation:\n def __init__(self, net):\n  dtype = torch.float16", False),
        ("class Upscaler:\n def __init__(self, model):\n  self.model = model.half()", False),
        ("class Detector(nn.Module):\n def serve(self):\n  self.half()", False),
        ("class Diffusion(nn.Module):\n def __init__(self, use_fp16=False):\n  pass", False),
        ("class Block(nn.Module):\n def forward(self, x):\n  autocast('cuda', x)", False),
        ("def small(amp_dtype=torch.float16):\n return Detector(amp_dtype)", False),
        ("def get_detector(kind, use_fp16=False):\n return KINDS[kind](use_fp16)", False),
        ("def make(use_fp16=False):\n return Trainer(use_fp16)", True),
        ("def run(use_fp16=False):\n return use_fp16", True),
        ("class NetConfig:\n fp16: bool = False", True),
        ("class NetConfig:\n fp16: bool = False\n" + LAYER, False),
        ("class Args:\n fp16: bool = False\n" + LAYER + "def f(loss):\n loss.backward()", True),
        (BUILT.format("self.model = Net()"), False),
        (BUILT.format("self.model = model"), True),
        ("class Config:\n dtype = torch.float16", True),
        ("class Runner:\n def __init__(self, precision='16-true'):\n  pass", True),
        ("class Trainer:\n def run(self, loss):\n  model.half()\n  loss.backward()", True),
        ("def load(model):\n model.half()", True),
        ("model.half()", True),
    ],
)
def test_what_an_object_holds_says_nothing_of_those_beside_it(
    tmp_path: Path, body: str, known: bool
) -> None:
    text = f"import torch\nfrom torch import autocast, nn\nfrom .net import Net\n{body}"
    files = dict.fromkeys(("pkg__one__net_py", "pkg__one__other_py", "pkg__two__net_py"), "x = 1")
    scan(tmp_path, pkg__one__use_py=text, **files)
    survey = Survey.scan(tmp_path, list(tmp_path.rglob("*.py")))
    assert survey.around(tmp_path / "pkg" / "one" / "use.py").evidence
    assert survey.around(tmp_path / "pkg" / "one" / "net.py").evidence
    assert bool(survey.around(tmp_path / "pkg" / "one" / "other.py").evidence) == known
    assert bool(survey.around(tmp_path / "pkg" / "two" / "net.py").evidence) == known


@pytest.mark.parametrize(
    ("files", "known"),
    [
        (["one/model.py", "two/model.py"], False),
        (["one/model/net.py", "two/common.py"], False),
        (["one/model.py", "one/__init__.py"], True),  # a package
        (["one/model.py", "common.py"], True),
        (["one/model.py", "src/common/__init__.py"], True),
        ([], True),  # nobody knows what it runs
    ],
)
def test_a_program_of_its_own_says_nothing_of_those_beside_it(
    tmp_path: Path, files: list[str], known: bool
) -> None:
    text = "import common\nimport torch\nfrom model import Net\nscaler = torch.amp.GradScaler()"
    scan(tmp_path, one__train_py=text, two__net_py="x = 1")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    survey = Survey.scan(tmp_path, list(tmp_path.rglob("*.py")))
    assert survey.around(tmp_path / "one" / "net.py").autocast is not None
    assert (survey.around(tmp_path / "two" / "net.py").autocast is not None) == known


PROGRAM = "import torch\nfor x in batches:\n    with torch.autocast('cuda'):\n        net(x)\n"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (PROGRAM, False),
        (f"import sys\nsys.path.append('..')\n{PROGRAM}", True),
        (f"from .nets import net\n{PROGRAM}", True),
        (f"from nets import net\n{PROGRAM}", True),  # PYTHONPATH may hold what holds it
        ("import torch\ndef run(net):\n    with torch.autocast('cuda'):\n        net()\n", True),
    ],
)
def test_a_program_that_imports_nothing_says_nothing_of_others(
    tmp_path: Path, text: str, known: bool
) -> None:
    scan(tmp_path, one__demo_py=text, two__net_py="x = 1", lib__nets_py="x = 1")
    survey = Survey.scan(tmp_path, list(tmp_path.rglob("*.py")))
    assert survey.around(tmp_path / "one" / "net.py").autocast is not None
    assert (survey.around(tmp_path / "two" / "net.py").autocast is not None) == known


@pytest.mark.parametrize("package", ["pkg", "src/pkg"])
def test_a_part_of_a_package_is_no_example_of_it(tmp_path: Path, package: str) -> None:
    (tmp_path / package / "contrib").mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    tool = tmp_path / package / "contrib" / "tracker.py"
    tool.write_text("import torch\nfrom pkg.models import Net\nmodel.half()")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert survey.around(tmp_path / package / "contrib" / "other.py").half is not None
    assert survey.around(tmp_path / package / "models" / "net.py").half is None


@pytest.mark.parametrize("package", ["pkg", "src/pkg"])
def test_an_example_speaks_of_the_packages_it_imports(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    text = "from pkg.models import Net\nmodel.half()"
    scan(tmp_path, examples__train_py=text, other__net_py="x = 1")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert survey.around(tmp_path / package / "models" / "net.py").half is not None
    assert survey.around(tmp_path / "other" / "net.py").half is None


def test_of_equal_statements_the_nearest_is_shown(tmp_path: Path) -> None:
    scan(tmp_path, train_py="use_amp = True", pkg__a__train_py="use_amp = True")
    survey = Survey.scan(tmp_path, [p for p in tmp_path.rglob("*") if p.is_file()])
    assert place(survey.around(tmp_path / "pkg" / "a" / "net.py"))[0] == str(
        tmp_path / "pkg" / "a" / "train.py"
    )


def test_a_file_that_is_not_saved_yet_counts(tmp_path: Path) -> None:
    survey = Survey.scan(tmp_path, [])
    path = tmp_path / "net.py"
    known = survey.with_file(path, "net.py", b"import torch\nmodel.half()")
    assert known.around(path).half is not None and survey.around(path).half is None


def test_lines_that_may_say_something_have_their_numbers() -> None:
    data = b"import torch\nx = autocast(fp16)\n\ny = 1\nz = x.half()  # bf16"
    assert hints.spoken(data) == {1: b"x = autocast(fp16)", 4: b"z = x.half()  # bf16"}
    assert hints.spoken(b"") == {}
