"""Examples of GradScaler's protocol (MP1xx): how far the parameters move, or what raises."""

from __future__ import annotations

import io

import torch

from .example import HALF, NET, Example, Names, copies, frozen, linear, moved, training

UNCHECKED = "No inf checks were recorded"


def accumulation() -> Names:
    names = training()
    batches = [torch.full((2, 4), 0.1 * i) for i in range(1, 5)]
    return {**names, "loader": batches, "loss": lambda x: names["model"](x).square().mean()}


def adversaries() -> Names:
    """Two networks at the step in which the scale doubles, which is every 2000th by default."""
    x = torch.arange(8.0).view(2, 4) / 8
    generator, discriminator = linear(), linear(bias=0.5)
    loss = discriminator(x).square().mean()
    gradients = torch.autograd.grad(loss, list(discriminator.parameters()), retain_graph=True)
    return {
        "loss_g": generator(x).square().mean(),
        "loss_d": loss,
        "step": 0.5 * float(max(g.abs().max() for g in gradients)),
        "optimizer_g": torch.optim.SGD(generator.parameters(), lr=0.5),
        "optimizer_d": torch.optim.SGD(discriminator.parameters(), lr=0.5),
        "scaler": torch.amp.GradScaler("cpu", growth_interval=1),
        "discriminator": discriminator,
        "discriminator at first": copies(discriminator),
    }


def unequal(names: Names) -> bool:
    """Whether the discriminator moves otherwise than its gradient and learning rate say."""
    return abs(moved(names, "discriminator") / names["step"] - 1) > 0.4


def autoencoder() -> Names:
    encoder, decoder = linear(4, 2), linear(2, 4)
    return {
        "encoder": encoder,
        "decoder": decoder,
        "decoder at first": copies(decoder),
        "x": torch.arange(8.0).view(2, 4) / 8,
        "scaler": torch.amp.GradScaler("cpu"),
    }


def overflowing() -> Names:
    """Gradients of about 50, which are inf in float16 at a scale of 65536."""
    return training(x=8 * torch.arange(8.0).view(2, 4) / 8)


def large_mean() -> Names:
    """Errors of 1e-3 in a mean over 131,072 elements."""
    model = linear(4, 4096, scale=0.0)
    return {
        "model": model,
        "model at first": copies(model),
        "loader": [(torch.ones(32, 4), torch.full((32, 4096), 1e-3))] * 2,
        "criterion": torch.nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def wastes_steps(names: Names) -> bool:
    """Whether steps are thrown away, in a run whose scale may double in each step, not 2000th."""
    model, scaler, x = names["model"], names["scaler"], names["x"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler.set_growth_interval(1)
    taken = 0
    for _ in range(150):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
        before = copies(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        taken += moved({"model": model, "model at first": before}) > 0
    return taken < 150


def checkpointed() -> Names:
    names = overflowing()
    del names["scaler"]
    optimizer = torch.optim.SGD(names["model"].parameters(), lr=1e-4)
    return {**names, "optimizer": optimizer, "batches": [names["x"]] * 20, "path": io.BytesIO()}


def resumes_badly(names: Names) -> bool:
    """Whether the run that goes on from the checkpoint throws its first step away."""
    names["path"].seek(0)
    saved = torch.load(names["path"])
    model, scaler = linear(), torch.amp.GradScaler("cuda")
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer.load_state_dict(saved["optimizer"])
    if "scaler" in saved:
        scaler.load_state_dict(saved["scaler"])
    before = copies(model)
    with torch.autocast("cuda"):
        loss = model(names["x"]).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    return moved({"model": model, "model at first": before}) == 0


EXAMPLES: dict[str, Example] = {
    "MP101": Example(training, fails=lambda names: names["norm"].item() > 1e3),
    "MP102": Example(training, fails=frozen),
    "MP103": Example(accumulation, raises="unscale_() has already been called"),
    "MP104": Example(training, raises=f"{UNCHECKED} prior to update"),
    "MP105": Example(training, raises="_scale is None"),
    "MP106": Example(adversaries, fails=unequal),
    "MP107": Example(
        autoencoder,
        before="""\
            encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.5)
            decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.5)
            scaler.scale((decoder(encoder(x)) - x).square().mean()).backward()
        """,
        after="""\
            scaler.step(encoder_optimizer)
            scaler.step(decoder_optimizer)
            scaler.update()
        """,
        fails=lambda names: moved(names, "decoder") < 1e-3,
    ),
    "MP108": Example(
        overflowing,
        before="""\
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
        """,
        fails=lambda names: moved(names) > 1e3,
    ),
    "MP109": Example(training, raises=f"{UNCHECKED} for this optimizer"),
    "MP110": Example(
        lambda: {"x": torch.rand(2, 4), "y": torch.rand(2, 1)},
        prelude=NET,
        before='scaler = torch.amp.GradScaler("cuda")',
        raises="Attempting to unscale FP16 gradients",
    ),
    "MP111": Example(large_mean, fails=lambda names: moved(names) == 0),
    "MP112": Example(overflowing, fails=wastes_steps),
    "MP113": Example(
        checkpointed,
        before="""\
            scaler = torch.amp.GradScaler("cuda")
            for x in batches:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        fails=resumes_badly,
    ),
    "MP114": Example(
        lambda: {"x": torch.rand(2, 4), "use_amp": False},
        fails=lambda names: names["x"].dtype is HALF,
    ),
    "MP115": Example(
        lambda: {"x": torch.rand(32, 4)},
        layers="""\
            self.student = nn.Linear(4, 4)
            self.teacher = nn.Linear(4, 4)
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            self.scaler = torch.amp.GradScaler("cuda")
        """,
        before="""\
            scaler = self.scaler
            with torch.autocast("cuda"):
                student, teacher = self.student(x), self.teacher(x)
        """,
        fails=lambda names: not bool(names["self"].student.weight.grad.isfinite().all()),
    ),
}
