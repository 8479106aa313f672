"""configs/schema.json, read by the jsonschema package: the jobs it accepts and refuses, and whether pptrain agrees.

Usage: schema_test.py PPTRAIN [unittest arguments]
"""

import copy
import json
import math
import pathlib
import re
import sys
import tempfile
import tomllib
import unittest

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import SOURCE, run  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
CONFIGS = SOURCE / "configs"
SCHEMA = json.loads((CONFIGS / "schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
JOB = {"model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 256},
       "train": {"seq_len": 16}, "data": {"path": "text.txt"}}


def read_reference():
    """"section.key" -> (type in words, lowest, highest), from the comments of configs/reference.toml."""
    keys, section, comment = {}, "", []
    for line in (CONFIGS / "reference.toml").read_text().splitlines():
        if header := re.fullmatch(r"\[([\w.]+)\]", line):
            section = header[1]
        elif re.fullmatch(r"# \[\[.*\]\]", line):
            section = ""  # the next keys belong to a list of tables
        elif (entry := re.match(r"(?:# )?(\w+) = ", line)) and section:
            types = [c for c in comment if re.match(r"(integer|float|true or false|string|list of|one of:)", c)]
            assert types, f"a help text has a line that looks like a key: {line}"
            keys[f"{section}.{entry[1]}"] = types[-1].split(";")[0]
        comment = [*comment, line[2:]] if line.startswith("# ") else []
    return keys


def bounds(kind):
    """(bound, is the bound itself allowed?) below and above; None without a bound."""
    number = r"-?[\d.]+(?:e[+-]?\d+)?"
    if both := re.search(rf"({number}) (<=?) x (<=?) ({number})", kind):
        return (float(both[1]), both[2] == "<="), (float(both[4]), both[3] == "<=")
    if low := re.search(rf"(>=?) ({number})", kind):
        return (float(low[2]), low[1] == ">="), None
    return None, None


def given(name, value):
    """The job with one more key."""
    job = copy.deepcopy(JOB)
    table = job
    for part in name.split(".")[:-1]:
        table = table.setdefault(part, {})
    table[name.rsplit(".", 1)[1]] = value
    return job


def faults(job):
    """The keys that the schema refuses; for an unknown key, its section."""
    return {".".join(str(part) for part in error.absolute_path) for error in VALIDATOR.iter_errors(job)}


def wrong_type(kind):
    return 7 if kind.startswith(("string", "one of")) and "list" not in kind else True if "list" in kind else "many"


def as_number(kind, value):
    number = int(value) if kind.startswith("integer") or "integers" in kind else value
    return [number] * (2 if "of 2" in kind else 1) if "list of" in kind else number


KEYS = read_reference()


class Schema(unittest.TestCase):
    def refused_by_pptrain(self, values):
        """The keys that pptrain names when it refuses a job with these values."""
        with tempfile.TemporaryDirectory(prefix="pptrain_schema_") as folder:
            job = pathlib.Path(folder) / "job.toml"
            job.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
            done = run([PPTRAIN, "check", "--config", job], folder, code=2)
        return set(re.findall(r"^\S+job\.toml:\d+:\d+: ([\w.]+)", done.stderr, re.M)), done.stderr

    def test_it_is_a_schema(self):
        self.assertEqual(SCHEMA["$schema"], jsonschema.Draft7Validator.META_SCHEMA["$schema"])
        jsonschema.Draft7Validator.check_schema(SCHEMA)
        self.assertEqual(faults(JOB), set())

    def test_the_reference_was_read(self):
        # The tests below compare with this: every key of the schema outside lists of tables.
        def names(table, prefix):
            for key, entry in table["properties"].items():
                if entry.get("type") == "object":
                    yield from names(entry, f"{prefix}{key}.")
                elif entry.get("items", {}).get("type") != "object":
                    yield prefix + key
        self.assertEqual(set(names(SCHEMA, "")), {*KEYS, "include"})
        self.assertEqual(bounds(KEYS["optimizer.betas"]), ((0, True), (1, False)))

    def test_the_shipped_jobs(self):
        jobs = [*CONFIGS.glob("*.toml"), *(SOURCE / "scripts").rglob("*.toml")]
        self.assertGreater(len(jobs), 10)
        for path in jobs:
            errors = list(VALIDATOR.iter_errors(tomllib.loads(path.read_text())))
            if path.name == "reference.toml":  # it has no values for keys without a default
                self.assertTrue(errors)
                self.assertLessEqual({e.validator for e in errors}, {"required", "anyOf"})  # one of several is required
            else:
                self.assertEqual(errors, [], path)

    def test_the_jobs_name_it(self):
        for path in CONFIGS.glob("*.toml"):
            if path.name == "reference.toml":  # no job
                continue
            self.assertEqual(path.read_text().splitlines()[0], "#:schema ./schema.json", path)

    def test_unknown_keys(self):
        for name in ["nonsense.key", *(key.rsplit(".", 1)[0] + ".nonsense" for key in KEYS)]:
            section = name.rsplit(".", 1)[0]
            self.assertEqual(faults(given(name, 1)), {"" if section == "nonsense" else section}, name)

    def test_wrong_types(self):
        values = {name: wrong_type(kind) for name, kind in KEYS.items()}
        for name, value in values.items():
            self.assertEqual(faults(given(name, value)), {name})
        refused, said = self.refused_by_pptrain(values)
        self.assertLessEqual(set(KEYS), refused, said)

    def test_ranges(self):
        low, high = {}, {}
        for name, kind in KEYS.items():
            if kind.startswith("one of"):
                low[name] = "nonsense"
            for bound, side, away in zip(bounds(kind), (low, high), (-1, 1)):
                if not bound:
                    continue
                limit, allowed = bound
                step = 1 if kind.startswith("integer") or "integers" in kind else 1e-6 * max(1, abs(limit))
                side[name] = as_number(kind, limit + away * step if allowed else limit)
                sound = as_number(kind, limit if allowed else limit - away * step)
                self.assertEqual(faults(given(name, sound)), set(), (name, sound))
        self.assertGreater(min(len(low), len(high)), 40)
        for values in (low, high):
            for name, value in values.items():
                found = faults(given(name, value))
                self.assertTrue(found and all(place.startswith(name) for place in found), (name, value, found))
            refused, said = self.refused_by_pptrain(values)
            self.assertLessEqual(set(values), refused, said)

    def test_words_and_lists(self):
        for value in ("full", ["full"], ["none", "cheap"], "auto", ["auto"], "full:3/none:12", ["none", "full:3/none:1"]):
            self.assertEqual(faults(given("train.recompute", value)), set())
        for value in ("nonsense", [], ["none", "nonsense"], [1], ["none", "auto"], ["auto", "auto"], "full:3/none", "auto:1", "full:0"):
            self.assertTrue(faults(given("train.recompute", value)), value)
        for value in ("even", "1|*|*|1", [3, 1]):
            self.assertEqual(faults(given("distributed.pp_split", value)), set())
        for value in ([], [0, 1], [1.5], [["x"]]):
            self.assertTrue(faults(given("distributed.pp_split", value)), value)
        self.assertEqual(faults(given("lr_schedule.name", "WSD")), set())  # upper and lower case are equal
        self.assertEqual(faults(given("lr_schedule.name", "wsdx")), {"lr_schedule.name"})
        self.assertTrue(faults(given("optimizer.betas", [0.9])))
        self.assertTrue(faults(given("optimizer.betas", [0.9, 0.99, 0.999])))

    def test_lists_of_tables(self):
        self.assertEqual(faults(given("optimizer.groups", [{"match": "*.bias", "lr_scale": 2}, {"match": "norm"}])), set())
        self.assertEqual(faults(given("optimizer.groups", [{"match": "*.bias"}, {"lr_scale": 2}])), {"optimizer.groups.1"})
        self.assertEqual(faults(given("optimizer.groups", [{"match": "*", "lr_scale": -1}])), {"optimizer.groups.0.lr_scale"})
        self.assertEqual(faults(given("optimizer.groups", [{"match": "*", "lr": 1}])), {"optimizer.groups.0"})

    def test_what_is_missing(self):
        for section in SCHEMA["required"]:
            job = copy.deepcopy(JOB)
            del job[section]
            self.assertEqual(faults(job), {""})

    def test_titles_descriptions_and_defaults(self):
        reference = tomllib.loads((CONFIGS / "reference.toml").read_text())
        for name in KEYS:
            entry, value = SCHEMA, reference
            for part in name.split("."):
                entry = entry["properties"][part]
                value = value.get(part, math.nan) if isinstance(value, dict) else value
            self.assertEqual(entry["title"], name)
            self.assertTrue(entry["description"])
            if "default" in entry:
                self.assertEqual(entry["default"], value, name)


if __name__ == "__main__":
    unittest.main()
