"""Gathers programs, the libraries that a bare machine lacks, and the steps' input files in one portable folder.

Usage: pack.py --root CHECKOUT --build BUILD --torch FOLDER [--headers|--replace] PROGRAM...; makes BUILD/pack and the archive BUILD/pack.tar.gz.

Packs all shared libraries that the programs load, even indirectly, except those of any Linux (glibc, libstdc++) and those
that come with torch: its own and NVIDIA's. All files are stripped.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from machine import torch_library_folders

LARGEST = 50_000_000  # limit of the archive in bytes
# Libraries of the system or of the GPU's driver.
NOT_PACKED = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util|nsl|stdc\+\+|gcc_s|cuda|nvidia-ml)\.so)")
FILES = ["configs/shakespeare.toml", "configs/data/tinyshakespeare.txt", "scripts/gpu.sh"]
NEEDED = re.compile(r"^\s*(\S+) => (not found|\S+)", re.M)


def libraries(program, torch):
    """Name and path of each library that a bare machine with torch lacks."""
    folders = torch_library_folders(torch)
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, folders)))
    listed = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True, check=True).stdout
    theirs = [pathlib.Path(os.path.realpath(folder)) for folder in folders]
    found = {}
    for name, path in NEEDED.findall(listed):
        if NOT_PACKED.match(name):
            continue
        if path == "not found":
            raise SystemExit(f"pack.py: error: {program} needs {name}, which is not on this machine")
        if pathlib.Path(path).resolve().parent not in theirs:
            found[name] = path
    return found


def add_stripped(source, target):
    shutil.copyfile(os.path.realpath(source), target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def output(*command, **options):
    """The command's output; "" if it fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(root, build):
    cache = (build / "CMakeCache.txt").read_text()
    architectures = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.*)$", cache, re.M)
    return {
        "commit": output("git", "rev-parse", "HEAD", cwd=root) or "unknown: the checkout has no git",
        "changed": bool(output("git", "status", "--porcelain", cwd=root)),
        "architectures": architectures[1] if architectures else "",
        "nvcc": (output("nvcc", "--version").splitlines() or [""])[-1],
    }


def read_arguments():
    parser = argparse.ArgumentParser()
    for name in ("--root", "--build", "--torch"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--headers", action="store_true", help="what a build needs, too, as BUILD/pack/offline.tar.gz")
    parser.add_argument("--replace", action="store_true", help="the pack is there: these programs alone are put into it")
    parser.add_argument("programs", nargs="+")
    return parser.parse_args()


def fill(pack, arguments):
    """Packs everything except the programs. Returns the names of the libraries."""
    root = arguments.root
    shutil.rmtree(pack, ignore_errors=True)
    for folder in ("bin", "lib"):
        (pack / folder).mkdir(parents=True)
    needed = {}
    for program in arguments.programs:
        needed.update(libraries(arguments.build / program, arguments.torch))
    for name, path in needed.items():
        add_stripped(path, pack / "lib" / name)
    for name in FILES + sorted(str(path.relative_to(root)) for path in root.glob("scripts/*/*.py")):
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, pack / name)
    if arguments.headers:
        subprocess.run([sys.executable, "-B", root / "scripts/gpu/headers.py", arguments.torch, pack / "offline.tar.gz"], check=True)
    return sorted(needed)


def main():
    arguments = read_arguments()
    if "pptrain" in arguments.programs:
        arguments.programs.append("pptrain_cuda")  # pptrain executes it where there is a driver
    pack = arguments.build / "pack"
    names = [] if arguments.replace else fill(pack, arguments)
    for program in arguments.programs:
        add_stripped(arguments.build / program, pack / "bin" / program)
    (pack / "pack.json").write_text(json.dumps(describe(arguments.root, arguments.build), indent=2) + "\n")
    if arguments.replace:
        print(f"{pack}: {', '.join(arguments.programs)}")
        return
    archive = shutil.make_archive(str(pack), "gztar", arguments.build, "pack")
    size = os.path.getsize(archive)
    print(f"{archive}: {', '.join(arguments.programs)}; libraries {', '.join(names)}; {size / 1e6:.1f} MB")
    if size > LARGEST:
        sys.exit(f"pack.py: error: the archive has {size} bytes, {LARGEST} at most: compile for fewer architectures (CUDAARCHS=90)")


if __name__ == "__main__":
    main()
