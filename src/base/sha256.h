// SHA-256 (FIPS 180-4) of byte strings: names of cache entries and checks of stored files.
// Not meant for secrets; only for content addressing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Incremental hash; call `hex()` once at the end.
class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  // Adds the length before the bytes, so that ("ab","c") and ("a","bc") differ.
  Sha256& field(std::string_view bytes);
  // 64 lower-case hexadecimal digits. The object must not be used afterwards.
  std::string hex();

 private:
  void block(const unsigned char* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace tessera
