from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Cost, Event, Finding, Fix, Rule, Severity


class DeprecatedAmpApi(Rule):
    """torch.cuda.amp and similar names where the project's torch has the form that replaces them.

    ## What it flags
    Calls of `torch.cuda.amp.autocast`, `GradScaler`, `custom_fwd` and `custom_bwd` (as decorators
    without parentheses too), of `torch.cpu.amp`, and of `torch.get_autocast_gpu_dtype` and its
    siblings, if every torch that the project allows has the replacement: `torch.amp.autocast` with
    a device is taken for granted from 2.0 on, `torch.amp.GradScaler` from 2.3, the rest from 2.4.

    The version comes from the project: `torch-version` in the settings, or the lower bound in
    pyproject.toml, setup.cfg, setup.py, requirements files or a conda environment, or in a script's
    own metadata (`# /// script`). Without one it stays silent, and so it does in a branch that asks
    for a version or catches an ImportError, and where every requirement pins torch to a release
    before 2.4 (`torch==2.0.1`).

    ## Why it breaks
    Nothing breaks yet: since torch 2.4 the old names give a `FutureWarning` at every use. But they
    say CUDA in code that may run elsewhere, where they switch themselves off with a warning.

    ## Example
    ```python
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        loss = model(batch)
    ```
    Use instead:
    ```python
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)
    ```

    ## Fix safety
    Safe: the old names call the new ones with that device. An import of the old name stays where
    it was.

    ## How to silence
    `# precision-lint: ignore[MP212] reason` or `# noqa: MP212` on the line.

    ## Sources
    PyTorch 2.4 release notes, deprecations; PyTorch, Automatic Mixed Precision package.
    """

    code = "MP212"
    name = "deprecated-amp-api"
    severity = Severity.INFO
    cost = Cost.STYLE
    applicability = Applicability.SAFE
    listens = ("deprecated-amp",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if at.torch_version is None or at.torch_version < facts["since"]:
            return
        if at.torch_pinned is not None and at.torch_pinned < (2, 4):
            return  # where the old names do not warn yet
        since = ".".join(map(str, facts["since"]))
        yield Finding(
            f"{facts['name']} warns from torch {since} on: {facts['replacement']} replaces it",
            fix=_current(event, at),
        )


def _current(event: Event, at: Context) -> Fix | None:
    """Call what replaces it, with the device."""
    call = at.call(event.place)
    if call is None or event.facts["device"] is None:
        return None
    torch, imports = at.torch()
    spelled = event.facts["replacement"].replace("torch", torch, 1)
    device = f'"{event.facts["device"]}"'
    named = call.name(0, "enabled") if spelled.endswith("autocast") and call.positional else ()
    if named is None:
        return None  # their order is another one
    edits = (*imports, *call.callee(spelled), *call.first_and(device, named))
    return at.fix("use the current name", edits)
