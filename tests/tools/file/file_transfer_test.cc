// SPDX-License-Identifier: Apache-2.0
//
// sendFile and receiveFile against an other side that lies.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "peerlane/channel/signal/notification.h"
#include "peerlane/channel/signal/signal.h"
#include "peerlane/channel/transfer/transfer.h"
#include "tools/file/file_exchange.h"
#include "tools/file/file_receiver.h"
#include "tools/file/file_sender.h"

namespace peerlane {
namespace {

namespace fs = std::filesystem;

constexpr auto kWait = std::chrono::seconds(10);
constexpr uint64_t kRing = 64 << 10;

// Two connected contexts and a folder.
class FileTransfer : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "peerlane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    auto first = Context::create({.config = Config()});
    auto second = Context::create({.config = Config()});
    ASSERT_TRUE(first.isOk() && second.isOk());
    sending_ = std::move(*first);
    receiving_ = std::move(*second);
    auto there = sending_->connect(receiving_->ticket());
    ASSERT_TRUE(there.isOk()) << there.status().toString();
    toReceiver_ = *there;
    auto here = receiving_->accept();
    ASSERT_TRUE(here.isOk()) << here.status().toString();
    toSender_ = *here;
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t names() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  std::string folder_;
  std::unique_ptr<Context> sending_;
  std::unique_ptr<Context> receiving_;
  Peer toReceiver_;  // at the sending side
  Peer toSender_;    // at the receiving side
};

// The receiver is real, the sender is this test.
class LyingSender : public FileTransfer {
 protected:
  void SetUp() override {
    FileTransfer::SetUp();
    result_ = std::async(std::launch::async, [this]() -> Status {
      PEERLANE_ASSIGN(const FileOffer offer, awaitOffer(toSender_));
      return receiveFile(*receiving_, toSender_, offer, {.out = folder_, .ringBytes = kRing})
          .status();
    });
  }
  void TearDown() override {
    toReceiver_.close();
    if (result_.valid()) result_.wait();
    FileTransfer::TearDown();
  }

  void offer() {
    const FileOffer offer{.name = "../name", .bytes = 100, .slotBytes = 8192, .slots = 8};
    ASSERT_TRUE(toReceiver_.sendMessage(kFileChannel, offer.encode()).isOk());
    auto message = toReceiver_.receiveMessage(kFileChannel, kWait);
    ASSERT_TRUE(message.isOk()) << message.status().toString();
    auto answer = FileAnswer::decode(*message);
    ASSERT_TRUE(answer.isOk());
    ASSERT_TRUE(answer->refused.isOk()) << answer->refused.toString();
  }
  void say(uint32_t tag, const FilePiece& piece) {
    const auto message = piece.encode();
    auto said = notify(toReceiver_, {.message = message, .tag = tag});
    ASSERT_TRUE(said.isOk());
    EXPECT_TRUE(said->wait(kWait).isOk());
  }
  // The receiver must end with `code`, tell us so, and leave nothing.
  void expectEnd(Code code) {
    auto message = toReceiver_.receiveMessage(kFileChannel, kWait);
    ASSERT_TRUE(message.isOk()) << message.status().toString();
    auto outcome = FileOutcome::decode(*message);
    ASSERT_TRUE(outcome.isOk());
    EXPECT_EQ(outcome->status.code(), code) << outcome->status.toString();
    EXPECT_EQ(names(), 0u);
    toReceiver_.close();
    EXPECT_EQ(result_.get().code(), code);
    EXPECT_EQ(names(), 0u);
  }

