"""What the steps found, as report.json for programs and report.md for people."""

import json
from dataclasses import asdict, dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass
class Outcome:
    suite: str
    step: str
    about: str
    outcome: str
    seconds: float
    text: str = ""  # what was compared; or why it failed or was skipped


@dataclass
class Report:
    machine: dict
    pack: dict
    device: str
    started: str  # UTC
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def passed(self):
        return not any(outcome.outcome == FAILED for outcome in self.outcomes)

    def write(self, folder):
        """After every step, so that a run that is killed leaves what it has found."""
        values = asdict(self) | {"passed": self.passed}
        (folder / "report.json").write_text(json.dumps(values, indent=2) + "\n")
        (folder / "report.md").write_text(self.as_text())

    def as_text(self):
        count = {kind: sum(outcome.outcome == kind for outcome in self.outcomes) for kind in (PASSED, FAILED, SKIPPED)}
        lines = [f"# {count[PASSED]} steps passed, {count[FAILED]} failed, {count[SKIPPED]} skipped", ""]
        lines += [f"- {name}: {value}" for name, value in self.machine.items()]
        lines += [f"- {name}: {value}" for name, value in self.pack.items()]
        lines += [f"- device of the steps: {self.device}", f"- started: {self.started}", ""]
        lines += ["| suite | step | outcome | seconds | what was done |", "|---|---|---|---|---|"]
        for o in self.outcomes:
            first = o.text.splitlines()[0] if o.text else ""
            lines.append(f"| {o.suite} | {o.step} | {o.outcome} | {o.seconds:.1f} | {(o.about + ': ' + first).replace('|', '/')} |")
        for o in self.outcomes:
            if o.outcome == FAILED:
                lines += ["", f"## {o.step} failed", "", "```", o.text, "```"]
        return "\n".join(lines) + "\n"
