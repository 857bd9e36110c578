# SPDX-License-Identifier: Apache-2.0
"""A model of three layers that is made here, so that no hub is asked, and what its KV cache takes.

vLLM's own dummy weights would prove nothing: they lie within 0.001 of zero, and so do those of the norms, which leaves
attention without any weight in the answer. A model with them answers all prompts that end with the same token alike, whatever
the cache holds. These weights are large enough that every token of the prompt counts.
"""

import json
import os

import numpy as np
from safetensors.numpy import save_file

LAYERS, HIDDEN, INNER, VOCABULARY, LONGEST = 3, 256, 512, 1000, 2048
HEADS, KV_HEADS, HEAD = 4, 2, 64
FIRST_TOKEN = 3  # those before it begin and end a text

BLOCK_TOKENS = 32
FLOAT_BYTES = 4
BLOCK_BYTES = LAYERS * 2 * KV_HEADS * HEAD * FLOAT_BYTES * BLOCK_TOKENS  # keys and values

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
    "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
    "max_position_embeddings": LONGEST, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}


def weights():
    """The same ones in each call."""
    random = np.random.default_rng(7)

    def matrix(rows, columns, scale=1.0):
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    named = {"model.embed_tokens.weight": random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32),
             "model.norm.weight": np.ones(HIDDEN, np.float32), "lm_head.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        # Attention gets twice the scale of the rest, so that its softmax prefers some tokens to others.
        here = {"self_attn.q_proj": matrix(HEADS * HEAD, HIDDEN, 2), "self_attn.k_proj": matrix(KV_HEADS * HEAD, HIDDEN, 2),
                "self_attn.v_proj": matrix(KV_HEADS * HEAD, HIDDEN, 2), "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD, 2),
                "mlp.gate_proj": matrix(INNER, HIDDEN), "mlp.up_proj": matrix(INNER, HIDDEN),
                "mlp.down_proj": matrix(HIDDEN, INNER), "input_layernorm": np.ones(HIDDEN, np.float32),
                "post_attention_layernorm": np.ones(HIDDEN, np.float32)}
        named.update({f"model.layers.{layer}.{name}.weight": value for name, value in here.items()})
    return named


def write_model(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIGURATION, file, indent=1)
    save_file(weights(), os.path.join(folder, "model.safetensors"), {"format": "pt"})


def make_prompt(seed, length):
    return np.random.default_rng(seed).integers(FIRST_TOKEN, VOCABULARY, length).tolist()


def cache_bytes(tokens):
    """vLLM moves whole blocks."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_BYTES
