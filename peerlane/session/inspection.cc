// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/inspection.h"

#include <poll.h>
#include <unistd.h>

#include <array>
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

bool waitFor(int fd, short events) {
  pollfd wanted{fd, events, 0};
  return poll(&wanted, 1, 2000) == 1;
}

Result<std::string> readText(const SocketAddress& address) {
  PEERLANE_ASSIGN(const Fd socket, connectStart(address));
  std::string text;
  std::array<std::byte, 16 * 1024> space;
  for (;;) {
    if (!waitFor(socket.get(), POLLIN))
      return Status(Code::kTimeout,
                    "the process did not answer within 2 s: its progress thread is stuck");
    PEERLANE_ASSIGN(const size_t got, recvSome(socket.get(), space));
    if (got == 0) return text;
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

Inspection::~Inspection() {
  if (address_.family() == SocketAddress::Family::kUnixPath) removeUnixPath(address_);
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
    auto text = readText(address);
    if (text.isOk() && !text->empty())
      texts.push_back(std::move(*text));
    else
      failures += "; " + name + ": " +
                  (text.isOk() ? "refused (another user's process)" : text.status().toString());
  }
  if (!texts.empty()) return texts;
  return Status(Code::kUnavailable,
                "process " + std::to_string(pid) + " shows no Peerlane context here" + failures);
}

}  // namespace peerlane
