"""Mutants of C++ text: small changes; a test should notice each of them. Used by mutate.py.

It reads tokens, not a syntax tree, and relies on clang-format: an operator with two operands has a space on both sides, `<` of a
template has none. A wrongly read mutant does not compile, and mutate.py leaves it out.

All mutants of a file are compiled at once. A mutant changes a region: the largest piece of an expression between two of
`( ) [ ] { } , ; ? : = return`. The region becomes

    (pptrain_mutant(7) ? (changed) : (original))

and the environment variable PPTRAIN_MUTANT chooses the mutant that acts.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n\\]|\\.)*)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
  | (?P<number>\.?\d(?:[eEpP][+-]|['\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<op><<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|[-+*/%<>=!&|^~?:;,.(){}\[\]])
  | (?P<space>\s+)
""", re.VERBOSE | re.DOTALL | re.MULTILINE)

# With a space on both sides.
BINARY = {"<": ["<=", ">"], "<=": ["<", ">"], ">": [">=", "<"], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
          "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "&&": ["||"], "||": ["&&"], "+=": ["-="], "-=": ["+="],
          "*=": ["/="], "/=": ["*="]}
WORDS = {"true": "false", "false": "true", "min": "max", "max": "min"}
SYMMETRIC = ("min", "max", "swap", "gcd", "lcm", "hypot")  # the order of their two arguments does not matter
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
ENDS = {",", ";", "?", ":", "="}
# No mutant of a statement or declaration with one of these: texts for people, and values known at compile time.
LEFT_OUT = {"throw", "static_assert", "assert", "constexpr", "consteval", "template", "using", "case", "enum", "spdlog", "fmt",
            "TORCH_CHECK", "operator", "default", "delete", "goto", "noexcept", "sizeof", "requires", "concept"}
LONGEST_REGION = 400


@dataclass
class Token:
    kind: str
    text: str
    start: int

    @property
    def end(self):
        return self.start + len(self.text)


@dataclass(frozen=True)
class Mutant:
    what: str  # the operator, in words
    line: int  # from 1
    start: int  # the region
    end: int
    changed: str  # the region's text
    form: str  # "value", "condition" (of if or while), "call" (a removed statement)


def tokens_of(text):
    result, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            at += 1  # a character that C++ does not have
            continue
        if found.lastgroup not in ("skip", "space"):
            kind = next(k for k in ("string", "number", "word", "op") if found.group(k) is not None)
            result.append(Token(kind, found.group(), at))
        at = found.end()
    return result


class Source:
    def __init__(self, text):
        self.text, self.tokens = text, tokens_of(text)
        self.partner = self._partners()

    def _partners(self):
        """The index of the other bracket, for each bracket; None if they do not fit."""
        open_ones, partner = [], {}
        for i, token in enumerate(self.tokens):
            if token.kind != "op":
                continue
            if token.text in OPEN:
                open_ones.append(i)
            elif token.text in CLOSE and open_ones:
                j = open_ones.pop()
                partner[i], partner[j] = j, i
        return partner

    def _is(self, i, *texts):
        return 0 <= i < len(self.tokens) and self.tokens[i].text in texts

    def spaced(self, i):
        token = self.tokens[i]
        return self.text[token.start - 1:token.start].isspace() and self.text[token.end:token.end + 1].isspace()

    def region(self, i):
        """(first, last) token of the largest piece of expression around token i."""
        first = i
        while first > 0:
            token = self.tokens[first - 1]
            if token.text in CLOSE:
                if token.text == "}" or first - 1 not in self.partner:
                    break
                if self._is(self.partner[first - 1] - 1, "if", "for", "while", "switch"):
                    break
                first = self.partner[first - 1]
            elif token.text in OPEN or token.text in ENDS or token.text in ("return", "else", "do", "co_return"):
                break
            else:
                first -= 1
        last = i
        while last + 1 < len(self.tokens):
            token = self.tokens[last + 1]
            if token.text in OPEN:
                if token.text == "{" or last + 1 not in self.partner:
                    break
                last = self.partner[last + 1]
            elif token.text in CLOSE or token.text in ENDS:
                break
            else:
                last += 1
        return first, last

    def statement(self, i):
        """The tokens from the statement's start to its end, without what lies in its braces."""
        first = i
        while first > 0 and not self._is(first - 1, ";", "{", "}"):
            first -= 1
        last = i
        while last + 1 < len(self.tokens) and not self._is(last, ";", "{"):
            last += 1
        return first, last

    def left_out(self, i):
        first, last = self.statement(i)
        return any(token.text in LEFT_OUT for token in self.tokens[first:last + 1])

    def is_condition(self, first, last):
        """The whole condition of an if or while."""
        return (self._is(first - 1, "(") and self._is(last + 1, ")") and self.partner.get(first - 1) == last + 1 and
                self._is(first - 2, "if", "while"))

    def is_function_body(self, i):
        """True if token i is inside a function. Expressions elsewhere (default arguments, members) are not mutated."""
        depth = 0
        for j in range(i, -1, -1):
            if self._is(j, "}") and j != i:
                depth += 1
            elif self._is(j, "{"):
                if depth == 0 and self._is(j - 1, ")", "const", "override", "mutable", "else", "do", "try"):
                    return True
                depth = max(depth - 1, 0)
        return False

    def change(self, what, i, replacements):
        """The mutant that replaces tokens around token i ({(first, last): text}), or None."""
        if self.left_out(i) or not self.is_function_body(i):
            return None
        first, last = self.region(i)
        start, end = self.tokens[first].start, self.tokens[last].end
        region = self.text[start:end]
        if len(region) > LONGEST_REGION or "{" in region or "//" in region or not all(first <= a and b <= last for a, b in replacements):
            return None
        # `Type name` before an initialiser in brackets, a cast, a parameter: two adjacent words are a declaration.
        for a, b in zip(self.tokens[first:last], self.tokens[first + 1:last + 1]):
            if a.kind == b.kind == "word" and a.text not in ("new", "not"):
                return None
        if any(token.text in ("const", "auto") for token in self.tokens[first:last + 1]):
            return None
        changed, at = "", start
        for a, b in sorted(replacements):
            changed += self.text[at:self.tokens[a].start] + replacements[a, b]
            at = self.tokens[b].end
        changed += self.text[at:end]
        form = "condition" if self.is_condition(first, last) else "value"
        return Mutant(what, self.line(i), start, end, changed, form)

    def line(self, i):
        return self.text.count("\n", 0, self.tokens[i].start) + 1


