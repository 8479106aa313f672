# spack repo add scripts/packaging/spack && spack install pptrain
#
# Not built yet: the author had no Spack. The tests of `cmake --install` use the same CMake options. Set `git` to the
# address from which you cloned pptrain.
from spack.package import *


class Pptrain(CMakePackage):
    """Trains large language models with pipeline parallelism: one C++20 program on LibTorch."""

    git = "https://example.org/pptrain.git"
    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="Ranks talk by MPI; else by TCP")
    variant("cuda", default=False, description="Build the CUDA back end")
    variant("parquet", default=False, description="Read texts from Parquet")

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.26:", type="build")
    depends_on("ninja", type="build")
    generator("ninja")

    depends_on("py-torch@2.11 ~cuda", when="~cuda")
    depends_on("py-torch@2.11 +cuda +nccl", when="+cuda")
    depends_on("cuda", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("mpi", when="+mpi")
    depends_on("arrow +parquet", when="+parquet")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("spdlog +fmt_external")
    depends_on("fmt")
    depends_on("nlohmann-json")
    depends_on("xxhash")
    depends_on("openssl")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("zlib-api")
    depends_on("zstd")

    conflicts("%gcc@:11", msg="pptrain needs C++20")

    def cmake_args(self):
        torch = join_path(self.spec["py-torch"].prefix, self.spec["python"].package.platlib, "torch")
        return [
            self.define("PPTRAIN_TORCH_DIR", torch),
            self.define("PPTRAIN_TESTS", False),
            self.define("PPTRAIN_PYARROW_DIR", "none"),
            self.define("PPTRAIN_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_MPI", not self.spec.satisfies("+mpi")),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_Arrow", not self.spec.satisfies("+parquet")),
        ]
