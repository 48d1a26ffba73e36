"""Rules on autocast regions: shapes that their fixtures do not have."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import dispatch, registry
from precision_lint.api import Applicability, Confidence, Diagnostic
from precision_lint.project.amp import Project

from . import fixtures_support as support

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


def lint(
    code: str, text: str, torch: tuple[int, ...] | None = None, head: str = HEAD
) -> list[Diagnostic]:
    """What a rule finds in a text, at the confidences that are shown."""
    made = support.source(head + textwrap.dedent(text))
    project = Project(torch=torch).with_file(made.filename, made.text.encode())
    found = dispatch.lint(made, [registry.rules()[code]], project)
    assert not [d for d in found if d.internal], found
    return [d for d in found if d.confidence.rank >= Confidence.LIKELY.rank]


def fixed(code: str, text: str, torch: tuple[int, ...] | None = None, head: str = HEAD) -> str:
    """The text with the fix of its only finding, without the head's imports."""
    (found,) = lint(code, text, torch, head)
    made = support.source(head + textwrap.dedent(text))
    return support.apply(made, found).text


def region(body: str, opened: str = 'torch.autocast("cuda", dtype=torch.float16)') -> str:
    """A function of ``q``, ``k``, ``v`` whose body stands in a region."""
    inner = textwrap.indent(textwrap.dedent(body), " " * 8)
    return f"def f(q, k, v, scale, width):\n    with {opened}:\n{inner}\n"


class TestUpcastWithoutDisabling:
    @pytest.mark.parametrize(
        "body",
        [
            "return q.float() @ k.float()",
            "return q.to(torch.float32) @ k.type(torch.float32)",
            "q, k = q.float(), k.float()\nreturn torch.mm(q, k)",
            "q = q.float()\nk = k.float().transpose(-1, -2)\nreturn q[:, 0] @ k",
            "return F.linear(q.float(), k.float(), bias=None)",
            "return torch.einsum('bqd,bkd->bqk', [q.float(), k.float()])",
            "return torch.baddbmm(v.float(), q.float(), k.float())",
            "q = q.float() * 0.5\nreturn (-q) @ k.float()",
            "return F.normalize(q.float(), dim=-1) @ F.normalize(k.float(), dim=-1).mT",
        ],
    )
    def test_seen(self, body: str) -> None:
        assert len(lint("MP202", region(body))) == 1

    @pytest.mark.parametrize(
        "body",
        [
            "return q.float() * k.float()",
            "return q @ k",
            "return q.double() @ k.double()",
            "q = q.float()\nq = q.half()\nreturn q @ k.float()",
            "return (q > 0).float() @ (k > 0).float()",
            "return q.argmax(-1).float() @ k.argmax(-1).float()",
            "return nn.Linear(3, 4)(q.float())",
            "return torch.fft.fft(q.float())",
        ],
    )
    def test_silent(self, body: str) -> None:
        assert lint("MP202", region(body)) == []

    def test_a_region_that_lowers_nothing(self) -> None:
        body = "return q.float() @ k.float()"
        assert lint("MP202", region(body, 'torch.autocast("cuda", dtype=torch.float32)')) == []
        assert lint("MP202", region(body, 'torch.autocast("cuda", enabled=False)')) == []

    def test_the_fix_upcasts_what_is_left(self) -> None:
        text = region("x = F.linear(q.float(), k.float(), v)\nreturn x")
        assert "x = F.linear(q.float(), k.float(), v.float())" in fixed("MP202", text)


class TestDisabledWithoutUpcast:
    def test_the_result_of_a_product_inside_is_reported_once(self) -> None:
        text = region(
            """\
            h = q @ k
            with torch.autocast("cuda", enabled=False):
                s = h @ h.mT
                return s @ s
            """
        )
        (found,) = lint("MP203", text)
        assert "h, h.mT are half" in found.message
        assert "s = h.float() @ h.mT.float()" in fixed("MP203", text)

    @pytest.mark.parametrize(
        "inside",
        [
            "return h.float() @ h.float().mT",
            "h = h.float()\nreturn h @ h.mT",
            "return h.double() @ h.double().mT",
            "return (h * h).sum(-1)",
            "return h.softmax(-1)",
        ],
    )
    def test_silent(self, inside: str) -> None:
        body = 'h = q @ k\nwith torch.autocast("cuda", enabled=False):\n'
        assert lint("MP203", region(body + textwrap.indent(inside, "    "))) == []


