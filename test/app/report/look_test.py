"""The views of a run: TensorBoard's files, the file for Prometheus, the report.

Usage: look_test.py PPTRAIN [unittest arguments]. The tests share runs of the program. TensorBoard, Prometheus'
parser and a browser are used if they are installed; scripts/requirements-test.txt has the first two.
"""

import html.parser
import json
import math
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import job, records, run, sets, start, temporary_folder, wait_for  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
PATIENCE = 300  # seconds, on a machine with other work
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, which nothing fetches

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None
try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

JOB = job(run={"dir": "run"}, train={"steps": 100000}, data={"val_fraction": 0.2}, lr_schedule=None,
          eval={"interval": 3, "batches": 2}, checkpoint={"interval": 4, "keep_last_n": 0},
          metrics={"tensorboard": True, "prometheus_file": "run.prom"}, profile={"trace": True})


def samples(text):
    """{(name, labels...): value} by the format's rules; fails if the text breaks them."""
    found, kinds, last = {}, {}, None
    label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
    for line in text.splitlines():
        if line.startswith("# HELP "):
            last = line.split(" ")[2]
            assert last not in kinds, f"{last} comes twice"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == last and kind in ("gauge", "counter"), line
            kinds[name] = kind
        else:
            match = re.fullmatch(rf"([a-z_:][a-z0-9_:]*)\{{({label}(?:,{label})*)\}} (\S+)", line)
            assert match, f"no sample: {line}"
            assert match[1] == last and (kinds[last] == "counter") == last.endswith("_total"), line
            key = (match[1], match[2])
            assert key not in found, f"{key} comes twice"
            found[key] = float(match[3])
    assert text.endswith("\n")
    return found


def value_of(found, name):
    return next(value for (other, _), value in found.items() if other == name)


class Run:
    """One run in a folder: it is started, viewed, stopped, and resumed from an earlier checkpoint."""

    def __init__(self, add_cleanup):
        self.folder = temporary_folder(add_cleanup)
        (self.folder / "job.toml").write_text(JOB)
        self.path = self.folder / "run"
        self.first_life()
        self.first_steps = self.records()[0]
        shutil.rmtree(max((self.path / "checkpoints").glob("step_*"), key=lambda p: int(p.name[5:])))
        self.resumed_at = max(int(p.name[5:]) for p in (self.path / "checkpoints").glob("step_*"))
        run([PPTRAIN, "--config", "job.toml", *sets(f"train.steps={self.resumed_at + 7}")], self.folder)

    def pptrain(self, *arguments):
        return run([PPTRAIN, *arguments], self.folder, code=None, timeout=PATIENCE)

    def first_life(self):
        process = start([PPTRAIN, "--config", "job.toml"], self.folder, stderr=subprocess.STDOUT)
        try:
            self.until_step(10)
            process.send_signal(signal.SIGTERM)
            self.rest = process.stdout.read()
            self.code = process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        self.page = (self.folder / "run.prom").read_text()

    def until_step(self, step):
        file = self.folder / "run.prom"
        wait_for(lambda: file.exists() and value_of(samples(file.read_text()), "pptrain_step") >= step, PATIENCE,
                 f"step {step} in {file}")

    def records(self):
        lines = records(self.path)
        return ([x for x in lines if "loss" in x], [x for x in lines if "eval_loss" in x], [x for x in lines if "start" in x])


