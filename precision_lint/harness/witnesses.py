"""Witnesses for users' code: findings planned here, searched in a child, given a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from precision_lint.api import Diagnostic
from precision_lint.display import printable
from precision_lint.harness.children import Children, Conversation, Stopped, TooSlow
from precision_lint.harness.plan import Plan, Variant

SECONDS = 40
"""Time one finding may take; the search stops by itself at 60 % of it."""
BYTES = 4 << 30
"""Memory a child may hold."""
BATCH = 8
"""Findings a child gets; starting one costs about two seconds."""
CHILD = "precision_lint.harness.witness_child"

Outcome = Literal["proven", "not reproduced", "not isolated"]


@dataclass
class Verdict:
    """What came of a finding; ``answer`` has the witness of a proven one."""

    plan: Plan
    outcome: Outcome
    reason: str = ""
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def finding(self) -> Diagnostic:
        return self.plan.finding

    @property
    def variant(self) -> Variant:
        return self.plan.variants[int(self.answer["variant"])]

    @property
    def fixed(self) -> str | None:
        """The slice with the fix that cures it."""
        index = self.answer.get("cured_by")
        return None if index is None else self.variant.fixed[index]

    @property
    def fix(self) -> str | None:
        index = self.answer.get("cured_by")
        return None if index is None else self.variant.fixes[index]

    @property
    def place(self) -> str:
        """File, row and column, for people."""
        start = self.finding.start
        return f"{printable(self.finding.filename)}:{start.row}:{start.column}"


def search(
    plans: Sequence[Plan],
    *,
    jobs: int = 1,
    children: Children | None = None,
    done: Callable[[Verdict], None] = lambda verdict: None,
    seconds: int = SECONDS,
    memory: int = BYTES,
    sweep: bool = False,
) -> Iterator[Verdict]:
    """A verdict for each plan, in order; ``done`` hears of each as soon as it is known.

    ``sweep``: whether witnesses are to be drawn.  What is not searched when ``children`` are
    stopped has no verdict.
    """
    children = children or Children()
    found: dict[int, Verdict] = {}

    def settle(number: int, verdict: Verdict) -> None:
        found[number] = verdict
        done(verdict)

    todo = []
    for number, plan in enumerate(plans):
        if plan.reason:
            settle(number, Verdict(plan, "not isolated", plan.reason))
        else:
            todo.append(number)
    size = max(1, min(BATCH, -(-len(todo) // max(1, jobs))))
    batches = [todo[start : start + size] for start in range(0, len(todo), size)]

    def run(batch: list[int]) -> None:
        for number, answer in _batch(
            {n: plans[n] for n in batch}, children, seconds, memory, sweep
        ):
            settle(number, _verdict(plans[number], answer))

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            for _ in pool.map(run, batches):
                pass
        except Stopped:
            pass
        except BaseException:
            children.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    yield from (found[number] for number in sorted(found))


def _verdict(plan: Plan, answer: dict[str, Any]) -> Verdict:
    return Verdict(plan, answer["verdict"], answer["reason"], answer)


def _batch(
    plans: dict[int, Plan], children: Children, seconds: int, memory: int, sweep: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Answers of one child; one that dies or hangs loses the finding it was at, and no other."""
    left = dict(plans)
    while left:
        child = Conversation(children, CHILD, seconds)
        begun: int | None = None
        slow = False
        try:
            payload = {
                "jobs": [plan.job(number, sweep) for number, plan in left.items()],
                "seconds": seconds,
                "bytes": memory,
            }
            for message in child.ask(payload, apart=True):
                begun = message.get("begun")
                if "answer" in message:
                    del left[message["id"]]
                    yield message["id"], message["answer"]
        except TooSlow:
            slow = True
        if not left:
            return
        words = child.said[-1] if child.said else ""
        if slow:
            reason = f"it ran longer than {seconds} s and was ended"
        else:
            reason = f"it ended its process (exit status {child.status}{words and f', {words}'})"
        lost = [begun] if begun is not None else list(left)
        for number in lost:
            del left[number]
            yield number, {"verdict": "not isolated", "reason": reason}
