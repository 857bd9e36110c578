// SPDX-License-Identifier: Apache-2.0
#include "tools/file/send_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tools/file/file_sender.h"
#include "tools/memory/device_option.h"
#include "tools/memory/memory_option.h"
#include "tools/report/failure_report.h"

namespace peerlane {
namespace {

struct SendOptions {
  std::string file;
  std::string to;
  std::string memory = kDefaultRing;
  std::string device = "host";
};

// Everything that can be known without the receiver, which goes on waiting for a better try.
struct SendRequest {
  uint64_t ringBytes = 0;
  std::unique_ptr<InputFile> file;
  DeviceChoice choice;
};

Result<SendRequest> readSendOptions(const SendOptions& options) {
  SendRequest request;
  PEERLANE_ASSIGN(request.ringBytes, readRingBytes(options.memory));
  PEERLANE_ASSIGN(request.file, InputFile::create(options.file));
  PEERLANE_ASSIGN(request.choice, readOneDevice(options.device));
  return request;
}

CommandEnd runSend(const SendOptions& options) {
  const auto request = readSendOptions(options);
  if (!request.isOk()) return CommandEnd::notRead(request.status());
  PEERLANE_ASSIGN(const auto context, Context::create({.devices = gpusOf(request->choice.local)}));
  const std::string ticket = options.to.empty() ? context->config().ticket : options.to;
  if (ticket.empty())
    return CommandEnd::notRead(
        Status(Code::kInvalidArgument,
               "no receiver; give the ticket that `peerlane recv` printed by --to or "
               "PEERLANE_TICKET"));
  auto connected = context->connect(ticket, context->config().connectTimeout);
  if (connected.status().code() == Code::kUnavailable)
    return connected.status().withContext(
        "the receiver is not reached (its ticket is good as long as its `peerlane recv` runs)");
  // One that came from the environment says nothing of the line.
  if (!connected.isOk())
    return options.to.empty() ? CommandEnd(connected.status())
                              : CommandEnd::noTicket(connected.status());
  const Peer peer = *std::move(connected);
  const auto report =
      sendFile(*context, peer, *request->file, request->ringBytes, request->choice.local);
  if (report.isOk()) fmt::print("sent {}, verified\n", fileReportText(*report, peer));
  peer.close();
  return report.status();
}

}  // namespace

void addSendCommand(CLI::App& app, int& exitCode) {
  CLI::App* command = app.add_subcommand("send", "Send a file to a process that runs recv");
  auto options = std::make_shared<SendOptions>();
  command->add_option("FILE", options->file, "The file")->required();
  command->add_option("--to", options->to,
                      "The receiver's ticket: the word itself, @file, env:NAME, or - for standard "
                      "input. Without it: PEERLANE_TICKET");
  command->add_option("--memory", options->memory, "Staging memory, e.g. 32MiB")
      ->capture_default_str();
  command
      ->add_option(
          "--device", options->device,
          std::string("Where the staging memory lies, as at the receiver: ") + kOneDeviceOption)
      ->capture_default_str();
  command->callback([&exitCode, options] { exitCode = runSend(*options).report(); });
}

}  // namespace peerlane
