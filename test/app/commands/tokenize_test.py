"""`pptrain tokenize` as its users meet it, up to a job that trains on its output.

Usage: tokenize_test.py PPTRAIN [unittest arguments]
"""

import gzip
import json
import pathlib
import shutil
import struct
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
from pptrain import SOURCE, TEXT, Case, run  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
PARQUET = pyarrow is not None and (PPTRAIN.parent / "libpptrain_parquet.so").exists()
DEFINITION = SOURCE / "test/core/text/tokenizer/definitions/llama3/tokenizer.json"


class Tokenize(Case):
    def setUp(self):
        super().setUp()
        shutil.copy(DEFINITION, self.folder)
        self.package = Tokenizer.from_file(str(DEFINITION))

    def pptrain(self, *arguments, code=0):
        done = run([PPTRAIN, *arguments], self.folder, code=code)
        return done.stdout + done.stderr

    def tokenize(self, *arguments, code=0):
        return self.pptrain("tokenize", "--tokenizer", "tokenizer.json", "--out", "out", *arguments, code=code)

    def documents(self):
        """The documents of the index, read as Megatron-LM's IndexedDataset reads them."""
        index = (self.folder / "out.idx").read_bytes()
        magic, version, code, sequences, ends = struct.unpack_from("<9sQBQQ", index)
        self.assertEqual((b"MMIDIDX\0\0", 1), (magic, version))
        lengths = numpy.frombuffer(index, numpy.int32, sequences, 34)
        begins = numpy.frombuffer(index, numpy.int64, sequences, 34 + 4 * sequences)
        numbers = numpy.frombuffer(index, numpy.int64, ends, 34 + 12 * sequences)
        self.assertEqual(list(range(sequences + 1)), numbers.tolist())
        ids = (self.folder / "out.bin").read_bytes()
        kind = {8: numpy.uint16, 4: numpy.int32}[code]
        return [
            numpy.frombuffer(ids, kind, n, begin).tolist() for n, begin in zip(lengths.tolist(), begins.tolist(), strict=True)
        ]

    def test_a_file_is_a_document(self):
        out = self.tokenize(TEXT)
        self.assertIn("only the index says where documents end", out)
        self.assertIn("out.bin, out.idx: 1 document,", out)
        self.assertEqual([self.package.encode(TEXT.read_text()).ids], self.documents())

    def test_documents_of_a_file_end_with_the_end_of_text(self):
        end = self.package.token_to_id("<|end_of_text|>")
        (self.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_of_text|>"}))
        self.tokenize("--document-separator", r"\n\n", "--no-special", TEXT)
        texts = [text for text in TEXT.read_text().split("\n\n")]
        self.assertEqual([[*self.package.encode(t, add_special_tokens=False).ids, end] for t in texts if t], self.documents())

    def test_jsonl(self):
        texts = ["one", "zwei ü", "drei\n", "𝔳𝔦𝔢𝔯"]
        (self.folder / "a.jsonl").write_text("\n".join(json.dumps({"body": text, "n": 1}) for text in texts))
        self.assertIn("a.jsonl: a JSONL file needs --key", self.tokenize("a.jsonl", code=2))
        self.tokenize("--key", "body", "--eos", "600", "--threads", "3", "a.jsonl", "a.jsonl")
        self.assertEqual([[*self.package.encode(t).ids, 600] for t in texts * 2], self.documents())
        with gzip.open(self.folder / "b.jsonl.gz", "wt") as file:
            file.write((self.folder / "a.jsonl").read_text())
        out = self.tokenize("--key", "body", "--eos", "600", "--overwrite", "b.jsonl.gz")
        tokens = sum(map(len, self.documents()))
        self.assertIn(f"; {len(''.join(texts).encode()) / tokens:.2f} bytes of text a token,", out)

    def test_a_number_is_an_id_and_the_end_is_said(self):
        self.assertIn("0", self.package.get_vocab())
        self.assertNotEqual(0, self.package.token_to_id("0"))
        out = self.tokenize("--eos", "0", TEXT)
        self.assertIn(f"each document ends with the token 0, {json.dumps(self.package.id_to_token(0))}", out)
        self.assertEqual(0, self.documents()[0][-1])
        end = self.package.token_to_id("<|end_of_text|>")
        out = self.tokenize("--eos", "<|end_of_text|>", "--overwrite", TEXT)
        self.assertIn(f'each document ends with the token {end}, "<|end_of_text|>"', out)
        self.assertEqual(end, self.documents()[0][-1])
        self.assertNotIn("ends with", self.tokenize("--eos", "none", "--overwrite", TEXT))

    def test_a_folder_of_parquet(self):
        if not PARQUET:
            self.skipTest("built without Parquet, or no pyarrow")
        (self.folder / "rows").mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), self.folder / "rows/a.parquet")
        self.tokenize("--key", "text", "rows")
        self.assertEqual([self.package.encode(t).ids for t in ("one", "two")], self.documents())

    def test_bad_lines_and_nothing_at_all(self):
        (self.folder / "a.jsonl").write_text('{"text": "one"}\n{"text": "\\ud800"}\n[]\n{"text": "two"}\n')
        refused = self.tokenize("--key", "text", "a.jsonl", code=1)
        self.assertIn("a.jsonl:2: ", refused)
        self.assertIn('bad_lines = "skip"', refused)
        out = self.tokenize("--key", "text", "--bad-lines", "skip", "a.jsonl")
        self.assertIn("2 lines without a document were left out, the first: a.jsonl:2: ", out)
        self.assertEqual([self.package.encode(t).ids for t in ("one", "two")], self.documents())
        (self.folder / "none.jsonl").write_text('{"text": ""}\n[]\n')
        out = self.tokenize("--key", "text", "--bad-lines", "skip", "--overwrite", "none.jsonl", code=2)
        self.assertIn("'none.jsonl' has no document with a text; 1 lines were left out, the first: none.jsonl:2: ", out)
        (self.folder / "empty.txt").write_text("")
        for name in ("out.bin", "out.idx"):
            (self.folder / name).unlink()
        self.assertIn("'empty.txt' has no document with a text", self.tokenize("empty.txt", code=2))
        self.assertEqual([], list(self.folder.glob("out*")))

    def test_what_is_wrong_is_said(self):
        (self.folder / "a.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
        self.assertIn("a.jsonl:2: 'text' is no text", self.tokenize("--key", "text", "a.jsonl", code=1))
        self.assertIn("none.txt", self.tokenize("none.txt", code=1))
        self.assertIn("--eos <nix>: neither a token", self.tokenize("--eos", "<nix>", TEXT, code=2))
        self.assertEqual([], list(self.folder.glob("out*")))
        (self.folder / "out.bin").write_bytes(b"mine")
        self.assertIn("out.bin is there already", self.tokenize(TEXT, code=2))
        self.assertEqual(b"mine", (self.folder / "out.bin").read_bytes())
        self.tokenize("--overwrite", TEXT)
        self.assertEqual(2, len(list(self.folder.glob("out*"))))

    def test_a_job_trains_on_it(self):
        self.tokenize("--document-separator", r"\n\n", "--eos", "<|end_of_text|>", TEXT)
        size = self.package.get_vocab_size()
        end = self.package.token_to_id("<|end_of_text|>")
        (self.folder / "job.toml").write_text(f"""
            [run]
            dir = "run"
            [model]
            hidden_size = 32
            intermediate_size = 48
            num_hidden_layers = 2
            num_attention_heads = 2
            vocab_size = {size}
            [train]
            steps = 2
            seq_len = 32
            [data]
            path = "out.bin"
            format = "bin"
            dtype = "uint16"
            document_end = {end}
            [metrics]
            peak_tflops = 1
            """)
        self.assertIn("done: 2 steps", self.pptrain("--config", "job.toml"))


if __name__ == "__main__":
    unittest.main()
