"""The parser: from tokens to a syntax tree, with macros expanded.

Source: the grammar of the CEL language definition, with the optional syntax (``a.?b``, ``a[?b]``, ``[?a]``,
``{?a: b}``) and without quoted identifiers, as Kubernetes configures it. Nesting is limited to 250.
"""

from __future__ import annotations

from dra_driver.cel.errors import CelCompileError
from dra_driver.cel.syntax import lexer as _lexer
from dra_driver.cel.syntax import macros as _macros
from dra_driver.cel.syntax.ast import (
    Call,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    StructExpr,
    children,
)

__all__ = ["MAX_DEPTH", "MAX_NODES", "count", "parse"]

MAX_DEPTH = 250
# The longest expressions have a node for each character, with those of macros. But optMap writes its target
# twice, and a chain of them twice as often with each link.
MAX_NODES = 20_000
_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "in"), 3),
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_SIGNS = ("!", "-")
_LITERALS = frozenset({"int", "uint", "float", "string"})
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse(expression: str) -> Expr:
    """Return the tree of an expression.

    Raises:
        CelCompileError: a syntax error, too deep nesting, or too many nodes after the expansion of macros.
    """
    try:
        root = _Parser(expression).whole()
        count(root)
        return root
    except CelCompileError as e:
        if e.position < 0 or ": " in str(e)[:12]:
            raise
        raise CelCompileError(str(e), e.position, expression) from e
    except RecursionError as e:
        raise CelCompileError("the expression is nested too deeply") from e


def count(root: Expr) -> int:
    """Return the number of nodes of a tree.

    Raises:
        CelCompileError: more than are allowed.
    """
    todo, found = [root], 0
    while todo:
        found += 1
        if found > MAX_NODES:
            raise CelCompileError(
                f"the expression has more than {MAX_NODES} parts when its macros are expanded"
            )
        todo += children(todo.pop())
    return found


