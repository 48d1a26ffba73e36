"""CUDA's autocast policy on CPU tensors, and the redirection of CUDA code to the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precision_lint.harness import policy, probes
from precision_lint.harness.policy import UnsupportedTorch, cuda_lists, cuda_policy, require_torch
from precision_lint.harness.probes import DOUBLE, FACTS, HALF, OPERANDS, SINGLE, Op, matrix
from precision_lint.harness.redirect import redirected

ROOT = Path(__file__).parent.parent


PROBES = [
    pytest.param(op, dtypes.replace("half", "float16").split(), id=name)
    for dtypes, ops in FACTS.items()
    for name, op in ops.items()
]


@pytest.fixture
def emulated() -> Iterator[None]:
    with cuda_policy(), redirected(HALF):
        yield


def test_a_policy_that_differs_is_told() -> None:
    """CPU autocast's own lists stand in for a GPU that disagrees."""
    lines = probes.disagreements("cpu")
    assert "exp: float16, float32, float16 on cpu, float32, float32, float32 emulated" in lines
    assert not any(line.startswith("matmul:") for line in lines)
    with cuda_policy():
        assert probes.disagreements("cpu") == []


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("op", "dtypes"), PROBES)
def test_result_dtypes_are_those_of_cuda(op: Op, dtypes: list[str]) -> None:
    with torch.autocast("cuda"):
        found = [str(op(matrix(a), matrix(b)).dtype)[6:] for a, b in OPERANDS]
    assert found == dtypes


@pytest.mark.usefixtures("emulated")
def test_binary_cross_entropy_is_banned() -> None:
    p = matrix(SINGLE)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)
    with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):
        assert F.binary_cross_entropy(p, p).dtype == SINGLE


@pytest.mark.usefixtures("emulated")
def test_promote_refuses_the_other_half_dtype() -> None:
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="Unexpected floating"):
        torch.addcmul(matrix(torch.bfloat16), matrix(HALF), matrix(HALF))


@pytest.mark.usefixtures("emulated")
def test_float32_before_the_other_half_dtype_decides() -> None:
    with torch.autocast("cuda"):
        assert torch.addcmul(matrix(SINGLE), matrix(torch.bfloat16), matrix(HALF)).dtype == SINGLE
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the same, as torch does it
        assert torch.cat([matrix(SINGLE), matrix(HALF)]).dtype == SINGLE


@pytest.mark.usefixtures("emulated")
def test_float64_takes_no_part() -> None:
    x = matrix(DOUBLE)
    with torch.autocast("cuda"):
        assert (x @ x).dtype == DOUBLE
        assert x.sum().dtype == DOUBLE
        assert x.norm().dtype == DOUBLE
        assert torch.einsum("ij,jk->ik", x, x).dtype == DOUBLE


@pytest.mark.usefixtures("emulated")
def test_an_explicit_dtype_is_kept() -> None:
    x = matrix(HALF)
    with torch.autocast("cuda"):
        assert x.sum(dtype=DOUBLE).dtype == DOUBLE
        assert x.softmax(-1, dtype=HALF).dtype == HALF


@pytest.mark.usefixtures("emulated")
def test_nested_and_disabled_regions() -> None:
    x = matrix(SINGLE)
    with torch.autocast("cuda"):
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == SINGLE
            assert x.half().exp().dtype == HALF
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == HALF
    assert (x @ x).dtype == SINGLE


@pytest.mark.usefixtures("emulated")
def test_backward_runs_through_the_casts() -> None:
    x, w = matrix(SINGLE), matrix(SINGLE).requires_grad_()
    with torch.autocast("cuda"):
        hidden = F.linear(x, w)
        loss: Any = F.cross_entropy(hidden, torch.arange(4))
    loss.backward()
    assert hidden.dtype == HALF
    assert loss.dtype == SINGLE
    assert w.grad is not None
    exact = matrix(DOUBLE).requires_grad_()
    reference: Any = F.cross_entropy(F.linear(x.double(), exact), torch.arange(4))
    reference.backward()
    assert exact.grad is not None
    torch.testing.assert_close(w.grad.double(), exact.grad, rtol=0, atol=2e-3)