class Look(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_ = Run(cls.addClassCleanup)

    def test_prometheus_file(self):
        run = self.run_
        self.assertEqual(run.code, 3, run.rest)
        found = samples(run.page)
        record = run.first_steps[-1]
        self.assertEqual(value_of(found, "pptrain_step"), record["step"])
        for name, key in [("loss_nats", "loss"), ("grad_norm", "grad_norm"), ("learning_rate", "lr"),
                          ("tokens_total", "total_tokens"), ("step_duration_seconds", "step_time_s"),
                          ("bubble_ratio", "bubble"), ("tokens_per_second", "tokens_per_s")]:
            self.assertEqual(value_of(found, f"pptrain_{name}"), record[key], name)
        self.assertEqual(value_of(found, "pptrain_memory_peak_bytes"), record["memory_gb"] * 1e9)
        self.assertEqual(value_of(found, "pptrain_last_step"), 100000)
        self.assertGreaterEqual(value_of(found, "pptrain_uptime_seconds"), 0)
        evaluated = int(value_of(found, "pptrain_eval_step"))
        self.assertEqual(evaluated % 3, 0)
        self.assertTrue(all('run="run"' in labels for _, labels in found))

    @unittest.skipUnless(text_string_to_metric_families, "prometheus_client is not installed")
    def test_prometheus_parser(self):
        found = samples(self.run_.page)
        parsed = {}
        for family in text_string_to_metric_families(self.run_.page):
            self.assertTrue(family.documentation)
            for sample in family.samples:
                parsed[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        self.assertEqual(sorted(map(float, parsed.values())), sorted(found.values()))
        self.assertEqual({name for name, _ in parsed}, {name for name, _ in found})

    @unittest.skipUnless(EventAccumulator, "tensorboard is not installed")
    def test_tensorboard(self):
        files = sorted((self.run_.path / "tensorboard").iterdir())
        self.assertEqual(len(files), 2)
        events = EventAccumulator(str(self.run_.path / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
        events.Reload()
        steps, evals, _ = self.run_.records()
        tags = set(events.Tags()["scalars"]) | set(events.Tags()["tensors"])

        def series(tag):
            return [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)]

        for tag, key in [("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/lr", "lr"),
                         ("train/total_tokens", "total_tokens"), ("speed/tokens_per_s", "tokens_per_s"),
                         ("speed/mfu", "mfu"), ("bubble/total", "bubble"), ("bubble/fill", "bubble_fill"),
                         ("memory/peak_gb", "memory_gb"), ("train/epoch", "epoch")]:
            self.assertIn(tag, tags)
            points = series(tag)
            self.assertEqual([p[0] for p in points], [r["step"] for r in steps], tag)  # each once
            for (_, value, _), record in zip(points, steps):
                self.assertTrue(math.isclose(value, record[key], rel_tol=1e-6), tag)
        self.assertEqual([p[0] for p in series("eval/loss")], [r["step"] for r in evals])
        for (_, value, _), record in zip(series("eval/loss"), evals):
            self.assertTrue(math.isclose(value, record["eval_loss"], rel_tol=1e-6))

    def test_file_for_prometheus_that_cannot_be_written(self):
        for file in ("absent/a.prom", "/proc/a.prom"):
            done = self.run_.pptrain("--config", "job.toml", *sets('run.dir="other"', f'metrics.prometheus_file="{file}"'))
            text = done.stdout + done.stderr
            self.assertEqual(done.returncode, 2, text)
            self.assertEqual(text.count("metrics.prometheus_file: cannot create"), 1, text)
            self.assertFalse((self.run_.folder / "other/metrics.jsonl").exists())


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the texts of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "input", "br", "img", "hr"):
            self.open.append(tag)
        if tag in ("script", "style", "title"):
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] in self.texts:
            self.texts[self.open[-1]][-1] += data

    def data(self):
        at = [attributes for tag, attributes in self.tags if tag == "script"].index(
            {"type": "application/json", "id": "data"})
        return json.loads(self.texts["script"][at])


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        (cls.folder / "job.toml").write_text(JOB)
        settings = ["train.steps=6", "metrics.tensorboard=false", 'metrics.prometheus_file=""']
        for name, more in [("a", []), ("b", ["optimizer.lr=0.01", "profile.trace=false"])]:
            run([PPTRAIN, "--config", "job.toml", *sets(f'run.dir="{name}"', *settings, *more)], cls.folder)
        cls.done = cls.pptrain("report", "a", "b", "-o", "page.html")
        assert cls.done.returncode == 0, cls.done.stderr
        cls.text = (cls.folder / "page.html").read_text()
        cls.page = Page(cls.text)

    @classmethod
    def pptrain(cls, *arguments):
        return run([PPTRAIN, *arguments], cls.folder, code=None, timeout=PATIENCE)

    def browse(self, file):
        """The page's elements after its scripts have run, and its error messages."""
        with tempfile.TemporaryDirectory(prefix="pptrain_browser_") as profile:
            done = subprocess.run(
                [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                 "--enable-logging=stderr", "--window-size=1200,900", "--virtual-time-budget=3000", "--dump-dom",
                 f"file://{file}"], capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def test_the_page_is_whole_and_alone(self):
        self.assertEqual(self.page.open, [])
        self.assertRegex(self.done.stdout, r"^file:///.*/page\.html\n$")
        self.assertNotRegex(self.text.replace(SVG_NAMESPACE, ""), r"https?://")
        for tag, attributes in self.page.tags:
            self.assertNotIn(tag, ("link", "img", "iframe", "object", "embed", "base"))
            self.assertFalse({"src", "href", "style"} & set(attributes), (tag, attributes))
            self.assertFalse([name for name in attributes if name.startswith("on")], (tag, attributes))
        policy = next(a["content"] for tag, a in self.page.tags if a.get("http-equiv") == "Content-Security-Policy")
        self.assertIn("default-src 'none'", policy)

    def test_data_are_those_of_the_files(self):
        data = self.page.data()
        self.assertEqual([run["name"] for run in data["runs"]], ["a", "b"])
        for run in data["runs"]:
            lines = records(self.folder / run["name"])
            steps = [x for x in lines if "loss" in x]
            evals = [x for x in lines if "eval_loss" in x]
            curves = run["curves"]
            self.assertEqual(curves["step"], [x["step"] for x in steps])
            self.assertEqual(curves["tokens"], [x["total_tokens"] for x in steps])
            self.assertEqual(sorted(curves["time"]), curves["time"])
            for key in ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "bubble", "memory_gb", "step_time_s"):
                series = curves["series"][key]
                self.assertNotIn("at", series)
                for value, record in zip(series["value"], steps, strict=True):
                    self.assertTrue(math.isclose(value, record[key], rel_tol=1e-6, abs_tol=1e-12), key)
            self.assertEqual(run["evaluations"]["step"], [x["step"] for x in evals])
            for value, record in zip(run["evaluations"]["value"], evals, strict=True):
                self.assertTrue(math.isclose(value, record["eval_loss"], rel_tol=1e-6))
            for value, record in zip(run["evaluations"]["bits_per_byte"], evals, strict=True):  # each token is a byte
                self.assertTrue(math.isclose(value, record["eval_loss"] / math.log(2), rel_tol=1e-6))
            self.assertEqual(run["pace"], [])  # the steps are too few and too short to judge
            self.assertEqual(run["last"]["loss"], steps[-1]["loss"])
            for key, value in run["medians"].items():
                self.assertTrue(math.isclose(value, statistics.median_high(x[key] for x in steps), rel_tol=1e-6), key)
            self.assertEqual(list(run["medians"]), ["tokens_per_s", "mfu", "bubble"])
            self.assertEqual(run["kept_checkpoints"], [4, 6])
        different = {row[0]: row[1:] for row in data["differences"]}
        self.assertEqual(different.pop("optimizer.lr")[1], "0.01")
        self.assertEqual(different.pop("profile.trace"), ["true", "false"])
        self.assertEqual(different.pop("run.dir"), [f'"{self.folder.resolve() / name}"' for name in "ab"])
        self.assertEqual(different, {})
        self.assertFalse(data["other_tokens"])

    def test_line_of_descent(self):
        def told(*names):
            self.assertEqual(self.pptrain("report", *names, "-o", "tree.html").returncode, 0)
            return Page((self.folder / "tree.html").read_text()).data()["descent"]
        self.assertEqual(told("a", "b"), [])
        for source, step, to in [("a", 4, "c"), ("c", 4, "d")]:
            done = self.pptrain("fork", source, "--step", str(step), "--to", to)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(told("a", "c", "b", "d"), [{"name": "a"}, {"name": "c", "parent": 0, "step": 4}, {"name": "b"},
                                                    {"name": "d", "parent": 1, "step": 4}])
        self.assertEqual(told("d"), [{"name": "d", "parent": 1, "step": 4},
                                     {"name": str(self.folder / "c"), "parent": 2, "step": 4},
                                     {"name": str(self.folder / "a")}])
        if BROWSER:
            page, complaints = self.browse(self.folder / "tree.html")
            self.assertEqual(complaints, [])
            self.assertIn(f"d, from step 4 of {self.folder / 'c'}", page)

    def test_the_pace_is_told(self):
        shutil.copytree(self.folder / "a", self.folder / "paced")
        slow = [{"first": 20, "factor": 1.5, "why": "rank 1's forward +90 %", "last": 29}, {"first": 40, "factor": 1.25, "why": "b"}]
        (self.folder / "paced/pace.json").write_text(json.dumps(
            {"planned_s": 0.5, "costs": "modelled for cpu", "first": 4, "last": 13, "reference_s": 0.75, "slow": slow}))
        self.assertEqual(self.pptrain("report", "paced", "-o", "paced.html").returncode, 0)
        text = (self.folder / "paced.html").read_text()
        lines = ["since step 40 25 % slower than steps 4 to 13: b", "steps 20 to 29 were 50 % slower than steps 4 to 13: rank 1's forward +90 %"]
        self.assertEqual(Page(text).data()["runs"][0]["pace"], lines)
        if BROWSER:
            page, complaints = self.browse(self.folder / "paced.html")
            self.assertEqual(complaints, [])
            self.assertIn(f"Pace: {lines[0]}.", page)

    def test_other_vocabularies_are_told(self):
        settings = sets("train.steps=2", 'metrics.prometheus_file=""', "model.vocab_size=300", 'run.dir="other_vocabulary"')
        run([PPTRAIN, "--config", "job.toml", *settings], self.folder)
        for other, told in [("other_vocabulary", True), ("b", False)]:
            self.assertEqual(self.pptrain("report", "a", other, "-o", "compared.html").returncode, 0)
            self.assertEqual(Page((self.folder / "compared.html").read_text()).data()["other_tokens"], told)
            if not BROWSER:
                continue
            page, complaints = self.browse(self.folder / "compared.html")
            self.assertEqual(complaints, [])
            self.assertEqual('id="vocabularies"' in page, told, other)
            self.assertEqual("(bits per byte)" in page, told, other)

    def test_the_picture_names_the_start_that_it_is_of(self):
        run([PPTRAIN, "--config", "job.toml", *sets('run.dir="again"', "train.steps=2", 'metrics.prometheus_file=""', "checkpoint.interval=2")],
            self.folder)
        run([PPTRAIN, "--config", "job.toml", *sets('run.dir="again"', "train.steps=6", 'metrics.prometheus_file=""', "distributed.pp=1",
                                                    "checkpoint.interval=2")], self.folder)
        self.assertEqual(self.pptrain("report", "again", "-o", "again.html").returncode, 0)
        text = (self.folder / "again.html").read_text()
        self.assertRegex(text, r"Step \d+ as it ran in start 2 \(pp 1\), of trace.json")
        # The schedule and the job of the first start stay.
        self.assertIn("A step as planned from resolved.1.toml, the job of an earlier start", text)
        self.assertEqual(text.count('<figure class="schedule">'), 2)
        data = Page(text).data()
        self.assertEqual(data["jobs"], ["again, resolved.1.toml", "again"])
        different = {row[0]: row[1:] for row in data["differences"]}
        self.assertEqual((different["distributed.pp"], different["train.steps"]), (["2", "1"], ["2", "6"]))
        if BROWSER:
            page, complaints = self.browse(self.folder / "again.html")
            self.assertEqual(complaints, [])
            self.assertIn("again, resolved.1.toml</th>", page)

    def test_schedules_as_they_ran_and_as_planned(self):
        self.assertIn("Step 4 as it ran in start 1 (pp 2), of trace.json", self.text)
        self.assertIn("A step as planned from job.toml", self.text)
        titles = re.findall(r"<title>([0-9]+[FB][0-9]+): ", self.text)
        self.assertEqual(titles.count("0F0"), 2)  # both pictures
        self.assertEqual(len(titles), 2 * 2 * 4 * 2)  # pictures, ranks, microbatches, F and B

    def hostile(self):
        evil = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
        folder = self.folder / "evil<img src=x onerror=document.title='owned'>"
        folder.mkdir(exist_ok=True)
        lines = [{"start": evil, "step": 0, "time": evil, "host": evil, "version": evil, "command": evil, "device": evil,
                  "world_size": evil, "layout": {"pp": evil, evil: evil}, "checkpoint": evil},
                 {"step": 1, "loss": 2.5, "grad_norm": evil, "lr": None, evil: evil, "skipped": evil},
                 {"step": 2, "loss": None, "grad_norm": 1e308, "skipped": True},
                 {"step": 2, "eval_loss": evil}]
        no_numbers = '{"step": -9223372036854775808, "loss": 1}\n{"step": 3, "loss": 1, "saved_step": 1e300}\n'
        text = ("\n".join(map(json.dumps, lines)) + "\n\x00\xff{broken\n[]\n" + no_numbers + '{"step": 3, "loss": 2.25}\n' +
                '{"step": 4, "lo')
        (folder / "metrics.jsonl").write_text(text, encoding="latin-1")
        (folder / "job.toml").write_text(f"[run]\ndir = {json.dumps(evil)}\n[data]\npath = {json.dumps(evil)}\n")
        (folder / "trace.json").write_text(json.dumps({"otherData": evil, "traceEvents": [evil]}))
        done = self.pptrain("report", folder.name, "a", "-o", "evil.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 damaged lines are left out, the first is line 5", done.stderr)
        return self.folder / "evil.html"

    def test_texts_of_files_stay_texts(self):
        text = self.hostile().read_text()
        page = Page(text)
        self.assertEqual(page.open, [])
        self.assertEqual([a for tag, a in page.tags if tag in ("img", "iframe")], [])
        self.assertEqual(len(page.texts["script"]), len(self.page.texts["script"]))
        evil = page.data()["runs"][0]
        self.assertIn("onerror", evil["starts"][0]["command"])
        self.assertEqual(evil["curves"]["series"]["loss"]["value"], [2.5, 2.25])
        self.assertEqual((evil["damaged"], evil["first_damaged"], evil["skipped"]), (4, 5, [2]))

    @unittest.skipUnless(BROWSER, "there is no Chromium")
    def test_in_a_browser(self):
        text, complaints = self.browse(self.folder / "page.html")
        self.assertEqual(complaints, [])
        charts = re.findall(r'<div class="chart">.*?</details></div>', text, re.S)
        self.assertEqual(len(charts), 9)
        self.assertIn("Loss", charts[0])
        for chart in charts:  # one curve for each run, with a point for each step
            paths = re.findall(r'<path class="curve" d="([^"]*)"', chart)
            self.assertEqual(len(paths), 2)
            self.assertTrue(all("NaN" not in path and len(path) > 8 for path in paths), paths)
        self.assertIn("optimizer.lr", text)
        text, complaints = self.browse(self.hostile())
        self.assertEqual(complaints, [])
        self.assertNotIn("<title>owned", text)
        self.assertNotRegex(text, r"<img\b")
        self.assertIn("&lt;img src=x", text)

    @unittest.skipUnless(BROWSER, "there is no Chromium")
    def test_equal_curves_are_both_seen(self):
        for name in ("twin", "some/very/long/name/of/a/run/that/takes/a/line"):
            shutil.copytree(self.folder / "a", self.folder / name)
        self.assertEqual(self.pptrain("report", "a", "twin", "b", "-o", "twins.html").returncode, 0)
        page, complaints = self.browse(self.folder / "twins.html")
        self.assertEqual(complaints, [])
        charts = re.findall(r'<div class="chart">.*?</details></div>', page, re.S)
        for chart in charts:
            self.assertEqual(len(re.findall(r'<path class="curve equal"', chart)), 1)
            self.assertEqual(len(re.findall(r'<path class="curve"', chart)), 2)
            self.assertIn("Dashed: twin is equal to a.", chart)
        # A name is broken only behind a slash.
        self.assertNotIn("<wbr>", page)
        self.assertEqual(self.pptrain("report", "some/very/long/name/of/a/run/that/takes/a/line", "-o", "long_name.html").returncode, 0)
        page, complaints = self.browse(self.folder / "long_name.html")
        self.assertIn("very/<wbr>long/<wbr>", page)

    def test_long_runs_keep_their_spikes(self):
        folder = self.folder / "long"
        folder.mkdir()
        count = 20000
        with (folder / "metrics.jsonl").open("w") as file:
            for step in range(1, count + 1):
                loss = 2 + 1 / step
                record = {"step": step, "loss": {7777: 50.0, 12345: -3.0}.get(step, loss), "grad_norm": 1.0,
                          "total_tokens": 64 * step, "step_time_s": 0.5}
                file.write(json.dumps(record) + "\n")
        done = self.pptrain("report", "long/metrics.jsonl", "-o", "long.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        run = Page((self.folder / "long.html").read_text()).data()["runs"][0]
        series = run["curves"]["series"]["loss"]
        steps = [run["curves"]["step"][at] for at in series.get("at", range(len(series["value"])))]
        points = dict(zip(steps, series["value"], strict=True))
        self.assertLessEqual(len(points), 1500)
        self.assertEqual((points[7777], points[12345], points[1]), (50.0, -3.0, 3.0))
        self.assertEqual(max(steps), count)
        self.assertLess((self.folder / "long.html").stat().st_size, 200_000)
        self.assertEqual(run["curves"]["time"][-1], count * 0.5)

    def test_what_is_no_run(self):
        for arguments in (["nothing"], [], ["/dev/null"]):
            done = self.pptrain("report", *arguments, "-o", "none.html")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertFalse((self.folder / "none.html").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
