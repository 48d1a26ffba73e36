"""Abstract domains: dtypes by precision mode, intervals, assumptions, and the values made of them."""

from typing import Any


class Spread(list[Any]):
    """Arguments of which one stands for as many as there have to be: ``f(x, *parts, y)``.

    at: its index.  The class is here since mypyc, which leaves this file out, compiles no subclass of ``list``.
    """

    at: int = 0

    def filled(self, count: int) -> list[Any]:
        """So many arguments, or as many as there are."""
        more = max(count - len(self), 0)
        return [*self[: self.at], *self[self.at : self.at + 1] * more, *self[self.at :]]
