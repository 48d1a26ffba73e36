from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class NormalizeZeroVector(Rule):
    """Normalisation of a vector that may be 0, with an epsilon that is 0 in float16.

    ## What it flags
    `F.normalize` (whose default epsilon is 1e-12), `F.cosine_similarity` and
    `nn.CosineSimilarity` (1e-8), and
    `x / (x.norm() + eps)` or `x / x.norm().clamp(min=eps)` with an epsilon of at most 2.98e-8,
    where the operation runs on float16: in a half model, on a tensor that was cast, in CPU
    autocast.

    It stays silent in these cases:

    - CUDA autocast, which runs all of these in float32;
    - operands that are upcast, and bfloat16;
    - an epsilon that float16 holds;
    - a norm without any epsilon, which gives nan in float32 too.

    It is only `possible` in these cases:

    - The project trains under autocast.
    - The epsilon lies between 2.98e-8 and 1.53e-5. It only makes gradients infinite.
    - The epsilon is the default one, no difference of two tensors is normalised, and neither the
      function nor its class contains anything that makes a vector 0: a mask, padding, a ReLU, dropout.
      Where the code itself makes the vectors half, this case is `likely`, unless they come from a layer
      with a bias, or from a model that nobody saw.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8: 1e-8 and 1e-12 round to 0. A vector of
    zeros (a padded token, a dead feature behind a ReLU, a masked row) is divided by 0, and 0/0 is
    nan, which a similarity matrix or an attention spreads over the batch. In float32 the result
    is 0, which is what the epsilon is for.

    ## Example
    ```python
    x = torch.relu(features.half())
    unit = F.normalize(x, dim=-1)
    ```
    Use instead:
    ```python
    x = torch.relu(features.half())
    unit = F.normalize(x.float(), dim=-1).to(x.dtype)
    ```

    ## Fix safety
    Safe: the operands are upcast and the result returns to their dtype, so float32 results are
    the same to the bit (float64 comes down to float32).

    ## How to silence
    `# precision-lint: ignore[MP307] reason` or `# noqa: MP307` on the line; or pass `eps=1e-4`:
    with 1e-6 the gradient of a zero vector is still infinite in float16.

    ## Sources
    PyTorch, `torch.nn.functional.normalize` (`eps=1e-12`), `torch.nn.functional.cosine_similarity`
    (`eps=1e-8`).
    """

    code = "MP307"
    name = "normalize-zero-vector"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("zero-vector", "weak-norm")
    supersedes = ("MP305",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        operation = facts["operation"] if event.kind == "zero-vector" else "a division by the norm"
        yield Finding(
            f"epsilon {facts['epsilon']:g} of {operation} is 0 in float16, so a zero vector gives nan",
            fix=at.fix("upcast the operands", at.compute_wide(event, facts["upcast"])),
        )
