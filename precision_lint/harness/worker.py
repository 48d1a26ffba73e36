"""The child process that executes cases, and the parent's side of it.

Fixtures run in a child with limits on time and memory.  A case that kills the child (a crash, a
limit) is a failed case with the child's last words; a new child takes up the rest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from precision_lint.harness.children import Children, Conversation, TooSlow

GRACE = 60
"""Seconds beyond its limit after which a child that cannot even end itself is ended."""
SECONDS = 60
"""Time one case may take, all its runs together."""
BYTES = 4 << 30
"""Memory a child may hold; not enforced where a GPU is used, which maps far more than it holds."""


Texts = dict[int, tuple[str, str | None]]
"""Original and fixed text by the index of the case."""


@dataclass(frozen=True)
class Job:
    """The cases of one folder.

    ``texts``: for each case, by its index in ``CASES``, the original and the fixed text; None where
    the case wants no fix.
    """

    folder: Path
    texts: Texts
    device: str = "cpu"
    seconds: int = SECONDS
    bytes: int = BYTES


Answer = list[dict[str, Any]] | str
"""The cells of a case, or why it has none."""


def run(jobs: Sequence[Job], children: Children | None = None) -> Iterator[tuple[int, int, Answer]]:
    """Execute jobs; yields the number of the job and the index of the case with each answer.

    One child imports torch for all jobs, of one device and its limits, and executes each of several in a fork.
    Raises `Stopped` when ``children`` are.
    """
    left = {number: dict(job.texts) for number, job in enumerate(jobs) if job.texts}
    while left:
        child = Conversation(children or Children(), __name__, jobs[0].seconds + GRACE)
        begun: tuple[int, int | None] | None = None
        with contextlib.suppress(TooSlow):
            for message in child.ask(_payload(jobs, left)):
                number, index = message["job"], message["case"]
                begun = number, index
                if "answer" in message:
                    _drop(left, number, index)
                    begun = (number, None) if number in left else None
                    yield number, index, message["answer"]
        if not left:
            return
        words = _last_words(child.said, child.status, jobs[0])
        yield from _lost(left, begun, words)


def _lost(
    left: dict[int, Texts], begun: tuple[int, int | None] | None, words: str
) -> Iterator[tuple[int, int, Answer]]:
    """What has no answer because a child died: the case at hand; all of a job, or of all, before the first."""
    if begun is not None and begun[1] is not None:
        _drop(left, begun[0], begun[1])
        yield begun[0], begun[1], f"the child process died: {words}"
        return
    for number in list(left) if begun is None else [begun[0]]:
        for index in left.pop(number):
            yield number, index, f"the child process ended before the case: {words}"


def _drop(left: dict[int, Texts], number: int, index: int) -> None:
    del left[number][index]
    if not left[number]:
        del left[number]


def _payload(jobs: Sequence[Job], left: dict[int, Texts]) -> dict[str, Any]:
    return {
        "device": jobs[0].device,
        "seconds": jobs[0].seconds,
        "bytes": jobs[0].bytes,
        "jobs": [
            {
                "job": number,
                "folder": str(jobs[number].folder),
                "texts": {str(index): pair for index, pair in texts.items()},
            }
            for number, texts in left.items()
        ],
    }


def _last_words(said: Sequence[str], status: int, job: Job) -> str:
    if any(line.startswith("Timeout (") for line in said):
        return f"it ran longer than {job.seconds} s"
    return f"exit status {status}" + (f", {said[-1]}" if said else "")


def main() -> int:
    """Execute the jobs on standard input; a line of JSON for each begin and end of a job's cases."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a fixture prints is no answer
    asked = json.load(sys.stdin)
    _limit_memory(asked["bytes"], asked["device"])

    import torch  # after the limit is set, and once for all jobs

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    jobs = [asked | job for job in asked["jobs"]]
    for job in jobs if len(jobs) > 1 else ():
        _apart(functools.partial(_execute, job, answers))
    if len(jobs) == 1:
        _execute(jobs[0], answers)
    return 0


def _apart(work: Callable[[], None]) -> None:
    """Do something in a fork, which what it leaves behind ends with.

    If that ends by a signal or with an exit status, so does this process.
    """
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended:
        sys.stderr.flush()
        os._exit(ended) if ended > 0 else os.kill(os.getpid(), -ended)


def _execute(job: dict[str, Any], answers: TextIO) -> None:
    """The cases of one folder."""
    from precision_lint.harness.collect import load_cases
    from precision_lint.harness.execute import Fault
    from precision_lint.harness.judge import prove

    def answer(**message: Any) -> None:
        print(json.dumps({"job": job["job"], **message}), file=answers, flush=True)

    answer(case=None)
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
