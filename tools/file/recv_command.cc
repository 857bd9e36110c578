// SPDX-License-Identifier: Apache-2.0
#include "tools/file/recv_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tools/file/file_receiver.h"
#include "tools/file/ticket_file.h"
#include "tools/memory/device_option.h"
#include "tools/memory/memory_option.h"
#include "tools/report/failure_report.h"

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

// Finds a failure that is certain before any sender is asked to send.
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
    tellUser("a peer offered no file: " + failureText(offer.status()) + "; still waiting");
    peer.close();
  }
}

// While one file is received, tells every other sender that connects that another one was taken: it
// would wait for an answer until this process ends.
class LaterSenders {
 public:
  explicit LaterSenders(Context& context)
      : thread_([this, &context](const std::stop_token& stop) {
          while (!stop.stop_requested() && refuseNext(context)) {
          }
        }) {}
  ~LaterSenders() {
    thread_.request_stop();
    thread_.join();
    // A peer loses everything that it has not read when this side goes.
    const auto deadline = std::chrono::steady_clock::now() + kGoodbye;
    for (const Peer& peer : refused_) {
      while (
          peer.receiveMessage(kFileChannel, deadline - std::chrono::steady_clock::now()).isOk()) {
      }
      peer.close();
    }
  }
  LaterSenders(const LaterSenders&) = delete;
  LaterSenders& operator=(const LaterSenders&) = delete;

 private:
  static constexpr auto kTurn = std::chrono::milliseconds(50);
  static constexpr auto kGoodbye = std::chrono::seconds(2);

  // False: nobody can come any more.
  bool refuseNext(Context& context) {
    const auto peer = context.accept(kTurn);
    if (!peer.isOk()) return peer.status().code() == Code::kTimeout;
    if (peer->sendMessage(kFileChannel, FileAnswer{.tookAnother = true}.encode()).isOk())
      refused_.push_back(*peer);
    return true;
  }

  std::vector<Peer> refused_;
  std::jthread thread_;
};

// Without a reader of its ticket nobody could ever come.
Status publishTicket(const RecvOptions& options, const std::string& ticket,
                     std::unique_ptr<TicketFile>& file) {
  if (!options.ticketFile.empty()) {
    PEERLANE_ASSIGN(file, TicketFile::create(options.ticketFile, ticket));
    return Status::ok();
  }
  const std::string line = ticket + "\n";
  if (std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return Status::ok();
  return Status::system(errno, "the ticket could not be written to standard output");
}

struct RecvRequest {
  uint64_t ringBytes = 0;
  OutputFile::Existing existing = OutputFile::Existing::kRefuse;
  DeviceChoice choice;
};

Result<RecvRequest> readRecvOptions(const RecvOptions& options) {
  RecvRequest request;
  if (options.force) request.existing = OutputFile::Existing::kReplace;
  PEERLANE_ASSIGN(request.ringBytes, readRingBytes(options.memory));
  PEERLANE_RETURN_IF_ERROR(checkOut(options, request.existing));
  PEERLANE_ASSIGN(request.choice, readOneDevice(options.device));
  return request;
}

Status receiveOne(Context& context, const RecvOptions& options, const RecvRequest& request) {
  std::unique_ptr<TicketFile> ticketFile;
  PEERLANE_RETURN_IF_ERROR(publishTicket(options, context.ticket(), ticketFile));
  tellUser("waiting for: peerlane send FILE --to TICKET");
  PEERLANE_ASSIGN(const auto sender, awaitSender(context));
  const auto& [peer, offer] = sender;
  const LaterSenders laterSenders(context);
  const auto report = receiveFile(context, peer, offer,
                                  {.out = options.out,
                                   .existing = request.existing,
                                   .ringBytes = request.ringBytes,
                                   .device = request.choice.local});
  if (report.isOk()) tellUser("received " + fileReportText(*report, peer) + ", verified");
  return report.status();
}

CommandEnd runRecv(const RecvOptions& options) {
  const auto request = readRecvOptions(options);
  if (!request.isOk()) return CommandEnd::notRead(request.status());
  ContextOptions contextOptions{.devices = gpusOf(request->choice.local)};
  if (options.listen != std::vector<std::string>{"none"}) contextOptions.listen = options.listen;
  auto context = Context::create(contextOptions);
  if (context.status().code() == Code::kInvalidArgument) {
    // Of what the line says, the addresses alone are not read yet: they are wrong if they are
    // refused without the variables of the environment, too.
    contextOptions.config = Config();
    const auto ofTheLine = Context::create(std::move(contextOptions));
    if (ofTheLine.status().code() == Code::kInvalidArgument)
      return CommandEnd::notRead(ofTheLine.status());
  }
  PEERLANE_RETURN_IF_ERROR(context.status());
  return receiveOne(**context, options, *request);
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
                      "Write the ticket to this file (readable by you only; it goes when the "
                      "command ends) and not to standard output");
  command->add_option("--memory", options->memory, "Staging memory, e.g. 32MiB")
      ->capture_default_str();
  command
      ->add_option(
          "--device", options->device,
          std::string("Where the staging memory lies, as at the sender: ") + kOneDeviceOption)
      ->capture_default_str();
  command->add_flag("--force", options->force, "Replace an existing file");
  command->callback([&exitCode, options] { exitCode = runRecv(*options).report(); });
}

}  // namespace peerlane