class TestDeviceMismatch:
    def test_a_decorator_around(self) -> None:
        text = """\
        @torch.autocast("cuda", dtype=torch.float16)
        def f(q, k):
            with torch.autocast("cpu", enabled=False):
                return q.float() @ k.float()
        """
        assert 'with torch.autocast("cuda", enabled=False):' in fixed("MP204", text)

    def test_the_body_is_upcast_as_well(self) -> None:
        body = "h = q @ k\nwith torch.cpu.amp.autocast(False):\n    return h @ h.mT"
        text = fixed("MP204", region(body))
        assert 'with torch.autocast(device_type="cuda", enabled=False):' in text
        assert "return h.float() @ h.mT.float()" in text


class TestAroundOptimizerStep:
    LOOP = """\
    def train(model, loader, optimizer):
        with {opened}:
            {first}for x, y in {feed}:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
    """

    def text(
        self, opened: str = 'torch.autocast("cuda")', first: str = "", feed: str = "loader"
    ) -> str:
        return textwrap.dedent(self.LOOP).format(opened=opened, first=first, feed=feed)

    def test_the_headers_change_places(self) -> None:
        assert fixed("MP205", self.text()) == HEAD + textwrap.dedent(
            """\
            def train(model, loader, optimizer):
                for x, y in loader:
                    with torch.autocast("cuda"):
                        optimizer.zero_grad()
                        loss = F.mse_loss(model(x), y)
                    loss.backward()
                    optimizer.step()
            """
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"first": "model.train()\n        "},
            {"feed": "model.batches_of(loader(3))[model(1)]"},
            {"opened": 'torch.autocast("cuda"), torch.enable_grad()'},
            {"opened": 'torch.autocast("cuda") as context'},
        ],
    )
    def test_what_cannot_be_moved_is_shown(self, changes: dict[str, str]) -> None:
        (found,) = lint("MP205", self.text(**changes))
        assert found.fix is not None
        assert found.fix.applicability is Applicability.DISPLAY
        assert "cache_enabled=False" in found.fix.edits[0].text

    def test_silent_without_a_cache_or_a_region(self) -> None:
        assert lint("MP205", self.text('torch.autocast("cuda", cache_enabled=False)')) == []
        assert lint("MP205", self.text('torch.autocast("cuda", enabled=False)')) == []
        assert lint("MP205", self.text("torch.no_grad()")) == []

    def test_a_scheduler_is_no_optimizer(self) -> None:
        text = self.text().replace("optimizer.step()", "lr_scheduler.step()")
        assert lint("MP205", text) == []

    def test_an_optimizer_by_what_it_is_made_of(self) -> None:
        text = "def train(model, loader):\n    o = torch.optim.Adam(model.parameters())\n"
        rest = self.text().partition("\n")[2].replace("optimizer", "o")
        assert len(lint("MP205", text + rest)) == 1


class TestBce:
    def test_a_sigmoid_with_another_use_stays(self) -> None:
        text = fixed("MP206", region("p = q.sigmoid()\nreturn F.binary_cross_entropy(p, k), p"))
        assert "with_logits" not in text
        assert "enabled=False" in text

    def test_a_name_that_changed_in_between_stays(self) -> None:
        body = "p = q.sigmoid()\nq = q + 1\nloss = F.binary_cross_entropy(p, k)\nreturn loss"
        assert "with_logits" not in fixed("MP206", region(body))

    def test_arguments_by_name(self) -> None:
        body = "return F.binary_cross_entropy(input=torch.sigmoid(q), target=k)"
        assert "with_logits(input=q, target=k)" in fixed("MP206", region(body))

    def test_a_function_imported_by_name_is_not_renamed(self) -> None:
        head = HEAD + "from torch.nn.functional import binary_cross_entropy as bce\n"
        text = fixed("MP206", region("return bce(q.sigmoid(), k)"), head=head)
        assert "return bce(q.float().sigmoid(), k.float())" in text

    @pytest.mark.parametrize("opened", ['torch.autocast("cpu")', "torch.cpu.amp.autocast()"])
    def test_the_cpu_runs_it(self, opened: str) -> None:
        assert lint("MP206", region("return F.binary_cross_entropy(q, k)", opened)) == []


