from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class InverseSigmoidInHalf(Rule):
    """Inverse sigmoid in half: infinite where the probability is 1.

    ## What it flags
    `torch.log(p.clamp(min=eps) / (1 - p).clamp(min=eps))`, with its parts in names, written with `+
    eps`, or with `p` limited to `eps` and `1 - eps` before, where `p` may be float16 and `eps` is
    at most 1.53e-5; and, on the CPU, `torch.logit(p, eps)` with an epsilon of at most 2.44e-4 where
    `p` may be float16, 1.95e-3 where it may be bfloat16.

    It stays silent where `p` is float32 (upcast, float32 boxes from the data), for a larger
    epsilon, and for `torch.logit` on CUDA, whose kernel clamps in float32 (measured on an H200). It
    is only `possible` where a name says that `p` comes from the data, and for `torch.logit` on a
    device that is not known.

    ## Why it breaks
    Detectors refine boxes by `inverse_sigmoid(reference)`, with eps = 1e-5. In float16 the
    quotient at p = 1 is 1/1e-5 = 1e5, beyond 65504, so the logarithm is inf, and so is every box
    after it; a half sigmoid is 1 from a logit of 8.32 on. On the CPU `torch.logit` clamps to 1 - eps,
    which is 1 again: in float16 up to 2.44e-4 and in bfloat16 up to 1.95e-3, and logit(1) is inf.

    ## Example
    ```python
    x = reference.half()
    logit = torch.log(x.clamp(min=1e-5) / (1 - x).clamp(min=1e-5))
    ```
    Use instead:
    ```python
    x = reference.half()
    logit = torch.log(x.float().clamp(min=1e-5) / (1 - x.float()).clamp(min=1e-5)).to(x.dtype)
    ```

    ## Fix safety
    Safe: the probability is upcast everywhere in the formula, and the result, at most
    11.5 for 1e-5, returns to its dtype, so float32 results are the same to the bit (float64 comes
    down to float32).

    ## How to silence
    `# precision-lint: ignore[MP309] reason` or `# noqa: MP309` on the line; or take eps = 1e-3.

    ## Sources
    PyTorch, `torch.logit` (the input is clamped to [eps, 1 - eps]). Deformable DETR,
    arXiv:2010.04159, appendix A.4 (iterative refinement in inverse sigmoid space).
    """

    code = "MP309"
    name = "inverse-sigmoid-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("log-odds",)
    supersedes = ("MP301", "MP302", "MP305", "MP308")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "the inverse sigmoid of a probability near 1 is inf in float16, and inf or inaccurate in bfloat16",
            fix=at.fix("upcast the probability", at.upcast(at.at_origin(event))),
        )
