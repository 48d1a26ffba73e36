"""Repairs of the order in which a scaler unscales, steps and is updated, for the rules about it.

Each function gives None where the code has no shape that it can repair cleanly.
"""

from __future__ import annotations

from precision_lint.api import Context, Edit, Event, Fix, Link, Place

__all__ = [
    "backward",
    "move_update",
    "move_zero",
    "removed",
    "step_with_scaler",
    "unscale",
    "update",
]

Edits = tuple[Edit, ...]


def backward(event: Event) -> tuple[Link, ...]:
    """Where the loss was scaled."""
    place = event.facts["backward"]
    return () if place is None else (Link("the loss is scaled here", place),)


def _steps(event: Event, at: Context) -> list[tuple[Place, str, str]]:
    """The steps that follow, each with its scaler and its optimizer as they are written."""
    found = []
    for step, scaler, optimizer in event.facts["steps"]:
        if step.path != at.path or not at.is_name(scaler) or not at.is_name(optimizer):
            return []
        found.append((step, at.text(scaler), at.text(optimizer)))
    return found


def _both(first: Edits | None, second: Edits | None) -> Edits | None:
    return None if first is None or second is None else (*first, *second)


def _behind_last(steps: list[Place], at: Context, line: str) -> Edits | None:
    """A new line behind the last of some steps; where they are in several branches, in each."""
    edits: Edits | None = ()
    ends: list[Place] = []
    for step in sorted(steps, reverse=True):
        if all(at.are_exclusive(step, one) for one in ends):
            ends.append(step)
            edits = _both(edits, at.insert_after(step, line))
        elif not any(at.is_sure_of(one, step) for one in ends):
            return None  # a later step may be left out
    return edits


def _updated(steps: dict[Place, str], at: Context) -> Edits | None:
    """Updates of each scaler behind its last step; by step: the scaler."""
    edits: Edits | None = ()
    for scaler in dict.fromkeys(steps.values()):
        own = [step for step, one in steps.items() if one == scaler]
        edits = _both(edits, _behind_last(own, at, f"{scaler}.update()"))
    return edits


def unscale(event: Event, at: Context, title: str, reason: str | None = None) -> Fix | None:
    """Unscale the gradients of all optimizers that step, in front of what looks at them."""
    steps = _steps(event, at)
    if not steps:
        return None
    lines = list(dict.fromkeys(f"{scaler}.unscale_({name})" for _, scaler, name in steps))
    places = (event.place, *event.facts["calls"])
    near = next((one for one in places if at.together(one, steps[0][0])), event.place)
    edits = at.insert_beside(near, steps[0][0], *lines)
    edits = _both(edits, at.insert_before_skips(near, steps[0][0], f"{steps[0][1]}.update()"))
    for place in event.facts["unscales"]:
        removed = at.remove(place)
        if removed is not None and edits is not None:
            removed = tuple(edit for edit in removed if edit not in edits)
        edits = _both(edits, removed)
    return at.fix(title, edits, reason)


def removed(event: Event, at: Context, method: str) -> Edits | None:
    """Remove the call of a method; of a function around it, which may do more, nothing."""
    called = (at.callee(event.place) or "").endswith(f".{method}")
    return at.remove(event.place) if called else None


def step_with_scaler(event: Event, at: Context) -> Fix | None:
    """Step with the scaler that has scaled the loss, and update it; it takes no closure."""
    if event.facts["given"]:
        return None
    scalers = event.facts["scalers"]
    spelled = {at.text(place) for place in scalers if place.path == at.path}
    optimizer = at.receiver(event.place)
    if optimizer is None or not at.is_name(optimizer) or len(spelled) != 1:
        return None
    if not all(at.is_known(place, event.place) for place in scalers):
        return None
    scaler = spelled.pop()
    edits = at.replace({event.place: f"{scaler}.step({at.text(optimizer)})"})
    updates = event.facts["updates"]
    if all(at.are_exclusive(place, event.place) for place in updates):
        others = (place for place in event.facts["plain"] if place != event.place)
        if updates and not all(at.are_exclusive(place, event.place) for place in others):
            return None  # another step of this backward, before or behind which the update would be
        edits = _both(edits, at.insert_after(event.place, f"{scaler}.update()"))
    return at.fix(f"step with {scaler}", edits)


def update(event: Event, at: Context) -> Edits | None:
    """Update the scaler behind its last step, and no longer where no step is."""
    steps = _steps(event, at)
    if not steps or not at.together(event.place, steps[-1][0]):
        return None
    scaler = at.receiver(event.place)
    own = {event.place: at.text(scaler)} if scaler is not None else {}
    edits = _updated({**own, **{step: one for step, one, _ in steps}}, at)
    for place in event.facts["updates"]:
        edits = _both(edits, at.remove(place))
    return edits


def move_update(event: Event, at: Context) -> Edits | None:
    """Update behind the last step instead of here; only remove it where that is done already."""
    steps = _steps(event, at)
    if not steps or not at.together(event.place, steps[-1][0]):
        return None
    last = steps[-1][0]
    updates = [place for place in event.facts["updates"] if place != event.place]
    gone = removed(event, at, "update")
    if any(at.together(place, last) and place.row > last.row for place in updates):
        return gone
    return _both(gone, _updated({step: one for step, one, _ in steps}, at))


def update_skips(event: Event, at: Context) -> Edits | None:
    """Update the scaler where a step is given up; None: it is not."""
    steps = _steps(event, at)
    if not steps:
        return None
    return at.insert_before_skips(event.place, steps[0][0], f"{steps[0][1]}.update()") or None


def move_zero(event: Event, at: Context) -> Edits | None:
    """Clear the gradients behind the step that uses them."""
    step = event.facts["step"]
    if not at.together(event.place, step):
        return None
    same = [
        place
        for place, _, _ in event.facts["steps"]
        if place != step and at.together(place, step) and at.text(place) == at.text(step)
    ]
    same = [step, *(place for place in same if not at.are_exclusive(event.place, place))]
    if not at.always_comes_to(same, event.place):
        return None  # on another way nothing would clear them
    added = _behind_last(same, at, at.text(event.place))
    return _both(at.remove(event.place), added)