  std::future<Status> result_;
};

TEST_F(LyingSender, CannotPassOffAnotherContent) {
  offer();
  say(kPieceTag, {.index = 0, .bytes = 100});  // the ring's zeroes
  say(kEndTag, {.index = 1, .bytes = 100});    // a hash of zeroes is nobody's hash
  expectEnd(Code::kCorrupt);
}

TEST_F(LyingSender, CannotSkipAPiece) {
  offer();
  say(kPieceTag, {.index = 1, .bytes = 100});
  expectEnd(Code::kCorrupt);
}

TEST_F(LyingSender, CannotMakeItReadBeyondTheRing) {
  offer();
  say(kPieceTag, {.index = 0, .bytes = 1 << 20});
  expectEnd(Code::kCorrupt);
}

TEST_F(LyingSender, IsNotUnderstoodWhenItSpeaksOtherwise) {
  const std::string text = "GET / HTTP/1.1";
  ASSERT_TRUE(toReceiver_.sendMessage(kFileChannel, std::as_bytes(std::span(text))).isOk());
  EXPECT_EQ(result_.get().code(), Code::kCorrupt);
  EXPECT_EQ(names(), 0u);
}

TEST_F(LyingSender, StaysInTheFolder) {
  offer();
  ContentHash empty;
  say(kEndTag, {.index = 0, .bytes = 0, .hash = empty.finish()});
  auto message = toReceiver_.receiveMessage(kFileChannel, kWait);
  toReceiver_.close();
  const Status status = result_.get();
  EXPECT_TRUE(status.isOk()) << status.toString();
  EXPECT_TRUE(fs::exists(folder_ + "/name")) << "without the ../ of its offer";
}

// The sender is real, the receiver is this test.
class LyingReceiver : public FileTransfer {
 protected:
  void SetUp() override {
    FileTransfer::SetUp();
    std::ofstream(folder_ + "/in") << std::string(100, 'x');
    result_ = std::async(std::launch::async, [this]() -> Status {
      PEERLANE_ASSIGN(const auto file, InputFile::create(folder_ + "/in"));
      return sendFile(*sending_, toReceiver_, *file, kRing).status();
    });
    auto offer = toSender_.receiveMessage(kFileChannel, kWait);
    ASSERT_TRUE(offer.isOk()) << offer.status().toString();
    auto ring = receiving_->allocate(kRing, {.access = Access::kRemoteWrite});
    ASSERT_TRUE(ring.isOk());
    ring_ = *ring;
  }
  void TearDown() override {
    toSender_.close();
    if (result_.valid()) result_.wait();
    FileTransfer::TearDown();
  }
  void answer(uint64_t slotBytes, uint64_t slots) {
    const FileAnswer answer{.slotBytes = slotBytes, .slots = slots, .ring = ring_.share()};
    ASSERT_TRUE(toSender_.sendMessage(kFileChannel, answer.encode()).isOk());
  }

  std::future<Status> result_;
  Region ring_;
};

TEST_F(LyingReceiver, CannotAskForMoreThanWasOffered) {
  answer(1 << 30, 8);
  EXPECT_EQ(result_.get().code(), Code::kCorrupt);
}

TEST_F(LyingReceiver, CannotClaimAnotherHash) {
  answer(4096, 4);
  auto piece = waitNotification(toSender_, kWait);
  ASSERT_TRUE(piece.isOk()) << piece.status().toString();
  EXPECT_EQ(piece->tag, kPieceTag);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(ring_.data()), 100), std::string(100, 'x'));
  auto end = waitNotification(toSender_, kWait);
  ASSERT_TRUE(end.isOk());
  EXPECT_EQ(end->tag, kEndTag);
  const FileOutcome outcome{.bytes = 100};
  ASSERT_TRUE(toSender_.sendMessage(kFileChannel, outcome.encode()).isOk());
  EXPECT_EQ(result_.get().code(), Code::kCorrupt);
}

// What a receiver that stopped takes along fails here before its reason is read.
TEST_F(LyingReceiver, TellsWhyItStoppedAlsoWhenItsRingHasGone) {
  answer(8, 1);
  const FileOutcome outcome{.status = Status(Code::kSystem, "the disk is full")};
  ASSERT_TRUE(toSender_.sendMessage(kFileChannel, outcome.encode()).isOk());
  auto piece = waitNotification(toSender_, kWait);
  ASSERT_TRUE(piece.isOk()) << piece.status().toString();
  ASSERT_TRUE(receiving_->unregister(ring_).isOk());
  ASSERT_TRUE(addSignal(toSender_, kSlotSignal, 1).isOk());  // a slot for the next piece
  const Status failed = result_.get();
  EXPECT_EQ(failed.code(), Code::kSystem) << failed.toString();
  EXPECT_NE(failed.message().find("the receiver: the disk is full"), std::string_view::npos)
      << failed.toString();
}

