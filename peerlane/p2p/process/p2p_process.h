// SPDX-License-Identifier: Apache-2.0
//
// P2pProcess: the state of the C API in this process; it assembles the parts that the calls work
// with. Made by the first call and never destroyed, because communicators may be used while the
// process exits. A forked child has one of its own. Its handles go on from those of its parent, so
// that an inherited handle names nothing there. Thread-safe.
#pragma once

#include <atomic>

#include "peerlane/p2p/process/communicator_table.h"
#include "peerlane/p2p/process/host_allocations.h"
#include "peerlane/p2p/process/process_contexts.h"
#include "peerlane/p2p/process/root_table.h"
#include "peerlane/p2p/segment/imported_segments.h"
#include "peerlane/p2p/segment/segment_registry.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

class P2pProcess {
 public:
  static P2pProcess& instance();

  ProcessContexts& contexts() { return contexts_; }
  RootTable& roots() { return roots_; }
  CommunicatorTable& communicators() { return communicators_; }
  SegmentRegistry& segments() { return segments_; }
  ImportedSegments& imports() { return imports_; }
  HostAllocations& allocations() { return allocations_; }
  HostStreams& streams() { return streams_; }

  // Imports the segment, and has every communicator with its process ask how it is reached, or
  // forget it.
  Status importSegment(const SegmentName& name);
  // False: the segment was not imported.
  bool unimportSegment(const SegmentName& name);

 private:
  struct Made;
  static std::atomic<Made*> current;
  // `parent`: that of the process that forked this one, or null.
  explicit P2pProcess(const P2pProcess* parent);

  ProcessContexts contexts_;
  SegmentRegistry segments_;
  ImportedSegments imports_;
  HostAllocations allocations_;
  HostStreams streams_;
  RootTable roots_;
  CommunicatorTable communicators_;
};

}  // namespace peerlane::p2p
