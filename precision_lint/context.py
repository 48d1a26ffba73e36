"""What a rule may ask for: the text at a place, and edits that repair it.

Every method that makes a fix gives None where the shape of the code does not allow a clean one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from precision_lint.api import Applicability, Edit, Event, Fix, Link, Place
from precision_lint.asserted import Assertions
from precision_lint.call_edits import CallEdits
from precision_lint.domains.dtypes import AMP_MODES
from precision_lint.slices import Editor, indent_unit
from precision_lint.source import Source
from precision_lint.syntax import branches, region_end
from precision_lint.syntax.tree import Tree

Edits = tuple[Edit, ...]
PRODUCTS = frozenset({"matmul", "bmm", "mm", "mv", "einsum", "linear", "addmm", "baddbmm"})
QUOTED = 40
"""Characters of an expression that a message quotes at most."""


class Context:
    """One file, for the rules that put its events into words."""

    def __init__(
        self,
        source: Source,
        tree: ast.Module,
        path: str,
        torch_version: tuple[int, ...] | None = None,
        torch_pinned: tuple[int, ...] | None = None,
    ) -> None:
        self.torch_version = torch_version
        """The least torch that must work; None: it is not known."""
        self.torch_pinned = torch_pinned
        """The newest torch that is pinned exactly; None: others are allowed."""
        self.source = source
        self.path = path
        self.tree = Tree(path, tree)
        self.edit = Editor(source, tree)
        self.assertions = Assertions(self.tree, self.edit)
        self._products: dict[int, frozenset[str]] = {}
        """By function: names in the operands of products and layers."""

    # words

    def text(self, place: Place) -> str:
        """The source text at a place, on one line; empty for another file's."""
        node = self.tree.node(place)
        if not isinstance(node, (ast.expr, ast.stmt)):
            return ""
        return " ".join(self.source.text[self.edit.offset(node) : self.edit.end(node)].split())

    def quoted(self, place: Place | None, otherwise: str) -> str:
        """The source text at a place as a message shows it; ``otherwise`` where there is none."""
        text = self.text(place) if place is not None else ""
        text = text if len(text) <= QUOTED else f"{text[: QUOTED - 1].rstrip()}…"
        return f"`{text}`" if text else otherwise

    def operand(self, place: Place | None) -> str:
        """An operand as a message shows it; of another file, by the file's name."""
        if place is not None and place.path != self.path:
            return f"a tensor in `{place.path.rpartition('/')[2]}`"
        return self.quoted(place, "the other operand")

    def owner(self, place: Place) -> str:
        """The source text at a place, as what a method is called on."""
        text = self.text(place)
        whole = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
        return text if isinstance(self.tree.expression(place), whole) else f"({text})"

    def is_name(self, place: Place) -> bool:
        """Whether a name or an attribute of one stands at a place: it may be written again."""
        node = self.tree.expression(place)
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name)

    def is_known(self, place: Place, there: Place) -> bool:
        """Whether a name, or an attribute of one, means the same in another place of the file."""
        node, other = self.tree.expression(place), self.tree.node(there)
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name) or other is None:
            return False
        home, function = self.tree.function(node), self.tree.function(other)
        if home is function or home in self.tree.around(function):
            return True
        classes = [self.tree.parent(one) for one in (home, function)]
        if isinstance(classes[0], ast.ClassDef) and classes[0] is classes[1]:
            return all(_first_parameter(one) == node.id for one in (home, function))
        return not any(
            one.arg == node.id
            if isinstance(one, ast.arg)
            else isinstance(one, ast.Name) and one.id == node.id and isinstance(one.ctx, ast.Store)
            for one in ast.walk(home)
        )

    def is_argument(self, inner: Place, call: Place) -> bool:
        """Whether an expression is all that a call is of: its argument, or what its method is of."""
        node, outer = self.tree.node(inner), self.tree.node(call)
        if not isinstance(outer, ast.Call) or node is None:
            return False
        if isinstance(outer.func, ast.Attribute) and outer.func.value is node:
            return not outer.args
        return len(outer.args) == 1 and outer.args[0] is node

    def together(self, first: Place, second: Place) -> bool:
        """Whether two places are in one function of this file."""
        nodes = [self.tree.node(first), self.tree.node(second)]
        functions = [self.tree.function(node) for node in nodes if node is not None]
        return len(functions) == 2 and functions[0] is functions[1]

    def are_exclusive(self, first: Place, second: Place) -> bool:
        """Whether one pass through this file's code meets only one of two places."""
        statements = self._statement(first), self._statement(second)
        if statements[0] is None or statements[1] is None:
            return False
        return branches.exclude_each_other(self.tree, statements[0], statements[1])

    def is_sure_of(self, first: Place, second: Place) -> bool:
        """Whether who comes to the second of two places of this file's code comes to the first as well."""
        statements = self._statement(first), self._statement(second)
        if statements[0] is None or statements[1] is None:
            return False
        return branches.meets_both(self.tree, statements[0], statements[1])

    def always_comes_to(self, places: Iterable[Place], start: Place) -> bool:
        """Whether each way on from a place of this file's code comes to one of others."""
        statement = self._statement(start)
        wanted = [one for place in places if (one := self._statement(place)) is not None]
        return statement is not None and branches.always_meets(self.tree.after(statement), wanted)

    def name_of(self, made: Place, seen_from: Place) -> str | None:
        """The name that what is made at a place was given, if it means the same elsewhere."""
        node = self.tree.node(made)
        statement = self.tree.parent(node) if node is not None else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target = statement.targets[0]
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            return f"{target.value.id}.{target.attr}" if target.value.id == "self" else None
        everywhere = self.tree.function(statement) is self.tree.tree
        near = everywhere or self.together(made, seen_from)
        return target.id if isinstance(target, ast.Name) and near else None

    def is_returned(self, place: Place) -> bool:
        """Whether a function returns what a statement computes at a place, or the name it gets."""
        statement = self._statement(place)
        if not isinstance(statement, ast.Assign):
            return isinstance(statement, ast.Return)
        names = {one.id for one in statement.targets if isinstance(one, ast.Name)}
        returns = (n for n in ast.walk(self.tree.function(statement)) if isinstance(n, ast.Return))
        parts = (part for one in returns if one.value for part in _parts(one.value))
        return any(isinstance(part, ast.Name) and part.id in names for part in parts)

    def widens(self, event: Event) -> bool:
        """Whether a function returns what an upcast makes float32, as it is: no total of it, and no region
        casts it again."""
        node = self.tree.node(event.place)
        around = self.tree.around(node) if node is not None else ()
        calls = [one.func for one in around if isinstance(one, ast.Call)]
        totalled = any((getattr(f, "attr", "") or getattr(f, "id", "")) in TOTALS for f in calls)
        return not _in_region(event) and not totalled and self.is_returned(event.place)

    def stands(self, event: Event, meets: str) -> tuple[Place, tuple[Link, ...]]:
        """Where a finding stands of what was made wrong: there, or in this file; with a link to the other end.

        meets: what happens at the event's own place.
        """
        made: Place | None = event.facts["origin_at"]
        if made is None:
            return event.place, ()
        if made.path == self.path:
            return made, (Link(meets, event.place),)
        return event.place, (Link("it is made here", made, cause=True),)

    def loop(self, place: Place) -> Place | None:
        """The outermost loop around a place, in its function."""
        node = self.tree.node(place)
        found = None
        for one in self.tree.around(node) if node is not None else ():
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            if isinstance(one, (ast.For, ast.While)):
                found = one
        return self.tree.place(found) if found is not None else None

    # fixes

    @staticmethod
    def fix(title: str, edits: Edits | None, reason: str | None = None) -> Fix | None:
        """A safe fix; an unsafe one where a reason is given."""
        if edits is None:
            return None
        level = Applicability.SAFE if reason is None else Applicability.UNSAFE
        return Fix(title, level, edits, reason)

    @staticmethod
    def shown(title: str, reason: str, edits: Edits = ()) -> Fix:
        """A fix that is shown and never applied."""
        return Fix(title, Applicability.DISPLAY, edits, reason)

    def upcast(self, places: Iterable[Place], suffix: str = ".float()") -> Edits | None:
        """Put a method call behind expressions."""
        nodes = {place: self.tree.expression(place) for place in places}
        narrow = [place for place, node in nodes.items() if node is None or not _is_upcast(node)]
        return self._by_statement(
            narrow, lambda s, nodes: self.edit.upcast(s, suffix, *_apart(nodes))
        )

    def at_origin(self, event: Event) -> tuple[Place, ...]:
        """Where a value is upcast: where it is made, or where it is used if a half model has it, too."""
        origins: tuple[Place, ...] = event.facts["upcast"]
        direct: Place | None = event.facts["direct"]
        if direct is not None and not _in_region(event) and any(map(self._multiplied, origins)):
            origins = (direct,)
        return (*origins, *event.facts.get("likes", ())) if direct in origins else origins

    def _multiplied(self, place: Place) -> bool:
        """Whether what the statement at a place assigns is an operand of a product or a layer."""
        statement = self._statement(place)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if statement is None or not isinstance(target, ast.Name):
            return False
        function = self.tree.function(statement)
        known = self._products.get(id(function))
        if known is None:
            known = self._products[id(function)] = frozenset(_multiplied(function))
        return target.id in known

    def compute_wide(self, event: Event, places: Iterable[Place]) -> Edits | None:
        """Upcast the operands of an operation; outside of autocast its result goes back to half.

        Autocast casts the result wherever that is needed; a half model does not.
        """
        operands = tuple(dict.fromkeys(places))
        whole = self.tree.expression(event.place)
        statement = self.tree.statement(whole) if whole is not None else None
        followed = next((name for one in operands if (name := self._root(one))), None)
        if _in_region(event) or not followed or statement is None:
            return self.upcast(operands)
        if not isinstance(whole, (ast.Call, ast.BinOp)):
            return self.upcast(operands)
        nodes = {one: self.tree.expression(one) for one in operands}
        here = [n for n in nodes.values() if n is not None and self.tree.statement(n) is statement]
        back = f".to({followed}.dtype)"
        upcast = _apart([n for n in here if not _is_upcast(n)])
        edits = self.edit.upcast(statement, ".float()", *upcast, {whole: back})
        apart = [one for one, node in nodes.items() if node not in here]
        others = self.upcast(apart) if apart else ()
        return None if edits is None or others is None else (*edits, *others)

    def _root(self, place: Place) -> str | None:
        """The name, or the attribute of one, that a place has parts of: ``out`` in ``out[..., 1:]``."""
        node = self.tree.expression(place)
        while isinstance(node, ast.Subscript):
            node = node.value
        if node is None:
            return None
        root = self.tree.place(node)
        return self.text(root) if self.is_name(root) else None

    def rewrite(self, texts: Mapping[Place, str]) -> Edits | None:
        """Put other expressions in place of expressions; ``_`` in a text is what it replaces."""
        return self._by_statement(
            texts,
            lambda s, nodes: self.edit.rewrite(s, {n: texts[self.tree.place(n)] for n in nodes}),
        )

    def replace(self, texts: Mapping[Place, str]) -> Edits | None:
        """Put other expressions in place of expressions."""
        return self._by_statement(
            texts,
            lambda s, nodes: self.edit.replace(s, {n: texts[self.tree.place(n)] for n in nodes}),
        )

    def add_keyword(self, call: Place, name: str, value: str) -> Edits | None:
        """Add ``name=value`` as the last argument of a call."""
        node = self.tree.node(call)
        statement = self.tree.statement(node) if node is not None else None
        if not isinstance(node, ast.Call) or statement is None:
            return None
        return self.edit.add_keyword(statement, node, name, value)

    def set_keyword(self, call: Place, name: str, value: str) -> Edits | None:
        """Give a keyword argument of a call another value, or add it as the last one."""
        node = self.tree.node(call)
        given = getattr(node, "keywords", ())
        written = next((k.value for k in given if k.arg == name), None)
        if written is not None:
            return self.edit.put(written, value)
        return self.add_keyword(call, name, value)

    def add_entry(self, inside: Place, key: str, value: str) -> Edits | None:
        """Add ``"key": value`` to the dict that a place lies in."""
        node = self.tree.node(inside)
        around = self.tree.around(node) if node is not None else ()
        entries = next((one for one in around if isinstance(one, (ast.Dict, ast.stmt))), None)
        statement = self.tree.statement(entries) if entries is not None else None
        if not isinstance(entries, ast.Dict) or statement is None:
            return None
        return self.edit.add_entry(statement, entries, key, value)

    def drop_cast(self, cast: Place) -> Edits | None:
        """Take a cast of a whole module away: ``.half()``, ``.to(torch.float16)``."""
        node = self.tree.node(cast)
        if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) > 1:
            return None
        if not isinstance(node.func, ast.Attribute):
            return None
        alone = isinstance(self.tree.parent(node), ast.Expr)
        return self.remove(cast) if alone else self.drop_call(cast)

    def move_cast(
        self, cast: Place, places: Sequence[Place], text: str = ".float()"
    ) -> Edits | None:
        """Take a method call off its receiver and put it behind expressions inside of that."""
        node = self.tree.node(cast)
        statement = self.tree.statement(node) if node is not None else None
        inside = [self.tree.expression(place) for place in places]
        if not isinstance(node, ast.Call) or statement is None or None in inside:
            return None
        return self.edit.move(statement, node, [n for n in inside if n is not None], text)

    def dtype_of(self, place: Place, name: str) -> Edits | None:
        """Give a creation or a cast the dtype of a name, in the place of the one that is written out."""
        node = self.tree.node(place)
        statement = self.tree.statement(node) if node is not None else None
        if not isinstance(node, ast.Call) or statement is None:
            return None
        given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
        if given is not None:
            return self.edit.replace(statement, {given: f"{name}.dtype"})
        if isinstance(node.func, ast.Attribute):
            if node.func.attr.endswith("Tensor"):  # a constructor, not a cast
                return self.edit.append(statement, {node: f".to({name}.dtype)"})
            return self.edit.exchange(statement, {node: f".to({name}.dtype)"})
        return None

    def callee(self, call: Place) -> str | None:
        """The name of what is called at a place, if it may be written again."""
        node = self.tree.node(call)
        if not isinstance(node, ast.Call):
            return None
        place = self.tree.place(node.func)
        return self.text(place) if self.is_name(place) else None

    def receiver(self, call: Place) -> Place | None:
        """Where the object is written whose method is called at a place."""
        node = self.tree.node(call)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self.tree.place(node.func.value)
        return None

    def drop_call(self, call: Place) -> Edits | None:
        """Take a method call off its receiver."""
        node = self.tree.node(call)
        statement = self.tree.statement(node) if node is not None else None
        if not isinstance(node, ast.Call) or self.receiver(call) is None or statement is None:
            return None
        return self.edit.exchange(statement, {node: ""})

    def without_autocast(
        self, call: Place, operands: Sequence[Place], device: str | None, name: str
    ) -> Edits | None:
        """Run an operation on its operands' float32 outside of autocast.

        device: the expression of the device type; None: that of the first operand.  name: what the
        result is called where its statement does more than reshape it.
        """
        node = self.tree.expression(call)
        statement = self.tree.statement(node) if node is not None else None
        inputs = [self.tree.expression(place) for place in operands]
        if node is None or statement is None or None in inputs:
            return None
        known = [n for n in inputs if n is not None]
        narrow = [n for n in known if not _is_upcast(n)]
        where = device or self._device(known)
        if where is None:
            return None
        spelling, imports = self.torch()
        header = f"with {spelling}.autocast(device_type={where}, enabled=False):"
        whole = _only_reshapes(getattr(statement, "value", None), node)
        bound = None if whole else self.fresh(name, node)
        edits = self.edit.without_autocast(
            statement, node, narrow, header, bound, _apart(narrow)[1]
        )
        return None if edits is None else (*imports, *edits)

    def end_region(self, call: Place) -> Edits | None:
        """End the ``with`` around a backward pass in front of it."""
        node = self.tree.expression(call)
        statement = self.tree.statement(node) if node is not None else None
        parent = self.tree.parent(statement) if statement is not None else None
        if node is None or not isinstance(parent, (ast.With, ast.AsyncWith)):
            return None
        moved = region_end.behind(parent.body, node)
        return self.edit.outdent(moved, self.edit.indentation(parent)) if moved else None

    def call(self, place: Place) -> CallEdits | None:
        """The call at a place, to change its arguments."""
        node = self.tree.node(place)
        return CallEdits(self.edit, node) if isinstance(node, ast.Call) else None

    def moved_factor(
        self, whole: Place, product: Place, factor: Place, scale: Place, sign: str
    ) -> Edits | None:
        """Scale a factor of a product instead of the product; ``sign`` is ``*`` or ``/``."""
        node, inner = self.tree.expression(product), self.tree.expression(factor)
        outer = self.tree.expression(whole)
        if node is None or inner is None or outer is None or not self.text(scale):
            return None
        text, start = self.source.text, self.edit.offset(node)
        scaled = f"{self.text(factor)} {sign} {self.text(scale)}"
        if isinstance(node, ast.BinOp) or isinstance(inner, ast.BinOp):
            scaled = f"({scaled})"
        head = text[start : self.edit.offset(inner)]
        rest = text[self.edit.end(inner) : self.edit.end(node)]
        return None if "\n" in head + rest else self.replace({whole: head + scaled + rest})

    def device_of(self, call: Place, device: str) -> Edits | None:
        """Put another device type into a call of ``autocast``."""
        node = self.tree.expression(call)
        if not isinstance(node, ast.Call):
            return None
        given = [k.value for k in node.keywords if k.arg == "device_type"] or node.args[:1]
        if not given or not isinstance(given[0], ast.Constant):
            return None
        return self.edit.put(given[0], f'"{device}"')

    def insert_before(self, place: Place, *lines: str) -> Edits | None:
        """New lines in front of the statement at a place."""
        statement = self._statement(place)
        return self.edit.insert_before(statement, *lines) if statement is not None else None

    def line_above(self, place: Place, line: str) -> Edits | None:
        """A new line above the line of a place, in its indentation."""
        start = self.source.offset(place.row, 0)
        indent = self.source.text[start : self.source.offset(place.row, place.column)]
        return None if indent.strip() else (Edit(start, start, f"{indent}{line}\n"),)

    def insert_beside(self, place: Place, anchor: Place, *lines: str) -> Edits | None:
        """New lines in front of what holds a place, in the block of the statement at ``anchor``."""
        statement, target = self._statement(place), self._statement(anchor)
        if statement is None or target is None:
            return None
        shared = branches.shared_block(self.tree, statement, target)
        found = branches.conditions(self.tree, target, shared[1]) if shared else None
        if shared is None or found is None or not all(branches.is_plain(one.test) for one in found):
            return None
        unit = indent_unit(self.source.text)
        guarded = branches.guarded([one.test for one in found], lines, unit)
        block = self.tree.block(shared[1])
        between = block[block.index(shared[0]) : block.index(shared[1])]
        if branches.read("\n".join(guarded)) & branches.bound(between):
            return None  # they would be read before they are set
        return self.edit.insert_before(shared[0], *guarded)

    def insert_in_branch(self, place: Place, anchor: Place, *lines: str) -> Edits | None:
        """New lines at the top of the branch that holds ``anchor`` and not ``place``."""
        statement, target = self._statement(place), self._statement(anchor)
        if statement is None or target is None:
            return None
        shared = branches.shared_block(self.tree, statement, target)
        found = branches.conditions(self.tree, target, shared[1]) if shared else None
        if shared is None or found is None:
            return None
        unit = indent_unit(self.source.text)
        for depth, one in enumerate(found):
            if not branches.is_plain(one.test):
                inner = [each.test for each in found[depth + 1 :]]
                if not all(map(branches.is_plain, inner)):
                    return None
                guarded = branches.guarded(inner, lines, unit)
                return self.edit.insert_before(one.body[0], *guarded)
        block = self.tree.block(shared[1])
        last = branches.leaving(block[block.index(shared[0]) + 1 : block.index(shared[1])])
        guarded = branches.guarded([one.test for one in found], lines, unit)
        return self.edit.insert_after(last, *guarded) if last is not None else None

    def insert_before_skips(self, place: Place, anchor: Place, *lines: str) -> Edits | None:
        """New lines where the iteration is given up between a place and ``anchor``."""
        statement, target = self._statement(place), self._statement(anchor)
        if statement is None or target is None:
            return None
        shared = branches.shared_block(self.tree, statement, target)
        found = branches.conditions(self.tree, target, shared[1]) if shared else None
        if shared is None or found is None:
            return None
        block = self.tree.block(shared[1])
        between = block[block.index(shared[0]) : block.index(shared[1])]
        guarded = branches.guarded(
            [one.test for one in found], lines, indent_unit(self.source.text)
        )
        edits: Edits = ()
        for skip in branches.skips(between):
            if lines[0] not in map(ast.unparse, self._inside(skip)):
                made = self.edit.insert_before(skip, *guarded)
                if made is None:
                    return None
                edits += made
        return edits

    def _inside(self, statement: ast.stmt) -> list[ast.expr]:
        """The calls that are statements of a block."""
        around = (node for one in self.tree.block(statement) for node in ast.walk(one))
        return [node.value for node in around if isinstance(node, ast.Expr)]

    def insert_after(self, place: Place, *lines: str) -> Edits | None:
        """New lines behind the statement at a place."""
        statement = self._statement(place)
        return self.edit.insert_after(statement, *lines) if statement is not None else None

    def remove(self, place: Place) -> Edits | None:
        """Delete the statement that a call at a place is."""
        node = self.tree.expression(place)
        statement = self.tree.statement(node) if node is not None else None
        if not isinstance(statement, ast.Expr) or statement.value is not node:
            return None
        parent = self.tree.parent(statement)
        if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse:
            lines = self.source.text[self.edit.offset(parent) : self.edit.end(parent)]
            if "#" not in lines and not lines.startswith("elif"):
                return self.edit.remove(parent, self.tree.block(parent))
        return self.edit.remove(statement, self.tree.block(statement))

    def torch(self) -> tuple[str, Edits]:
        """How this file spells ``torch``, and the edits that import it if it does not yet."""
        spelling = self.tree.spelling("torch")
        return (spelling, ()) if spelling else ("torch", self.edit.import_line("import torch"))

    def unused(self, name: str, place: Place) -> str:
        """``name``, or ``name_2`` and so on if the function around a place uses it already."""
        node = self.tree.node(place)
        return self.fresh(name, node) if node is not None else name

    def fresh(self, name: str, node: ast.AST) -> str:
        """``name``, or ``name_2`` and so on if the function around uses it already."""
        used = self.tree.names(node)
        candidate, count = name, 2
        while candidate in used:
            candidate, count = f"{name}_{count}", count + 1
        return candidate

    def _statement(self, place: Place) -> ast.stmt | None:
        node = self.tree.node(place)
        return self.tree.statement(node) if node is not None else None

    def _device(self, operands: Sequence[ast.expr]) -> str | None:
        """The device type of the first operand that has a name."""
        for operand in operands:
            node = operand
            while (owner := _owner(node)) is not None:
                node = owner
            named = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(named, ast.Name) or (
                isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name)
            ):
                text = self.source.text[self.edit.offset(node) : self.edit.end(node)]
                if text not in ("torch", "F") and not text.startswith("torch."):
                    return f"{text}.device.type"
        return None

    def _by_statement(
        self,
        places: Iterable[Place],
        make: Callable[[ast.stmt, list[ast.expr]], Edits | None],
    ) -> Edits | None:
        """Edits of several expressions, statement by statement."""
        groups: dict[int, tuple[ast.stmt, list[ast.expr]]] = {}
        for place in places:
            node = self.tree.expression(place)
            statement = self.tree.statement(node) if node is not None else None
            if node is None or statement is None:
                return None
            groups.setdefault(id(statement), (statement, []))[1].append(node)
        edits: Edits = ()
        for statement, nodes in groups.values():
            made = make(statement, nodes)
            if made is None:
                return None
            edits += made
        return edits or None


