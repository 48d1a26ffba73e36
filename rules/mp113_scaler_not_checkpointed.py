from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from precision_lint.api import (
    Apex,
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Scaler,
    ScalerLife,
    Severity,
    calls,
)

SAVES = re.compile(r"checkpoint|saver$|^save", re.IGNORECASE)
"""Names of what saves an object that it is given."""
KEEPS = re.compile(
    r"scale\w*(\(\))?[\"'\])]*\.(load_)?state_dict\b|register_\w+\(\s*[\"']\w*scaler"
)
"""A scaler's state that is saved or loaded."""
MIXED = re.compile(r"amp|mixed|half|16|scaler", re.IGNORECASE)
"""Names of classes that may take care of a scaler themselves."""
CREATORS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")


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
    triggers = calls(*CREATORS, "Tensor.load_state_dict", Apex.initialize)

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
            yield from _misread(call, call.func.value, at)
            if ScalerLife.unread(at) is call:
                yield at.finding(
                    call,
                    "the optimizer's state is read back and the scaler's, which is saved, is not: "
                    "the run that continues starts at the initial scale again",
                    Confidence.LIKELY,
                )
            return
        if at.qualify(call.func) == Apex.initialize:
            yield from _forgotten_by_apex(call, at)
            return
        scaler = Scaler.made(call, at)
        if scaler is None or scaler.off:
            return
        again = ScalerLife.anew(scaler, at)
        if again is not None:
            yield at.finding(
                call,
                f"{scaler.text} is made anew while its optimizer goes on: each time it starts at "
                "the initial scale again, and throws steps away",
                again[0],
                evidence=again[1],
            )
            return
        found = list(self._forgotten(call, scaler, at))
        found = found or list(_left_to_others(call, scaler, at))
        yield from found or _left_out(call, scaler, at)

    @staticmethod
    def _forgotten(call: ast.Call, scaler: Scaler, at: Context) -> Iterator[Finding]:
        """Dicts that hold the optimizer's state without the scaler's."""
        if not any(True for _ in scaler.calls("scale")):
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
                if entries is None and _grown(node, stepped, here):
                    yield here.finding(
                        node,
                        f"the optimizer's state is saved without that of {scaler.text}: the run "
                        "that continues starts at the initial scale again",
                        Confidence.LIKELY,
                        evidence=(here.note(call, "the scaler is made here"),),
                    )
                    return
                if entries is None or id(entries) in seen or not _forgets(entries, stepped):
                    continue
                seen.add(id(entries))
                statement = here.statement(entries)
                fix = None
                if statement is not None and scaler.only and _stands(scaler, at, entries, here):
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
                    "continues starts at the initial scale again",
                    confidence,
                    evidence=evidence,
                    fix=fix,
                )


def _left_out(call: ast.Call, scaler: Scaler, at: Context) -> Iterator[Finding]:
    """Functions of other homes that save the optimizer and get no scaler."""
    if KEEPS.search(at.source.text) or not any(True for _ in scaler.calls("scale")):
        return
    for node, here in ScalerLife.left_out(scaler, at):
        known = ScalerLife.keeps_states(node, here)
        yield here.finding(
            node,
            f"the optimizer is saved without {scaler.text}: the run that continues starts at the "
            "initial scale again",
            Confidence.LIKELY if known else Confidence.POSSIBLE,
            evidence=(here.note(call, "the scaler is made here"),),
        )
        return


