// SPDX-License-Identifier: Apache-2.0
#include "tools/file/file_sender.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "peerlane/channel/signal/signal.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/core/text.h"
#include "tools/file/file_exchange.h"
#include "tools/memory/device_bytes.h"
#include "tools/report/output_file.h"
#include "tools/report/progress_line.h"

namespace peerlane {
namespace {

constexpr auto kOutcomeTimeout = std::chrono::seconds(10);
constexpr uint64_t kSlots = 8;

class FileSender {
 public:
  FileSender(Context& context, Peer peer, InputFile& file, Signal slotsBack, const Device& device)
      : context_(context),
        peer_(std::move(peer)),
        file_(file),
        slotsBack_(std::move(slotsBack)),
        device_(device) {}
  ~FileSender() {
    if (ring_) (void)context_.unregister(ring_);
  }
  FileSender(const FileSender&) = delete;
  FileSender& operator=(const FileSender&) = delete;

  Status offer(uint64_t ringBytes);
  Status sendContent();
  Result<FileOutcome> outcome();
  Status abort(const Status& why);

  ContentHash::Value hash() const { return whole_; }
  uint64_t bytes() const { return sent_; }

 private:
  bool onGpu() const { return device_.kind == DeviceKind::kCuda; }
  Status checkMemory() const;
  Status awaitSlot(uint64_t index);
  std::span<std::byte> roomFor(uint64_t index);
  Status putPiece(uint64_t index, uint64_t bytes);
  Status say(uint32_t tag, std::span<const std::byte> message);

