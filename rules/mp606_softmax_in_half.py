from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class SoftmaxInHalf(Rule):
    """Log-probabilities, a cross entropy or scores of half logits outside of autocast.

    ## What it flags
    - `log_softmax` and `cross_entropy` on logits that are half for certain and no region around:
      after `.half()` or `.bfloat16()`, in a function that is given such tensors. They are
      `possible` in other code of models, and so is every `softmax`, `nn.Softmax` included.
    - A score less the `logsumexp` of all scores, both half: `log_softmax` by hand, rounded twice.
    - `1 - p.max()` of a softmax that is half.
    - `sigmoid` of scores that may be half, where another branch of the same `if` takes the softmax
      of the same scores in float32, as a router of experts that offers both.
    - `logsigmoid(chosen - rejected)` of scores that may be half, which is `possible`.

    It stays silent inside autocast for what that runs in float32, for scores that `topk` has chosen
    already or of which `argmax` alone is asked, for `dtype=torch.float32` and upcast logits, for scores
    that `generate` of transformers keeps, which are float32, and where
    another rule says more: MP209 for a loss behind its region, MP303 for `log(softmax(x))`. Attention
    is never more than `possible`: the kernel works in float32 inside, and weights of a sum may be rounded.

    ## Why it breaks
    The kernel computes in float32 and rounds the result: measured, log-probabilities between -8
    and -16 are off by up to 0.005 in float16 and 0.038 in bfloat16, so the ratio `exp(new - old)`
    of a policy is off by 4 % before anything was learnt, and a difference of two sequences'
    log-probabilities, as in DPO, by more than its margin. A summed cross entropy is inf above
    65504. Sigmoids above 0.5 are 4.9e-4 apart in float16 and 3.9e-3 in bfloat16: scores tie, the
    order of the indices decides which experts are chosen, and the loss that balances their load
    does not see the difference.

    ## Example
    ```python
    logits = scores.bfloat16()
    logp = F.log_softmax(logits, dim=-1)
    ```
    Use instead:
    ```python
    logits = scores.bfloat16()
    logp = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    ```

    ## Fix safety
    Safe where the result ends in a loss or a metric: with `dtype=torch.float32` a float32 result
    is the same to the bit. Elsewhere unsafe: the next operand in half has to meet float32.

    ## How to silence
    `# precision-lint: ignore[MP606] reason` or `# noqa: MP606` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.log_softmax` (`dtype`: "useful for preventing data type
    overflows"); Automatic Mixed Precision: CUDA ops that autocast to float32.
    """

    code = "MP606"
    name = "softmax-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("half-softmax",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        message = f"`{facts['operation']}` in half computes log probabilities to three digits only"
        if facts["operation"] == "logsumexp":
            message = (
                "a score less `logsumexp` in half is a log probability that is off by up to 0.004 in "
                "float16 and 0.03 in bfloat16 where scores exceed 8"
            )
        if facts.get("doubt"):
            message = (
                "one minus the largest probability is a multiple of 4.9e-4 in float16 and of 3.9e-3 in "
                "bfloat16: a smaller doubt is 0"
            )
        yield Finding(
            message,
            fix=at.fix("upcast the logits", at.upcast(facts["upcast"][:1])),
        )
