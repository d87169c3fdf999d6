#include "ops/accept.h"

#include <string.h>

enum {
  FLOATING = 1,
  COMPLEX = 2,
  BOOLEAN = 4,
  BYTE = 8,
  SHORT = 16, /* int8 and int16 */
  INT = 32,
  LONG = 64,
  INTEGER = BYTE | SHORT | INT | LONG,
  ALL = 127
};

/* Whose dtype counts: the first tensor's, or what the tensors promote to. */
enum { FIRST, PROMOTED };
/* KERNEL: PyTorch's kernel of that name has no code for the dtype; it is not reached when a tensor is empty, and a text
 * with spaces is the message. CHECK: PyTorch checks first, and raises RuntimeError; %s is the dtype. */
enum { KERNEL, CHECK };

/* An entry serves the operator of exactly that name and overload. Its in-place and out= forms too, unless the name ends
 * in _ (only the in-place form). Of several entries each may refuse. What CUDA takes and the CPU does not is taken. */
static const struct {
  const char *op;
  uint8_t takes, whose, kind;
  const char *text;
} entries[] = {
    {"_adaptive_avg_pool2d", FLOATING, FIRST, KERNEL, "adaptive_avg_pool2d"},
    {"_adaptive_avg_pool2d_backward", FLOATING, FIRST, KERNEL, "adaptive_avg_pool2d_backward"},
    {"_adaptive_avg_pool3d", FLOATING, FIRST, KERNEL, "adaptive_avg_pool3d_cpu"},
    {"_adaptive_avg_pool3d_backward", FLOATING, FIRST, KERNEL, "adaptive_avg_pool3d_backward_cpu"},
    {"adaptive_max_pool2d", FLOATING, FIRST, KERNEL, "adaptive_max_pool2d"},
    {"adaptive_max_pool2d_backward", FLOATING, FIRST, KERNEL, "adaptive_max_pool2d_backward"},
    {"adaptive_max_pool3d", FLOATING, FIRST, KERNEL, "adaptive_max_pool3d_cpu"},
    {"adaptive_max_pool3d_backward", FLOATING, FIRST, KERNEL, "adaptive_max_pool3d_backward"},
    {"addcmul", ALL & ~BOOLEAN, PROMOTED, KERNEL, "addcmul_cpu_out"},
    {"amax", ALL & ~COMPLEX, FIRST, KERNEL, "max_values_cpu"},
    {"amin", ALL & ~COMPLEX, FIRST, KERNEL, "min_values_cpu"},
    {"aminmax", ALL & ~COMPLEX, FIRST, KERNEL, "aminmax_cpu"},
    {"atan2", ALL & ~COMPLEX, PROMOTED, KERNEL, "atan2_cpu"},
    {"avg_pool2d", FLOATING | LONG, FIRST, KERNEL, "avg_pool2d"},
    {"avg_pool2d_backward", FLOATING | LONG, FIRST, KERNEL, "avg_pool2d_backward"},
    {"avg_pool3d", FLOATING | LONG, FIRST, KERNEL, "avg_pool3d_out_frame"},
    {"avg_pool3d_backward", FLOATING | LONG, FIRST, KERNEL, "avg_pool3d_backward_out_frame"},
    {"batch_norm_backward", FLOATING, FIRST, KERNEL, "batch_norm_backward_cpu"},
    {"_batch_norm_with_update", FLOATING, FIRST, KERNEL, "batch_norm"},
    {"bernoulli", FLOATING, FIRST, KERNEL, "bernoulli_tensor_cpu_p_"},
    {"bernoulli_.float", ALL & ~COMPLEX, FIRST, KERNEL, "bernoulli_scalar_cpu_"},
    {"binary_cross_entropy", FLOATING, FIRST, KERNEL, "binary_cross_entropy"},
    {"binary_cross_entropy_backward", FLOATING, FIRST, KERNEL, "binary_cross_entropy_backward"},
    {"binary_cross_entropy_with_logits", FLOATING, FIRST, KERNEL, "log_sigmoid_cpu"},
    {"bucketize.Tensor", FLOATING | INTEGER, PROMOTED, KERNEL, "searchsorted_out_cpu"},
    {"cholesky", FLOATING | COMPLEX, FIRST, KERNEL, "cholesky_cpu"},
    {"cholesky_inverse", FLOATING | COMPLEX, FIRST, KERNEL, "cholesky_inverse_out_cpu"},
    {"_cholesky_solve_helper", FLOATING | COMPLEX, FIRST, KERNEL, "cholesky_solve_cpu"},
    {"clamp", ALL & ~COMPLEX, PROMOTED, KERNEL, "clamp is not supported for complex types"},
    {"clamp.Tensor", ALL & ~BOOLEAN, PROMOTED, KERNEL, "clamp_cpu"},
    {"clamp.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "clamp is not supported for complex types"},
    {"clamp_max.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "minimum_cpu"},
    {"clamp_min", ALL & ~COMPLEX, PROMOTED, KERNEL, "clamp is not supported for complex types"},
    {"clamp_min.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "maximum_cpu"},
    {"col2im", FLOATING | BOOLEAN | COMPLEX, FIRST, KERNEL, "col2im_out_cpu"},
    {"convolution", FLOATING | INTEGER, FIRST, KERNEL, "slow_conv2d_cpu"},
    {"convolution_backward", FLOATING, FIRST, KERNEL, "slow_conv2d_backward_cpu"},
    {"copysign.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "copysign_cpu"},
    {"copysign.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "copysign_cpu"},
    {"cummax", ALL & ~COMPLEX, FIRST, KERNEL, "cummax_cpu"},
    {"cummin", ALL & ~COMPLEX, FIRST, KERNEL, "cummin_cpu"},
    {"cumprod_", ALL & ~BOOLEAN, FIRST, KERNEL, "cumprod_out_cpu"},
    {"cumsum_", ALL & ~BOOLEAN, FIRST, KERNEL, "cumsum_out_cpu"},
    {"digamma", ALL & ~COMPLEX, PROMOTED, KERNEL, "digamma"},
    {"div.Tensor_mode", FLOATING | INTEGER, PROMOTED, KERNEL, "div_trunc_cpu"},
    {"elu", FLOATING, FIRST, KERNEL, "elu_cpu"},
    {"elu_backward", FLOATING, PROMOTED, KERNEL, "elu_backward_cpu"},
    {"_embedding_bag_per_sample_weights_backward", FLOATING, FIRST, KERNEL,
     "_embedding_bag_per_sample_weights_backward_cpu"},
    {"erf", ALL & ~COMPLEX, FIRST, KERNEL, "erf_vml_cpu"},
    {"erfc", ALL & ~COMPLEX, FIRST, KERNEL, "erfc_vml_cpu"},
    {"erfinv", ALL & ~COMPLEX, FIRST, KERNEL, "erfinv_vml_cpu"},
    {"floor_divide", FLOATING | INTEGER, PROMOTED, KERNEL, "div_floor_cpu"},
    {"floor_divide_.Tensor", FLOATING | INTEGER, PROMOTED, KERNEL, "div_floor_cpu"},
    {"fmod.Tensor", FLOATING | INTEGER, PROMOTED, KERNEL, "fmod_cpu"},
    {"frac", FLOATING, FIRST, KERNEL, "frac_cpu"},
    {"fractional_max_pool2d", FLOATING, FIRST, KERNEL, "fractional_max_pool2d_out_frame"},
    {"fractional_max_pool2d_backward", FLOATING, FIRST, KERNEL, "fractional_max_pool2d_backward_out_frame"},
    {"fractional_max_pool3d", FLOATING, FIRST, KERNEL, "fractional_max_pool3d_out_frame"},
    {"fractional_max_pool3d_backward", FLOATING, FIRST, KERNEL, "fractional_max_pool3d_backward_out_frame"},
    {"ge.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "ge_cpu"},
    {"ge.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "ge_cpu"},
    {"gelu", FLOATING, FIRST, KERNEL, "GeluKernelImpl"},
    {"gelu_backward", FLOATING, PROMOTED, KERNEL, "GeluBackwardKernelImpl"},
    {"geometric_", FLOATING | INTEGER, FIRST, KERNEL, "geometric_cpu"},
    {"geqrf", FLOATING | COMPLEX, FIRST, KERNEL, "geqrf_cpu"},
    {"glu", FLOATING, FIRST, KERNEL, "glu_cpu"},
    {"glu_backward", ALL & ~COMPLEX, FIRST, KERNEL, "glu_backward_cpu"},
    {"glu_backward", FLOATING | COMPLEX, FIRST, CHECK, "result type Float can't be cast to the desired output type %s"},
    {"grid_sampler_2d", FLOATING, FIRST, KERNEL, "grid_sampler_2d_cpu_kernel_impl"},
    {"grid_sampler_2d_backward", FLOATING, FIRST, KERNEL, "grid_sampler_2d_backward_cpu_kernel_impl"},
    {"grid_sampler_3d", FLOATING, FIRST, KERNEL, "grid_sampler3d_cpu"},
    {"grid_sampler_3d_backward", FLOATING, FIRST, KERNEL, "grid_sampler_3d_backward_cpu"},
    {"gt.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "gt_cpu"},
    {"gt.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "gt_cpu"},
    {"hardshrink", FLOATING, FIRST, KERNEL, "hardshrink_cpu"},
    {"hardshrink_backward", FLOATING, PROMOTED, KERNEL, "shrink_backward_cpu"},
    {"hardsigmoid", FLOATING, FIRST, KERNEL, "hardsigmoid_cpu"},
    {"hardsigmoid_backward", FLOATING, PROMOTED, KERNEL, "hardsigmoid_backward"},
    {"hardswish", FLOATING, FIRST, KERNEL, "hardswish_cpu"},
    {"hardswish_backward", FLOATING, PROMOTED, KERNEL, "hardswish_backward_cpu"},
    {"hardtanh", ALL & ~BOOLEAN, FIRST, CHECK, "Bool inputs not supported for hardtanh"},
    {"hardtanh", ALL & ~COMPLEX, FIRST, KERNEL, "clamp is not supported for complex types"},
    {"hardtanh_backward", FLOATING, PROMOTED, KERNEL, "hardshrink_backward_cpu"},
    {"histc", FLOATING | INTEGER, FIRST, KERNEL, "linspace_cpu"},
    {"huber_loss", FLOATING, PROMOTED, KERNEL, "huber_cpu"},
    {"huber_loss_backward", FLOATING, PROMOTED, KERNEL, "huber_backward_cpu_out"},
    {"hypot", FLOATING, PROMOTED, KERNEL, "hypot_cpu"},
    {"i0", ALL & ~COMPLEX, FIRST, KERNEL, "i0_vml_cpu"},
    {"igamma", FLOATING, PROMOTED, KERNEL, "igamma_cpu"},
    {"igammac", FLOATING, PROMOTED, KERNEL, "igammac_cpu"},
    {"im2col", FLOATING | BOOLEAN | COMPLEX, FIRST, KERNEL, "im2col_out_cpu"},
    {"index_reduce", ALL & ~COMPLEX, FIRST, KERNEL, "index_func_"},
    {"kthvalue", FLOATING | INTEGER, FIRST, KERNEL, "kthvalue_cpu"},
    {"ldexp_", FLOATING | COMPLEX, PROMOTED, CHECK,
     "the result cannot be cast to the dtype of the tensor that it is written to, %s"},
    {"le.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "le_cpu"},
    {"le.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "le_cpu"},
    {"leaky_relu", FLOATING, FIRST, KERNEL, "leaky_relu_cpu"},
    {"leaky_relu_backward", FLOATING, PROMOTED, KERNEL, "leaky_relu_backward_cpu"},
    {"lgamma", ALL & ~COMPLEX, FIRST, KERNEL, "lgamma_vml_cpu"},
    {"_linalg_eigh", FLOATING | COMPLEX, FIRST, KERNEL, "linalg_eigh_cpu"},
    {"linalg_householder_product", FLOATING | COMPLEX, FIRST, KERNEL, "orgqr_cpu"},
    {"linalg_lu", FLOATING | COMPLEX, FIRST, KERNEL, "lu_cpu"},
    {"linalg_lu_factor_ex", FLOATING | COMPLEX, FIRST, KERNEL, "lu_cpu"},
    {"linalg_solve_triangular", FLOATING | COMPLEX, FIRST, KERNEL, "triangular_solve_cpu"},
    {"log_normal_", FLOATING, FIRST, KERNEL, "log_normal_cpu"},
    {"log_sigmoid_backward", FLOATING, PROMOTED, KERNEL, "log_sigmoid_backward_cpu"},
    {"log_sigmoid_forward", FLOATING, FIRST, KERNEL, "log_sigmoid_cpu"},
    {"_log_softmax", FLOATING, FIRST, KERNEL, "log_softmax_lastdim_kernel_impl"},
    {"_log_softmax_backward_data", FLOATING, FIRST, KERNEL, "log_softmax_backward_lastdim_kernel_impl"},
    {"logcumsumexp", FLOATING | COMPLEX, FIRST, KERNEL, "logcumsumexp_out_cpu"},
    {"logit", ALL & ~COMPLEX, FIRST, KERNEL, "logit_cpu"},
    {"logit_", FLOATING | COMPLEX, FIRST, CHECK, "result type Float can't be cast to the desired output type %s"},
    {"logit_backward", FLOATING, PROMOTED, KERNEL, "logit_backward_cpu"},
    {"lt.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "lt_cpu"},
    {"lt.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "lt_cpu"},
    {"max", ALL & ~COMPLEX, FIRST, KERNEL, "max_all"},
    {"max_pool2d_with_indices", FLOATING | INTEGER, FIRST, KERNEL, "max_pool2d"},
    {"max_pool2d_with_indices_backward", FLOATING, FIRST, KERNEL, "max_pool2d_backward"},
    {"max_pool3d_with_indices", FLOATING | INTEGER, FIRST, KERNEL, "max_pool3d"},
    {"max_pool3d_with_indices_backward", FLOATING, FIRST, KERNEL, "max_pool3d_backward"},
    {"max_unpool2d", FLOATING, FIRST, KERNEL, "max_unpool2d"},
    {"max_unpool3d", FLOATING, FIRST, KERNEL, "max_unpool3d"},
    {"median", FLOATING | INTEGER, FIRST, KERNEL, "median_cpu"},
    {"median.dim", FLOATING | INTEGER, FIRST, KERNEL, "median_out"},
    {"min", ALL & ~COMPLEX, FIRST, KERNEL, "min_all"},
    {"mish", FLOATING, FIRST, KERNEL, "mish_cpu"},
    {"mish_backward", FLOATING, PROMOTED, KERNEL, "mish_backward_cpu"},
    {"mse_loss", FLOATING, PROMOTED, KERNEL, "mse_cpu"},
    {"mse_loss_backward", FLOATING | INTEGER, PROMOTED, KERNEL, "mse_backward_cpu_out"},
    {"multi_margin_loss", FLOATING, FIRST, KERNEL, "multi_margin_loss_cpu_kernel"},
    {"multi_margin_loss_backward", FLOATING, FIRST, KERNEL, "multi_margin_loss_backward_cpu_kernel"},
    {"multilabel_margin_loss_backward", FLOATING, FIRST, KERNEL, "multilabel_margin_loss_backward_out_frame"},
    {"multilabel_margin_loss_forward", FLOATING, FIRST, KERNEL, "multilabel_margin_loss_forward_out_frame"},
    {"multinomial", FLOATING, FIRST, CHECK, "multinomial only supports floating-point dtypes for input, got: %s"},
    {"nanmedian", FLOATING | INTEGER, FIRST, KERNEL, "median_cpu"},
    {"nanmedian.dim", FLOATING | INTEGER, FIRST, KERNEL, "median_out"},
    {"native_batch_norm", FLOATING, FIRST, KERNEL, "batch_norm"},
    {"native_batch_norm_backward", FLOATING, FIRST, KERNEL, "batch_norm_backward_cpu"},
    {"_native_batch_norm_legit", FLOATING, FIRST, KERNEL, "batch_norm"},
    {"_native_batch_norm_legit.no_stats", FLOATING, FIRST, KERNEL, "batch_norm"},
    {"native_group_norm", FLOATING, FIRST, KERNEL, "GroupNormKernelImpl"},
    {"native_group_norm_backward", FLOATING, FIRST, KERNEL, "GroupNormBackwardKernelImpl"},
    {"native_layer_norm", FLOATING, FIRST, KERNEL, "LayerNormKernelImpl"},
    {"native_layer_norm_backward", FLOATING, FIRST, KERNEL, "LayerNormBackwardKernelImpl"},
    {"nextafter", FLOATING, PROMOTED, KERNEL, "nextafter_cpu"},
    {"nll_loss2d_backward", FLOATING, FIRST, KERNEL, "nll_loss2d_backward_out_frame"},
    {"nll_loss2d_forward", FLOATING, FIRST, KERNEL, "nll_loss2d_forward_out_frame"},
    {"nll_loss_backward", FLOATING, FIRST, KERNEL, "nll_loss_backward_out_frame"},
    {"nll_loss_forward", FLOATING, FIRST, KERNEL, "nll_loss_out_frame"},
    {"normal.Tensor_Tensor", FLOATING | COMPLEX, FIRST, KERNEL, "normal_kernel_cpu"},
    {"normal.Tensor_float", FLOATING | COMPLEX, FIRST, KERNEL, "normal_kernel_cpu"},
    {"normal_", FLOATING | COMPLEX, FIRST, KERNEL, "normal_kernel_cpu"},
    {"ormqr", FLOATING | COMPLEX, FIRST, KERNEL, "ormqr_cpu"},
    {"polygamma", ALL & ~COMPLEX, FIRST, KERNEL, "trigamma"},
    {"_prelu_kernel", FLOATING, FIRST, KERNEL, "prelu_cpu"},
    {"_prelu_kernel_backward", FLOATING, FIRST, KERNEL, "prelu_backward_cpu"},
    {"reflection_pad1d", ALL & ~BOOLEAN, FIRST, KERNEL, "reflection_pad1d"},
    {"reflection_pad1d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "reflection_pad1d_backward"},
    {"reflection_pad2d", ALL & ~BOOLEAN, FIRST, KERNEL, "reflection_pad2d"},
    {"reflection_pad2d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "reflection_pad2d_backward"},
    {"reflection_pad3d", ALL & ~BOOLEAN, FIRST, KERNEL, "reflection_pad3d"},
    {"reflection_pad3d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "reflection_pad3d_backward"},
    {"relu", ALL & ~BOOLEAN, FIRST, CHECK, "Boolean inputs not supported for relu"},
    {"relu", ALL & ~COMPLEX, FIRST, KERNEL, "clamp is not supported for complex types"},
    {"remainder.Scalar", ALL & ~COMPLEX, PROMOTED, KERNEL, "remainder_cpu"},
    {"remainder.Tensor", FLOATING | INTEGER, PROMOTED, KERNEL, "remainder_cpu"},
    {"renorm", FLOATING | COMPLEX, FIRST, CHECK,
     "linalg.vector_norm: Expected a floating point or complex tensor as input. Got %s"},
    {"repeat_interleave.Tensor", INT | LONG, FIRST, KERNEL, "repeat_interleave_cpu"},
    {"replication_pad1d", ALL & ~BOOLEAN, FIRST, KERNEL, "replication_pad1d"},
    {"replication_pad1d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "replication_pad1d_backward"},
    {"replication_pad2d", ALL & ~BOOLEAN, FIRST, KERNEL, "replication_pad2d"},
    {"replication_pad2d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "replication_pad2d_backward"},
    {"replication_pad3d", ALL & ~BOOLEAN, FIRST, KERNEL, "replication_pad3d"},
    {"replication_pad3d_backward", FLOATING | COMPLEX, FIRST, KERNEL, "replication_pad3d_backward"},
    {"round", FLOATING | INTEGER, FIRST, KERNEL, "round_vml_cpu"},
    {"round.decimals", FLOATING, FIRST, KERNEL, "round_vml_cpu"},
    {"rrelu_with_noise", FLOATING, FIRST, KERNEL, "rrelu_with_noise_out_cpu"},
    {"_safe_softmax", FLOATING, FIRST, KERNEL, "softmax_kernel_impl"},
    {"smooth_l1_loss", FLOATING, PROMOTED, KERNEL, "smooth_l1_cpu"},
    {"smooth_l1_loss_backward", FLOATING | INTEGER, PROMOTED, KERNEL, "smooth_l1_backward_cpu_out"},
    {"_softmax", FLOATING, FIRST, KERNEL, "softmax_lastdim_kernel_impl"},
    {"_softmax_backward_data", FLOATING, FIRST, KERNEL, "softmax_backward_lastdim_kernel_impl"},
    {"softplus", FLOATING, FIRST, KERNEL, "softplus_cpu"},
    {"softplus_backward", FLOATING, PROMOTED, KERNEL, "softplus_backward_cpu"},
    {"softshrink_backward", FLOATING, PROMOTED, KERNEL, "shrink_backward_cpu"},
    {"sort", ALL & ~COMPLEX, FIRST, CHECK, "Sort does not support complex dtypes"},
    {"sort.stable", ALL & ~COMPLEX, FIRST, CHECK, "Sort does not support complex dtypes"},
    {"special_airy_ai", ALL & ~COMPLEX, PROMOTED, KERNEL, "airy_ai_cpu"},
    {"special_bessel_j0", ALL & ~COMPLEX, PROMOTED, KERNEL, "bessel_j0_cpu"},
    {"special_bessel_j1", ALL & ~COMPLEX, PROMOTED, KERNEL, "bessel_j1_cpu"},
    {"special_bessel_y0", ALL & ~COMPLEX, PROMOTED, KERNEL, "bessel_y0_cpu"},
    {"special_bessel_y1", ALL & ~COMPLEX, PROMOTED, KERNEL, "bessel_y1_cpu"},
    {"special_chebyshev_polynomial_t", ALL & ~COMPLEX, PROMOTED, KERNEL, "chebyshev_polynomial_t_cpu"},
    {"special_chebyshev_polynomial_u", ALL & ~COMPLEX, PROMOTED, KERNEL, "chebyshev_polynomial_u_cpu"},
    {"special_chebyshev_polynomial_v", ALL & ~COMPLEX, PROMOTED, KERNEL, "chebyshev_polynomial_v_cpu"},
    {"special_chebyshev_polynomial_w", ALL & ~COMPLEX, PROMOTED, KERNEL, "chebyshev_polynomial_w_cpu"},
    {"special_entr", ALL & ~COMPLEX, PROMOTED, KERNEL, "entr_cpu"},
    {"special_erfcx", ALL & ~COMPLEX, PROMOTED, KERNEL, "erfcx_cpu"},
    {"special_hermite_polynomial_h", ALL & ~COMPLEX, PROMOTED, KERNEL, "hermite_polynomial_h_cpu"},
    {"special_hermite_polynomial_he", ALL & ~COMPLEX, PROMOTED, KERNEL, "hermite_polynomial_he_cpu"},
    {"special_i0e", ALL & ~COMPLEX, PROMOTED, KERNEL, "i0e_cpu"},
    {"special_i1", ALL & ~COMPLEX, PROMOTED, KERNEL, "i1_cpu"},
    {"special_i1e", ALL & ~COMPLEX, PROMOTED, KERNEL, "i1e_cpu"},
    {"special_laguerre_polynomial_l", ALL & ~COMPLEX, PROMOTED, KERNEL, "laguerre_polynomial_l_cpu"},
    {"special_legendre_polynomial_p", ALL & ~COMPLEX, PROMOTED, KERNEL, "legendre_polynomial_p_cpu"},
    {"special_log_ndtr", ALL & ~COMPLEX, PROMOTED, KERNEL, "log_ndtr_cpu"},
    {"special_modified_bessel_i0", ALL & ~COMPLEX, PROMOTED, KERNEL, "modified_bessel_i0_cpu"},
    {"special_modified_bessel_i1", ALL & ~COMPLEX, PROMOTED, KERNEL, "modified_bessel_i1_cpu"},
    {"special_modified_bessel_k0", ALL & ~COMPLEX, PROMOTED, KERNEL, "modified_bessel_k0_cpu"},
    {"special_modified_bessel_k1", ALL & ~COMPLEX, PROMOTED, KERNEL, "modified_bessel_k1_cpu"},
    {"special_ndtri", ALL & ~COMPLEX, PROMOTED, KERNEL, "ndtri_cpu"},
    {"special_scaled_modified_bessel_k0", ALL & ~COMPLEX, PROMOTED, KERNEL, "scaled_modified_bessel_k0_cpu"},
    {"special_scaled_modified_bessel_k1", ALL & ~COMPLEX, PROMOTED, KERNEL, "scaled_modified_bessel_k1_cpu"},
    {"special_shifted_chebyshev_polynomial_t", ALL & ~COMPLEX, PROMOTED, KERNEL, "shifted_chebyshev_polynomial_t_cpu"},
    {"special_shifted_chebyshev_polynomial_u", ALL & ~COMPLEX, PROMOTED, KERNEL, "shifted_chebyshev_polynomial_u_cpu"},
    {"special_shifted_chebyshev_polynomial_v", ALL & ~COMPLEX, PROMOTED, KERNEL, "shifted_chebyshev_polynomial_v_cpu"},
    {"special_shifted_chebyshev_polynomial_w", ALL & ~COMPLEX, PROMOTED, KERNEL, "shifted_chebyshev_polynomial_w_cpu"},
    {"special_spherical_bessel_j0", ALL & ~COMPLEX, PROMOTED, KERNEL, "spherical_bessel_j0_cpu"},
    {"special_xlog1py", ALL & ~COMPLEX, PROMOTED, KERNEL, "xlog1py_cpu"},
    {"special_zeta", ALL & ~COMPLEX, PROMOTED, KERNEL, "zeta_cpu"},
    {"std.correction", FLOATING | COMPLEX, FIRST, CHECK, "std and var only support floating point and complex dtypes"},
    {"std_mean.correction", FLOATING | COMPLEX, FIRST, CHECK,
     "std and var only support floating point and complex dtypes"},
    {"sub.Scalar", ALL & ~BOOLEAN, FIRST, CHECK, "Subtraction, the `-` operator, with a bool tensor is not supported"},
    {"threshold", FLOATING | INTEGER, FIRST, KERNEL, "threshold_cpu"},
    {"threshold_backward", FLOATING | INTEGER, PROMOTED, KERNEL, "threshold_cpu"},
    {"triangular_solve", FLOATING | COMPLEX, FIRST, KERNEL, "triangular_solve_cpu"},
    {"_trilinear", ALL & ~BOOLEAN, FIRST, KERNEL, "bmm"},
    {"upsample_bicubic2d", FLOATING | BYTE, FIRST, KERNEL, "compute_indices_weights_cubic"},
    {"_upsample_bicubic2d_aa", FLOATING | BYTE, FIRST, KERNEL, "compute_index_ranges_weights"},
    {"_upsample_bicubic2d_aa_backward", FLOATING, FIRST, KERNEL, "upsample_bicubic2d_aa_backward_cpu"},
    {"upsample_bicubic2d_backward", FLOATING, FIRST, KERNEL, "upsample_bicubic2d_backward"},
    {"upsample_bilinear2d", FLOATING | BYTE, FIRST, KERNEL, "upsample_bilinear2d_channels_last"},
    {"_upsample_bilinear2d_aa", FLOATING | BYTE, FIRST, KERNEL, "compute_index_ranges_weights"},
    {"_upsample_bilinear2d_aa_backward", FLOATING, FIRST, KERNEL, "upsample_bilinear2d_aa_backward_cpu"},
    {"upsample_bilinear2d_backward", FLOATING, FIRST, KERNEL, "upsample_bilinear2d_backward"},
    {"_upsample_lanczos2d_aa", FLOATING | BYTE, FIRST, KERNEL, "compute_index_ranges_weights"},
    {"_upsample_lanczos2d_aa_backward", FLOATING, FIRST, KERNEL, "upsample_lanczos2d_aa_backward_cpu"},
    {"upsample_linear1d", FLOATING, FIRST, KERNEL, "compute_indices_weights_linear"},
    {"upsample_linear1d_backward", FLOATING, FIRST, KERNEL, "upsample_linear1d_backward"},
    {"upsample_nearest1d", FLOATING | BYTE, FIRST, KERNEL, "compute_indices_weights_nearest"},
    {"upsample_nearest1d_backward", FLOATING, FIRST, KERNEL, "upsample_nearest1d_backward"},
    {"upsample_nearest2d", FLOATING | BYTE, FIRST, KERNEL, "upsample_nearest2d_channels_last"},
    {"upsample_nearest2d_backward", FLOATING, FIRST, KERNEL, "upsample_nearest2d_backward"},
    {"upsample_nearest3d", FLOATING | BYTE, FIRST, KERNEL, "compute_indices_weights_nearest"},
    {"upsample_nearest3d_backward", FLOATING, FIRST, KERNEL, "upsample_nearest3d_backward"},
    {"_upsample_nearest_exact1d", FLOATING | BYTE, FIRST, KERNEL, "compute_indices_weights_nearest"},
    {"_upsample_nearest_exact1d_backward", FLOATING, FIRST, KERNEL, "_upsample_nearest_exact1d_backward"},
    {"_upsample_nearest_exact2d", FLOATING | BYTE, FIRST, KERNEL, "upsample_nearest2d_channels_last"},
    {"_upsample_nearest_exact2d_backward", FLOATING, FIRST, KERNEL, "_upsample_nearest_exact2d_backward"},
    {"_upsample_nearest_exact3d", FLOATING | BYTE, FIRST, KERNEL, "compute_indices_weights_nearest"},
    {"_upsample_nearest_exact3d_backward", FLOATING, FIRST, KERNEL, "_upsample_nearest_exact3d_backward"},
    {"upsample_trilinear3d", FLOATING, FIRST, KERNEL, "compute_indices_weights_linear"},
    {"upsample_trilinear3d_backward", FLOATING, FIRST, KERNEL, "upsample_trilinear3d_backward"},
    {"var.correction", FLOATING | COMPLEX, FIRST, CHECK, "std and var only support floating point and complex dtypes"},
    {"var_mean.correction", FLOATING | COMPLEX, FIRST, CHECK,
     "std and var only support floating point and complex dtypes"},
    {"xlogy.Tensor", ALL & ~COMPLEX, PROMOTED, KERNEL, "xlogy_cpu"},
};

const char *accept_dtype_name(tpu_dtype d) {
  switch ((int)d) {
    case TPU_BOOL: return "Bool";
    case TPU_U8: return "Byte";
    case TPU_I8: return "Char";
    case TPU_I16: return "Short";
    case TPU_I32: return "Int";
    case TPU_I64: return "Long";
    case TPU_F16: return "Half";
    case TPU_BF16: return "BFloat16";
    case TPU_F32: return "Float";
    case TPU_F64: return "Double";
    case TPU_C64: return "ComplexFloat";
    case TPU_C128: return "ComplexDouble";
    default: return tpu_dtype_name(d);
  }
}

static int class_of(int dtype) {
  switch (dtype) {
    case TPU_BOOL: return BOOLEAN;
    case TPU_U8: return BYTE;
    case TPU_I8:
    case TPU_I16: return SHORT;
    case TPU_I32: return INT;
    case TPU_U16:
    case TPU_U32:
    case TPU_U64:
    case TPU_I64: return LONG;
    case TPU_C64:
    case TPU_C128: return COMPLEX;
    default: return FLOATING;
  }
}

static int rank_of(int dtype) {
  int c = class_of(dtype);
  return c == COMPLEX ? 3 : c == FLOATING ? 2 : c == BOOLEAN ? 0 : 1;
}

static bool is_tensor(const tpu_value *v) {
  return v->tag == TPU_TENSOR && !(v->u.tensor->flags & TPU_TENSOR_UNDEFINED);
}

/* -1 without tensors. A complex Python number makes a promoted dtype complex. */
static int counted_dtype(const tpu_value *args, int nargs, int whose) {
  int d = -1;
  for (int i = 0; i < nargs; i++) {
    if (is_tensor(&args[i])) {
      int t = args[i].u.tensor->dtype;
      if (d < 0 || rank_of(t) > rank_of(d)) d = t;
      if (whose == FIRST) return d;
    } else if (args[i].tag == TPU_COMPLEX && whose == PROMOTED) {
      d = TPU_C64;
    }
  }
  return d;
}

static bool any_empty(const tpu_value *args, int nargs) {
  for (int i = 0; i < nargs; i++)
    for (int k = 0; is_tensor(&args[i]) && k < args[i].u.tensor->ndim; k++)
      if (args[i].u.tensor->sizes[k] == 0) return true;
  return false;
}

/* Whether `entry` names the operator whose base is op[0..base) and whose overload is `over`. */
static bool names(const char *entry, const char *op, size_t base, const char *over, size_t over_len) {
  size_t n = strcspn(entry, ".");
  const char *o = entry[n] ? entry + n + 1 : "";
  return n == base && !memcmp(entry, op, n) && strlen(o) == over_len && !memcmp(o, over, over_len);
}

static bool serves(const char *entry, const char *op, const char *row) {
  if (strchr(row, '.') && !strcmp(entry, row)) return true;
  size_t base = strcspn(op, ".");
  const char *over = op[base] ? op + base + 1 : "";
  size_t n = strlen(over);
  if (names(entry, op, base, over, n)) return true;
  if (n >= 3 && !strcmp(over + n - 3, "out")) n -= n > 3 && over[n - 4] == '_' ? 4 : 3;
  if (base > 1 && op[base - 1] == '_' && op[base - 2] != '_') base--;
  return names(entry, op, base, over, n);
}

static const char *taken(int takes, char *out, size_t size) {
  static const struct {
    int class;
    const char *text;
  } parts[] = {{FLOATING, "floating-point"},
               {COMPLEX, "complex"},
               {INTEGER, "integer"},
               {LONG, "int64"},
               {INT, "int32"},
               {BYTE, "uint8"},
               {BOOLEAN, "bool"}};
  out[0] = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if ((takes & parts[i].class) != parts[i].class) continue;
    takes &= ~parts[i].class;
    if (out[0]) strncat(out, takes ? ", " : " and ", size - strlen(out) - 1);
    strncat(out, parts[i].text, size - strlen(out) - 1);
  }
  return out;
}

static const char *without_aten(const char *name) { return strncmp(name, "aten::", 6) ? name : name + 6; }

tpu_err *accept_check(const char *op, const char *row, const tpu_value *args, int nargs) {
  op = without_aten(op);
  row = without_aten(row);
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    if (!serves(entries[i].op, op, row)) continue;
    int d = counted_dtype(args, nargs, entries[i].whose), takes = entries[i].takes;
    if (d < 0 || takes & class_of(d) || (entries[i].kind == KERNEL && any_empty(args, nargs))) continue;
    const char *name = accept_dtype_name((tpu_dtype)d), *text = entries[i].text, *hole = strstr(text, "%s");
    char list[96];
    taken(takes, list, sizeof list);
    if (entries[i].kind == KERNEL && !strchr(text, ' '))
      return err_new(TPU_ERR_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s': aten::%s takes %s tensors", text, name,
                     op, list);
    return err_new(entries[i].kind == KERNEL ? TPU_ERR_NOT_IMPLEMENTED : TPU_ERR_RUNTIME,
                   "%.*s%s%s (aten::%s takes %s tensors)", (int)(hole ? hole - text : (long)strlen(text)), text,
                   hole ? name : "", hole ? hole + 2 : "", op, list);
  }
  return NULL;
}
