from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Cost, Event, Finding, Rule, Severity


class Bfloat16ToNumpy(Rule):
    """A bfloat16 tensor that is passed to NumPy, which has no such dtype.

    ## What it flags
    `x.numpy()`, `numpy.asarray(x)`, `numpy.array(x)` and torchvision's `to_pil_image(x)` and
    `ToPILImage()(x)`, which go through NumPy, of a tensor that is bfloat16: cast to it, the output
    of a model under a bfloat16 autocast region, the result of a layer in a project that runs in
    bfloat16.

    It stays silent on float16, which NumPy has, where the tensor is upcast or made of integers
    (`argmax`, `long`), on results that autocast gives in float32 (`softmax`, losses), and on those
    of a region that is float16, whatever others of the project are. Where only the project says
    bfloat16, or nothing does, the finding is `possible`, and so is that of a result of which the
    code shows neither the region nor a cast of what was called, unless the mode is stated.

    ## Why it breaks
    `TypeError: Got unsupported ScalarType BFloat16`. It often shows in the first evaluation, after
    the first epoch of training.

    ## Example
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().numpy())
    ```
    Use instead:
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().float().numpy())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing, and every bfloat16 number is one in float32.

    ## How to silence
    `# precision-lint: ignore[MP506] reason` or `# noqa: MP506` on the line.

    ## Sources
    PyTorch, `Tensor.numpy`; NumPy, scalar types.
    """

    code = "MP506"
    name = "bfloat16-to-numpy"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("bfloat16-to-numpy",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        operand = event.facts["operand"]
        edits = at.upcast([operand]) if operand is not None else None
        text = at.quoted(operand, "this")
        yield Finding(
            f"{text} is bfloat16, which NumPy does not have: this raises",
            fix=at.fix("upcast to float32 first", edits),
        )
