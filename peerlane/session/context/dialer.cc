// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/dialer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "peerlane/os/socket.h"
#include "peerlane/os/thread.h"

namespace peerlane {

struct Dialer::Attempt {
  enum class Stage : uint8_t { kToCome, kRunning, kOver };
  enum class Phase : uint8_t { kWaiting, kDone, kAbandoned };

  // The dialling thread's.
  SocketAddress address;
  std::string text;
  Stage stage = Stage::kToCome;
  Clock::time_point notBefore{};
  bool isRetry = false;  // somebody is there, and had no room
  Status why;            // the last failure

  // Of the run in progress: made by the progress thread, the last two before `phase` is kDone.
  struct Run {
    std::atomic<Phase> phase{Phase::kWaiting};  // release, as kDone
    std::shared_ptr<PeerCore> begun;            // progress thread only
    Status status;
    std::shared_ptr<PeerCore> peer;
  };
  std::shared_ptr<Run> run;
};

// The one that went on behind the proof of the secret, until it has failed.
struct Dialer::Race {
  std::atomic<Attempt::Run*> winner{nullptr};
};

struct Dialer::LookUp {
  std::string text;
  size_t place = 0;               // among the attempts
  std::atomic<bool> done{false};  // release, after the next
  Result<std::vector<SocketAddress>> found = Status(Code::kTimeout, "the name is being looked up");
};

namespace {

// A path that leads nowhere looks the same in the wrong folder, or the wrong container.
Status withItsCure(const SocketAddress& address, Status why) {
  if (address.family() != SocketAddress::Family::kUnixPath || why.code() != Code::kUnavailable ||
      ::access(address.unixName().c_str(), F_OK) == 0)
    return why;
  return Status(why.code(), std::string(why.message()) +
                                "; its process has ended, or its PEERLANE_SOCKET_DIR is no folder "
                                "that both see");
}

}  // namespace

Dialer::~Dialer() {
  abandon();
}

void Dialer::add(const std::string& text) {
  asked_ += (asked_.empty() ? "" : ", ") + text;
  if (!race_) race_ = std::make_shared<Race>();
  if (auto address = SocketAddress::parse(text); address.isOk()) {
    auto attempt = std::make_shared<Attempt>();
    attempt->address = *address;
    attempt->text = text;
    attempts_.push_back(std::move(attempt));
    return;
  }
  auto lookUp = std::make_shared<LookUp>();
  lookUp->text = text;
  lookUp->place = attempts_.size();
  lookUps_.push_back(lookUp);
  // The system's resolver knows no time limit: a thread of its own, which nobody has to wait for.
  auto thread = startThread("looking up a name", [lookUp] {
    lookUp->found = SocketAddress::resolve(lookUp->text);
    lookUp->done.store(true, std::memory_order_release);
  });
  if (thread.isOk()) return thread->detach();
  lookUp->found = thread.status();
  lookUp->done.store(true, std::memory_order_release);
}

void Dialer::leaveOut(const std::string& text, const std::string& why) {
  leftOut_.emplace_back(text, why);
}

void Dialer::takeLookUps() {
  std::erase_if(lookUps_, [this](const std::shared_ptr<LookUp>& lookUp) {
    if (!lookUp->done.load(std::memory_order_acquire)) return false;
    if (!lookUp->found.isOk()) {
      unread_.emplace_back(lookUp->text, lookUp->found.status());
      return true;
    }
    for (const SocketAddress& address : *lookUp->found) {
      auto attempt = std::make_shared<Attempt>();
      attempt->address = address;
      attempt->text = lookUp->text;
      attempts_.push_back(std::move(attempt));
    }
    return true;
  });
}

void Dialer::startDue(Clock::time_point now) {
  using Stage = Attempt::Stage;
  for (const auto& attempt : attempts_) {
    if (attempt->stage != Stage::kToCome) continue;
    // A full queue shows that somebody listens there. To go elsewhere meanwhile would be a worse
    // link for as long as the pair lasts.
    if (attempt->isRetry) {
      if (attempt->notBefore <= now) start(attempt, now);
      if (attempt->address.isUnix() && attempt->stage != Stage::kOver) return;
      continue;
    }
    if (now < nextStart_) return;
    start(attempt, now);
    if (attempt->stage != Stage::kOver) return;
  }
}

void Dialer::start(const std::shared_ptr<Attempt>& attempt, Clock::time_point now) {
  nextStart_ = now + (attempt->address.isUnix() ? kUnixStagger : kStagger);
  auto socket = connectStart(attempt->address);
  if (!socket.isOk()) return failed(*attempt, withItsCure(attempt->address, socket.status()), now);
  attempt->stage = Attempt::Stage::kRunning;
  auto run = attempt->run = std::make_shared<Attempt::Run>();
  const auto done = [run, &progress = progress_](const std::shared_ptr<PeerCore>& peer,
                                                 Status status) {
    run->status = std::move(status);
    run->peer = peer;
    auto waiting = Attempt::Phase::kWaiting;
    // Whoever asked has given up: a peer that nobody holds would be a ghost at the other side.
    if (!run->phase.compare_exchange_strong(waiting, Attempt::Phase::kDone) && peer) peer->close();
    progress.notifyWaiters();
  };
  // Of the run no more than which it is: the peer keeps this function, and the run the peer.
  const auto mayGoOn = [which = run.get(), race = race_] {
    Attempt::Run* nobody = nullptr;
    return race->winner.compare_exchange_strong(nobody, which);
  };
  progress_.post(
      [run, done, mayGoOn, begin = begin_, held = std::make_shared<Fd>(std::move(*socket))] {
        if (run->phase.load() == Attempt::Phase::kAbandoned) return;
        run->begun = begin(std::move(*held), mayGoOn, done);
      });
}

void Dialer::failed(Attempt& attempt, const Status& why, Clock::time_point now) {
  attempt.why = why;
  attempt.stage = Attempt::Stage::kOver;
  {
    const MutexLock lock(lastMutex_);
    last_ = attempt.text + ": " + std::string(why.message());
  }
  if (why.code() == Code::kTryAgain) {
    attempt.stage = Attempt::Stage::kToCome;
    attempt.isRetry = true;
    attempt.notBefore = now + kRetry + kRetry * static_cast<int>(chance_() % 1000) / 1000;
  }
  nextStart_ = now;
}

std::shared_ptr<Dialer::Attempt> Dialer::takeEnded(Clock::time_point now) {
  for (const auto& attempt : attempts_) {
    if (attempt->stage != Attempt::Stage::kRunning ||
        attempt->run->phase.load(std::memory_order_acquire) != Attempt::Phase::kDone)
      continue;
    const bool isTurnedBack = attempt->run->peer && attempt->run->peer->turnedBack();
    if (attempt->run->status.isOk() || isTurnedBack) return attempt;
    Attempt::Run* winner = attempt->run.get();
    const bool hadWon = race_->winner.compare_exchange_strong(winner, nullptr);
    if (!hadWon && attempt->run->status.code() == Code::kClosed) {
      // It made way for another one, and is taken up again should that one fail.
      attempt->stage = Attempt::Stage::kToCome;
      attempt->notBefore = {};
      continue;
    }
    failed(*attempt, attempt->run->status, now);
  }
  return nullptr;
}

Dialer::Clock::time_point Dialer::nextLook(Clock::time_point deadline) const {
  Clock::time_point next = deadline;
  const auto now = Clock::now();
  if (!lookUps_.empty()) next = std::min(next, now + kLookUp);
  for (const auto& attempt : attempts_)
    if (attempt->stage == Attempt::Stage::kToCome)
      next = std::min(next, std::max(attempt->isRetry ? attempt->notBefore : nextStart_,
                                     now + std::chrono::milliseconds(1)));
  return next;
}

bool Dialer::isOver() const {
  return lookUps_.empty() && std::all_of(attempts_.begin(), attempts_.end(), [](const auto& each) {
           return each->stage == Attempt::Stage::kOver;
         });
}

Result<std::shared_ptr<PeerCore>> Dialer::dial(Clock::time_point deadline) {
  const auto begin = Clock::now();
  const auto words = [this] { return openInWords(); };
  const Progress::ListedWait listed(progress_, words, begin, deadline);
  const auto someEnded = [this] {
    return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& each) {
      return each->stage == Attempt::Stage::kRunning &&
             each->run->phase.load(std::memory_order_acquire) == Attempt::Phase::kDone;
    });
  };
  for (;;) {
    const auto now = Clock::now();
    takeLookUps();
    if (const auto decided = takeEnded(now)) {
      auto peer = decided->run->peer;
      decided->stage = Attempt::Stage::kOver;
      return peer;
    }
    // While one of them is setting up its links, nobody else begins.
    if (race_ && race_->winner.load() == nullptr) startDue(now);
    if (isOver()) return verdict("no address of " + whom_ + " led to a connection");
    if (now >= deadline) break;
    const Status waited = progress_.waitAsleep(someEnded, nextLook(deadline));
    if (!waited.isOk() && waited.code() != Code::kTimeout) return waited;
  }
  noteWhatIsOpen();
  return verdict("waited " + durationInWords(Clock::now() - begin) + " for " + whom_ +
                 " to answer");
}

