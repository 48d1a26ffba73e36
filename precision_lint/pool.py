"""Work in several processes, in order, and without losing what others did when one dies."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from precision_lint import progress

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Work = Callable[[Sequence[Item], Any], list[Answer]]

BATCH = 16
"""Items a worker gets at a time, at most."""
PARTS = 24
"""Parts of the work for each worker, at least."""
LIMIT = 60
"""Workers at most: Windows cannot wait for more."""

_state: Any = None
"""In a worker: what every call of the work gets besides its items."""
_executor: Executor | None = None
"""Somebody else's workers, which are used rather than processes of our own."""
_sent: tuple[bytes, Any] = (b"", None)
"""In such a worker: what it was last sent besides items, and what that says."""
_one_at_a_time = threading.Lock()
"""In such a worker, which may have several threads: the work shares what it remembers."""


@contextmanager
def through(executor: Executor) -> Iterator[None]:
    """For the length of a ``with``, `run` hands its work to an executor, which goes on living."""
    global _executor
    before, _executor = _executor, executor
    try:
        yield
    finally:
        _executor = before


def _start(state: Any) -> None:
    global _state
    _state = state
    progress.hide()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    gc.freeze()
    gc.disable()  # the work says when


def _leave_with_parent() -> None:
    """End this worker when its parent was killed; it would wait for work for ever."""
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is not None:
        if hasattr(signal, "pthread_sigmask"):  # the main thread may be holding it back
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _call(work: Work[Item, Answer], items: Sequence[Item]) -> list[Answer]:
    return work(items, _state)


def _call_sent(work: Work[Item, Answer], items: Sequence[Item], packed: bytes) -> list[Answer]:
    """The same in a worker of somebody else's executor."""
    global _sent
    with _one_at_a_time:
        if _sent[0] != packed:
            progress.hide()
            _sent = packed, pickle.loads(packed)[1]
        return work(items, _sent[1])


def run(
    work: Work[Item, Answer],
    items: Sequence[Item],
    state: Any,
    *,
    lost: Callable[[Item], Answer],
    workers: int,
    weights: Sequence[int] | None = None,
) -> list[Answer]:
    """The answers of ``work(items, state)`` in the order of the items, from ``workers`` processes.

    They come from the workers of an executor instead for the length of `through`.

    ``work`` is a function of a module; items, answers and ``state`` can be pickled; ``state`` is
    sent once to each worker.  ``lost(item)`` is the answer for an item whose worker died, or whose
    answer could not be sent.  ``weights`` say how much work each item is; by default all are alike.
    """
    answers: dict[int, Answer] = {}
    todo = list(range(len(items)))
    workers, alone = min(workers, LIMIT), False
    while todo:
        chosen = [items[index] for index in todo]
        heavy = [1 if weights is None else max(weights[index], 1) for index in todo]
        parts = [range(i, i + 1) for i in range(len(todo))] if alone else batches(heavy, workers)
        missing = []
        got = _pass(work, chosen, state, 1 if alone else workers, parts)
        for index, found in zip(todo, got, strict=True):
            if found:
                answers[index] = found[0]
                progress.step()
            else:
                missing.append(index)
        if alone and missing:  # one worker takes the items in order: the first lost killed it
            culprit = missing.pop(0)
            answers[culprit] = lost(items[culprit])
        todo, alone = missing, not alone
    return [answers[index] for index in range(len(items))]


def batches(weights: Sequence[int], workers: int) -> list[range]:
    """Neighbours to work on together, of about equal weight; the heaviest first.

    Neighbours, for they rest on the same files.  A worker that is done takes the next batch, and
    the last ones are small, so that all end at about the same time.
    """
    most = max(1, sum(weights) // (PARTS * workers))
    found: list[range] = []
    start = whole = 0
    for index, weight in enumerate(weights):
        if index > start and (whole + weight > most or index - start == BATCH):
            found.append(range(start, index))
            start, whole = index, 0
        whole += weight
    found.append(range(start, len(weights)))
    return sorted(found, key=lambda part: -sum(weights[part.start : part.stop]))


def _pass(
    work: Work[Item, Answer],
    items: Sequence[Item],
    state: Any,
    workers: int,
    parts: Sequence[range],
) -> Iterator[list[Answer]]:
    """Each item's answer in a list of one; an empty list where a dead worker took it along."""
    if _executor is not None:
        yield from _handed_in(_executor, work, items, state, parts)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    others = set(multiprocessing.active_children())
    try:
        pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(state,))
    except (ImportError, NotImplementedError, OSError):  # a machine without semaphores
        yield from ([answer] for answer in work(items, state))
        return
    try:
        yield from _answers(lambda chosen: pool.submit(_call, work, chosen), items, parts)
    except BaseException:  # interrupted: what still runs is of no use any more
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _handed_in(
    executor: Executor,
    work: Work[Item, Answer],
    items: Sequence[Item],
    state: Any,
    parts: Sequence[range],
) -> Iterator[list[Answer]]:
    """The same from somebody else's executor."""
    packed = pickle.dumps((os.urandom(16), state))  # of this call: files may change until the next
    futures: list[Future[list[Answer]]] = []

    def submit(chosen: Sequence[Item]) -> Future[list[Answer]]:
        futures.append(executor.submit(_call_sent, work, chosen, packed))
        return futures[-1]

    try:
        yield from _answers(submit, items, parts)
    finally:
        for future in futures:
            future.cancel()


def _answers(
    submit: Callable[[Sequence[Item]], Future[list[Answer]]],
    items: Sequence[Item],
    parts: Sequence[range],
) -> Iterator[list[Answer]]:
    from concurrent.futures import BrokenExecutor

    futures: dict[int, Future[list[Answer]]] = {}
    with suppress(BrokenExecutor):  # a worker may die before all is handed in
        for part in parts:
            futures[part.start] = submit([items[index] for index in part])
    for part in sorted(parts, key=lambda part: part.start):
        future = futures.get(part.start)
        try:
            answers = future.result() if future else []
        except Exception:
            answers = []
        yield from ([answer] for answer in answers) if answers else ([] for _ in part)
