// SPDX-License-Identifier: Apache-2.0
//
// libibverbs' entry points, looked up at run time: the same binary runs where there is no such
// library. Calls that its header defines inline (posting, polling) go through the tables of an
// opened device and need no entry here. Immutable once loaded.
#pragma once

#include <infiniband/verbs.h>

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

struct Library {
  std::string file;
#define PEERLANE_VERBS_MEMBER(name) decltype(&::name) name = nullptr;
  PEERLANE_VERBS_ENTRIES(PEERLANE_VERBS_MEMBER)
  PEERLANE_VERBS_LATER_ENTRIES(PEERLANE_VERBS_MEMBER)
#undef PEERLANE_VERBS_MEMBER
};

// `file`: as PEERLANE_IBV_SO. Loaded at the first call for it and never unloaded; the answer stays.
// Fork is made safe before anything is registered. Errors: kNotSupported with the reason.
// Thread-safe.
Result<const Library*> library(const std::string& file);

}  // namespace peerlane::verbs