class TestCustomFunction:
    TEXT = """\
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight.t(), x.t() @ grad


    def f(x, weight):
        with torch.autocast("cuda"):
            return Product.apply(x, weight)
    """

    @pytest.mark.parametrize(
        ("torch", "decorator", "applicability"),
        [
            ((2, 4), '@torch.amp.custom_fwd(device_type="cuda")', Applicability.SAFE),
            ((2, 13), '@torch.amp.custom_fwd(device_type="cuda")', Applicability.SAFE),
            ((2, 3, 1), "@torch.cuda.amp.custom_fwd\n", Applicability.SAFE),
            (None, '@torch.amp.custom_fwd(device_type="cuda")', Applicability.UNSAFE),
        ],
    )
    def test_the_fix_has_what_the_project_has(
        self, torch: tuple[int, ...] | None, decorator: str, applicability: Applicability
    ) -> None:
        (found,) = lint("MP207", self.TEXT, torch)
        assert found.fix is not None
        assert found.fix.applicability is applicability
        assert f"    @staticmethod\n    {decorator}" in fixed("MP207", self.TEXT, torch)

    def test_setup_context_has_no_fix(self) -> None:
        extra = "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
        text = textwrap.dedent(self.TEXT).replace("\n\n\ndef f", f"\n\n{extra}\n\ndef f")
        (found,) = lint("MP207", text, (2, 4))
        assert found.fix is None


class TestLateScale:
    @pytest.mark.parametrize(
        "body",
        [
            "return ((q @ k.mT) / width**0.5).softmax(-1) @ v",
            "s = q @ k.mT / torch.sqrt(torch.tensor(64.0))\nreturn F.softmax(s, dim=-1)",
            "s = torch.bmm(q, k.mT)\ns = s * 0.125\ns = s.masked_fill(v, -1)\nreturn s.softmax(-1)",
            "s = torch.bmm(q, k.mT)\ns /= 8\nreturn s.softmax(-1)",
            "s = scale * torch.matmul(q, k.mT) + v\nreturn torch.softmax(s, -1)",
        ],
    )
    def test_seen(self, body: str) -> None:
        assert len(lint("MP208", region(body))) == 1

    @pytest.mark.parametrize(
        "body",
        [
            "return ((q * scale) @ k.mT).softmax(-1)",
            "q = q * scale\nreturn ((q @ k.mT) * scale).softmax(-1)",
            "return ((q @ k.mT) * scale).sum(-1)",
            "return ((q @ k.mT) * 10).softmax(-1)",
            "return ((q @ k.mT) / 0.07).softmax(-1)",
            "return ((q @ k.mT) * logit_scale).softmax(-1)",
            "return ((q @ k.mT) * v).softmax(-1)",
            "return (q @ k.mT).softmax(-1) * scale",
            "return (F.normalize(q) @ F.normalize(k).mT * scale).softmax(-1)",
        ],
    )
    def test_silent(self, body: str) -> None:
        assert lint("MP208", region(body)) == []

    @pytest.mark.parametrize(
        ("body", "product"),
        [
            ("(q @ k.mT) / width**0.5", "(q / width**0.5) @ k.mT"),
            ("q @ k.mT * scale", "(q * scale) @ k.mT"),
            ("scale * q.matmul(k.mT)", "(q * scale).matmul(k.mT)"),
            ("torch.matmul(q + v, k.mT) / (2 * 4)", "torch.matmul((q + v) / (2 * 4), k.mT)"),
            ("torch.einsum('ad,bd->ab', q, k) * scale", "torch.einsum('ad,bd->ab', q * scale, k)"),
        ],
    )
    def test_the_scale_goes_to_the_first_operand(self, body: str, product: str) -> None:
        text = region(f"s = {body}\nreturn s.softmax(-1)")
        assert f"s = {product}\n" in fixed("MP208", text)