class _Parser:
    def __init__(self, expression: str) -> None:
        self.text = expression
        self.tokens = _lexer.tokens(expression)
        self.at = 0
        self.kind = self.tokens[0].kind
        self.depth = 0

    def whole(self) -> Expr:
        result = self.expression()
        if self.kind != "end":
            raise self.unexpected("the end")
        return result

    # --- tokens ---

    def advance(self) -> _lexer.Token:
        token = self.tokens[self.at]
        self.at += 1
        self.kind = self.tokens[self.at].kind
        return token

    def accept(self, kind: str) -> bool:
        if self.kind == kind:
            self.advance()
            return True
        return False

    def expect(self, kind: str) -> _lexer.Token:
        if self.kind != kind:
            raise self.unexpected({"ident": "a name"}.get(kind, repr(kind)))
        return self.advance()

    @property
    def position(self) -> int:
        return self.tokens[self.at].position

    def error(self, message: str, position: int) -> CelCompileError:
        return CelCompileError(message, position, self.text)

    def unexpected(self, wanted: str) -> CelCompileError:
        token = self.tokens[self.at]
        found = repr(token.text) if token.text else "the end"
        return self.error(f"syntax error: expected {wanted}, found {found}", token.position)

    # --- expressions ---

    def expression(self) -> Expr:
        """Parse one expression. Kept flat: a level of parentheses costs two frames of Python's stack."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CelCompileError(f"the expression is nested deeper than {MAX_DEPTH}")
        result = self.operators()
        if self.kind == "?":
            result = self.conditional(result)
        self.depth -= 1
        return result

    def conditional(self, test: Expr) -> Expr:
        position = self.advance().position
        yes = self.operators()
        self.expect(":")
        return Call(position, "_?_:_", [test, yes, self.expression()])

    def operators(self) -> Expr:
        """Parse operators of all precedences, with two stacks."""
        operands = [self.member(self.primary()) if self.kind not in _SIGNS else self.unary()]
        operators: list[_lexer.Token] = []
        chains: dict[int, int] = {}
        while (level := _PRECEDENCE.get(self.kind)) is not None:
            while operators and _PRECEDENCE[operators[-1].kind] >= level:
                self.reduce(operands, operators, chains)
            operators.append(self.advance())
            operands.append(self.member(self.primary()) if self.kind not in _SIGNS else self.unary())
        while operators:
            self.reduce(operands, operators, chains)
        return operands[0]

    def reduce(self, operands: list[Expr], operators: list[_lexer.Token], chains: dict[int, int]) -> None:
        right, left, operator = operands.pop(), operands.pop(), operators.pop()
        function = "@in" if operator.kind == "in" else f"_{operator.kind}_"
        if (
            operator.kind in ("&&", "||")
            and isinstance(left, Call)
            and left.function == function
            and id(left) in chains
        ):
            # A chain is one node of many arguments, so that its depth is one.
            left.args.append(right)
            operands.append(left)
            return
        node = Call(operator.position, function, [left, right])
        depth = chains.get(id(left), 0) + 1
        if depth > MAX_DEPTH:
            raise CelCompileError(f"the expression is nested deeper than {MAX_DEPTH}")
        chains[id(node)] = depth if operator.kind not in ("&&", "||") else 0
        operands.append(node)

    def unary(self) -> Expr:
        sign, position, count = self.kind, self.position, 0
        while self.kind == sign:
            self.advance()
            count += 1
        negative = sign == "-" and count == 1 and self.kind in ("int", "float")
        if negative or (sign == "!" and self.kind == "-"):
            if not negative:
                self.advance()
            if self.kind not in ("int", "float"):
                raise self.unexpected("a number")
            literal: Expr = Literal(position, _lexer.literal_value(self.advance(), self.text, negative=True))
            operand = self.member(literal)
            if negative:
                return operand
        else:
            operand = self.member(self.primary())
        if count % 2 == 0:
            return operand
        return Call(position, f"{sign}_", [operand])

    def primary(self) -> Expr:
        kind, position = self.kind, self.position
        if kind == "ident":
            return self.name()
        if kind in _LITERALS:
            return Literal(position, _lexer.literal_value(self.advance(), self.text))
        if kind in _CONSTANTS:
            self.advance()
            return Literal(position, _CONSTANTS[kind])
        if kind == "(":
            self.advance()
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise CelCompileError(f"the expression is nested deeper than {MAX_DEPTH}")
            result = self.operators()
            if self.kind == "?":
                result = self.conditional(result)
            self.depth -= 1
            self.expect(")")
            return result
        if kind == "[":
            return self.list_literal()
        if kind == "{":
            return self.map_literal()
        if kind == ".":
            self.advance()
            return self.name()
        raise self.unexpected("an expression")

    def name(self) -> Expr:
        token = self.expect("ident")
        if token.text in _RESERVED:
            raise self.error(f"reserved identifier: {token.text}", token.position)
        if self.kind == "(":
            return self.call(token, None)
        return Ident(token.position, token.text)

    def member(self, operand: Expr) -> Expr:
        while True:
            if self.kind == ".":
                position = self.advance().position
                optional = self.accept("?")
                field = self.expect("ident")
                if optional:
                    operand = Call(position, "_?._", [operand, Literal(field.position, field.text)])
                elif self.kind == "(":
                    operand = self.call(field, operand)
                else:
                    operand = Select(position, operand, field.text)
            elif self.kind == "[":
                position = self.advance().position
                function = "_[?_]" if self.accept("?") else "_[_]"
                operand = Call(position, function, [operand, self.expression()])
                self.expect("]")
            elif self.kind == "{" and (name := _dotted(operand)):
                operand = self.struct_literal(name)
            else:
                return operand

    def call(self, name: _lexer.Token, target: Expr | None) -> Expr:
        self.expect("(")
        args: list[Expr] = []
        if self.kind != ")":
            args.append(self.expression())
            while self.accept(","):
                args.append(self.expression())
        self.expect(")")
        try:
            macro = _macros.expand(name.position, name.text, args, target)
        except CelCompileError as e:
            raise self.error(str(e), e.position) from e
        return macro if macro is not None else Call(name.position, name.text, args, target)

    def list_literal(self) -> Expr:
        position = self.advance().position
        elements: list[Expr] = []
        optional: set[int] = set()
        while self.kind not in ("]", ","):
            if self.accept("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if self.kind != "," or self.tokens[self.at + 1].kind == "]":
                break
            self.advance()
        self.accept(",")
        self.expect("]")
        return ListExpr(position, elements, frozenset(optional))

    def map_literal(self) -> Expr:
        position = self.advance().position
        entries: list[tuple[Expr, Expr]] = []
        optional: set[int] = set()
        while self.kind not in ("}", ","):
            if self.accept("?"):
                optional.add(len(entries))
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression()))
            if self.kind != "," or self.tokens[self.at + 1].kind == "}":
                break
            self.advance()
        self.accept(",")
        self.expect("}")
        return MapExpr(position, entries, frozenset(optional))

    def struct_literal(self, name: str) -> Expr:
        position = self.advance().position
        fields: list[tuple[str, Expr]] = []
        while self.kind == "ident":
            field = self.advance().text
            self.expect(":")
            fields.append((field, self.expression()))
            if not self.accept(","):
                break
        self.expect("}")
        return StructExpr(position, name, fields)


def _dotted(expr: Expr) -> str:
    """Return ``a.b.c`` for a chain of names, or an empty text."""
    fields: list[str] = []
    while isinstance(expr, Select) and not expr.test_only:
        fields.append(expr.field)
        expr = expr.operand
    if not isinstance(expr, Ident):
        return ""
    return ".".join([expr.name, *reversed(fields)])
