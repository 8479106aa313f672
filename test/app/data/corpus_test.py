"""Jobs on texts and on mixtures: their tokens, against the Python packages, and runs on them.

Usage: corpus_test.py PPTRAIN MPIEXEC [unittest arguments]
"""

import gzip
import json
import math
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import unittest

import numpy
from tokenizers import Tokenizer

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import SOURCE, Case, job, mpi_command, records, run, sets, start, wait_for  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
PARQUET = pyarrow is not None and (PPTRAIN.parent / "libpptrain_parquet.so").exists()
SHAKESPEARE = SOURCE / "configs/data/tinyshakespeare.txt"
DEFINITION = SOURCE / "test/core/text/tokenizer/definitions/llama3/tokenizer.json"
PACKAGE = Tokenizer.from_file(str(DEFINITION))
END = PACKAGE.token_to_id("<|end_of_text|>")
TEXTS = SHAKESPEARE.read_text().split("\n\n")[:400]

JOB = job(model={"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": PACKAGE.get_vocab_size()}, distributed=None,
          train={"steps": 2, "seq_len": 32, "grad_accum_steps": 2, "dtype": "fp32"}, lr_schedule=None,
          checkpoint={"resume": "none"}, data=None) + '[data]\ntokenizer = "tokenizer.json"\n'


def zstd(text):
    return pyarrow.compress(text, codec="zstd", asbytes=True)


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def end(ids):
    return ids if ids[-1:] == [END] else [*ids, END]


def encoded(text):
    return end(PACKAGE.encode(text).ids)


def answered(prompt, completion):
    """Ids, and the number of prompt tokens."""
    ids = PACKAGE.encode(prompt).ids
    return end([*ids, *PACKAGE.encode(completion, add_special_tokens=False).ids]), len(ids)


def read_documents(folder):
    """The documents of a cache, read as Megatron-LM's IndexedDataset reads them, and each one's number of ignored labels."""
    index = (folder / "tokens.idx").read_bytes()
    _, _, code, sequences, _ = struct.unpack_from("<9sQBQQ", index)
    lengths = numpy.frombuffer(index, numpy.int32, sequences, 34).tolist()
    begins = numpy.frombuffer(index, numpy.int64, sequences, 34 + 4 * sequences).tolist()
    ids = (folder / "tokens.bin").read_bytes()
    kind = {8: numpy.uint16, 4: numpy.int32}[code]
    documents = [numpy.frombuffer(ids, kind, n, at).tolist() for n, at in zip(lengths, begins, strict=True)]
    prompts = folder / "tokens.prompts"
    if not prompts.exists():
        return documents, None
    starts = numpy.cumsum([0] + lengths)
    ignored = [0] * len(lengths)
    for begin, end in numpy.frombuffer(prompts.read_bytes(), numpy.int64, -1, 16).reshape(-1, 2).tolist():
        ignored[numpy.searchsorted(starts, begin, "right") - 1] += end - begin
    return documents, ignored