def _forgotten_by_apex(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Dicts with an optimizer's state and without that of apex's amp."""
    if "amp.state_dict" in at.source.text or not Apex.scales(call):
        return
    for function in (at.module.index.top, *at.module.index.functions):
        here = at.inside(function)
        for node in function.nodes:
            if isinstance(node, ast.Call) and "save" in ast.unparse(node.func).lower():
                entries = _entries(node, here)
                whole = entries is not None and len(entries.keys) > 1
                if whole and entries is not None and _forgets(entries, set()):
                    yield here.finding(
                        node,
                        "the optimizer's state is saved without amp.state_dict(): the run that "
                        "continues starts at the initial scale again",
                        Confidence.LIKELY,
                        evidence=(here.note(call, "amp scales the losses from here on"),),
                    )
                    return


def _stands(scaler: Scaler, home: Context, place: ast.expr, here: Context) -> bool:
    """Whether a scaler is made wherever the code comes to ``place``, and still there."""
    made = home.statement(scaler.call)
    block = home.parents.get(id(made)) if made is not None else None
    if here.function is not home.function or scaler.text.startswith("self."):
        return block is home.function.node
    deleted = any(isinstance(use.ctx, ast.Del) for use in here.uses(scaler.text))
    return any(block is outer for outer in here.ancestors(place)) and not deleted


def _left_to_others(call: ast.Call, scaler: Scaler, at: Context) -> Iterator[Finding]:
    """A scaler that an object owns, of whose state whatever saves the object learns nothing."""
    cls, text = at.function.cls, _attribute(scaler, at)
    if cls is None or text is None or KEEPS.search(at.source.text):
        return
    methods = [function for function in at.module.index.functions if function.cls is cls]
    nodes = [(node, at.inside(function)) for function in methods for node in function.nodes]
    made = [n for n, _ in nodes if isinstance(n, ast.Call) and at.qualify(n.func) in CREATORS]
    called = {
        node.func.attr: (node, here)
        for node, here in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if ast.unparse(node.func.value) == text
    }
    if "scale" not in called or min(made, key=lambda n: n.lineno, default=call) is not call:
        return
    evidence = [at.note(call, "the scaler is made here")]
    confidence = Confidence.LIKELY
    known, keeper = at.module.method(cls, "state_dict"), _keeper(cls.name, at)
    if known is not None:
        own, module = known
        asked = next((node for node in own.nodes if _asks_optimizer(node)), None)
        if asked is None or "scale" in ast.unparse(own.node).lower():
            return
        if own.cls is cls:
            node, here = asked, at.inside(own)
        else:
            node, here = called.get("step", called["scale"])
            evidence.append(module.note(asked, "the state that is saved is put together here"))
    elif keeper is not None and not any(MIXED.search(base) for base in cls.bases):
        node, here = keeper
    elif set(cls.bases) - ScalerLife.PLAIN:
        node, here = called.get("step", called["scale"])
        confidence = Confidence.POSSIBLE
        if ScalerLife.alone(at):
            confidence = Care.offered(at)
    else:
        return
    yield here.finding(
        node,
        f"nothing saves the state of {text}: the run that continues starts at the initial scale "
        "again",
        confidence,
        evidence=evidence,
    )


def _attribute(scaler: Scaler, at: Context) -> str | None:
    """The attribute of ``self`` that holds a scaler, by way of a local name too."""
    if scaler.text.startswith("self."):
        return scaler.text
    for node in at.function.nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == scaler.text:
            target = ast.unparse(node.targets[0])
            if target.startswith("self.") and target.count(".") == 1:
                return target
    return None


def _keeper(owner: str, at: Context) -> tuple[ast.Call, Context] | None:
    """A call that gets an instance of a class of this file to save it, and its surroundings."""
    for function in (at.module.index.top, *at.module.index.functions):
        instances = {
            ast.unparse(node.targets[0])
            for node in function.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if ast.unparse(node.value.func) == owner
        }
        for node in function.nodes if instances else ():
            if isinstance(node, ast.Call) and SAVES.search(_last(node.func)):
                given = (*node.args, *(k.value for k in node.keywords))
                if any(ast.unparse(argument) in instances for argument in given):
                    return node, at.inside(function)
    return None


def _asks_optimizer(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node asks an optimizer for its state."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "state_dict"
        and "opt" in ast.unparse(node.func.value).lower()
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


def _grown(save: ast.Call, stepped: set[str], at: Context) -> bool:
    """Whether what is saved is a dict of this function that is filled item by item, or made by
    ``dict(...)``, with the optimizer's state and without the scaler's."""
    given = save.args[0] if save.args else None
    names = ""
    if isinstance(given, ast.Name):
        names, sources = given.id, at.function.assigned.get(given.id, [])
    else:
        sources = [given] if given is not None else []
    if names in {p.arg for p in at.function.parameters()}:
        return False
    states: list[ast.expr] = []
    for source in sources:
        if isinstance(source, ast.Dict):
            states += source.values
            states += [key for key in source.keys if key is not None]
        elif isinstance(source, ast.Call) and ast.unparse(source.func) == "dict":
            if source.args or any(k.arg is None for k in source.keywords):
                return False
            states += [k.value for k in source.keywords]
        else:
            return False
    for use in at.uses(names) if names else ():
        around = at.parents.get(id(use))
        if isinstance(use.ctx, ast.Load) and around is not save:
            stored = at.parents.get(id(around)) if around is not None else None
            if not isinstance(around, ast.Subscript) or not isinstance(stored, ast.Assign):
                return False
            states += [stored.value, around.slice]
    texts = [ast.unparse(state) for state in states]
    owners = {text.removesuffix(".state_dict()") for text in texts if text.endswith("state_dict()")}
    if any("scal" in text.lower() or "amp" in text.lower() for text in texts):
        return False
    return bool(owners & stepped)


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


def _misread(load: ast.Call, owner: ast.expr, at: Context) -> Iterator[Finding]:
    """The state of a scaler that is read under a key that nothing in the module writes."""
    name = _last(owner)
    key = _key(load.args[0]) if len(load.args) == 1 else None
    if key is None or "scaler" not in name.lower() or "standard" in name.lower():
        return
    functions = (at.module.index.top, *at.module.index.functions)
    written = [entry for function in functions for entry in _written(function.nodes)]
    saved = [(k, node) for k, node, value in written if _state_of(value) == name]
    keys = {k for k, _ in saved}
    if len(keys) != 1 or key.value in {k for k, _, _ in written}:
        return
    for function in functions:  # another branch may read older files
        for node in function.nodes:
            if isinstance(node, ast.Call) and node is not load and node.args:
                other = _key(node.args[0])
                if other is not None and other.value in keys:
                    return
    statement, quote = at.statement(load), at.text(key)[-1]
    edits = at.edit.rewrite(statement, {key: f"{quote}{saved[0][0]}{quote}"}) if statement else None
    why = "files that other code has written may hold the other key"
    yield at.finding(
        load,
        f"the state of {name} is read from {key.value!r} and saved under {saved[0][0]!r}: a run "
        "that is resumed does not get its scale back",
        Confidence.LIKELY,
        evidence=(at.note(saved[0][1], "the state is saved here"),),
        fix=Fix("read the key that is saved", Applicability.UNSAFE, edits, why) if edits else None,
    )


def _last(node: ast.expr | None) -> str:
    """The last word of a chain of names."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _key(node: ast.expr) -> ast.Constant | None:
    """The key in ``state["key"]`` or ``state.get("key")``."""
    match node:
        case ast.Subscript(value=ast.Name() | ast.Attribute(), slice=ast.Constant() as key):
            pass
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant() as key, *_]):
            pass
        case _:
            return None
    return key if isinstance(key.value, str) else None


def _written(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Keys that dicts are given, each with its place and what is stored there."""
    for node in nodes:
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Assign):
            pairs = [(t.slice, node.value) for t in node.targets if isinstance(t, ast.Subscript)]
        elif isinstance(node, ast.Call):
            yield from ((k.arg, k.value, k.value) for k in node.keywords if k.arg)
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key, value


def _state_of(value: ast.expr) -> str:
    """Whose state is stored, a scaler that may be None included."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "state_dict":
                return _last(node.func.value)
    return ""