  Context& context_;
  const Peer peer_;
  InputFile& file_;
  const Signal slotsBack_;
  const Device device_;
  Region ring_;
  std::vector<std::byte> page_;  // bytes that are read go through it to a GPU
  RemoteRegion remoteRing_;
  uint64_t slotBytes_ = 0;
  uint64_t slots_ = 0;
  std::vector<Transfer> transfers_;  // the last one of each slot
  uint64_t sent_ = 0;
  ContentHash::Value whole_{};
};

Status FileSender::offer(uint64_t ringBytes) {
  const std::string& path = file_.path();
  const FileOffer offer{.name = path.substr(path.rfind('/') + 1),
                        .bytes = file_.bytes(),
                        .slotBytes = ringBytes / kSlots,
                        .slots = kSlots};
  PEERLANE_RETURN_IF_ERROR(peer_.sendMessage(kFileChannel, offer.encode()));
  auto message = peer_.receiveMessage(kFileChannel, kFileStall);
  if (message.status().code() == Code::kPeerLost)
    return message.status().withContext(
        "the receiver ended before it answered (it may have taken another file)");
  PEERLANE_RETURN_IF_ERROR(message.status());
  PEERLANE_ASSIGN(const FileAnswer answer, FileAnswer::decode(*message));
  if (answer.tookAnother)
    return Status(Code::kUnavailable,
                  "the receiver took another file; each `peerlane recv` takes one");
  PEERLANE_RETURN_IF_ERROR(answer.refused.withContext("the receiver"));
  if (answer.slotBytes > offer.slotBytes || answer.slots > offer.slots)
    return Status(Code::kCorrupt, "the receiver wants a larger ring than it was offered");
  PEERLANE_ASSIGN(remoteRing_, peer_.importRegion(answer.ring));
  if (remoteRing_.bytes() < answer.slotBytes * answer.slots)
    return Status(Code::kCorrupt, "the receiver's ring is smaller than it says");
  slotBytes_ = answer.slotBytes;
  slots_ = answer.slots;
  transfers_.resize(slots_);
  PEERLANE_ASSIGN(
      ring_, context_.allocate(slotBytes_ * slots_, {.device = device_, .access = Access::kLocal}));
  if (onGpu()) page_.resize(slotBytes_);
  return Status::ok();
}

// Said to both sides before anything is sent.
Status FileSender::checkMemory() const {
  const Device& there = remoteRing_.reference().device;
  if (there.kind == device_.kind) return Status::ok();
  return Status(Code::kInvalidArgument,
                fmt::format("the receiver stages the file in memory of {}, the sender in memory of "
                            "{}; give --device at both sides",
                            there.toString(), device_.toString()));
}

Status FileSender::awaitSlot(uint64_t index) {
  if (index >= slots_) {
    PEERLANE_RETURN_IF_ERROR(slotsBack_.wait(index - slots_ + 1, kFileStall));
    // The piece before it in the same place is at the receiver; this only brings its errors to
    // light.
    PEERLANE_RETURN_IF_ERROR(transfers_[index % slots_].wait(kFileStall));
  }
  if (slotsBack_.value() >= kReceiverEnded)
    return Status(Code::kCancelled, "the receiver ended before the content did");
  return Status::ok();
}

std::span<std::byte> FileSender::roomFor(uint64_t index) {
  if (onGpu()) return page_;
  return {ring_.data() + index % slots_ * slotBytes_, slotBytes_};
}

Status FileSender::putPiece(uint64_t index, uint64_t bytes) {
  const std::vector<std::byte> message = FilePiece{.index = index, .bytes = bytes}.encode();
  const uint64_t offset = index % slots_ * slotBytes_;
  if (onGpu())
    PEERLANE_RETURN_IF_ERROR(
        copyToDevice(device_, ring_.data() + offset, std::span(page_).first(bytes)));
  const Block block{.local = &ring_,
                    .localOffset = offset,
                    .remote = &remoteRing_,
                    .remoteOffset = offset,
                    .bytes = bytes};
  PEERLANE_ASSIGN(transfers_[index % slots_],
                  put(peer_, {&block, 1}, {.notify = {.message = message, .tag = kPieceTag}}));
  return Status::ok();
}

Status FileSender::sendContent() {
  PEERLANE_RETURN_IF_ERROR(checkMemory());
  ProgressLine progress("sending " + shownName(file_.path()), file_.bytes());
  ContentHash hash;
  uint64_t index = 0;
  for (;; ++index) {
    PEERLANE_RETURN_IF_ERROR(awaitSlot(index));
    const std::span<std::byte> slot = roomFor(index);
    PEERLANE_ASSIGN(const size_t bytes, file_.read(slot));
    PEERLANE_RETURN_IF_ERROR(file_.checkUnchanged());  // also after the read that found the end
    if (bytes == 0) break;
    hash.update(slot.first(bytes));
    PEERLANE_RETURN_IF_ERROR(putPiece(index, bytes));
    sent_ += bytes;
    progress.update(sent_);
  }
  whole_ = hash.finish();
  // "All of it" may be said only when all of it has arrived.
  for (const Transfer& transfer : transfers_) PEERLANE_RETURN_IF_ERROR(transfer.wait(kFileStall));
  return say(kEndTag, FilePiece{.index = index, .bytes = sent_, .hash = whole_}.encode());
}

Status FileSender::say(uint32_t tag, std::span<const std::byte> message) {
  PEERLANE_ASSIGN(const Transfer transfer, notify(peer_, {.message = message, .tag = tag}));
  return transfer.wait(kFileStall);
}

Status FileSender::abort(const Status& why) {
  const std::string text(why.message().substr(0, 1024));
  return say(kAbortTag, std::as_bytes(std::span(text)));
}

Result<FileOutcome> FileSender::outcome() {
  PEERLANE_ASSIGN(const auto message, peer_.receiveMessage(kFileChannel, kFileStall));
  return FileOutcome::decode(message);
}

// Why the receiver stopped; OK where it has no reason of its own.
Status ownReasonIn(const Result<std::vector<std::byte>>& message) {
  if (!message.isOk()) return Status::ok();
  const auto outcome = FileOutcome::decode(*message);
  if (!outcome.isOk() || outcome->status.code() == Code::kCancelled) return Status::ok();
  return outcome->status.withContext("the receiver");
}

// Why sending stopped, in the words of the side that found the reason.
Status reasonFor(FileSender& sender, const Peer& peer, const Status& failure) {
  if (failure.code() != Code::kCancelled && sender.abort(failure).isOk()) {
    // The receiver answers when it has cleaned up. Its answer repeats what it was told, unless it
    // stopped first: then the failure of this side is what came of that.
    const Status own = ownReasonIn(peer.receiveMessage(kFileChannel, kOutcomeTimeout));
    return own.isOk() ? failure : own;
  }
  // A receiver that failed said why before anything else; it may even be gone already.
  Status bare = failure.code() == Code::kPeerLost
                    ? failure.withContext("the receiver ended before it had the whole file")
                    : failure;
  const Status own = ownReasonIn(peer.receiveMessage(kFileChannel, kOutcomeTimeout));
  return own.isOk() ? bare : own;
}

bool sameFile(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// The difference, for people; empty when there is none.
std::string changeBetween(const struct stat& before, const struct stat& now) {
  if (before.st_size != now.st_size)
    return fmt::format("it had {} bytes and has {}", before.st_size, now.st_size);
  if (before.st_mtim.tv_sec != now.st_mtim.tv_sec || before.st_mtim.tv_nsec != now.st_mtim.tv_nsec)
    return "it was written to";
  return {};
}

}  // namespace

Result<std::unique_ptr<InputFile>> InputFile::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Status::system(errno, "cannot read " + path);
  std::unique_ptr<InputFile> file(new InputFile(path, fd));
  struct stat& found = file->atFirst_;
  if (::fstat(fd, &found) != 0) return Status::system(errno, "cannot read " + path);
  if (S_ISDIR(found.st_mode))
    return Status(Code::kInvalidArgument, path + " is a folder; send takes one file");
  file->bytes_ = static_cast<uint64_t>(found.st_size);
  return file;
}

Status InputFile::checkUnchanged() const {
  if (!S_ISREG(atFirst_.st_mode)) return Status::ok();
  struct stat opened;
  struct stat named;
  if (::fstat(fd_, &opened) != 0) return Status::system(errno, "cannot read " + path_);
  std::string change = changeBetween(atFirst_, opened);
  // A name that is gone takes nothing away from the open file.
  if (change.empty() && ::stat(path_.c_str(), &named) == 0)
    change =
        sameFile(atFirst_, named) ? changeBetween(atFirst_, named) : "another file has its name";
  if (change.empty()) return Status::ok();
  return Status(Code::kCorrupt, path_ + " changed while it was sent: " + change);
}

InputFile::~InputFile() {
  ::close(fd_);
}

Result<size_t> InputFile::read(std::span<std::byte> space) {
  size_t done = 0;
  while (done < space.size()) {
    const ssize_t got = ::read(fd_, space.data() + done, space.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(errno, "cannot read " + path_);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

std::string fileReportText(const FileReport& report, const Peer& peer) {
  const double speed = report.seconds > 0 ? static_cast<double>(report.bytes) / report.seconds : 0;
  // Nothing has no speed.
  const std::string rate =
      report.bytes == 0 ? "" : " (" + readableBytes(static_cast<uint64_t>(speed)) + "/s)";
  const Route route = peer.route();
  const std::string way =
      report.device.kind == DeviceKind::kHost ? route.link : route.deviceLink + " from and to GPUs";
  const std::string sentAs =
      report.sentAs.empty() ? "" : " (sent as " + peerlane::quoted(report.sentAs, 512) + ")";
  return fmt::format("{}{}: {} ({} bytes) in {:.3f} s{} over {}, blake2b {}",
                     shownName(report.name), sentAs, readableBytes(report.bytes), report.bytes,
                     report.seconds, rate, way, encodeHex(report.hash));
}

Result<FileReport> sendFile(Context& context, const Peer& peer, InputFile& file, uint64_t ringBytes,
                            const Device& device) {
  const auto start = std::chrono::steady_clock::now();
  PEERLANE_ASSIGN(Signal slotsBack, Signal::create(peer, kSlotSignal));
  FileSender sender(context, peer, file, std::move(slotsBack), device);
  PEERLANE_RETURN_IF_ERROR(sender.offer(ringBytes));
  if (const Status failure = sender.sendContent(); !failure.isOk())
    return reasonFor(sender, peer, failure);
  auto told = sender.outcome();
  if (told.status().code() == Code::kPeerLost)
    return told.status().withContext("the receiver ended before it said that it has the file");
  PEERLANE_ASSIGN(const FileOutcome outcome, std::move(told));
  PEERLANE_RETURN_IF_ERROR(outcome.status.withContext("the receiver"));
  if (outcome.hash != sender.hash() || outcome.bytes != sender.bytes())
    return Status(Code::kCorrupt,
                  fmt::format("the receiver has {} bytes with blake2b {}, sent were "
                              "{} bytes with blake2b {}",
                              outcome.bytes, encodeHex(outcome.hash), sender.bytes(),
                              encodeHex(sender.hash())));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return FileReport{.name = file.path(),
                    .bytes = sender.bytes(),
                    .hash = sender.hash(),
                    .seconds = taken.count(),
                    .device = device};
}

}  // namespace peerlane
