"""Examples of what leaves the range of a dtype (MP3xx)."""

from __future__ import annotations

import torch

from .example import HALF, Example, Names, broken_gradient, infinite, off, wave


def masks() -> Names:
    return {
        "q": wave(2, 4, 8),
        "k": wave(2, 4, 8, step=1.3),
        "mask": torch.ones(4, 4, dtype=torch.bool).triu(1),
    }


def positions() -> Names:
    """The last row is banned, and padding as well."""
    banned, padding = torch.zeros(2, 4, dtype=HALF), torch.zeros(2, 4, dtype=HALF)
    banned[1], padding[1] = 1, 1
    return {"banned": banned, "padding": padding}


EXAMPLES: dict[str, Example] = {
    "MP301": Example(
        lambda: {"logits": torch.linspace(-20, 20, 15).half()}, fails=infinite("loss")
    ),
    "MP302": Example(
        lambda: {"logits": torch.linspace(-12, 12, 17).half()},
        fails=off(
            "loss", lambda names: torch.nn.functional.softplus(names["logits"].double()), 1.0
        ),
    ),
    "MP303": Example(lambda: {"logits": 24 * wave(3, 4)}, fails=infinite("loss")),
    "MP304": Example(lambda: {"x": 600 * wave(3, 4).half()}, fails=infinite("energy")),
    "MP305": Example(
        lambda: {"x": torch.stack((wave(5, 8), -torch.ones(5, 8)))},
        layers="""\
            self.score = nn.Linear(8, 1)
            nn.init.ones_(self.score.weight)
        """,
        before="scores = self.score(x).squeeze(-1)",
        fails=infinite("weights"),
        region=HALF,
    ),
    "MP306": Example(
        lambda: {
            "x": wave(3, 8).requires_grad_(),
            "y": torch.cat((wave(2, 8, step=1.3), wave(3, 8)[2:])),  # the last row is equal
        },
        layers="self.proj = nn.Linear(8, 4)",
        before="a, b = self.proj(x), self.proj(y)",
        after="error.backward()",
        fails=broken_gradient("x"),
        region=HALF,
    ),
    "MP307": Example(
        lambda: {"features": torch.stack((wave(8), -torch.ones(8)))}, fails=infinite("unit")
    ),
    "MP308": Example(
        lambda: {"x": torch.linspace(-6, 6, 9).requires_grad_()},
        after="angle.sum().backward()",
        fails=broken_gradient("x"),
    ),
    "MP309": Example(
        lambda: {"reference": torch.linspace(0, 1, 9)},
        fails=infinite("logit"),
    ),
    "MP310": Example(masks, raises="cannot be converted to type"),
    "MP311": Example(
        positions,
        after="weights = bias.softmax(dim=-1)",
        fails=infinite("weights"),
    ),
}
