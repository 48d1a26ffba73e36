"""What a bound of the analysis cuts off is said, and nothing vanishes in silence."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from precision_lint import cli, gathering
from precision_lint.dataflow import calls, program
from precision_lint.dataflow.protocol import Step
from precision_lint.domains import dtypes
from precision_lint.domains.values import Symbol, Unknown
from precision_lint.engine import Engine
from precision_lint.project.code import Code
from precision_lint.typestate import machine, reports

BLOCK = """\
    loss = model(next(loader)).mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""
HEAD = 'import torch\nscaler = torch.amp.GradScaler("cuda")\n'


def train(times: int, name: str = "train") -> str:
    return f"\n\ndef {name}(model, opt, loader):\n{BLOCK * times}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int) -> list[str]:
    assert cli.main(["--isolated", "--output-format", "concise", *args, "."]) == code
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("times", [10, 110])
def test_a_block_that_is_repeated_is_found_each_time(
    times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.py").write_text(HEAD + train(times))
    (_, table, found, _) = said(capsys, "--statistics", code=1)
    assert table.split() == [str(times), "MP102", "[*]", "clip-before-unscale"]
    assert found.startswith(f"Found {times} errors")


def test_a_function_with_too_many_steps_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "STEPS", 60)
    Path("m.py").write_text(HEAD + train(2, "small") + train(20))
    line = "1 function (m.py: train) is not analysed to the end, so findings may be missing."
    for _ in range(2):  # the cache remembers it
        *found, count, last = said(capsys, code=1)
        assert len(found) == 2
        assert count.startswith("Found 2 errors")
        assert last == line
    Path("m.py").write_text(HEAD + train(20))
    assert said(capsys, code=0) == ["No findings.", line]
    assert said(capsys, "--statistics", code=0)[:3] == [
        "No findings.",
        line,
        "  m.py: train: it takes more steps than the analysis follows",
    ]


def test_several_functions_are_named_by_the_statistics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "STEPS", 12)
    Path("m.py").write_text(HEAD + train(20, "a"))
    Path("n.py").write_text(HEAD + train(20, "b"))
    *_, last = said(capsys, code=1)
    what = "2 functions are not analysed to the end, so findings may be missing"
    assert last == f"{what}; `--statistics` names them."
    lines = said(capsys, "--statistics", code=1)
    why = "it has more paths of GradScaler's protocol than the analysis follows"
    assert lines[lines.index(f"{what}.") + 1 :][:2] == [f"  m.py: a: {why}", f"  n.py: b: {why}"]


def test_what_is_too_long_is_followed_once_for_all_its_callers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "STEPS", 30)
    followed = []

    class Counted(machine.Machine):
        def run(self, trace: list[Step], states: machine.States) -> machine.Flow:
            followed.extend([1] if not self.frames and not self.silent else [])
            return super().run(trace, states)

    monkeypatch.setattr(reports, "Machine", Counted)
    callers = "".join(f"\n\ndef test_{n}():\n    train(net(), adam(), data())\n" for n in range(9))
    Path("m.py").write_text(HEAD + train(20) + callers)
    lines = said(capsys, code=1)
    assert len(followed) == 1
    assert lines[-1].startswith("10 functions are not analysed to the end")


def test_calls_that_are_not_followed_again_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "CONTEXTS", 2)
    body = "".join(f"    x = f(x, {number})\n" for number in range(9))
    Path("m.py").write_text(
        f"import torch\n\n\ndef f(x, n):\n    return x.exp() + n\n\n\ndef g(x):\n{body}"
    )
    lines = said(capsys, "--statistics", code=0)
    assert any("calls not followed again, so less is known" in line for line in lines), lines
    assert not any("not followed" in line for line in said(capsys, code=0))


def test_a_short_constructor_is_followed_for_each_of_many_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = """

class Encoder{0}(Encoder):
    def __init__(self, width):
        super().__init__(width)
        self.inner = nn.Linear(width, width).half()

    def forward(self, x):
        return self.out(self.inner(x.half()))
"""
    base = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)
"""
    Path("m.py").write_text(base + "".join(one.format(number) for number in range(20)))
    cli.main(
        ["check", "-n", "--precision", "bfloat16", "--select", "MP502", "--statistics", "m.py"]
    )
    said = capsys.readouterr().out
    assert "20  MP502" in said and "not followed" not in said


def test_importers_that_are_not_looked_at_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gathering, "IMPORTERS", 2)
    Path("pyproject.toml").write_text("")
    Path("m.py").write_text("import torch\n")
    for name in "abcde":
        Path(f"{name}.py").write_text("import torch\nimport m\n")
    assert cli.main(["--statistics", "m.py"]) == 0
    line = "3 files not looked at that import these or may run them; name their directory instead."
    assert line in capsys.readouterr().out.splitlines()
    assert cli.main(["--statistics", "."]) == 0
    assert "not looked at" not in capsys.readouterr().out


def test_lines_of_importers_are_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gathering, "IMPORTING_LINES", 5)
    Path("pyproject.toml").write_text("")
    Path("m.py").write_text("import torch\n")
    for name in "abcde":
        Path(f"{name}.py").write_text("import torch\nimport m\n")
    assert cli.main(["--statistics", "m.py"]) == 0
    assert "3 files not looked at that import these" in capsys.readouterr().out


LONG = """\
import torch