class TestBadArguments:
    @pytest.mark.parametrize(
        ("call", "right"),
        [
            ("torch.autocast('cuda', False)", "torch.autocast('cuda', enabled=False)"),
            (
                "torch.autocast('cuda', dtype='bf16')",
                "torch.autocast('cuda', dtype=torch.bfloat16)",
            ),
            ("torch.autocast('CUDA')", 'torch.autocast("cuda")'),
            ("torch.autocast(torch.device('cuda'))", "torch.autocast(torch.device('cuda').type)"),
            (
                "torch.cuda.amp.autocast(device_type='cuda', dtype=d)",
                "torch.autocast(device_type='cuda', dtype=d)",
            ),
            (
                "torch.cuda.amp.autocast(torch.bfloat16)",
                "torch.cuda.amp.autocast(dtype=torch.bfloat16)",
            ),
            ("torch.amp.GradScaler(False)", "torch.amp.GradScaler(enabled=False)"),
            ("torch.amp.GradScaler(2.0**10)", None),
            (
                "torch.cuda.amp.GradScaler(args.fp16)",
                "torch.cuda.amp.GradScaler(enabled=args.fp16)",
            ),
            ("torch.cuda.amp.GradScaler('cuda')", "torch.cuda.amp.GradScaler()"),
            ("torch.amp.GradScaler('cuda', 1024.0)", None),
            ("torch.cuda.amp.GradScaler(1024.0)", None),
            ("torch.autocast(d)", None),
            ("torch.autocast('cuda', d)", None),
            ("torch.autocast(*d)", None),
            ("torch.cuda.amp.autocast(torch.float16)", None),
            ("torch.cuda.amp.autocast('cuda')", None),
        ],
    )
    def test_calls(self, call: str, right: str | None) -> None:
        text = f"def f(d, args):\n    return {call}\n"
        if right is None:
            assert lint("MP210", text) == []
        else:
            assert f"return {right}\n" in fixed("MP210", text)


class TestDeprecated:
    @pytest.mark.parametrize(
        ("torch", "count"), [(None, 0), ((1, 13), 0), ((2, 0), 1), ((2, 3), 2), ((2, 4), 3)]
    )
    def test_only_where_the_new_name_is_there(
        self, torch: tuple[int, ...] | None, count: int
    ) -> None:
        text = """\
        def f():
            with torch.cuda.amp.autocast():
                return torch.cuda.amp.GradScaler(), torch.get_autocast_gpu_dtype()
        """
        assert len(lint("MP212", text, torch)) == count

    def test_positional_arguments_get_their_names(self) -> None:
        text = "def f(a, b):\n    return torch.cuda.amp.autocast(a, b, cache_enabled=False)\n"
        right = 'torch.amp.autocast("cuda", enabled=a, dtype=b, cache_enabled=False)'
        assert right in fixed("MP212", text, (2, 4))

    def test_options_keep_their_stars(self) -> None:
        text = "def f(options):\n    return torch.cuda.amp.GradScaler(**options)\n"
        assert 'torch.amp.GradScaler("cuda", **options)' in fixed("MP212", text, (2, 4))


def test_the_proof_of_the_cast_cache_needs_an_old_torch() -> None:
    text = region("with torch.no_grad():\n    t = v(q)\nreturn v(k) - t")
    assert [d.code for d in lint("MP213", text, (2, 9))] == ["MP213"]
    assert lint("MP213", text, (2, 10)) == []
    assert lint("MP213", text) == []