def _owner(node: ast.expr) -> ast.expr | None:
    """The tensor that an expression is a method, a transpose or a part of; what an index picks out of a
    list or a dict is a tensor of its own."""
    if isinstance(node, ast.Call):
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Subscript):
        return node.value if isinstance(node.slice, (ast.Tuple, ast.Slice)) else None
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data"):
        return node.value
    return None


RESHAPES = frozenset({
    "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "flatten", "contiguous", "mT", "T",
})  # fmt: skip


TOTALS = frozenset({"mean", "sum", "nanmean", "nansum", "item"})


def _in_region(event: Event) -> bool:
    """Whether autocast casts what follows."""
    return any(one.regions for one in event.variants) or not event.modes & ~AMP_MODES


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """What a value may be, or consists of, as it is."""
    if isinstance(node, ast.IfExp):
        yield from (*_parts(node.body), *_parts(node.orelse))
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _parts(one)
    elif isinstance(node, ast.Dict):
        for one in node.values:
            yield from _parts(one)
    else:
        yield node


def _apart(nodes: Iterable[ast.expr]) -> tuple[list[ast.expr], list[ast.expr]]:
    """Expressions that end in no cast to half, and those that do."""
    whole: list[ast.expr] = []
    casts: list[ast.expr] = []
    for node in nodes:
        (casts if _narrows(node) else whole).append(node)
    return whole, casts


