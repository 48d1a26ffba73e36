"""Single lines of tensor code, for what the analysis knows of each to be held against torch."""

from __future__ import annotations

from collections.abc import Iterator

DTYPES = (
    ("torch.float16", "torch.float32"), ("torch.float32", "torch.bfloat16"),
    ("torch.bfloat16", "torch.float16"), ("torch.float32", "torch.float32"),
)  # fmt: skip
"""Pairs of dtypes of the two tensors in a line."""
ONE = (
    "{t}.float()", "{t}.half()", "{t}.to({u})", "{t}.to({u}.dtype)", "{t}.type_as({u})", "{t}.double()",
    "torch.softmax({t}, dim=-1)", "F.softmax({t}, dim=-1, dtype={u}.dtype)", "F.log_softmax({t}, dim=1)",
    "torch.exp({t})", "torch.log({t} + 1)", "{t}.pow(2)", "{t} ** 2", "2 ** {t}", "torch.sqrt({t}.abs())",
    "{t}.sigmoid()", "torch.tanh({t})", "F.relu({t})", "F.gelu({t})", "{t}.clamp(min=0.1)", "{t}.clamp(0, 5)",
    "{t}.mean(dim=-1, keepdim=True)", "{t}.sum(0)", "{t}.sum(dtype=torch.float32)",
    "{t}.sum(dtype=torch.float32) + {t}", "{t}.mean(dtype=torch.float32) * {u}", "{t}.sum() * {u}",
    "{t}.var(dim=1, keepdim=True)", "{t}.norm(dim=-1)", "F.normalize({t}, dim=-1)", "{t}.amax(-1)",
    "{t}.max(dim=-1)[0]", "{t}.max(dim=-1).values", "{t}.cumsum(0)", "{t}.logsumexp(1)",
    "F.layer_norm({t}, (4,))", "-{t}", "1 - {t}", "{t} / 3", "1 / ({t} + 1)", "{t} // 2", "{t} + 1e-3",
    "{t}.t()", "{t}.reshape(16)", "{t}[None]", "{t}[None][0]", "{t}[:, None, 0]", "{t}[0]", "{t}[..., None]",
    "torch.zeros_like({t})", "torch.ones_like({t}, dtype={u}.dtype)", "{t}.new_zeros(4, 4)",
    "torch.full_like({t}, 3.0)", "torch.zeros(4, 4)", "torch.full((4, 4), 2)", "torch.arange(4) * {t}",
    "torch.arange(4.0) + {t}", "torch.tensor(2.0) * {t}", "torch.tensor([1.0, 2.0, 3.0, 4.0]) * {t}",
    "torch.tensor(1.0, dtype=torch.float32) + {t}", "{t}.chunk(2, dim=0)[0]", "torch.stack({t}.unbind(0))",
    "{t}.round()",
    "torch.floor({t} * 0.5 + 0.4)", "torch.arange(4) * {t}.reshape(4, 4)",
    "torch.ceil({t})", "torch.trunc({t} * 3)", "{t}.long() * {u}",
    "{t}.mean().item() * {u}", "{t}.mean().item() * {t}.long()", "{t}.long().sum().item() * {u}.long()",
    "{t}.masked_fill({t} > 0, 0.0)", "{t}.argsort(-1)", "{t}.sort(-1)[0]", "({t} > 0).float()",
    "({t} > 0) * {u}", "({t} > 0).sum() + {u}", "{t}.size(0) * {u}", "({t}.shape[-1] ** -0.5) * {u}",
    "torch.from_numpy({t}.float().numpy())", "torch.as_tensor({t}, dtype={u}.dtype)",
    "torch.where({t} > 0, {t}, 0.0)", "torch.where({t} > 0, 1.0, 0.0) + {u}", "{t}[torch.arange(4)]",
    "sum([{t}, {u}])", "torch.stack([{t} for _ in range(2)]).sum(0)", "(lambda q: q.float())({t})",
    "list({'a': {t}, 'b': {u}}.values())[0]", "{k: v.float() for k, v in {'a': {t}}.items()}['a']",
    "dict(a={t}, b={u})['b']", "max([{t}.mean(), {t}.sum()])",
)  # fmt: skip
TWO = (
    "{t} + {u}", "{t} - {u}", "{t} * {u}", "{t} / ({u} + 1)", "torch.sub({t}, {u}, alpha=2)",
    "torch.sub({t}, {t}, alpha=2)", "{t}.add({u}, alpha=0.5)", "torch.maximum({t}, {u})",
    "torch.where({t} > {u}, {u}, {t})", "torch.cat([{t}, {u}], dim=0)", "torch.stack([{t}, {u}])[0]",
    "torch.addcmul({t}, {u}, {u})", "F.mse_loss({t}, {u}, reduction='none')", "F.l1_loss({t}, {u}) + {t}",
    "torch.hypot({t}, {u})", "torch.outer({t}[0], {u}[0])", "{t} @ {u}", "torch.mm({t}, {u})",
    "F.linear({t}, {u})", "torch.einsum('ij,jk->ik', {t}, {u})", "torch.bmm({t}[None], {u}[None])",
    "torch.addmm({t}, {u}, {t})", "F.scaled_dot_product_attention({t}[None], {u}[None], {u}[None])",
)  # fmt: skip
SEVERAL = (
    "y = {t}\ny += {u}", "y = {t}.clone()\ny @= {t}", "y = {t}.clone()\ny.add_({u})",
    "y = {t}.clone()\ny[0] = {u}[0]", "y = {t}.clone()\ny.clamp_(0, 1)", "y = {t}.clone()\ny.data = {u}",
    "for _ in range(2):\n    y = {t}.half()", "y = {u}\nfor _ in range(2):\n    y = {t}.float()",
    "y = {u}\nfor one in [{t}, {t}, {t}]:\n    y = one.float()", "y, z = {t}.half(), {u}",
    "y = {t}\nif y is not None:\n    y = {u}.float()", "y, z = (q.float() for q in ({t}, {u}))",
    "z, y = {'k': {t}, 'l': {u}}.values()", "y, z = [q.clone() for q in ({t}, {u})]",
    "y, *_, z = [{t}, 1, {u}]", "y, z = torch.stack([{t}, {u}]).unbind(0)",
    "if {t} is not None:\n    y = {t}.half()\nelse:\n    y = {t}.double()",
    "if {t}.is_floating_point():\n    y = {t}.half()\nelse:\n    y = {t}.float()",
    "ys = []\nfor _ in range(2):\n    ys.append({t}.half())\ny = torch.stack(ys)",
    "if torch.is_autocast_enabled():\n    y = {t}.half()\nelse:\n    y = {t}.double()",
)  # fmt: skip
HEAD = """\
import torch
import torch.nn.functional as F
"""
REGIONS = ("torch.no_grad()", "torch.autocast('cpu', dtype=torch.bfloat16)",
           "torch.autocast('cpu', dtype=torch.float16)")  # fmt: skip


def program(first: str, second: str, region: str) -> str:
    """A function for each line, and what calls all with tensors of two dtypes."""
    lines = [HEAD]
    names = []
    for number, text in enumerate(_bodies()):
        names.append(f"line{number}")
        lines += [f"\n\ndef line{number}(x, w):", f"    with {region}:"]
        lines += [f"        {line}" for line in text.split("\n")]
        lines += ["    return y"]
    lines += ["\n\ndef main():", f"    x = torch.rand(4, 4).to({first})"]
    lines += [f"    w = torch.rand(4, 4).to({second})"]
    lines += [f"    {name}(x, w)" for name in names]
    return "\n".join(lines) + "\n\n\nmain()\n"


def _bodies() -> Iterator[str]:
    for text in (*("y = " + one for one in (*ONE, *TWO)), *SEVERAL):
        yield text.replace("{t}", "x").replace("{u}", "w")


def programs() -> Iterator[tuple[str, str]]:
    """Names and texts."""
    for first, second in DTYPES:
        for number, region in enumerate(REGIONS):
            yield f"{first[6:]}_{second[6:]}_{number}", program(first, second, region)
