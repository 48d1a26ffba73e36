"""The child process that executes cases, and the parent's side of it.

Fixtures run in a child with limits on time and memory.  A case that kills the child (a crash, a
limit) is a failed case with the child's last words; a new child takes up the rest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_lint.harness.children import Children, Conversation, TooSlow

GRACE = 60
"""Seconds beyond its limit after which a child that cannot even end itself is ended."""
SECONDS = 60
"""Time one case may take, all its runs together."""
BYTES = 4 << 30
"""Memory a child may hold; not enforced where a GPU is used, which maps far more than it holds."""


@dataclass(frozen=True)
class Job:
    """The cases of one folder that one child executes.

    ``texts``: for each case, by its index in ``CASES``, the original and the fixed text; None where
    the case wants no fix.
    """

    folder: Path
    texts: dict[int, tuple[str, str | None]]
    device: str = "cpu"
    seconds: int = SECONDS
    bytes: int = BYTES


def run(
    job: Job, children: Children | None = None
) -> Iterator[tuple[int, list[dict[str, Any]] | str]]:
    """Execute a job; yields each case's index with its cells, or with why it has none.

    Raises `Stopped` when ``children`` are.
    """
    left = dict(job.texts)
    while left:
        child = Conversation(children or Children(), __name__, job.seconds + GRACE)
        begun: int | None = None
        with contextlib.suppress(TooSlow):
            for message in child.ask(_payload(job, left)):
                begun = index = int(message["case"])
                if "answer" in message:
                    del left[index]
                    begun = None
                    yield index, message["answer"]
        if not left:
            return
        last_words = _last_words(child.said, child.status, job)
        if begun is None:
            for index in left:
                yield index, f"the child process ended before the case: {last_words}"
            return
        del left[begun]
        yield begun, f"the child process died: {last_words}"


def _payload(job: Job, texts: dict[int, tuple[str, str | None]]) -> dict[str, Any]:
    return {
        "folder": str(job.folder),
        "texts": {str(index): pair for index, pair in texts.items()},
        "device": job.device,
        "seconds": job.seconds,
        "bytes": job.bytes,
    }


def _last_words(said: Sequence[str], status: int, job: Job) -> str:
    if any(line.startswith("Timeout (") for line in said):
        return f"it ran longer than {job.seconds} s"
    return f"exit status {status}" + (f", {said[-1]}" if said else "")


def main() -> int:
    """Execute the job on standard input; one line of JSON for each begin and end of a case."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a fixture prints is no answer
    job = json.load(sys.stdin)
    _limit_memory(job["bytes"], job["device"])

    import torch  # after the limit is set

    from precision_lint.harness.collect import load_cases
    from precision_lint.harness.execute import Fault
    from precision_lint.harness.judge import prove

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(job["folder"])
    cases = load_cases(folder)
    for key, (original, fixed) in job["texts"].items():
        case = cases[int(key)]
        answer(case=int(key))
        faulthandler.dump_traceback_later(job["seconds"], exit=True)
        try:
            cells = prove(case, folder / case.module, original, fixed, job["device"])
        except Fault as fault:
            answer(case=int(key), answer=str(fault))
        except Exception as error:  # the fixture, its proof or the harness; told with its place
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            answer(case=int(key), answer=f"{what} ({Path(place.filename).name}:{place.lineno})")
        else:
            answer(case=int(key), answer=[cell.as_json() for cell in cells])
        finally:
            faulthandler.cancel_dump_traceback_later()
    return 0


def _limit_memory(limit: int, device: str) -> None:
    if device != "cpu":
        return
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
