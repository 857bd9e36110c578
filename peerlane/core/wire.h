// SPDX-License-Identifier: Apache-2.0
//
// Bounded little-endian writing and reading of byte formats. Both ends have a sticky failure: the
// caller writes or reads a whole message without looking, then asks once. Not a serialisation
// framework and not a copy of foreign structs: each format spells out its fields. External
// synchronization required; objects are cheap and live on the stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

// Appends to a vector that grows, or fills a fixed span that does not. After the first failure
// nothing more is written. Lifetime: the vector or the span's memory outlives the writer; the
// vector is not touched by others meanwhile.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : vector_(&out), start_(out.size()) {}
  explicit ByteWriter(std::span<std::byte> out) : fixed_(out) {}

  void u8(uint8_t value) { put(value); }
  void u16(uint16_t value) { put(value); }
  void u32(uint32_t value) { put(value); }
  void u64(uint64_t value) { put(value); }

  // The bytes as they are: the reader knows the length from elsewhere.
  void raw(std::span<const std::byte> bytes) {
    if (std::byte* to = grow(bytes.size())) std::memcpy(to, bytes.data(), bytes.size());
  }
  // A u32 length and the bytes. More than `maxBytes` is a failure.
  void bytes(std::span<const std::byte> bytes, uint32_t maxBytes) {
    if (bytes.size() > maxBytes) return fail("a field is longer than its maximum");
    u32(static_cast<uint32_t>(bytes.size()));
    raw(bytes);
  }
  void string(std::string_view text, uint32_t maxBytes) {
    bytes(std::as_bytes(std::span(text.data(), text.size())), maxBytes);
  }
  // Bytes written by this writer so far; also the offset of the next field.
  std::size_t size() const { return written_; }
  bool ok() const { return failure_ == nullptr; }
  // OK, or kInvalidArgument naming `what`, the reason and the offset where it stopped.
  Status finish(std::string_view what) const {
    if (ok()) return {};
    return Status(Code::kInvalidArgument,
                  std::string(what) + ": " + failure_ + " at offset " + std::to_string(written_));
  }

 private:
  std::byte* data() { return vector_ ? vector_->data() + start_ : fixed_.data(); }

  // Room for `count` more bytes; null when there is none or nothing is wanted.
  std::byte* grow(std::size_t count) {
    if (!ok() || count == 0) return nullptr;
    if (vector_) {
      vector_->resize(start_ + written_ + count);
    } else if (count > fixed_.size() - written_) {
      fail("the output is full");
      return nullptr;
    }
    std::byte* to = data() + written_;
    written_ += count;
    return to;
  }

  template <typename T>
  static void store(std::byte* to, T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  }
  template <typename T>
  void put(T value) {
    if (std::byte* to = grow(sizeof(T))) store(to, value);
  }
  void fail(const char* reason) {
    if (ok()) failure_ = reason;
  }

  std::vector<std::byte>* vector_ = nullptr;
  std::span<std::byte> fixed_;
  std::size_t start_ = 0;
  std::size_t written_ = 0;
  const char* failure_ = nullptr;
};

// Whether bytes after the last field are an error or a later version's fields.
enum class Trailing { kRefuse, kAllow };

// Reads from a span it does not own. Every read is checked; after the first failure all reads
// return zero or empty, so a loop over a count that was read must also test ok(). Allocates
// nothing. Lifetime: returned spans and strings point into the input.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> input) : input_(input) {}

  uint8_t u8() { return get<uint8_t>(); }
  uint16_t u16() { return get<uint16_t>(); }
  uint32_t u32() { return get<uint32_t>(); }
  uint64_t u64() { return get<uint64_t>(); }

  // Exactly `count` bytes, or empty and failed.
  std::span<const std::byte> raw(std::size_t count) {
    if (!take(count, std::numeric_limits<std::size_t>::max())) return {};
    return input_.subspan(offset_ - count, count);
  }
  // Fills `out`; on failure `out` is left alone.
  void rawInto(std::span<std::byte> out) {
    auto from = raw(out.size());
    if (!from.empty()) std::memcpy(out.data(), from.data(), from.size());
  }
  // A u32 length and as many bytes; a length above `maxBytes` fails even when the bytes are there.
  std::span<const std::byte> bytes(uint32_t maxBytes) {
    uint32_t count = u32();
    if (!take(count, maxBytes)) return {};
    return input_.subspan(offset_ - count, count);
  }
  std::string_view string(uint32_t maxBytes) {
    auto from = bytes(maxBytes);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  void skip(std::size_t count) { (void)raw(count); }
  // A check of the caller on what it read: false makes the reader fail here with `reason` (a
  // literal).
  void require(bool condition, const char* reason) {
    if (!condition && ok()) failure_ = reason;
  }

  bool ok() const { return failure_ == nullptr; }
  std::size_t offset() const { return offset_; }
  std::size_t remaining() const { return input_.size() - offset_; }
  // OK, or kCorrupt naming `what`, the reason, the offset, the length wanted and the length of the
  // whole input.
  Status finish(std::string_view what, Trailing trailing = Trailing::kRefuse) const;

 private:
  bool take(std::size_t count, std::size_t limit) {
    if (!ok()) return false;
    if (count > limit || count > remaining()) {
      failure_ = count > limit ? "a length is above its maximum" : "the input ends inside a field";
      wanted_ = count;
      return false;
    }
    offset_ += count;
    return true;
  }
  template <typename T>
  T get() {
    if (!take(sizeof(T), sizeof(T))) return 0;
    uint64_t value = 0;
    const std::byte* from = input_.data() + offset_ - sizeof(T);
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= std::to_integer<uint64_t>(from[i]) << (8 * i);
    return static_cast<T>(value);
  }

  std::span<const std::byte> input_;
  std::size_t offset_ = 0;
  std::size_t wanted_ = 0;
  const char* failure_ = nullptr;
};

inline Status ByteReader::finish(std::string_view what, Trailing trailing) const {
  const bool excess = trailing == Trailing::kRefuse && remaining() != 0;
  if (ok() && !excess) return {};
  std::string text(what);
  text += ": ";
  text += ok() ? "bytes after the last field" : failure_;
  text += " (offset " + std::to_string(offset_);
  if (wanted_ != 0) text += ", wanted " + std::to_string(wanted_);
  text += ", input " + std::to_string(input_.size()) + " bytes)";
  return Status(Code::kCorrupt, std::move(text));
}

}  // namespace peerlane