@pytest.mark.usefixtures("emulated")
def test_weight_casts_are_kept_until_the_region_ends() -> None:
    w = matrix(SINGLE).requires_grad_()
    x = torch.eye(4)
    with torch.autocast("cuda"):
        before = x @ w
        with torch.no_grad():
            w.mul_(2)
        assert torch.equal(x @ w, before), "the cast is stale, as on a GPU"
        with torch.autocast("cuda", cache_enabled=False):
            assert torch.equal(x @ w, 2 * before)
    with torch.autocast("cuda"):
        assert torch.equal(x @ w, 2 * before)


@pytest.mark.usefixtures("emulated")
def test_casts_made_without_gradients_are_not_reused() -> None:
    w, x = matrix(SINGLE).requires_grad_(), torch.eye(4)
    with torch.autocast("cuda"):
        with torch.no_grad():
            x @ w
        assert (x @ w).requires_grad


def cpu_answers() -> tuple[torch.dtype, ...]:
    x = matrix(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x.exp().dtype, x.sum().dtype, F.binary_cross_entropy(x, x).dtype)


def test_cpu_policy_comes_back() -> None:
    before = cpu_answers()
    assert before == (torch.bfloat16, torch.bfloat16, SINGLE)
    with pytest.raises(ZeroDivisionError), cuda_policy():
        with torch.autocast("cpu", dtype=HALF):
            assert matrix(HALF).exp().dtype == SINGLE
        raise ZeroDivisionError
    assert cpu_answers() == before


def test_may_nest() -> None:
    with cuda_policy():
        with pytest.raises(KeyError), cuda_policy():
            raise KeyError
        with torch.autocast("cpu", dtype=HALF):
            assert matrix(HALF).exp().dtype == SINGLE
    assert cpu_answers()[0] == torch.bfloat16


def test_lists_agree_with_or_without_the_header(tmp_path: Path) -> None:
    from_header = cuda_lists()
    with pytest.warns(UserWarning, match=r"is missing; using CUDA's autocast lists of torch"):
        from_facts = cuda_lists(tmp_path / "autocast_mode.h")
    assert from_facts == from_header


def test_every_operator_that_cuda_registers_is_listed() -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    assert set(cuda_lists()) == {name.removeprefix("aten::") for name in registered}


def test_facts_are_those_of_the_installed_torch() -> None:
    script = ROOT / "scripts" / "make_autocast.py"
    found = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout


def test_facts_hold_each_operator_once_and_sorted() -> None:
    path = ROOT / "precision_lint" / "torchmodel" / "autocast.json"
    facts = json.loads(path.read_text(encoding="utf-8"))["autocast"]
    assert set(facts) == {"cpu", "cuda", "xpu"}
    for lists in facts.values():
        names = [name for ops in lists.values() for name in ops]
        assert len(names) == len(set(names))
        assert all(ops == sorted(ops) for ops in lists.values())
    assert "einsum" in facts["cuda"]["lower"]
    assert "einsum" not in facts["cpu"]["lower"]
    assert all("cdist" in lists["fp32"] for lists in facts.values())


def test_an_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(UnsupportedTorch, match=r"2\.3\.1\+cpu is too old .* torch>=2\.4"):
        require_torch()
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    require_torch()


# Redirection


def test_cuda_code_runs_on_the_cpu() -> None:
    with redirected(HALF):
        assert torch.cuda.is_available()
        x = torch.zeros(2, 2, device="cuda")
        places = [
            x,
            x.cuda(),
            x.to("cuda:1"),
            x.to(device=torch.device("cuda")),
            torch.tensor([1.0], device="cuda"),
            torch.full((1,), 2.0, device=torch.device("cuda", 0)),
            torch.nn.Linear(2, 2).cuda().weight,
            torch.nn.Linear(2, 2).to("cuda").weight,
            torch.nn.Linear(2, 2, device="cuda").weight,
        ]
        assert x.to("cuda", HALF).dtype == HALF
    assert {tensor.device.type for tensor in places} == {"cpu"}


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_regions_without_a_dtype_get_the_one_under_test(dtype: torch.dtype) -> None:
    x = matrix(SINGLE)
    with redirected(dtype) as seen:
        with torch.autocast("cuda"):
            assert (x @ x).dtype == dtype
            assert torch.is_autocast_enabled("cuda")
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_dtype("cuda") == dtype
        with torch.autocast("cpu"):
            assert (x @ x).dtype == dtype
        assert not torch.is_autocast_enabled("cuda")
    assert seen.regions == {dtype}


