from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class AutocastDeviceMismatch(Rule):
    """autocast(enabled=False) for another device than that of the region it is meant to leave.

    ## What it flags
    `autocast("cpu", enabled=False)` inside a region for `"cuda"`, `torch.cuda.amp.autocast(False)`
    inside one for `"cpu"`, and so on: both device types are literal, and differ. The region may be
    in the same function or around every call of it, which a decorator may be meant to leave.

    It also flags `torch.get_autocast_cpu_dtype()` behind `if torch.is_autocast_enabled():`, which asks for
    CUDA alone: where autocast is on for the CPU, the branch is not taken.

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
    listens = ("device-mismatch", "asks-other-device")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "asks-other-device":
            yield Finding(
                "is_autocast_enabled() asks about CUDA only, but the code behind it runs under CPU autocast",
                related=(Link("autocast of the CPU", facts["asked"]),),
            )
            return
        related: tuple[Link, ...] = ()
        if facts["opened"] is not None:
            related = (Link("the region around it opens here", facts["opened"]),)
        yield Finding(
            f"autocast({facts['inner']!r}, enabled=False) does not switch the {facts['outer']} region "
            "around it off",
            fix=at.fix("name the device of the region", at.device_of(event.place, facts["outer"])),
            related=related,
        )
