// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/line/link_lines.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

static_assert(LinkLine::kMostBytes == control::kMaxWordsBytes);

// One end of one line. A link may keep it for longer than its peer lives: so it owns nothing of the
// peer, and uses the services of the peer's context only until end().
class ControlLine final : public LinkLine, public std::enable_shared_from_this<ControlLine> {
 public:
  ControlLine(std::string transport, Progress& progress, std::weak_ptr<void> owner,
              LinkLines::Send send)
      : transport_(std::move(transport)),
        progress_(progress),
        owner_(std::move(owner)),
        send_(std::move(send)) {}

  void say(std::vector<std::byte> words) override {
    PEERLANE_CHECK(words.size() <= kMostBytes);
    // Under the lock, because the engine lives until end() at least, and so that two threads that
    // agree on an order between them have the same order here.
    const MutexLock lock(mutex_);
    if (isEnded_) return;
    progress_.post([self = shared_from_this(), words = std::move(words)]() mutable {
      self->send(std::move(words));
    });
  }

  void listen(Heard heard) override {
    std::shared_ptr<const Heard> before;  // destroyed under no lock
    const MutexLock lock(mutex_);
    if (isEnded_) return;
    before = std::exchange(heard_, std::make_shared<const Heard>(std::move(heard)));
    keeps_ = true;
    progress_.post([self = shared_from_this()] {
      if (const auto kept = self->owner_.lock()) self->hearAll();
    });
  }

  void stopListening() override {
    std::shared_ptr<const Heard> before;
    const MutexLock lock(mutex_);
    before = std::move(heard_);
    keeps_ = false;
    kept_.clear();
    while (isHearing_ && hearer_ != std::this_thread::get_id()) heardOne_.wait(mutex_);
  }

  // Progress thread. The peer's end said this.
  Status take(std::vector<std::byte> words) {
    {
      const MutexLock lock(mutex_);
      if (isEnded_ || !keeps_) {
        PEERLANE_LOG_DEBUG("link {}: {} bytes of the peer's end came, and nobody listens",
                           transport_, words.size());
        return Status::ok();
      }
      // Once somebody listens, all that is kept is heard below, before or after what listen()
      // posts.
      if (!heard_ && kept_.size() >= kMostKept)
        return Status(Code::kCorrupt, "the peer's end of link '" + transport_ +
                                          "' says more than " + std::to_string(kMostKept) +
                                          " things before this end listens");
      kept_.push_back(std::move(words));
    }
    hearAll();
    return Status::ok();
  }

  void end() {
    std::shared_ptr<const Heard> before;
    const MutexLock lock(mutex_);
    isEnded_ = true;
    before = std::move(heard_);
    kept_.clear();
  }

 private:
  // Progress thread.
  void send(std::vector<std::byte> words) {
    const auto kept = owner_.lock();
    if (!kept || isEnded()) return;
    send_({transport_, std::move(words)});
  }
  bool isEnded() {
    const MutexLock lock(mutex_);
    return isEnded_;
  }

  // Progress thread. Does nothing inside `heard`: the call around it goes on with what there is.
  void hearAll() {
    while (hearNext()) {
    }
  }
  bool hearNext() {
    std::shared_ptr<const Heard> heard;
    std::vector<std::byte> words;
    {
      const MutexLock lock(mutex_);
      if (!heard_ || kept_.empty() || isHearing_) return false;
      heard = heard_;
      words = std::move(kept_.front());
      kept_.pop_front();
      isHearing_ = true;
      hearer_ = std::this_thread::get_id();
    }
    (*heard)(words);
    // Before stopListening() returns: its caller may end what the function refers to.
    heard.reset();
    const MutexLock lock(mutex_);
    isHearing_ = false;
    heardOne_.notifyAll();
    return true;
  }

  const std::string transport_;
  Progress& progress_;  // not after end()
  const std::weak_ptr<void> owner_;
  const LinkLines::Send send_;  // while the owner lives

  Mutex mutex_;
  Condition heardOne_;  // isHearing_ is false again
  bool isEnded_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool keeps_ PEERLANE_GUARDED_BY(mutex_) = true;  // what comes; false after stopListening()
  std::shared_ptr<const Heard> heard_ PEERLANE_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> kept_ PEERLANE_GUARDED_BY(mutex_);
  bool isHearing_ PEERLANE_GUARDED_BY(mutex_) = false;  // `heard` runs, on the thread hearer_
  std::thread::id hearer_ PEERLANE_GUARDED_BY(mutex_);
};

std::shared_ptr<LinkLine> LinkLines::make(const std::string& transport) {
  auto& line = lines_[transport];
  line = std::make_shared<ControlLine>(transport, progress_, owner_, send_);
  return line;
}

Status LinkLines::handle(control::LinkMessage& message) {
  const auto found = lines_.find(message.transport);
  if (found == lines_.end())
    return Status(Code::kCorrupt, "the peer speaks about a link of '" + message.transport +
                                      "', which was not offered");
  if (found->second == nullptr) {
    PEERLANE_LOG_DEBUG("link {}: {} bytes of the peer's end came after the end of the link",
                       message.transport, message.words.size());
    return Status::ok();
  }
  // `heard` may end the line.
  const std::shared_ptr<ControlLine> line = found->second;
  return line->take(std::move(message.words));
}

void LinkLines::end(const std::string& transport) {
  if (const auto line = std::exchange(lines_[transport], nullptr)) line->end();
}

void LinkLines::endAllBut(const std::vector<std::string>& transports) {
  for (auto& [transport, line] : lines_)
    if (std::find(transports.begin(), transports.end(), transport) == transports.end())
      if (const auto ended = std::exchange(line, nullptr)) ended->end();
}

void LinkLines::end() {
  endAllBut({});
}

}  // namespace peerlane
