// SPDX-License-Identifier: Apache-2.0
//
// What libibverbs exports besides, without which programs and the drivers that they are linked to
// do not load. Calls of drivers end the program, because no driver has a device here; verbs that
// the software HCA does not have are refused.
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace {

[[noreturn]] void refuseDriver(const char* name) {
  fprintf(stderr, "software HCA: a driver called %s; no driver has a device here\n", name);
  abort();
}

}  // namespace

// The arguments are in registers, and nothing looks at them.
#define HCA_DRIVER(name) \
  void name() {          \
    refuseDriver(#name); \
  }
#define HCA_NOT_MADE(name) \
  void* name() {           \
    errno = EOPNOTSUPP;    \
    return nullptr;        \
  }
#define HCA_NOT_DONE(name) \
  int name() {             \
    return EOPNOTSUPP;     \
  }
#define HCA_NOTHING(name) \
  void name() {}

extern "C" {

HCA_NOT_MADE(ibv_create_ah)
HCA_NOT_MADE(ibv_create_ah_from_wc)
HCA_NOT_MADE(ibv_import_device)
HCA_NOT_MADE(ibv_import_dm)
HCA_NOT_MADE(ibv_import_mr)
HCA_NOT_MADE(ibv_import_pd)
HCA_NOT_DONE(ibv_attach_mcast)
HCA_NOT_DONE(ibv_destroy_ah)
HCA_NOT_DONE(ibv_detach_mcast)
HCA_NOT_DONE(ibv_init_ah_from_wc)
HCA_NOT_DONE(ibv_read_ibdev_sysfs_file)
HCA_NOT_DONE(ibv_rereg_mr)
HCA_NOT_DONE(ibv_resolve_eth_l2_from_gid)
// Drivers announce themselves when they are loaded, which perftest's are.
HCA_NOTHING(ibv_register_driver)
HCA_NOTHING(verbs_register_driver_34)
HCA_NOTHING(ibv_unimport_dm)
HCA_NOTHING(ibv_unimport_mr)
HCA_NOTHING(ibv_unimport_pd)

HCA_DRIVER(__ioctl_final_num_attrs)
HCA_DRIVER(__verbs_log)
HCA_DRIVER(_verbs_init_and_alloc_context)
HCA_DRIVER(execute_ioctl)
HCA_DRIVER(ibv_cmd_advise_mr)
HCA_DRIVER(ibv_cmd_alloc_dm)
HCA_DRIVER(ibv_cmd_alloc_mw)
HCA_DRIVER(ibv_cmd_alloc_pd)
HCA_DRIVER(ibv_cmd_attach_mcast)
HCA_DRIVER(ibv_cmd_close_xrcd)
HCA_DRIVER(ibv_cmd_create_ah)
HCA_DRIVER(ibv_cmd_create_counters)
HCA_DRIVER(ibv_cmd_create_cq)
HCA_DRIVER(ibv_cmd_create_cq_ex)
HCA_DRIVER(ibv_cmd_create_flow)
HCA_DRIVER(ibv_cmd_create_flow_action_esp)
HCA_DRIVER(ibv_cmd_create_qp)
HCA_DRIVER(ibv_cmd_create_qp_ex)
HCA_DRIVER(ibv_cmd_create_qp_ex2)
HCA_DRIVER(ibv_cmd_create_rwq_ind_table)
HCA_DRIVER(ibv_cmd_create_srq)
HCA_DRIVER(ibv_cmd_create_srq_ex)
HCA_DRIVER(ibv_cmd_create_wq)
HCA_DRIVER(ibv_cmd_dealloc_mw)
HCA_DRIVER(ibv_cmd_dealloc_pd)
HCA_DRIVER(ibv_cmd_dereg_mr)
HCA_DRIVER(ibv_cmd_destroy_ah)
HCA_DRIVER(ibv_cmd_destroy_counters)
HCA_DRIVER(ibv_cmd_destroy_cq)
HCA_DRIVER(ibv_cmd_destroy_flow)
HCA_DRIVER(ibv_cmd_destroy_flow_action)
HCA_DRIVER(ibv_cmd_destroy_qp)
HCA_DRIVER(ibv_cmd_destroy_rwq_ind_table)
HCA_DRIVER(ibv_cmd_destroy_srq)
HCA_DRIVER(ibv_cmd_destroy_wq)
HCA_DRIVER(ibv_cmd_detach_mcast)
HCA_DRIVER(ibv_cmd_free_dm)
HCA_DRIVER(ibv_cmd_get_context)
HCA_DRIVER(ibv_cmd_modify_cq)
HCA_DRIVER(ibv_cmd_modify_flow_action_esp)
HCA_DRIVER(ibv_cmd_modify_qp)
HCA_DRIVER(ibv_cmd_modify_qp_ex)
HCA_DRIVER(ibv_cmd_modify_srq)
HCA_DRIVER(ibv_cmd_modify_wq)
HCA_DRIVER(ibv_cmd_open_qp)
HCA_DRIVER(ibv_cmd_open_xrcd)
HCA_DRIVER(ibv_cmd_poll_cq)
HCA_DRIVER(ibv_cmd_post_recv)
HCA_DRIVER(ibv_cmd_post_send)
HCA_DRIVER(ibv_cmd_post_srq_recv)
HCA_DRIVER(ibv_cmd_query_context)
HCA_DRIVER(ibv_cmd_query_device_any)
HCA_DRIVER(ibv_cmd_query_mr)
HCA_DRIVER(ibv_cmd_query_port)
HCA_DRIVER(ibv_cmd_query_qp)
HCA_DRIVER(ibv_cmd_query_srq)
HCA_DRIVER(ibv_cmd_read_counters)
HCA_DRIVER(ibv_cmd_reg_dm_mr)
HCA_DRIVER(ibv_cmd_reg_dmabuf_mr)
HCA_DRIVER(ibv_cmd_reg_mr)
HCA_DRIVER(ibv_cmd_req_notify_cq)
HCA_DRIVER(ibv_cmd_rereg_mr)
HCA_DRIVER(ibv_cmd_resize_cq)
HCA_DRIVER(ibv_copy_ah_attr_from_kern)
HCA_DRIVER(ibv_copy_path_rec_from_kern)
HCA_DRIVER(ibv_copy_path_rec_to_kern)
HCA_DRIVER(ibv_copy_qp_attr_from_kern)
HCA_DRIVER(verbs_allow_disassociate_destroy)
HCA_DRIVER(verbs_init_cq)
HCA_DRIVER(verbs_open_device)
HCA_DRIVER(verbs_set_ops)
HCA_DRIVER(verbs_uninit_context)

}  // extern "C"
