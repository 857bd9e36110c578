// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/inspection.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "peerlane/core/log.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"

namespace peerlane {
namespace {

std::string prefixFor(int pid) {
  return "peerlane-inspect-" + std::to_string(pid) + "-";
}

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{2};     // for all that one context says
constexpr size_t kMostBytes = size_t{16} << 20;  // far above what a context with 10,000 peers says

// Any user may take the name: the answer counts when the process asked for gives it.
Status checkServer(int socket, int pid) {
  PEERLANE_ASSIGN(const PeerCredentials who, peerCredentials(socket));
  if (who.pid != pid)
    return Status(Code::kPermissionDenied, "process " + std::to_string(who.pid) +
                                               " listens there, not " + std::to_string(pid) +
                                               "; what it says is not read");
  struct stat process {};
  if (::stat(("/proc/" + std::to_string(pid)).c_str(), &process) == 0 &&
      process.st_uid != who.uid && who.uid != 0)
    return Status(Code::kPermissionDenied, "user " + std::to_string(who.uid) +
                                               " listens there; the process belongs to " +
                                               std::to_string(process.st_uid));
  return Status::ok();
}

// Fit for a terminal: a report has lines, and no other control characters.
std::string plain(std::string text) {
  for (char& each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if ((byte < 0x20 && each != '\n') || byte >= 0x7f) each = '?';
  }
  return text;
}

Result<std::string> readText(const SocketAddress& address, int pid) {
  const auto deadline = Clock::now() + kPatience;
  PEERLANE_ASSIGN(const Fd socket, connectStart(address));
  PEERLANE_RETURN_IF_ERROR(checkServer(socket.get(), pid));
  std::string text;
  std::array<std::byte, 16 * 1024> space;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{socket.get(), POLLIN, 0};
    const int ready = left <= 0 ? 0 : poll(&wanted, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready != 1)
      return Status(
          Code::kTimeout,
          "the process did not say all within 2 s: it is stopped, or its progress thread stands");
    PEERLANE_ASSIGN(const size_t got, recvSome(socket.get(), space));
    if (got == 0) return plain(std::move(text));
    if (text.size() + got > kMostBytes)
      return Status(Code::kCorrupt, "the report is longer than " + std::to_string(kMostBytes) +
                                        " bytes; no context says so much");
    text.append(reinterpret_cast<const char*>(space.data()), got);
  }
}

}  // namespace

Result<std::unique_ptr<Inspection>> Inspection::create(EventLoop& loop,
                                                       const std::string& socketDirectory,
                                                       const std::string& contextId,
                                                       std::function<std::string()> text) {
  const std::string name = prefixFor(getpid()) + contextId.substr(0, 8);
  PEERLANE_ASSIGN(
      SocketAddress address,
      SocketAddress::parse(socketDirectory.empty() ? "unix:@" + name
                                                   : "unix:" + socketDirectory + "/" + name));
  PEERLANE_ASSIGN(Fd socket, listenOn(address));
  std::unique_ptr<Inspection> inspection(new Inspection(loop, std::move(address), std::move(text)));
  Inspection* self = inspection.get();
  PEERLANE_ASSIGN(
      self->acceptor_,
      Acceptor::create(loop, std::move(socket), "accept on " + self->address_.toString(),
                       {.connection = [self](Fd reader) { self->serve(std::move(reader)); }}));
  return inspection;
}

void Inspection::serve(Fd reader) {
  const auto who = peerCredentials(reader.get());
  if (!who.isOk() || (who->uid != geteuid() && who->uid != 0)) {
    if (strangers_.allows())
      PEERLANE_LOG_WARN(
          "inspection refused: the reader is neither this user nor an administrator{}",
          strangers_.leftOut());
    return;
  }
  // A reader that does not read must not cost more than this.
  if (readers_.size() == kMaxReaders) readers_.pop_front();
  Reader& taken = readers_.emplace_back();
  taken.socket = std::move(reader);
  taken.text = text_();
  auto watch = loop_.watch(taken.socket.get(), false, true, [this, &taken] { write(taken); });
  if (watch.isOk()) taken.watch = std::move(*watch);
  write(taken);
}

// What the socket's buffer does not take goes later. The end of the text ends the reader.
void Inspection::write(Reader& reader) {
  while (reader.sent < reader.text.size()) {
    const auto rest = std::as_bytes(std::span(reader.text)).subspan(reader.sent);
    const auto sent = sendSome(reader.socket.get(), rest);
    if (!sent.isOk() && sent.status().code() == Code::kTryAgain) return;
    if (!sent.isOk()) break;
    reader.sent += *sent;
  }
  readers_.remove_if([&](const Reader& each) { return &each == &reader; });
}

Result<std::vector<std::string>> inspectProcess(int pid, const std::string& socketDirectory) {
  std::vector<std::string> names;
  const std::string prefix = prefixFor(pid);
  if (socketDirectory.empty()) {
    std::ifstream table("/proc/net/unix");
    for (std::string line; std::getline(table, line);)
      if (const size_t at = line.find("@" + prefix); at != std::string::npos)
        names.push_back("unix:" + line.substr(at));
  } else {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(socketDirectory, error))
      if (entry.path().filename().string().starts_with(prefix))
        names.push_back("unix:" + entry.path().string());
  }
  std::vector<std::string> texts;
  std::string failures;
  for (const std::string& name : names) {
    PEERLANE_ASSIGN(const SocketAddress address, SocketAddress::parse(name));
    auto text = readText(address, pid);
    if (text.isOk() && !text->empty())
      texts.push_back(std::move(*text));
    else
      failures += "; " + name + ": " +
                  (text.isOk() ? "refused (another user's process)" : text.status().toString());
  }
  if (!texts.empty()) return texts;
  if (!names.empty())
    return Status(Code::kUnavailable, "process " + std::to_string(pid) + " has " +
                                          std::to_string(names.size()) +
                                          " contexts, and none of them can be shown" + failures);
  return Status(Code::kUnavailable,
                "process " + std::to_string(pid) + " shows no Peerlane context here" + failures);
}

}  // namespace peerlane
