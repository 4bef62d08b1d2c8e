/* Every exported function that can fail, called so that it fails: the status is set, and the text
 * names the function and the user's line. The rows below are those of core/ops/api.def.
 * Labels: quick optimised. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <etch/modes.h>
#include <etch/nn.h>
#include <etch/optim.h>
#include <etch/opcheck.h>
#include <etch/profile.h>

#include "tests/trace_support.h"

static etch_tensor *x, *assigned; /* x: f32[2, 3] */
static etch_graph *graph;
static etch_mode *entered;
static etch_module *parent, *child;

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}
static etch_tensor *forward(etch_module *m, etch_tensor *t) {
    (void)m;
    return etch_neg(t);
}
static etch_tensor *body(etch_tensor *t) { return etch_neg(t); }
static etch_callable none = {1, NULL, NULL};

/* FAILS(function, the name that it has for users, whether a call of it has failed) */
#define FAILING(FAILS)                                                                             \
    FAILS(etch_set_default_dtype, "etch_set_default_dtype", etch_set_default_dtype(77) != ETCH_OK) \
    FAILS(etch_keep, "etch_keep", !etch_keep(NULL))                                                \
    FAILS(etch_assign, "etch_assign", etch_assign(&assigned, NULL) != ETCH_OK)                     \
    FAILS(etch_set_print_precision, "etch_set_print_precision",                                    \
          etch_set_print_precision(-9) != ETCH_OK)                                                 \
    FAILS(etch_dtype_of, "etch_dtype_of", etch_dtype_of(NULL) == ETCH_DTYPE_COUNT)                 \
    FAILS(etch_ndim, "etch_ndim", etch_ndim(NULL) == -1)                                           \
    FAILS(etch_size, "etch_size", etch_size(x, 5) == -1)                                           \
    FAILS(etch_stride, "etch_stride", etch_stride(x, 5) == -1)                                     \
    FAILS(etch_sizes, "etch_sizes", etch_sizes(NULL).n == 0)                                       \
    FAILS(etch_numel, "etch_numel", etch_numel(NULL) == -1)                                        \
    FAILS(etch_storage_offset, "etch_storage_offset", etch_storage_offset(NULL) == -1)             \
    FAILS(etch_is_contiguous, "etch_is_contiguous", !etch_is_contiguous(NULL))                     \
    FAILS(etch_shares_storage, "etch_shares_storage", !etch_shares_storage(x, NULL))               \
    FAILS(etch_is_deferred, "etch_is_deferred", !etch_is_deferred(NULL))                           \
    FAILS(etch_from_host, "etch_from_host", !etch_from_host(NULL, ETCH_F32, ETCH_SHAPE(2)))        \
    FAILS(etch_wrap_host, "etch_wrap_host",                                                        \
          !etch_wrap_host(NULL, ETCH_F32, ETCH_SHAPE(2), NULL, NULL))                              \
    FAILS(etch_npy_load, "etch_npy_load", !etch_npy_load("/nowhere.npy"))                          \
    FAILS(etch_npy_save, "etch_npy_save", etch_npy_save("/nowhere/x.npy", x) != ETCH_OK)           \
    FAILS(etch_item, "etch_item", isnan(etch_item(x)))                                             \
    FAILS(etch_item_int, "etch_item_int", etch_item_int(x) == INT64_MIN)                           \
    FAILS(etch_to_host, "etch_to_host", etch_to_host(x, NULL, 0) != ETCH_OK)                       \
    FAILS(etch_data, "etch_data", !etch_data(NULL))                                                \
    FAILS(etch_data_mut, "etch_data_mut", !etch_data_mut(NULL))                                    \
    FAILS(etch_data_end, "etch_data_end", (etch_data_end(NULL), true))                             \
    FAILS(etch_print, "etch_print", etch_print(NULL) != ETCH_OK)                                   \
    FAILS(etch_format, "etch_format", etch_format(NULL, NULL, 0) == -1)                            \
    FAILS(etch_equal, "etch_equal", !etch_equal(x, NULL))                                          \
    FAILS(etch_allclose, "etch_allclose", !etch_allclose(NULL, x, 0, 0, false))                    \
    FAILS(etch_bitwise_equal, "etch_bitwise_equal", !etch_bitwise_equal(x, ETCH_NONE))             \
    FAILS(etch_set_num_threads, "etch_set_num_threads", etch_set_num_threads(0) != ETCH_OK)        \
    FAILS(etch_compile_fn0, "etch_compile", !etch_compile_fn0(NULL, NULL))                         \
    FAILS(etch_compile_fn1, "etch_compile", !etch_compile_fn1(NULL, NULL))                         \
    FAILS(etch_compile_fn2, "etch_compile", !etch_compile_fn2(NULL, NULL))                         \
    FAILS(etch_compile_fn3, "etch_compile", !etch_compile_fn3(NULL, NULL))                         \
    FAILS(etch_compile_fn4, "etch_compile", !etch_compile(body, .backend = "quantum"))             \
    FAILS(etch_compile_fn5, "etch_compile", !etch_compile_fn5(NULL, NULL))                         \
    FAILS(etch_compile_fn6, "etch_compile", !etch_compile_fn6(NULL, NULL))                         \
    FAILS(etch_compile_fn7, "etch_compile", !etch_compile_fn7(NULL, NULL))                         \
    FAILS(etch_compile_fn8, "etch_compile", !etch_compile_fn8(NULL, NULL))                         \
    FAILS(etch_compile_n, "etch_compile", !etch_compile_n(NULL, NULL))                             \
    FAILS(etch_call_n, "etch_call", etch_call_n(NULL, NULL, 0, NULL, 0) != ETCH_OK)                \
    FAILS(etch_call_one, "etch_call", !etch_call_one(NULL, NULL, 0))                               \
    FAILS(etch_site_fn0, "etch_site", !etch_site_fn0(NULL, NULL))                                  \
    FAILS(etch_site_fn1, "etch_site", !etch_site_fn1(NULL, body))                                  \
    FAILS(etch_site_fn2, "etch_site", !etch_site_fn2(NULL, NULL))                                  \
    FAILS(etch_site_fn3, "etch_site", !etch_site_fn3(NULL, NULL))                                  \
    FAILS(etch_site_fn4, "etch_site", !etch_site_fn4(NULL, NULL))                                  \
    FAILS(etch_site_fn5, "etch_site", !etch_site_fn5(NULL, NULL))                                  \
    FAILS(etch_site_fn6, "etch_site", !etch_site_fn6(NULL, NULL))                                  \
    FAILS(etch_site_fn7, "etch_site", !etch_site_fn7(NULL, NULL))                                  \
    FAILS(etch_site_fn8, "etch_site", !etch_site_fn8(NULL, NULL))                                  \
    FAILS(etch_site_n, "etch_site", !etch_site_n(NULL, NULL, NULL))                                \
    FAILS(etch_mark_dynamic, "etch_mark_dynamic", etch_mark_dynamic(x, 7, 0, 0) != ETCH_OK)        \
    FAILS(etch_mark_static, "etch_mark_static", etch_mark_static(NULL, 0) != ETCH_OK)              \
    FAILS(etch_on_compile_start, "etch_on_compile_start", !etch_on_compile_start(NULL, NULL))      \
    FAILS(etch_on_compile_end, "etch_on_compile_end", !etch_on_compile_end(NULL, NULL))            \
    FAILS(etch_set_logs, "etch_set_logs", etch_set_logs("nonsense") != ETCH_OK)                    \
    FAILS(etch_op_find, "etch_op_find", !etch_op_find("nonsense"))                                 \
    FAILS(etch_op_call, "etch_op_call", etch_op_call(NULL, NULL, 0, NULL, 0) != ETCH_OK)           \
    FAILS(etch_redispatch, "etch_redispatch", etch_redispatch(NULL, NULL, 0, NULL, 0) != ETCH_OK)  \
    FAILS(etch_op_register, "etch_op_register", !etch_op_register("nonsense", NULL))               \
    FAILS(etch_op_override, "etch_op_override", !etch_op_override(NULL, "cpu", NULL, NULL))        \
    FAILS(etch_mode_create, "etch_mode_new", !etch_mode_create(NULL, NULL, NULL))                  \
    FAILS(etch_mode_free, "etch_mode_free", (etch_mode_free(entered), true))                       \
    FAILS(etch_mode_push, "etch_mode_push", etch_mode_push(NULL) != ETCH_OK)                       \
    FAILS(etch_mode_pop, "etch_mode_pop", etch_mode_pop(NULL) != ETCH_OK)                          \
    FAILS(etch_graph_input, "etch_graph_input", !etch_graph_input(graph, 9))                       \
    FAILS(etch_graph_output, "etch_graph_output", !etch_graph_output(graph, -1))                   \
    FAILS(etch_graph_node_of, "etch_graph_node_of", !etch_graph_node_of(graph, x))                 \
    FAILS(etch_node_args, "etch_node_args", etch_node_args(etch_graph_first(graph), NULL) == -1)   \
    FAILS(etch_graph_insert, "etch_graph_insert",                                                  \
          !etch_graph_insert(graph, NULL, etch_op_find("neg"), NULL, 3))                           \
    FAILS(etch_graph_replace_uses, "etch_graph_replace_uses",                                      \
          etch_graph_replace_uses(graph, NULL, NULL) != ETCH_OK)                                   \
    FAILS(etch_graph_replace, "etch_graph_replace",                                                \
          !etch_graph_replace(graph, NULL, NULL, NULL, 0))                                         \
    FAILS(etch_graph_erase, "etch_graph_erase", etch_graph_erase(graph, NULL) != ETCH_OK)          \
    FAILS(etch_graph_format, "etch_graph_format", etch_graph_format(NULL, NULL, 0) == -1)          \
    FAILS(etch_graph_parse, "etch_graph_parse", !etch_graph_parse("nonsense"))                     \
    FAILS(etch_register_backend, "etch_register_backend",                                          \
          etch_register_backend(NULL, NULL, NULL) != ETCH_OK)                                      \
    FAILS(etch_unregister_backend, "etch_unregister_backend",                                      \
          etch_unregister_backend("native") != ETCH_OK)                                            \
    FAILS(etch_compile_counter, "etch_compile_counter", !etch_compile_counter(NULL))               \
    FAILS(etch_profiling_mode_times, "etch_profiling_mode_times",                                  \
          etch_profiling_mode_times(NULL, NULL, 0) == -1)                                          \
    FAILS(etch_profiling_mode_table, "etch_profiling_mode_table",                                  \
          etch_profiling_mode_table(NULL, NULL, 0) == -1)                                          \
    FAILS(etch_statistics_mode_count, "etch_statistics_mode_count",                                \
          etch_statistics_mode_count(NULL, NULL) == -1)                                            \
    FAILS(etch_statistics_mode_text, "etch_statistics_mode_text",                                  \
          etch_statistics_mode_text(NULL, NULL, 0) == -1)                                          \
    FAILS(etch_conditional_mode, "etch_conditional_mode",                                          \
          !etch_conditional_mode(NULL, 0, NULL, NULL))                                             \
    FAILS(etch_replacement_mode, "etch_replacement_mode", !etch_replacement_mode(NULL, NULL))      \
    FAILS(etch_replacement_mode_count, "etch_replacement_mode_count",                              \
          etch_replacement_mode_count(NULL) == -1)                                                 \
    FAILS(etch_profile_begin, "etch_profile_begin", etch_profile_begin("/nowhere/x") != ETCH_OK)   \
    FAILS(etch_profile_end, "etch_profile_end", etch_profile_end() != ETCH_OK)                     \
    FAILS(etch_vmap_n, "etch_vmap", !etch_vmap_n(none, ETCH_DIMS(0), ETCH_DIMS(0), NULL))          \
    FAILS(etch_jvp_n, "etch_jvp", etch_jvp_n(none, &x, &x, 1, &assigned, &assigned, 1) != ETCH_OK) \
    FAILS(etch_vjp_n, "etch_vjp",                                                                  \
          etch_vjp_n(none, &x, 1, NULL, &assigned, 1, &assigned) != ETCH_OK)                       \
    FAILS(etch_jacobian_n, "etch_jacobian", !etch_jacobian_n(none, &x, 1, NULL))                   \
    FAILS(etch_hessian_n, "etch_hessian", !etch_hessian_n(none, &x, 1, NULL))                      \
    FAILS(etch_disable, "etch_disable", !(etch_disable)(none, false))                              \
    FAILS(etch_allow_in_graph, "etch_allow_in_graph", !(etch_allow_in_graph)(none))                \
    FAILS(etch_assume_constant, "etch_assume_constant", !(etch_assume_constant)(none))             \
    FAILS(etch_set_stance, "etch_set_stance", etch_set_stance((etch_stance)9) != ETCH_OK)          \
    FAILS(etch_explain, "etch_explain", !etch_explain(NULL))                                       \
    FAILS(etch_explain_text, "etch_explain", etch_explain_text(NULL, NULL, 0) == -1)               \
    FAILS(etch_opcheck, "etch_opcheck", etch_opcheck(NULL, NULL, 0, NULL, 0) != ETCH_OK)           \
    FAILS(etch_module_new, "etch_module_new", !etch_module_new(NULL, NULL))                        \
    FAILS(etch_module_free, "etch_module_free", (etch_module_free(child), true))                   \
    FAILS(etch_module_add_parameter, "etch_module_add_parameter",                                  \
          etch_module_add_parameter(parent, "a.b", x) != ETCH_OK)                                  \
    FAILS(etch_module_add_child, "etch_module_add_child",                                          \
          etch_module_add_child(parent, "child", child) != ETCH_OK)                                \
    FAILS(etch_module_parameter, "etch_module_parameter", !etch_module_parameter(parent, "no"))    \
    FAILS(etch_module_call, "etch_module_call", !etch_module_call(NULL, x))                        \
    FAILS(etch_module_forward_pre_hook, "etch_module_forward_pre_hook",                            \
          !etch_module_forward_pre_hook(parent, NULL, NULL))                                       \
    FAILS(etch_module_forward_hook, "etch_module_forward_hook",                                    \
          !etch_module_forward_hook(NULL, NULL, NULL))                                             \
    FAILS(etch_module_compile_with, "etch_module_compile",                                         \
          etch_module_compile_with(NULL, NULL) != ETCH_OK)                                         \
    FAILS(etch_nn_linear, "etch_nn_linear", !etch_nn_linear(-1, 2, ETCH_F32))                      \
    FAILS(etch_module_new_n, "etch_module_new_n", !etch_module_new_n("x", NULL))                   \
    FAILS(etch_module_set_ctx, "etch_module_set_ctx",                                              \
          etch_module_set_ctx(NULL, x, NULL, NULL) != ETCH_OK)                                     \
    FAILS(etch_module_set_config, "etch_module_set_config",                                        \
          etch_module_set_config(NULL, "") != ETCH_OK)                                             \
    FAILS(etch_module_copy, "etch_module_copy", !etch_module_copy(NULL))                           \
    FAILS(etch_module_add_buffer, "etch_module_add_buffer",                                        \
          etch_module_add_buffer(parent, "", x) != ETCH_OK)                                        \
    FAILS(etch_module_set_tensor, "etch_module_set_tensor",                                        \
          etch_module_set_tensor(parent, "no", x) != ETCH_OK)                                      \
    FAILS(etch_module_buffer, "etch_module_buffer", !etch_module_buffer(parent, "no"))             \
    FAILS(etch_module_find, "etch_module_find", !etch_module_find(parent, "no"))                   \
    FAILS(etch_module_train, "etch_module_train", etch_module_train(NULL, true) != ETCH_OK)        \
    FAILS(etch_module_to, "etch_module_to", etch_module_to(parent, ETCH_I8) != ETCH_OK)            \
    FAILS(etch_module_to_device, "etch_module_to_device",                                          \
          etch_module_to_device(NULL, 0) != ETCH_OK)                                               \
    FAILS(etch_module_call_n, "etch_module_call_n",                                                \
          etch_module_call_n(parent, &x, 99, NULL, 0) != ETCH_OK)                                  \
    FAILS(etch_functional_call, "etch_functional_call",                                            \
          etch_functional_call(parent, NULL, 7, &x, 1, NULL, 0) != ETCH_OK)                        \
    FAILS(etch_module_forward_pre_hook_n, "etch_module_forward_pre_hook_n",                        \
          !etch_module_forward_pre_hook_n(parent, NULL, NULL))                                     \
    FAILS(etch_module_forward_hook_n, "etch_module_forward_hook_n",                                \
          !etch_module_forward_hook_n(parent, NULL, NULL))                                         \
    FAILS(etch_nn_init_with, "etch_nn_init", etch_nn_init_with(x, "no", NULL) != ETCH_OK)          \
    FAILS(etch_quantize, "etch_quantize", etch_quantize(x, 8, 0, NULL, NULL) != ETCH_OK)           \
    FAILS(etch_quantize_with, "etch_quantize_with",                                                \
          etch_quantize_with(x, 8, 0, ETCH_F32, NULL, NULL) != ETCH_OK)                            \
    FAILS(etch_nn_linear_with, "etch_nn_linear", !etch_nn_linear_with(0, 1, ETCH_F32, true))       \
    FAILS(etch_nn_dropout, "etch_nn_dropout", !etch_nn_dropout(2))                                 \
    FAILS(etch_nn_conv1d_with, "etch_nn_conv1d", !etch_nn_conv1d_with(0, 1, 1, ETCH_F32, NULL))    \
    FAILS(etch_nn_conv2d_with, "etch_nn_conv2d",                                                   \
          !etch_nn_conv2d_with(1, 1, ETCH_SHAPE(1), ETCH_F32, NULL))                               \
    FAILS(etch_nn_max_pool2d_with, "etch_nn_max_pool2d",                                           \
          !etch_nn_max_pool2d_with(ETCH_SHAPE(1), NULL))                                           \
    FAILS(etch_nn_avg_pool2d_with, "etch_nn_avg_pool2d",                                           \
          !etch_nn_avg_pool2d_with(ETCH_SHAPE(1), NULL))                                           \
    FAILS(etch_nn_layer_norm_with, "etch_nn_layer_norm",                                           \
          !etch_nn_layer_norm_with(ETCH_SHAPE(0), ETCH_F32, NULL))                                 \
    FAILS(etch_nn_rms_norm_with, "etch_nn_rms_norm",                                               \
          !etch_nn_rms_norm_with(ETCH_SHAPE(0), ETCH_F32, NULL))                                   \
    FAILS(etch_nn_batch_norm1d_with, "etch_nn_batch_norm1d",                                       \
          !etch_nn_batch_norm1d_with(0, ETCH_F32, NULL))                                           \
    FAILS(etch_nn_batch_norm2d_with, "etch_nn_batch_norm2d",                                       \
          !etch_nn_batch_norm2d_with(1, ETCH_I8, NULL))                                            \
    FAILS(etch_nn_group_norm_with, "etch_nn_group_norm",                                           \
          !etch_nn_group_norm_with(2, 3, ETCH_F32, NULL))                                          \
    FAILS(etch_nn_embedding, "etch_nn_embedding", !etch_nn_embedding(0, 1, ETCH_F32))              \
    FAILS(etch_nn_multihead_attention_with, "etch_nn_multihead_attention",                         \
          !etch_nn_multihead_attention_with(3, 2, ETCH_F32, NULL))                                 \
    FAILS(etch_nn_lstm_cell, "etch_nn_lstm_cell", !etch_nn_lstm_cell(0, 1, ETCH_F32))              \
    FAILS(etch_nn_gru_cell, "etch_nn_gru_cell", !etch_nn_gru_cell(1, 1, ETCH_I8))                  \
    FAILS(etch_module_requires_grad_, "etch_module_requires_grad_",                                \
          etch_module_requires_grad_(NULL, true) != ETCH_OK)                                       \
    FAILS(etch_module_zero_grad, "etch_module_zero_grad", etch_module_zero_grad(NULL) != ETCH_OK)  \
    FAILS(etch_module_save, "etch_module_save", etch_module_save(NULL, "x") != ETCH_OK)            \
    FAILS(etch_module_load, "etch_module_load", etch_module_load(NULL, "x", true) != ETCH_OK)      \
    FAILS(etch_module_load_report, "etch_module_load",                                             \
          etch_module_load_report(NULL, "x", true, NULL) != ETCH_OK)                               \
    FAILS(etch_module_register_type, "etch_module_register_type",                                  \
          etch_module_register_type(NULL, NULL) != ETCH_OK)                                        \
    FAILS(etch_module_from_file, "etch_module_from_file", !etch_module_from_file(NULL))            \
    FAILS(etch_safetensors_save, "etch_safetensors_save",                                          \
          etch_safetensors_save(NULL, NULL, 0, NULL, 0) != ETCH_OK)                                \
    FAILS(etch_safetensors_load, "etch_safetensors_load",                                          \
          !etch_safetensors_load("/nowhere.safetensors"))                                          \
    FAILS(etch_safetensors_tensor, "etch_safetensors_tensor", !etch_safetensors_tensor(NULL, 0))   \
    FAILS(etch_nn_cross_entropy_with, "etch_nn_cross_entropy",                                     \
          !etch_nn_cross_entropy_with(x, NULL, NULL))                                              \
    FAILS(etch_nn_nll_loss_with, "etch_nn_nll_loss", !etch_nn_nll_loss_with(x, x, NULL))           \
    FAILS(etch_nn_mse_loss_with, "etch_nn_mse_loss", !etch_nn_mse_loss_with(NULL, x, NULL))        \
    FAILS(etch_nn_l1_loss_with, "etch_nn_l1_loss", !etch_nn_l1_loss_with(x, NULL, NULL))           \
    FAILS(etch_nn_smooth_l1_loss_with, "etch_nn_smooth_l1_loss",                                   \
          !etch_nn_smooth_l1_loss_with(x, NULL, NULL))                                             \
    FAILS(etch_nn_huber_loss_with, "etch_nn_huber_loss", !etch_nn_huber_loss_with(x, NULL, NULL))  \
    FAILS(etch_nn_bce_with_logits_with, "etch_nn_bce_with_logits",                                 \
          !etch_nn_bce_with_logits_with(x, NULL, NULL))                                            \
    FAILS(etch_nn_kl_div_with, "etch_nn_kl_div", !etch_nn_kl_div_with(x, NULL, NULL))              \
    FAILS(etch_optim_sgd_with, "etch_optim_sgd",                                                   \
          !etch_optim_sgd_with(NULL, &(etch_optim_options){.lr = NAN}))                            \
    FAILS(etch_optim_adam_with, "etch_optim_adam",                                                 \
          !etch_optim_adam_with(NULL, &(etch_optim_options){.beta1 = 1}))                          \
    FAILS(etch_optim_adamw_with, "etch_optim_adamw",                                               \
          !etch_optim_adamw_with(NULL, &(etch_optim_options){.beta2 = 2}))                         \
    FAILS(etch_optim_rmsprop_with, "etch_optim_rmsprop",                                           \
          !etch_optim_rmsprop_with(NULL, &(etch_optim_options){.alpha = 1}))                       \
    FAILS(etch_optim_add_with, "etch_optim_add", (etch_optim_add_with(NULL, &x, 1, NULL) == -1))   \
    FAILS(etch_optim_add_module_with, "etch_optim_add_module",                                     \
          (etch_optim_add_module_with(NULL, NULL, NULL) == -1))                                    \
    FAILS(etch_optim_step, "etch_optim_step", etch_optim_step(NULL) != ETCH_OK)                    \
    FAILS(etch_optim_zero_grad, "etch_optim_zero_grad", etch_optim_zero_grad(NULL) != ETCH_OK)     \
    FAILS(etch_optim_clip_grad_norm, "etch_optim_clip_grad_norm",                                  \
          !etch_optim_clip_grad_norm(NULL, 1))                                                     \
    FAILS(etch_optim_clip_grad_value, "etch_optim_clip_grad_value",                                \
          etch_optim_clip_grad_value(NULL, 1) != ETCH_OK)                                          \
    FAILS(etch_optim_scale_grad, "etch_optim_scale_grad",                                          \
          etch_optim_scale_grad(NULL, 1) != ETCH_OK)                                               \
    FAILS(etch_schedule_factor, "etch_schedule_factor", isnan(etch_schedule_factor(NULL, 0)))      \
    FAILS(etch_optim_set_schedule, "etch_optim_set_schedule",                                      \
          etch_optim_set_schedule(NULL, NULL) != ETCH_OK)                                          \
    FAILS(etch_optim_set_lr, "etch_optim_set_lr", etch_optim_set_lr(NULL, 0, 1) != ETCH_OK)        \
    FAILS(etch_optim_lr, "etch_optim_lr", isnan(etch_optim_lr(NULL, 0)))                           \
    FAILS(etch_optim_save, "etch_optim_save", etch_optim_save(NULL, "x") != ETCH_OK)               \
    FAILS(etch_export_with, "etch_export", etch_export_with(NULL, NULL, 0, "x", NULL) != ETCH_OK)  \
    FAILS(etch_import_with, "etch_import", !etch_import_with(NULL, NULL))                          \
    FAILS(etch_imported_weight, "etch_imported_weight", !etch_imported_weight(NULL, 0))            \
    FAILS(etch_imported_weight_name, "etch_imported_weight_name",                                  \
          !etch_imported_weight_name(NULL, 0))                                                     \
    FAILS(etch_imported_call, "etch_imported_call",                                                \
          etch_imported_call(NULL, NULL, 0, NULL, 0) != ETCH_OK)                                   \
    FAILS(etch_imported_call_one, "etch_imported_call", !etch_imported_call_one(NULL, &x, 1))      \
    FAILS(etch_imported_save, "etch_imported_save", etch_imported_save(NULL, "x") != ETCH_OK)      \
    FAILS(etch_export_describe, "etch_export_describe",                                            \
          (etch_export_describe(NULL, NULL, 0) == -1))                                             \
    FAILS(etch_optim_load, "etch_optim_load", etch_optim_load(NULL, "x") != ETCH_OK)               \
    FAILS(etch_module_backward_hook, "etch_module_backward_hook",                                  \
          !etch_module_backward_hook(parent, NULL, NULL))                                          \
    FAILS(etch_module_backward_pre_hook, "etch_module_backward_pre_hook",                          \
          !etch_module_backward_pre_hook(NULL, NULL, NULL))                                        \
    FAILS(etch_nn_sequential, "etch_nn_sequential", !etch_nn_sequential(NULL, 2))                  \
    FAILS(etch_device_parse, "etch_device_parse", etch_device_parse("tpu") == -1)                  \
    FAILS(etch_device_of, "etch_device_of", etch_device_of(NULL) == -1)                            \
    FAILS(etch_set_device, "etch_set_device", etch_set_device(99) != ETCH_OK)                      \
    FAILS(etch_synchronize, "etch_synchronize", etch_synchronize(99) != ETCH_OK)                   \
    FAILS(etch_device_trim, "etch_device_trim", etch_device_trim(99) != ETCH_OK)                   \
    FAILS(etch_set_matmul_precision, "etch_set_matmul_precision",                                  \
          etch_set_matmul_precision((etch_matmul_precision)9) != ETCH_OK)                          \
    FAILS(etch_empty_pinned, "etch_empty_pinned", !etch_empty_pinned(77, ETCH_SHAPE(2)))           \
    FAILS(etch_to_pinned, "etch_to_pinned", !etch_to_pinned(NULL))                                 \
    FAILS(etch_is_pinned, "etch_is_pinned", !etch_is_pinned(NULL))                                 \
    FAILS(etch_cuda_stream, "etch_cuda_stream", !etch_cuda_stream(99))                             \
    FAILS(etch_cuda_set_stream, "etch_cuda_set_stream", etch_cuda_set_stream(99, NULL) != ETCH_OK) \
    FAILS(etch_cuda_graph_end, "etch_cuda_graph_end", !etch_cuda_graph_end(NULL))                  \
    FAILS(etch_cuda_graph_replay, "etch_cuda_graph_replay",                                        \
          etch_cuda_graph_replay(NULL) != ETCH_OK)                                                 \
    FAILS(etch_requires_grad_, "etch_requires_grad_", !etch_requires_grad_(NULL, true))            \
    FAILS(etch_backward, "etch_backward", etch_backward(x) != ETCH_OK)                             \
    FAILS(etch_backward_from, "etch_backward_from",                                                \
          etch_backward_from(NULL, 0, NULL, NULL) != ETCH_OK)                                      \
    FAILS(etch_grad, "etch_grad", etch_grad(&x, 1, &x, 1, NULL, NULL, &assigned) != ETCH_OK)       \
    FAILS(etch_zero_grad, "etch_zero_grad", etch_zero_grad(NULL) != ETCH_OK)                       \
    FAILS(etch_set_grad, "etch_set_grad", etch_set_grad(x, x) != ETCH_OK)                          \
    FAILS(etch_retain_grad, "etch_retain_grad", etch_retain_grad(x) != ETCH_OK)                    \
    FAILS(etch_add_grad_hook, "etch_add_grad_hook", !etch_add_grad_hook(x, NULL, NULL))