// Called by other threads too: of what the dialling one changes, only what has a lock.
std::string Dialer::openInWords() const {
  std::string text = whom_ + " to answer at " + asked_;
  const MutexLock lock(lastMutex_);
  return last_.empty() ? text : text + "; last: " + last_;
}

void Dialer::noteWhatIsOpen() {
  const Attempt::Run* const winner = race_ ? race_->winner.load() : nullptr;
  for (const auto& attempt : attempts_) {
    if (attempt->stage == Attempt::Stage::kOver) continue;
    std::string open = "not tried: those before it took the time";
    if (attempt->isRetry) open = "nobody had room";
    if (attempt->stage == Attempt::Stage::kRunning)
      open = attempt->run.get() == winner
                 ? "whoever is there knows the secret, and did not finish connecting"
                 : "nobody there showed that he knows the secret";
    if (!attempt->why.isOk()) open += "; last: " + std::string(attempt->why.message());
    attempt->why = Status(Code::kTimeout, open);
  }
  for (const auto& lookUp : lookUps_)
    unread_.emplace_back(lookUp->text, Status(Code::kTimeout, "the name was not resolved"));
}

void Dialer::abandon() {
  for (const auto& attempt : attempts_) {
    if (attempt->stage != Attempt::Stage::kRunning) continue;
    attempt->stage = Attempt::Stage::kOver;
    auto waiting = Attempt::Phase::kWaiting;
    if (attempt->run->phase.compare_exchange_strong(waiting, Attempt::Phase::kAbandoned)) {
      progress_.post([run = attempt->run] {
        if (run->begun) run->begun->close();
        run->begun.reset();
      });
    } else if (attempt->run->peer) {
      attempt->run->peer->closeSoon();
    }
  }
}

