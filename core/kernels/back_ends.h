// The back ends, and how their kernels come into the table: each file of a back end adds its own kernels, and
// add_kernels of its folder calls these files. Constructors of global objects would not do: the linker drops
// a static library's files that nothing calls.
#pragma once

#include <string_view>

namespace pptrain::kernels {

enum class BackEnd { cpu, cuda };

// Defines all kernels (what they accept, and each back end's implementations) when first called. Safe from
// several threads, and cheap to repeat.
void define_kernels();

// Throws Error: this kernel does not exist there, or the program was built without that back end.
[[noreturn]] void fail_without_implementation(std::string_view kernel, BackEnd back_end);

// Throws Error: the kernel was called with a list of no parts.
[[noreturn]] void fail_without_parts(std::string_view kernel);

// The parts of define_kernels.
void add_contracts();
namespace cpu {
void add_kernels();
}
namespace cuda {
void add_kernels();  // none in a build without CUDA
bool is_built();
}  // namespace cuda

}  // namespace pptrain::kernels
