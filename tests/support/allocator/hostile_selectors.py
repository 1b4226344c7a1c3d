"""Selectors that would take far more time or memory than they may, most of them more than any machine has."""

from __future__ import annotations

__all__ = ["DRIVER", "HOSTILE", "MEMORY", "MODEL", "binds", "each", "kept", "letters", "long"]

DRIVER = "gpu.example.com"
MODEL = f'device.attributes["{DRIVER}"].model'
MEMORY = f'device.capacity["{DRIVER}"].memory'


def binds(start: str, step: str, count: int, result: str) -> str:
    """Nested ``cel.bind``: each value is made of the one before it, ``@`` in ``step`` and ``result``."""
    text = f"cel.bind(a0, {start}, "
    for i in range(count):
        text += f"cel.bind(a{i + 1}, {step.replace('@', f'a{i}')}, "
    return text + result.replace("@", f"a{count}") + ")" * (count + 1)


def letters(count: int, letter: str = "a") -> str:
    """A literal of so many letters."""
    return f'"{letter * count}"'


def long(count: int, times: int) -> str:
    """A text of count x times letters."""
    return f'{letters(count)}.replace("a", {letters(times)})'


def each(count: int, test: str) -> str:
    return f"lists.range({count}).all(x, {test})"


def kept(count: int, value: str) -> str:
    return f"lists.range({count}).map(x, {value}) != []"