/* Those that cannot fail, or only for want of memory, or (test_statuses.c) of what they compute. */
static const char *const safe =
    " etch_version etch_status_name etch_last_status etch_last_error etch_clear_error "
    "etch_set_error"
    " etch_dtype_name etch_dtype_size etch_promote_types etch_default_dtype ETCH_NONE"
    " etch_scope_begin etch_scope_end etch_retain etch_release etch_flush etch_num_threads"
    " etch_manual_seed etch_memory etch_memory_reset_peak etch_function_free etch_graph_break"
    " etch_reset etch_callback_remove etch_list_backends etch_counters etch_counters_reset"
    " etch_function_counters etch_cache_clear etch_set_log_sink etch_op_name etch_op_schema"
    " etch_op_list etch_op_is etch_op_packet etch_arg etch_op_override_undo etch_mode_ctx"
    " etch_mode_name etch_inference_begin etch_inference_end etch_inference_enabled"
    " etch_graph_name etch_graph_num_inputs etch_graph_num_nodes etch_graph_num_outputs"
    " etch_graph_num_params etch_graph_first etch_graph_last etch_node_next etch_node_prev"
    " etch_node_op etch_node_value etch_node_uses etch_graph_free etch_address_text"
    " etch_file_sink etch_profiling_mode etch_validation_mode etch_logging_mode"
    " etch_statistics_mode etch_call_stack_mode etch_profile_kind_name etch_profile_entries"
    " etch_profile_count etch_profile_table etch_current_stance etch_explanation_free"
    " etch_load_report_free etch_safetensors_free etch_safetensors_count etch_safetensors_name"
    " etch_safetensors_dtype etch_safetensors_sizes etch_safetensors_find"
    " etch_safetensors_text"
    " etch_imported_free etch_imported_num_inputs etch_imported_num_outputs"
    " etch_imported_num_weights"
    " etch_optim_free etch_optim_steps"
    " etch_trace_write etch_graph_is_instance etch_module_type etch_module_parameter_count"
    " etch_module_parameter_at etch_module_parameter_name etch_module_buffer_count"
    " etch_module_buffer_at etch_module_buffer_name etch_module_child_count etch_module_child_name"
    " etch_module_ctx etch_module_config etch_module_is_training etch_nn_gelu etch_nn_silu"
    " etch_nn_tanh etch_nn_sigmoid etch_nn_flatten"
    " etch_module_child etch_hook_remove etch_module_is_compiled etch_nn_relu etch_cuda_count"
    " etch_cuda_absent etch_device_name etch_current_device etch_device_stats"
    " etch_requires_grad etch_is_leaf etch_grad_of etch_remove_grad_hook etch_no_grad_begin"
    " etch_no_grad_end etch_grad_enabled"
    " etch_get_matmul_precision etch_cuda_graph_begin etch_cuda_graph_free ";