def number_changes(text):
    if re.fullmatch(r"\d+", text):
        return [str(int(text) + 1)] + ([str(int(text) - 1)] if int(text) > 0 else [])
    if re.fullmatch(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", text):
        return [f"(2 * {text} + 1)"]
    return []


def arguments_of(source, i):
    """(first, last) of each argument of the call whose bracket is token i."""
    end, result, first, j = source.partner[i], [], i + 1, i + 1
    while j <= end:
        if j == end or source.tokens[j].text == ",":
            if j > first:
                result.append((first, j - 1))
            first = j + 1
        elif source.tokens[j].text in OPEN and j in source.partner:
            j = source.partner[j]
        j += 1
    return result


def find_mutants(text):
    source = Source(text)
    tokens, result = source.tokens, []

    def add(what, i, replacements):
        mutant = source.change(what, i, replacements)
        if mutant and mutant.changed != text[mutant.start:mutant.end]:
            result.append(mutant)

    for i, token in enumerate(tokens):
        if token.kind == "op" and token.text in BINARY and source.spaced(i):
            for other in BINARY[token.text]:
                add(f"{token.text} -> {other}", i, {(i, i): other})
        elif token.kind == "word" and token.text in WORDS and not (token.text in ("min", "max") and not source._is(i - 1, "::")):
            add(f"{token.text} -> {WORDS[token.text]}", i, {(i, i): WORDS[token.text]})
        elif token.kind == "number":
            for other in number_changes(token.text):
                add(f"{token.text} -> {other}", i, {(i, i): other})
        elif token.text == "(" and i in source.partner:
            if source._is(i - 1, "if", "while") and i + 1 < source.partner[i]:
                first, last = i + 1, source.partner[i] - 1
                if source.region(first) == (first, last):
                    add("negated condition", first, {(first, last): f"!({text[tokens[first].start:tokens[last].end]})"})
            elif tokens[i - 1].kind == "word" and not source._is(i - 1, "if", "for", "while", "switch", "return", "catch", *SYMMETRIC):
                arguments = arguments_of(source, i)
                if len(arguments) == 2:
                    (a, b), (c, d) = arguments
                    one, other = (text[tokens[x].start:tokens[y].end] for x, y in arguments)
                    add("arguments swapped", i - 1, {(a, b): other, (c, d): one})
                deleted = deleted_call(source, i)
                if deleted:
                    result.append(deleted)
    return result


def deleted_call(source, i):
    """Removes a call at token i that is a whole statement."""
    first, last = source.statement(i)
    end = source.partner[i]
    if not source._is(end + 1, ";") or not source._is(first - 1, ";", "{", "}"):
        return None
    if any(token.text in LEFT_OUT for token in source.tokens[first:end + 1]) or not source.is_function_body(i):
        return None
    head = source.tokens[first:i]
    if not head or any(t.kind != "word" and t.text not in (".", "->", "::") for t in head):
        return None
    if any(a.kind == b.kind == "word" for a, b in zip(head, head[1:])) or head[0].text in ("return", "delete", "if", "for", "while"):
        return None
    start, stop = source.tokens[first].start, source.tokens[end + 1].end
    return Mutant("call left out", source.line(first), start, stop, "", "call")


def schema(text, mutants):
    """Puts all `mutants` ({number: Mutant}) into `text`, except those that overlap others. Returns (text, numbers)."""
    regions = {}
    for number, mutant in mutants.items():
        regions.setdefault((mutant.start, mutant.end, mutant.form), []).append(number)
    result, taken, at = "", [], 0
    for (start, end, form), numbers in sorted(regions.items()):
        if start < at:
            continue
        original = text[start:end]
        result += text[at:start]
        if form == "call":
            result += f"if (!pptrain_mutant({numbers[0]})) {{ {original} }}"
            numbers = numbers[:1]
        else:
            cast = "static_cast<bool>" if form == "condition" else ""
            chain = "".join(f"pptrain_mutant({n}) ? {cast}({mutants[n].changed}) : " for n in numbers)
            result += f"({chain}{cast}({original}))"
        taken += numbers
        at = end
    return result + text[at:], taken
