"""No regular expression of the product takes more than linear time on a text made to slow it down.

Clients, origins and files choose the texts that these expressions look at, on the event loop. All `re` calls are found
in the source, so that a new one is covered without being listed here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from time import thread_time
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
Expression = tuple[re.Pattern[Any], set[str]]
"""An expression and the methods that it is used by."""
METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
# Other sources are not parsed.
MAY_CALL = re.compile(rf"\bre\.|\.(?:{'|'.join(METHODS)})\b")
# A linear expression takes well under this on the shorter text; a quadratic one, a quarter of a million steps.
FLOOR_S = 0.0001
SHORT, LONG = 512, 2048
# Between linear, 4, and quadratic, 16.
GROWTH_MAX = 8.0
# An exponential or cubic expression must be stopped before it is given a long text.
FIRST_LENGTHS, FIRST_S = (22, 128), 0.03


class Calls(ast.NodeVisitor):
    """The `re` calls of one module after another, and what is done with each name that may hold an expression."""

    def __init__(self) -> None:
        self.module = ""
        self.compiled: list[tuple[str, str]] = []
        """Modules, and the constants in them that hold a compiled expression."""
        self.direct: dict[str, Expression] = {}
        self._constants: dict[ast.AST, str] = {}
        self._used: dict[tuple[str, str], set[str]] = {}
        self._passed: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self._functions: dict[str, ast.FunctionDef] = {}

    def visit_Module(self, node: ast.Module) -> None:
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                self._constants[line.value] = line.targets[0].id
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions[node.name] = node
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in METHODS:
            self._used.setdefault((self.module, last_name(node.value)), set()).add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for at, argument in enumerate(node.args):
            if name := last_name(argument):
                self._passed.setdefault((self.module, name), set()).add((last_name(node.func), at))
        is_of_re = isinstance(node.func, ast.Attribute) and last_name(node.func.value) == "re"
        method = last_name(node.func)
        if is_of_re and method == "compile":
            assert node in self._constants, f"{self.module}: {ast.unparse(node)}: make it a constant of the module"
            self.compiled.append((self.module, self._constants[node]))
        elif is_of_re and method in METHODS:
            self.direct[f"{self.module}:{node.lineno}"] = re.compile(literal(node.args[0])), {method}
        self.generic_visit(node)

    def methods(self, module: str, name: str) -> set[str]:
        """The methods that a constant is used by: in its module, by a function it is passed to, or by other modules."""
        found = set(self._used.get((module, name), ()))
        for callee, at in self._passed.get((module, name), ()):
            if callee in self._functions:
                parameter = self._functions[callee].args.args[at].arg
                found |= {
                    use.attr for use in ast.walk(self._functions[callee])
                    if isinstance(use, ast.Attribute) and use.attr in METHODS and last_name(use.value) == parameter
                }  # fmt: skip
        # A private name of another module is another expression.
        others = (methods for (_, used), methods in self._used.items() if used == name and not name.startswith("_"))
        return found.union(*others) or {"search"}


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name. Empty for any other expression."""
    if isinstance(node, ast.Name | ast.Attribute):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ""


