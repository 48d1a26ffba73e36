"""Work on other machines: an executor of dask.distributed, whose workers have this package and the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import precision_lint
from precision_lint import pool

WAIT = 10
"""Seconds in which a scheduler has to answer."""


@contextmanager
def dask(address: str, paths: Sequence[Path]) -> Iterator[int]:
    """For the length of a ``with``, `pool.run` works through a scheduler; gives the number of threads.

    paths: what the workers have to find under the same absolute path.  Raises `click.UsageError`
    where there is no such scheduler, or a worker lacks the files or this version.
    """
    try:
        import distributed
    except ImportError:
        raise click.UsageError(
            "--executor dask needs dask.distributed; pip install 'precision-lint[dask]'"
        ) from None
    connect: Any = distributed.Client
    try:
        client = connect(address, timeout=WAIT, set_as_default=False)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise click.UsageError(
            f"--scheduler {address}: {what}; start one with dask scheduler"
        ) from None
    with client:
        wanted = [str(path.absolute()) for path in paths]
        for worker, answer in client.run(missing, wanted, precision_lint.__version__).items():
            if answer:
                raise click.UsageError(f"the worker {worker} {answer}")
        threads = sum(client.nthreads().values())
        if not threads:
            raise click.UsageError(
                f"--scheduler {address} has no workers; start some with dask worker"
            )
        executor: Executor = client.get_executor(pure=False)
        with pool.through(executor):
            yield threads


def missing(paths: Sequence[str], version: str) -> str:
    """What this worker lacks, as a predicate; empty if nothing."""
    mine = precision_lint.__version__
    if version != mine:
        return f"has precision-lint {mine} rather than {version}; install the same"
    absent = [path for path in paths if not Path(path).exists()]
    return f"does not see {absent[0]}; share the folder under the same path" if absent else ""
