"""Writes unicode_differences.h: what the Python package `tokenizers` holds of characters that the Debian 12 versions of PCRE2
(Unicode 14) and utf8proc (Unicode 15) do not.

The package's own parts disagree too: its regular expressions (Oniguruma) know Unicode 16, its normal forms and combining marks
an older standard, Rust's character functions 17. Each is asked here about every code point.

Usage: unicode_differences.py > unicode_differences.h   (Python 3.11, whose unicodedata is of Unicode 14, like PCRE2 10.42)
"""

import ctypes
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

assert unicodedata.unidata_version == "14.0.0"
CODES = [c for c in range(0x110000) if not (0xD800 <= c < 0xF900 or 0xF0000 <= c)]  # no surrogates, nothing private
ALL = "".join(map(chr, CODES))

proc = ctypes.CDLL("libutf8proc.so.2")
proc.utf8proc_map.restype = ctypes.c_ssize_t
proc.utf8proc_map.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]
HEAD = """\
// Where the Python package `tokenizers` and the Unicode tables of PCRE2 and utf8proc disagree. Newer versions of both libraries
// make some of it needless, never wrong. Written by unicode_differences.py: not to be edited.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace pptrain::tokenizer {

struct CodeRange {
  uint32_t first, last;  // code points, both within
};
struct NewerRange {
  uint32_t first, last;
  char kind, subkind;  // of the general category: 'L', 'u'
};
using Pair = std::pair<uint32_t, uint32_t>;  // from, to

// All in ascending order, but for the first, which is so within a category."""
STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16
FORMS = [
    (normalizers.NFC(), COMPOSE),
    (normalizers.NFD(), DECOMPOSE),
    (normalizers.NFKC(), COMPOSE | COMPAT),
    (normalizers.NFKD(), DECOMPOSE | COMPAT),
]


def mapped(text, options):
    raw, out = text.encode(), ctypes.c_void_p()
    size = proc.utf8proc_map(raw, len(raw), ctypes.byref(out), options | STABLE)
    result = ctypes.string_at(out.value, size).decode()
    libc.free(out)
    return result


def ranges(codes):
    found = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def matched(pattern):
    rest = normalizers.Replace(Regex(pattern), "").normalize_str(ALL)
    return set(CODES) - set(map(ord, rest))


def write(name, rows, comment):
    print(f"\n// {comment}\ninline constexpr std::array<{name[0]}, {len(rows)}> {name[1]}_ranges{{{{")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 110:
            print(line)
            line = "   "
        line += f" {row},"
    print(line + "\n}};")


def write_ranges(name, codes, comment):
    write(("CodeRange", name), [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(codes)], comment)


def main():
    print(HEAD)
    gc = {}
    kinds = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()
    for kind in kinds:
        for code in matched(rf"\p{{{kind}}}"):
            gc[code] = kind
    newer = {}
    for code, kind in gc.items():
        if unicodedata.category(chr(code)) != kind and unicodedata.category(chr(code))[0] != kind[0]:
            newer.setdefault(kind, set()).add(code)
    rows = [f"{{0x{a:x}, 0x{b:x}, '{k[0]}', '{k[1]}'}}" for k in kinds for a, b in ranges(newer.get(k, ()))]
    write(("NewerRange", "newer"), rows, "Assigned after Unicode 14, with their general category in Unicode 16.")
    known = {c for c, k in gc.items() if k[0] in "LM" or k in ("Nd", "Nl", "Pc")}
    write_ranges("word", matched(r"\w") - known, "Of a pattern's \\w, beside letters, marks, Nd, Nl and Pc.")
    assert not known - matched(r"\w")

    inert = {0x11930}  # the second half of U+11938, which the package neither takes apart nor puts together
    for normalizer, options in FORMS:
        for code in CODES:
            for text in (chr(code), "a\u0345" + chr(code), "a" + chr(code) + "\u0334", chr(code) + "\u0301"):
                if normalizer.normalize_str(text) != mapped(text, options):
                    inert.add(code)
    write_ranges("inert", inert, "Left as they are by the package's normal forms, where nothing moves over them.")

    strip = normalizers.StripAccents()
    marks = {c for c in CODES if strip.normalize_str("a" + chr(c)) == "a"}
    unicode_marks = {c for c in CODES if unicodedata.category(chr(c))[0] == "M"}
    unicode_marks |= {c for c, k in gc.items() if k[0] == "M"}
    write_ranges("no_mark", unicode_marks - marks, "Marks that the package's StripAccents leaves.")
    write_ranges("mark", marks - unicode_marks, "What it takes, and is none.")

    digits = pre_tokenizers.Digits(individual_digits=True)
    numbers = {c for c in CODES if len(digits.pre_tokenize_str("a" + chr(c) + "a")) == 3}
    write_ranges(
        "number",
        numbers - {c for c in CODES if unicodedata.category(chr(c))[0] == "N"},
        "Numbers of the package's Digits that Unicode 14 does not have.",
    )
    cuts = pre_tokenizers.Punctuation("isolated")
    punctuation = {c for c in CODES if len(cuts.pre_tokenize_str("a" + chr(c) + "a")) == 3}
    unicode_punctuation = {c for c in CODES if unicodedata.category(chr(c))[0] == "P"}
    unicode_punctuation |= {c for c, k in gc.items() if k[0] == "P"}
    write_ranges("no_punctuation", unicode_punctuation - punctuation, "What the package's Punctuation leaves.")
    write_ranges("punctuation", punctuation - unicode_punctuation, "What it cuts at, and is none.")
    write_ranges("han", matched(r"\p{Han}"), "Of a pattern's \\p{Han}: the script in Unicode 16.")
    lower = normalizers.Lowercase()
    rows = []
    for code in CODES:
        small = lower.normalize_str(chr(code))
        if len(small) == 1 and small != chr(code).lower():
            rows.append(f"{{0x{code:x}, 0x{ord(small):x}}}")
    write(("Pair", "lower"), rows, "Lower case that Unicode 14 does not have.")
    print("\n}  // namespace pptrain::tokenizer")


main()
