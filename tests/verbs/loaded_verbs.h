// SPDX-License-Identifier: Apache-2.0
//
// libibverbs as these tests load it at run time: PEERLANE_IBV_SO in the environment, else
// libibverbs.so.1. So the same program runs on the software HCA and on a kernel's devices. What
// verbs.h calls through tables needs nothing of this. Set up once, then any thread.
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "tests/fake/software_hca/software_hca.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace peerlane {

struct LoadedVerbs {
  // Ends the program with a sentence when the library or a function of it is missing.
  static const LoadedVerbs& get();

#define LOADED_VERB(name) decltype(&::ibv_##name) name
  LOADED_VERB(get_device_list);
  LOADED_VERB(free_device_list);
  LOADED_VERB(open_device);
  LOADED_VERB(close_device);
  LOADED_VERB(query_device);
  LOADED_VERB(query_gid);
  LOADED_VERB(query_pkey);
  LOADED_VERB(get_pkey_index);
  LOADED_VERB(alloc_pd);
  LOADED_VERB(dealloc_pd);
  LOADED_VERB(reg_mr);
  LOADED_VERB(reg_mr_iova2);
  LOADED_VERB(reg_dmabuf_mr);
  LOADED_VERB(dereg_mr);
  LOADED_VERB(create_comp_channel);
  LOADED_VERB(destroy_comp_channel);
  LOADED_VERB(create_cq);
  LOADED_VERB(destroy_cq);
  LOADED_VERB(get_cq_event);
  LOADED_VERB(ack_cq_events);
  LOADED_VERB(create_srq);
  LOADED_VERB(modify_srq);
  LOADED_VERB(query_srq);
  LOADED_VERB(destroy_srq);
  LOADED_VERB(create_qp);
  LOADED_VERB(modify_qp);
  LOADED_VERB(query_qp);
  LOADED_VERB(destroy_qp);
  LOADED_VERB(qp_to_qp_ex);
  LOADED_VERB(query_qp_data_in_order);
  LOADED_VERB(get_async_event);
  LOADED_VERB(ack_async_event);
  LOADED_VERB(fork_init);
  LOADED_VERB(is_fork_initialized);
  LOADED_VERB(wc_status_str);
  LOADED_VERB(event_type_str);
  LOADED_VERB(port_state_str);
#undef LOADED_VERB
  decltype(&::_ibv_query_gid_ex) query_gid_ex;

  // Null where the device is real.
  void* control(const char* name) const;
  bool isSoftware() const {
    return control("software_hca_hold") != nullptr;
  }

  std::string path;
  void* library = nullptr;
};

}  // namespace peerlane
