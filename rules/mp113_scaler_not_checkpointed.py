from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class ScalerNotCheckpointed(Rule):
    """Checkpoint with the optimizer's state from which the scaler's does not come back.

    ## What it flags
    `torch.save`, or a function named so (`save_checkpoint`), of a dict literal that holds
    `optimizer.state_dict()` but nothing of the scaler, where the same function or object has
    the GradScaler, or a caller of it steps the optimizer with one. A dict that is passed to a
    function outside of the project counts as saved, as does what a `state_dict` of the object that
    owns the scaler returns.

    A scaler that is made anew in each iteration, or in each call of a function that steps once,
    while its optimizer goes on. A key under which a scaler's state is loaded, where the same file
    saves it under another one.

    It stays silent for weights alone, for a scaler that is off, where more may be added to the dict,
    where the dict has an entry of the scaler's or amp's name, where each state has a file of
    its own, the scaler's too, for what is only seen to step, as a schedule does, and for a scaler that
    is not handed on where nothing in its file scales.

    ## Why it breaks
    A new scaler starts at 65536. The run that continues throws steps away until it has found its
    scale again (9 in a measured run), and forgets when to grow. In a run that had grown the scale,
    gradients underflow for 2000 steps at a time until it is back. A key that is not in the file
    raises `KeyError` when the run is resumed, or, behind a test for it, skips the scaler.

    ## Example
    ```python
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    ```
    Use instead:
    ```python
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        },
        path,
    )
    ```

    ## Fix safety
    Safe: the file gets one more entry. Loading it (`scaler.load_state_dict`) has to be written by
    hand where it is missing. There is no automatic fix where the scaler may be None. Reading the
    key that is written is unsafe: files of other code may hold the other one.

    ## How to silence
    `# precision-lint: ignore[MP113] reason` or `# noqa: MP113` on the line.

    ## Sources
    PyTorch, recipes: Automatic Mixed Precision, saving and resuming; the numbers are measured.
    """

    code = "MP113"
    name = "scaler-not-checkpointed"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    listens = ("scaler-not-saved",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        if event.facts["how"] == "renewed":
            yield Finding(
                "a new scaler for each call or iteration, while its optimizer goes on: what it has "
                "learned of the scale is forgotten each time"
            )
            return
        if event.facts["how"] == "unread":
            yield Finding(
                "the scaler's state is looked for under a key that is not saved: it does not come back"
            )
            return
        made = event.facts["scaler"]
        own = made is not None and event.facts["how"] != "elsewhere"
        name = at.name_of(made, event.place) if own else None
        edits = None
        if name is not None:
            edits = at.add_entry(event.facts["state"], "scaler", f"{name}.state_dict()")
        yield Finding(
            "the checkpoint has the optimizer's state, but not the scaler's: a resumed run starts again at "
            "the initial scale",
            fix=at.fix(f"save the state of {name}", edits),
            related=() if made is None else (Link("the scaler is made here", made),),
        )
