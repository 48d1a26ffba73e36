from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class AutocastDeviceMismatch(Rule):
    """autocast(enabled=False) for another device than that of the region it is meant to leave.

    ## What it flags
    `autocast("cpu", enabled=False)` inside a region for `"cuda"`, `torch.cuda.amp.autocast(False)`
    inside one for `"cpu"`, and so on: both device types are literal, and differ. The region may be
    in the same function or around every call of it, which a decorator may be meant to leave.

    `possible`: a region for a literal `"cuda"` in a function that puts tensors on a device it is
    given, or that runs whatever it is handed (`forward(*args, **kwargs)`), or in a file that
    chooses its device (`"cuda" if ... else "cpu"`, `--device`); a region for
    `device.type` that is on for every device but the CPU, or in a file that knows `"mps"`, whose
    autocast is as young as torch 2.5; and `torch.get_autocast_gpu_dtype()` or
    `is_autocast_enabled()`, which speak of CUDA alone.

    It stays silent where one device type is only known at run time (`x.device.type`), where the
    same statement, or one right inside, switches the region's own device off too, and for regions
    that switch another device on.

    ## Why it breaks
    Each device type has an autocast state of its own. Leaving the CPU's changes nothing for CUDA
    tensors, without an error or a warning: the products in the body still run in half, and the
    overflow or the lost digits that the region was written against are still there. 65,536
    products of values up to 4 are inf.

    ## Example
    ```python
    with torch.autocast("cuda"):
        with torch.autocast("mps", enabled=False):
            scores = query.float() @ key.float()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        with torch.autocast("cuda", enabled=False):
            scores = query.float() @ key.float()
    ```
    In code for several devices, `device_type=query.device.type` is right everywhere.

    ## Fix safety
    Safe: in float32 no region does anything. Half operands of the products inside are upcast by
    the same fix, because leaving autocast casts nothing up (MP203). Where the region is around a
    call, the device type comes from a tensor of the body; without one there is no fix.

    ## How to silence
    `# precision-lint: ignore[MP204] reason` or `# noqa: MP204` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `torch.autocast(device_type)`; nested regions.
    """

    code = "MP204"
    name = "autocast-device-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("device-mismatch",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related: tuple[Link, ...] = ()
        if facts["opened"] is not None:
            related = (Link("the region around it opens here", facts["opened"]),)
        yield Finding(
            f"autocast({facts['inner']!r}, enabled=False) does not switch the {facts['outer']} region "
            "around it off",
            fix=at.fix("name the device of the region", at.device_of(event.place, facts["outer"])),
            related=related,
        )
