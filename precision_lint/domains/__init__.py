"""Abstract domains: dtypes by precision mode, intervals, assumptions, and the values made of them."""

from typing import Any


class Spread(list[Any]):
    """Arguments of which the last stands for itself and for all that follow: ``f(*parts)``.

    It is defined here since mypyc, which leaves this file out, compiles no subclass of ``list``.
    """

    __slots__ = ()
