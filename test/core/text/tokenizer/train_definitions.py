"""Trains the small tokenizers of definitions/, each in the manner of a known one, with the Python package `tokenizers`.

Usage: train_definitions.py   (writes definitions/*/tokenizer.json; the fuzzer's corpus and tests rely on their ids)
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
SHAKESPEARE = HERE.parents[3] / "configs/data/tinyshakespeare.txt"
# Some text of each script, so that there are merges of characters beyond ASCII.
SCRIPTS = """
Été naïve façon Größe Übermut año señor ação coração São Paulo łódź żółć Ærø Øresund İstanbul ığdır çok güzel
Привет, мир! Как дела? Ελλάδα, καλημέρα κόσμε. Հայաստան საქართველო שלום עולם مرحبا بالعالم، كيف الحال؟
नमस्ते दुनिया, कैसे हो? হ্যালো বিশ্ব ਸਤ ਸ੍ਰੀ વિશ્વ வணக்கம் உலகம் ప్రపంచం ಜಗತ್ತು ലോകം สวัสดีชาวโลก ສະບາຍດີ မင်္ဂလာပါ ជំរាបសួរ
你好，世界！今天天气怎么样？ こんにちは世界、カタカナとひらがな。 안녕하세요 세계! 조선말 한국어
😀 😃 👩‍👩‍👧 🏳️‍🌈 👍🏽 é e\u0301 ﬁ ﬂ Å Å ½ ² ① ㎏ 1234567890 ١٢٣ １２３ $12.50 3.14159 x=y+2; if (a[i] != b) { return; }
it's we'll I'm you've they'd HE'S don't  two   three    four\t\ttabs\r\n\r\nlines
"""
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def corpus():
    text = SHAKESPEARE.read_text()[:200_000]
    return [text[i : i + 2000] for i in range(0, len(text), 2000)] + SCRIPTS.split("\n") * 20


def train(tokenizer, size, special=(), alphabet=()):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=list(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, 700, ["<|endoftext|>"], sorted(pre_tokenizers.ByteLevel.alphabet()))


def split_bytes(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_bytes(LLAMA3)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 700, (), sorted(pre_tokenizers.ByteLevel.alphabet()))
    # A word without its merges; the tokenizer still takes it whole.
    document = json.loads(tokenizer.to_str())
    document["model"]["vocab"]["ĠCoriolanus"] = len(document["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                special_tokens=[("<|begin_of_text|>", begin)],
            ),
        ]
    )
    return tokenizer


def qwen():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_bytes(QWEN)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 700, (), sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for the training only
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    train(tokenizer, 800, ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    document["added_tokens"] = document["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def main():
    for make in (gpt2, llama3, qwen, llama2):
        folder = HERE / "definitions" / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(make().to_str()), ensure_ascii=False, indent=0))


main()