class Corpus(Case):
    def setUp(self):
        super().setUp()
        shutil.copy(DEFINITION, self.folder)
        (self.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_of_text|>"}))

    def run_pptrain(self, *arguments, code=0, launcher=()):
        done = run([*launcher, PPTRAIN, *arguments], self.folder, code=code)
        return done.stdout + done.stderr

    def job(self, text, name="job.toml"):
        (self.folder / name).write_text(JOB + text)
        return self.folder / name

    def train(self, job, run_dir, *settings, code=0, launcher=()):
        return self.run_pptrain("--config", job, *sets(f"run.dir={run_dir}", *settings), code=code, launcher=launcher)

    def metrics(self, run):
        """Per step, the metrics that must not depend on layout, stops and time."""
        keys = ("loss", "grad_norm", "tokens", "computed_tokens", "epochs", "eval_loss", "eval_sources")
        steps = {}
        for record in records(self.folder / run):
            if "start" not in record:
                steps.setdefault(record["step"], {}).update({k: record[k] for k in keys if k in record})
        return steps

    def caches(self, folder="cache"):
        """The caches by the names of their source files."""
        found = {}
        for cache in (self.folder / folder).iterdir():
            about = json.loads((cache / "about.json").read_text())
            found[tuple(pathlib.Path(name).name for name in about["files"])] = cache
        return found

    def write_formats(self):
        """Writes a source of each format. Returns them as TOML, and the expected documents by file names."""
        data = self.folder / "data"
        data.mkdir()
        records = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
        pairs = [(TEXTS[i], TEXTS[i + 1]) for i in range(0, 60, 2)]
        (data / "a.jsonl").write_bytes(lines(records[:100]))
        (data / "b.jsonl.gz").write_bytes(gzip.compress(lines(records[100:150])) + gzip.compress(lines(records[150:200])))
        (data / "ask.jsonl").write_bytes(lines({"ask": p, "answer": c} for p, c in pairs))
        (data / "play.txt").write_text("\n\n".join(TEXTS[:50]))
        ids = numpy.array([i for text in TEXTS[:50] for i in encoded(text)])
        numpy.save(data / "ids.npy", ids)
        plain = {(name,): [encoded(t) for t in texts] for name, texts in
                 {"a.jsonl": TEXTS[:100], "b.jsonl.gz": TEXTS[100:200], "play.txt": TEXTS[:50]}.items()}
        sources = {
            "plain": 'path = "data/a.jsonl"\nformat = "jsonl"\nweight = 2\nval_fraction = 0.2',
            "gz": 'path = "data/*.gz"\nformat = "jsonl"',
            "chat": 'path = "data/ask.jsonl"\nformat = "jsonl"\nprompt_key = "ask"\ncompletion_key = "answer"\n'
                    'val_path = "data/ask.jsonl"',
            "play": 'path = ["data/play.txt"]\ndocument_separator = "\\n\\n"',
            "ids": f'path = "data/ids.npy"\nformat = "npy"',
        }
        if PARQUET:
            (data / "c.jsonl.zst").write_bytes(zstd(lines(records[200:250])) + zstd(lines(records[250:300])))
            plain[("c.jsonl.zst",)] = [encoded(t) for t in TEXTS[200:300]]
            sources["zst"] = 'path = "data/c.jsonl.zst"\nformat = "jsonl"'
            (data / "rows").mkdir()
            table = pyarrow.table({"n": list(range(400)), "body": TEXTS, "tags": [["x"]] * 400})
            pyarrow.parquet.write_table(table.slice(0, 300), data / "rows/0.parquet", row_group_size=70, compression="zstd")
            coded = pyarrow.table({"body": pyarrow.array(TEXTS[300:]).dictionary_encode()})
            pyarrow.parquet.write_table(coded, data / "rows/1.parquet")
            plain[("0.parquet", "1.parquet")] = [encoded(t) for t in TEXTS]
            sources["rows"] = 'path = "data/rows"\nformat = "parquet"\ntext_key = "body"'
        toml = "".join(f'[[data.sources]]\nname = "{name}"\n{keys}\n' for name, keys in sources.items())
        return toml, plain, [answered(p, c) for p, c in pairs], list(sources)

    def test_tokens_of_every_format_and_runs_on_their_mixture(self):
        toml, plain, chat, names = self.write_formats()
        options = f'document_end = {END}\ncache = "cache"\npacking = "best_fit"\n'
        job = self.job(options + toml + '[eval]\ninterval = 2\nbatches = 1\n[lr_schedule]\nname = "constant"\n')  # of any train.steps
        self.run_pptrain("check", "--config", job)
        self.assertFalse((self.folder / "cache").exists())  # it only looks

        out = self.train(job, "whole", "train.steps=4")
        self.assertEqual(len(plain) + 1, out.count("making tokens"))  # ask.jsonl serves training and validation
        caches = self.caches()
        self.assertEqual({*plain, ("ask.jsonl",)}, {*caches})
        for files, documents in plain.items():
            self.assertEqual((documents, None), read_documents(caches[files]), files)
        documents, prompts = read_documents(caches[("ask.jsonl",)])
        self.assertEqual(chat, list(zip(documents, prompts, strict=True)))

        # Cache reused; stopped and resumed; two ranks and one: all with the same bits.
        launcher = mpi_command(MPIEXEC, 2) if MPIEXEC else ()
        out = self.train(job, "parts", "train.steps=2", "distributed.pp=2", launcher=launcher)
        self.assertNotIn("making tokens", out)
        self.train(job, "parts", "train.steps=4", "checkpoint.resume=auto")
        whole, parts = self.metrics("whole"), self.metrics("parts")
        self.assertEqual(whole, parts)
        self.assertEqual(set(names), {*whole[4]["epochs"]})
        self.assertEqual({"plain", "chat"}, {*whole[4]["eval_sources"]})

        # Validation makes only the tokens of its own sources.
        out = self.run_pptrain("eval", "--config", job, "--set", "run.dir=whole", "--set", "data.cache=other", "--json")
        result = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
        self.assertEqual({("a.jsonl",), ("ask.jsonl",)}, {*self.caches("other")})
        self.assertEqual(whole[4]["eval_loss"], result["loss"])
        self.assertEqual([whole[4]["eval_sources"][s["name"]]["loss"] for s in result["sources"]],
                         [s["loss"] for s in result["sources"]])

        # Evaluates all of chat: each token of an answer is predicted once.
        out = self.run_pptrain("eval", "--config", job, "--set", "run.dir=whole", "--batches", "0", "--json")
        result = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
        loss = next(s for s in result["sources"] if s["name"] == "chat")
        answers = [ids[max(prompt, 1):] for ids, prompt in chat]
        self.assertEqual(sum(map(len, answers)), loss["tokens"])
        text = sum(len(PACKAGE.decode(ids).encode()) for ids in answers)  # without the special token at the end
        self.assertAlmostEqual(loss["loss"] * loss["tokens"] / math.log(2) / text, loss["bits_per_byte"], 9)
        self.assertIn("bits_per_byte", result)

        # A source with other data is not accepted as the run's data.
        ask = self.folder / "data/ask.jsonl"
        ask.write_bytes(ask.read_bytes() + lines([{"ask": "more", "answer": "of it"}]))
        self.assertIn("held other data", self.train(job, "parts", "train.steps=6", "checkpoint.resume=auto", code=2))
        self.assertIn("data.sources[0].weight was 2.0, is 3.0",
                      self.train(self.job((options + toml).replace("weight = 2", "weight = 3")), "parts", "train.steps=6",
                                 "checkpoint.resume=auto", code=2))

    def long_file(self, megabytes, last=""):
        text = SHAKESPEARE.read_text()
        record = lines([{"text": text[i:i + 4000]} for i in range(0, len(text) - 4000, 4000)])
        (self.folder / "long.jsonl").write_bytes(record * megabytes + last.encode())
        return self.job('path = "long.jsonl"\nformat = "jsonl"\n')

    def parts(self):
        root = self.folder / "pptrain_cache"
        return [p for p in root.iterdir() if ".part-" in p.name] if root.exists() else []

    def interrupt(self, job, number):
        """Sends the signal while a new cache is made."""
        old = self.parts()
        process = start([PPTRAIN, "--config", job], self.folder, stderr=subprocess.STDOUT)

        def begun():
            self.assertIsNone(process.poll(), "it ended before it was interrupted")
            return any(part not in old for part in self.parts())
        wait_for(begun, 120, "a new cache", pause=0.002)
        process.send_signal(number)
        out = process.communicate(timeout=120)[0]
        return process.returncode, out

    def test_a_start_that_is_killed_leaves_no_half_cache(self):
        job, root = self.long_file(8), self.folder / "pptrain_cache"
        self.assertEqual(-signal.SIGKILL, self.interrupt(job, signal.SIGKILL)[0])
        self.assertEqual(self.parts(), [*root.iterdir()])
        # The next run removes the leftovers, is stopped too, and leaves nothing.
        code, out = self.interrupt(job, signal.SIGTERM)
        self.assertEqual(3, code, out)
        self.assertIn("stopped by a signal while texts were made tokens", out)
        self.assertEqual([], [*root.iterdir()])
        self.assertIn("done: 2 steps", self.train(job, "run"))
        self.assertEqual(1, len([*root.iterdir()]))
        self.assertEqual([], self.parts())

    def test_what_was_left_out_and_what_ends_no_document_is_said_once(self):
        good = [{"text": text} for text in TEXTS[:100]]
        (self.folder / "odd.jsonl").write_bytes(lines(good) + b'{"text": 5}\n' + lines(good[:50]) + b"no\n")
        job = self.job('path = "odd.jsonl"\nformat = "jsonl"\n')
        self.assertIn("odd.jsonl:101: 'text' is no text", self.train(job, "run", code=2))
        said = 'data.path: 2 lines without a document were left out (data.bad_lines = "skip"); the first: '
        out = self.train(job, "run", "data.bad_lines=skip")
        self.assertEqual(1, out.count(said))
        self.assertIn("odd.jsonl:101: 'text' is no text", out)
        self.assertNotIn("no token ends a document", out)
        self.assertEqual([encoded(r["text"]) for r in good + good[:50]],
                         read_documents(next(iter(self.caches("pptrain_cache").values())))[0])
        (self.folder / "odd.jsonl").write_bytes(lines(good))
        (self.folder / "tokenizer_config.json").unlink()
        self.assertEqual(1, self.train(job, "other").count("data.path: no token ends a document"))
        self.assertIn("data.bad_lines: acts only with", self.train(
            self.job(f'path = "{SHAKESPEARE}"\nbad_lines = "skip"\n'), "run", code=2))

    def test_prompts_are_read_as_texts_were_trained_and_an_edit_beside_a_tokenizer_changes_no_data(self):
        job = self.job(f'path = "{SHAKESPEARE}"\ncache = "cache"\n')
        self.train(job, "run")
        for special in (True, False):
            out = self.run_pptrain("generate", "--config", job, "--set", "run.dir=run", "--set", f"data.add_special={special}".lower(),
                                   "--prompt", "Speak", "--max-tokens", "1", "--json")
            ids = json.loads(next(line for line in out.splitlines() if line.startswith("{")))["prompt_ids"]
            self.assertEqual(PACKAGE.encode("Speak", add_special_tokens=special).ids, ids)
        self.assertNotEqual(*(PACKAGE.encode("Speak", add_special_tokens=s).ids for s in (True, False)))
        config = {"eos_token": "<|end_of_text|>", "chat_template": "{{ messages }}"}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(config))
        (self.folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
        out = self.train(job, "run", "train.steps=3", "checkpoint.resume=auto")
        self.assertIn("done: 3 steps", out)
        self.assertNotIn("making tokens", out)

    def test_lists_of_tokens_need_no_tokenizer(self):
        documents = [PACKAGE.encode(text).ids for text in TEXTS[:60] if text]
        rows = [{"ids": ids, "labels": [-100] * (len(ids) // 2) + ids[len(ids) // 2:]} for ids in documents]
        (self.folder / "ids.jsonl").write_bytes(lines(rows))
        keys = 'path = "ids.jsonl"\nformat = "jsonl"\ntokens_key = "ids"\nlabels_key = "labels"\ncache = "cache"\n'
        job = self.job(keys)
        job.write_text(job.read_text().replace('tokenizer = "tokenizer.json"\n', ""))
        self.train(job, "run")
        found, ignored = read_documents(next(iter(self.caches().values())))
        self.assertEqual((documents, [len(ids) // 2 for ids in documents]), (found, ignored))
        if PARQUET:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder / "ids.parquet")
            self.train(job, "rows", "data.path=ids.parquet", "data.format=parquet", "data.cache=rows_cache")
            self.assertEqual((found, ignored), read_documents(next(iter(self.caches("rows_cache").values()))))
            self.assertEqual(self.metrics("run"), self.metrics("rows"))
        for row, words in (({"ids": [3, 10**6], "labels": [3, -100]}, "element 1 is 1000000, but model.vocab_size is"),
                           ({"ids": [3, 4], "labels": [3]}, "'labels' has 1 elements, but 'ids' has 2"),
                           ({"ids": [3, 4], "labels": [4, 4]}, "element 0 is 4, neither -100 nor the token, 3"),
                           ({"ids": [3, 1.5], "labels": [3, 3]}, "'ids': element 1 is no integer")):
            (self.folder / "bad.jsonl").write_bytes(lines([rows[0], row]))
            out = self.train(job, "other", "data.path=bad.jsonl", code=2)
            self.assertIn("bad.jsonl:2: ", out)
            self.assertIn(words, out)

    def test_lists_of_tokens_in_parquet_are_of_any_integer_type_and_of_fixed_size(self):
        if not PARQUET:
            self.skipTest("no Parquet")
        documents = [[(7 * i + j) % 120 for j in range(9)] for i in range(20)]
        job = self.job('path = "ids.parquet"\nformat = "parquet"\ntokens_key = "ids"\nlabels_key = "labels"\n')
        job.write_text(job.read_text().replace('tokenizer = "tokenizer.json"\n', ""))
        for kind in (pyarrow.int8(), pyarrow.uint8(), pyarrow.uint16(), pyarrow.int64()):
            for size in (-1, 9):
                with self.subTest(kind=kind, size=size):
                    lists = pyarrow.array(documents, pyarrow.list_(kind, size))
                    # A slice of a table: its lists do not begin with the first value.
                    table = pyarrow.table({"ids": lists, "labels": lists}).slice(3)
                    pyarrow.parquet.write_table(table, self.folder / "ids.parquet")
                    self.train(job, f"run_{kind}_{size}", "train.steps=1", "train.seq_len=8", f"data.cache={kind}_{size}")
                    self.assertEqual(documents[3:], read_documents(next(iter(self.caches(f"{kind}_{size}").values())))[0])

    def prompts(self, name, long, short):
        """Writes `long` lines whose prompts alone have more than 64 tokens, then `short` lines whose answers fit."""
        rows = [{"p": "word " * n + str(i), "c": "an answer"} for n, count in ((200, long), (5, short)) for i in range(count)]
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(lines(rows))

    def test_documents_without_a_token_to_learn_are_told_and_refused(self):
        keys = 'format = "jsonl"\nprompt_key = "p"\ncompletion_key = "c"\n'
        limit = 'max_document_tokens = 64\ncache = "cache"\n'
        self.prompts("long.jsonl", 60, 0)
        said = "all 60 documents have no token to learn: data.max_document_tokens = 64 truncates them before their answers"
        job = self.job(f'path = "long.jsonl"\n{keys}{limit}')
        for out in (self.train(job, "run", code=2), self.run_pptrain("check", "--config", job, code=2)):
            self.assertIn(said, out)
        # Known only when all files are tokenized.
        for i in range(3):
            self.prompts(f"three/{i}.jsonl", 20, 0)
        self.assertIn(f"data.path: {said}", self.train(job, "run", "data.path=three", code=2))
        # In a mixture each source is counted by itself.
        self.prompts("few.jsonl", 54, 6)
        self.prompts("good.jsonl", 0, 60)
        sources = "".join(f'[[data.sources]]\nname = "{n}"\npath = "{n}.jsonl"\n{keys}' for n in ("few", "good"))
        job = self.job(limit + sources, "mixture.toml")
        for out in (self.train(job, "run"), self.run_pptrain("check", "--config", job)):
            self.assertIn("data.sources[0].path: 54 of 60 documents have no token to learn: data.max_document_tokens = 64", out)
            self.assertEqual(1, out.count("have no token to learn"))
        self.assertIn("data.sources[0].path: all 60 documents have no token", self.train(
            self.job(limit + sources.replace("few.jsonl", "long.jsonl"), "none.toml"), "run", code=2))

    def test_a_run_that_learned_nothing_fails(self):
        self.prompts("few.jsonl", 30, 1)
        keys = 'path = "few.jsonl"\nformat = "jsonl"\nprompt_key = "p"\ncompletion_key = "c"\nmax_document_tokens = 64\n'
        job = self.job(keys + 'packing = "none"\nshuffle = false\n')
        out = self.train(job, "run", "train.seq_len=64", code=1)
        self.assertIn("nothing was learned: all 2 steps were skipped", out)
        self.assertNotIn("done:", out)

    def test_random_tokens_need_no_files_and_are_the_same_on_every_layout(self):
        job = self.job('format = "random"\n[lr_schedule]\nname = "constant"\n')  # of any train.steps
        job.write_text(job.read_text().replace('tokenizer = "tokenizer.json"\n', ""))
        self.run_pptrain("plan", "--config", job)
        self.run_pptrain("check", "--config", job)
        losses = "metrics.microbatch_losses=true"
        self.train(job, "whole", "train.steps=4", losses)
        launcher = mpi_command(MPIEXEC, 2) if MPIEXEC else ()
        self.train(job, "parts", "train.steps=2", "distributed.pp=2", losses, launcher=launcher)
        self.train(job, "parts", "train.steps=4", "checkpoint.resume=auto", losses)
        for key in ("loss", "tokens"):
            self.assertEqual([s[key] for s in self.metrics("whole").values()], [s[key] for s in self.metrics("parts").values()])
        whole, parts = ([r["microbatch_losses"] for r in records(self.folder / run) if "loss" in r] for run in ("whole", "parts"))
        self.assertEqual(whole, parts)
        for of_microbatches, step in zip(whole, self.metrics("whole").values(), strict=True):
            self.assertEqual(2, len(set(of_microbatches)))
            self.assertAlmostEqual(step["loss"], sum(of_microbatches) / 2, 6)  # both have the same number of valid tokens
        self.train(job, "shared", "train.steps=4", "distributed.cp=2", "distributed.tp=2", losses)
        for one, other in zip(whole, (r["microbatch_losses"] for r in records(self.folder / "shared") if "loss" in r), strict=True):
            self.assertTrue(all(abs(a - b) < 1e-4 for a, b in zip(one, other, strict=True)))
        for one, other in zip(self.metrics("whole").values(), self.metrics("shared").values(), strict=True):
            self.assertAlmostEqual(one["loss"], other["loss"], 4)
        self.assertLess(abs(self.metrics("whole")[1]["loss"] - math.log(PACKAGE.get_vocab_size())), 0.5)
        self.train(job, "seed", "run.seed=5", "model.init=random")
        self.assertNotEqual(self.metrics("whole")[1]["loss"], self.metrics("seed")[1]["loss"])

    def test_an_added_token_without_a_row_is_refused_only_where_a_text_has_it(self):
        """As in the published Gemma 3 1B: its tokenizer has one token (for images) more than the model has rows."""
        definition = json.loads(DEFINITION.read_text())
        size = PACKAGE.get_vocab_size()
        definition["added_tokens"].append({"id": size, "content": "<image>", "single_word": False, "lstrip": False,
                                           "rstrip": False, "normalized": False, "special": True})
        (self.folder / "tokenizer.json").write_text(json.dumps(definition))
        (self.folder / "a.jsonl").write_bytes(lines({"text": text} for text in TEXTS[:50]))
        job = self.job('path = "a.jsonl"\nformat = "jsonl"\n')
        self.run_pptrain("check", "--config", job)
        self.train(job, "run", "eval.generate_interval=2", "eval.generate_tokens=3", "eval.generate_prompt=To")
        (found, _), = map(read_documents, self.caches("pptrain_cache").values())
        self.assertEqual([encoded(text) for text in TEXTS[:50]], found)
        self.run_pptrain("convert", "--from", "run", "--to", "hf", "--tokenizer", "tokenizer.json")
        self.run_pptrain("generate", "run", "--prompt", "To", "--max-tokens", "1")
        said = f"has the token <image>, whose id {size} the model does not know: model.vocab_size = {size}"
        self.assertIn(said, self.run_pptrain("generate", "run", "--prompt", "To <image>", "--max-tokens", "1", code=2))
        (self.folder / "b.jsonl").write_bytes(lines([{"text": "To <image>"}]))
        out = self.train(job, "other", "data.path=b.jsonl", code=2)
        self.assertIn("b.jsonl': a text " + said, out)
        # A token that any text may get is refused at once: the end token, or one of the vocabulary itself.
        for vocabulary in (END, 5):
            out = self.run_pptrain("check", "--config", job, "--set", f"model.vocab_size={vocabulary}", code=2)
            self.assertIn("it is another model's", out)

    def test_texts_that_begin_with_what_the_tokenizer_puts_before_them_are_counted(self):
        begin = "<|begin_of_text|>"
        rows = [{"text": (begin if i % 3 == 0 else "") + text, "answer": "so"} for i, text in enumerate(TEXTS[:30])]
        (self.folder / "a.jsonl").write_bytes(lines(rows))
        job = self.job('path = "a.jsonl"\nformat = "jsonl"\ncache = "cache"\n')
        said = "10 of 30 documents begin twice"
        self.assertEqual(1, self.train(job, "run").count(said))
        (found, _), = map(read_documents, self.caches().values())
        self.assertEqual([encoded(row["text"]) for row in rows], found)  # the same ids as the package makes
        out = self.train(job, "prompts", 'data.prompt_key="text"', 'data.completion_key="answer"')
        self.assertIn(said, out)
        self.assertNotIn("begin twice", self.train(job, "plain", "data.add_special=false"))
        tokenize = ["tokenize", "--tokenizer", "tokenizer.json", "--key", "text", "--out", "out", "a.jsonl"]
        self.assertIn("10 documents begin twice", self.run_pptrain(*tokenize))
        self.assertNotIn("begin twice", self.run_pptrain(*tokenize, "--no-special", "--overwrite"))

    def test_a_start_says_that_what_is_validated_on_is_trained_on(self):
        texts = lines({"text": text} for text in TEXTS[:200])
        (self.folder / "data").mkdir()
        (self.folder / "data/a.jsonl").write_bytes(texts)
        (self.folder / "data/val.jsonl").write_bytes(texts[-3000:][texts[-3000:].index(b"\n") + 1:])
        job = self.job('path = "data"\nval_path = "data/val.jsonl"\nformat = "jsonl"\n')
        said = "which data.path has too: what is validated on is trained on"
        self.assertIn(said, self.run_pptrain("check", "--config", job))
        self.assertEqual(1, self.train(job, "run", "distributed.pp=2").count(said))

    def test_zstd_with_a_long_window(self):
        """A frame as `zstd --long=31` writes it for a stream: the format's header, then its blocks as they are."""
        texts = lines({"text": text} for text in TEXTS[:100])
        (self.folder / "a.jsonl").write_bytes(texts)
        window = 31
        blocks = [texts[i:i + 100_000] for i in range(0, len(texts), 100_000)]
        frame = struct.pack("<IBB", 0xFD2FB528, 0, (window - 10) << 3)
        for i, block in enumerate(blocks):
            frame += struct.pack("<I", len(block) << 3 | (i + 1 == len(blocks)))[:3] + block
        (self.folder / "b.jsonl.zst").write_bytes(frame)
        for name in ("a.jsonl", "b.jsonl.zst"):
            self.run_pptrain("tokenize", "--tokenizer", "tokenizer.json", "--key", "text", "--out", name, name)
        self.assertEqual(*((self.folder / f"{name}.bin").read_bytes() for name in ("a.jsonl", "b.jsonl.zst")))

    def test_documents_are_truncated_and_the_log_says_how_many(self):
        (self.folder / "a.jsonl").write_bytes(lines({"text": text} for text in TEXTS[:100]))
        job = self.job('path = "a.jsonl"\nformat = "jsonl"\nmax_document_tokens = 20\ncache = "cache"\n')
        long_ones = sum(len(encoded(text)) > 20 for text in TEXTS[:100])
        self.assertIn(f"data.path: {long_ones} of 100 documents were truncated to data.max_document_tokens = 20 tokens",
                      self.train(job, "run"))
        self.assertEqual([encoded(t)[:20] for t in TEXTS[:100]], read_documents(next(iter(self.caches().values())))[0])
        self.assertIn("data.max_document_tokens: acts only with tokenized documents", self.train(
            self.job('path = "a.bin"\nformat = "bin"\nmax_document_tokens = 20\n'), "run", code=2))

    def test_what_is_wrong_is_said_once_on_all_ranks(self):
        job = self.long_file(2, last='{"text": 5}\n')
        number = len((self.folder / "long.jsonl").read_text().splitlines())
        launcher = mpi_command(MPIEXEC, 2) if MPIEXEC else ()
        out = self.train(job, "run", "distributed.pp=2", launcher=launcher, code=1)
        self.assertIn(f"long.jsonl:{number}: 'text' is no text", out)
        self.assertEqual([], [*(self.folder / "pptrain_cache").iterdir()])
        # Errors in the first documents are found before anything starts.
        self.assertIn("data.path: ", self.train(job, "run", "data.text_key=body", code=2))
        self.assertIn("data.tokenizer", self.train(job, "run", "data.tokenizer=", code=2))
        job = self.job('path = "long.jsonl"\nformat = "parquet"\n')
        self.assertIn("long.jsonl", self.train(job, "run", code=2))
        if PARQUET:
            pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None], "n": [1, 2]}), self.folder / "null.parquet")
            for key, words in (("text", "row 1 has no text"), ("n", "is no column of texts"), ("body", "its columns are: text, n")):
                self.assertIn(words, self.train(job, "run", "data.path=null.parquet", f"data.text_key={key}", code=2))


if __name__ == "__main__":
    unittest.main()
