// SPDX-License-Identifier: Apache-2.0
#include "tests/verbs/loaded_verbs.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace peerlane {
namespace {

LoadedVerbs load() {
  LoadedVerbs verbs;
  const char* chosen = getenv("PEERLANE_IBV_SO");
  verbs.path = chosen == nullptr || *chosen == '\0' ? "libibverbs.so.1" : chosen;
  verbs.library = dlopen(verbs.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (verbs.library == nullptr) {
    fprintf(stderr, "PEERLANE_IBV_SO: %s\n", dlerror());
    exit(2);
  }
  const auto find = [&verbs]<class Function>(const char* name, Function& function) {
    // Without a version: the newest that the library has.
    void* found = dlsym(verbs.library, name);
    if (found == nullptr) {
      fprintf(stderr, "%s has no %s\n", verbs.path.c_str(), name);
      exit(2);
    }
    function = reinterpret_cast<Function>(found);
  };
#define FIND(name) find("ibv_" #name, verbs.name)
  FIND(get_device_list), FIND(free_device_list), FIND(open_device), FIND(close_device);
  FIND(query_device), FIND(query_gid), FIND(query_pkey), FIND(get_pkey_index);
  FIND(alloc_pd), FIND(dealloc_pd);
  FIND(reg_mr), FIND(reg_mr_iova2), FIND(reg_dmabuf_mr), FIND(dereg_mr);
  FIND(create_comp_channel), FIND(destroy_comp_channel);
  FIND(create_cq), FIND(destroy_cq), FIND(get_cq_event), FIND(ack_cq_events);
  FIND(create_srq), FIND(modify_srq), FIND(query_srq), FIND(destroy_srq);
  FIND(create_qp), FIND(modify_qp), FIND(query_qp), FIND(destroy_qp);
  FIND(qp_to_qp_ex), FIND(query_qp_data_in_order), FIND(get_async_event), FIND(ack_async_event);
  FIND(fork_init), FIND(is_fork_initialized);
  FIND(wc_status_str), FIND(event_type_str), FIND(port_state_str);
#undef FIND
  find("_ibv_query_gid_ex", verbs.query_gid_ex);
  return verbs;
}

}  // namespace

const LoadedVerbs& LoadedVerbs::get() {
  static const LoadedVerbs loaded = load();
  return loaded;
}

void* LoadedVerbs::control(const char* name) const {
  return dlsym(library, name);
}

}  // namespace peerlane