def scheduled(model, loader):
    try:
{lines}
    except Exception:
        pass
"""
APART = """\
import torch


def apart(x):
    return torch.matmul(x.half(), x.float())
"""


def test_a_file_is_judged_alike_behind_one_that_is_not_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "STEPS", 60)
    Path("a.py").write_text(LONG.format(lines="        model(next(loader))\n" * 80))
    Path("b.py").write_text(APART)
    found, *_ = said(capsys, code=1)
    assert found.startswith("b.py:5:12: MP502")


def test_a_class_whose_base_takes_steps_behind_a_function_that_took_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "STEPS", 60)
    long = LONG.format(lines="        model(next(loader))\n" * 80)
    method = "    def apart(self, x):\n        return torch.matmul(x.half(), x.float())\n"
    Path("m.py").write_text(f"{long}\n\nclass Apart(make(bases())):\n{method}")
    found, *_ = said(capsys, code=1)
    assert "MP502" in found


PREPARE = """\
from convert import convert


def prepare(model, settings):
    names = []
    for name in settings:
        if name:
            names.append(name)
        else:
            names.append("none")
    message = ", ".join(names)
    print(message)
    {result}
    return model
"""


@pytest.mark.parametrize(("result", "found"), [("convert(model)", 1), ("print(convert)", 0)])
def test_a_function_of_another_file_is_followed_to_what_changes_its_objects(
    result: str, found: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pyproject.toml").write_text("")
    Path("convert.py").write_text("def convert(model):\n    model.half()\n")
    Path("prepare.py").write_text(PREPARE.format(result=result))
    Path("m.py").write_text(
        "import torch\nfrom prepare import prepare\n\nmodel = torch.nn.Linear(4, 4)\n"
        "prepare(model, ['a'])\nmodel(torch.zeros(2, 4))\n"
    )
    cli.main(["--isolated", "--output-format", "concise", "."])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("m.py:6") for line in lines) == found, lines


def test_what_a_file_shows_does_not_depend_on_where_it_is_first_needed() -> None:
    Path("late.py").write_text("import torch\n\nmodel = torch.nn.Linear(4, 4).half()\n")
    Path("m.py").write_text(
        "import late\n\n\ndef run(x, fast):\n    if fast:\n        x = late.model(x)\n    return x\n"
    )
    facts = Engine(Code(Path.cwd(), ("late.py", "m.py"))).facts("m.py")
    assert [(one.place.row, one.flag) for one in facts.signs] == [(3, False)]


def test_what_a_file_takes_an_object_for_says_nothing_of_it_in_the_next() -> None:
    Path("shared.py").write_text("import library\n\nscale = library.scale()\n")
    use = "import torch\nfrom shared import scale\n\n\ndef run(x):\n    {}\n"
    amp = (
        "with torch.autocast('cuda', dtype=torch.float16):\n        return scale.weight @ x.half()"
    )
    Path("a.py").write_text(use.format(amp))
    Path("b.py").write_text(use.format("return scale.weight @ x.half()"))
    names = ("a.py", "b.py", "shared.py")
    one, both = Engine(Code(Path.cwd(), names)), Engine(Code(Path.cwd(), names))
    both.facts("a.py")
    assert one.facts("b.py") == both.facts("b.py")
    assert all(key in BEFORE for key in _kept(both)), "what b.py asked for is kept"


BEFORE = frozenset({("class of", "")})
"""What reading ``shared.py`` says of its object."""


def _kept(engine: Engine) -> list[object]:
    module = engine.program.modules["shared.py"]
    scale = module.variables["scale"]
    assert isinstance(scale, Unknown)
    return [*scale.symbol.attributes, *([] if scale.symbol.tensor is None else ["tensor"])]


def test_objects_of_a_file_go_without_a_garbage_collector() -> None:
    lines = [f"    total += x.part{n}.{'other' if n % 2 else 'more'} * {n}" for n in range(300)]
    text = ["import torch", "", "", "def run(x):", "    total = torch.zeros(1)", *lines]
    Path("m.py").write_text("\n".join([*text, "    return total", ""]))
    engine = Engine(Code(Path.cwd(), ("m.py",)))
    gc.collect()
    gc.disable()
    try:
        engine.facts("m.py")
        engine.program.release()
        left = sum(type(one) is Symbol for one in gc.get_objects())
    finally:
        gc.enable()
    assert left < 100  # of over 600


@pytest.mark.parametrize("call", ["mul", "where", "cdist", "linear", "addmm", "pow"])
def test_operands_that_a_sequence_holds(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``f(*values)`` gives all operands, however many there are."""
    Path("m.py").write_text(
        f"import torch\n\n\ndef f(values):\n    return torch.square(torch.{call}(*values).half().exp())\n"
    )
    cli.main(["--isolated", "--output-format", "concise", "--precision", "float16", "."])
    assert "MP003" not in capsys.readouterr().out


def test_an_object_that_is_found_in_itself() -> None:
    """A long way around from an unknown object to itself ends."""
    names = [f"part{n}" for n in range(2_000)]
    symbols = [Unknown(Symbol(name, dtypes.V_ANY, 0)) for name in names]
    for one, other in zip(symbols, symbols[1:] + symbols[:1], strict=True):
        one.symbol.attributes["next"] = other
    found = machine.Machine.__new__(machine.Machine)
    found.renamed = []
    assert len(found._all_of(symbols[0])) == 64
