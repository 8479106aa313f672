"""Finds what the pack needs on a machine: torch with its libraries, a GPU, CUDA's tools.

Usage: machine.py prints the folder of this Python's torch; exit code 4 if the pack needs another torch.
"""

import ctypes
import glob
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

TORCH_VERSION = "2.11"
# Variables of a launcher, removed so that a program started here does not take itself for one of its ranks.
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DRIVER_FOLDERS = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]


class Unsuitable(Exception):
    """This machine cannot run the pack; the message says why."""


def torch_library_folders(torch):
    """The folders of shared libraries of the package in folder `torch` and of NVIDIA's packages next to it."""
    site = pathlib.Path(torch).parent
    folders = [pathlib.Path(torch) / "lib", *sorted(site.glob("nvidia/*/lib")), site / "cusparselt/lib", site / "nvshmem/lib"]
    return [folder for folder in folders if folder.is_dir()]


@dataclass
class Torch:
    folder: pathlib.Path
    version: str


def find_torch(with_cuda):
    """The torch of this Python, found without an import, since that takes seconds. Raises Unsuitable."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise Unsuitable("this Python has no torch: set PPTRAIN_PYTHON to one that has torch " + TORCH_VERSION)
    folder = pathlib.Path(list(spec.submodule_search_locations)[0])
    text = (folder / "version.py").read_text() if (folder / "version.py").exists() else ""
    found = re.search(r"^__version__ = ['\"](.*)['\"]", text, re.M)
    version = found[1] if found else "unknown"
    if not version.startswith(TORCH_VERSION + "."):
        raise Unsuitable(f"torch in {folder} is {version}: the programs are built for {TORCH_VERSION}")
    if with_cuda and not (folder / "lib/libtorch_cuda.so").exists():
        raise Unsuitable(f"torch in {folder} is {version} without CUDA: the programs are built for the one with CUDA")
    return Torch(folder, version)


def environment(pack, torch):
    """This process's environment, for programs of the pack."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS) and name not in TORCHRUN}
    folders = [pack / "lib", *torch_library_folders(torch.folder), *filter(os.path.isdir, DRIVER_FOLDERS)]
    if env.get("LD_LIBRARY_PATH"):
        folders.append(env["LD_LIBRARY_PATH"])
    env["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    return env


def check_start(program, env):
    """Raises Unsuitable if a program of the pack does not even start, as with an older C library."""
    if not program.exists():
        return
    try:
        done = subprocess.run([program, "--help"], env=env, capture_output=True, text=True, timeout=60)
        words = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        words = str(error)
    if words:
        raise Unsuitable(f"the pack's pptrain does not start here: {words}. With g++ and nvcc it can be built here, from a checkout "
                         "with a pack that has headers: PPTRAIN_OFFLINE=1 scripts/gpu.sh build")


def load_driver():
    for name in ["libcuda.so.1", *(f"{folder}/libcuda.so.1" for folder in DRIVER_FOLDERS)]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    raise Unsuitable("no GPU: libcuda.so.1, the driver's library, is not here")


def find_gpu():
    """The driver's description of GPU 0. Raises Unsuitable if there is none."""
    driver = load_driver()
    code = driver.cuInit(0)
    if code != 0:
        raise Unsuitable(f"no GPU: the driver's cuInit fails with error {code}")
    count, version, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if count.value == 0:
        raise Unsuitable("no GPU: the driver finds none")
    driver.cuDeviceGet(ctypes.byref(device), 0)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return {
        "gpu": name.value.decode(),
        "gpus": count.value,
        "gpu memory": f"{memory.value / 2**30:.1f} GiB",
        "driver": f"{first_line('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader') or 'unknown'}, "
                  f"CUDA {version.value // 1000}.{version.value % 1000 // 10}",
    }


def first_line(*command):
    """A tool's output, or "" if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def find_tool(name):
    """A program of the CUDA toolkit: on PATH, in the toolkit, or in NVIDIA's packages next to torch; None if there is none."""
    spec = importlib.util.find_spec("torch")
    folders = [f"/usr/local/cuda*/{folder}" for folder in ("bin", name)] + [f"/opt/cuda/{folder}" for folder in ("bin", f"extras/{name}")]
    if spec is not None and spec.origin:
        folders.append(str(pathlib.Path(spec.origin).parents[1] / "nvidia/*/bin"))
    found = [path for folder in folders for path in sorted(glob.glob(f"{folder}/{name}"))]
    return shutil.which(name) or next((path for path in found if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def describe(torch):
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "cpu": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.version,
    }


if __name__ == "__main__":
    try:
        print(find_torch(with_cuda=True).folder)
    except Unsuitable as reason:
        print(f"pptrain: error: {reason}", file=sys.stderr)
        sys.exit(4)
