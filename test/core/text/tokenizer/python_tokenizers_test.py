"""Compares ids and texts with the Python package `tokenizers`.

Usage: python_tokenizers_test.py TOKENIZER_TOOL [unittest arguments]
PPTRAIN_TOKENIZER_STRINGS=250000: the number of generated strings for each definition (default 500).
"""

import copy
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer

TOOL = pathlib.Path(sys.argv.pop(1)).resolve()
HERE = pathlib.Path(__file__).resolve().parent
SHAKESPEARE = HERE.parents[3] / "configs/data/tinyshakespeare.txt"
STRINGS = int(os.environ.get("PPTRAIN_TOKENIZER_STRINGS", "500"))
BATCH = 20_000  # strings per start of the tool

DEFINITIONS = {path.parent.name: json.loads(path.read_text()) for path in sorted(HERE.glob("definitions/*/*.json"))}

# The code points of the scripts. Each script is picked equally often.
BLOCKS = [
    (0x00, 0x1F), (0x20, 0x7E), (0x7F, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x530, 0x5FF), (0x600, 0x7FF), (0x800, 0x8FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x13FF),
    (0x1100, 0x11FF), (0x1400, 0x18AF), (0x18B0, 0x1AFF), (0x1B00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x30FF), (0x3100, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xABFF),
    (0xAC00, 0xD7FF), (0xE000, 0xFAFF), (0xFB00, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x10FFF), (0x11000, 0x11FFF),
    (0x12000, 0x16FFF), (0x17000, 0x1BFFF), (0x1C000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x1FB00, 0x1FFFF), (0x20000, 0x323AF),
    (0xE0000, 0xE01EF), (0xF0000, 0x10FFFF),
]  # fmt: skip
MARKS = [0x300, 0x301, 0x308, 0x323, 0x327, 0x345, 0x34F, 0x5B0, 0x64B, 0x93C, 0x9BE, 0xB3E, 0x1161, 0x11A8, 0x200D, 0xFE0F, 0x3099]
BLANKS = [" ", "  ", "   ", "\n", "\r\n", "\t", "\v", "\f", "\x85", "\xa0", "\u180e", "\u2003", "\u2028", "\u3000", "\ufeff", "\u200b"]
PIECES = [
    "'s", "'S", "'\u017f", "'ll", "'RE", "'Ve", "don't", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<think>",
    "<|begin_of_text|>", "<|eot_id|>", "<0x0A>", "<0xFF>", "▁", "▁▁", "Ġ", "Coriolanus", " Coriolanus", "👩‍👩‍👧", "👍🏽",
    "ﬁ", "ſ", "İ", "ß", "K", "\u212a", "é", "e\u0301", "가", "각", "가\u11a7", "\u1107\u1161\u11a7\u114f", "\x00", "\ufffd", "1234567", "３.１４", "½", "...", "!?\n", "\n\n \n",
]  # fmt: skip


def character(rng):
    while True:
        code = rng.randint(*rng.choice(BLOCKS))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def generated(rng, words):
    """A text of mixed scripts, words, blanks, marks, tokens and long runs, seldom long."""
    parts = []
    for _ in range(rng.choice((1, 2, 4, 8, 16, 40))):
        kind = rng.random()
        if kind < 0.25:
            parts.append(rng.choice(words))
        elif kind < 0.45:
            first, last = rng.choice(BLOCKS)
            codes = (rng.randint(first, last) for _ in range(rng.randint(1, 8)))
            parts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        elif kind < 0.6:
            parts.append(rng.choice(BLANKS) * rng.choice((1, 1, 1, 2, 5)))
        elif kind < 0.75:
            parts.append(rng.choice(PIECES))
        elif kind < 0.85:
            parts.append(character(rng) + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 3))))
        elif kind < 0.9:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 12))))
        elif kind < 0.985:
            parts.append(character(rng))
        else:
            parts.append(rng.choice((character(rng), " ", "a", "1", "=", "ha", "\n")) * rng.randint(20, 400))
    return "".join(parts)


def damaged(rng, text):
    """The text as bytes, some of them changed or removed: seldom UTF-8."""
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        if raw:
            at = rng.randrange(len(raw))
            if rng.random() < 0.5:
                raw[at] = rng.randrange(256)
            else:
                del raw[at]
    return bytes(raw)


