"""Witnesses end to end: searched in children, proven, cured, contained."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precision_lint import cli, inspection
from precision_lint.api import Applicability
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import emit, sweep, told, users, witnesses
from precision_lint.harness.children import Children
from precision_lint.harness.plan import Plan
from precision_lint.harness.witnesses import Verdict
from tests.witnessing import REGION, plans, write

pytest.importorskip("torch")

PROVEN = {
    "log": REGION + "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8).mean()\n",
    "backward": (
        "def loss(x):\n    p = x.half().sigmoid()\n    return torch.log(p.clamp(min=1e-6))\n"
    ),
    "einsum": REGION
    + "def pool(a, b):\n    return torch.einsum('bnhw,bchw->bnc', a.sigmoid(), b)\n",
    "cdist": "def cost(a, b):\n    return torch.cdist(a.half(), b.half(), p=1)\n",
    "mismatch": (
        "def turn(x):\n"
        "    x = x.half()\n"
        "    eye = torch.eye(x.shape[-1], device=x.device)\n"
        "    return x @ eye\n"
    ),
    "noise": (
        "def gumbel(x):\n"
        "    u = torch.rand_like(x.half())\n"
        "    return -torch.log(-torch.log(u + 1e-8) + 1e-8)\n"
    ),
}
HOSTILE = {
    "hang": "    while x is not None:\n        x = x + 0\n    return x\n",
    "write": "    with open({left!r}, 'w') as file:\n        file.write('x')\n    return x\n",
    "append": "    with open({kept!r}, 'a') as file:\n        file.write('x')\n    return x\n",
    "stdin": "    return x * float(input())\n",
    "memory": "    kept = []\n    for _ in range(1 << 40):\n"
    "        kept.append([0] * (1 << 20))\n    return x\n",
    "leave": "    getattr(sys, 'exit')(3)\n    return x\n",
    "recursion": "    return helper(x) if x.numel() else x\n",
    "inside": "    with open('mine.txt', 'w') as file:\n        file.write('x')\n    return x\n",
    "noise": "    print('noise')\n    return x\n",
}


def searched(directory: Path, texts: dict[str, str], **limits: Any) -> dict[str, Verdict]:
    found: list[Plan] = []
    for name, text in texts.items():
        [one] = plans(write(directory, text, f"{name}.py"))
        found.append(one)
    return {
        Path(one.finding.filename).stem: one for one in witnesses.search(found, jobs=2, **limits)
    }


ELSEWHERE = {
    "inner": """\
def outer(x):
    def inner(y):
        return torch.log(y.half().sigmoid() + 1e-8)
    return inner(x)
""",
    "script": """\
x = torch.linspace(-40.0, 40.0, 9)
print(torch.log(x.half().sigmoid() + 1e-8).sum())
""",
    "needs": """\
def loss(logits, table):
    print(table["size"])
    return torch.log(logits.half().sigmoid() + 1e-8)
""",
    "side": """\
def loss(logits):
    return torch.log(logits.half().sigmoid() + 1e-8)

open("/nowhere/at/all")
""",
    "whole": """\
def loss(logits):
    return torch.log(logits.half().sigmoid() + 1e-8).isnan()
""",
    "right": """\
def loss(logits):
    low = torch.log(logits.half().sigmoid() + 1e-8)
    print(low)
    return logits.float()
