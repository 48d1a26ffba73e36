"""The child process that searches witnesses; users' code runs here and nowhere else."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from precision_lint.harness import sandbox


def main() -> NoReturn:
    """Search for each job on standard input; one line of JSON at the begin and end of each."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    payload = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # nobody answers what the code asks
    os.dup2(nothing, 1)
    sandbox.part(Path.cwd())
    sandbox.limit(payload["bytes"], payload["seconds"] * (len(payload["jobs"]) + 1))

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.cwd())  # optimizers import what makes it

    import torch  # after the limits are set

    from precision_lint.harness import searching

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    searching.warm_up()
    sandbox.refuse(Path.cwd())
    for job in payload["jobs"]:
        answer(begun=job["id"])
        if "called" in job:
            answer(id=job["id"], answer=searching.called(job))
        else:
            answer(id=job["id"], answer=searching.search(job, payload["seconds"] * 0.6))
    os._exit(0)  # threads and exit handlers of the code do not get another turn


if __name__ == "__main__":
    main()
