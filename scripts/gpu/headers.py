"""Gathers the build's files from Debian's development packages (headers, CMake files, libraries to link) and cuDNN's frontend
from PyPI in one archive, so that a machine without these packages and without a network can build.

Usage: headers.py TORCH ARCHIVE.tar.gz; the archive holds usr/, laid out as Debian's /usr.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGES = ["libtomlplusplus-dev", "libcli11-dev", "libspdlog-dev", "libfmt-dev", "catch2", "nlohmann-json3-dev", "libxxhash-dev",
            "libssl-dev", "libpcre2-dev", "libutf8proc-dev", "zlib1g-dev", "libzstd-dev"]
TAKEN = re.compile(r"^/usr/(include/|lib/.*\.cmake$|lib/libCatch2\w*\.a$|share/cmake/)")
LIBRARY = re.compile(r"^/usr/lib/[^/]+/lib(tomlplusplus|spdlog|fmt|crypto|pcre2-8|utf8proc|z|zstd)\.so$")


def files_of(package):
    done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"headers.py: error: {package} is not installed: headers are packed on Debian or Ubuntu with the build's packages")
    return [pathlib.Path(line) for line in done.stdout.splitlines() if os.path.isfile(line)]


def place(path, folder):
    """Architecture headers go to the common folder: only a compiler's own /usr has a separate folder for them."""
    return folder / re.sub(r"^/usr/include/\w+-linux-gnu/", "/usr/include/", str(path)).lstrip("/")


def add_package(package, folder):
    for path in files_of(package):
        target = place(path, folder)
        if TAKEN.match(str(path)) or LIBRARY.match(str(path)):
            target.parent.mkdir(parents=True, exist_ok=True)
        if TAKEN.match(str(path)):
            shutil.copyfile(path, target)
        elif LIBRARY.match(str(path)):
            # The file itself, under its name in CMake files, and the link for -lNAME.
            file = path.resolve()
            subprocess.run(["strip", "--strip-unneeded", "-o", target.parent / file.name, file], check=True)
            target.symlink_to(file.name)


def add_cudnn_frontend(torch, folder):
    """Only headers. The package is next to torch; so is cuDNN itself, which comes with torch."""
    headers = sorted((torch.parent / "include").glob("cudnn_*"))
    if not any(path.name == "cudnn_frontend.h" for path in headers):
        sys.exit(f"headers.py: error: no cudnn_frontend.h in {torch.parent / 'include'}: scripts/requirements-cudnn.txt is not installed")
    for path in headers:
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / "usr/include" / path.name)


def main():
    torch, archive = map(pathlib.Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="pptrain_headers_") as temporary:
        folder = pathlib.Path(temporary)
        for package in PACKAGES:
            add_package(package, folder)
        add_cudnn_frontend(torch, folder)
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(folder / "usr", "usr")


if __name__ == "__main__":
    main()