""",
}
REASONS = {
    "inner": "it is in a function inside of another one",
    "script": "it is in no function, so that importing the file runs it",
    "needs": "it needs 'table', on which the failure does not depend",
    "side": "importing it does not work here (FileNotFoundError",
    "whole": "called whole, it returns no numbers",
    "right": "called whole, it is right on these inputs",
}


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    return searched(tmp_path_factory.mktemp("proven"), PROVEN)


@pytest.mark.parametrize("name", PROVEN)
def test_findings_are_proven_and_cured(name: str, proven: dict[str, Verdict]) -> None:
    one = proven[name]
    assert one.outcome == "proven", one.reason
    assert one.fixed is not None and one.fix


def test_a_witness_fails_as_its_rule_says(proven: dict[str, Verdict]) -> None:
    kinds = {name: (one.answer["phase"], one.answer["kind"]) for name, one in proven.items()}
    assert kinds["log"] == ("forward", "inf")
    assert kinds["backward"][0] == "backward" and kinds["backward"][1] in ("inf", "nan")
    assert kinds["einsum"] == ("forward", "inf")
    assert kinds["cdist"] == kinds["mismatch"] == ("forward", "raises")


def test_a_witness_is_drawn(tmp_path: Path) -> None:
    """Its error against the magnitude of its inputs: where it breaks, and that the fix cures it."""
    (one,) = searched(tmp_path, {"log": PROVEN["log"]}, sweep=True).values()
    drawn = sweep.Sweep(**one.answer["sweep"])
    at = list(drawn.steps).index(1.0)
    half, single = drawn.errors["float16"], drawn.errors["float32"]
    assert half["before"][at] == sweep.BROKEN
    cured, exact = half["after"][at], single["before"][at]
    assert isinstance(cured, float) and cured < 0.02
    assert isinstance(exact, float) and exact < 1e-3
    assert all(len(column) == len(drawn.steps) for column in half.values())


def test_what_is_not_asked_for_is_not_drawn(proven: dict[str, Verdict]) -> None:
    assert all(one.answer["sweep"] is None for one in proven.values())


def test_emitted_tests_notice_the_bug(tmp_path: Path) -> None:
    """Copies show it and its cure; the code itself fails until it is mended."""
    found = searched(tmp_path, {**PROVEN, **ELSEWHERE})
    paths = emit.write(found.values(), tmp_path / "tests")
    lint = [sys.executable, "-m", "precision_lint", "-n", "--isolated", "--confidence", "possible"]
    linted = subprocess.run([*lint, "tests"], capture_output=True, text=True, cwd=tmp_path)
    assert linted.returncode == 0, linted.stdout  # else --fix would cure what shows the bug
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(tmp_path / "tests"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    count = len(PROVEN) + len(ELSEWHERE)
    told = f"{len(PROVEN)} failed, {2 * count} passed"
    assert told in run.stdout, run.stdout[-3000:]
    assert run.stdout.count("FAILED") == run.stdout.count("::test_the_code_itself") == len(PROVEN)
    for name in found:
        path = tmp_path / f"{name}.py"
        subprocess.run([*lint, "--fix", str(path)], capture_output=True, cwd=tmp_path)
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert f"{2 * count + len(PROVEN)} passed" in run.stdout, run.stdout[-3000:]
    assert len(paths) == count


def test_emitted_tests_say_why_they_hold_a_copy(tmp_path: Path) -> None:
    found = searched(tmp_path, ELSEWHERE)
    for name, reason in REASONS.items():
        [path] = emit.write([found[name]], tmp_path / "tests")
        text = " ".join(path.read_text().split())
        assert reason in text and "test_the_code_itself" not in text, name


def test_a_fix_in_a_caller_is_executed_there(tmp_path: Path) -> None:
    text = """\
def bce(p, y, eps=1e-8):
    return -(y * torch.log(p + eps) + (1 - y) * torch.log(1 - p + eps)).mean()


def step(model, x, y, scaler):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = bce(model(x).sigmoid(), y)
    scaler.scale(loss).backward()
"""
    found = witnesses.search(plans(write(tmp_path, text)))
    assert [one.plan.finding.code for one in found] == ["MP301", "MP302"]
    for one in found:
        assert one.outcome == "proven" and one.fixed is not None and not one.answer["note"]
        assert ".float().sigmoid()" in one.fixed and "def bce" in one.fixed


def test_inputs_can_be_pasted(proven: dict[str, Verdict]) -> None:
    import torch

    for one in proven.values():
        names: dict[str, Any] = {"torch": torch}
        exec(told.inputs(one), names)
        function: dict[str, Any] = {}
        exec(one.variant.original, function)
        given = [names[each["name"]] for each in one.answer["inputs"]]
        assert all(isinstance(value, torch.Tensor) for value in given)
        if one.answer["kind"] == "raises":
            with pytest.raises(RuntimeError):
                function["isolated"](*given)


def test_code_without_the_hazard_is_not_reproduced(tmp_path: Path) -> None:
    """The finding claims a value that the code around it keeps away."""
    text = REGION + (
        "def loss(x):\n"
        "    shifted = x.sigmoid()\n"
        "    shifted.data.clamp_(0.25, 0.75)\n"
        "    return torch.log(shifted + 1e-8)\n"
    )
    [verdict] = searched(tmp_path, {"safe": text}, seconds=15).values()
    assert verdict.outcome == "not reproduced"
    assert verdict.reason.startswith("no inputs were found")


def test_a_fix_that_changes_values_on_purpose_is_said_to_run(tmp_path: Path) -> None:
    """A mask is filled with the least half number instead, which is another one than before."""
    text = "import torch\n\n\ndef fill(scores, banned):\n    return scores.masked_fill(banned, -1e10)\n"
    stated = Overrides(select=("MP310",), no_cache=True, precision=("float16",))
    found = inspection.examine([write(tmp_path, text)], Resolver(stated, None, True))
    [one] = users.plans(found, [])
    [verdict] = witnesses.search([one], seconds=15)
    assert verdict.reason.endswith("but after the fix it runs, with other values than in float32")


def test_what_an_assignment_gives_is_searched(tmp_path: Path) -> None:
    """The finding is the whole statement: a step of a moving average."""
    text = """\