static int wrong;

static void check(const char *function, const char *name, bool failed) {
    const char *text = etch_last_error();
    char place[] = "(test_api_failures.c:";
    bool ok = failed && etch_last_status() != ETCH_OK && !strncmp(text, name, strlen(name)) &&
              strstr(text, place);
    if (!ok)
        print_message("%s: %d %s: %s\n", function, failed, etch_status_name(etch_last_status()),
                      text);
    wrong += !ok;
}

TEST(failures_are_named) {
    graph = etch_graph_parse("graph g/0(%0: f32[2]) {\n  %1: f32[2] = neg(%0)\n  return %1\n}\n");
    entered = etch_mode_new(decline, NULL);
    parent = etch_module_new("Parent", forward), child = etch_module_new("Child", forward);
    assert_true(graph && entered && parent && child);
    assert_int_equal(etch_module_add_child(parent, "child", child), ETCH_OK);
    assert_int_equal(etch_mode_push(entered), ETCH_OK);
    ETCH_SCOPE {
        x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3));
#define CALL(function, name, failed)                                                               \
    etch_clear_error();                                                                            \
    check(#function, name, failed);
        FAILING(CALL)
    }
    etch_clear_error();
    assert_int_equal(etch_mode_pop(entered), ETCH_OK);
    etch_mode_free(entered);
    etch_module_free(parent);
    etch_graph_free(graph);
    assert_int_equal(wrong, 0);
}

TEST(every_function_has_a_row) {
    static const char *const exported[] = {
#define API(function, class) #function,
#include "core/ops/api.def"
#undef API
    };
    static const char *const failing[] = {
#define NAME(function, name, failed) #function,
        FAILING(NAME)};
    for (int i = 0; i < (int)(sizeof exported / sizeof *exported); i++) {
        char word[80];
        int rows = 0;
        snprintf(word, sizeof word, " %s ", exported[i]);
        rows += strstr(safe, word) != NULL;
        for (int k = 0; k < (int)(sizeof failing / sizeof *failing); k++)
            rows += !strcmp(failing[k], exported[i]);
        if (rows != 1) fail_msg("%s has %d rows", exported[i], rows);
    }
}
