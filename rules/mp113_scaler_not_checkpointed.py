from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Scaler,
    Severity,
    calls,
)

CREATORS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")


class ScalerNotCheckpointed(Rule):
    """Checkpoint with the optimizer's state and without the scaler's.

    ## What it flags
    `torch.save`, or a function named so (`save_checkpoint`), of a dict literal that holds
    `optimizer.state_dict()` but nothing of the scaler, where the same function or class made the
    GradScaler that steps this optimizer, and the module saves no `state_dict` of one. A dict that
    is saved several times is reported once.

    It stays silent for weights alone, for a scaler that is off, where the dict is built in several
    places, and where the dict has an entry of the scaler's or amp's name.

    ## Why it breaks
    A new scaler starts at 65536. The run that continues throws steps away until it has found its
    scale again (9 in a measured run), and forgets when to grow. In a run that had grown the scale,
    gradients underflow for 2000 steps at a time until it is back.

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
    hand where it is missing. There is no automatic fix where the scaler may be None.

    ## How to silence
    `# precision-lint: ignore[MP113] reason` or `# noqa: MP113` on the line.

    ## Sources
    PyTorch, recipes: Automatic Mixed Precision, saving and resuming; the numbers are measured.
    """

    code = "MP113"
    name = "scaler-not-checkpointed"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = calls(*CREATORS)

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        scaler = Scaler.made(call, at)
        if scaler is None or scaler.off or not any(True for _ in scaler.calls("scale")):
            return
        text = at.source.text
        if "scaler.state_dict" in text or 'scaler"].state_dict' in text:
            return
        stepped = {ast.unparse(step.args[0]) for step, _ in scaler.calls("step") if step.args}
        seen: set[int] = set()
        for function in scaler.scope:
            here = at.inside(function)
            for node in function.nodes:
                if not isinstance(node, ast.Call) or "save" not in ast.unparse(node.func).lower():
                    continue
                entries = _entries(node, here)
                if entries is None or id(entries) in seen or not _forgets(entries, stepped):
                    continue
                seen.add(id(entries))
                statement = here.statement(entries)
                fix = None
                if statement is not None and scaler.only:
                    edits = here.edit.add_entry(
                        statement, entries, "scaler", f"{scaler.text}.state_dict()"
                    )
                    if edits is not None:
                        fix = Fix("save the scaler's state too", Applicability.SAFE, edits)
                sure = here.qualify(node.func) == "torch.save" and not scaler.may_be_off
                confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
                evidence = [here.note(call, "the scaler is made here")]
                if statement is not None and statement is not here.statement(node):
                    evidence.append(here.note(entries, "what is saved is put together here"))
                yield here.finding(
                    node,
                    f"the optimizer's state is saved without that of {scaler.text}: the run that "
                    "continues starts at a scale of 65536 again",
                    confidence,
                    evidence=evidence,
                    fix=fix,
                )


def _entries(save: ast.Call, at: Context) -> ast.Dict | None:
    """The dict literal that is saved, if it is put together in one place."""
    given = save.args[0] if save.args else None
    if isinstance(given, ast.Name):
        uses = at.uses(given.id)
        changed = [
            u for u in uses if isinstance(at.parents.get(id(u)), (ast.Subscript, ast.Attribute))
        ]
        if changed or sum(isinstance(u.ctx, ast.Store) for u in uses) != 1:
            return None
        given = at.definition(given.id, given)
    return given if isinstance(given, ast.Dict) else None


def _forgets(entries: ast.Dict, stepped: set[str]) -> bool:
    """Whether a dict holds the state of an optimizer that the scaler steps (or of any, where that
    is not seen) and nothing that may be a scaler's."""
    if any(key is None for key in entries.keys):
        return False
    values = [ast.unparse(value) for value in entries.values]
    words = " ".join([*values, *(ast.unparse(key) for key in entries.keys if key)]).lower()
    states = {v.rpartition(".")[0] for v in values if v.endswith(".state_dict()")}
    saved = states & stepped if stepped else {s for s in states if "opt" in s.lower()}
    return bool(saved) and "scaler" not in words and "amp" not in words
