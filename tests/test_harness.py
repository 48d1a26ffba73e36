"""The proofs of all rules, and that a proof can fail."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_lint import fixer, registry
from precision_lint.api import Applicability, Rule
from precision_lint.harness import collect, expectations, judge, verify, worker
from precision_lint.harness.cases import Case, Failure, InvalidCase
from precision_lint.harness.collect import InvalidProof, Proof
from precision_lint.harness.execute import Fault, flatten
from precision_lint.harness.judge import Cell
from precision_lint.source import Source

INF: dict[str, Any] = {"float16": Failure.INF, "bfloat16": None}
RULES = registry.rules()

MODULE = """\
import torch

def loss(x):
    return torch.log(torch.sigmoid(x) + 1e-8)

def project(points, w):
    return points @ w

def add(x):
    return x + torch.ones(3)

def crash(x):
    import os
    os.abort()

def hang(x):
    while True:
        x = x + 0

def leave(x):
    print("noise on standard output")
    return x * 2.0

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([20.0]))

    def forward(self, x):
        return torch.log(torch.sigmoid(x * self.scale) + 1e-8)

class Region(torch.nn.Module):
    def forward(self, x, w):
        with torch.autocast("cuda"):
            return (x @ w).sum(-1)

def norm(x):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        value = (w * x).sum()
    scaler.scale(value).backward()
    torch.nn.utils.clip_grad_norm_([w], 1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return {"gradient": w.grad.norm(), "moved": (w - 1).norm()}
"""
FIXED = MODULE.replace("torch.sigmoid(x)", "torch.sigmoid(x.float())")
FIXED = FIXED.replace("torch.ones(3)\n\ndef", "torch.ones(3, dtype=x.dtype)\n\ndef")
CLIPPED = MODULE.replace(
    "    torch.nn.utils.clip", "    scaler.unscale_(optimizer)\n    torch.nn.utils.clip"
)
CLIPPED = CLIPPED.replace("1.0)\n    scaler.unscale_(optimizer)\n", "1.0)\n")
PROOF = """\
import torch
from precision_lint.harness.cases import Case, Failure, constant, full, low

def line(*shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-30.0, 12.0, count, dtype=torch.float64).reshape(shape)

INF = {{"float16": Failure.INF, "bfloat16": None}}
CASES = (
    {case},
)
"""


def write(folder: Path, *declared: str) -> Path:
    """A fixture folder with these cases."""
    (folder / "module.py").write_text(MODULE, encoding="utf-8")
    text = PROOF.format(case=",\n    ".join(declared))
    (folder / "proof.py").write_text(text, encoding="utf-8")
    return folder


def cells(
    folder: Path, declared: str, fixed: str | None = FIXED, original: str = MODULE
) -> list[Cell]:
    """What one case comes to, executed in this process."""
    [case] = collect.load_cases(write(folder, declared))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge.prove(case, folder / "module.py", original, fixed, "cpu")


def answers(folder: Path, *declared: str, **limits: Any) -> dict[int, Any]:
    """What a child process answers, by case."""
    pairs: dict[int, tuple[str, str | None]] = dict.fromkeys(range(len(declared)), (MODULE, None))
    job = worker.Job(write(folder, *declared), pairs, **limits)
    return {index: answer for _, index, answer in worker.run([job])}


def verdicts(found: list[Cell]) -> dict[str, str]:
    return {f"{cell.policy}/{cell.dtype}/{cell.phase}": cell.verdict for cell in found}


def reasons(found: list[Cell]) -> str:
    return "\n".join(reason for cell in found for reason in cell.reasons)


NEVER = '{"float16": None, "bfloat16": None}'


def declare(entry: str = '"loss"', inputs: str = "line(16)", **fields: str) -> str:
    """The text of a Case; fields are Python source."""
    given = {"before": "INF"} | fields
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return f'Case("module.py", {entry}, lambda: ({inputs},), {words})'


LOSS = declare()


# The proofs that ship


@pytest.fixture(scope="session")
def results() -> dict[str, verify.Result]:
    proofs = [collect.proof(rule) for rule in RULES.values()]
    return {result.rule.code: result for result in verify.prove(proofs, jobs=2)}


@pytest.mark.parametrize("code", RULES)
def test_a_rule_ships_no_fix_without_proof(code: str, results: dict[str, verify.Result]) -> None:
    if results[code].failures:
        pytest.fail("\n".join(results[code].failures), pytrace=False)


NOT_FLOAT16 = {
    "MP112": {"cpu", "cuda"},  # a scale is right in float16
    "MP406": {"cpu", "cuda"},  # its only region is of bfloat16
    "MP506": {"cpu", "cuda"},  # NumPy has float16
}
"""Rules and policies under which float16 is no hazard, or has no case."""


@pytest.mark.parametrize("code", RULES)
def test_every_condition_was_executed(code: str, results: dict[str, verify.Result]) -> None:
    if RULES[code].applicability is None:
        pytest.skip("never fixes")
    executed = {
        (cell["policy"], cell["dtype"])
        for found in results[code].cells.values()
        for cell in found
        if cell["verdict"] != "skipped"
    }
    policies = {policy for policy, _ in executed} - {"-"}
    assert policies >= {"eager"} or policies >= {"cpu", "cuda"}
    wanted = {(policy, dtype) for policy in policies for dtype in ("float16", "bfloat16")}
    wanted -= {(policy, "float16") for policy in NOT_FLOAT16.get(code, ())}
    assert wanted <= executed


# What a proof can tell


def test_proven(tmp_path: Path) -> None:
    assert verdicts(cells(tmp_path, LOSS)) == {
        "eager/float16/forward": "proven",
        "eager/float16/backward": "proven",
        "eager/bfloat16/forward": "harmless",
        "eager/bfloat16/backward": "harmless",
        "-/float32/forward": "unchanged",
        "-/float32/backward": "unchanged",
    }


def test_proven_under_both_policies(tmp_path: Path) -> None:
    declared = declare(
        '"Region"',
        "torch.ones(2, 256).double(), 300 * torch.eye(256).double()",
        regime='"autocast"',
        before='{"cpu/float16": Failure.INF, "cuda/float16": None, "bfloat16": None}',
    )
    fixed = MODULE.replace(".sum(-1)", ".sum(-1, dtype=torch.float32)")
    told = verdicts(cells(tmp_path, declared, fixed))
    assert told["cpu/float16/forward"] == "proven", "sum stays in half under CPU autocast"
    assert told["cuda/float16/forward"] == "harmless", "sum runs in float32 under CUDA's"


def test_parameters_of_a_module_are_judged(tmp_path: Path) -> None:
    both = '{"float16": (Failure.INF, Failure.GRADIENT_OVERFLOW), "bfloat16": None}'
    declared = declare("lambda module: module.Model().forward", "line(16) / 20", before=both)
    fixed = MODULE.replace("x * self.scale", "x.float() * self.scale.float()")
    assert verdicts(cells(tmp_path, declared, fixed))["eager/float16/backward"] == "proven"
    frozen = fixed.replace("self.scale.float()", "self.scale.float().detach()")
    assert "no gradient of parameter scale" in reasons(cells(tmp_path, declared, frozen))


def test_training_is_compared_with_float32(tmp_path: Path) -> None:
    declared = declare(
        '"norm"',
        "torch.full((3,), 2.0, dtype=torch.float64)",
        regime='"training"',
        before='{"float16": Failure.VANISHED, "bfloat16": Failure.error(above=0.9)}',
    )
    told = verdicts(cells(tmp_path, declared, CLIPPED))
    assert set(told.values()) == {"proven", "unchanged"}
    assert len(told) == 5, "no backward column"


def test_raising_is_a_failure_that_can_be_proven(tmp_path: Path) -> None:
    mismatch = 'Failure.raises("same dtype")'
    found = cells(
        tmp_path,
        declare(
            "lambda module: lambda x, w: module.add(x)[None] @ w",
            "line(3), torch.eye(3).double()",
            before=f'{{"float16": {mismatch}, "bfloat16": {mismatch}}}',
        ),
    )
    assert verdicts(found)["eager/float16/forward"] == "proven", reasons(found)
    assert verdicts(found)["eager/bfloat16/backward"] == "proven"


def test_promotion(tmp_path: Path) -> None:
    wider = '{"float16": Failure.PROMOTED, "bfloat16": Failure.PROMOTED}'
    declared = declare('"add"', "line(3)", before=wider)
    assert verdicts(cells(tmp_path, declared))["eager/float16/forward"] == "proven"
    assert "after the fix promoted" in reasons(cells(tmp_path, declared, MODULE + "\n"))


def test_absolute_errors_have_a_unit(tmp_path: Path) -> None:
    declared = declare(
        '"project"',
        "constant(line(8, 3) * 40), constant(1500.3 * torch.eye(3).double())",
        regime='"autocast"',
        unit='"px"',
        backward="False",
        tolerance='{"float16": 0.1, "bfloat16": 0.1}',
        before='{"float16": Failure.INF, "bfloat16": Failure.error(above=50.0)}',
    )
    region = "    with torch.autocast(points.device.type, enabled=False):\n"
    body = region + "        return points.float() @ w.float()"
    found = cells(tmp_path, declared, MODULE.replace("    return points @ w", body))
    assert set(verdicts(found).values()) == {"proven", "unchanged"}, reasons(found)
    told = reasons(cells(tmp_path, declared, MODULE.replace("@ w", "@ w.float()")))
    assert "px (allowed 0.1)" in told


def test_no_fix_is_wanted(tmp_path: Path) -> None:
    assert verdicts(cells(tmp_path, declare(level='"none"'), None)) == {
        "eager/float16/forward": "shown",
        "eager/float16/backward": "shown",
        "eager/bfloat16/forward": "harmless",
        "eager/bfloat16/backward": "harmless",
    }


def test_claims_hold_for_the_releases_of_torch_that_they_name() -> None:
    def case(versions: str) -> Case:
        return Case(
            module="a.py",
            entry="f",
            before={"eager/float16": Failure.INF, "bfloat16": None},
            torch_version=versions,
        )

    assert case("").skipped("eager", "float16") is None
    assert case(">=2").skipped("eager", "float16") is None
    assert case("<2").skipped("eager", "float16") == "it holds for torch <2"
    assert case("<2").skipped("eager", "bfloat16") == "it holds for torch <2"
    with pytest.raises(InvalidCase, match=r"torch_version '2\.4' is no range"):
        case("2.4")


def test_skipped_conditions_keep_their_reason(tmp_path: Path) -> None:
    declared = declare(
        before='{"float16": Failure.INF}', skip='{"bfloat16": "the model is float16"}'
    )
    found = cells(tmp_path, declared)
    assert verdicts(found)["eager/bfloat16/forward"] == "skipped"
    assert reasons(found) == "the model is float16"


# That a proof fails when it should


def test_a_fix_that_changes_nothing(tmp_path: Path) -> None:
    found = cells(tmp_path, LOSS, MODULE)
    assert verdicts(found)["eager/float16/forward"] == "failed"
    assert verdicts(found)["eager/float16/backward"] == "failed"
    assert set(reasons(found).splitlines()) == {"the fixer leaves module.py as it is"}


def test_a_fix_that_comes_too_late(tmp_path: Path) -> None:
    late = MODULE.replace(
        "torch.log(torch.sigmoid(x) + 1e-8)", "torch.log((torch.sigmoid(x) + 1e-8).float())"
    )
    found = cells(tmp_path, LOSS, late)
    assert verdicts(found)["eager/float16/forward"] == "failed"
    assert "after the fix inf" in reasons(found)
    assert verdicts(found)["eager/bfloat16/forward"] == "harmless"


def test_a_fix_whose_gradients_overflow(tmp_path: Path) -> None:
    """Upcasting the probability cures forward; its gradient still passes through half."""
    shallow = MODULE.replace("torch.sigmoid(x) + 1e-8", "torch.sigmoid(x).float() + 1e-8")
    found = cells(tmp_path, declare(tolerance='{"float16": 0.2}'), shallow)
    assert verdicts(found)["eager/float16/forward"] == "proven"
    assert verdicts(found)["eager/float16/backward"] == "failed"


def test_a_fix_that_raises(tmp_path: Path) -> None:
    found = cells(tmp_path, LOSS, MODULE.replace("torch.sigmoid(x)", "torch.sigmoid(y)"))
    assert "after the fix raises NameError: name 'y' is not defined" in reasons(found)
    assert "after the fix float32 raises NameError" in reasons(found)


def test_a_safe_fix_that_changes_float32(tmp_path: Path) -> None:
    other = MODULE.replace(
        "torch.log(torch.sigmoid(x) + 1e-8)", "torch.nn.functional.logsigmoid(x.float())"
    )
    found = cells(tmp_path, LOSS, other)
    assert verdicts(found)["-/float32/forward"] == "failed"
    assert "the fix changes output in float32" in reasons(found)
    unsafe = declare(level='"unsafe"')
    assert "-/float32/forward" not in verdicts(cells(tmp_path, unsafe, other))


def test_float32_rounding_has_to_be_declared(tmp_path: Path) -> None:
    rounded = FIXED.replace("torch.sigmoid(x.float())", "1.0 / (1.0 + torch.exp(-x.float()))")
    told = reasons(cells(tmp_path, LOSS, rounded))
    assert "the fix changes the gradient of input 0 in float32" in told
    declared = declare(float32_tolerance="1e-4", float32_reason='"exp"')
    assert verdicts(cells(tmp_path, declared, rounded))["-/float32/forward"] == "unchanged"


def test_a_declared_failure_that_does_not_occur(tmp_path: Path) -> None:
    wrong = '{"float16": Failure.NAN, "bfloat16": Failure.error(above=0.5)}'
    told = reasons(cells(tmp_path, declare(before=wrong)))
    assert "expected nan, the original shows inf" in told
    assert "expected error > 0.5, the original shows error" in told


def test_a_hazard_declared_harmless(tmp_path: Path) -> None:
    told = reasons(cells(tmp_path, declare(before=NEVER, level='"none"'), None))
    assert "declared harmless, the original shows inf" in told


def test_another_exception_than_the_declared_one(tmp_path: Path) -> None:
    other = '{"float16": Failure.raises("something else"), "bfloat16": None}'
    text = MODULE.replace("def loss(x):\n", "def loss(x):\n    x.bfloat16().numpy()\n")
    told = reasons(cells(tmp_path, declare(before=other), FIXED, text))
    assert "expected raises 'something else', the original shows raises RuntimeError" in told


def test_a_region_in_another_dtype_than_the_one_under_test(tmp_path: Path) -> None:
    text = MODULE.replace('torch.autocast("cuda")', 'torch.autocast("cuda", torch.float16)')
    declared = declare(
        '"Region"', "line(4, 4), line(4, 4)", regime='"autocast"', level='"none"', before=NEVER
    )
    with pytest.raises(Fault, match=r"runs in torch.float16 under torch.bfloat16; skip that"):
        cells(tmp_path, declared, None, text)


@pytest.mark.parametrize(
    ("entry", "inputs", "told"),
    [
        ('"absent"', "line(4)", "module.py has no absent"),
        ("lambda m: lambda x: 'text'", "line(4)", "the entry returns a str"),
        ("lambda m: lambda x: {'n': 1}", "line(4)", "write backward=False"),
        ("lambda m: 3", "line(4)", "cannot be called"),
    ],
)
def test_faults_name_what_to_change(entry: str, inputs: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(Fault, match=told):
        cells(tmp_path, declare(entry, inputs, level='"none"'), None)


def test_inputs_must_be_a_tuple_or_a_dict(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="is no tuple or dict; write a trailing comma"):
        cells(tmp_path, LOSS.replace("(line(16),)", "line(16)"))


# Isolation


def test_a_child_answers_for_every_case(tmp_path: Path) -> None:
    """A crash fails its case and no other, and what a fixture prints is kept apart."""
    found = answers(
        tmp_path,
        declare('"leave"', level='"none"', before=NEVER),
        declare('"crash"', level='"none"'),
        declare(inputs="1 / 0", level='"none"', name='"inputs"'),
        declare('"absent"', level='"none"'),
        declare(level='"none"'),
    )
    assert [cell["verdict"] for cell in found[0]] == ["harmless"] * 4
    assert found[1] == "the child process died: exit status -6"
    assert found[2].startswith("ZeroDivisionError: division by zero (proof.py:")
    assert found[3] == "module.py has no absent"
    assert [cell["verdict"] for cell in found[4]] == ["shown", "shown", "harmless", "harmless"]


def test_a_case_that_never_ends_is_stopped(tmp_path: Path) -> None:
    found = answers(tmp_path, declare('"hang"', level='"none"'), seconds=1)
    assert found[0] == "the child process died: it ran longer than 1 s"


def test_jobs_that_share_a_child_share_neither_state_nor_end(tmp_path: Path) -> None:
    jobs = []
    for name, entry in (("one", '"crash"'), ("other", '"leave"')):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, declare(entry, level='"none"', before=NEVER))
        proof = folder / "proof.py"
        mark = "import builtins\nassert not hasattr(builtins, 'mark')\nbuiltins.mark = 1\n"
        proof.write_text(mark + proof.read_text())
        jobs.append(worker.Job(folder, {0: (MODULE, None)}))
    [(_, _, dead), (_, _, alive)] = worker.run(jobs)
    assert isinstance(dead, str) and dead.startswith("the child process died: exit status -6")
    assert isinstance(alive, list)
    [(_, _, again), _] = worker.run([jobs[1], jobs[1]])
    assert again == alive


def test_memory_is_limited(tmp_path: Path) -> None:
    hungry = "lambda m: lambda x: x + torch.zeros(1 << 31, dtype=torch.uint8).sum()"
    found = answers(tmp_path, declare(hungry, level='"none"'), bytes=1 << 30)
    assert "memory" in found[0]


def test_a_proof_that_breaks_in_the_child(tmp_path: Path) -> None:
    write(tmp_path, LOSS)
    (tmp_path / "proof.py").write_text("CASES = 1 / 0\n", encoding="utf-8")
    [(_, _, answer)] = worker.run([worker.Job(tmp_path, {0: (MODULE, None)})])
    assert "the child process ended before the case" in answer
    assert "proof.py:1: ZeroDivisionError" in answer


# The contract


def contract(**changes: Any) -> Case:
    arguments: dict[str, Any] = {"module": "loss.py", "entry": "loss", "before": INF} | changes
    return Case(**arguments)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"module": "sub/loss.py"}, "is not the name of a fixture module"),
        ({"module": "loss.golden.py"}, "is not the name of a fixture module"),
        ({"entry": "model.forward"}, "is neither a name nor a function"),
        ({"inputs": (1,)}, "write inputs=lambda"),
        ({"regime": "half"}, "write one of eager, autocast, training"),
        ({"level": "display"}, "write one of safe, unsafe, none"),
        ({"before": {"float16": Failure.INF}}, "before says nothing about eager/bfloat16"),
        ({"before": INF | {"cpu/float16": None}}, "write one of bfloat16, eager/bfloat16"),
        ({"before": {"float16": "inf", "bfloat16": None}}, "write Failure.… or None"),
        ({"before": {"float16": None, "bfloat16": None}}, "write level='none'"),
        ({"before": INF | {"float16": Failure.GRADIENT_OVERFLOW}, "backward": False}, "backward"),
        ({"before": INF | {"float16": Failure.PROMOTED}, "regime": "autocast"}, "regime='eager'"),
        ({"skip": {"float16": ""}}, "write why it is not executed"),
        ({"tolerance": {"float16": 0.0}}, "is not a positive number"),
        ({"tolerance": {"float32": 0.1}}, "tolerance has the condition 'float32'"),
        ({"scales": ()}, "at least one"),
        ({"float32_tolerance": 1e-6}, "give both or none"),
        ({"float32_reason": "sums"}, "give both or none"),
    ],
)
def test_malformed_cases_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidCase) as refused:
        contract(**changes)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [lambda: Failure.raises(""), lambda: Failure.error(0.0), lambda: Failure("inf", text="inf")],
)
def test_malformed_failures_are_refused(make: Callable[[], Failure]) -> None:
    with pytest.raises(InvalidCase):
        make()


def test_the_closer_condition_wins() -> None:
    one = contract(
        regime="autocast",
        before={"float16": Failure.INF, "cpu/float16": None, "cuda/bfloat16": Failure.NAN},
        skip={"bfloat16": "the region names float16"},
        tolerance={"float16": 0.1, "cpu/float16": 0.2},
    )
    assert one.expected("cpu", "float16") == ()
    assert one.expected("cuda", "float16") == (Failure.INF,)
    assert one.skipped("cpu", "bfloat16") == "the region names float16"
    assert one.skipped("cuda", "bfloat16") is None
    assert one.tolerances("cpu", "float16")[0] == 0.2
    assert one.tolerances("cuda", "float16")[0] == 0.1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CASES = (\n", "proof.py:1: '(' was never closed"),
        ("import nothing_of_that_name\n", "proof.py:1: ModuleNotFoundError"),
        ("\nCASES = []\n", "proof.py:1: CASES is no tuple of Case"),
        (PROOF.format(case=declare(before="{}")), "proof.py:10: before says nothing about"),
        (PROOF.format(case=LOSS.replace("module.py", "gone.py")), "module gone.py is not in the"),
        (PROOF.format(case=f"{LOSS}, {LOSS}"), "two cases are module.py:loss; give them a name"),
    ],
)
def test_malformed_proofs_are_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "proof.py").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidProof) as refused:
        collect.load_cases(tmp_path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


# Sabotage of a rule that ships


@pytest.fixture
def shipped() -> tuple[type[Rule], Proof]:
    """A rule with a safe fix, and the first of its cases that it cures."""
    rule = RULES["MP301"]
    proof = collect.proof(rule)
    assert proof.error is None
    first = next(case for case in proof.cases if case.level == "safe")
    return rule, Proof(rule, proof.folder, (first,))


def sabotage(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[str, str], str]) -> None:
    plain = expectations.fixed

    def spoiled(text: Source, *arguments: Any) -> fixer.Fixed:
        fixed = plain(text, *arguments)
        worse = Source(text.filename, spoil(text.text, fixed.source.text), "utf-8", False)
        return fixer.Fixed(worse, fixed.applied, fixed.remaining)

    monkeypatch.setattr(expectations, "fixed", spoiled)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda original, fixed: original, "the fixer leaves"),
        (lambda original, fixed: fixed.replace(".float()", ".clone()"), "after the fix"),
        (lambda original, fixed: fixed + "\nraise OSError('spoiled')\n", "spoiled"),
    ],
)
def test_a_sabotaged_fix_is_not_proven(
    spoil: Callable[[str, str], str],
    told: str,
    shipped: tuple[type[Rule], Proof],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, proof = shipped
    [intact] = verify.prove([proof])
    assert not intact.failures, "\n".join(intact.failures)
    sabotage(monkeypatch, spoil)
    [result] = verify.prove([proof])
    assert any(told in line for line in result.failures), result.failures
    assert any("no case proves one" in line for line in result.failures)


def test_a_rule_with_a_fix_and_no_proof(tmp_path: Path) -> None:
    fixing = next(r for r in RULES.values() if r.applicability is Applicability.SAFE)
    [result] = verify.prove([collect.proof(fixing, tmp_path)])
    assert result.failures == ["ships a safe fix and has no proof.py; write one"]


def test_what_no_case_executes_is_looked_at(
    shipped: tuple[type[Rule], Proof], tmp_path: Path
) -> None:
    rule, proof = shipped
    assert proof.folder is not None
    folder = shutil.copytree(proof.folder, tmp_path / proof.folder.name)
    text = f"def half(x):\n    return x.half()  # expect: {rule.code}\n"
    (folder / "left_alone.py").write_text(text, encoding="utf-8")
    (folder / "unread.py").write_bytes(b"x = '\xff'\n")
    [result] = verify.prove([Proof(rule, folder, proof.cases)])
    missed, unread = result.failures
    assert missed == f"left_alone.py:2: the rule does not find {rule.code}"
    assert unread.startswith(str(folder / "unread.py"))
    [result] = verify.prove([Proof(rule, folder, proof.cases)], keyword=proof.cases[0].title)
    assert not result.failures


# The command


def test_exit_status_and_table(
    shipped: tuple[type[Rule], Proof],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rule, proof = shipped
    monkeypatch.setattr(verify, "proof", lambda *_: proof)
    assert verify.main(select=[rule.code]) == 0
    out = capsys.readouterr().out
    assert f"{rule.code} {rule.name}" in out
    assert "rules: 1, cases: 1, on cpu" in out
    assert "all proven" in out
    sabotage(monkeypatch, lambda original, fixed: original)
    assert verify.main(select=[rule.name], exitfirst=True, output_format="json") == 1
    [told] = json.loads(capsys.readouterr().out)["rules"]
    assert not told["proven"]
    assert any(cell["reasons"] for case in told["cases"] for cell in case["cells"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"select": ["MP999"]}, "--select MP999: names no rule"),
        ({"keyword": "no such case"}, "-k no such case: matches no case"),
        ({"device": "tpu"}, "--device tpu: unknown; choose cpu or cuda"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main(**arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"precision-lint verify: {told}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_missing_gpu_is_never_faked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert verify.main(device="cuda") == 2
    assert "--device cuda: torch finds no CUDA device here" in capsys.readouterr().err


def test_arrays_are_compared_as_tensors() -> None:
    numpy = pytest.importorskip("numpy")
    found = dict(flatten([numpy.arange(3), numpy.float32(0.5)], "output"))
    assert found["output[0]"].tolist() == [0, 1, 2] and float(found["output[1]"]) == 0.5
