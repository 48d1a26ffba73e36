from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Link, Rule, Severity


class CastCacheUnderNoGrad(Rule):
    """Model run under no_grad and then with gradient in one autocast region of an old torch.

    ## What it flags
    A module that is called under `torch.no_grad()` and afterwards without it, in one autocast
    region, in a project that allows torch before 2.11. Shown as info: it does not fail a run.

    The first call may be in a method that `no_grad` decorates, and both in a module whose
    callers are in a region.

    `possible`: the same in a module whose callers may be in a region, in a project that uses
    autocast; a loop that has gradients in its last round only (`set_grad_enabled(i == n - 1)`,
    `requires_grad_` behind a condition), as recycling and truncated rollouts do.

    It stays silent where the configuration or the project's metadata require torch 2.11 or later, where
    the two calls have regions of their own, as those of a model that Accelerate or Fabric prepared,
    for `cache_enabled=False`, and where `torch.clear_autocast_cache()` is called.

    ## Why it breaks
    Autocast keeps the half copy of each weight until the region ends. Old versions kept the copy
    that was made under `no_grad` too, which has no history, and gave it to the forward pass with
    gradients: those weights got none, without an error. It was reported from torch 1.9 on, where a
    teacher or an earlier frame goes through the same network. It happens on the CPU with torch 2.4 to
    2.10, and no longer with 2.11.

    ## Example
    ```python
    with torch.autocast("cuda"):
        with torch.no_grad():
            history = model(earlier)
        out = model(frame)
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        with torch.no_grad():
            history = model(earlier)
        torch.clear_autocast_cache()
        out = model(frame)
    ```

    ## Fix safety
    There is no fix: emptying the cache costs one more cast of every weight, which newer torch does not
    need.

    ## How to silence
    `# precision-lint: ignore[MP213] reason` or `# noqa: MP213` on the line.

    ## Sources
    PyTorch issues 105211, 112583 and 158232, pull request 165068.
    """

    code = "MP213"
    name = "cast-cache-under-no-grad"
    severity = Severity.INFO
    applicability = None
    listens = ("cached-cast",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        if at.torch_version is not None and at.torch_version >= (2, 11):
            return
        yield Finding(
            "autocast caches the weights that it casts under no_grad: used again in this region, they get "
            "no gradient",
            related=(Link("run with gradient here", event.facts["again"]),),
        )
