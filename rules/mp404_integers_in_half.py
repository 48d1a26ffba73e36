from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Rule, Severity


class IntegersInHalf(Rule):
    """Positions, indices and label maps in half precision, where neighbouring integers coincide.

    ## What it flags
    - `torch.arange` created in a half dtype or in the dtype of the activations, and integer
      tensors (positions, ids, label maps, lengths) cast to one, where the result is compared or
      turned back into integers: masks from lengths, resized label maps, lookups, or taken from one
      another (relative positions); so are
      `torch.linspace` between whole numbers, and counts up of a mask in half (`possible`);
    - more than 2,048 (float16) or 256 (bfloat16) of them in a literal half dtype;
    - the same under the name of positions or ids wherever they go, which is `possible`;
    - a flat index `y * width + x` computed from half coordinates, or from rows and columns that
      were integers before;
    - arguments that are made half because they are tensors, whatever they hold: over `*args`
      (`t.half() if torch.is_tensor(t) else t`), and in what goes through lists and dicts of any kind;
    - labels `torch.arange(1, b * h * w + 1, dtype=image.dtype)` of all cells that are returned.

    It stays silent on ranges that are provably short, on masks and one-hot vectors, on integers
    that stay integers or go to float32, on ranges that are only scaled, and for positions of a
    rotary embedding (MP405 shows those).

    ## Why it breaks
    Float16 has 11 significant bits and bfloat16 8: of 5,000 consecutive integers 3,299 are distinct
    in float16 and 797 in bfloat16. Masks end at the wrong token, instance ids merge, and a flat
    index beyond 65,519 is inf in float16, which becomes an arbitrary integer.

    ## Example
    ```python
    steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    mask = steps < lengths[:, None]
    ```
    Use instead:
    ```python
    steps = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    mask = steps < lengths[:, None]
    ```

    ## Fix safety
    Safe: the integers are made in float32, which changes nothing in a float32 run, and the result
    is boolean or integer again. There is no fix where the values go on into arithmetic, whose
    result would change its dtype, and where the code names a half dtype itself, which rounds a
    float32 run as well: keep them integers and cast last.

    ## How to silence
    `# precision-lint: ignore[MP404] reason` or `# noqa: MP404` on the line.

    ## Sources
    IEEE 754 binary16; PyTorch, `torch.finfo` (eps 9.8e-4 and 7.8e-3).
    """

    code = "MP404"
    name = "integers-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("integers-in-half", "flat-index", "tensors-in-half")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "tensors-in-half":
            yield Finding(
                f"every tensor becomes {facts['half']} here, ids and masks too: integers are exact only up to "
                f"{EXACT[facts['half']]}; check is_floating_point() first"
            )
            return
        if event.kind == "flat-index":
            over = "and inf from 65520 on" if facts["half"] == "float16" else "of up to 5 digits"
            yield Finding(
                f"flat index in {facts['half']}: exact up to {EXACT[facts['half']]} {over}",
                fix=at.fix("compute the index in float32", at.upcast(facts["upcast"])),
            )
            return
        yield Finding(
            f"integers in {facts['half']} are exact up to {EXACT[facts['half']]}: beyond it "
            f"{facts['ends']} coincide",
            fix=None if facts["named"] else _fix(event, at),
        )


EXACT = {"float16": 2048, "bfloat16": 256}
"""Up to where every integer has a number of its own."""


def _fix(event: Event, at: Context) -> Fix | None:
    """The same in float32."""
    facts = event.facts
    spelling, imports = at.torch()
    if imports:
        return None
    if facts["dtype"] is not None:
        edits = at.replace({facts["dtype"]: f"{spelling}.float32"})
    elif facts["receiver"] is not None:
        edits = at.replace({event.place: f"{at.owner(facts['receiver'])}.float()"})
    else:
        return None
    return at.fix("count in float32", edits, UNSAFE.get(facts["ends"]))


UNSAFE = {
    "labels": "the function returns float32 then, because half does not hold the labels",
    "distances": "what is computed of the distances is float32 then",
}
"""Why the integers must not just be made in float32, by what becomes of them."""