Status Dialer::verdict(const std::string& head) const {
  std::vector<std::pair<std::string, Status>> reasons = unread_;
  for (const auto& attempt : attempts_) reasons.emplace_back(attempt->text, attempt->why);
  Code code = Code::kUnavailable;
  constexpr std::array<Code, 3> kTelling{Code::kPermissionDenied, Code::kNotSupported,
                                         Code::kTimeout};
  const auto has = [&](Code wanted) {
    return std::any_of(reasons.begin(), reasons.end(),
                       [&](const auto& each) { return each.second.code() == wanted; });
  };
  if (const auto found = std::find_if(kTelling.begin(), kTelling.end(), has);
      found != kTelling.end())
    code = *found;
  const bool isNonsense =
      !reasons.empty() && std::all_of(reasons.begin(), reasons.end(), [](const auto& each) {
        return each.second.code() == Code::kInvalidArgument;
      });
  if (isNonsense) code = Code::kInvalidArgument;
  std::string text = head;
  for (const auto& [address, why] : leftOut_) text += "; " + address + ": " + why;
  // Addresses that failed alike share the reason.
  for (size_t i = 0; i < reasons.size(); ++i) {
    if (i != 0) text += reasons[i - 1].second.message() == reasons[i].second.message() ? "," : ";";
    text += (i == 0 ? "; " : " ") + reasons[i].first;
    if (i + 1 == reasons.size() || reasons[i + 1].second.message() != reasons[i].second.message())
      text += ": " + std::string(reasons[i].second.message());
  }
  return Status(code, text);
}

}  // namespace peerlane
