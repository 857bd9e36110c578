// SPDX-License-Identifier: Apache-2.0
//
// A sealed stream as an attacker on the path sees and changes it: the input first says how. Nothing
// but what was sealed may come out, in its order and from its beginning, and all of it only where
// nothing was changed. Bytes of the input alone, as a stream, must give nothing.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/transport/tcp/sealed_pipe.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/tape_pipe.h"

namespace peerlane {
namespace {

using Bytes = std::vector<std::byte>;

StreamKeys keys(bool dials) {
  static const LinkSecrets kSecrets = [] {
    LinkSecrets secrets;
    secrets.dialler.fill(std::byte{1});
    secrets.listener.fill(std::byte{2});
    return secrets;
  }();
  return streamKeys(kSecrets, AeadCipher::kChaCha20Poly1305, 0, dials);
}

constexpr uint64_t kPerKey = 500;  // two or three records
constexpr size_t kRecord = 200;
constexpr size_t kRecords = 8;

Bytes plaintext() {
  Bytes plain(kRecord * kRecords);
  fillPattern(plain, 3);
  return plain;
}

Bytes sealedOnce() {
  Bytes plain = plaintext();
  Tape tape;
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(true), nullptr, kPerKey);
  for (size_t i = 0; i < kRecords; ++i) {
    const IoSlice slice{plain.data() + i * kRecord, kRecord};
    PEERLANE_CHECK(pipe.write({std::span(&slice, 1)}).value() == kRecord);
  }
  return tape.written;
}

// Each edit is four bytes: what, where (two), with what.
Bytes edited(Bytes stream, std::span<const uint8_t> edits) {
  for (; edits.size() >= 4 && stream.size() < 100'000; edits = edits.subspan(4)) {
    if (stream.empty()) break;
    const auto at = static_cast<ptrdiff_t>((edits[1] | edits[2] << 8) % stream.size());
    const auto one = static_cast<ptrdiff_t>(kRecord + kRecordExtraBytes);
    const auto record = at / one * one;
    const auto end = std::min<ptrdiff_t>(record + one, static_cast<ptrdiff_t>(stream.size()));
    switch (edits[0] % 5) {
      case 0: stream[static_cast<size_t>(at)] ^= std::byte{edits[3]}; break;
      case 1: stream.resize(static_cast<size_t>(at)); break;
      case 2: stream.erase(stream.begin() + record, stream.begin() + end); break;
      case 3: {
        const Bytes copy(stream.begin() + record, stream.begin() + end);
        stream.insert(stream.begin() + record, copy.begin(), copy.end());
        break;
      }
      case 4: stream.insert(stream.begin() + at, edits[3] % 64, std::byte{edits[3]}); break;
    }
  }
  return stream;
}

Bytes opened(Bytes stream, size_t most) {
  Tape tape{.toRead = std::move(stream), .most = most, .ends = true};
  SealedPipe pipe(std::make_unique<TapePipe>(tape), keys(false), nullptr, kPerKey);
  Bytes plain;
  Bytes room(333);
  for (;;) {
    PEERLANE_CHECK(pipe.readable());
    const IoSlice slice{room.data(), room.size()};
    const Result<size_t> bytes = pipe.read({std::span(&slice, 1)});
    if (!bytes) return plain;
    plain.insert(plain.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*bytes));
  }
}

void fuzzOne(std::span<const uint8_t> input) {
  static const Bytes kSealed = sealedOnce();
  static const Bytes kPlain = plaintext();
  if (input.empty()) return;
  const size_t most = 1 + input[0] * 3;
  const Bytes stream = edited(kSealed, input.subspan(1));
  const Bytes got = opened(stream, most);
  // What is whole and in its place is all that comes.
  const auto [changed, same] =
      std::mismatch(kSealed.begin(), kSealed.end(), stream.begin(), stream.end());
  const auto whole = static_cast<size_t>(changed - kSealed.begin()) / (kRecord + kRecordExtraBytes);
  PEERLANE_CHECK(got.size() == whole * kRecord);
  PEERLANE_CHECK(std::equal(got.begin(), got.end(), kPlain.begin()));
  const auto raw = std::as_bytes(input);
  PEERLANE_CHECK(opened(Bytes(raw.begin(), raw.end()), most).empty());
}

}  // namespace
}  // namespace peerlane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  peerlane::fuzzOne({bytes, size});
  return 0;
}
