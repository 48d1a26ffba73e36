from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Event,
    Finding,
    Fix,
    Link,
    Place,
    Rule,
    Severity,
)


class AutocastBadArguments(Rule):
    """Arguments of autocast or GradScaler that raise, or that mean something else in silence.

    ## What it flags
    - A keyword that the callable does not have: `torch.cuda.amp.autocast(device_type="cuda")`,
      `autocast("cuda", enable=False)`, `torch.amp.GradScaler(device_type="cuda")`.
    - A missing device type (also where `**settings` of the function would have to bring it, and
      none of its calls does), a `torch.device` or a dtype in its place, or one that torch does not
      know (`"gpu"`).
    - A flag where the dtype stands (`autocast("cuda", False)`), a dtype as text.
    - What is taken for another parameter without an error:
      `torch.cuda.amp.autocast(torch.bfloat16)` runs in float16, `torch.cuda.amp.GradScaler(False)`
      has the initial scale 0, after which parameters are nan, `torch.cuda.amp.GradScaler(use_amp)`
      the scale 1, and `torch.amp.GradScaler(False)` is on.
    - `autocast("cuda", torch.float32)`, which runs the listed operations in float32, so that
      nothing is mixed any more; as a warning, not inside of another region, and only `possible` in
      a function that does not train.
    - A region without `dtype` that is entered because of a name for one (`enabled=dtype is not
      None`), where that name may be bfloat16: the region is float16 all the same.

    - `autocast` as a decorator or manager without a call of it, and `with autocast(...) and
      torch.no_grad():`, which enters the second only.
    - What the least torch does not have (`torch-version`, or the project's metadata), unless the file asks
      for the version: `torch.amp.GradScaler` before 2.3, `custom_fwd` of torch.amp before 2.4, a device
      with its index (`"cuda:0"`, `str(x.device)`) before 2.4, `"mps"` before 2.5, float16 on the CPU
      before 2.2. Where no least torch is known, `str(x.device)` is `possible`.

    It stays silent for `*args`, for `**options` unless a dict in the
    same function has a wrong key, for a name that is imported from two places where they differ,
    and in a `try` that catches the error.

    ## Why it breaks
    `torch.autocast(device_type, dtype, enabled)` and `torch.cuda.amp.autocast(enabled, dtype)` take
    their parameters in another order, and so do the two GradScalers. Some mixtures raise a
    TypeError or a ValueError where the region is entered; the others train in another precision
    than the code says.

    ## Example
    ```python
    scaler = torch.cuda.amp.GradScaler(True)
    ```
    Use instead:
    ```python
    scaler = torch.cuda.amp.GradScaler(enabled=True)
    ```

    ## Fix safety
    Safe where the argument says what is meant: it gets its name, or its right spelling. Where the
    device is missing, `"cuda"` is a guess, and the fix unsafe. float32 in a region and a dtype that
    is not passed on have no fix.

    ## How to silence
    `# precision-lint: ignore[MP210] reason` or `# noqa: MP210` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: `torch.autocast`, `torch.amp.GradScaler`; executed
    with torch 2.13.
    """

    code = "MP210"
    name = "autocast-bad-arguments"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("amp-arguments",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        place, related = _ends(event, at)
        yield Finding(
            f"{facts['what']}",
            place,
            severity=Severity.ERROR if facts["raises"] else Severity.WARNING,
            fix=_repaired(event, at),
            related=related,
        )


def _ends(event: Event, at: Context) -> tuple[Place, tuple[Link, ...]]:
    """Where it stands: at the region, or where another file makes the text that stands for a device."""
    made = event.facts.get("made")
    if made is None or (made.path, made.row) == (event.place.path, event.place.row):
        return event.place, ()
    if at.path != event.place.path:
        return made, (Link("it is given to autocast here", event.place),)
    return event.place, (Link("the text is made here", made, cause=event.path != at.path),)


def _repaired(event: Event, at: Context) -> Fix | None:
    """Write what is meant."""
    repair, call = event.facts["repair"], at.call(event.place)
    if repair is None or call is None:
        return None
    how, *given = repair
    torch, imports = at.torch()
    if how == "first":  # the device is missing
        named = call.name(0, given[0]) if given[0] is not None else ()
        edits = None if named is None else call.first_and('"cuda"', named)
        return at.fix("name the device", edits, "which device is meant is a guess")
    given = [one.replace("torch", torch, 1) if isinstance(one, str) else one for one in given]
    edits = getattr(call, how)(*given)
    return at.fix("write what is meant", None if edits is None else (*imports, *edits))
