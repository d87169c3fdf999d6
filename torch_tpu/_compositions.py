"""Fused operators that PyTorch takes for inference on any device of ours, and for which it has no decomposition: composed
of operators with rows, recorded and run as one program (torch_tpu._decompose)."""

import torch
from torch.nn import functional as F

# What a mask hides, by _transformer_encoder_layer_fwd's mask_type: as a mask of [batch, heads, queries, keys].
_MASKS = {0: lambda m: m, 1: lambda m: m[:, None, None, :], 2: lambda m: m if m.dim() == 4 else m[:, None]}


def _attend(query, key, value, num_heads, qkv_weight, qkv_bias, mask, mask_type, need_weights):
    """-> output [batch, queries, embedding], weights [batch, heads, queries, keys] or None"""
    size = query.shape[-1]
    if query is key and key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).split(size, dim=-1)
    else:
        parts = zip((query, key, value), qkv_weight.split(size), qkv_bias.split(size), strict=True)
        q, k, v = (F.linear(*p) for p in parts)
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    seen = None if mask is None else _MASKS[1 if mask_type is None else mask_type](mask.bool()).logical_not()
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2), None
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, -1)
    return (weights @ v).transpose(1, 2).flatten(2), weights


def native_multi_head_attention(
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
):
    out, weights = _attend(query, key, value, num_head, qkv_weight, qkv_bias, mask, mask_type, need_weights)
    out = F.linear(out, proj_weight, proj_bias)
    if weights is None:
        return out, None  # as on PyTorch's devices
    return out, weights.mean(1) if average_attn_weights else weights


def transformer_encoder_layer_fwd(
    src,
    embed_dim,
    num_heads,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    use_gelu,
    norm_first,
    eps,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask=None,
    mask_type=None,
):
    def norm(x, which):
        weight, bias = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))[which]
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attention(x):
        out, _ = _attend(x, x, x, num_heads, qkv_weight, qkv_bias, mask, mask_type, False)
        return F.linear(out, proj_weight, proj_bias)

    def feed_forward(x):
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(x) if use_gelu else F.relu(x), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm(src, 0))
        return x + feed_forward(norm(x, 1))
    x = norm(src + attention(src), 0)
    return norm(x + feed_forward(x), 1)


TABLE = {
    "aten::_native_multi_head_attention": native_multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": transformer_encoder_layer_fwd,
}
