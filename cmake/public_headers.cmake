# SPDX-License-Identifier: Apache-2.0
# The headers that users may include; everything else is private to the library. A public header includes
# only the standard library and other public headers (scripts/check_layers.py holds that).

set(PEERLANE_PUBLIC_HEADERS
  peerlane/p2p.h
  peerlane/peerlane.h
  peerlane/channel/blocks/blocks.h
  peerlane/channel/communicator/communicator.h
  peerlane/channel/operation/host_stream.h
  peerlane/channel/signal/notification.h
  peerlane/channel/transfer/plan.h
  peerlane/channel/port/port_channel.h
  peerlane/channel/port/port_channel_device.h
  peerlane/channel/signal/signal.h
  peerlane/channel/transfer/transfer.h
  peerlane/core/config.h
  peerlane/core/device_code.h
  peerlane/core/huge_pages.h
  peerlane/core/log_level.h
  peerlane/core/log_limit.h
  peerlane/core/limits.h
  peerlane/core/status.h
  peerlane/core/text.h
  peerlane/memory/device.h
  peerlane/memory/exported_range.h
  peerlane/memory/gpu_list.h
  peerlane/memory/invalidation.h
  peerlane/memory/memory_kind.h
  peerlane/memory/memory_provider.h
  peerlane/memory/region.h
  peerlane/memory/region_reference.h
  peerlane/os/fd.h
  peerlane/os/shared_fd.h
  peerlane/os/topology.h
  peerlane/os/verbs/device_distance.h
  peerlane/os/verbs/nic_writes.h
  peerlane/os/verbs/rdma_report.h
  peerlane/os/verbs/rdma_trial.h
  peerlane/program/words/copy_device.h
  peerlane/program/device/device_stream.h
  peerlane/program/ring/packet_device.h
  peerlane/program/ring/port_request.h
  peerlane/program/device/preload.h
  peerlane/program/ring/resident_port_device.h
  peerlane/program/words/shared_word.h
  peerlane/program/words/team.h
  peerlane/progress/fifo_device.h
  peerlane/session/context/context.h
  peerlane/session/context/inspect_process.h
  peerlane/session/peer/peer.h
  peerlane/session/peer/route.h)
# Made at configure time, installed beside the others.
set(PEERLANE_GENERATED_PUBLIC_HEADERS
  peerlane/core/version.h)
