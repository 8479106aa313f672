"""The results of the steps: report.json for programs and report.md for people."""

import json
from dataclasses import asdict, dataclass, field

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
NO_TIME = "time: "  # start of the text of a step that had no time to run


@dataclass
class Outcome:
    suite: str
    step: str
    about: str
    outcome: str
    seconds: float
    text: str = ""  # what was compared, or why the step failed or did not run
    advice: str = ""  # what to do if it failed

    @property
    def no_time(self):
        return self.outcome == NOT_RUN and self.text.startswith(NO_TIME)

    @property
    def words(self):
        """Outcome and first line of the text, as people read them."""
        text = self.text.splitlines()[0] if self.text else ""
        return (f"{NOT_RUN}: time", text.removeprefix(NO_TIME)) if self.no_time else (self.outcome, text)


@dataclass
class Report:
    machine: dict
    pack: dict
    device: str
    started: str  # UTC
    again: str = ""  # the command to run steps again, without their names
    outcomes: list[Outcome] = field(default_factory=list)
    figures: dict = field(default_factory=dict)  # the benchmark's "goals", and "text", a page of tables

    def of(self, kind):
        return [outcome for outcome in self.outcomes if outcome.outcome == kind]

    @property
    def no_time(self):
        """Names of the steps that had no time to run."""
        return [outcome.step for outcome in self.outcomes if outcome.no_time]

    @property
    def exit_code(self):
        """0: all that can run here passed; 1: one failed; 3: none failed, but time was short, or nothing could run."""
        if self.of(FAILED):
            return 1
        return 3 if self.no_time or not self.of(PASSED) else 0

    @property
    def summary(self):
        kinds = [f"{len(self.of(PASSED))} steps passed", f"{len(self.of(FAILED))} failed", f"{len(self.of(NOT_RUN))} not run"]
        words = ", ".join(kinds) + (f" ({', '.join(self.no_time)}: time)" if self.no_time else "")
        goals = self.figures.get("goals", [])
        return words + (f"; {sum(goal['met'] for goal in goals)} of {len(goals)} goals met" if goals else "")

    def write(self, folder):
        """Written after every step, so that a killed run leaves its results."""
        values = asdict(self) | {"summary": self.summary, "passed": self.exit_code == 0, "exit_code": self.exit_code,
                                 "not_run_for_time": self.no_time}
        values["figures"] = {"goals": self.figures.get("goals", [])}  # all others are in files of their own
        (folder / "report.json").write_text(json.dumps(values, indent=2) + "\n")
        (folder / "report.md").write_text(self.as_text())

    def as_text(self):
        lines = [f"# {self.summary}", ""]
        lines += [f"- {name}: {value}" for part in (self.machine, self.pack) for name, value in part.items()]
        lines += [f"- device of the steps: {self.device}", f"- started: {self.started} UTC", ""]
        lines += ["| suite | step | outcome | seconds | what was done |", "|---|---|---|---:|---|"]
        for o in self.outcomes:
            outcome, text = o.words
            lines.append(f"| {o.suite} | {o.step} | {outcome} | {o.seconds:.1f} | {cell(o.about + ': ' + text)} |")
        for o in self.of(FAILED):
            lines += ["", f"## {o.step} failed", "", "```", o.text, "```", ""]
            lines += [f"What to do: {o.advice} All output: `steps.log`, under `===== {o.step} =====`. "
                      f"Again: `{self.again} --only {o.step}`"]
        if self.no_time:
            names = " ".join(f"--only {name}" for name in self.no_time)
            lines += ["", "## Not run: time", "", f"{', '.join(self.no_time)}. To run them: `{self.again} {names}`"]
        lines += goal_lines(self.figures.get("goals", []))
        return "\n".join(lines) + "\n" + self.figures.get("text", "")


def goal_lines(goals):
    """Missed goals come first, each with a hint where to look."""
    if not goals:
        return []
    lines = ["", "## Goals", "", "| figure | measured | goal | met | what to do |", "|---|---:|---:|---|---|"]
    for goal in sorted(goals, key=lambda goal: goal["met"]):
        measured = "not measured" if goal["measured"] is None else f"{goal['measured']:.1%}"
        cells = [goal["what"], f"{measured} {goal['unit']}", f"{goal['goal']:.0%}", "yes" if goal["met"] else "no"]
        lines.append("| " + " | ".join(cell(text) for text in [*cells, "" if goal["met"] else goal["advice"]]) + " |")
    return lines


def cell(text):
    return text.replace("|", "/")
