#include "core/kernels/out_of_memory.h"

#include <c10/util/Exception.h>
#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>

namespace pptrain::kernels {

namespace {

constexpr std::string_view host_allocator = "DefaultCPUAllocator";

std::string first_line(std::string text) {
  return text.substr(0, text.find('\n'));
}

// "... you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
std::optional<uint64_t> bytes_asked_for(std::string_view text) {
  constexpr std::string_view before = "tried to allocate ";
  const size_t found = text.find(before);
  if (found == std::string_view::npos) return std::nullopt;
  const char* const begin = text.data() + found + before.size();
  uint64_t bytes = 0;
  const auto result = std::from_chars(begin, text.data() + text.size(), bytes);
  return result.ec == std::errc() ? std::optional(bytes) : std::nullopt;
}

// LibTorch's own message, without the source locations that follow it and the brackets before it.
std::string torch_message(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (text.find(host_allocator) == std::string::npos) return first_line(text);
  const auto bytes = bytes_asked_for(text);
  return bytes ? fmt::format("{} bytes ({:.2f} GB) of host memory could not be allocated", *bytes,
                             static_cast<double>(*bytes) / 1e9)
               : "the host's memory is used up";
}

}  // namespace

std::string plain_message(const std::exception& error) {
  if (const auto* const torch = dynamic_cast<const c10::Error*>(&error)) return torch_message(*torch);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "the host's memory is used up";
  return error.what();
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return false;
  const std::string_view text = error.what();
  return text.find(host_allocator) != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;
}

void throw_from(const std::string& place, const std::exception& error) {
  const std::string text = fmt::format("{}: {}", place, plain_message(error));
  if (is_out_of_memory(error)) throw OutOfMemory(text);
  throw Error(text);
}

}  // namespace pptrain::kernels
