"""``python -m precision_lint`` is the command line."""

import sys

from precision_lint.cli import main

sys.exit(main())