HOSTILE = {
    "replace, chained": letters(4) + '.replace("a", "aaaaaaaaaa")' * 12 + ' != ""',
    "replace of nothing": letters(4) + f'.replace("", {letters(20)})' * 12 + ' != ""',
    "replace, with a long text": long(1000, 1000) + f'.replace("a", {letters(1000)}) != ""',
    "replace of wide characters": letters(1000) + f'.replace("a", {letters(5000, "€")}) != ""',
    "text doubled by bind": binds(letters(10), "@ + @", 40, '@ != ""'),
    "bytes doubled by bind": binds("b" + letters(10), "@ + @", 40, '@ != b""'),
    "list doubled by bind": binds("[1, 2, 3]", "@ + @", 40, "@.size() > 0"),
    "join with a long separator": f'lists.range(20000).map(x, "a").join({letters(1000)}) != ""',
    "join of one text many times": f'lists.range(30000).map(x, {letters(1000)}).join() != ""',
    "format of texts": kept(30, f'"{"%s" * 1000}".format(dyn(lists.range(1000).map(y, {letters(1000)})))'),
    "format of lists in lists": binds("[1, 2]", "[@, @]", 60, '"%s".format([@]) != ""'),
    "format of maps in maps": binds("{1: 2}", '{"a": dyn(@), "b": dyn(@)}', 30, '"%s".format([@]) != ""'),
    "format in hexadecimal": kept(9000, f'"%X".format([{letters(1000)}])'),
    "quoted, again and again": binds("'\"'", "strings.quote(@)", 60, '@ != ""'),
    "split into characters": kept(3000, letters(1000) + '.split("")'),
    "split, again and again": each(30000, letters(1000) + '.split("a").size() > 0'),
    "findAll in a long text": long(1000, 500) + '.findAll("a").size() > 0',
    "findAll that looks to the end": long(1000, 50) + '.findAll("a.*b|a").size() > 0',
    "range": "lists.range(999999999999).size() > 0",
    "the longest range": "lists.range(9223372036854775807).size() > 0",
    "ranges that are kept": kept(1000, "lists.range(100000)"),
    "lists that are copied": f"cel.bind(a, lists.range(300000), {each(10000, '(a + a).size() > 0')})",
    "equality of lists in lists": binds("[1, 2]", "[@, @]", 60, "@ == @"),
    "inequality of lists in lists": binds("[1, 2]", "[@, @]", 60, "@ != @"),
    "equality of maps in maps": binds("{1: 2}", '{"a": dyn(@), "b": dyn(@)}', 30, "@ == @"),
    "equality of optionals": binds("[1, 2]", "[optional.of(dyn(@)), optional.of(dyn(@))]", 30, "@ == @"),
    "membership of lists in lists": binds("[1, 2]", "[@, @]", 60, "@ in [@]"),
    "includes of lists in lists": binds("[1, 2]", "[@, @]", 60, "[@].includes(@)"),
    "distinct of lists in lists": binds("[1, 2]", "[@, @]", 60, "[@, @].distinct().size() == 1"),
    "sets of lists in lists": binds("[1, 2]", "[@, @]", 60, "sets.equivalent([@], [@])"),
    "indexOf of lists in lists": binds("[1, 2]", "[@, @]", 60, "[@].indexOf(@) == 0"),
    "lists in lists, by map": "cel.bind(a, [1, 2]" + ".map(x, [x, x])" * 40 + ", a == a)",
    "flatten of lists in lists": binds("[1, 2]", "[@, @]", 60, "dyn(@).flatten(100).size() > 0"),
    "entries of maps": "lists.range(500000).transformMap(i, v, v).size() > 0",
    "steps in steps": "lists.range(1000).all(x, lists.range(1000).all(y, x != y || true))",
    "steps in maps": "device.attributes.all(a, " + "[1, 2, 3, 4, 5, 6, 7].all(x, " * 8 + "true" + ")" * 9,
    "steps that fail": 'lists.range(900000).exists(x, device.attributes["x"].y == 1 && {1: 2}[3] == 4)',
    "sums that share a decimal": kept(60000, f"{MEMORY}.add(1)"),
    "large quantities": kept(60000, 'quantity("1e999").add(x)'),
    "quantities of long texts": each(60000, f'isQuantity({letters(900, "9")} + string(x) + "e99")'),
    "versions of long texts": each(60000, f'isSemver("1.2.3-" + string(x) + {letters(400, ".a")})'),
    "time zones that do not exist": each(60000, 'timestamp(0).getHours("A" + string(x)) > 0 || true'),
    "networks": each(200000, 'cidr("fe80::/64").containsCIDR("fe80::/64")'),
    "parameters of URLs": each(9000, f'url("https://a/?" + {letters(2000, "a&")}).getQuery().size() == 1'),
    "escapes of URLs": each(9000, f'url("https://a/" + {letters(2000, "<")}).getEscapedPath() != ""'),
    "a long text, again and again": f"cel.bind(t, {long(1000, 900)}, "
    + each(90000, 't.indexOf("b") > 0 || true') + ")",
    "search from the right": f"cel.bind(t, {long(1000, 50)}, "
    + each(90, f't.lastIndexOf({letters(500)} + "b" + {letters(500)}) < 0') + ")",
    "conversions of a long text": f'cel.bind(t, {letters(1000, "1")}.replace("1", {letters(900, "1")}), '
    + each(90000, "double(t) > 0.0 || true") + ")",
    "patterns that are made": each(90000, '"a".matches("(a{99}){9}" + string(x)) || true'),
    "patterns that are refused": each(90000, '"a".matches("(\\\\pL{60}){9}" + string(x)) || true'),
    "patterns that are no patterns": each(90000, '"a".matches("(" + string(x)) || true'),
    "a pattern on a long text": long(1000, 1000) + '.matches("(a?){500}a{500}b")',
    "costs that are negative": each(90000, "[1, 2, 3].flatten(-9000) == [] || lists.range(99) != []"),
    "quantities of zeros": each(9000, f'isQuantity({letters(1000, "0")} + string(x) + "x") || true'),
    "long texts in a list": f'cel.bind(p, {long(1000, 1000)} + "a", cel.bind(q, {long(1000, 1000)} + "b", '
    "cel.bind(l, lists.range(20000).map(x, p), q in l || true)))",
    "long texts in sets": f'cel.bind(p, {long(1000, 1000)} + "a", cel.bind(q, {long(1000, 1000)} + "b", '
    "sets.intersects(lists.range(600).map(x, p), lists.range(600).map(x, q)) || true))",
    "long texts that are equal": f"cel.bind(p, {long(1000, 1000)}, cel.bind(q, {long(1000, 1000)}, "
    "lists.range(20000).map(x, p) == lists.range(20000).map(x, q)))",
    "long texts that are sorted": f"cel.bind(p, {long(1000, 1000)}, cel.bind(q, {long(1000, 1000)}, "
    "lists.range(600).map(x, x % 2 == 0 ? p : q).sort().size() == 600))",
    "long keys": f"cel.bind(p, {long(1000, 1000)}, cel.bind(q, {long(1000, 1000)}, cel.bind(m, {{p: 1}}, "
    "lists.range(60000).all(x, m[q] == 1))))",
    "long optional keys": f"cel.bind(p, {long(1000, 1000)}, cel.bind(q, {long(1000, 1000)}, "
    "cel.bind(m, {p: 1}, lists.range(60000).all(x, m[?q].hasValue()))))",
    "long keys in maps": f"cel.bind(p, {long(1000, 1000)}, cel.bind(q, {long(1000, 1000)}, "
    "cel.bind(m, {p: 1}, cel.bind(n, {q: 1}, lists.range(60000).all(x, m == n && q in m)))))",
    "clauses of a format": f'{letters(1000)}.replace("a", {letters(1000, "%%")}).format([]) != ""',
    "classes that do not end": each(2000, f'"a".matches(string(x) + {letters(10000, "[")}) || true'),
    "groups that do not end": each(2000, f'"a".matches(string(x) + {letters(2000, "(?P<")}) || true'),
    "short texts in a list in a list": 'cel.bind(l, lists.range(30000).map(x, ""), cel.bind(m, [l], '
    "lists.range(9000).all(x, m.indexOf(dyn(1)) < 0)))",
    "maps that are merged again and again": "cel.bind(m, lists.range(2000).transformMap(i, v, v), "
    "lists.range(2000).all(x, lists.range(2).transformMapEntry(i, v, m).size() > 0 || true))",
    "durations of many parts": each(
        60000, f'duration({letters(80, "1ns")} + string(x) + "ns") > duration("0s")'
    ),
    "versions that are kept": kept(20000, f'semver("1.2.3-{"a." * 100}a" + string(x))'),
    "classes in a class": each(
        2000, f'"a".matches("(?i)[" + string(x) + {letters(3000, "@pL")} + "]") || true'.replace("@", r"\\")
    ),
    "patterns that are searched for": " || ".join(f'"a".find(".{{999}}{i}") == "x"' for i in range(128)),
    "a pattern again and again": each(90000, '"aaaaaaaaaaaaaaaa".matches("[^b]{500}b") || true'),
}  # fmt: skip
