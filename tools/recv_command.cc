// SPDX-License-Identifier: Apache-2.0
#include "tools/recv_command.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "tools/device_option.h"
#include "tools/failure_report.h"
#include "tools/file_receiver.h"
#include "tools/memory_option.h"

namespace peerlane {
namespace {

struct RecvOptions {
  std::vector<std::string> listen{"auto"};
  std::string out = ".";
  std::string ticketFile;
  std::string memory = kDefaultRing;
  std::string device = "host";
  bool force = false;
};

// Other users must not read it, and nobody may see half of it: complete under another name, then
// renamed.
Status writeTicket(const std::string& path, const std::string& ticket) {
  const std::string hidden = path + ".new";
  ::unlink(hidden.c_str());
  const int fd = ::open(hidden.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Status::system(errno, "cannot make the ticket file " + path);
  const std::string line = ticket + "\n";
  const bool written = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  ::close(fd);
  if (written && ::rename(hidden.c_str(), path.c_str()) == 0) return Status::ok();
  const int error = errno;
  ::unlink(hidden.c_str());
  return Status::system(error, "cannot write the ticket file " + path);
}

// What would fail anyway fails before anybody is asked to send.
Status checkOut(const RecvOptions& options, OutputFile::Existing existing) {
  struct stat found;
  if (::stat(options.out.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    if (::access(options.out.c_str(), W_OK | X_OK) == 0) return Status::ok();
    return Status::system(errno, "cannot make files in " + options.out);
  }
  return OutputFile::create(options.out, existing).status();
}

// The first peer that offers a file. Others (`peerlane explain TICKET` is one) come and go.
Result<std::pair<Peer, FileOffer>> awaitSender(Context& context) {
  for (;;) {
    PEERLANE_ASSIGN(const Peer peer, context.accept(std::chrono::hours(24 * 365)));
    auto offer = awaitOffer(peer);
    if (offer.isOk()) return std::pair(peer, *std::move(offer));
    fmt::print(stderr, "a peer offered no file: {}; still waiting\n", failureText(offer.status()));
    peer.close();
  }
}

Status runRecv(const RecvOptions& options) {
  const auto existing =
      options.force ? OutputFile::Existing::kReplace : OutputFile::Existing::kRefuse;
  PEERLANE_ASSIGN(const uint64_t ringBytes, readRingBytes(options.memory));
  PEERLANE_RETURN_IF_ERROR(checkOut(options, existing));
  PEERLANE_ASSIGN(const DeviceChoice choice, readOneDevice(options.device));
  ContextOptions contextOptions{.devices = gpusOf(choice.local)};
  if (options.listen != std::vector<std::string>{"none"}) contextOptions.listen = options.listen;
  PEERLANE_ASSIGN(const auto context, Context::create(std::move(contextOptions)));
  if (options.ticketFile.empty()) {
    fmt::print("{}\n", context->ticket());
    std::fflush(stdout);
  } else {
    PEERLANE_RETURN_IF_ERROR(writeTicket(options.ticketFile, context->ticket()));
  }
  fmt::print(stderr, "waiting for: peerlane send FILE --to TICKET\n");
  PEERLANE_ASSIGN(const auto sender, awaitSender(*context));
  const auto& [peer, offer] = sender;
  const auto report = receiveFile(
      *context, peer, offer,
      {.out = options.out, .existing = existing, .ringBytes = ringBytes, .device = choice.local});
  if (report.isOk()) fmt::print(stderr, "received {}, verified\n", fileReportText(*report, peer));
  return report.status();
}

}  // namespace

void addRecvCommand(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand("recv", "Print a ticket and receive one file");
  auto options = std::make_shared<RecvOptions>();
  command
      ->add_option("--listen", options->listen,
                   "auto (every interface), an address such as 10.0.0.1:4000 or [::1]:0, or none "
                   "(processes of this host only); may be given again")
      ->capture_default_str();
  command
      ->add_option("--out", options->out,
                   "The file to make, or a folder, where it gets the sender's name")
      ->capture_default_str();
  command->add_option("--ticket-file", options->ticketFile,
                      "Write the ticket to this file (readable by you only) and not to standard "
                      "output");
  command->add_option("--memory", options->memory, "Staging memory, e.g. 32MiB")
      ->capture_default_str();
  command
      ->add_option(
          "--device", options->device,
          std::string("Where the staging memory lies, as at the sender: ") + kOneDeviceOption)
      ->capture_default_str();
  command->add_flag("--force", options->force, "Replace an existing file");
  command->callback([&exitCode, options] {
    if (const Status status = runRecv(*options); !status.isOk()) exitCode = reportFailure(status);
  });
}

}  // namespace peerlane
