"""Counts the size and the dependencies of the source; it is no gate.

Usage: house.py [--commit COMMIT]      the working tree, or also a commit
       house.py --sentences | --complex

Complexity is counted by PyPI's lizard, if it is installed (-1 otherwise).
"""

import argparse
import collections
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLOORS = ("app", "core", "models", "parallel")
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".inc")
INCLUDE = re.compile(r'^#include "((?:' + "|".join(FLOORS) + r')/[^"]+)"', re.MULTILINE)
TYPE = re.compile(r"^\s*(?:template <[^>]*>\s*)?(?:struct|class|enum class|enum|union)\s+(?:alignas\([^)]*\)\s*)?\w+[^;(){}=]*\{", re.MULTILINE)
# Structs that describe a job on its ranks, as counted in the review of e4d8a66. Whole names match, except in rooms that know no ranks.
LAYOUTS = ("DistributedSection", "MeshShape", "ScheduleSpec", "ShardOptions", "LowerOptions", "ShardPolicy", "StageRanks", "Divisions",
           "Sharding", "ParallelShape", "BatchShape", "Workload", "PlanBase", "Choice", "Plan", "Layout", "Estimate", "MeshCandidate",
           "Candidate", "ShapeKey", "TracedRun", "LoaderOptions")
WITHOUT_RANKS = ("core/kernels/", "core/nn/", "core/text/tokenizer/")
# A comparison of a name with a word in quotes, and the options that have words as values.
WORD = re.compile(r'(?:\b(?:[a-z_]+[.]|[a-z_]+->)+[a-z_]+(?:\(\))?|\b[a-z_]+)\s*[!=]=\s*"[a-z0-9_]+"')
OPTIONS = re.compile(r"\b(?:dtype|device|recompute|init|arch|name|cp_kind|reduce_grads|pp_schedule|pp_split|format|packing|lengths|resume|"
                     r"optimizer|schedule|on_divergence|rope_type|bad_lines|packed|target_modules)\b")


# A file knows a fact if its code has one of these. recomputes_keys_at() is of LongRoPE's cache.
FACTS = {"cp": r"\bcp\b", "sequence slices": r"sequence_slices", "recompute": r"[Rr]ecompute(?!s_keys)", "reshard": r"reshard",
         "a spread head": r"spread_head|head_parts|shares_out_embedding|pp_head\b|HeadPlace"}
# Quoted in code: "qwen3", "qwen3_moe"; also names of tokenizers and chat templates.
FAMILY = re.compile(r'"[^"\n]*\b(?:llama|qwen\d|qwen\d?_moe|qwen\d_moe|mixtral|mistral|gemma\d?|phi3|olmo2?|smollm3|granite|gpt2|gpt_neox|gpt_oss|deepseek_v\d|starcoder2|glm4)\b[^"\n]*"')
LONG_SENTENCE = 40  # words
COMPLEX = 15        # cyclomatic complexity, by lizard
# Strings are kept, even if they contain text like a comment.
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def is_comment(token):
    return token.startswith(("//", "/*"))


def without_comments(text):
    return COMMENT_OR_STRING.sub(lambda m: "" if is_comment(m[0]) else m[0], text)


def comment_lines(text):
    """The lines of the text's comments, with an empty line after each comment."""
    lines, end = [], 0
    for match in COMMENT_OR_STRING.finditer(text):
        if not is_comment(match[0]):
            continue
        if text[end:match.start()].count("\n") != 1 or text[end:match.start()].strip():
            lines.append("")
        lines += [line.strip("/* ") for line in match[0].split("\n")]
        end = match.end()
    return lines


def long_sentences(text):
    """The long sentences of the text's comments."""
    blocks = "\n".join(comment_lines(text)).split("\n\n")
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\"(\[])", block.replace("\n", " "))]
    return [sentence for sentence in sentences if len(sentence.split()) > LONG_SENTENCE]


def complex_functions(root, files):
    """[(complexity, place)]; None if lizard is not installed."""
    try:
        import lizard
    except ImportError:
        return None
    return sorted(((f.cyclomatic_complexity, f"{file}:{f.start_line} {f.name}") for file in files
                   for f in lizard.analyze_file(str(root / file)).function_list if f.cyclomatic_complexity > COMPLEX), reverse=True)


