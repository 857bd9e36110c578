// SPDX-License-Identifier: Apache-2.0
#include "tools/file/file_receiver.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "peerlane/channel/signal/notification.h"
#include "peerlane/channel/signal/signal.h"
#include "peerlane/core/text.h"
#include "tools/file/file_exchange.h"
#include "tools/memory/device_bytes.h"
#include "tools/report/progress_line.h"

namespace peerlane {
namespace {

constexpr auto kOfferTimeout = std::chrono::seconds(30);
// How long the sender may take to read the outcome and close.
constexpr auto kGoodbyeTimeout = std::chrono::seconds(5);

bool isFolder(const std::string& path) {
  struct stat found;
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

class FileReceiver {
 public:
  FileReceiver(Context& context, Peer peer, const ReceiveOptions& options)
      : context_(context), peer_(std::move(peer)), options_(options) {}
  ~FileReceiver() {
    if (ring_) (void)context_.unregister(ring_);
  }
  FileReceiver(const FileReceiver&) = delete;
  FileReceiver& operator=(const FileReceiver&) = delete;

  // Tells the sender where to put the content, or why not.
  Status agree(const FileOffer& offer);
  // Everything up to the file's name.
  Status receive();
  // Tells the sender how it ended, and waits until it knows.
  void conclude(const Status& status);

  FileReport report() const {
    return {.name = file_->path(),
            .sentAs = sentAs_,
            .bytes = received_,
            .hash = whole_,
            .device = options_.device};
  }

 private:
  Result<FileAnswer> prepare(const FileOffer& offer);
  Status receiveContent();
  bool onGpu() const { return options_.device.kind == DeviceKind::kCuda; }
  Status takePiece(const FilePiece& piece);
  // The piece in memory of the host.
  Result<std::span<const std::byte>> contentOf(const FilePiece& piece);
  Status checkEnd(const FilePiece& end);

  Context& context_;
  const Peer peer_;
  const ReceiveOptions& options_;
  std::unique_ptr<OutputFile> file_;
  std::string sentAs_;  // the sender's name, where it was changed
  Region ring_;
  std::vector<std::byte> page_;  // bytes that came to a GPU go through it to the file
  uint64_t slotBytes_ = 0;
  uint64_t slots_ = 0;
  uint64_t expectedBytes_ = 0;
  uint64_t pieces_ = 0;
  uint64_t received_ = 0;
  ContentHash hash_;
  ContentHash::Value whole_{};
};

Result<FileAnswer> FileReceiver::prepare(const FileOffer& offer) {
  const bool named = isFolder(options_.out);
  const std::string name = safeFileName(offer.name);
  const std::string path = named ? options_.out + "/" + name : options_.out;
  if (named && name != offer.name) sentAs_ = offer.name;
  PEERLANE_ASSIGN(file_, OutputFile::create(path, options_.existing));
  PEERLANE_RETURN_IF_ERROR(file_->reserve(offer.bytes));
  expectedBytes_ = offer.bytes;
  slots_ = std::min<uint64_t>(offer.slots, 8);
  slotBytes_ = std::min(offer.slotBytes, options_.ringBytes / slots_);
  PEERLANE_ASSIGN(ring_, context_.allocate(slotBytes_ * slots_, {.device = options_.device,
                                                                 .access = Access::kRemoteWrite}));
  if (onGpu()) page_.resize(slotBytes_);
  return FileAnswer{.slotBytes = slotBytes_, .slots = slots_, .ring = ring_.share()};
}

Status FileReceiver::agree(const FileOffer& offer) {
  auto answer = prepare(offer);
  if (answer.isOk()) return peer_.sendMessage(kFileChannel, answer->encode());
  file_.reset();
  PEERLANE_RETURN_IF_ERROR(
      peer_.sendMessage(kFileChannel, FileAnswer{.refused = answer.status()}.encode()));
  (void)peer_.receiveMessage(kFileChannel, kGoodbyeTimeout);  // until the sender has gone
  return answer.status();
}

Status FileReceiver::receive() {
  Status status = receiveContent();
  if (status.code() == Code::kPeerLost)
    status = status.withContext("the sender ended before it had sent the whole file");
  if (status.isOk()) status = file_->commit();
  if (!status.isOk()) file_.reset();  // takes the content away before anybody is told
  return status;
}

Status FileReceiver::receiveContent() {
  ProgressLine progress("receiving " + shownName(file_->path()), expectedBytes_);
  for (;;) {
    PEERLANE_ASSIGN(const Notification next, waitNotification(peer_, kFileStall));
    if (next.tag == kAbortTag) {
      const std::string why(reinterpret_cast<const char*>(next.message.data()),
                            next.message.size());
      return Status(Code::kCancelled, "the sender gave up: " + quoted(why, 1024));
    }
    PEERLANE_ASSIGN(const FilePiece piece, FilePiece::decode(next.message));
    if (next.tag == kEndTag) return checkEnd(piece);
    PEERLANE_RETURN_IF_ERROR(takePiece(piece));
    progress.update(received_);
  }
}

Result<std::span<const std::byte>> FileReceiver::contentOf(const FilePiece& piece) {
  const std::byte* const slot = ring_.data() + pieces_ % slots_ * slotBytes_;
  if (!onGpu()) return std::span(slot, piece.bytes);
  const std::span<std::byte> page = std::span(page_).first(piece.bytes);
  PEERLANE_RETURN_IF_ERROR(copyFromDevice(options_.device, page, slot));
  return std::span<const std::byte>(page);
}

Status FileReceiver::takePiece(const FilePiece& piece) {
  if (piece.index != pieces_ || piece.bytes == 0 || piece.bytes > slotBytes_)
    return Status(Code::kCorrupt,
                  fmt::format("piece {} of {} bytes came; expected piece {} of 1 to "
                              "{} bytes",
                              piece.index, piece.bytes, pieces_, slotBytes_));
  PEERLANE_ASSIGN(const std::span<const std::byte> content, contentOf(piece));
  hash_.update(content);
  PEERLANE_RETURN_IF_ERROR(file_->append(content));
  ++pieces_;
  received_ += piece.bytes;
  return addSignal(peer_, kSlotSignal, 1).status();
}

Status FileReceiver::checkEnd(const FilePiece& end) {
  whole_ = hash_.finish();
  if (end.index == pieces_ && end.bytes == received_ && end.hash == whole_) return Status::ok();
  return Status(Code::kCorrupt,
                fmt::format("the content differs: received {} bytes with blake2b {}, the sender "
                            "read {} bytes with blake2b {}",
                            received_, encodeHex(whole_), end.bytes, encodeHex(end.hash)));
}

void FileReceiver::conclude(const Status& status) {
  const FileOutcome outcome{.status = status, .bytes = received_, .hash = whole_};
  if (!peer_.sendMessage(kFileChannel, outcome.encode()).isOk()) return;
  if (!status.isOk()) (void)addSignal(peer_, kSlotSignal, kReceiverEnded).isOk();
  (void)peer_.receiveMessage(kFileChannel, kGoodbyeTimeout);  // ends when the sender closes
}

}  // namespace

Result<FileOffer> awaitOffer(const Peer& peer) {
  PEERLANE_ASSIGN(const auto message, peer.receiveMessage(kFileChannel, kOfferTimeout));
  return FileOffer::decode(message);
}

Result<FileReport> receiveFile(Context& context, const Peer& peer, const FileOffer& offer,
                               const ReceiveOptions& options) {
  FileReceiver receiver(context, peer, options);
  PEERLANE_RETURN_IF_ERROR(receiver.agree(offer));
  const auto start = std::chrono::steady_clock::now();
  const Status status = receiver.receive();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  receiver.conclude(status);
  PEERLANE_RETURN_IF_ERROR(status);
  FileReport report = receiver.report();
  report.seconds = taken.count();
  return report;
}

}  // namespace peerlane