class Tool:
    def __init__(self, test, document):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "tokenizer.json"
        self.path.write_text(json.dumps(document))

    def ask(self, requests):
        """[(request, bytes)] -> [bytes]"""
        text = b"".join(kind.encode() + struct.pack("<I", len(body)) + body for kind, body in requests)
        result = subprocess.run([TOOL, self.path], input=text, capture_output=True, check=False)
        if result.returncode:
            raise AssertionError(result.stderr.decode())
        answers, at = [], 0
        while at < len(result.stdout):
            (size,) = struct.unpack_from("<I", result.stdout, at)
            answers.append(result.stdout[at + 4 : at + 4 + size])
            at += 4 + size
        if len(answers) != len(requests):
            raise AssertionError(f"{len(answers)} answers to {len(requests)} requests")
        return answers

    def warnings(self):
        return subprocess.run([TOOL, self.path], input=b"", capture_output=True, check=True).stderr.decode()

    def refusal(self):
        result = subprocess.run([TOOL, self.path], input=b"", capture_output=True, check=False)
        return result.stderr.decode().strip() if result.returncode == 2 else ""


def ids_of(raw):
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))


def raw_of(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


class Compared(unittest.TestCase):
    def compare(self, document, texts, special=True, decode="dDs"):
        """Texts are str, or bytes that need not be UTF-8; `decode`: the requests made with the package's ids.

        One start of the tool answers all.
        """
        package, tool = Tokenizer.from_str(json.dumps(document)), Tool(self, document)
        package.no_truncation()
        package.no_padding()
        as_str = [text if isinstance(text, str) else text.decode(errors="replace") for text in texts]
        as_bytes = [text.encode() if isinstance(text, str) else text for text in texts]
        expected = {request: [each.ids for each in package.encode_batch_fast(as_str, add_special_tokens=request == "E")]
                    for request in ("eE" if special else "e")}  # fmt: skip
        lists = expected["E" if special else "e"]
        answers = iter(tool.ask([(request, text) for request in expected for text in as_bytes] + self.decodings(lists, decode)))
        for wanted in expected.values():
            for text, want in zip(texts, wanted, strict=True):
                got = ids_of(next(answers))
                if want != got:  # a message for each text would take longer than all the rest
                    self.fail(f"{text!r}: {[package.id_to_token(i) for i in want]}, not {[package.id_to_token(i) for i in got]}")
        if decode:
            self.compare_decoding(package, answers, lists, decode)

    def decodings(self, lists, requests="dDs"):
        return [(request, raw_of(ids)) for ids in lists for request in requests]

    def compare_decoding(self, package, answers, lists, requests="dDs"):
        """`answers`: the answers to decodings()."""
        for ids in lists:
            want = package.decode(ids, skip_special_tokens=False)
            for request in requests:
                got = next(answers).decode()
                if request == "D":
                    self.assertEqual(package.decode(ids, skip_special_tokens=True), got, ids)
                elif request == "d" or "\ufffd" not in want:
                    self.assertEqual(want, got, ids)


class FourDefinitions(Compared):
    def texts(self, seed, count):
        rng = random.Random(seed)
        words = SHAKESPEARE.read_text().split()
        for _ in range(count):
            text = generated(rng, words)
            yield damaged(rng, text) if rng.random() < 0.1 else text

    def test_tinyshakespeare(self):
        text = SHAKESPEARE.read_text()
        for name, document in DEFINITIONS.items():
            with self.subTest(name):
                whole = text if STRINGS > 100_000 else text[:300_000]
                self.compare(document, [whole, *text.split("\n\n")[:500], *text.split("\n")[:500]])

    def test_generated_strings(self):
        for name, document in DEFINITIONS.items():
            for part in range(0, STRINGS, BATCH):
                with self.subTest(name):
                    texts = list(self.texts(f"{name} {part}", min(BATCH, STRINGS - part)))
                    self.compare(document, texts, special=part == 0)

    def test_every_character(self):
        codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        step = 1 if STRINGS > 100_000 else 29
        for name, document in DEFINITIONS.items():
            with self.subTest(name):
                texts = [f"a{chr(c)}b {chr(c)}{chr(c)}\u0301 {chr(c)}" for c in codes[::step] if c < 0x34000 or c % 97 == 0]
                self.compare(document, texts, special=False)

    def test_random_ids(self):
        rng = random.Random(1)
        for name, document in DEFINITIONS.items():
            with self.subTest(name):
                package = Tokenizer.from_str(json.dumps(document))
                size = package.get_vocab_size() + 3  # ids beyond the vocabulary too
                lists = [[rng.randrange(size) for _ in range(rng.randint(0, 12))] for _ in range(5000)]
                self.compare_decoding(package, iter(Tool(self, document).ask(self.decodings(lists))), lists)

    def test_long_runs(self):
        for name, document in DEFINITIONS.items():
            with self.subTest(name):
                blanks = " " * 100_000 + "x"
                if name == "llama2":  # A stream drops the first of leading blanks, and takes time quadratic in their number.
                    self.compare(document, [blanks], decode="dD")
                    blanks = blanks[-20_000:]
                self.compare(document, ["a" * 100_000, blanks, "\n" * 50_000, "ab" * 30_000, "é" * 30_000, "1" * 9999])


def changed(name, **parts):
    document = copy.deepcopy(DEFINITIONS[name])
    for key, value in parts.items():
        if isinstance(value, dict) and key == "model":
            document["model"].update(value)
        else:
            document[key] = value
    return document


def with_tokens(name, *tokens, **parts):
    document = changed(name, **parts)
    known = {token["content"] for token in document["added_tokens"]}
    next_id = len(document["model"]["vocab"]) + sum(t not in document["model"]["vocab"] for t in known)
    for content, flags in tokens:
        token = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        ident = document["model"]["vocab"].get(content)
        document["added_tokens"].append({"id": next_id if ident is None else ident, **token, **flags})
        next_id += ident is None
    return document


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def punctuation(behavior):
    return {"type": "Punctuation", "behavior": behavior}


# From tokenizer.json of tiiuae/falcon-7b and facebook/chameleon-7b (the latter's patterns are in llama.cpp's llama-vocab.cpp
# too), bigscience/bloom, CohereLabs/tiny-aya-base, and from moonshotai/Kimi-K2's tokenization_kimi.py.
FALCON = sequence(punctuation("Contiguous"), {**BYTES, "use_regex": True}, {"type": "Digits", "individual_digits": False},
                  split("[0-9][0-9][0-9]"))  # fmt: skip
CHAMELEON = sequence(split("<sentinel:[0-9]+>"), split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), split(r"([\t\n]|    |  )"),
                     {"type": "Digits", "individual_digits": True}, punctuation("Isolated"), {**BYTES, "use_regex": True})  # fmt: skip
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
COHERE = (r"\d{1,3}(?=(?:\d{3})*\b)", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
MODELS = {
    "falcon": FALCON,
    "chameleon": CHAMELEON,
    "bloom": sequence(split(BLOOM), BYTES),
    "cohere": sequence(*map(split, COHERE), BYTES),
    "kimi": sequence(split(KIMI), BYTES),
}
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


class KnownModels(Compared):
    """The pre-tokenizers of known models, around the merges of gpt2."""

    def test_generated_strings(self):
        words = SHAKESPEARE.read_text()[:20_000].split()
        han = ["中文", "漢字かな", "〇", "々", "𠀀", "\U00030000", "\U00031350", "한국어", "ｱ", "⺀", "㍿", "1,234.5", "１２３４５", "x²", "_a", "a_1",
               "<sentinel:12>", "IMGIMGABZ", "।", "۔", "،", "…", "。", "[", "]", "$+<=>^`|~", "'S", "'ll", "12345678", "٣٤٥٦"]  # fmt: skip
        for name, steps in MODELS.items():
            with self.subTest(name):
                rng = random.Random(name)
                texts = [generated(rng, words + han * 20) for _ in range(STRINGS)]
                texts += [damaged(rng, text) for text in texts[:100]]
                texts += ["".join(rng.choice(han + [" ", "\n", "a", "Ab"]) for _ in range(12)) for _ in range(STRINGS)]
                self.compare(changed("gpt2", pre_tokenizer=steps), [*texts, "", " ", "a" * 20_000, "中" * 20_000, " " * 20_000])

    def test_every_character(self):
        step = 1 if STRINGS > 100_000 else 7
        codes = [c for c in range(0, 0x34000, step) if not 0xD800 <= c < 0xE000]
        for name, steps in MODELS.items():
            with self.subTest(name):
                texts = [f"a{chr(c)}b {chr(c)}{chr(c)}\u0301 1{chr(c)}中" for c in codes]
                self.compare(changed("gpt2", pre_tokenizer=steps), texts, special=False, decode="")

    def test_every_behavior_of_punctuation(self):
        words = ["...a.b!?", "a", "", "!", "!!", " . , ", "¿qué?—«x»", "$1+2=3", "a。b、、c", "\u2e43x\u166dy", "-a--b-", "𐩐x𑇉"]
        rows = ["a" + "a".join(chr(c) for c in range(i, i + 40)) + "a" for i in [*range(0x20, 0xD7D0, 40), *range(0xF900, 0x1FFF0, 40)]]
        for number, behavior in enumerate(BEHAVIORS):  # the first meets every character, for all ask the same class
            step = 1 if number == 0 or STRINGS > 100_000 else 7
            texts = words + rows[::step]
            for tail in ((BYTES,), (BYTES, punctuation(behavior), {"type": "Digits", "individual_digits": True})):
                with self.subTest(behavior=behavior, steps=len(tail)):
                    steps = sequence(punctuation(behavior), *tail)
                    self.compare(changed("gpt2", pre_tokenizer=steps), texts, special=False, decode="")
        self.compare(changed("gpt2", pre_tokenizer=sequence({"type": "Punctuation"}, BYTES)), texts, special=False, decode="")

    def test_set_operations(self):
        codes = [c for c in range(1, 0x34000) if not 0xD800 <= c < 0xE000]
        fewer = codes if STRINGS > 100_000 else [c for c in codes if c < 0x800 or 0x3000 <= c < 0x3100 or c % 23 == 0]
        all_texts, fewer_texts = (["a" + "a".join(map(chr, some[i : i + 40])) + "a" for i in range(0, len(some), 40)]
                                  for some in (codes, fewer))  # fmt: skip
        for pattern in (r"[[a]]", r"[b[c-e]\d]", r"[^b[^c-z]]", r"[\p{L}&&[^\p{Han}]]", r"[^\p{L}&&[^\p{Han}]]", r"[\w&&[^\d_]&&[^a-m]]",
                        r"[\W&&[\x{80}-\x{ff}]]", r"[a&b[&]]", r"[\P{L}&&\S]", r"[\s\[&&[^\n]]", r"[\D&&\p{N}]", r"[[^a]&&[^b-]]",
                        r"[\u3041-\u3096&&\p{L}-]", r"\p{Han}", r"\P{Han}", r"[^\p{Han}]", r"\b", r"\B", r"\b\w", r"\w\b", r"\B.\B"):  # fmt: skip
            with self.subTest(pattern):
                steps = sequence(split(pattern, "Removed"), BYTES)
                texts = all_texts if "Han" in pattern or pattern == r"\b" else fewer_texts  # the others test the same classes
                self.compare(changed("gpt2", pre_tokenizer=steps), texts, special=False, decode="")

    def test_truncation_and_padding_are_ignored_with_a_word(self):
        document = changed("gpt2", truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
                           padding={"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                                    "pad_type_id": 0, "pad_token": "<|endoftext|>"})  # fmt: skip
        self.compare(document, ["", "a", "To be, or not to be: that is the question"])
        said = Tool(self, document).warnings()
        for key in ("truncation", "padding"):
            self.assertIn(f"tokenizer.json: {key}: ignored", said)


class Parts(Compared):
    """Each part of a definition, in a variant of one of the four definitions."""

    def check(self, document, seed=0, count=700):
        rng = random.Random(seed)
        words = SHAKESPEARE.read_text()[:20_000].split()
        texts = [generated(rng, words) for _ in range(count)]
        texts += ["", " ", "a", " a", "a ", "  a  ", "\n", "▁", "▁a", "a▁", "Hello, world! 123 45", "tab\tand  two"]
        self.compare(document, texts)

    def each(self, variants):
        for name, document in variants.items():
            with self.subTest(name):
                self.check(document, seed=name)

    def test_normalizers(self):
        steps = {
            "NFC": {"type": "NFC"},
            "NFD": {"type": "NFD"},
            "NFKC": {"type": "NFKC"},
            "NFKD": {"type": "NFKD"},
            "Nmt": {"type": "Nmt"},
            "Lowercase": {"type": "Lowercase"},
            "StripAccents": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
            "Strip": {"type": "Strip", "strip_left": True, "strip_right": True},
            "Strip left": {"type": "Strip", "strip_left": True, "strip_right": False},
            "Strip right": {"type": "Strip", "strip_left": False, "strip_right": True},
            "Replace": {"type": "Replace", "pattern": {"String": "th"}, "content": "þ"},
            "Replace regex": {"type": "Replace", "pattern": {"Regex": r"\s{2,}|\d+"}, "content": " "},
            "Prepend": {"type": "Prepend", "prepend": ">> "},
            "none": None,
        }
        self.each({name: changed("gpt2", normalizer=step) for name, step in steps.items()})
        self.each({f"all of {name}": changed("llama2", normalizer=step) for name, step in steps.items()})

    def test_normal_forms_of_every_character(self):
        codes = [c for c in range(0x80, 0x34000) if not 0xD800 <= c < 0xE000]
        for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
            with self.subTest(form):
                texts = ["".join(f"{chr(c)}a\u0345{chr(c)}\u0334 " for c in codes[i : i + 50]) for i in range(0, len(codes), 50)]
                self.compare(changed("gpt2", normalizer={"type": form}), texts, special=False, decode="")

    def test_random_orders_of_marks(self):
        rng = random.Random(5)
        marks = [chr(c) for c in range(0x300, 0x1E950) if 0x300 <= c < 0x370 or rng.random() < 0.02]
        marks = [c for c in marks if not "\ud800" <= c <= "\udfff"]
        texts = ["".join(rng.choice((*"aeio", "가", "ᄀ", "ᅡ", "ᆨ", rng.choice(marks), rng.choice(marks))) for _ in range(12))
                 for _ in range(5000)]  # fmt: skip
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            with self.subTest(form):
                self.compare(changed("gpt2", normalizer={"type": form}), texts, special=False, decode="")

    def test_behaviors(self):
        behaviors = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        patterns = {"words": (r"\w+", "Regex"), "blank": (" ", "String"), "empty": (r"x*", "Regex"), "e": ("e", "String")}
        self.each(
            {
                f"{behavior} {name} {invert}": changed(
                    "gpt2", pre_tokenizer=sequence(split(pattern, behavior, invert, kind), BYTES)
                )
                for behavior in behaviors
                for name, (pattern, kind) in patterns.items()
                for invert in (False, True)
            }
        )

    def test_patterns(self):
        patterns = [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
            r"[一-龥\u3040-ゟ゠-ヿ]+", r"\d{2,3}?", r"\D\d|\W\w", r"(?i)'s|\p{L}x?", r"^\S+|\S$", r"(?<=[aeiou]).", r"(?<!\s)\S+?e",
            r"(?>a|ab)c|.\n", r"\x{e9}|[\u00e0-\u00ff]", r"\P{L}+", r"[\p{Sc}\p{Sm}\p{Sk}\p{So}\p{Zs}\p{Pd}\p{Nd}\p{Nl}\p{No}\p{Me}]",
            r"\A.|.\z|\t|\f|\v|\a|\e", r"[a\-z\]^]|[-+]|[+-]|[\s-]", r"[\S]+", r"a{2}|e{1,}|(o|u)n", r"\w+|[^\w\s]+",
        ]  # fmt: skip
        self.each({pattern: changed("gpt2", pre_tokenizer=sequence(split(pattern), BYTES)) for pattern in patterns})

    def test_classes_of_every_character(self):
        codes = [c for c in range(0x34000) if not 0xD800 <= c < 0xE000]
        texts = ["a" + "a".join(chr(c) for c in codes[i : i + 40]) + "a" for i in range(0, len(codes), 40)]
        for name in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
                     "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp"):  # fmt: skip
            with self.subTest(name):
                self.compare(changed("gpt2", pre_tokenizer=sequence(split(rf"\p{{{name}}}", "Removed"), BYTES)), texts, special=False, decode="")
        for escape in (r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"[\s]", r"[^\s\w\d]", r"[\w]", r"[^\w]", r"[\w ]", r"[\S\n]", r"\P{L}"):
            with self.subTest(escape):
                self.compare(changed("gpt2", pre_tokenizer=sequence(split(escape, "Removed"), BYTES)), texts, special=False, decode="")

    def test_pre_tokenizers(self):
        llama = {"normalizer": None}
        self.each(
            {
                "prefix space": changed("gpt2", pre_tokenizer={**BYTES, "add_prefix_space": True, "use_regex": True}),
                "no regex": changed("gpt2", pre_tokenizer=BYTES),
                "digits": changed("gpt2", pre_tokenizer=sequence({"type": "Digits", "individual_digits": False}, BYTES)),
                "each digit": changed("gpt2", pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, BYTES)),
                "blanks": changed("gpt2", pre_tokenizer=sequence({"type": "Whitespace"}, BYTES)),
                "blank split": changed("gpt2", pre_tokenizer=sequence({"type": "WhitespaceSplit"}, BYTES)),
                "three": changed("gpt2", pre_tokenizer=sequence(split(r"\n+"), {"type": "Digits", "individual_digits": True},
                                                               {**BYTES, "use_regex": True})),
                "always": changed("llama2", pre_tokenizer=metaspace("always"), **llama),
                "first": changed("llama2", pre_tokenizer=metaspace("first"), **llama),
                "never": changed("llama2", pre_tokenizer=metaspace("never"), **llama),
                "always, whole": changed("llama2", pre_tokenizer=metaspace("always", False), **llama),
                "first, whole": changed("llama2", pre_tokenizer=metaspace("first", False), **llama),
                "first of several": changed("llama2", pre_tokenizer=sequence(split(r"\n"), metaspace("first")), **llama),
                "gemma": changed("llama2", pre_tokenizer=split(" ", "MergedWithPrevious", False, "String"),
                                 normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
                "none": changed("llama2", pre_tokenizer=None, normalizer=None),
            }
        )  # fmt: skip

    def test_models(self):
        vocabulary = DEFINITIONS["llama2"]["model"]["vocab"]
        fewer = {token: i for token, i in vocabulary.items() if token not in ("<0xE2>", "<0xC3>")}
        no_mark = changed("llama2")
        no_mark["normalizer"] = None
        inside = copy.deepcopy(DEFINITIONS["llama2"])
        inside["model"]["vocab"]["e▁t"] = len(vocabulary)
        inside["model"]["vocab"]["▁t▁t"] = len(vocabulary) + 1
        if "e▁" not in vocabulary:
            inside["model"]["vocab"]["e▁"] = len(vocabulary) + 2
            inside["model"]["merges"].insert(3, ["e", "▁"])
        inside["model"]["merges"].insert(9, ["e▁", "t"])
        self.each(
            {
                "no fallback": changed("llama2", model={"byte_fallback": False}),
                "no fallback, not fused": changed("llama2", model={"byte_fallback": False, "fuse_unk": False}),
                "not fused": changed("llama2", model={"fuse_unk": False}),
                "no unknown": changed("llama2", model={"unk_token": None, "byte_fallback": False}),
                "some bytes": changed("llama2", model={"vocab": fewer}),
                "some bytes, not fused": changed("llama2", model={"vocab": fewer, "fuse_unk": False}),
                "no merges": changed("gpt2", model={"merges": []}),
                "whole words": changed("llama2", model={"ignore_merges": True}),
                "older merges": changed("gpt2", model={"merges": [" ".join(m) for m in DEFINITIONS["gpt2"]["model"]["merges"]]}),
                "dropout 0": changed("gpt2", model={"dropout": 0.0, "continuing_subword_prefix": "", "end_of_word_suffix": ""}),
                "merges over the mark": inside,
                "text without marks": no_mark,
            }
        )  # fmt: skip

    def test_added_tokens(self):
        lower = {"type": "Lowercase"}
        prepend = {"type": "Prepend", "prepend": "▁"}
        tokens = [
            ("the", {"single_word": True}), ("and ", {}), ("and then", {}), ("THOU", {"normalized": True}), ("<cut>", {"lstrip": True}),
            ("'s", {"rstrip": True}), ("<both>", {"lstrip": True, "rstrip": True, "special": True}), ("é", {"normalized": True}),
            ("ha", {"single_word": True, "lstrip": True, "rstrip": True}), ("  ", {}), ("▁▁", {"special": True}),
        ]  # fmt: skip
        more = ["<cut>", "  <cut>  ", "<both>", " \n<both>\t x", "the", "theme the,the", "thou THOU Thou", "and then and the", "haha ha ha"]
        rng = random.Random(3)
        texts = ["".join(rng.choice((*more, "x", " ", "  ", "\n", "é", "e\u0301", "'s ", "▁")) for _ in range(8)) for _ in range(3000)]
        for name, document in {
            "plain": with_tokens("gpt2", *tokens),
            "lower": with_tokens("gpt2", *tokens, normalizer=lower),
            "composed": with_tokens("qwen", *tokens),
            "prepend": with_tokens("llama2", *tokens[:7], normalizer=prepend),
            "first": with_tokens("llama2", *tokens, normalizer=None, pre_tokenizer=metaspace("first")),
        }.items():
            with self.subTest(name):
                self.compare(document, texts)
                self.check(document)

    def test_post_processors(self):
        single = [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "Y", "type_id": 0}}]  # fmt: skip
        template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {
            "X": {"id": "X", "ids": [0, 5], "tokens": ["a", "b"]}, "Y": {"id": "Y", "ids": [7], "tokens": ["c"]}}}  # fmt: skip
        roberta = {"type": "RobertaProcessing", "sep": ["s", 4], "cls": ["c", 3], "trim_offsets": True, "add_prefix_space": True}
        self.each(
            {
                "template": changed("gpt2", post_processor=template),
                "roberta": changed("gpt2", post_processor=roberta),
                "bert": changed("gpt2", post_processor={"type": "BertProcessing", "sep": ["s", 4], "cls": ["c", 3]}),
                "none": changed("gpt2", post_processor=None),
                "sequence": changed("gpt2", post_processor={"type": "Sequence", "processors": [BYTES, template, BYTES]}),
            }
        )

    def test_decoders(self):
        replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

        def chain(*steps):
            return {"type": "Sequence", "decoders": list(steps)}

        self.each(
            {
                "none": changed("llama2", decoder=None),
                "fallback": changed("llama2", decoder=fallback),
                "fallback last": changed("llama2", decoder=chain(replace, strip, fallback)),
                "strip tokens": changed("llama2", decoder=chain(replace, fallback, strip, fuse)),
                "strip twice": changed("llama2", decoder=chain(replace, fuse, {**strip, "start": 3})),
                "regex": changed("llama2", decoder=chain({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}, fuse)),
                "metaspace": changed("llama2", decoder=metaspace("always")),
                "metaspace never": changed("llama2", decoder=metaspace("never")),
                "metaspace, fallback": changed("llama2", decoder=chain(fallback, metaspace("first"))),
                "bytes": changed("llama2", decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
                "bytes of some": changed("gpt2", decoder=chain({"type": "Replace", "pattern": {"String": "Ġ"}, "content": " "}, BYTES)),
            }
        )  # fmt: skip


class Refusals(unittest.TestCase):
    def test_what_is_not_supported_is_named_with_its_place(self):
        for document, message in (
            (changed("gpt2", normalizer={"type": "BertNormalizer"}), "normalizer: the normalizer 'BertNormalizer' is not supported"),
            (changed("gpt2", pre_tokenizer=sequence(BYTES, metaspace("never"))),
             "pre_tokenizer.pretokenizers[1]: Metaspace after ByteLevel is not supported"),
            (changed("gpt2", pre_tokenizer=sequence(split("[[]a]"), BYTES)),
             "pre_tokenizer.pretokenizers[0].pattern: a class that begins with ']' at byte 2 of the pattern '[[]a]'"),
            (changed("gpt2", model={"dropout": 0.1}), "model.dropout: dropout is not supported"),
            (changed("gpt2", model={"type": "WordPiece"}, normalizer={"type": "BertNormalizer"}),
             "model: the model 'WordPiece' is not supported, only BPE is"),
            (changed("gpt2", model={"type": "Unigram"}, normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
             "model: the model 'Unigram' is not supported, only BPE is"),
            (changed("gpt2", decoder={"type": "CTC"}), "decoder: the decoder 'CTC' is not supported"),
            (changed("gpt2", surprise=1), "'surprise' is not supported"),
        ):  # fmt: skip
            with self.subTest(message):
                self.assertIn(f"tokenizer.json: {message}", Tool(self, document).refusal())


if __name__ == "__main__":
    unittest.main()
