"""Findings of training loops: the step around them is built and executed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from precision_lint.harness import emit, told, witnesses
from precision_lint.harness.witnesses import Verdict
from tests.witnessing import plan, plans, write

HEAD = """\
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cuda")
batches = [(torch.randn(4, 8), torch.randn(4, 2))] * 3
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
"""


def script(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


FUNCTIONS = """\
class Trainer:
    def __init__(self, model, max_norm=1.0, every=2):
        self.model, self.every, self.max_norm = model, every, max_norm
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        self.seen = []

    def fit(self, loader, log):
        for epoch in range(10):
            for number, (x, y) in enumerate(loader):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(self.model(x), y) / self.every
                self.scaler.scale(loss).backward()
                if (number + 1) % self.every == 0:
                    self.clip(log)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad(set_to_none=True)

    def clip(self, log):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if norm > 100.0:
            log.warning("large gradients: %s", norm)
        self.seen.append(norm)
"""
STEPS = {
    "MP101": script(
        "scaler.scale(loss).backward()",
        "print(max(p.grad.abs().max().item() for p in model.parameters()))",
        "scaler.step(optimizer)",
        "scaler.update()",
    ),
    "MP102": script(
        "scaler.scale(loss).backward()",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ),
    "MP103": script(
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "scaler.unscale_(optimizer)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ),
    "MP104": script("scaler.scale(loss).backward()", "optimizer.step()"),
    "MP105": script("loss.backward()", "scaler.step(optimizer)", "scaler.update()"),
    "MP106": script("scaler.scale(loss).backward()", "scaler.step(optimizer)"),
    "MP107": """\
def train(first, second, batches):
    one = torch.optim.SGD(first.parameters(), lr=0.1)
    other = torch.optim.SGD(second.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        one.zero_grad()
        other.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(second(first(x)), x)
        scaler.scale(loss).backward()
        scaler.unscale_(one)
        nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 0.5)
        scaler.step(one)
        scaler.step(other)
        scaler.update()
""",
}


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    directory = tmp_path_factory.mktemp("steps")
    texts = {**STEPS, "methods": FUNCTIONS}
    found = []
    for name, text in texts.items():
        code = name if name in STEPS else "MP102"
        [plan] = plans(write(directory, text, f"{name.lower()}.py"), code)
        found.append(plan)
    return dict(zip(texts, witnesses.search(found, jobs=2), strict=True))


@pytest.mark.parametrize("name", [*STEPS, "methods"])
def test_the_step_around_a_finding_proves_it(name: str, proven: dict[str, Verdict]) -> None:
    one = proven[name]
    assert one.outcome == "proven", one.reason
    assert one.finding.fix is None or one.answer["after"].startswith("is ")


def test_the_norm_that_a_clip_meets_is_shown(proven: dict[str, Verdict]) -> None:
    text = told.as_text([proven["MP102"]])
    assert "norm of the gradients there is 2.154e+05, where the true one is 3.287" in text
    assert "movement of the parameters is 3.127e-06, where the true one is 0.2" in text
    assert "the training step around it" in text


def test_lines_of_the_user_are_kept(proven: dict[str, Verdict]) -> None:
    text = proven["methods"].variant.original
    assert "torch.optim.AdamW(_weights([model]), lr=0.001)" in text
    assert "init_scale=1024.0" in text
    assert "if (number + 1) % self_every == 0:" in text
    assert "norm = nn.utils.clip_grad_norm_(model.parameters(), self_max_norm)" in text
    assert "log" not in text


def test_gradients_are_cleared_where_the_function_leaves_that_to_its_caller(tmp_path: Path) -> None:
    text = """\
def step(model, batch, optimizer, scaler):
    scaler.scale(F.mse_loss(*model(batch))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    [found] = witnesses.search(plans(write(tmp_path, text), "MP102"), jobs=1)
    assert found.outcome == "proven", found.reason
    assert "optimizer.zero_grad()" in found.variant.original


def test_fixed_code_takes_the_same_way_where_a_condition_cannot_run(tmp_path: Path) -> None:
    """The fix takes the flagged line away; the other way has one of the same text."""
    text = """\
def train(config, model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if config.turn:
            scaler.unscale_(optimizer)
            scaler.unscale_(optimizer)
        else:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
"""
    found = plans(write(tmp_path, text), "MP103")
    assert found
    for one in found:
        for variant in one.variants:
            for fixed in variant.fixed:
                assert ("scaler.step" in fixed) == ("scaler.step" in variant.original)


def test_the_right_order_is_not_reproduced(tmp_path: Path) -> None:
    """What was right is right in the step, too: only the finding is moved there."""
    [plan] = plans(write(tmp_path, STEPS["MP102"]), "MP102")
    for variant in plan.variants:
        variant.original, variant.fixed = variant.fixed[0], []
    [verdict] = witnesses.search([plan])
    assert verdict.outcome == "not reproduced"


def test_a_loop_without_a_scaler_of_its_own(tmp_path: Path) -> None:
    text = """\
from accelerate import Accelerator

def train(model, optimizer, batches):
    accelerator = Accelerator(mixed_precision="fp16")
    for x, y in batches:
        accelerator.backward(F.mse_loss(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
    one = plan(tmp_path, text, "MP102")
    assert one.reason == (
        "the hazard is in a training loop, and the step around it has no GradScaler and optimizer "
        "of its own; `precision-lint verify --select MP102` executes one that has it"
    )


def test_emitted_steps_stand_alone(proven: dict[str, Verdict], tmp_path: Path) -> None:
    paths = emit.write([proven["MP102"], proven["MP106"], proven["methods"]], tmp_path / "tests")
    assert len(paths) == 3  # without paths pytest would run these tests here, and this one in them
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
