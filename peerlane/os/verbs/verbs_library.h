// SPDX-License-Identifier: Apache-2.0
//
// libibverbs' entry points, looked up at run time: the same binary runs where there is no such
// library. Calls that its header defines inline (posting, polling) go through the tables of an
// opened device and need no entry here. Immutable once loaded.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane::verbs {

// Debian 12's version has all of these; so has every library since 2019.
#define PEERLANE_VERBS_ENTRIES(ENTRY) \
  ENTRY(ibv_get_device_list)          \
  ENTRY(ibv_free_device_list)         \
  ENTRY(ibv_get_device_name)          \
  ENTRY(ibv_open_device)              \
  ENTRY(ibv_close_device)             \
  ENTRY(ibv_query_device)             \
  ENTRY(ibv_query_port)               \
  ENTRY(ibv_query_gid)                \
  ENTRY(ibv_query_pkey)               \
  ENTRY(ibv_alloc_pd)                 \
  ENTRY(ibv_dealloc_pd)               \
  ENTRY(ibv_reg_mr_iova2)             \
  ENTRY(ibv_dereg_mr)                 \
  ENTRY(ibv_create_comp_channel)      \
  ENTRY(ibv_destroy_comp_channel)     \
  ENTRY(ibv_create_cq)                \
  ENTRY(ibv_resize_cq)                \
  ENTRY(ibv_destroy_cq)               \
  ENTRY(ibv_get_cq_event)             \
  ENTRY(ibv_ack_cq_events)            \
  ENTRY(ibv_create_srq)               \
  ENTRY(ibv_modify_srq)               \
  ENTRY(ibv_destroy_srq)              \
  ENTRY(ibv_create_qp)                \
  ENTRY(ibv_modify_qp)                \
  ENTRY(ibv_query_qp)                 \
  ENTRY(ibv_destroy_qp)               \
  ENTRY(ibv_get_async_event)          \
  ENTRY(ibv_ack_async_event)          \
  ENTRY(ibv_event_type_str)           \
  ENTRY(ibv_wc_status_str)            \
  ENTRY(ibv_fork_init)

// Null where the library is older.
#define PEERLANE_VERBS_LATER_ENTRIES(ENTRY) \
  ENTRY(_ibv_query_gid_table)               \
  ENTRY(ibv_is_fork_initialized)            \
  ENTRY(ibv_query_qp_data_in_order)         \
  ENTRY(ibv_reg_dmabuf_mr)

// The argument of ibv_reg_mr_ex(), as libraries from IBVERBS_1.15 on lay it out. Headers of today's
// distributions do not have it.
struct MemoryAttributes {
  static constexpr uint32_t kAddress = 1 << 0;  // bits of `given`, each for the field of that name
  static constexpr uint32_t kDescriptor = 1 << 2;
  static constexpr uint32_t kOffset = 1 << 3;

  size_t bytes = 0;
  int rights = 0;
  uint32_t given = 0;
  uint64_t address = 0;  // of the first byte, for the device
  void* memory = nullptr;
  int descriptor = -1;
  uint64_t offset = 0;
  void* hints = nullptr;
  void* buffer = nullptr;
};
static_assert(sizeof(MemoryAttributes) == 64 && offsetof(MemoryAttributes, address) == 16 &&
              offsetof(MemoryAttributes, descriptor) == 32 &&
              offsetof(MemoryAttributes, offset) == 40);

struct Library {
  // A part of a dma-buf, by the newer call where there is one. Null: errno says why; ENOSYS: the
  // library has no call for it.
  ibv_mr* registerDmaBuf(ibv_pd* domain, int descriptor, uint64_t offset, uint64_t bytes,
                         uint64_t address, int rights) const;

  std::string file;
#define PEERLANE_VERBS_MEMBER(name) decltype(&::name) name = nullptr;
  PEERLANE_VERBS_ENTRIES(PEERLANE_VERBS_MEMBER)
  PEERLANE_VERBS_LATER_ENTRIES(PEERLANE_VERBS_MEMBER)
#undef PEERLANE_VERBS_MEMBER
  ibv_mr* (*ibv_reg_mr_ex)(ibv_pd* domain, MemoryAttributes* memory) = nullptr;
};

// `file`: as PEERLANE_IBV_SO. Loaded at the first call for it and never unloaded; the answer stays.
// Fork is made safe before anything is registered. Errors: kNotSupported with the reason.
// Thread-safe.
Result<const Library*> library(const std::string& file);

}  // namespace peerlane::verbs
