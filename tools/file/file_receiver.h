// SPDX-License-Identifier: Apache-2.0
//
// receiveFile: the other end of sendFile. Blocks its thread.
#pragma once

#include <string>

#include "peerlane/session/context/context.h"
#include "tools/file/file_exchange.h"
#include "tools/file/file_sender.h"
#include "tools/report/output_file.h"

namespace peerlane {

struct ReceiveOptions {
  // The file to make, or a folder, in which it gets the sender's name.
  std::string out = ".";
  OutputFile::Existing existing = OutputFile::Existing::kRefuse;
  uint64_t ringBytes = 0;  // at most this much staging memory
  Device device{};         // where it lies; the sender's must be of the same kind
};

// The file that `peer` wants to send. Errors: kPeerLost (it left without a word), kTimeout,
// kCorrupt (it wants something else).
Result<FileOffer> awaitOffer(const Peer& peer);

// Takes the offered file from `peer`. OK only when it stands under its name, on the disk, with the
// hash the sender computed. After an error there is no such file, and the peer was told the reason,
// if it still lives.
Result<FileReport> receiveFile(Context& context, const Peer& peer, const FileOffer& offer,
                               const ReceiveOptions& options);

}  // namespace peerlane