def literal(node: ast.expr) -> str | bytes:
    """The pattern of a call; a name within an f-string is taken for a letter."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    value = ast.literal_eval(node)
    assert isinstance(value, str | bytes)
    return value


def expressions() -> dict[str, Expression]:
    """Each expression by its module and its name or line."""
    calls = Calls()
    for home in (ROOT / "proxy", ROOT / "sdk"):
        for path in sorted(home.rglob("*.py")):
            calls.module = ".".join(path.relative_to(home).with_suffix("").parts)
            if MAY_CALL.search(source := path.read_text()):
                calls.visit(ast.parse(source))
    compiled = {
        f"{module}.{name}": (getattr(import_module(module), name), calls.methods(module, name))
        for module, name in calls.compiled
    }
    return compiled | calls.direct


def characters(kind: Any, value: Any) -> list[str]:
    """A few characters that match: one of each part of a class, or any that a negated one does not name."""
    parts = value if kind is op.IN else [(kind, value)]
    members: list[str] = []
    for part, named in parts:
        if part in (op.LITERAL, op.NOT_LITERAL):
            members.append(chr(named))
        elif part is op.RANGE:
            members.append(chr(named[0]))
        elif part is op.CATEGORY:
            members += {op.CATEGORY_DIGIT: "0", op.CATEGORY_SPACE: " ", op.CATEGORY_WORD: "a0"}.get(named, "-")
    is_negated = kind in (op.NOT_LITERAL, op.ANY) or parts[0][0] is op.NEGATE
    return [other for other in "a0 -" if other not in members] if is_negated else members


class Sampled:
    """The texts that an expression is attacked with: those that each of its repeats repeats, and all its characters."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.alphabet: dict[str, None] = {}
        self.pumps: dict[str, None] = {}
        self.heads: dict[str, None] = {"": None}
        self._groups: dict[int, str] = {}
        whole = self._sample(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), "")
        self.pumps[whole] = None

    def _sample(self, items: Any, before: str) -> str:
        text = ""
        for kind, value in items:
            text += self._one(kind, value, before + text)
        return text

    def _one(self, kind: Any, value: Any, before: str) -> str:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
            some = characters(kind, value)
            self.alphabet.update(dict.fromkeys(some))
            return some[0]
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, body = value
            bodies = [self._sample(body, before)]
            if len(body) == 1 and body[0][0] is op.IN:
                bodies = characters(*body[0])
            if most >= 8:
                self.heads[before] = None
                self.pumps.update(dict.fromkeys([*bodies, *(before + one for one in bodies)]))
            return bodies[0] * int(least)
        if kind is op.BRANCH:
            return max((self._sample(branch, before) for branch in value[1]), key=len)
        if kind is op.SUBPATTERN:
            self._groups[value[0]] = self._sample(value[3], before)
            return self._groups[value[0]]
        if kind is op.GROUPREF:
            return self._groups[value]
        if kind in (op.ASSERT, op.ASSERT_NOT):
            self._sample(value[1], before)
            return ""
        assert kind is op.AT, f"teach this test what {kind} matches"
        return ""

    def texts(self) -> Iterator[tuple[str, str, str]]:
        alphabet = list(self.alphabet)
        pairs = ("".join(pair) for pair in product(alphabet[:4], repeat=2))
        pumps = [pump for pump in dict.fromkeys([*self.pumps, *alphabet, *pairs]) if pump]
        yield from product(self.heads, pumps, ("", "\n!", "z0"))


def seconds(pattern: re.Pattern[Any], method: str, text: str) -> float:
    subject: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1")
    arguments = (subject[:0], subject) if method in ("sub", "subn") else (subject,)
    began = thread_time()
    result = getattr(pattern, method)(*arguments)
    if method == "finditer":
        for _ in result:
            pass
    return thread_time() - began


def slow_text(pattern: re.Pattern[Any], methods: set[str]) -> str | None:
    """A text on which the expression takes more than linear time, in words; None: none was found."""
    for method, (head, pump, tail) in product(sorted(methods), Sampled(pattern).texts()):

        def text(length: int, head: str = head, pump: str = pump, tail: str = tail) -> str:
            return head + pump * (length // len(pump)) + tail

        def least(length: int, method: str = method) -> float:
            return min(seconds(pattern, method, text(length)) for _ in range(3))

        words = f"{method}: {head!r}, {pump!r} again and again, {tail!r}"
        for length in FIRST_LENGTHS:
            if seconds(pattern, method, text(length)) > FIRST_S and least(length) > FIRST_S:
                return words
        # A first look says that almost all are quick; all others are measured again.
        if seconds(pattern, method, text(SHORT)) > FLOOR_S:
            short = max(FLOOR_S, least(SHORT))
            # In turn: other work may begin between a look at the shorter text and one at the longer.
            if short > FIRST_S or (
                seconds(pattern, method, text(LONG)) > GROWTH_MAX * short
                and all(least(LONG) > GROWTH_MAX * max(FLOOR_S, least(SHORT)) for _ in range(3))
            ):
                return words
    return None


def test_no_expression_of_the_product_takes_more_than_linear_time() -> None:
    all_of_them = expressions()
    assert len(all_of_them) > 80
    slow = {where: slow_text(pattern, methods) for where, (pattern, methods) in all_of_them.items()}
    assert {where: words for where, words in slow.items() if words} == {}


@pytest.mark.parametrize(("expression", "method"), [
    (r"(?=[a-f]*[0-9])[0-9a-f]{16,}", "sub"), (r"(?<![^/])[0-9a-f]{1,3}(?=(?:/[0-9a-f]{1,3})*\Z)", "sub"),
    (r"a*b?a*x", "match"), (r"<[^>]*>", "search"), (r"(?:a|b)*c\Z", "search"), (r"(?:a+)+b", "match"),
    (rb"k: (.*?) *\r\n", "search"), (r"\s+\Z", "sub"),
])  # fmt: skip
def test_an_expression_that_takes_longer_is_found(expression: str | bytes, method: str) -> None:
    assert slow_text(re.compile(expression), {method}) is not None