def _narrows(node: ast.expr) -> bool:
    """Whether an expression ends in ``.half()``, ``.to(torch.float16)`` or ``.to(x.dtype)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    given = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
    if node.func.attr in ("half", "bfloat16"):
        return not given and not node.keywords
    if node.func.attr != "to" or len(node.args) + len(node.keywords) != 1 or not given:
        return False
    target = given[0]
    return isinstance(target, ast.Attribute) and target.attr in (
        "dtype", "float16", "half", "bfloat16",
    )  # fmt: skip


def _multiplied(function: ast.AST) -> Iterator[str]:
    """Names in the operands of products and layers."""
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            operands: list[ast.expr] = [node.left, node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            layer = isinstance(owner, ast.Name) and owner.id == "self"
            operands = [*node.args, owner] if layer or node.func.attr in PRODUCTS else []
        else:
            continue
        for one in operands:
            yield from (inner.id for inner in ast.walk(one) if isinstance(inner, ast.Name))


def _is_upcast(node: ast.expr) -> bool:
    """Whether an expression ends in ``.float()``, ``.double()`` or ``.to(torch.float32)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if node.func.attr in ("to", "type"):
        return any(isinstance(one, ast.Attribute) and one.attr in WIDE for one in given)
    return node.func.attr in ("float", "double") and not given


WIDE = frozenset({"float32", "float64", "float", "double"})
"""Dtypes of torch that hold what half does not."""


def _only_reshapes(whole: ast.AST | None, part: ast.expr) -> bool:
    """Whether an expression does nothing but give another shape to a part of it."""
    while whole is not None and whole is not part:
        if isinstance(whole, ast.Call) and isinstance(whole.func, ast.Attribute):
            if whole.func.attr not in RESHAPES:
                return False
            whole = whole.func.value
        elif isinstance(whole, ast.Subscript) or (
            isinstance(whole, ast.Attribute) and whole.attr in RESHAPES
        ):
            whole = whole.value
        else:
            return False
    return whole is part


def _first_parameter(function: ast.AST) -> str:
    arguments = getattr(function, "args", None)
    found = [*arguments.posonlyargs, *arguments.args] if arguments is not None else []
    return found[0].arg if found else ""