TEST_F(LyingReceiver, TellsWhyItStopped) {
  answer(8, 1);  // 13 pieces, and no slot comes back but this
  const FileOutcome outcome{.status = Status(Code::kSystem, "the disk is full")};
  ASSERT_TRUE(toSender_.sendMessage(kFileChannel, outcome.encode()).isOk());
  ASSERT_TRUE(addSignal(toSender_, kSlotSignal, kReceiverEnded).isOk());
  const Status status = result_.get();
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.message(), "the receiver: the disk is full");
}

// The file changes after its first piece was read: the ring has one slot, and this test holds it.
class ChangingFile : public LyingReceiver {
 protected:
  void SetUp() override {
    LyingReceiver::SetUp();
    answer(8, 1);
    auto piece = waitNotification(toSender_, kWait);
    ASSERT_TRUE(piece.isOk()) << piece.status().toString();
    ASSERT_EQ(piece->tag, kPieceTag);
    path_ = folder_ + "/in";
  }

  // Takes what comes, as a receiver does. The last word must be that sending was given up.
  void expectGivenUp(const std::string& why) {
    for (uint64_t taken = 1;; ++taken) {
      ASSERT_TRUE(addSignal(toSender_, kSlotSignal, 1).isOk());
      auto next = waitNotification(toSender_, kWait);
      ASSERT_TRUE(next.isOk()) << next.status().toString();
      if (next->tag == kPieceTag) continue;
      ASSERT_EQ(next->tag, kAbortTag) << "all was said to have been sent after " << taken;
      break;
    }
    const FileOutcome outcome{.status = Status(Code::kCancelled, "gave up")};
    ASSERT_TRUE(toSender_.sendMessage(kFileChannel, outcome.encode()).isOk());
    const Status status = result_.get();
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.toString();
    EXPECT_NE(status.message().find("changed while it was sent: " + why), std::string::npos)
        << status.toString();
  }

  std::string path_;
};

TEST_F(ChangingFile, IsNotedWhenItShrinks) {
  fs::resize_file(path_, 10);
  expectGivenUp("it had 100 bytes and has 10");
}

TEST_F(ChangingFile, IsNotedWhenItGrows) {
  fs::resize_file(path_, 150);
  expectGivenUp("it had 100 bytes and has 150");
}

TEST_F(ChangingFile, IsNotedBehindTheReader) {
  std::fstream(path_, std::ios::in | std::ios::out) << 'y';
  // The clock of a file system ticks in milliseconds; the write is to be later than the file.
  fs::last_write_time(path_, fs::last_write_time(path_) + std::chrono::milliseconds(20));
  expectGivenUp("it was written to");
}

TEST_F(ChangingFile, IsNotedWhenAnotherTakesItsName) {
  std::ofstream(folder_ + "/other") << std::string(100, 'x');
  fs::last_write_time(folder_ + "/other", fs::last_write_time(path_));
  fs::rename(folder_ + "/other", path_);
  expectGivenUp("another file has its name");
}

TEST_F(ChangingFile, MayLoseItsName) {
  fs::remove(path_);
  for (uint64_t taken = 1;; ++taken) {
    ASSERT_TRUE(addSignal(toSender_, kSlotSignal, 1).isOk());
    auto next = waitNotification(toSender_, kWait);
    ASSERT_TRUE(next.isOk()) << next.status().toString();
    if (next->tag == kPieceTag) continue;
    EXPECT_EQ(next->tag, kEndTag) << "what was opened was read whole";
    break;
  }
}

}  // namespace
}  // namespace peerlane