def update(ema, model, decay=0.9999):
    for kept, new in zip(ema.parameters(), model.parameters()):
        kept.data = decay * kept.data + (1 - decay) * new.data
"""
    stated = Overrides(select=("MP407",), no_cache=True, precision=("float16",))
    found = inspection.examine([write(tmp_path, text)], Resolver(stated, None, True))
    [one] = users.plans(found, [])
    [verdict] = witnesses.search([one])
    assert verdict.outcome == "proven", verdict.reason
    assert [given["name"] for given in verdict.answer["inputs"]] == ["kept", "new"]


def test_a_fix_that_does_not_cure_proves_nothing(tmp_path: Path) -> None:
    """Unless it is only shown, and says so itself."""
    [one] = plans(write(tmp_path, PROVEN["log"]))
    for variant in one.variants:
        variant.fixed = [variant.original.replace("1e-08", "1e-09")]
    [verdict] = witnesses.search([one], seconds=15)
    assert verdict.outcome == "not reproduced"
    assert verdict.reason.endswith("but after the fix it does so as well")
    fix = one.finding.fix
    assert fix is not None
    shown = replace(fix, applicability=Applicability.DISPLAY, reason="too late")
    one.finding = replace(one.finding, fix=shown)
    [verdict] = witnesses.search([one], seconds=15)
    assert verdict.outcome == "proven" and verdict.fixed is None
    assert "  after:  the fix is only shown (too late)\n" in told.as_text([verdict])


@pytest.fixture(scope="module")
def contained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Verdict], Path]:
    home = tmp_path_factory.mktemp("hostile")
    (home / "kept.txt").write_text("kept")
    paths = {"left": str(home / "left.txt"), "kept": str(home / "kept.txt")}
    texts = {
        name: "import sys\ndef helper(x):\n"
        + (body.format(**paths) if "{" in body else body)
        + REGION
        + "def loss(x):\n    return torch.log(helper(x).sigmoid() + 1e-8)\n"
        for name, body in HOSTILE.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        found = searched(home, texts, seconds=12, memory=1 << 30)
        assert list(Path(tempfile.gettempdir()).iterdir()) == []
    return found, home


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hang", "it ran longer than 12 s and was ended"),
        ("write", "it writes "),
        ("append", "it writes "),
        ("stdin", "EOFError"),
        ("memory", "MemoryError"),
        ("leave", "it ends the interpreter"),
        ("recursion", "RecursionError"),
    ],
)
def test_hostile_code_is_contained(
    name: str, reason: str, contained: tuple[dict[str, Verdict], Path]
) -> None:
    verdict = contained[0][name]
    assert verdict.outcome == "not isolated"
    assert reason in verdict.reason


@pytest.mark.parametrize("name", ["inside", "noise"])
def test_harmless_habits_do_not_stop_a_search(
    name: str, contained: tuple[dict[str, Verdict], Path]
) -> None:
    assert contained[0][name].outcome == "proven"


def test_nothing_is_left_behind(contained: tuple[dict[str, Verdict], Path]) -> None:
    home = contained[1]
    assert {one.name for one in home.iterdir()} == {f"{n}.py" for n in HOSTILE} | {"kept.txt"}
    assert (home / "kept.txt").read_text() == "kept"
    assert not Path("mine.txt").exists()


REFUSED = {
    "fork": "os.fork()",
    "system": "os.system('true')",
    "spawn": "subprocess.run(['true'])",
    "kill": "os.kill(os.getppid(), 0)",
    "connect": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "remove": "os.remove(KEPT)",
    "rename": "os.rename(KEPT, KEPT + '.gone')",
    "mkdir": "os.mkdir(KEPT + '.d')",
    "truncate": "os.truncate(KEPT, 0)",
    "low level write": "os.open(KEPT, os.O_WRONLY)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_child_refuses(name: str, tmp_path: Path) -> None:
    """In a process that gave up its rights, whatever the slicing let through."""
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    home = tmp_path / "home"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = REFUSED[name].replace("KEPT", repr(str(kept)))
        code = code.replace("PORT", str(server.getsockname()[1]))
        script = (
            "import os, socket, subprocess\n"
            "from pathlib import Path\n"
            "from precision_lint.harness import sandbox\n"
            "sandbox.limit(1 << 32, 60)\n"
            "sandbox.refuse(Path.cwd())\n"
            "Path('inside.txt').write_text('fine')\n"
            f"try:\n    {code}\n"
            "except sandbox.Refused:\n    print('refused')\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=home
        )
    assert run.stdout == "refused\n", run.stderr
    assert kept.read_text() == "kept" and [one.name for one in home.iterdir()] == ["inside.txt"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has network namespaces")
def test_there_is_no_network() -> None:
    script = (
        "from pathlib import Path\n"
        "from precision_lint.harness import sandbox\n"
        "granted = sandbox.part(Path.cwd())\n"
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', PORT), 2)\n    reached = True\n"
        "except OSError:\n    reached = False\n"
        "print(granted, reached, flush=True)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = script.replace("PORT", str(server.getsockname()[1]))
        run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    if run.stdout.startswith("False"):
        pytest.skip("the kernel grants no network of one's own")
    assert run.stdout == "True False\n"


def test_a_crash_loses_one_finding(tmp_path: Path) -> None:
    [good] = plans(write(tmp_path, PROVEN["log"]))
    [bad] = plans(write(tmp_path, PROVEN["log"], "bad.py"))
    bad.variants[0].original = "import os\ndef isolated(x):\n    os.abort()\n"
    found = {one.plan.finding.filename: one for one in witnesses.search([bad, good])}
    assert found[good.finding.filename].outcome == "proven"
    crashed = found[bad.finding.filename]
    assert crashed.outcome == "not isolated"
    assert crashed.reason.startswith("it ended its process (exit status -6")


def test_stopped_children_leave_what_was_found(tmp_path: Path) -> None:
    [one] = plans(write(tmp_path, PROVEN["log"]))
    children = Children()
    children.stop()
    assert list(witnesses.search([one], children=children)) == []


def test_main_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from precision_lint import inspection
    from precision_lint.config import Overrides, Resolver

    path = write(tmp_path, PROVEN["log"])
    page, tests = tmp_path / "page.html", tmp_path / "tests"

    def files(*paths: Path) -> Any:
        return inspection.examine(paths, Resolver(Overrides(no_cache=True), None, True))

    assert users.main(files(path), output_format="json", report=page, tests=tests) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("verify executes parts of this code")
    [entry] = json.loads(captured.out)["findings"]
    assert (entry["code"], entry["verdict"]) == ("MP301", "proven")
    assert entry["inputs"] and "isolated" in entry["original"]
    assert "MP301" in page.read_text() and len(list(tests.iterdir())) == 1
    assert users.main(files(path), keyword="MP999") == 0
    assert "no findings" in capsys.readouterr().out
    assert users.main(files(tmp_path / "absent.py")) == 2
    assert "absent.py" in capsys.readouterr().err


def test_a_missing_path_announces_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["verify", "-n", "nothere.py"]) == 2
    said = capfd.readouterr()
    assert said.err == "nothere.py: no such file or directory; check the path\n"
    assert said.out == "no findings\n"


def test_what_raises_in_every_precision_is_proven_by_its_fix(tmp_path: Path) -> None:
    """No region can be entered with this argument, so float32 is no reference; the fix is."""
    text = 'def pool(a, b):\n    with torch.autocast("cuda", True):\n        return a @ b\n'
    [verdict] = searched(tmp_path, {"argument": text}).values()
    assert verdict.outcome == "proven", verdict.reason
    assert verdict.answer["kind"] == "raises" and "TypeError" in verdict.answer["before"]
    assert verdict.fixed is not None and "enabled=True" in verdict.fixed


def test_what_counts_is_off_by_numbers_not_by_shares(tmp_path: Path) -> None:
    """2,049 rounds to 2,048: nothing of the largest value, and another token."""
    text = "def ranks():\n    return torch.arange(5000).half()\n"
    [verdict] = searched(tmp_path, {"ranks": text}).values()
    assert verdict.outcome == "proven", verdict.reason
    assert verdict.answer["kind"] == "absolute" and "off by 2," in verdict.answer["before"]
    emit.write([verdict], tmp_path / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    """float16 draws other numbers than float32; both are as right."""
    from precision_lint.harness.trial import Argument, Condition, Program, forward_failure, full

    text = "def scores(x):\n    return (torch.rand_like(x.half()) + x.half().sigmoid()).log()\n"
    program = Program("import torch\n" + text.replace("scores", "isolated"), "drawn")
    argument = Argument("x", "torch.zeros(40, dtype=torch.float64)")
    condition = Condition("cpu", "float16", "low", False)
    seen = full(program, [argument], condition)
    assert seen is not None and seen.drew
    assert forward_failure(program, [argument], condition, seen) is None
