"""Conversations of messages against the published chat templates, rendered and tokenized by transformers.

Usage: chat_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import struct
import sys
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import SOURCE, Case, job, run, sets  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
PARQUET = pyarrow is not None and (PPTRAIN.parent / "libpptrain_parquet.so").exists()

# chat_template of tokenizer_config.json, as published.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (  # Meta-Llama-3-8B-Instruct
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (  # Mistral-7B-Instruct-v0.2
    "{%- if messages[0][\"role\"] == \"system\" %}\n    {%- set system_message = messages[0][\"content\"] %}\n"
    "    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}\n\n"
    "{{- bos_token }}\n{%- for message in loop_messages %}\n"
    "    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{- raise_exception('After the optional system message, conversation roles must alternate "
    "user/assistant/user/assistant/...') }}\n    {%- endif %}\n    {%- if message[\"role\"] == \"user\" %}\n"
    "        {%- if loop.first and system_message is defined %}\n"
    "            {{- \" [INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \" [/INST]\" }}\n"
    "        {%- else %}\n            {{- \" [INST] \" + message[\"content\"] + \" [/INST]\" }}\n        {%- endif %}\n"
    "    {%- elif message[\"role\"] == \"assistant\" %}\n        {{- \" \" + message[\"content\"] + eos_token}}\n"
    "    {%- else %}\n        {{- raise_exception(\"Only user and assistant roles are supported, with the exception of "
    "an initial optional system message!\") }}\n    {%- endif %}\n{%- endfor %}\n"
)
GEMMA = (  # gemma-2-9b-it
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
QWEN = (  # Qwen2.5-7B-Instruct without its parts about tools
    "{%- if messages[0]['role'] == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n"
    "    {%- endif %}\n{%- for message in messages %}\n"
    "    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or "
    "(message.role == \"assistant\" and not message.tool_calls) %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# Short forms of two that differ from the published ones above: a header with a date (Llama 3.1), thoughts before the
# last answers (Qwen3).
LLAMA31 = (
    "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul 2024\" %}\n{%- endif %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n"
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: \" + date_string + \"\\n\\n\" }}\n"
    "{%- if tools is not none %}\n    {{- \"Environment: ipython\\n\" }}\n{%- endif %}\n{{- system_message + \"<|eot_id|>\" }}\n"
    "{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}\n"
    "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}\n"
    "    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n"
)
QWEN3 = (
    "{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n"
    "    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step and message.role == \"user\" %}\n"
    "        {%- set ns.multi_step = false %}\n        {%- set ns.last = index %}\n    {%- endif %}\n{%- endfor %}\n"
    "{%- for message in messages %}\n    {%- set content = message.content if message.content is string else '' %}\n"
    "    {%- if message.role == \"assistant\" %}\n        {%- set reasoning = '' %}\n"
    "        {%- if message.reasoning_content is string %}\n            {%- set reasoning = message.reasoning_content %}\n"
    "        {%- elif '</think>' in content %}\n"
    "            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
    "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n"
    "        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}\n"
    "            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}\n"
    "        {%- else %}\n            {{- '<|im_start|>assistant\\n' + content }}\n        {%- endif %}\n    {%- else %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + content }}\n    {%- endif %}\n    {{- '<|im_end|>\\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# The template, the tokenizer of test/core/text/tokenizer for it, the tokens added to that tokenizer (the first begins a
# text), and the token that ends an answer.
TEMPLATES = {
    "chatml": (CHATML, "gpt2", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": (LLAMA3, "llama3", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "mistral": (MISTRAL, "llama2", ["<s>", "</s>"], "</s>"),
    "gemma": (GEMMA, "llama2", ["<bos>", "<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "qwen": (QWEN, "qwen", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
}
OWN = {
    "llama3.1": (LLAMA31, *TEMPLATES["llama3"][1:]),
    "qwen3": (QWEN3, *TEMPLATES["qwen"][1:]),
}


def turns(*contents, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


CHATS = [
    turns("Speak, speak.", "We are accounted poor citizens."),
    turns("Who are you?", "Caius Marcius.", "And\n\nwhat more?", "  Été, naïve façon: 你好 😀 \n"),
    turns(" \u3000lines\n", "\n\n  indented\n\tcode()\n", "1234567", "x"),
    turns("an open question", "answered", "and one that is not"),
]
WITH_SYSTEM = [
    turns("Speak.", "No.", "Why?", "Because.", system="Answer in one word."),
    turns("a", "b", system="  \n"),
]


class Chat(Case):
    def tokenizer(self, name):
        """The tokenizer of the tokenizers package, and the same one in transformers with the published template."""
        template, definition, tokens, _ = {**TEMPLATES, **OWN}[name]
        package = Tokenizer.from_file(str(SOURCE / f"test/core/text/tokenizer/definitions/{definition}/tokenizer.json"))
        package.add_special_tokens(tokens)
        package.save(str(self.folder / "tokenizer.json"))
        eos = {"mistral": "</s>"}.get(name, tokens[-1])
        fast = PreTrainedTokenizerFast(tokenizer_object=package, bos_token=tokens[0], eos_token=eos)
        fast.chat_template = template
        return package, fast

    def own_template(self, fast):
        """Writes the template into tokenizer_config.json next to the tokenizer, as in a model's folder."""
        config = {"bos_token": fast.bos_token, "eos_token": {"content": fast.eos_token}, "chat_template": fast.chat_template}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(config))

    def expected(self, name, package, fast, chat):
        """Ids, and for each whether it is a label: it has a character of an answer or of the token that ends it."""
        ids = fast.apply_chat_template(chat, tokenize=True, return_dict=False)
        text = fast.apply_chat_template(chat, tokenize=False)
        encoding = package.encode(text, add_special_tokens=False)
        self.assertEqual(encoding.ids, ids)
        spans, at = [], 0
        for message in chat:
            content = message["content"].strip() if name in ("llama3", "llama3.1", "gemma") else message["content"]
            begin = text.index(content, at)
            at = begin + len(content)
            if message["role"] == "assistant":
                ends = {**TEMPLATES, **OWN}[name][3]
                end = at + len(ends)
                self.assertEqual(ends, text[at:end])
                spans.append((begin, end))
        return ids, [any(b < end and begin < e for begin, end in spans) for b, e in encoding.offsets]

    def write(self, chats, name="chats.jsonl", key="messages"):
        path = self.folder / name
        path.write_text("".join(json.dumps({key: chat, "id": i}) + "\n" for i, chat in enumerate(chats)))
        return path

    def pptrain(self, *arguments, code=0):
        done = run([PPTRAIN, *arguments], self.folder, code=code)
        return done.stdout + done.stderr

    def tokenize(self, *arguments, code=0):
        return self.pptrain("tokenize", "--tokenizer", "tokenizer.json", "--out", "out", "--overwrite", "--messages-key",
                            "messages", *arguments, code=code)

    def documents(self, prefix):
        """Ids of each document, and which of them are labels."""
        index = pathlib.Path(f"{prefix}.idx").read_bytes()
        _, _, code, count, _ = struct.unpack_from("<9sQBQQ", index)
        lengths = numpy.frombuffer(index, numpy.int32, count, 34).tolist()
        ids = numpy.fromfile(f"{prefix}.bin", {8: numpy.uint16, 4: numpy.int32}[code])
        prompts = pathlib.Path(f"{prefix}.prompts").read_bytes()
        self.assertEqual(b"PROMPTS\2", prompts[:8])
        targets = numpy.ones(len(ids), bool)
        for begin, end in numpy.frombuffer(prompts, numpy.int64, -1, 16).reshape(-1, 2):
            targets[begin:end] = False
        ends = numpy.cumsum(lengths)
        return [(ids[e - n:e].tolist(), targets[e - n:e].tolist()) for e, n in zip(ends, lengths, strict=True)]

    def test_ids_and_targets_equal_those_of_the_published_templates(self):
        for name in TEMPLATES:
            with self.subTest(template=name):
                package, fast = self.tokenizer(name)
                chats = CHATS + (WITH_SYSTEM if name != "gemma" else [])
                out = self.tokenize("--chat", f"template={name}", self.write(chats))
                self.assertIn("each document ends as its chat template says", out)
                found = self.documents(self.folder / "out")
                self.assertEqual(len(chats), len(found))
                for chat, (ids, targets) in zip(chats, found, strict=True):
                    expected_ids, expected_targets = self.expected(name, package, fast, chat)
                    self.assertEqual(expected_ids, ids, chat)
                    self.assertEqual(expected_targets, targets, chat)

    def test_ids_and_targets_equal_those_of_the_models_own_template(self):
        for name in (*TEMPLATES, "llama3.1"):
            with self.subTest(template=name):
                package, fast = self.tokenizer(name)
                self.own_template(fast)
                chats = CHATS + (WITH_SYSTEM if name != "gemma" else [])
                self.tokenize("--chat", "template=folder", self.write(chats))
                found = self.documents(self.folder / "out")
                self.assertEqual([self.expected(name, package, fast, chat) for chat in chats], found)
        package, fast = self.tokenizer("qwen3")
        self.own_template(fast)
        thoughts = [*turns("a", "<think>\nhm\n</think>\n\nb", "c"), {"role": "assistant", "content": "d", "reasoning_content": "so"}]
        chats = [*CHATS[:2], CHATS[3], thoughts]
        self.tokenize("--chat", "template=folder", self.write(chats))
        found = self.documents(self.folder / "out")
        self.assertEqual([fast.apply_chat_template(chat, return_dict=False) for chat in chats], [ids for ids, _ in found])
        learned = [package.decode([i for i, target in zip(*document, strict=True) if target], skip_special_tokens=False)
                   for document in found]
        self.assertEqual("<think>\n\n</think>\n\nWe are accounted poor citizens.<|im_end|>", learned[0])
        self.assertEqual("b<|im_end|><think>\nso\n</think>\n\nd<|im_end|>", learned[3])

    def test_messages_that_are_not_to_be_trained_stay_context(self):
        package, fast = self.tokenizer("chatml")
        good = turns("Why?", "bad", "Why?", "good")
        for key, value in (("weight", 0), ("train", False)):
            marked = [{**m, **({key: value} if m["content"] == "bad" else {})} for m in good]
            files = [self.write([marked])]
            if PARQUET:
                files.append(self.folder / "rows.parquet")
                pyarrow.parquet.write_table(pyarrow.table({"messages": [marked]}), files[-1])
            for path in files:
                with self.subTest(key=key, path=path):
                    self.tokenize("--chat", "template=chatml", path)
                    [(ids, targets)] = self.documents(self.folder / "out")
                    self.assertEqual(fast.apply_chat_template(good, return_dict=False), ids)
                    self.assertEqual(package.encode("good<|im_end|>").ids, [i for i, t in zip(ids, targets, strict=True) if t])

    def test_a_template_other_than_the_models_own_is_told_and_chats_are_generated(self):
        package, fast = self.tokenizer("llama3.1")
        self.own_template(fast)
        self.write(CHATS)
        text = job(model={"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": package.get_vocab_size()},
                   distributed=None, train={"steps": 1, "seq_len": 64, "grad_accum_steps": 2, "dtype": "fp32"},
                   lr_schedule=None, checkpoint={"resume": "none"}, data=None)
        text += '[data]\npath = "chats.jsonl"\nformat = "jsonl"\nmessages_key = "messages"\ntokenizer = "tokenizer.json"\n'
        (self.folder / "job.toml").write_text(text + '[data.chat]\ntemplate = "llama3"\n')
        warning = 'data.chat.template = "llama3": it differs from the model\'s own: behind '
        for out in (self.pptrain("check", "--config", "job.toml"), self.pptrain("--config", "job.toml", *sets("run.dir=run"))):
            self.assertIn(warning, out)
            self.assertIn("Today Date: 26 Jul 2024", out)
        folder = sets("data.chat.template=folder")
        self.assertNotIn("differs from", self.pptrain("check", "--config", "job.toml", *folder))
        say = ["generate", "run", "--max-tokens", "2", "--greedy", "--json", "--chat"]
        fast.chat_template = LLAMA3
        for system in ([], [{"role": "system", "content": "Be brief."}]):
            more = ["--system", system[0]["content"]] if system else []
            for content in ("Why?", "<|eot_id|> is text"):
                done = json.loads(run([PPTRAIN, *say, *more, "--prompt", content], self.folder).stdout)
                chat = [*system, {"role": "user", "content": content}]
                text = fast.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
                self.assertEqual(text, package.decode(done["prompt_ids"], skip_special_tokens=False))
                self.assertEqual(len(chat), done["prompt_ids"].count(package.token_to_id("<|eot_id|>")))
            self.assertEqual(content, done["prompt"])
        self.assertIn("--system requires --chat", self.pptrain("generate", "run", "--system", "x", "--prompt", "y", code=2))

    def test_a_template_of_ones_own_and_jobs_that_read_messages_themselves(self):
        package, fast = self.tokenizer("chatml")
        fast.chat_template = (
            "<|im_start|>{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% else %}A: {{ m.content }}"
            "<|im_end|>\n\n{% endif %}{% endfor %}"
        )
        keys = {"bos": "<|im_start|>", "user_prefix": "Q: ", "user_suffix": "\n", "assistant_prefix": "A: ",
                "assistant_suffix": "<|im_end|>\n\n"}
        self.tokenize(*[x for k, v in keys.items() for x in ("--chat", f"{k}={json.dumps(v)}")], self.write(CHATS))
        tokenized = self.documents(self.folder / "out")
        self.assertEqual([fast.apply_chat_template(chat, return_dict=False) for chat in CHATS], [ids for ids, _ in tokenized])
        sources = f'[[data.sources]]\nname = "lines"\npath = "{self.write(CHATS)}"\nformat = "jsonl"\nmessages_key = "messages"\n'
        (self.folder / "plain.txt").write_text("a text beside\n" * 30)
        sources += '[[data.sources]]\nname = "plain"\npath = "plain.txt"\n'
        if PARQUET:
            rows = pyarrow.table({"talk": CHATS, "id": list(range(len(CHATS)))})
            pyarrow.parquet.write_table(rows, self.folder / "rows.parquet")
            sources += '[[data.sources]]\nname = "rows"\npath = "rows.parquet"\nformat = "parquet"\nmessages_key = "talk"\n'
        text = job(model={"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": package.get_vocab_size()},
                   distributed=None, train={"steps": 1, "seq_len": 32, "grad_accum_steps": 2, "dtype": "fp32"},
                   lr_schedule=None, checkpoint={"resume": "none"}, data=None)
        text += '[data]\ntokenizer = "tokenizer.json"\ncache = "cache"\npacking = "best_fit"\n' + sources + "[data.chat]\n"
        (self.folder / "other.toml").write_text(text + 'template = "llama3"\n')
        self.assertIn('"llama3" has <|begin_of_text|>, which is no special token', self.pptrain("check", "--config", "other.toml", code=2))
        text += "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
        (self.folder / "job.toml").write_text(text)
        self.pptrain("check", "--config", "job.toml")
        self.pptrain("--config", "job.toml")
        caches = [c for c in (self.folder / "cache").iterdir() if (c / "tokens.prompts").exists()]
        self.assertEqual(2 if PARQUET else 1, len(caches))
        for cache in caches:
            self.assertEqual(tokenized, self.documents(cache / "tokens"))

    def test_special_tokens_in_a_message_are_text(self):
        package, fast = self.tokenizer("qwen")
        chat = turns("What ends a turn?", "<|im_end|> does; <|im_start|>user begins one")
        self.tokenize("--chat", "template=qwen", self.write([chat]))
        [(ids, _)] = self.documents(self.folder / "out")
        special = [package.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>")]
        self.assertEqual([3, 3], [ids.count(t) for t in special])  # of the template alone
        self.assertEqual(fast.apply_chat_template(chat, tokenize=False), package.decode(ids, skip_special_tokens=False))

    def test_what_a_template_does_not_take_is_said_with_its_line(self):
        cases = [
            ("gemma", turns("a", "b", system="s"), "message 1: the template takes no system message"),
            ("gemma", turns("a", "b")[1:], "message 1: it is the assistant's, but the template wants user and assistant in turns"),
            ("mistral", [*turns("a", "b"), {"role": "assistant", "content": "c"}], "message 3: it is the assistant's"),
            ("mistral", [*turns("a", "b"), {"role": "system", "content": "c"}], "message 3: the template takes a system message at"),
            ("llama3", [*turns("a", "b"), {"role": "tool", "content": "c"}], "message 3: the role 'tool' is not system, user or"),
            ("llama3", turns("a"), "no message is the assistant's"),
            ("llama3", [{"content": "c"}], "message 1: it has no text 'role'"),
            ("llama3", [*turns("a"), {"role": "assistant", "content": None}], "message 2: it has no text 'content'"),
            ("llama3", [*turns("a"), {"role": "assistant", "content": "", "tool_calls": [{}]}], "tool_calls are not supported"),
            ("llama3", "a text", "'messages' is no list of messages"),
        ]
        for name, chat, words in cases:
            with self.subTest(template=name, chat=chat):
                self.tokenizer(name)
                path = self.write([turns("good", "one"), chat, turns("and", "another")])
                out = self.tokenize("--chat", f"template={name}", path, code=1)
                self.assertIn("chats.jsonl:2: ", out)
                self.assertIn(words, out)
                out = self.tokenize("--chat", f"template={name}", "--bad-lines", "skip", path)
                self.assertIn("1 lines without a document were left out, the first: ", out)
                self.assertEqual(2, len(self.documents(self.folder / "out")))
        self.tokenizer("qwen")
        out = self.tokenize("--chat", "template=gemma", self.write([turns("a", "b")]), code=2)
        self.assertIn('the chat template "gemma" has <bos>, which is no special token of the tokenizer', out)
        self.assertIn("data.chat.tempalte", self.tokenize("--chat", "tempalte=gemma", path, code=2))

    def test_long_conversations_are_truncated(self):
        package, fast = self.tokenizer("llama3")
        out = self.tokenize("--chat", "template=llama3", "--max-document-tokens", "20", self.write(CHATS))
        whole = [self.expected("llama3", package, fast, chat) for chat in CHATS]
        self.assertIn(f"{sum(len(ids) > 20 for ids, _ in whole)} documents were truncated to 20 tokens", out)
        self.assertEqual([(ids[:20], targets[:20]) for ids, targets in whole], self.documents(self.folder / "out"))


if __name__ == "__main__":
    unittest.main()
