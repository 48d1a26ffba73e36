from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Cost,
    Edits,
    Event,
    Finding,
    Fix,
    Link,
    Place,
    Rule,
    Severity,
)


class CustomFunctionWithoutAmp(Rule):
    """autograd.Function with products whose backward does not know of autocast.

    ## What it flags
    A `torch.autograd.Function` that multiplies matrices in `forward`, and in `backward`
    multiplies the incoming gradient with a tensor that `forward` was given, without
    `custom_fwd` and `custom_bwd`. One whose `backward` runs again what `forward` was given to run
    (reversible blocks, checkpoints by hand), without these and without a region of its own.

    It stays silent for elementwise functions, which promote, where the gradient is cast,
    brought to float32 or multiplied elementwise with a saved tensor first, where `backward`
    multiplies in a region of its own, where the function is only applied with autocast
    switched off, and for a kernel that both passes launch.

    ## Why it breaks
    Under autocast the product in `forward` runs in half, so the gradient arrives in half; what
    was saved is the float32 weight. The backward pass of a custom function runs without autocast
    if it is started outside of the region, as it should be, and raises `expected m1 and m2 to
    have the same dtype`. torch's own operations record the casts, a custom function does not.
    `custom_bwd` runs `backward` in the autocast state that `custom_fwd` has noted.

    ## Example
    ```python
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x
    ```
    Use instead:
    ```python
    class Linear(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x
    ```
    For a function that needs float32, `custom_fwd(device_type="cuda", cast_inputs=torch.float32)`.

    ## Fix safety
    Safe: without autocast both decorators only call the function. They need torch 2.4; a project
    that allows an older one gets `torch.cuda.amp.custom_fwd`, and where it does not state its
    torch the fix is unsafe. No fix for a class with `setup_context`, which they do not support.

    ## How to silence
    `# precision-lint: ignore[MP207] reason` or `# noqa: MP207` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: Autocast and Custom Autograd Functions.
    """

    code = "MP207"
    name = "custom-function-without-amp"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("dtype-mismatch", "run-again")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        if event.kind == "run-again":
            yield Finding(
                "backward runs forward again, but outside of the autocast region: its weights are float32 "
                "there, so half inputs raise, and the activations differ from the first run",
                fix=_decorated(event.facts["methods"], at),
                related=(Link("it runs again here", event.facts["again"]),),
            )
            return
        found = event.facts["backward"]
        if found is None:
            return
        yield Finding(
            f"under autocast the gradient is {event.facts['narrow_dtype']} and the saved tensor is "
            f"{event.facts['wide_dtype']}: {event.facts['operation']} in backward raises on mixed dtypes",
            found[0],
            _decorated(found[1:], at),
            (Link("the gradient meets what was saved", event.place),),
        )


def _decorated(methods: tuple[Place | None, ...], at: Context) -> Fix | None:
    """Run ``backward`` in the autocast state of ``forward``."""
    torch, imports = at.torch()
    old = at.torch_version is not None and at.torch_version < (2, 4)
    home, arguments = ("cuda.amp", "") if old else ("amp", '(device_type="cuda")')
    edits: Edits = imports
    for place, name in zip(methods, ("custom_fwd", "custom_bwd"), strict=True):
        made = (
            at.line_above(place, f"@{torch}.{home}.{name}{arguments}")
            if place is not None
            else None
        )
        if made is None:
            return None
        edits += made
    return at.fix("decorate forward and backward for autocast", edits)
