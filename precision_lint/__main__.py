"""The process of the command line: ``precision-lint`` and ``python -m precision_lint``."""

import gc
import os
import sys

from precision_lint.cli import main


def run() -> None:
    """Run the command line and end this process.

    What works for long collects its garbage itself. Everything is written and closed by the end, so
    memory is left to the system: to free it object by object would take seconds after a large run.
    """
    gc.disable()
    code = main()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):  # the interpreter tells of a pipe that was closed
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    run()
