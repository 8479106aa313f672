"""How tests start the program: as a user's shell would, whatever the machine and the launcher that runs the tests."""

import os
import socket
import subprocess

LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**extra):
    """This process's environment without a launcher's variables, one thread a rank, and `extra` as text.

    Open MPI then starts more ranks than there are cores, as root too, and ties none to a core that another one uses.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS) and name not in TORCHRUN}
    env.update(OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
    env.update({name: str(value) for name, value in extra.items()})
    return env


def rank_environment(rank, ranks, port, address="127.0.0.1", **extra):
    """environment() of one of `ranks` processes that meet at `address`, as torchrun would start it."""
    return environment(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, MASTER_ADDR=address, MASTER_PORT=port, **extra)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_open_mpi(mpiexec):
    """False too where `mpiexec` is "", as in a build without MPI."""
    if not mpiexec:
        return False
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
    return "Open MPI" in version or "OpenRTE" in version


def mpi_command(mpiexec, ranks):
    """Starts that many ranks with the MPI that pptrain is built with, on however few cores."""
    return [mpiexec, *(["--oversubscribe"] if is_open_mpi(mpiexec) else []), "-n", str(ranks)]