def test_regions_that_name_a_dtype_keep_it() -> None:
    x = matrix(SINGLE)
    with cuda_policy(), redirected(torch.bfloat16) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.cuda.amp.autocast():  # names float16 by itself
            assert (x @ x).dtype == HALF
        with torch.autocast("cuda", dtype=SINGLE):
            assert (x.half() @ x.half()).dtype == SINGLE
    assert seen.regions == {HALF, SINGLE}


def test_everything_can_be_switched_off() -> None:
    x = matrix(SINGLE)
    with redirected(HALF, amp=False) as seen:
        with torch.autocast("cuda"):
            assert (x @ x).dtype == SINGLE
        assert not torch.amp.GradScaler("cuda").is_enabled()
    assert not seen.regions


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.amp.GradScaler("cuda"),
        lambda: torch.amp.GradScaler(),
        lambda: torch.amp.GradScaler("cpu"),
        lambda: torch.cuda.amp.GradScaler(),
        lambda: torch.amp.GradScaler(device="cuda", enabled=True),
    ],
)
def test_scalers_get_the_scale_under_test(make: Callable[[], Any]) -> None:
    with redirected(HALF, loss_scale=128.0), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaler = make()
        assert scaler.is_enabled()
        assert float(scaler.scale(torch.tensor(1.0))) == 128.0
        explicit = torch.amp.GradScaler("cuda", init_scale=4.0)
        assert float(explicit.scale(torch.tensor(1.0))) == 4.0


def test_a_build_for_cuda_without_a_driver_names_no_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It raises as soon as it is asked anything; newer optimizers ask it where it is named."""
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")
    )
    with redirected(HALF):
        assert torch.cuda.is_available()
        assert torch.accelerator.current_accelerator(check_available=True) is None
    assert torch.accelerator.current_accelerator() is not None


@pytest.mark.parametrize("legacy", [False, True])
def test_custom_functions_follow_the_redirected_region(legacy: bool) -> None:
    with cuda_policy(), redirected(HALF), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        amp: Any = torch.cuda.amp if legacy else torch.amp
        where = {} if legacy else {"device_type": "cuda"}

        class Product(torch.autograd.Function):
            @staticmethod
            @amp.custom_fwd(**where)  # type: ignore[untyped-decorator]
            def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            @amp.custom_bwd(**where)  # type: ignore[untyped-decorator]
            def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                a, b = ctx.saved_tensors
                return gradients[0] @ b.mT, a.mT @ gradients[0]

        a = matrix(SINGLE).requires_grad_()
        with torch.autocast("cuda"):
            apply: Any = Product.apply
            out = apply(a, matrix(SINGLE))
        out.sum().backward()
        assert out.dtype == HALF
        assert a.grad is not None
        assert a.grad.dtype == SINGLE


def state() -> tuple[object, ...]:
    return (
        torch.autocast.__init__,
        torch.amp.GradScaler.__init__,
        torch.cuda.amp.GradScaler.__init__,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.cuda.is_available,
        torch.backends.cuda.is_built,
        torch.amp.custom_fwd,
        torch.clear_autocast_cache,
        torch.get_autocast_dtype("cpu"),
        policy._depth,
    )


def test_nothing_is_left_behind() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError), cuda_policy(), redirected(HALF, loss_scale=2.0):
        with redirected(torch.bfloat16, amp=False):
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.get_autocast_dtype("cuda") == HALF
        raise ZeroDivisionError
    assert state() == before
