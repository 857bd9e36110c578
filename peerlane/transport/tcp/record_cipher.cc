// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/record_cipher.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/program/cpu/copy_team.h"

namespace peerlane {
namespace {

// A thread of the team that sleeps begins when this one has sealed two records by itself.
constexpr size_t kLeastToShare = 4;

std::span<const std::byte> headerOf(const RecordCipher::Record& record) {
  return {record.sealed, kRecordHeaderBytes};
}

// Memory of the program is copied to where it is sealed in place, because libcrypto reads it as the
// program would.
bool copyOfProgram(const RecordCipher::Record& record) {
  return nofaultRead({record.sealed + kRecordHeaderBytes, record.bytes}, record.plain,
                     record.skip) == record.bytes;
}

void sealOne(Aead& aead, RecordCipher::Record& record) {
  aead.begin(record.number, headerOf(record));
  std::byte* to = record.sealed + kRecordHeaderBytes;
  if (record.isOfProgram) {
    record.isUnreadable = !copyOfProgram(record);
    if (record.isUnreadable) return;
    aead.add({to, record.bytes}, to);
    to += record.bytes;
    record.isGood = aead.seal(std::span<std::byte, kRecordTagBytes>(to, kRecordTagBytes));
    return;
  }
  size_t left = record.bytes;
  size_t skip = record.skip;
  for (const IoSlice& slice : record.plain) {
    if (left == 0) break;
    const size_t bytes = std::min(slice.bytes - skip, left);
    if (bytes != 0) aead.add({static_cast<const std::byte*>(slice.base) + skip, bytes}, to);
    to += bytes;
    left -= bytes;
    skip = 0;
  }
  record.isGood = aead.seal(std::span<std::byte, kRecordTagBytes>(to, kRecordTagBytes));
}

// The plaintext goes to the one piece.
void openOne(Aead& aead, RecordCipher::Record& record) {
  const std::byte* const from = record.sealed + kRecordHeaderBytes;
  aead.begin(record.number, headerOf(record));
  aead.add({from, record.bytes}, static_cast<std::byte*>(record.plain.front().base) + record.skip);
  record.isGood =
      aead.open(std::span<const std::byte, kRecordTagBytes>(from + record.bytes, kRecordTagBytes));
}

}  // namespace

RecordCipher::RecordCipher(Aead::Use use, const Order& order)
    : use_(use),
      cipher_(order.cipher),
      bytesPerKey_(order.bytesPerKey),
      team_(order.team),
      chain_(order.chain) {}

size_t RecordCipher::plan(std::span<Record> records) {
  if (epoch_ == 0 || bytes_ >= bytesPerKey_) {
    key_ = chain_.next();
    ++epoch_;
    bytes_ = 0;
  }
  size_t count = 0;
  while (count < records.size() && bytes_ < bytesPerKey_) {
    records[count].number = nextNumber_++;
    bytes_ += records[count++].bytes;
  }
  return count;
}

void RecordCipher::takeBack(std::span<const Record> records) {
  if (records.empty()) return;
  nextNumber_ = records.front().number;
  for (const Record& record : records) bytes_ -= record.bytes;
}

Status RecordCipher::prepareLanes(size_t count) {
  for (Lane& lane : std::span(lanes_).first(count)) {
    if (lane.epoch == epoch_) continue;
    if (lane.aead) {
      lane.aead->setKey(key_);
    } else {
      PEERLANE_ASSIGN(lane.aead, Aead::create(cipher_, use_, key_));
    }
    lane.epoch = epoch_;
  }
  return {};
}

template <typename Work>
Status RecordCipher::carryOut(std::span<Record> batch, const Work& work,
                              const Meanwhile& meanwhile) {
  const CryptoUse use;
  if (!use.isAllowed())
    return Status(Code::kClosed, "this process is in exit(), and libcrypto with it");
  if (team_ != nullptr && batch.size() >= kLeastToShare) {
    PEERLANE_RETURN_IF_ERROR(prepareLanes(batch.size()));
    const std::thread::id self = std::this_thread::get_id();
    std::array<std::atomic<bool>, kMostAtOnce> isDone{};  // release by who did it; acquire by self
    size_t done = 0;
    team_->share(static_cast<uint32_t>(batch.size()), batch.front().sealed, [&](uint32_t i) {
      work(*lanes_[i].aead, batch[i]);
      isDone[i].store(true, std::memory_order_release);
      if (std::this_thread::get_id() != self) return;
      while (done < batch.size() && isDone[done].load(std::memory_order_acquire)) ++done;
      meanwhile(done);
    });
    return {};
  }
  PEERLANE_RETURN_IF_ERROR(prepareLanes(1));
  for (Record& record : batch) work(*lanes_.front().aead, record);
  return {};
}

Status RecordCipher::seal(std::span<Record> batch, const Meanwhile& meanwhile) {
  return carryOut(batch, sealOne, meanwhile);
}

Status RecordCipher::open(std::span<Record> batch, const Meanwhile& meanwhile) {
  return carryOut(batch, openOne, meanwhile);
}

}  // namespace peerlane
