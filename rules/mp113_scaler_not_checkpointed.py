from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class ScalerNotCheckpointed(Rule):
    """Checkpoint with the optimizer's state from which the scaler's does not come back.

    ## What it flags
    `torch.save`, or a function named so (`save_checkpoint`), of a dict literal that holds
    `optimizer.state_dict()` but nothing of the scaler, where the same function or class made the
    GradScaler that steps this optimizer, and the module saves no `state_dict` of one. A dict that
    is saved several times is reported once.

    A class that makes a scaler and leaves the saving to others: its `state_dict`, or the one it
    inherits, is that of the optimizer alone, or an object that saves (`Checkpointer(model,
    trainer=trainer)`) is given an instance that has none. Where nothing tells who saves, such a
    class is only `possible`, and then it has to have a base: likely where the project runs half
    precision and holds all bases, none of which saves a scaler.

    A scaler's `load_state_dict` that reads another key than the only one under which the module
    saves the state of a scaler of that name, and that the module writes nowhere.

    A scaler that is made anew in each round of a loop, or in a function that is called in one,
    while the optimizer that it steps is older; without the loop in sight only `possible`, unless a
    method without a loop makes one step of its object's optimizer with it. A file
    that saves a scaler's state, reads the optimizer's back and never the scaler's. Checkpoints
    without `amp.state_dict()` where apex scales. Saving functions that get the optimizer as an
    argument and no scaler are `possible`; `likely` where they are functions of the project that
    save the states of what they are given.

    It stays silent for weights alone, for a scaler that is off, where the dict is built in several
    places, and where the dict has an entry of the scaler's or amp's name.

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
        made = event.facts["scaler"]
        name = at.name_of(made, event.place) if made is not None else None
        edits = None
        if name is not None:
            edits = at.add_entry(event.facts["state"], "scaler", f"{name}.state_dict()")
        yield Finding(
            "the optimizer's state is saved without that of the scaler: the run that continues starts at "
            "the initial scale again",
            fix=at.fix(f"save the state of {name}", edits),
            related=() if made is None else (Link("the scaler is made here", made),),
        )
