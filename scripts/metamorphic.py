"""Counts how many verdicts on the fixtures stay as they are under rewritings that change nothing.

python scripts/metamorphic.py [NAME ...]   of these rewritings; by default of all
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.metamorphic import comparing
from tests.metamorphic.rewritings import NAMES


def main() -> None:
    chosen = [name for name in NAMES if not sys.argv[1:] or name in sys.argv[1:]]
    everything = changed = 0
    for name in chosen:
        total, parted = 0, []
        for path in comparing.fixtures():
            found = comparing.differences(path, name)
            if found is None:
                continue
            total += found[0]
            if found[1]:
                parted.append(f"{path.parent.name[:5]}/{path.name}: {' '.join(found[1])}")
                changed += len(found[1])
        everything += total
        lost = sum(line.count(" -") + line.count(" +") for line in parted)
        print(
            f"{name}: {total} verdicts, {lost} changed ({100 * (1 - lost / max(total, 1)):.1f} %)"
        )
        for line in parted:
            print(f"    {line}")
    print(f"unchanged: {100 * (1 - changed / max(everything, 1)):.2f} % of {everything}")


if __name__ == "__main__":
    main()
