"""Training loops that keep the GradScaler's protocol, and loops that break it at one place."""

from __future__ import annotations

import textwrap

from tests.analysis import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE

HEAD = """
from torch.nn.utils import clip_grad_norm_

def gradients_are_finite(model):
    return all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())

def unscale_and_clip(model, optimizer, scaler):
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)

def clip(model):
    clip_grad_norm_(model.parameters(), 1.0)

def backward(loss, scaler):
    scaler.scale(loss).backward()

def step(optimizer, scaler):
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

def train(model, loader, optimizer, other, scaler, flag, odd):
    for i, batch in enumerate(loader):
"""
BACKWARD = "scaler.scale(model(batch)).backward()\n"
UNSCALE = "scaler.unscale_(optimizer)\n"
CLIP = "clip_grad_norm_(model.parameters(), 1.0)\n"
READ = "finite = all(torch.isfinite(p.grad).all() for p in model.parameters())\n"
STEP = "scaler.step(optimizer)\nscaler.update()\noptimizer.zero_grad()\n"
PLAIN_STEP = "optimizer.step()\noptimizer.zero_grad()\n"


def under(head: str, *body: str) -> str:
    return f"{head}:\n{textwrap.indent(''.join(body), '    ')}"


MICRO = "if (i + 1) % 2 == 0"
GOOD: dict[str, str] = {
    "unscaled, clipped, stepped": BACKWARD + UNSCALE + CLIP + STEP,
    "never looked at": BACKWARD + STEP,
    "read after unscale": BACKWARD + UNSCALE + READ + CLIP + STEP,
    "accumulation": BACKWARD + under(MICRO, UNSCALE, READ, CLIP, STEP),
    "accumulation by continue": BACKWARD
    + under("if (i + 1) % 2", "continue\n")
    + UNSCALE
    + CLIP
    + STEP,
    "accumulation, condition in a name": "last = (i + 1) % 2 == 0\n"
    + BACKWARD
    + under("if last", UNSCALE)
    + under("if last", CLIP, STEP),
    "accumulation, last batch too": BACKWARD
    + under(f"{MICRO} or i + 1 == len(loader)", UNSCALE, CLIP, STEP),
    "accumulation in an inner loop": under("for _ in range(2)", BACKWARD) + UNSCALE + CLIP + STEP,
    "accumulation in a while loop": "n = 2\n"
    + under("while n", "n -= 1\n", BACKWARD)
    + UNSCALE
    + CLIP
    + STEP,
    "two backwards, one unscale": BACKWARD + BACKWARD + UNSCALE + CLIP + STEP,
    "flag taken twice": BACKWARD + under("if flag", UNSCALE) + under("if flag", CLIP) + STEP,
    "flag and its like": BACKWARD
    + under("if flag", UNSCALE)
    + under("if not flag", "pass\n")
    + under("if flag and odd", CLIP)
    + STEP,
    "either flag": BACKWARD + under("if flag or odd", UNSCALE) + under("if odd", CLIP) + STEP,
    "nested flags": BACKWARD
    + under("if flag", under("if odd", UNSCALE))
    + under("if flag and odd", CLIP)
    + STEP,
    "early step": BACKWARD + under("if not flag", STEP, "continue\n") + UNSCALE + CLIP + STEP,
    "mixed precision by flag": under("if flag", BACKWARD, UNSCALE)
    + under("else", "model(batch).backward()\n")
    + READ
    + CLIP
    + under("if flag", STEP)
    + under("else", PLAIN_STEP),
    "scaler or None": under("if scaler is not None", BACKWARD, UNSCALE)
    + under("else", "model(batch).backward()\n")
    + CLIP
    + under("if scaler is not None", STEP),
    "truthy scaler": under("if scaler", BACKWARD, UNSCALE)
    + under("else", "model(batch).backward()\n")
    + CLIP
    + under("if scaler", STEP),
    "plain backward": f"model(batch).backward()\n{READ}{CLIP}{PLAIN_STEP}",
    "read after the step": BACKWARD
    + "scaler.step(optimizer)\n"
    + READ
    + "scaler.update()\noptimizer.zero_grad()\n",
    "read after the update": BACKWARD
    + "scaler.step(optimizer)\nscaler.update()\n"
    + READ
    + "optimizer.zero_grad()\n",
    "skip with update": BACKWARD
    + UNSCALE
    + READ
    + under("if not finite or odd", "optimizer.zero_grad()\nscaler.update()\ncontinue\n")
    + CLIP
    + STEP,
    "stop": BACKWARD + UNSCALE + READ + under("if odd", "break\n") + CLIP + STEP,
    "return": BACKWARD + UNSCALE + READ + under("if odd", "return\n") + CLIP + STEP,
    "two optimizers": BACKWARD
    + UNSCALE
    + "scaler.unscale_(other)\n"
    + CLIP
    + "scaler.step(other)\n"
    + STEP,
    "two optimizers in a loop": BACKWARD
    + under("for o in (optimizer, other)", "scaler.unscale_(o)\n")
    + CLIP
    + under("for o in (optimizer, other)", "scaler.step(o)\n")
    + "scaler.update()\noptimizer.zero_grad()\nother.zero_grad()\n",
    "a step for each of two losses": BACKWARD
    + UNSCALE
    + "scaler.step(optimizer)\nother.zero_grad()\n"
    + BACKWARD
    + "scaler.unscale_(other)\nscaler.step(other)\nscaler.update()\n",
    "helper unscales and clips": BACKWARD + "unscale_and_clip(model, optimizer, scaler)\n" + STEP,
    "helper clips": BACKWARD + UNSCALE + "clip(model)\n" + STEP,
    "helper reads": BACKWARD + UNSCALE + "gradients_are_finite(model)\n" + STEP,
    "helpers all the way": "backward(model(batch), scaler)\n"
    + "unscale_and_clip(model, optimizer, scaler)\n"
    + "step(optimizer, scaler)\n",
    "grad is None": BACKWARD
    + under("for p in model.parameters()", under("if p.grad is None", "continue\n"))
    + STEP,
    "gradient replaced": BACKWARD
    + under("for p in model.parameters()", "p.grad = p.grad * 2\n")
    + UNSCALE
    + STEP,
    "the scale taken into account": BACKWARD
    + "norms = [p.grad.norm() / scaler.get_scale() for p in model.parameters()]\n"
    + STEP,
    "closure after unscale": BACKWARD + under("def show()", READ) + UNSCALE + "show()\n" + STEP,
    "unscale in try": under("try", BACKWARD, UNSCALE)
    + under("except ZeroDivisionError", "continue\n")
    + CLIP
    + STEP,
    "step in finally": BACKWARD + under("try", UNSCALE, CLIP) + under("finally", STEP),
    "every case unscales": BACKWARD
    + under("match i % 2", under("case 0", UNSCALE, CLIP), under("case _", UNSCALE))
    + STEP,
    "first iteration only": BACKWARD + under("if i == 0", UNSCALE) + STEP,
    "unscale by expression": BACKWARD
    + "scaler.unscale_(optimizer) if flag else None\n"
    + under("if flag", CLIP)
    + STEP,
    "unscale by and": BACKWARD
    + "flag and scaler.unscale_(optimizer)\n"
    + under("if flag", CLIP)
    + STEP,
    "one micro-step, two spellings": BACKWARD
    + under("if i % 2 == 1", UNSCALE)
    + under("if (i + 1) % 2 == 0", CLIP, STEP),
    "even, then odd": BACKWARD
    + under("if i % 2 == 0", "pass\n")
    + under("else", UNSCALE)
    + under("if not i % 2 == 0", CLIP, STEP),
    "unscaled in even steps, stepped in odd ones": BACKWARD
    + under("if i % 2 == 0", UNSCALE)
    + under("else", STEP),
    "second unscale_ is tried": BACKWARD
    + UNSCALE
    + under("try", UNSCALE)
    + under("except RuntimeError", "pass\n")
    + CLIP
    + STEP,
    "scaled by name on a flag": "loss = model(batch)\n"
    + under("if flag", "loss = scaler.scale(loss)\n")
    + "loss.backward()\n"
    + under("if flag", UNSCALE)
    + CLIP
    + under("if flag", STEP)
    + under("else", PLAIN_STEP),
    "gradients in a list": BACKWARD
    + UNSCALE
    + "grads = [p.grad for p in model.parameters()]\n"
    + under("for g in grads", "torch.isfinite(g)\n")
    + STEP,
    "skipped after flags": BACKWARD
    + under("if flag or odd", STEP, "continue\n")
    + UNSCALE
    + under("if odd", "continue\n")
    + CLIP
    + STEP,
    "update in finally": under(
        "try", BACKWARD, UNSCALE, under("if odd", "continue\n"), CLIP, "scaler.step(optimizer)\n"
    )
    + under("finally", "scaler.update()\noptimizer.zero_grad()\n"),
    "nothing but the scale is logged": BACKWARD
    + "str(scaler.get_scale())\n"
    + UNSCALE
    + CLIP
    + STEP,
    "new scaler": BACKWARD
    + UNSCALE
    + CLIP
    + "scaler.step(optimizer)\nscaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n"
    + "optimizer.zero_grad()\n",
}
BAD: dict[str, tuple[str, str, str]] = {
    # a loop, what it breaks, and a fragment of the line that is flagged
    "clipped": (BACKWARD + CLIP + STEP, CLIP_SCALED, "clip_grad_norm_"),
    "clipped, then unscaled": (BACKWARD + CLIP + UNSCALE + STEP, CLIP_SCALED, "clip_grad_norm_"),
    "clipped on one flag": (
        BACKWARD + under("if not flag", UNSCALE) + under("if flag", CLIP) + STEP,
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped by a helper": (BACKWARD + "clip(model)\n" + STEP, CLIP_SCALED, "clip(model)"),
    "clipped, stepped by a helper": (
        BACKWARD + CLIP + "step(optimizer, scaler)\n",
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped, backward in a helper": (
        "backward(model(batch), scaler)\n" + CLIP + STEP,
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped in a condition": (
        BACKWARD + under("if clip_grad_norm_(model.parameters(), 1.0) > 9", "pass\n") + STEP,
        CLIP_SCALED,
        "> 9",
    ),
    "clipped where the other branch unscales": (
        BACKWARD + under("if flag", UNSCALE, CLIP) + under("elif odd", CLIP) + STEP,
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped after a second backward": (
        BACKWARD + UNSCALE + BACKWARD + CLIP + STEP,
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped for the second of two optimizers": (
        BACKWARD
        + UNSCALE
        + "scaler.step(optimizer)\noptimizer.zero_grad()\nother.zero_grad()\n"
        + BACKWARD
        + CLIP
        + "scaler.step(other)\nscaler.update()\nother.zero_grad()\n",
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "read": (BACKWARD + READ + STEP, READ_SCALED, "isfinite"),
    "read, then unscaled": (BACKWARD + READ + UNSCALE + CLIP + STEP, READ_SCALED, "finite = "),
    "read in every micro-step": (
        BACKWARD + READ + under(MICRO, UNSCALE, CLIP, STEP),
        READ_SCALED,
        "finite = ",
    ),
    "read by a helper": (
        BACKWARD + "ok = gradients_are_finite(model)\n" + UNSCALE + STEP,
        READ_SCALED,
        "ok = ",
    ),
    "read by a closure": (
        BACKWARD + under("def show()", READ) + "show()\n" + UNSCALE + STEP,
        READ_SCALED,
        "show()",
    ),
    "read through a name": (
        BACKWARD
        + under("for p in model.parameters()", "g = p.grad\n", "torch.isfinite(g).all()\n")
        + STEP,
        READ_SCALED,
        "torch.isfinite(g)",
    ),
    "read without a graph": (
        BACKWARD + under("with torch.no_grad()", READ) + UNSCALE + STEP,
        READ_SCALED,
        "finite = ",
    ),
    "read where the loss was scaled by name": (
        "scaled = scaler.scale(model(batch))\nscaled.backward()\n" + READ + STEP,
        READ_SCALED,
        "finite = ",
    ),
    "read on both paths of a flag": (
        under("if flag", BACKWARD)
        + under("else", "model(batch).backward()\n")
        + READ
        + under("if flag", STEP)
        + under("else", PLAIN_STEP),
        READ_SCALED,
        "finite = ",
    ),
    "unscaled twice": (
        BACKWARD + UNSCALE + READ + UNSCALE[:-1] + "  # again\n" + STEP,
        UNSCALED_TWICE,
        "# again",
    ),
    "unscaled again by a helper": (
        BACKWARD + UNSCALE + "unscale_and_clip(model, optimizer, scaler)\n" + STEP,
        UNSCALED_TWICE,
        "unscale_and_clip(",
    ),
    "unscaled in every micro-step": (
        BACKWARD + UNSCALE + under(MICRO, CLIP, STEP),
        UNSCALED_TWICE,
        "unscale_",
    ),
    "unscaled in every micro-step, by continue": (
        BACKWARD + UNSCALE + under("if (i + 1) % 2", "continue\n") + CLIP + STEP,
        UNSCALED_TWICE,
        "unscale_",
    ),
    "unscaled in every micro-step, by name": (
        "last = (i + 1) % 2 == 0\n" + BACKWARD + UNSCALE + under("if last", CLIP, STEP),
        UNSCALED_TWICE,
        "unscale_",
    ),
    "unscaled in an inner loop": (
        under("for _ in range(2)", BACKWARD, UNSCALE) + STEP,
        UNSCALED_TWICE,
        "unscale_",
    ),
    "never updated": (
        BACKWARD + UNSCALE + "scaler.step(optimizer)\noptimizer.zero_grad()\n",
        UNSCALED_TWICE,
        "unscale_",
    ),
    "skip without update": (
        BACKWARD
        + UNSCALE
        + READ
        + under("if not finite or odd", "optimizer.zero_grad()\ncontinue\n")
        + CLIP
        + STEP,
        UNSCALED_TWICE,
        "unscale_",
    ),
    "unscaled after its step": (
        BACKWARD + "scaler.step(optimizer)\n" + UNSCALE + "scaler.update()\n",
        UNSCALED_TWICE,
        "unscale_",
    ),
    "one of two optimizers unscaled twice": (
        BACKWARD + UNSCALE + UNSCALE[:-1] + "  # again\n" + "scaler.step(other)\n" + STEP,
        UNSCALED_TWICE,
        "# again",
    ),
    "unscaled before the second of two losses too": (
        BACKWARD
        + UNSCALE
        + "scaler.step(optimizer)\n"
        + BACKWARD
        + UNSCALE[:-1]
        + "  # again\nscaler.step(other)\nscaler.update()\n",
        UNSCALED_TWICE,
        "# again",
    ),
    "scale logged, then clipped": (
        BACKWARD + "str(scaler.get_scale())\n" + CLIP + STEP,
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "read through a list": (
        BACKWARD
        + "grads = [p.grad for p in model.parameters()]\n"
        + under("for g in grads", "torch.isfinite(g).all()\n")
        + STEP,
        READ_SCALED,
        "torch.isfinite(g)",
    ),
    "read through a list that grows": (
        BACKWARD
        + "grads = []\n"
        + under("for p in model.parameters()", "grads.append(p.grad.detach())\n")
        + "any(torch.isfinite(g) for g in grads)\n"
        + STEP,
        READ_SCALED,
        "any(",
    ),
    "read through a dict": (
        BACKWARD
        + "grads = {n: p.grad for n, p in model.named_parameters()}\n"
        + under("for n, g in grads.items()", "torch.isfinite(g)\n")
        + STEP,
        READ_SCALED,
        "torch.isfinite(g)",
    ),
    "scaled by name on a flag, clipped": (
        "loss = model(batch)\n"
        + under("if flag", "loss = scaler.scale(loss)\n")
        + "loss.backward()\n"
        + CLIP
        + under("if flag", STEP)
        + under("else", PLAIN_STEP),
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "clipped in the other micro-step": (
        BACKWARD + under("if i % 2 == 0", UNSCALE) + under("if (i + 1) % 2 == 0", CLIP, STEP),
        CLIP_SCALED,
        "clip_grad_norm_",
    ),
    "unscaled in a try around the iteration": (
        under("try", BACKWARD, UNSCALE, under(MICRO, CLIP, STEP))
        + under("except ZeroDivisionError", "pass\n"),
        UNSCALED_TWICE,
        "unscale_",
    ),
}
SOMETIMES: dict[str, str] = {
    # clipped on a path that may or may not have unscaled: `possible`, not shown by default
    "unscaled on a flag, clipped always": BACKWARD + under("if flag", UNSCALE) + CLIP + STEP,
    "one case unscales": BACKWARD
    + under("match i % 2", under("case 0", UNSCALE), under("case _", "pass\n"))
    + CLIP
    + STEP,
}
