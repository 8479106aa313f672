"""Makes a wheel of an installed prefix.

Usage: wheel.py PREFIX VERSION TORCH OUT

PREFIX holds the files of `cmake --install` (components pptrain and libraries). The wheel puts bin/ and lib/ into the package
`pptrain`, next to the package `torch`, whose libraries the program loads; share/ goes to the environment's share/. The
command `pptrain` starts the program. TORCH is the version of the wheel `torch` that it was built with.
The wheel's tag names the oldest glibc that has every symbol of the binaries.
"""

import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

LAUNCHER = '''"""Starts the program in this package; it is the whole of what `pptrain` on PATH does."""

import importlib.util
import os
import sys

__version__ = "{version}"
FOLDER = os.path.dirname(os.path.abspath(__file__))


def environment():
    """The program looks for LibTorch beside this package; where torch is installed elsewhere its place is added."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        sys.exit("pptrain: the Python package torch {torch} is missing, which brings LibTorch")
    torch = os.path.abspath(list(found.submodule_search_locations)[0])
    env = dict(os.environ)
    if os.path.dirname(torch) != os.path.dirname(FOLDER):
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [os.path.join(torch, "lib"), env.get("LD_LIBRARY_PATH")]))
    return env


def main():
    program = os.path.join(FOLDER, "bin", "pptrain")
    os.execve(program, ["pptrain", *sys.argv[1:]], environment())
'''
MAIN = "from pptrain import main\n\nmain()\n"
METADATA = """Metadata-Version: 2.1
Name: pptrain
Version: {version}
Summary: Trains large language models with pipeline parallelism: one C++ program on LibTorch
License: MIT
Classifier: Programming Language :: C++
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
Description-Content-Type: text/markdown

{readme}"""


def is_elf(file):
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def platform_tag(binaries):
    versions = set()
    for binary in binaries:
        symbols = subprocess.run(["objdump", "-T", binary], capture_output=True, text=True, check=True).stdout
        versions |= {(int(a), int(b)) for a, b in re.findall(r"\(?GLIBC_(\d+)\.(\d+)", symbols)}
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def entries(prefix, name):
    """Path in the wheel -> file of the prefix."""
    # A wheel has no links. Programs load libx.so.1; libx.so.1.2.3, its target, would be a copy.
    copies = {file.resolve() for file in prefix.rglob("*") if file.is_symlink()}
    for file in sorted(prefix.rglob("*")):
        path = file.relative_to(prefix)
        if not file.is_file() or (file in copies and not file.is_symlink()):
            continue
        yield (f"{name}.data/data/{path}" if path.parts[0] == "share" else f"pptrain/{path}"), file


def write_entry(wheel, path, content, executable):
    info = zipfile.ZipInfo(path)  # dated 1980, so that the same files make the same wheel
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def main():
    prefix, version, torch, out = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    name = f"pptrain-{version}"
    files = list(entries(prefix, name))
    tag = f"py3-none-{platform_tag(file for _, file in files if is_elf(file))}"
    readme = pathlib.Path(__file__).resolve().parents[2] / "README.md"
    texts = {
        "pptrain/__init__.py": LAUNCHER.format(version=version, torch=torch),
        "pptrain/__main__.py": MAIN,
        f"{name}.dist-info/METADATA": METADATA.format(version=version, torch=torch, readme=readme.read_text()),
        f"{name}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: pptrain\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{name}.dist-info/entry_points.txt": "[console_scripts]\npptrain = pptrain:main\n",
    }
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        record = "".join(write_entry(wheel, path, file.read_bytes(), file.stat().st_mode & 0o100) for path, file in files)
        record += "".join(write_entry(wheel, path, text.encode(), False) for path, text in texts.items())
        write_entry(wheel, f"{name}.dist-info/RECORD", (record + f"{name}.dist-info/RECORD,,\n").encode(), False)
    print(target)


if __name__ == "__main__":
    main()
