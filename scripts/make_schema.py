"""Write precision-lint.schema.json, from which editors complete the configuration."""

from __future__ import annotations

import json
from pathlib import Path

from precision_lint import schema

FILE = Path(__file__).parent.parent / "precision-lint.schema.json"


def text() -> str:
    """What the file has to hold."""
    return json.dumps(schema.generate(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf8")
