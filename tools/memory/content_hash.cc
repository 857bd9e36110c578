// SPDX-License-Identifier: Apache-2.0
#include "tools/memory/content_hash.h"

#include <fcntl.h>
#include <sodium.h>
#include <unistd.h>

#include <vector>

namespace peerlane {
namespace {

crypto_generichash_state* stateOf(std::array<std::byte, 384>& state) {
  static_assert(sizeof(crypto_generichash_state) <= sizeof(state));
  static_assert(alignof(crypto_generichash_state) <= 64);
  return reinterpret_cast<crypto_generichash_state*>(state.data());
}

}  // namespace

ContentHash::ContentHash() {
  PEERLANE_CHECK(sodium_init() >= 0);
  crypto_generichash_init(stateOf(state_), nullptr, 0, kBytes);
}

void ContentHash::update(std::span<const std::byte> piece) {
  crypto_generichash_update(stateOf(state_), reinterpret_cast<const unsigned char*>(piece.data()),
                            piece.size());
}

ContentHash::Value ContentHash::finish() {
  Value value;
  crypto_generichash_final(stateOf(state_), reinterpret_cast<unsigned char*>(value.data()),
                           value.size());
  return value;
}

Result<ContentHash::Value> hashOfFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status::system(errno, "open " + path);
  ContentHash hash;
  std::vector<std::byte> piece(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got > 0) {
      hash.update(std::span(piece).first(static_cast<size_t>(got)));
      continue;
    }
    const int error = errno;
    if (got < 0 && error == EINTR) continue;
    ::close(fd);
    if (got < 0) return Status::system(error, "read " + path);
    return hash.finish();
  }
}

}  // namespace peerlane
