// What ranks know and strangers do not: the secret of a user, or the key of one run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace pptrain::comm {

using Digest = std::array<uint8_t, 32>;

// The secret that the user gave to all ranks: the text of PPTRAIN_SECRET, or the content of the file that
// PPTRAIN_SECRET_FILE names, without the line's end; "" where neither is set. `env` gives the value of a
// variable, or null. Throws UsageError where both are set, where the file cannot be read, and for a secret of
// fewer than 16 bytes, which could be guessed.
std::string read_secret(const std::function<const char*(const char*)>& env);

// Bytes that nobody can foretell, from the system.
Digest random_bytes();

// HMAC-SHA256 (RFC 2104, FIPS 180-4) of `parts`, one after another.
Digest hmac(std::string_view key, std::initializer_list<std::span<const uint8_t>> parts);
// Takes as long for equal digests as for others.
bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b);

std::string to_hex(std::span<const uint8_t> bytes);

}  // namespace pptrain::comm