def tracked_files(root):
    return subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()


def is_source(file):
    return file.startswith(FLOORS) and file.endswith(SOURCES)


def room(file):
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def circles(edges):
    """The sets of rooms that include each other, directly or not."""
    reach = {a: set(b) for a, b in edges.items()}
    rooms = sorted(set(reach) | {b for to in reach.values() for b in to})
    for via in rooms:
        for a in rooms:
            if via in reach.get(a, ()):
                reach[a] |= reach.get(via, set())
    found = []
    for a in rooms:
        circle = {b for b in reach.get(a, ()) if a in reach.get(b, ())}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def count(root):
    files = tracked_files(root)
    sources = {f: (root / f).read_text() for f in files if is_source(f)}
    code = {f: without_comments(text) for f, text in sources.items()}
    edges = collections.defaultdict(set)
    for file, text in sources.items():
        edges[room(file)] |= {room(i) for i in INCLUDE.findall(text)} - {room(file)}
    structs = {name for file, text in code.items() if not file.startswith(WITHOUT_RANKS) for name in LAYOUTS
               if re.search(rf"\b(?:struct|class) {name}\b[^;(]*\{{", text)}
    words = sum(len([m for m in WORD.findall(text) if OPTIONS.search(m)]) for file, text in code.items()
                if file.startswith(("app/", "models/", "parallel/")))
    tests = [f for f in files if f.startswith("test/")]
    complex_ones = complex_functions(root, sources)
    return {
        "rooms in a circle": sum(map(len, circles(edges))),
        "rooms": len({room(f) for f in sources}),
        "structs that describe a layout": len(structs),
        **{f"files that know {name}": sum(1 for text in code.values() if re.search(pattern, text))
           for name, pattern in FACTS.items()},
        "types": sum(len(TYPE.findall(text)) for text in code.values()),
        ".cpp files without a header": sum(1 for f in sources if f.endswith(".cpp") and f[:-4] + ".h" not in sources),
        "source lines": sum(text.count("\n") for text in sources.values()),
        "test lines, C++": sum((root / f).read_text().count("\n") for f in tests if f.endswith(SOURCES)),
        "test lines, Python and shell": sum((root / f).read_text().count("\n") for f in tests if f.endswith((".py", ".sh"))),
        "comment lines": sum(1 for text in sources.values() for line in comment_lines(text) if line),
        "comment lines with \"where\"": sum(1 for text in sources.values() for line in comment_lines(text)
                                            if re.search(r"\bwhere\b", line, re.IGNORECASE)),
        f"sentences above {LONG_SENTENCE} words": sum(len(long_sentences(text)) for text in sources.values()),
        f"functions of complexity above {COMPLEX}": -1 if complex_ones is None else len(complex_ones),
        "names of families in core": sum(len(FAMILY.findall(text)) for file, text in code.items() if file.startswith("core/")),
        "comparisons with words of options": words,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", help="counted beside the working tree")
    parser.add_argument("--sentences", action="store_true", help="prints the long sentences, and no table")
    parser.add_argument("--complex", action="store_true", help="prints the complex functions, and no table")
    options = parser.parse_args()
    if options.sentences or options.complex:
        files = [f for f in tracked_files(ROOT) if is_source(f)]
        for file in files if options.sentences else []:
            for sentence in long_sentences((ROOT / file).read_text()):
                print(f"{file}: {len(sentence.split())} words: {sentence}")
        for complexity, place in complex_functions(ROOT, files) or [] if options.complex else []:
            print(complexity, place)
        return
    columns = [("here", count(ROOT))]
    if options.commit:
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "tree"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, options.commit], cwd=ROOT, check=True)
            try:
                columns.insert(0, (options.commit[:12], count(tree)))
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    print(f"{'':36}" + "".join(f"{name:>14}" for name, _ in columns))
    for key in columns[0][1]:
        print(f"{key:36}" + "".join(f"{of[key]:14,}" for _, of in columns))


if __name__ == "__main__":
    main()
