// SPDX-License-Identifier: Apache-2.0
//
// RecordCipher: one direction of a sealed stream: numbers its records, gives each the key that it
// has, and seals or opens several at once. Not the stream: SealedPipe cuts it into records.
// External synchronization required.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "peerlane/os/io_slice.h"
#include "peerlane/transport/tcp/aead.h"
#include "peerlane/transport/tcp/stream_keys.h"

namespace peerlane::cpu {
class CopyTeam;
}

namespace peerlane {

// A record lies as header, ciphertext, tag, without a gap.
inline constexpr size_t kRecordHeaderBytes = 4;
inline constexpr size_t kRecordTagBytes = Aead::kTagBytes;
inline constexpr uint32_t kRecordMostBytes = 64 * 1024;  // of plaintext
inline constexpr size_t kRecordExtraBytes = kRecordHeaderBytes + kRecordTagBytes;
// A key is good for so many bytes of plaintext: the record that reaches them is its last.
inline constexpr uint64_t kRecordBytesPerKey = uint64_t{1} << 36;

class RecordCipher {
 public:
  static constexpr size_t kMostAtOnce = 16;

  struct Order {
    AeadCipher cipher = AeadCipher::kChaCha20Poly1305;
    KeyBytes chain;
    uint64_t bytesPerKey = kRecordBytesPerKey;
    cpu::CopyTeam* team = nullptr;  // threads that help; outlives the cipher
  };
  RecordCipher(Aead::Use use, const Order& order);

  // One record of a batch. The plaintext of one that is sealed may lie in pieces: `plain` are those
  // from its first byte on, the first one of which begins `skip` bytes later.
  struct Record {
    std::byte* sealed = nullptr;
    uint32_t bytes = 0;  // of plaintext
    std::span<const IoSlice> plain{};
    size_t skip = 0;
    // Some of the plaintext to seal is memory of the program, which may be gone.
    bool isOfProgram = false;
    bool isUnreadable = false;  // set by seal(): it is, and the record is not good
    uint64_t number = 0;        // set by plan()
    bool isGood = false;        // set by seal() and open()
  };

  // How many of these records are the next batch: at least one, and all have one key. Numbers them.
  // Requires: 1 to kMostAtOnce records.
  size_t plan(std::span<Record> records);
  // The last ones that plan() numbered are as if it had not: their numbers are used again, and
  // under the same key. Requires: no byte of them, sealed, has left this process or will.
  void takeBack(std::span<const Record> records);
  // Each for all records that plan() counted, once. A record that failed is not good. Where threads
  // help, this one calls `meanwhile` now and then, with how many records from the first one on are
  // done: what it does there costs the others nothing. Errors: kNotSupported, kOutOfMemory (no
  // cipher); kClosed (the process is in exit(), see CryptoUse).
  using Meanwhile = std::function<void(size_t done)>;
  Status seal(std::span<Record> batch, const Meanwhile& meanwhile);
  Status open(std::span<Record> batch, const Meanwhile& meanwhile);

 private:
  struct Lane {
    std::unique_ptr<Aead> aead;
    uint64_t epoch = 0;
  };
  template <typename Work>
  Status carryOut(std::span<Record> batch, const Work& work, const Meanwhile& meanwhile);
  Status prepareLanes(size_t count);

  const Aead::Use use_;
  const AeadCipher cipher_;
  const uint64_t bytesPerKey_;
  cpu::CopyTeam* const team_;
  KeyChain chain_;
  KeyBytes key_;
  uint64_t epoch_ = 0;  // of key_; 0: none yet
  uint64_t bytes_ = 0;  // under key_
  uint64_t nextNumber_ = 0;
  std::array<Lane, kMostAtOnce> lanes_;
};

}  // namespace peerlane
